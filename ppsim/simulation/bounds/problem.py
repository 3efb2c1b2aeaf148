"""Scheduling problem for bounds and exact search: placement, number of microbatches, costs and memory cap."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from ppsim.base.arrays import Floats, Ints32, Numbers
from ppsim.base.errors import ConfigError

Criterion = Literal["step", "span"]
""""step": first start to last end of all ranks; "span": the longest time from a rank's own start to its own end."""

_MOST = float(np.finfo(np.float64).max)

CAP_ROUNDING = 1 + 1e-12
"""Factor on memory caps that tolerates rounding errors of float sums; it adds less than a byte."""


def is_within(num_bytes: float, cap: float | None) -> bool:
    return cap is None or num_bytes <= cap * CAP_ROUNDING


@dataclass(frozen=True, eq=False)
class Problem:
    """A scheduling problem in arrays with one entry per stage (`cap`: per rank); construct it with `Problem.of`.

    Transfers delay, but do not queue. `backward_s` is infinite if every backward must be split. Durations include
    the host time before an action, but the host time before the first start does not count, so `overhead_s` must be
    subtracted from results. `hop_s[s]` is for stages s and s+1.
    """

    stage_to_rank: Ints32
    num_microbatches: int
    forward_s: Floats
    input_s: Floats
    weight_s: Floats
    backward_s: Floats
    hop_s: Floats
    activation: Floats
    kept: Floats
    cap: Floats
    overhead_s: float

    @classmethod
    def of(
        cls,
        *,
        stage_to_rank: Sequence[int] | Ints32,
        num_microbatches: int,
        forward_s: Numbers,
        backward_input_s: Numbers,
        backward_weight_s: Numbers,
        backward_s: Numbers | None = None,
        transfer_s: Numbers = 0.0,
        activation: Numbers = 1.0,
        activation_kept_for_weight: Numbers | None = None,
        cap: Numbers = np.inf,
        action_overhead_s: float = 0.0,
        hop_overhead_s: float = 0.0,
    ) -> "Problem":
        """Return the problem for a placement, with costs as in `ppsim.StageCosts`.

        If `backward_s` is None, full backwards are not allowed. `cap` is the maximum memory of a rank in the unit
        of `activation`. The `ConfigError` for a cap that is too small names the smallest possible cap.

        >>> Problem.of(stage_to_rank=[0, 1, 1, 0], num_microbatches=8, forward_s=1, backward_input_s=1,
        ...            backward_weight_s=1, transfer_s=0.5, cap=4).hop_s
        array([0.5, 0. , 0.5])
        """
        placement = np.array(stage_to_rank, dtype=np.int32)
        num_stages, num_ranks = len(placement), int(placement.max(initial=-1)) + 1
        if num_stages == 0 or set(placement.tolist()) != set(range(num_ranks)):
            raise ConfigError(f"stage_to_rank is {placement.tolist()}: every rank from 0 on needs a stage")
        if num_microbatches < 1:
            raise ConfigError(f"num_microbatches must be at least 1: got {num_microbatches}")
        given, hops = _Given(num_stages), transfer_s
        if np.size(transfer_s) == num_stages - 1:
            hops = [*np.atleast_1d(transfer_s), 0.0]
        whole = np.inf if backward_s is None else backward_s
        held = given.array("activation", activation)
        kept = held
        if activation_kept_for_weight is not None:
            kept = given.array("activation_kept_for_weight", activation_kept_for_weight)
        problem = cls(
            stage_to_rank=placement,
            num_microbatches=num_microbatches,
            forward_s=given.array("forward_s", forward_s) + action_overhead_s,
            input_s=given.array("backward_input_s", backward_input_s) + action_overhead_s,
            weight_s=given.array("backward_weight_s", backward_weight_s) + action_overhead_s,
            backward_s=given.array("backward_s", whole, most=np.inf) + action_overhead_s,
            hop_s=np.where(
                placement[1:] != placement[:-1], given.array("transfer_s", hops)[:-1] + hop_overhead_s, 0.0
            ),
            activation=held,
            kept=kept,
            cap=given.array("cap", cap, length=num_ranks, most=np.inf),
            overhead_s=action_overhead_s,
        )
        if wrong := given.problems or list(problem._why_nothing_fits()):
            raise ConfigError("no schedule can be sought: " + "\n  ".join(wrong))
        return replace(problem, cap=problem.cap * CAP_ROUNDING)

    def _why_nothing_fits(self) -> Iterator[str]:
        if np.any(self.kept > self.activation):
            stage = int(np.argmax(self.kept > self.activation))
            yield (
                f"activation_kept_for_weight is {self.kept[stage]:g} on stage {stage}, more than the "
                f"{self.activation[stage]:g} activation it is part of"
            )
            return
        needed = np.bincount(self.stage_to_rank, weights=self.activation, minlength=self.num_ranks)
        if np.any(self.cap * CAP_ROUNDING < needed):
            rank = int(np.argmax(needed - self.cap))
            yield (
                f"the cap of {self.cap[rank]:g} on rank {rank} holds no microbatch: one needs {needed[rank]:g} "
                f"there (smallest cap for all ranks: {needed.max():g})"
            )

    @classmethod
    def of_costs(
        cls,
        stage_to_rank: Sequence[int] | Ints32,
        num_microbatches: int,
        costs: Any,
        *,
        cap: Numbers = np.inf,
        counts_activations: bool = False,
    ) -> "Problem":
        """Return the problem for `CostArrays`, with `cap` in bytes, or in activations with `counts_activations`.

        Queues, blocking and overlap slow-down are ignored, because they only delay.
        """
        return cls.of(
            stage_to_rank=stage_to_rank,
            num_microbatches=num_microbatches,
            forward_s=costs.forward_s,
            backward_input_s=costs.backward_input_s,
            backward_weight_s=costs.backward_weight_s,
            backward_s=costs.backward_s,
            transfer_s=costs.transfer_s,
            activation=1.0 if counts_activations else costs.activation_bytes,
            activation_kept_for_weight=None if counts_activations else costs.kept_bytes,
            cap=cap,
            action_overhead_s=costs.action_overhead_s,
            hop_overhead_s=costs.hop_overhead_s,
        )

    def always_split(self) -> "Problem":
        return replace(self, backward_s=np.full(self.num_stages, np.inf))

    @property
    def num_ranks(self) -> int:
        return len(self.cap)

    @property
    def num_stages(self) -> int:
        return len(self.stage_to_rank)

    @cached_property
    def stages_of(self) -> list[list[int]]:
        return [np.flatnonzero(self.stage_to_rank == rank).tolist() for rank in range(self.num_ranks)]

    @cached_property
    def reach_s(self) -> Floats:
        return np.concatenate(([0.0], np.cumsum(self.forward_s[:-1] + self.hop_s)))

    @cached_property
    def down_s(self) -> Floats:
        """Time from the start of each stage's forward to the end of the last stage's forward."""
        down: Floats = np.cumsum((self.forward_s + np.append(self.hop_s, 0.0))[::-1])[::-1]
        return down

    @cached_property
    def up_s(self) -> Floats:
        """Time from the end of the last stage's forward to the start of each stage's input gradient."""
        return np.append(np.cumsum((self.input_s[1:] + self.hop_s)[::-1])[::-1], 0.0)

    @cached_property
    def split_s(self) -> Floats:
        return self.input_s + self.weight_s

    def with_cheapest_backwards(self) -> "Problem":
        """Return the problem with split backwards only, as cheap as the cheaper of full and split backward.

        No table of this problem is faster than the same order in the returned problem (docs/notes/bounds.md).
        """
        cheapest = np.minimum(self.backward_s, self.input_s + self.weight_s)
        value = np.minimum(self.input_s, cheapest)
        return replace(self.always_split(), input_s=value, weight_s=cheapest - value)


class _Given:
    """Convert numbers to arrays with one entry per stage; collect errors in `problems`."""

    def __init__(self, num_stages: int) -> None:
        self.num_stages = num_stages
        self.problems: list[str] = []

    def array(self, name: str, given: Any, *, length: int | None = None, most: float = _MOST) -> Floats:
        length = length or self.num_stages
        values = np.atleast_1d(np.array(given, dtype=np.float64))
        if values.ndim != 1 or len(values) not in (1, length):
            self.problems.append(f"{name} has {values.size} entries: give one number, or {length}")
            return np.zeros(length)
        bad = values[~((values >= 0) & (values <= most))]
        if len(bad):
            self.problems.append(f"{name} holds {bad[0]:g}; costs are finite and not negative")
            return np.zeros(length)
        return np.resize(values, length)
