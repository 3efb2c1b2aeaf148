"""Costs of a training step outside its pipeline."""

from dataclasses import dataclass, replace

import numpy as np

from ppsim.base.arrays import Numbers
from ppsim.schedule.option_types import Update


@dataclass(frozen=True)
class SharedGradients:
    """Gradients that several pipeline ranks sum: of tied embeddings, conditional embedders, replicated stages."""

    ranks: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True, eq=False)
class StepCosts:
    """Costs of a step outside its pipeline, in seconds.

    gather_s, reduce_s
        Per stage: all-gather of parameters before the first forward, and all-reduce or reduce-scatter of gradients
        after the last backward, over the data-parallel ranks.
    num_buckets
        Per stage: number of equal buckets of both collectives. A gradient bucket is reduced when its part of the
        last backward is done; a forward starts when the first parameter bucket is gathered.
    overlap_gather, overlap_reduce
        False: a rank gathers everything before its first action, or reduces everything after its last.
    deferred_s
        Per rank: deferred weight gradients, computed after the rank's last action. Their reduction takes no time.
    sharing
        Gradient sums among pipeline ranks, in this order.
    norm_s
        Gradient norm: all ranks wait for each other, then take this long.
    update
        "synchronised": the optimizer waits for the norm of all ranks. "post-validated" (Qi et al. 2024, §4): a rank
        updates when its own gradients are complete; the norm is checked later.
    rest_s
        Remaining host time per step.
    straggling
        Expected extra time of the slowest data-parallel rank, as a fraction of the pipeline's time.
    slow_rank
        Extra time of the slowest pipeline rank, as a fraction of its busy time.
    """

    gather_s: Numbers = 0.0
    reduce_s: Numbers = 0.0
    num_buckets: Numbers = 1.0
    overlap_gather: bool = True
    overlap_reduce: bool = True
    deferred_s: Numbers = 0.0
    sharing: tuple[SharedGradients, ...] = ()
    norm_s: float = 0.0
    optimizer_s: Numbers = 0.0
    update: Update = "synchronised"
    rest_s: float = 0.0
    straggling: float = 0.0
    slow_rank: float = 0.0

    def scaled(self, times: float) -> "StepCosts":
        """`rest_s`, `straggling` and `slow_rank` do not change."""
        return replace(
            self,
            gather_s=np.multiply(self.gather_s, times),
            reduce_s=np.multiply(self.reduce_s, times),
            deferred_s=np.multiply(self.deferred_s, times),
            sharing=tuple(replace(one, seconds=times * one.seconds) for one in self.sharing),
            norm_s=times * self.norm_s,
            optimizer_s=np.multiply(self.optimizer_s, times),
        )
