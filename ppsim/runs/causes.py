"""What a measured step may lose time to: each cause, and what its passes and waits are without it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.units import seconds, signed_percent
from ppsim.runs.drift import over_steps, over_the_step
from ppsim.runs.replays import Steps
from ppsim.runs.run import pass_medians
from ppsim.schedule.table import Op, Schedule

STAGES_OR_RANKS = "uneven stages or slow ranks"

CAUSES = {
    "straggling steps": "the mean step beyond the median one",
    "waits for messages": "beyond that, a pass starts later than its input was made, its rank being free",
    "gaps between passes": "what a rank does before a pass, its input being there: launches, blocking calls",
    "blocking sends and receives": "what Megatron-LM's calls take, at which a rank stands still",
    "slow first passes": "the first pass of each kind of a stage beyond the stage's median",
    "drift over steps": "all passes of a step beyond those of the run's fast end",
    "drift over the step": "passes beyond those at the fast end of their rank's step",
    "passes that vary": "passes beyond or below the median of their stage",
    "slow ranks": "all stages of a rank are slower than the others'",
    "uneven stages": "stages that take longer than the median one",
    STAGES_OR_RANKS: "the same where nobody can tell which: one stage a rank, or most stages of two ranks slow",
    "idle by the schedule": "what the order of passes leaves idle where all stages are alike",
    "compute": "the passes themselves, at the pace of the median stage",
    "rest": "what the replay of the step is off by",
}


_ALIKE = 0.03
"""Stages whose passes differ by less than that are taken as alike."""

_NOTHING = 0.1
"""An I below this part of the longest is none: torch's first stage leaves all of its backward to W."""


@dataclass(frozen=True)
class Removal:
    """A cause: `without` takes it out of all steps, `detail` says where it is found in the step explained.

    `without` is for steps from which those before it are taken; `alone` is for steps as they were, where those
    others are not to go with it (None: `without`).
    """

    cause: str
    without: Callable[[Steps], Steps]
    detail: str
    alone: Callable[[Steps], Steps] | None = None

    def without_others(self, steps: Steps) -> Steps:
        """Take this cause alone out of steps as they were."""
        return (self.alone or self.without)(steps)


