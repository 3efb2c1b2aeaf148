"""Causes of lost time in measured steps, and their removal from actions and waits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.units import percent, seconds, signed_percent
from ppsim.runs.links import LinkTimes, SlowPairs
from ppsim.runs.pauses import MOST_PLACES, join_places, passes_in_words, pauses_between, waits_in_words
from ppsim.runs.step_factors import StepFactors
from ppsim.runs.step_replay import MeasuredSteps
from ppsim.schedule.table import Op, Schedule

STAGES_OR_RANKS = "uneven stages or slow ranks"

BETWEEN = "time between steps"

CAUSES = {
    BETWEEN: "last end of a step to the first start of the next: data loader, optimizer, checkpoint",
    "slow links": "messages between one pair of ranks take longer than between others",
    "waits for messages": "an action waits for the transfer of its input, and its rank is free",
    "pauses": "an action, or a wait before one, exceeds 1.5 × its usual time, by more than 2 % of the step",
    "gaps between passes": "host time of a rank before every action",
    "blocking sends and receives": "time of Megatron-LM's blocking calls in a run of Primus",
    "slow first passes": "the first action of each kind on a stage is slower than the later ones",
    "straggling steps": "all actions of one step are slower, or all of one rank in it",
    "drift": "actions of all ranks or of one get slower or faster from step to step, or within a step",
    "uneven microbatches": "some microbatches (sequence lengths) take longer than others on all stages",
    "passes that vary": "remaining difference of actions from the median of their stage",
    "slow ranks": "all stages of a rank are slower than stages of other ranks",
    "uneven stages": "stages take longer than the median stage",
    STAGES_OR_RANKS: "one of the two, if a run cannot show which (for example, with one stage per rank)",
    "kernel launches": "the device is idle within an action until the host launches its next kernel",
    "pipeline bubble": "idle time of the schedule with equal stages",
    "compute": "actions with the time of the median stage",
    "rest": "error of the replay of the step",
}
"""All causes with their meanings, in the order of a report's table."""

_ALIKE = 0.03
"""Stages whose times differ by less than this fraction count as equal."""

_CLEARLY = 0.05
"""Minimum excess of a slow rank that a projection of the run takes over."""

_NOTHING = 0.1
"""An I below this fraction of the longest I counts as empty: torch's first stage does all of its backward in W."""


@dataclass(frozen=True)
class CauseRemoval:
    """A cause: `without` removes it from steps without the earlier causes, `alone` from the measured steps.

    If `alone` is None, `without` does both.
    """

    cause: str
    without: Callable[[MeasuredSteps], MeasuredSteps]
    detail: str
    alone: Callable[[MeasuredSteps], MeasuredSteps] | None = None

    def without_others(self, steps: MeasuredSteps) -> MeasuredSteps:
        return (self.alone or self.without)(steps)


