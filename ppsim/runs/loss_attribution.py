"""Explain the time of a measured step by replays from which the causes of lost time are removed in turn.

The first replay has all measured times. Its difference from the step is the "rest".
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.display import Printable
from ppsim.base.errors import Deadlock, ScheduleError
from ppsim.base.units import seconds
from ppsim.runs.links import LinkTimes, SlowPairs, input_times, links_of, slow_pairs_excess
from ppsim.runs.loss_causes import (
    BETWEEN,
    CAUSES,
    STAGES_OR_RANKS,
    ActionSpeeds,
    CauseRemoval,
    cause_removals,
    launches_removal,
    work_in_words,
)
from ppsim.runs.pauses import LONG
from ppsim.runs.run import Run, median_costs, table_in_words
from ppsim.runs.step_factors import StepFactors
from ppsim.runs.step_replay import MeasuredSteps, median_gap_s, rank_waits_s, replay, replayed_step_s, steps_of
from ppsim.schedule.graph import EventGraph, build_graph
from ppsim.schedule.table import NONE, Schedule
from ppsim.simulation.timeline import Timeline

_OF_WAITS = ("slow links", "waits for messages", "gaps between passes")
_OWN = ("pipeline bubble", "compute", "rest")


@dataclass(frozen=True)
class LateRank:
    """A rank that holds up the step, and the time saved if its actions and gaps took at most their usual times.

    `action` is the rank's action on the critical path with the largest excess over the median stage.
    """

    rank: int
    gain_s: float
    others_wait_s: float
    action: str
    action_s: float


@dataclass(frozen=True)
class TimeLoss:
    """A cause, its seconds in the mean step, and the gain of the mean step if only this cause is removed."""

    cause: str
    seconds: float
    gain_s: float
    detail: str = ""
    median_s: float = 0.0
    quartiles_s: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Difference:
    """Seconds due to a cause in a measured and a projected step."""

    cause: str
    measured_s: float
    projected_s: float
    detail: str = ""

    @property
    def seconds(self) -> float:
        """Measured − projected; positive for time that the projection lacks."""
        return self.measured_s - self.projected_s

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"seconds": self.seconds}


@dataclass(frozen=True)
class ExplainedDifference:
    """Causes of the time of a projected step, compared with the causes of a measured step."""

    source: str
    step_s: float
    differences: list[Difference]
    note: str = ""
    timeline: Timeline | None = None

    @property
    def reasons(self) -> list[Difference]:
        return sorted(
            (difference for difference in self.differences if difference.seconds),
            key=lambda difference: -abs(difference.seconds),
        )

    def to_json(self) -> dict[str, Any]:
        differences = [difference.to_json() for difference in self.differences]
        return {"source": self.source, "step_s": self.step_s, "note": self.note, "differences": differences}


@dataclass(frozen=True, repr=False)
class Explanation(Printable):
    """Causes of the time of a mean step: `losses` sum to `period_s`, the step and the time until the next one.

    `action_times_s` are on the median stage; `timeline` is the median step. `faster_schedule` has the option of the
    schedule with the shortest projected step, and the seconds that it saves. `note` is about the whole
    recording.

    >>> found = Explanation("run", 1.0, 1.0, 3, [TimeLoss("uneven stages", 0.1, 0.1), TimeLoss("compute", 0.9,
    ...     0.9)])
    >>> [loss.cause for loss in found.reasons]
    ['uneven stages']
    """

    source: str
    step_s: float
    median_s: float
    num_steps: int
    losses: list[TimeLoss]
    late_ranks: list[LateRank] = field(default_factory=list)
    action_times_s: dict[str, float] = field(default_factory=dict)
    comparison: ExplainedDifference | None = None
    timeline: Timeline | None = None
    faster_schedule: tuple[str, float] | None = None
    note: str = ""

    @property
    def period_s(self) -> float:
        """Mean time from one step's start to the next, or `step_s` if that is not recorded."""
        return self.step_s + sum(loss.seconds for loss in self.losses if loss.cause == BETWEEN)

    @property
    def has_gaps(self) -> bool:
        return any(loss.cause == BETWEEN for loss in self.losses)

    @property
    def one_line(self) -> str:
        reasons = ", ".join(f"{loss.cause} {seconds(loss.gain_s)}" for loss in self.reasons[:3])
        return f"{self.num_steps} steps of {seconds(self.step_s)}: {reasons or 'nothing beside the schedule'}"

    @property
    def reasons(self) -> list[TimeLoss]:
        """Causes other than pipeline bubble, compute and unexplained time, the largest gain first."""
        losses = [loss for loss in self.losses if loss.cause not in _OWN and loss.gain_s > 0]
        return sorted(losses, key=lambda loss: -loss.gain_s)

    def to_json(self) -> dict[str, Any]:
        names = ("source", "step_s", "period_s", "median_s", "note", "num_steps", "action_times_s")
        return {
            **{name: getattr(self, name) for name in names},
            "faster_schedule": self.faster_schedule and list(self.faster_schedule),
            "losses": [asdict(loss) for loss in self.losses],
            "reasons": [loss.cause for loss in self.reasons],
            "late_ranks": [asdict(late) for late in self.late_ranks],
            **({"comparison": self.comparison.to_json()} if self.comparison else {}),
        }


