"""The ledger of a job: each sum of seconds over the parts of a stage, next to the sums of bytes.

A row is a part of the model under one plan (`ppsim.model.stage_rows`), with its bytes (`ppsim.model.memory_ledger`)
and its seconds (`ppsim.costs.component_costs`). Rules that are not linear are in `ppsim.costs.stage_rules`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.costs.job import Job
from ppsim.costs.pair_overlap import LayerTimes
from ppsim.costs.replica_collectives import num_buckets, per_step_s
from ppsim.costs.stage_rules import accumulated, head_in_passes, with_held_cores, with_replicas
from ppsim.costs.time_breakdown import NO_COST, CostEstimate, MeasuredSeconds, TimeBreakdown
from ppsim.model.architecture import Layer
from ppsim.model.memory_ledger import MemoryLedger
from ppsim.model.parameters import RankParameters
from ppsim.model.pipeline_stages import Stage
from ppsim.model.stage_rows import Row
from ppsim.parallel.sizes import ParallelSizes

_PASSES = ("forward", "backward_input", "backward_weight", "backward")


@dataclass(frozen=True, eq=False)
class StageSums:
    """Seconds and bytes of a stage for one microbatch, without offloading.

    - `saved_bytes`: from the forward to the backward; `weight_bytes`: from I to W; `before_experts`: fraction of
      the saved bytes that is not of dense feed-forward parts.
    - `held`: parameters of a rank with only this stage.
    """

    ledger: "Ledger"
    stage: Stage
    saved_bytes: float
    weight_bytes: float
    before_experts: float
    held: RankParameters

    @cached_property
    def costs(self) -> CostEstimate:
        """Seconds by pass and cause."""
        job, costs = self.ledger.job, self.ledger.estimate(self.stage)
        if not job.gradient_accumulation_fusion:
            costs += accumulated(job, self.held)
        if job.optimizer.zero_stage >= 2:
            return with_replicas(job, self.held, costs)
        return with_held_cores(job, self.held, costs, 1 - 1 / self.num_buckets)

    @cached_property
    def per_step_s(self) -> tuple[float, float]:
        """Seconds per step to gather parameters, and to reduce gradients."""
        return per_step_s(self.ledger.job, self.held)

    @cached_property
    def num_buckets(self) -> float:
        return num_buckets(self.ledger.job, self.stage, self.held)


@dataclass(frozen=True, eq=False)
class RankSums:
    """Bytes, parameters and work of a rank with all its stages.

    `idle_bytes`: without microbatches in flight, with the transients of a backward; `update_bytes`: by how many the
    update exceeds them.
    """

    ledger: "Ledger"
    stages: tuple[Stage, ...]
    idle_bytes: int
    update_bytes: int

    @property
    def _contents(self) -> Floats:
        return self.ledger.memory.contents(self.stages)

    @property
    def transient_bytes(self) -> int:
        """Bytes of the moment of a backward that needs the most."""
        return sum(self.ledger.memory.transients(self._contents).values())

    @cached_property
    def held(self) -> RankParameters:
        return self.ledger.memory.parameters(self._contents)

    @property
    def num_layers(self) -> int:
        return sum(len(stage.layers) + len(stage.mtp) for stage in self.stages)

    @property
    def num_heads(self) -> int:
        return sum(stage.head for stage in self.stages)

    @cached_property
    def muon_flops(self) -> tuple[float, float]:
        """FLOPs of the orthogonalisation, outside and inside routed experts."""
        layers = [layer for stage in self.stages for layer in (*stage.layers, *stage.mtp)]
        kinds, number = {id(layer): layer for layer in layers}, Counter(map(id, layers))
        flops = [
            (number[key], *layer_muon_flops(layer, self.ledger.job.settings.cut)) for key, layer in kinds.items()
        ]
        return sum(count * dense for count, dense, _ in flops), sum(
            count * of_experts for count, _, of_experts in flops
        )


class Ledger:
    """Sums over the stages and ranks of a job, each made once.

    >>> import ppsim
    >>> from ppsim.model.pipeline_stages import stages_of
    >>> job = ppsim.job(model="llama3-8b", gpus=8, pp=2)
    >>> first, last = Ledger(job).stages(stages_of(job.model, [16, 16]))
    >>> last.costs.forward.total_s > first.costs.forward.total_s
    True
    """

    def __init__(self, job: Job) -> None:
        self.job, self.memory = job, MemoryLedger(job.model, job.settings)
        self.lines: dict[str, list[str]] = {}
        """Assumptions that do not depend on the split, by topic."""
        self._costs: dict[int, list[CostEstimate]] = {}
        self._stages: dict[tuple[Any, ...], StageSums] = {}
        self._ranks: dict[tuple[Any, ...], RankSums] = {}

    def __reduce__(self) -> tuple[type["Ledger"], tuple[Job]]:
        return Ledger, (self.job,)  # the sums are found by the ids of layers, which belong to a process

    def stages(self, stages: Sequence[Stage]) -> list[StageSums]:
        added = {stage.key: stage for stage in stages if stage.key not in self._stages}
        if added:
            self._stages.update(zip(added, self._sums(list(added.values())), strict=True))
        return [self._stages[stage.key] for stage in stages]

    def _sums(self, stages: Sequence[Stage]) -> list[StageSums]:
        memory, slack = self.memory, self.job.allocator_slack
        contents = memory.contents(stages)
        saved = memory.saved(contents)
        saved_bytes = slack * saved.sum(axis=1)
        weight_bytes = np.minimum(saved_bytes, slack * memory.for_weight(contents))
        names = memory.columns.components
        of_experts = saved[:, names.index("feed-forward")] if "feed-forward" in names else np.zeros(len(stages))
        before = 1 - of_experts / np.maximum(saved.sum(axis=1), 1.0)
        held = [memory.parameters(contents[[stage]]) for stage in range(len(stages))]
        columns = saved_bytes.tolist(), weight_bytes.tolist(), before.tolist(), held
        return [StageSums(self, stage, *sums) for stage, *sums in zip(stages, *columns, strict=True)]

    def estimate(self, stage: Stage) -> CostEstimate:
        """Add up the costs of a stage's rows, in their order: rounding then depends on nothing else."""
        every = [cost for row in self.memory.rows_of(stage) for cost in self.costs_of(row)]
        if not every:
            return NO_COST
        number, costs = Counter(map(id, every)), {id(cost): cost for cost in every}.values()
        times = np.array(list(number.values()), dtype=float)
        passes = np.array([[getattr(cost, name).numbers for name in _PASSES] for cost in costs])
        known = np.array([(cost.known.profile_s, cost.known.table_s) for cost in costs])
        forward, inputs, weights, backward = np.add.reduce(times[:, None, None] * passes, axis=0).tolist()
        return CostEstimate(
            TimeBreakdown(*forward),
            TimeBreakdown(*inputs),
            TimeBreakdown(*weights),
            whole_backward=TimeBreakdown(*backward) if any(cost.whole_backward for cost in costs) else None,
            known=MeasuredSeconds(*np.add.reduce(times[:, None] * known, axis=0).tolist()),
        )

    def costs_of(self, number: int) -> list[CostEstimate]:
        """Return the costs in a row: of each layer, or of an end."""
        if number not in self._costs:
            self._costs[number] = self._costs_of(self.memory.rows[number])
        return self._costs[number]

    def _costs_of(self, row: Row) -> list[CostEstimate]:
        costs = self.job.costs
        if row.kind == "outside layers":
            return [costs.outside_layers]
        if row.kind == "embedding":
            return [costs.ends[0]]
        if row.kind == "head":  # each multi-token prediction layer uses the head once more
            return [head_in_passes(self.job) * (1 + len(self.job.model.mtp))]
        return [costs.encoder(row.encoder)] if row.encoder else costs.in_order(row)

    def costs_in_order(self, stage: Stage) -> list[CostEstimate]:
        """Return F, I, W and B of each layer of a stage, and of each layer of multi-token prediction."""
        rows = (self.memory.rows[number] for number in self.memory.rows_of(stage))
        return [cost for row in rows for cost in self.job.costs.in_order(row)]

    def layer_times(self, stage: Stage) -> list[LayerTimes]:
        """Return the times of each layer of a stage that has experts."""
        rows = (self.memory.rows[number] for number in self.memory.rows_of(stage))
        times = (times for row in rows for times in self.job.costs.times_of(row))
        return [of_layer for of_layer in times if of_layer]

    def ranks(self, ranks: Sequence[Sequence[Stage]]) -> list[RankSums]:
        """`ranks`: the stages of each rank."""
        sums = []
        for stages in ranks:
            key = tuple(stage.key for stage in stages)
            if key not in self._ranks:
                idle_bytes, update_bytes = self.memory.at_rest(self.memory.contents(stages))
                self._ranks[key] = RankSums(self, tuple(stages), idle_bytes, update_bytes)
            sums.append(self._ranks[key])
        return sums


def muon_flops(size: int, side: int, *, iterations: int = 5) -> float:
    """Return the FLOPs to orthogonalise a matrix of `size` entries with one side of length `side`.

    A Newton–Schulz iteration of an m × n matrix, m ≤ n, takes 4m²n + 2m³ (Jordan et al. 2024, five iterations).

    >>> muon_flops(6, 3)
    320.0
    """
    short, long = sorted((side, size / side))
    return iterations * (4.0 * short * short * long + 2.0 * short**3)


def layer_muon_flops(layer: Layer, sizes: ParallelSizes) -> tuple[float, float]:
    """Return the FLOPs to orthogonalise the trained matrices of a layer outside and inside routed experts."""
    matrices = [matrix for matrix in layer.linears(sizes) if matrix.is_orthogonalised and matrix.trainable]
    of_experts = [matrix for matrix in matrices if matrix.kind == "routed"]
    of_others = [matrix for matrix in matrices if matrix.kind != "routed"]
    return (
        sum(muon_flops(matrix.size, layer.hidden_size) for matrix in of_others),
        sum(matrix.count * muon_flops(matrix.size, layer.hidden_size) for matrix in of_experts),
    )