@dataclass(frozen=True)
class ActionSpeeds:
    """Usual times of a run's actions, by stage and rank."""

    schedule: Schedule
    factors: StepFactors

    @property
    def medians(self) -> dict[tuple[Op, int], float]:
        return self.factors.medians

    @cached_property
    def backward_s(self) -> dict[int, float]:
        """I + W of each stage: torch's first stage has no input gradient, so that W is its whole backward."""
        halves = {stage: median for (op, stage), median in self.medians.items() if op is Op.I}
        return {stage: half + self.medians.get((Op.W, stage), 0.0) for stage, half in halves.items()}

    @cached_property
    def all_weight(self) -> set[int]:
        inputs = {stage: self.medians[Op.I, stage] for stage in self.backward_s}
        return {stage for stage, one in inputs.items() if one < _NOTHING * max(inputs.values())}

    @cached_property
    def whole_s(self) -> Floats:
        """Time of all actions of a microbatch, one entry per stage."""
        whole = np.zeros(self.schedule.num_stages)
        for (_, stage), median in self.medians.items():
            whole[stage] += median
        return whole

    def _reasons(self, base_s: float) -> tuple[list[int], int]:
        """Return the slow ranks, and the number of other unusual stages, relative to a stage time `base_s`."""
        ratio, ranks = self.whole_s / base_s, self.schedule.stage_to_rank
        of_rank = np.array([max(float(ratio[ranks == rank].min()), 1.0) for rank in range(self.schedule.num_ranks)])
        slow: list[int] = np.flatnonzero(of_rank > 1 + _ALIKE).tolist()
        return slow, int((np.abs(ratio / of_rank[ranks] - 1) > _ALIKE).sum())

    @cached_property
    def most_are_slow(self) -> bool:
        """True for two ranks with several stages whose median stage is slow.

        An example is a slow rank, and a slow stage on the other rank.
        """
        middle, least = _lower_median(self.whole_s.tolist()), float(self.whole_s.min())
        several = self.schedule.num_ranks == 2 and self.schedule.vpp > 1
        return several and least > 0 and middle > (1 + _ALIKE) * least

    @cached_property
    def is_told(self) -> bool:
        """True if slow ranks can be distinguished from slow stages.

        If most stages of two ranks are slow, the fastest and the median stage are compared as references. Both must
        give the same slow ranks, or the fastest must give fewer slow ranks and stages.
        """
        if self.schedule.vpp == 1 or not self.most_are_slow:
            return self.schedule.vpp > 1
        ranks, stages = self._reasons(float(self.whole_s.min()))
        of_usual, others = self._reasons(_lower_median(self.whole_s.tolist()))
        return ranks == of_usual != [] or len(ranks) + stages < len(of_usual) + others

    @cached_property
    def of_base(self) -> dict[tuple[Op, int], float]:
        """Medians of all stages or, if most stages are slow, of the fast stages only."""
        if not self.most_are_slow:
            return self.medians
        fast = self.whole_s <= (1 + _ALIKE) * self.whole_s.min()
        return {(op, stage): median for (op, stage), median in self.medians.items() if fast[stage]}

    @cached_property
    def typical(self) -> dict[Op, float]:
        """Times of the lower median stage, so that half of the stages may be slow."""
        kinds = dict.fromkeys(op for op, _ in self.medians)
        medians = {
            kind: _lower_median([one for (op, _), one in self.of_base.items() if op is kind]) for kind in kinds
        }
        if len(self.backward_s) > len(self.all_weight):
            backward_s = _lower_median([self.backward_s[stage] for op, stage in self.of_base if op is Op.I])
            of_input = [
                self.medians[Op.I, stage] / self.backward_s[stage]
                for stage in self.backward_s.keys() - self.all_weight
            ]
            medians[Op.I] = float(np.median(of_input)) * backward_s
            medians[Op.W] = backward_s - medians[Op.I]
        return medians

    @cached_property
    def even(self) -> Floats:
        even = {(op, stage): self.typical[op] for op, stage in self.medians}
        for stage in self.all_weight:
            even[Op.I, stage] = self.medians[Op.I, stage]
            even[Op.W, stage] = self.typical[Op.I] + self.typical[Op.W] - self.medians[Op.I, stage]
        return self.factors.each(even)

    @cached_property
    def of_ranks(self) -> Floats:
        """Slowdown of each rank's forwards and backwards, [2, ranks], if all stages of the rank have it."""
        ratios = np.full((2, self.schedule.num_ranks), np.inf)
        whole = self.typical.get(Op.I, 0.0) + self.typical.get(Op.W, 0.0)
        taken = [
            (stage, median, op, self.typical[op]) for (op, stage), median in self.medians.items() if op <= Op.B
        ]
        taken += [(stage, one, Op.B, whole) for stage, one in self.backward_s.items()]
        for stage, one, op, typical in taken:
            if typical > 0:
                entry = int(op is Op.B), self.schedule.stage_to_rank[stage]
                ratios[entry] = min(ratios[entry], one / typical)
        # A rank is slow only if all its stages are slow, hence the minimum.
        return np.maximum(np.where(np.isinf(ratios), 1.0, ratios), 1.0)

    @cached_property
    def slow_ranks(self) -> Floats:
        """`of_ranks` of the clearly slow ranks, 1 for the others.

        With one stage per rank, inner ranks count as slow if half of the ranks have the time of the median rank.
        """
        is_slow = self.of_ranks.max(axis=0) > 1 + _CLEARLY
        if not self.is_told:
            is_usual = np.abs(self.whole_s / _lower_median(self.whole_s.tolist()) - 1) < _ALIKE
            is_slow[[0, -1]] = False
            is_slow &= self.schedule.vpp == 1 and 2 * is_usual.sum() >= self.schedule.num_ranks
        return np.where(is_slow, self.of_ranks, 1.0)