@dataclass(frozen=True)
class _Term:
    """A `TimeLoss` before averaging: one entry per step."""

    cause: str
    seconds: Floats
    gain: Floats
    detail: str = ""


def attribute_losses(
    run: Run, *, call_s: float | None = None, variation_s: float = 0.0, first_step: int = 1
) -> Explanation:
    """Return the causes of the time of a run's steps.

    `call_s` is the time of a message in Megatron-LM's blocking calls (None: another trainer). `variation_s` is the
    wait before every action with which a projection replaces random action times.
    """
    lengths = run.step_times_s
    chosen = int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])
    schedule, graph = run.graph.schedule, build_graph(run.graph.schedule)
    start, steps, usual, paces, excess = _usual_times(run)
    causes = cause_removals(
        paces, steps, start, excess, usual, first_step=first_step, variation_s=variation_s, work_s=run.work_s
    )
    if run.launch_wait_s is not None:
        causes.append(launches_removal(paces, run.launch_wait_s))
    terms = _terms(graph, steps, lengths, causes)
    if call_s is not None and (calls := _calls_of(schedule)) is not None:
        terms = _with_gains(_with_calls(terms, graph, calls, steps, call_s), causes, calls, steps, call_s)
    if len(run.gaps_s):
        between = np.full_like(lengths, np.mean(run.gaps_s))
        terms.append(_Term(BETWEEN, between, between, _between(run, first_step)))
    terms.sort(key=lambda term: list(CAUSES).index(term.cause))
    return Explanation(
        run.source, float(lengths.mean()), float(np.median(lengths)), len(lengths), [_loss(term) for term in terms],
        late_ranks=late_ranks(graph, steps[chosen], paces.even),
        action_times_s={op.name: one for op, one in paces.typical.items()},
    )  # fmt: skip


def _usual_times(run: Run) -> tuple[Floats, MeasuredSteps, LinkTimes, ActionSpeeds, SlowPairs]:
    """Return the starts within each step, the replayable steps, and the usual times of links and actions."""
    schedule, actions = run.graph.schedule, run.graph.num_actions
    graph = build_graph(schedule)
    first = run.start[:, :actions].min(axis=1, keepdims=True)
    start, end = run.start[:, :actions] - first, run.end[:, :actions] - first
    usual = links_of(graph, start, *input_times(graph, end)[:2])
    steps = steps_of(graph, start, end, usual)
    paces = ActionSpeeds(schedule, StepFactors.fitted(schedule, steps.taken, float(run.step_times_s.mean())))
    return start, steps, usual, paces, slow_pairs_excess(usual, float(np.median(paces.factors.usual)))


def lasting_faults(run: Run) -> tuple[Floats, tuple[tuple[float, ...], ...]]:
    """Return the slowdown of each rank's forwards and backwards, [2, ranks], and the rows of a run's slow links.

    The rows are as in `StageCosts.slow_links`.
    """
    _, _, usual, paces, excess = _usual_times(run)
    # In Megatron-LM's blocking calls, a rank also waits for other ranks' messages.
    return paces.slow_ranks, excess.rows(usual) if run.communication == "overlap" else ()


