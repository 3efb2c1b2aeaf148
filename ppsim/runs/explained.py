"""Why a measured step takes as long as it does: what each cause costs, by replays through the simulator without it.

A step is replayed as it was: a pass takes what it took, and starts a wait after the last thing that it needs has
ended (the pass before it on its rank, and the one that makes its input). Causes are then taken out one after the
other, each from a replay that lacks those before it, so that they sum to the step; what the first replay is off
by is the rest. The order goes from what lies between passes to what lies in them, and ends at stages of one pace,
where only the schedule's own bubble is left.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.shown import Shown
from ppsim.base.units import seconds, signed_percent
from ppsim.runs.run import Run, pass_medians
from ppsim.schedule.dependencies import dependencies
from ppsim.schedule.graph import EventGraph, build_graph
from ppsim.schedule.table import NONE, Op, Schedule, last_of_cell
from ppsim.simulation.engine import evaluate

CAUSES = {
    "straggling steps": "the mean step beyond the median one",
    "waits for messages": "beyond that, a pass starts later than its input was made, its rank being free",
    "gaps between passes": "what a rank does before a pass, its input being there: launches, blocking calls",
    "slow first passes": "the first pass of each kind of a stage beyond the stage's median",
    "passes that vary": "passes beyond or below the median of their stage",
    "slow ranks": "all stages of a rank are slower than the others'",
    "uneven stages": "stages that take longer than the median one",
    "idle by the schedule": "what the order of passes leaves idle where all stages are alike",
    "compute": "the passes themselves, at the pace of the median stage",
    "rest": "what the replay of the step is off by",
}


@dataclass(frozen=True)
class Loss:
    """A cause: the seconds of the step that it accounts for, and what the step would gain without it alone.

    `detail` says where it is found, and how much of it.
    """

    cause: str
    seconds: float
    gain_s: float
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it."""
        return asdict(self)


@dataclass(frozen=True)
class Explanation(Shown):
    """Where a mean step goes: `losses` sum to `step_s`. The median step is the one that is replayed.

    >>> found = Explanation("run", 1.0, 1.0, 3, [Loss("uneven stages", 0.1, 0.1), Loss("compute", 0.9, 0.9)])
    >>> [loss.cause for loss in found.reasons]
    ['uneven stages']
    """

    source: str
    step_s: float
    median_s: float
    num_steps: int
    losses: list[Loss]

    @property
    def reasons(self) -> list[Loss]:
        """What is not the schedule's or the passes' own, the largest first."""
        own = ("idle by the schedule", "compute", "rest")
        found = [loss for loss in self.losses if loss.cause not in own and loss.seconds > 0]
        return sorted(found, key=lambda loss: -loss.seconds)

    def to_json(self) -> dict[str, Any]:
        """Return the losses, which sum to `step_s`, and the reasons by name, the largest first."""
        return {
            "source": self.source,
            "step_s": self.step_s,
            "median_s": self.median_s,
            "num_steps": self.num_steps,
            "losses": [loss.to_json() for loss in self.losses],
            "reasons": [loss.cause for loss in self.reasons],
        }


@dataclass(frozen=True)
class _Step:
    """What a replay takes: seconds of each pass, and those that it waits for a message or after its rank's last."""

    taken: Floats
    for_message: Floats
    after_own: Floats


def explained(run: Run) -> Explanation:
    """Return where the steps of a run go."""
    lengths = run.step_times_s
    median = float(np.median(lengths))
    chosen = int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])
    schedule = run.graph.schedule
    graph = build_graph(schedule)
    actions = run.graph.num_actions
    first = run.start[chosen, :actions].min()
    step = _step_of(graph, run.start[chosen, :actions] - first, run.end[chosen, :actions] - first)
    medians = pass_medians(schedule, (run.end - run.start)[:, :actions])

    mean, length, replayed = float(lengths.mean()), float(lengths[chosen]), _replayed(graph, step)
    slow = ", ".join(signed_percent(one / median - 1) for one in sorted(lengths)[::-1][:2] if one > 1.02 * median)
    losses = [
        Loss("straggling steps", mean - length, mean - length, f"the slowest: {slow}" if slow else ""),
        Loss("rest", length - replayed, 0.0),
    ]
    before, current = replayed, step
    for cause, without, detail in _causes(schedule, medians):
        current = without(current)
        after = _replayed(graph, current)
        losses.append(Loss(cause, before - after, replayed - _replayed(graph, without(step)), detail(step)))
        before = after
    busy = float(current.taken.sum()) / schedule.num_ranks
    losses += [
        Loss("idle by the schedule", before - busy, before - busy),
        Loss("compute", busy, busy, "the mean of the ranks"),
    ]
    order = list(CAUSES)
    losses.sort(key=lambda loss: order.index(loss.cause))
    return Explanation(run.source, mean, median, len(lengths), losses)


def _step_of(graph: EventGraph, start: Floats, end: Floats) -> _Step:
    """The durations and waits of a step, of which a fused cell's results leave when all of it is done."""
    schedule = graph.schedule
    previous = np.arange(-1, len(schedule) - 1)
    previous[schedule.rank_offsets[:-1]] = NONE
    before = np.where(previous == NONE, 0.0, end[previous])
    needs = dependencies(schedule).neighbour
    made = np.where(needs == NONE, 0.0, end[last_of_cell(schedule)[needs]])
    wait = np.maximum(start - np.maximum(before, made), 0.0)
    crosses = (needs != NONE) & (schedule.rank[needs] != schedule.rank)
    own = _waits_after_own(made - before, wait, crosses)
    return _Step(end - start, wait - own, own)