def cause_removals(
    paces: ActionSpeeds, steps: MeasuredSteps, start: Floats, excess: SlowPairs, usual_links: LinkTimes, *,
    first_step: int = 1, variation_s: float = 0.0, work_s: Mapping[str, Floats] = {},
) -> list[CauseRemoval]:  # fmt: skip
    """Return the causes in the order of removal.

    `variation_s` is the wait with which a projection replaces random action times.
    """
    factors = paces.factors
    pauses = pauses_between(steps, usual_links, factors.step_s)
    words = (
        waits_in_words(paces.schedule, pauses, usual_links, start, first_step, work_s),
        passes_in_words(paces.schedule, factors.pauses, steps.taken, first_step),
    )
    gaps = np.maximum(steps.after_own - pauses.after_own - excess.block_s - variation_s, 0.0)

    def minus(steps: MeasuredSteps, hop: Floats, own: Floats) -> MeasuredSteps:
        return MeasuredSteps(steps.taken, np.maximum(steps.hop - hop, 0.0), np.maximum(steps.after_own - own, 0.0))

    removals = [
        CauseRemoval(
            "slow links",
            lambda steps: minus(steps, excess.transit_s, excess.block_s),
            join_places(excess.told[:MOST_PLACES], len(excess.named)),
        ),
        CauseRemoval(
            "pauses",
            lambda steps: replace(minus(steps, pauses.hop, pauses.after_own), taken=steps.taken - factors.pauses),
            "; ".join(filter(None, words)),
        ),
        CauseRemoval(
            "waits for messages",
            lambda steps: MeasuredSteps(steps.taken, np.zeros_like(steps.hop), steps.after_own),
            _median_wait(steps.hop - pauses.hop - excess.transit_s, "message", work_s),
            lambda steps: MeasuredSteps(
                steps.taken, np.minimum(steps.hop, pauses.hop + excess.transit_s), steps.after_own
            ),
        ),
        CauseRemoval(
            "gaps between passes",
            lambda steps: MeasuredSteps(steps.taken, steps.hop, np.minimum(steps.after_own, variation_s)),
            _median_wait(gaps, "gap", work_s),
            lambda steps: MeasuredSteps(
                steps.taken, steps.hop, np.minimum(steps.after_own, pauses.after_own + excess.block_s + variation_s)
            ),
        ),
        *_of_factors(paces, first_step),
    ]
    return [*removals, _variation(paces, variation_s), *_of_stages(paces)]


def _of_factors(paces: ActionSpeeds, first_step: int) -> list[CauseRemoval]:
    factors, schedule = paces.factors, paces.schedule
    firsts, expected = factors.firsts, factors.expected

    def slow_first(taken: Floats) -> Floats:
        return np.where(firsts, np.minimum(taken, expected), taken)

    late = np.where(firsts, factors.without_pauses - expected, 0.0).mean(axis=0)
    losses = [_of_passes("slow first passes", slow_first, _worst_pass(schedule, late), factors)]
    for cause, factor, detail in (
        ("straggling steps", factors.slow_steps[:, schedule.rank], _slow_steps(factors.slow_steps, first_step)),
        ("drift", factors.drift[:, schedule.rank] * factors.drift_in_step, _drifting(paces)),
        ("uneven microbatches", factors.sizes, _sizes(factors)),
    ):
        if (np.abs(factor - 1) > 0).any():
            losses.append(_of_passes(cause, _divided_by(factor), detail, factors))
    return losses


def _divided_by(factor: Floats) -> Callable[[Floats], Floats]:
    return lambda taken: taken / factor


def _variation(paces: ActionSpeeds, variation_s: float) -> CauseRemoval:
    factors = paces.factors

    def without(steps: MeasuredSteps, taken: Floats) -> MeasuredSteps:
        return MeasuredSteps(taken, steps.hop, np.maximum(steps.after_own - variation_s, 0.0))

    def as_expected() -> Floats:
        return np.where(factors.firsts, np.maximum(factors.without_pauses, factors.expected), factors.expected)

    spread = f"{seconds(variation_s)} before a pass" if variation_s else ""
    excess = np.where(factors.firsts, 0.0, factors.without_pauses - factors.expected).mean(axis=0)
    return CauseRemoval(
        "passes that vary",
        lambda steps: without(steps, np.broadcast_to(factors.usual, steps.taken.shape)),
        spread or _worst_pass(paces.schedule, excess),
        lambda steps: without(steps, factors.pauses + as_expected()),
    )


def _of_stages(paces: ActionSpeeds) -> list[CauseRemoval]:
    schedule, usual, even, factors = paces.schedule, paces.factors.usual, paces.even, paces.factors
    is_backward = (schedule.op != Op.F).astype(int)
    of_rank = paces.of_ranks[is_backward, schedule.rank] if paces.is_told else np.ones_like(usual)
    ratio = np.divide(even * of_rank, usual, out=np.zeros_like(usual), where=usual > 0)

    def at_one_pace(taken: Floats) -> Floats:
        return np.where(usual > 0, taken * ratio, even)

    if not paces.is_told:
        return [_of_passes(STAGES_OR_RANKS, at_one_pace, _worst_stage(paces), factors)]
    return [
        _of_passes("slow ranks", lambda taken: taken / of_rank, _worst_rank(paces.of_ranks), factors),
        _of_passes("uneven stages", at_one_pace, _worst_stage(paces), factors),
    ]


def launches_removal(paces: ActionSpeeds, launch_wait_s: Floats) -> CauseRemoval:
    """Return the removal of the device's waits for launches (`Run.launch_wait_s`), for the end of the others."""
    taken = paces.factors.taken
    waits = np.divide(launch_wait_s, taken, out=np.zeros_like(taken), where=taken > 0)
    share = np.minimum(np.median(waits, axis=0), 1.0)
    usual = {op.name: float(np.median(share[paces.schedule.op == op])) for op in paces.typical}
    detail = "device idle: " + ", ".join(f"{percent(idle)} of {name}" for name, idle in usual.items())
    return _of_passes("kernel launches", lambda taken: taken * (1 - share), detail, paces.factors)


