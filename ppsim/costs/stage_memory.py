"""Bytes of the stages and ranks of a job, with offloading and pairs of a forward and a backward."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.costs.ledger import Ledger
from ppsim.costs.offload import buffer_bytes, offloads_of, with_copies
from ppsim.costs.pair_overlap import StageBytes, pair_bytes
from ppsim.costs.time_breakdown import CostEstimate
from ppsim.model.offloading import Offload
from ppsim.model.pipeline_stages import Stage


@dataclass(frozen=True, eq=False)
class StageMemory:
    """Bytes that do not depend on the order of actions.

    - `static_bytes`: per rank, without microbatches in flight; `update_bytes`: by how many the update exceeds them.
    - `activation_bytes`: per microbatch, shape [2, stages]: all that a forward saves, and the part that W needs.
    - `pair_bytes`: of a forward of a stage (row) during a backward of a stage (column); None without pairs.
    - `offloads`: per stage.
    """

    static_bytes: Floats
    update_bytes: Floats
    activation_bytes: Floats
    pair_bytes: Floats | None
    offloads: list[Offload]

    def costs(self, ledger: Ledger, stages: Sequence[Stage]) -> list[CostEstimate]:
        """Return the seconds of each stage, with the exposed copies of offloading."""
        costs = [stage.costs for stage in ledger.stages(stages)]
        if not any(offload.copied for offload in self.offloads):
            return costs
        of_stages = zip(stages, costs, self.offloads, strict=True)
        return [with_copies(ledger.job, *of_stage, ledger) for of_stage in of_stages]


def stage_memory(
    ledger: Ledger, stages: Sequence[Stage], ranks: Sequence[Sequence[int]], *, by_layer: bool
) -> StageMemory:
    """`ranks`: the stages of each rank. `by_layer`: as in `offload_of`."""
    job, sums = ledger.job, ledger.stages(stages)
    offloads = offloads_of(job, stages, [stage.saved_bytes for stage in sums], by_layer=by_layer)
    saved = np.array([stage.saved_bytes - offload.freed for stage, offload in zip(sums, offloads, strict=True)])
    copies = any(offload.copied for offload in offloads)
    for_weight = np.minimum(saved, [(1 - job.offload * copies) * stage.weight_bytes for stage in sums])
    of_ranks = ledger.ranks([[stages[stage] for stage in rank] for rank in ranks])
    buffers = np.zeros(len(ranks))
    if copies:
        buffers[:] = [
            buffer_bytes(job, sums_of_rank.transient_bytes, [offloads[stage] for stage in rank])
            for sums_of_rank, rank in zip(of_ranks, ranks, strict=True)
        ]
    pairs = None
    if job.execution.ep_order is not None:
        sizes = [
            StageBytes(num_bytes, of_stage.before_experts * num_bytes, len(stage.layers) + len(stage.mtp))
            for num_bytes, of_stage, stage in zip(saved.tolist(), sums, stages, strict=True)
        ]
        pairs = np.array([[pair_bytes(forward, backward) for backward in sizes] for forward in sizes])
    return StageMemory(
        np.array([rank.idle_bytes for rank in of_ranks]) + buffers,
        np.maximum(0.0, [rank.update_bytes for rank in of_ranks] - buffers),  # the update has no such buffers
        np.array([saved, for_weight]),
        pairs,
        offloads,
    )