def _between(run: Run, first_step: int) -> str:
    """Describe the first rank to start a step, and a rank whose first collective is much later than others."""
    gaps, actions = np.array(run.gaps_s), run.graph.num_actions
    longest, usual = int(np.argmax(gaps)), float(np.median(gaps))
    first = int(np.argmin(run.start[-1, :actions]))
    rank = run.graph.schedule.rank[first]
    work_s = {name: spent[1:, first] for name, spent in run.work_s.items() if len(spent) == len(gaps) + 1}
    sentence = f"rank {rank} starts a step {seconds(usual)} after the last pass of the step before"
    sentence += work_in_words({name: float(np.median(spent)) for name, spent in work_s.items()})
    if len(run.to_collective_s):
        works = np.median(run.to_collective_s, axis=0)
        latest = int(np.argmax(works))
        others = float(np.median(np.delete(works, latest))) if len(works) > 1 else 0.0
        if works[latest] > LONG * others + usual / 2:
            sentence = (
                f"rank {latest} starts its first collective {seconds(float(works[latest]))} after its last pass, "
                f"the other ranks after {seconds(others)}; {sentence}"
            )
    if gaps[longest] <= LONG * usual:
        return sentence
    after = work_in_words({name: float(spent[longest]) for name, spent in work_s.items()}, most=1)
    return f"{sentence}, {seconds(float(gaps[longest]))} after step {first_step + longest}{after}"


def explain_difference(
    measured: Explanation, projected: Timeline, *, source: str, call_s: float | None
) -> ExplainedDifference:
    graph = projected.graph
    costs = median_costs(graph, (projected.end - projected.start)[None, : graph.num_actions])
    run = Run(source, graph, costs, projected.start[None], projected.end[None])
    thought_of = attribute_losses(run, call_s=call_s, variation_s=projected.costs.variation_s)
    explanations = [measured, thought_of]
    causes = [{loss.cause for loss in one.losses} for one in explanations]
    merged = [merge for merge in _ALIKE if causes[0].intersection(merge[1]) != causes[1].intersection(merge[1])]
    real, thought = (_by_cause(one, merged) for one in explanations)
    none = TimeLoss("", 0.0, 0.0)
    differences = []
    for cause in sorted(real | thought, key=_place):
        ours, theirs = real.get(cause, none), thought.get(cause, none)
        differences.append(Difference(cause, ours.seconds, theirs.seconds, ours.detail))
    note = ""
    if measured.timeline is not None and measured.timeline.schedule != projected.schedule:
        ran = table_in_words(measured.timeline.schedule)
        note = f"another table was projected: {table_in_words(projected.schedule)}; measured: {ran}"
    if measured.timeline is None or measured.timeline.schedule.num_stages == projected.schedule.num_stages:
        differences = [_with_paces(difference, measured, thought_of) for difference in differences]
    return ExplainedDifference(source, thought_of.step_s, differences, note, projected)


_ALIKE = (
    ("sends and receives", ("waits for messages", "blocking sends and receives")),
    (STAGES_OR_RANKS, ("slow ranks", "uneven stages", STAGES_OR_RANKS)),
    ("compute", ("kernel launches", "compute")),
)
"""Names of causes that are merged if the measured and the projected step do not both distinguish them."""


def _by_cause(explanation: Explanation, merged: Sequence[tuple[str, tuple[str, ...]]]) -> dict[str, TimeLoss]:
    names = {cause: name for name, causes in merged for cause in causes}
    losses: dict[str, TimeLoss] = {}
    for loss in explanation.losses:
        name = names.get(loss.cause, loss.cause)
        before = losses.get(name, TimeLoss(name, 0.0, 0.0))
        details = "; ".join(detail for detail in (before.detail, loss.detail) if detail)
        losses[name] = TimeLoss(name, before.seconds + loss.seconds, 0.0, details)
    return losses


def _place(cause: str) -> int:
    causes = dict(_ALIKE)
    return list(CAUSES).index(cause if cause in CAUSES else causes[cause][0])


def _with_paces(difference: Difference, measured: Explanation, projected: Explanation) -> Difference:
    if difference.cause != "compute":
        return difference
    passes = ", ".join(
        f"{kind} {seconds(taken)}, projected {seconds(projected.action_times_s[kind])}"
        for kind, taken in measured.action_times_s.items()
        if kind in projected.action_times_s
    )
    return replace(difference, detail=f"median stage: {passes}")


def _loss(term: _Term) -> TimeLoss:
    low, middle, high = np.quantile(term.seconds, [0.25, 0.5, 0.75]).tolist()
    return TimeLoss(
        term.cause, float(term.seconds.mean()), float(term.gain.mean()), term.detail, middle, (low, high)
    )