def _waits_after_own(late: Floats, wait: Floats, crosses: Any) -> Floats:
    """What a rank itself does before each pass: all of a wait that no message explains, else as much as is usual.

    `late` is how much later the input was made than the pass before ended. A message explains waits where its input
    was not made so long before that it had arrived.
    """
    usual = float(np.median(wait))
    gaps, hops = wait[~crosses | (late < -usual)], wait[crosses & (late > usual)]
    gap = float(np.median(gaps)) if len(gaps) else 0.0
    hop = float(np.median(hops)) if len(hops) else 0.0
    own: Floats = np.where(crosses & (late > -hop), np.minimum(wait, gap), wait)
    return own


def _replayed(graph: EventGraph, step: _Step) -> float:
    """Seconds from the first start to the last end."""
    transfers = np.zeros(graph.num_transfers)
    durations = np.concatenate([step.taken, transfers])
    waits = np.concatenate([step.for_message + step.after_own, transfers])
    times = evaluate(graph, durations, waits)
    actions = graph.num_actions
    return float(times.end[:actions].max() - times.start[:actions].min())


_Without = Callable[[_Step], _Step]


def _causes(
    schedule: Schedule, medians: dict[tuple[Op, int], float]
) -> Iterator[tuple[str, _Without, Callable[[_Step], str]]]:
    """Each cause, what a step is without it, and where it is found in one, in the order of their removal."""
    usual = np.array([medians[Op(op), stage] for op, stage in zip(schedule.op, schedule.stage, strict=True)])
    firsts = _first_passes(schedule)
    paces = _paces(schedule, medians)
    of_rank = paces[schedule.rank]
    even = np.array([_typical(medians, Op(op)) for op in schedule.op])
    none = np.zeros(len(schedule))

    def with_passes(factor: Callable[[_Step], Floats]) -> _Without:
        return lambda step: _Step(factor(step), step.for_message, step.after_own)

    yield (
        "waits for messages",
        lambda step: _Step(step.taken, none, step.after_own),
        lambda step: _median_wait(step.for_message, "a message"),
    )
    yield (
        "gaps between passes",
        lambda step: _Step(step.taken, step.for_message, none),
        lambda step: _median_wait(step.after_own, "a gap"),
    )
    yield (
        "slow first passes",
        with_passes(lambda step: np.where(firsts, np.minimum(step.taken, usual), step.taken)),
        lambda step: _worst_pass(schedule, np.where(firsts, step.taken - usual, 0.0)),
    )
    yield (
        "passes that vary",
        with_passes(lambda step: usual),
        lambda step: _worst_pass(schedule, step.taken - usual),
    )
    if schedule.vpp > 1:
        worst = int(np.argmax(paces))
        yield (
            "slow ranks",
            with_passes(lambda step: usual / of_rank),
            lambda step: f"rank {worst}: {signed_percent(float(paces[worst]) - 1)}",
        )
    yield "uneven stages", with_passes(lambda step: even), lambda step: _worst_stage(schedule, medians)


def _first_passes(schedule: Schedule) -> Any:
    """Which passes are the first of their kind of a stage."""
    key = schedule.op.astype(np.int64) * schedule.num_stages + schedule.stage
    first = np.zeros(len(schedule), dtype=bool)
    first[np.unique(key, return_index=True)[1]] = True
    return first


def _paces(schedule: Schedule, medians: dict[tuple[Op, int], float]) -> Floats:
    """How much longer than the median stage all stages of a rank take; 1 for a rank that is like the others."""
    typical = {op: _typical(medians, op) for op, _ in medians}
    paces = np.ones(schedule.num_ranks)
    for rank in range(schedule.num_ranks):
        ratios = [
            medians[op, stage] / typical[op]
            for op, stage in product(typical, np.flatnonzero(schedule.stage_to_rank == rank).tolist())
            if (op, stage) in medians and typical[op] > 0
        ]
        paces[rank] = max(min(ratios, default=1.0), 1.0)  # a rank is slow where all that it runs is
    return paces


def _typical(medians: dict[tuple[Op, int], float], op: Op) -> float:
    """Of the median stage."""
    return float(np.median([one for (kind, _), one in medians.items() if kind is op]))


def _median_wait(waits: Floats, what: str) -> str:
    found = waits[waits > 0]
    return f"{seconds(float(np.median(found)))} {what}, the median of {len(found)}" if len(found) else ""


def _worst_pass(schedule: Schedule, excess: Floats) -> str:
    worst = int(np.argmax(excess))
    if excess[worst] <= 0:
        return ""
    return f"the worst: {schedule[worst]} on rank {schedule.rank[worst]}, {seconds(float(excess[worst]))} more"


def _worst_stage(schedule: Schedule, medians: dict[tuple[Op, int], float]) -> str:
    """The stage whose passes of a microbatch take longest."""
    whole = np.zeros(schedule.num_stages)
    for (_, stage), one in medians.items():
        whole[stage] += one
    worst, typical = int(np.argmax(whole)), float(np.median(whole))
    return (
        f"stage {worst} on rank {schedule.stage_to_rank[worst]}: {seconds(float(whole[worst]))} a microbatch, "
        f"{signed_percent(float(whole[worst]) / typical - 1)} over the median stage"
    )