def _worst_rank(of_ranks: Floats) -> str:
    worst = int(np.argmax(of_ranks.sum(axis=0)))
    slow = dict(zip(("forward", "backward"), (of_ranks[:, worst] - 1).tolist(), strict=True))
    if abs(slow["forward"] - slow["backward"]) <= _ALIKE:
        return f"rank {worst}: {signed_percent(slow['backward'])}" if of_ranks.max() > 1 else ""
    return f"rank {worst}: {', '.join(f'{name} {signed_percent(part)}' for name, part in slow.items())}"


def _of_passes(
    cause: str, taken_without: Callable[[Floats], Floats], detail: str, factors: StepFactors | None = None
) -> CauseRemoval:
    """Return the removal of a cause within actions; if only this cause is removed, the pauses of `factors` stay."""

    def with_taken(taken: Callable[[Floats], Floats]) -> Callable[[MeasuredSteps], MeasuredSteps]:
        return lambda steps: MeasuredSteps(taken(steps.taken), steps.hop, steps.after_own)

    pauses = factors.pauses if factors else 0.0
    alone = with_taken(lambda taken: pauses + taken_without(taken - pauses))
    return CauseRemoval(cause, with_taken(taken_without), detail, alone if factors else None)


def _lower_median(values: list[float]) -> float:
    return float(np.quantile(values, 0.5, method="lower"))


def work_in_words(work_s: Mapping[str, float], most: int = 4) -> str:
    names = sorted((name for name, spent in work_s.items() if spent > 0), key=lambda name: -work_s[name])[:most]
    return f" ({', '.join(f'{name} {seconds(work_s[name])}' for name in names)})" if names else ""


def _median_wait(waits: Floats, what: str, work_s: Mapping[str, Floats]) -> str:
    """Return the median of the positive waits, and of the work that was recorded in them."""
    entries = waits > 0
    if not entries.any():
        return ""
    work = work_in_words({name: float(np.median(spent_s[entries])) for name, spent_s in work_s.items()})
    return f"{seconds(float(np.median(waits[entries])))} per {what} (median of {entries.sum()}){work}"


def _worst_pass(schedule: Schedule, excess: Floats) -> str:
    worst = int(np.argmax(excess))
    if excess[worst] <= 0:
        return ""
    return f"most: {schedule[worst]} on rank {schedule.rank[worst]}, {seconds(float(excess[worst]))} longer"


def _slow_steps(slow: Floats, first_step: int) -> str:
    steps = [step for step in range(len(slow)) if (slow[step] > 1).any()]
    steps.sort(key=lambda step: -slow[step].max())
    places = []
    for step in sorted(steps[:MOST_PLACES]):
        ranks = np.flatnonzero(slow[step] > 1)
        whose = "all ranks" if len(ranks) == slow.shape[1] else f"rank {int(np.argmax(slow[step]))}"
        places.append(f"step {first_step + step}: {whose} {signed_percent(float(slow[step].max()) - 1)}")
    return join_places(places, len(steps))


def _drifting(paces: ActionSpeeds) -> str:
    factors, bounds = paces.factors, paces.schedule.rank_offsets
    in_step = factors.drift_in_step[bounds[1:] - 1] / factors.drift_in_step[bounds[:-1]] - 1
    places = []
    for change, over in (
        (factors.drift_of_ranks[-1] / factors.drift_of_ranks[0] - 1, "from the first step to the last"),
        (in_step, "from its first pass to its last"),
    ):
        rank = int(np.argmax(np.abs(change)))
        places += [f"rank {rank}: {signed_percent(float(change[rank]))} {over}"] * bool(change[rank])
    if of_all := float(factors.drift_of_all[-1, 0] / factors.drift_of_all[0, 0] - 1):
        places.append(f"all ranks: {signed_percent(of_all)} from the first step to the last")
    return ", ".join(places)


def _sizes(factors: StepFactors) -> str:
    low, high = float(factors.sizes.min()), float(factors.sizes.max())
    return f"from {low:.2f} to {high:.2f} times the mean"


def _worst_stage(paces: ActionSpeeds) -> str:
    schedule, whole = paces.schedule, paces.whole_s
    worst, typical = int(np.argmax(whole)), _lower_median(whole.tolist())
    more = signed_percent(float(whole[worst]) / typical - 1) if typical > 0 else "all"
    return (
        f"stage {worst} on rank {schedule.stage_to_rank[worst]}: {seconds(float(whole[worst]))} per microbatch, "
        f"{more} over the median stage"
    )