def _terms(graph: EventGraph, steps: MeasuredSteps, lengths: Floats, causes: Sequence[CauseRemoval]) -> list[_Term]:
    replayed = replayed_step_s(graph, steps)
    terms = [_Term("rest", lengths - replayed, np.zeros_like(lengths))]
    before, current = replayed, steps
    for removal in causes:
        current = removal.without(current)
        after = replayed_step_s(graph, current)
        gain = replayed - replayed_step_s(graph, removal.without_others(steps))
        terms.append(_Term(removal.cause, before - after, gain, removal.detail))
        before = after
    schedule = graph.schedule
    busy = current.taken.sum(axis=1) / schedule.num_ranks
    size = f"{schedule.num_ranks} ranks, {schedule.num_stages} stages and {schedule.num_microbatches} microbatches"
    return [
        *terms,
        _Term("pipeline bubble", before - busy, before - busy, f"idle time of the schedule with {size}"),
        _Term("compute", busy, busy, "mean over the ranks"),
    ]


def _calls_of(schedule: Schedule) -> EventGraph | None:
    """Return the graph with Megatron-LM's blocking calls, None for a table that no loop of Megatron-LM can run."""
    try:
        return build_graph(schedule, communication="megatron")
    except (ScheduleError, Deadlock):
        return None


def _with_calls(
    terms: list[_Term], graph: EventGraph, calls: EventGraph, steps: MeasuredSteps, call_s: float
) -> list[_Term]:
    waits = {"waits for messages", "gaps between passes"}
    others = [term for term in terms if term.cause not in waits]
    gaps = next(term for term in terms if term.cause == "gaps between passes")
    waited_s = np.sum([term.seconds for term in terms if term.cause in waits], axis=0)
    with_calls = replayed_step_s(calls, steps, hop_s=call_s)
    blocking = with_calls - replayed_step_s(graph, steps, hop_s=0.0)
    detail = f"{seconds(call_s)} per message in Megatron-LM's own calls"
    return [
        *others,
        _Term("blocking sends and receives", blocking, blocking, detail),
        _Term(
            "gaps between passes", waited_s - blocking, waited_s - blocking, f"outside these calls; {gaps.detail}"
        ),
    ]


def _with_gains(
    terms: list[_Term], causes: Sequence[CauseRemoval], calls: EventGraph, steps: MeasuredSteps, call_s: float
) -> list[_Term]:
    """Recompute the gains of causes in actions, with blocking calls, which pass delays on to other ranks."""
    as_it_was, by_cause = replayed_step_s(calls, steps, hop_s=call_s), {cause.cause: cause for cause in causes}

    def gain_of(term: _Term) -> Floats:
        if term.cause in _OF_WAITS or term.cause not in by_cause:
            return term.gain
        gain = as_it_was - replayed_step_s(calls, by_cause[term.cause].without_others(steps), hop_s=call_s)
        # The replay of the calls has no pauses between actions.
        return np.maximum(gain, term.gain) if term.cause == "pauses" else gain

    return [replace(term, gain=gain_of(term)) for term in terms]


def late_ranks(graph: EventGraph, step: MeasuredSteps, even: Floats) -> list[LateRank]:
    """Replay the step once per rank, with the rank's actions and gaps limited to usual values.

    These are `even`, the actions' times on the median stage, and the median gap.
    """
    schedule, gap = graph.schedule, median_gap_s(step)
    as_it_was = replay(graph, step)
    ends = as_it_was.end[: graph.num_actions]
    waited, on_path = rank_waits_s(graph, ends), _critical_path(as_it_was.blocker, ends)
    excess = np.where(np.isin(np.arange(len(schedule)), on_path), step.taken[0] - even, 0.0)
    found = []
    for rank in range(schedule.num_ranks):
        its = schedule.rank == rank
        on_time = MeasuredSteps(
            np.where(its, np.minimum(step.taken, even), step.taken),
            step.hop,
            np.where(its, np.minimum(step.after_own, gap), step.after_own),
        )
        sooner = replay(graph, on_time).end[: graph.num_actions]
        gain = float(ends.max()) - float(sooner.max())
        if gain <= 0:
            continue
        others = float(np.delete(waited - rank_waits_s(graph, sooner), rank).sum())
        worst = int(np.argmax(np.where(its, excess, -np.inf)))
        named = excess[worst] > 0
        found.append(
            LateRank(rank, gain, others, str(schedule[worst]) if named else "", max(float(excess[worst]), 0.0))
        )
    return sorted(found, key=lambda late: -late.gain_s)


def _critical_path(blocker: Any, end: Floats) -> list[int]:
    node, path = int(np.argmax(end)), []
    while node != NONE:
        path.append(node)
        node = int(blocker[node])
    return path