@dataclass(frozen=True)
class Paces:
    """What passes of a run usually take. `taken` has shape [steps, actions]."""

    schedule: Schedule
    taken: Floats

    @cached_property
    def of_steps(self) -> Floats:
        """What each step's passes take as a factor of those at the run's fast end."""
        return 1 + over_steps(self.taken)

    @cached_property
    def in_step(self) -> Floats:
        """What each pass takes as a factor of those at the fast end of its rank's step."""
        taken = self.taken / self.of_steps[:, None]
        return 1 + over_the_step(self.schedule, taken, self._each(pass_medians(self.schedule, taken)))

    @cached_property
    def drifting(self) -> Floats:
        """What each pass takes as a factor of those at both fast ends."""
        return self.of_steps[:, None] * self.in_step

    @cached_property
    def firsts(self) -> Any:
        """Which passes are the first of their kind of a stage."""
        key = self.schedule.op.astype(np.int64) * self.schedule.num_stages + self.schedule.stage
        first = np.zeros(len(self.schedule), dtype=bool)
        first[np.unique(key, return_index=True)[1]] = True
        return first

    @cached_property
    def at_pace_of_step(self) -> Floats:
        """What each pass would take in a step that is as slow as most of its passes, the first ones left out."""
        expected = self.usual * self.drifting
        known = (self.usual > 0) & ~self.firsts
        if not known.any():
            return expected
        paces: Floats = np.median(self.taken[:, known] / expected[:, known], axis=1, keepdims=True)
        return expected * paces

    @cached_property
    def medians(self) -> dict[tuple[Op, int], float]:
        """Of each kind of pass of each stage, drift taken out."""
        return pass_medians(self.schedule, self.taken / self.drifting)

    @cached_property
    def usual(self) -> Floats:
        """The median of its stage for each pass."""
        return self._each(self.medians)

    @cached_property
    def backward_s(self) -> dict[int, float]:
        """I and W of each stage together: torch's first stage has no input to differentiate, and its W is all."""
        halves = {stage: one for (op, stage), one in self.medians.items() if op is Op.I}
        return {stage: one + self.medians.get((Op.W, stage), 0.0) for stage, one in halves.items()}

    @cached_property
    def all_weight(self) -> set[int]:
        """The stages whose I is nothing beside the others'."""
        inputs = {stage: self.medians[Op.I, stage] for stage in self.backward_s}
        return {stage for stage, one in inputs.items() if one < _NOTHING * max(inputs.values())}

    @cached_property
    def whole_s(self) -> Floats:
        """All passes of a microbatch, one entry a stage."""
        whole = np.zeros(self.schedule.num_stages)
        for (_, stage), one in self.medians.items():
            whole[stage] += one
        return whole

    def _reasons(self, base_s: float) -> tuple[list[int], int]:
        """The slow ranks, and how many stages differ beside, that explain the stages where `base_s` is usual."""
        ratio, ranks = self.whole_s / base_s, self.schedule.stage_to_rank
        of_rank = np.array([max(float(ratio[ranks == rank].min()), 1.0) for rank in range(self.schedule.num_ranks)])
        slow: list[int] = np.flatnonzero(of_rank > 1 + _ALIKE).tolist()
        return slow, int((np.abs(ratio / of_rank[ranks] - 1) > _ALIKE).sum())

    @cached_property
    def most_are_slow(self) -> bool:
        """Whether of two ranks' stages the median one is slow: a slow rank and a slow stage are most of them."""
        middle, least = _lower_median(self.whole_s.tolist()), float(self.whole_s.min())
        several = self.schedule.num_ranks == 2 and self.schedule.vpp > 1
        return several and least > 0 and middle > (1 + _ALIKE) * least

    @cached_property
    def is_told(self) -> bool:
        """Whether slow ranks can be told from slow stages.

        Where most stages of two ranks are slow, the same rank must be slow beside the fastest stage and beside the
        usual one, or a slow rank and a slow stage explain them by fewer reasons than slow and fast stages would.
        """
        if self.schedule.vpp == 1 or not self.most_are_slow:
            return self.schedule.vpp > 1
        ranks, stages = self._reasons(float(self.whole_s.min()))
        of_usual, others = self._reasons(_lower_median(self.whole_s.tolist()))
        return ranks == of_usual != [] or len(ranks) + stages < len(of_usual) + others

    @cached_property
    def of_base(self) -> dict[tuple[Op, int], float]:
        """The medians of the stages among which the usual one is: all, or those like the fastest."""
        if not self.most_are_slow:
            return self.medians
        fast = self.whole_s <= (1 + _ALIKE) * self.whole_s.min()
        return {(op, stage): one for (op, stage), one in self.medians.items() if fast[stage]}

    @cached_property
    def typical(self) -> dict[Op, float]:
        """Each kind of pass at the median stage; the faster of two in the middle, so that half may be slow."""
        kinds = dict.fromkeys(op for op, _ in self.medians)
        found = {
            kind: _lower_median([one for (op, _), one in self.of_base.items() if op is kind]) for kind in kinds
        }
        if len(self.backward_s) > len(self.all_weight):
            whole = _lower_median([self.backward_s[stage] for op, stage in self.of_base if op is Op.I])
            of_input = [
                self.medians[Op.I, stage] / self.backward_s[stage]
                for stage in self.backward_s.keys() - self.all_weight
            ]
            found[Op.I] = float(np.median(of_input)) * whole
            found[Op.W] = whole - found[Op.I]
        return found

    @cached_property
    def even(self) -> Floats:
        """What each pass takes where all stages are like the median one."""
        even = {(op, stage): self.typical[op] for op, stage in self.medians}
        for stage in self.all_weight & {stage for op, stage in self.medians if op is Op.W}:
            even[Op.I, stage] = self.medians[Op.I, stage]
            even[Op.W, stage] = self.typical[Op.I] + self.typical[Op.W] - self.medians[Op.I, stage]
        return self._each(even)

    @cached_property
    def of_ranks(self) -> Floats:
        """How much longer than the median stage all stages of a rank take; 1 for a rank that is like the others."""
        ratios: list[list[float]] = [[] for _ in range(self.schedule.num_ranks)]
        whole = self.typical.get(Op.I, 0.0) + self.typical.get(Op.W, 0.0)
        taken = [(stage, one, self.typical[op]) for (op, stage), one in self.medians.items() if op in (Op.F, Op.B)]
        taken += [(stage, one, whole) for stage, one in self.backward_s.items()]
        for stage, one, typical in taken:
            if typical > 0:
                ratios[self.schedule.stage_to_rank[stage]].append(one / typical)
        # A rank is slow where all that it runs is.
        return np.array([max(min(one, default=1.0), 1.0) for one in ratios])

    def _each(self, medians: dict[tuple[Op, int], float]) -> Floats:
        schedule = self.schedule
        return np.array([medians[Op(op), stage] for op, stage in zip(schedule.op, schedule.stage, strict=True)])


