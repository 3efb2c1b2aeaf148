"""What a training step takes beside its pipeline: data parallelism, the optimizer, and the rest."""

from dataclasses import dataclass, replace

import numpy as np

from ppsim.base.arrays import Numbers
from ppsim.schedule.choices import Update


@dataclass(frozen=True)
class Sharing:
    """Gradients that several ranks hold and sum: of tied embeddings, conditional embedders, replicas of stages."""

    ranks: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True, eq=False)
class StepCosts:
    """What a step takes beside its pipeline, in seconds.

    gather_s, reduce_s
        One entry a stage, or a number for all: all-gather of a stage's parameters before its first forward, and
        all-reduce or reduce-scatter of its gradients behind its last backward, over the data-parallel ranks.
    num_buckets
        One entry a stage, or a number for all: in how many equal parts both are done. A part of the gradients is
        reduced once that part of the last backward is done; a forward starts with the first part gathered.
    overlap
        Whether both run beside compute. If not, a rank gathers all before its first action, and reduces all
        behind its last.
    sharing
        Sums of gradients among pipeline ranks, in this order, each once its ranks have reduced their own.
    norm_s
        The gradient norm: all ranks wait for each other, then take this long.
    optimizer_s
        One entry a rank, or a number for all.
    update
        "synchronised": the optimizer waits for the norm of all ranks. "post-validated" (Qi et al. 2024, §4): a rank
        updates as soon as its own gradients are complete, and goes on with the next step; the norm is checked
        later, beside compute.
    rest_s
        Host time a step that nothing else covers.
    straggling
        What part of the pipeline's time the slowest replica is expected to take more than the mean one.
    slow_rank
        What part of its busy time the slowest rank of the pipeline takes more than ranks do whose costs these are.
        A pipeline that is full goes at its pace; filled and drained it is by all of them.
    """

    gather_s: Numbers = 0.0
    reduce_s: Numbers = 0.0
    num_buckets: Numbers = 1.0
    overlap: bool = True
    sharing: tuple[Sharing, ...] = ()
    norm_s: float = 0.0
    optimizer_s: Numbers = 0.0
    update: Update = "synchronised"
    rest_s: float = 0.0
    straggling: float = 0.0
    slow_rank: float = 0.0

    def taking(self, times: float) -> "StepCosts":
        """Return the same with all but the rest so many times as long."""
        return replace(
            self,
            gather_s=np.multiply(self.gather_s, times),
            reduce_s=np.multiply(self.reduce_s, times),
            sharing=tuple(replace(one, seconds=times * one.seconds) for one in self.sharing),
            norm_s=times * self.norm_s,
            optimizer_s=np.multiply(self.optimizer_s, times),
        )