def removals(paces: Paces, step: Steps, *, variation_s: float = 0.0) -> list[Removal]:
    """Return the causes in the order of their removal: from what lies between passes to what lies in them.

    Details are of the one step given. A drift that there is not is left out. `variation_s` is what of the waits
    before passes stands for passes that vary: a projection's, which draws none.
    """
    usual, firsts = paces.usual, paces.firsts
    gaps = np.maximum(step.after_own - variation_s, 0.0)

    def as_later(taken: Floats, later: Floats) -> Floats:
        return np.where(firsts, np.minimum(taken, later), taken)

    found = [
        Removal(
            "waits for messages",
            lambda steps: Steps(steps.taken, np.zeros_like(steps.hop), steps.after_own),
            _median_wait(step.hop, "a message"),
        ),
        Removal(
            "gaps between passes",
            lambda steps: Steps(steps.taken, steps.hop, np.minimum(steps.after_own, variation_s)),
            _median_wait(gaps, "a gap"),
        ),
        _of_passes(
            "slow first passes",
            lambda taken: as_later(taken, usual * paces.drifting),
            _worst_pass(paces.schedule, np.where(firsts, step.taken[0] - usual, 0.0)),
            alone=lambda taken: as_later(taken, paces.at_pace_of_step),
        ),
    ]
    if (drift := float(np.ptp(paces.of_steps))) > 0:
        detail = f"{signed_percent(drift)} between the first and the last"
        found.append(_of_passes("drift over steps", lambda taken: taken / paces.of_steps[:, None], detail))
    if (paces.in_step > 1).any():
        found.append(_of_passes("drift over the step", lambda taken: taken / paces.in_step, _worst_drift(paces)))
    return [*found, _variation(paces, step, variation_s), *_of_stages(paces)]


def _variation(paces: Paces, step: Steps, variation_s: float) -> Removal:
    """Passes at the median of their stage, without what stands for their spread.

    Alone, first passes stay as slow as they were, drift goes on, and so does a step all of whose passes are slow.
    """

    def without(steps: Steps, taken: Floats) -> Steps:
        return Steps(taken, steps.hop, np.maximum(steps.after_own - variation_s, 0.0))

    def as_slow(taken: Floats) -> Floats:
        return np.where(paces.firsts, np.maximum(taken, paces.at_pace_of_step), paces.at_pace_of_step)

    spread = f"{seconds(variation_s)} before a pass" if variation_s else ""
    return Removal(
        "passes that vary",
        lambda steps: without(steps, np.broadcast_to(paces.usual, steps.taken.shape)),
        spread or _worst_pass(paces.schedule, step.taken[0] - paces.usual),
        lambda steps: without(steps, as_slow(steps.taken)),
    )


def _of_stages(paces: Paces) -> list[Removal]:
    """Slow ranks and uneven stages, which are one where each rank has one stage."""
    schedule, usual, even = paces.schedule, paces.usual, paces.even
    of_rank = paces.of_ranks[schedule.rank]
    ratio = np.divide(even * of_rank, usual, out=np.zeros_like(usual), where=usual > 0)

    def at_one_pace(taken: Floats) -> Floats:
        return np.where(usual > 0, taken * ratio, even)

    if not paces.is_told:
        ratio = np.divide(even, usual, out=np.zeros_like(usual), where=usual > 0)
        return [_of_passes(STAGES_OR_RANKS, at_one_pace, _worst_stage(paces))]
    worst = int(np.argmax(paces.of_ranks))
    detail = f"rank {worst}: {signed_percent(float(paces.of_ranks[worst]) - 1)}"
    return [
        _of_passes("slow ranks", lambda taken: taken / of_rank, detail),
        _of_passes("uneven stages", at_one_pace, _worst_stage(paces)),
    ]


def _of_passes(
    cause: str,
    taken_without: Callable[[Floats], Floats],
    detail: str,
    *,
    alone: Callable[[Floats], Floats] | None = None,
) -> Removal:
    def removed(taken_without: Callable[[Floats], Floats]) -> Callable[[Steps], Steps]:
        return lambda steps: Steps(taken_without(steps.taken), steps.hop, steps.after_own)

    return Removal(cause, removed(taken_without), detail, removed(alone or taken_without))


def _lower_median(values: list[float]) -> float:
    return float(np.quantile(values, 0.5, method="lower"))


def _median_wait(waits: Floats, what: str) -> str:
    found = waits[waits > 0]
    return f"{seconds(float(np.median(found)))} {what}, the median of {len(found)}" if len(found) else ""


def _worst_pass(schedule: Schedule, excess: Floats) -> str:
    worst = int(np.argmax(excess))
    if excess[worst] <= 0:
        return ""
    return f"the worst: {schedule[worst]} on rank {schedule.rank[worst]}, {seconds(float(excess[worst]))} more"


def _worst_drift(paces: Paces) -> str:
    """The rank whose passes change most from its first to its last, and how."""
    begins, ends = paces.schedule.rank_offsets[:-1], paces.schedule.rank_offsets[1:] - 1
    change = paces.in_step[ends] / paces.in_step[begins] - 1
    worst = int(np.argmax(np.abs(change)))
    return f"rank {worst}: its last pass {signed_percent(float(change[worst]))} beside its first"


def _worst_stage(paces: Paces) -> str:
    """The stage whose passes of a microbatch take longest."""
    schedule, whole = paces.schedule, paces.whole_s
    worst, typical = int(np.argmax(whole)), _lower_median(whole.tolist())
    more = signed_percent(float(whole[worst]) / typical - 1) if typical > 0 else "all"
    return (
        f"stage {worst} on rank {schedule.stage_to_rank[worst]}: {seconds(float(whole[worst]))} a microbatch, "
        f"{more} over the median stage"
    )
