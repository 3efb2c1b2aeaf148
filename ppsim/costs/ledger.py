"""The ledger of a job: each sum of seconds over the parts of a stage, next to the sums of bytes.

A row is a part of the model under one plan (`ppsim.model.stage_rows`), with its bytes (`ppsim.model.memory_ledger`)
and its seconds (`ppsim.costs.component_costs`). Rules that are not linear are in `ppsim.costs.stage_rules`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.costs.job import Job
from ppsim.costs.pair_overlap import LayerTimes
from ppsim.costs.replica_collectives import per_step_s
from ppsim.costs.stage_rules import accumulated, head_in_passes, with_replicas
from ppsim.costs.time_breakdown import CostEstimate, MeasuredSeconds, TimeBreakdown
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

    - `costs`: by pass and cause; `per_step_s`: seconds per step to gather parameters and to reduce gradients.
    - `saved_bytes`: from the forward to the backward; `weight_bytes`: from I to W; `before_experts`: fraction of
      the saved bytes that is not of dense feed-forward parts.
    - `held`: parameters of a rank with only this stage.
    """

    costs: CostEstimate
    per_step_s: tuple[float, float]
    saved_bytes: float
    weight_bytes: float
    before_experts: float
    held: RankParameters


@dataclass(frozen=True, eq=False)
class RankSums:
    """Bytes, parameters and work of a rank with all its stages.

    - `idle_bytes`: without microbatches in flight, with the transients of a backward (`transient_bytes`);
      `update_bytes`: by how many the update exceeds them.
    - `muon_flops`, `expert_muon_flops`: of the orthogonalisation, outside and inside routed experts.
    """

    idle_bytes: int
    update_bytes: int
    transient_bytes: int
    held: RankParameters
    num_layers: int
    num_heads: int
    muon_flops: float
    expert_muon_flops: float


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
        self._costs: list[CostEstimate | None] = []
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
        costs = map(self._with_rules, self._estimates(contents), held)
        steps = [per_step_s(self.job, one) for one in held]
        return [
            StageSums(*sums)
            for sums in zip(
                costs, steps, saved_bytes.tolist(), weight_bytes.tolist(), before.tolist(), held, strict=True
            )
        ]

    def _estimates(self, contents: Floats) -> list[CostEstimate]:
        costs = [self.cost_of(number) for number in range(len(self.memory.rows))]
        passes = np.array([[getattr(cost, name).numbers for name in _PASSES] for cost in costs])
        known = np.array([(cost.known.profile_s, cost.known.table_s) for cost in costs])
        is_whole = contents @ [cost.whole_backward is not None for cost in costs] > 0
        seconds = np.tensordot(contents, passes, axes=1).tolist()
        known_s = (contents @ known).tolist()
        return [
            CostEstimate(
                TimeBreakdown(*forward),
                TimeBreakdown(*inputs),
                TimeBreakdown(*weights),
                whole_backward=TimeBreakdown(*backward) if whole else None,
                known=MeasuredSeconds(*of_stage),
            )
            for (forward, inputs, weights, backward), whole, of_stage in zip(
                seconds, is_whole, known_s, strict=True
            )
        ]

    def cost_of(self, number: int) -> CostEstimate:
        """Return the costs of a row."""
        self._costs += [None] * (number + 1 - len(self._costs))
        found = self._costs[number]
        if found is None:
            found = self._costs[number] = self._cost_of(self.memory.rows[number])
        return found

    def _cost_of(self, row: Row) -> CostEstimate:
        costs = self.job.costs
        if row.kind == "outside layers":
            return costs.outside_layers
        if row.kind == "embedding":
            return costs.ends[0]
        if row.kind == "head":  # each multi-token prediction layer uses the head once more
            return head_in_passes(self.job) * (1 + len(self.job.model.mtp))
        if row.encoder:
            return costs.encoder(row.encoder)
        return sum(costs.in_order(row), CostEstimate(TimeBreakdown(), TimeBreakdown(), TimeBreakdown()))

    def _with_rules(self, costs: CostEstimate, held: RankParameters) -> CostEstimate:
        if not self.job.gradient_accumulation_fusion:
            costs += accumulated(self.job, held)
        return with_replicas(self.job, held, costs) if self.job.optimizer.zero_stage >= 2 else costs

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
        found = []
        for stages in ranks:
            key = tuple(stage.key for stage in stages)
            if key not in self._ranks:
                self._ranks[key] = self._rank(stages)
            found.append(self._ranks[key])
        return found

    def _rank(self, stages: Sequence[Stage]) -> RankSums:
        contents = self.memory.contents(stages)
        idle, update = self.memory.at_rest(contents)
        total, columns = contents.sum(axis=0), self.memory.columns
        muon = self._muon_flops(total) if self.job.optimizer.name == "muon" else (0.0, 0.0)
        return RankSums(
            idle,
            update,
            sum(self.memory.transients(contents).values()),
            self.memory.parameters(contents),
            int(total @ columns.of_rows["num_layers"]),
            sum(stage.head for stage in stages),
            *muon,
        )

    def _muon_flops(self, total: Floats) -> tuple[float, float]:
        rows = zip(self.memory.rows, total.tolist(), strict=True)
        layers = [(layer, number) for row, number in rows if row.is_passed for layer in row.layers]
        cut = self.job.settings.cut
        of_layers = [(number, *layer_muon_flops(layer, cut)) for layer, number in layers if number]
        return sum(number * dense for number, dense, _ in of_layers), sum(
            number * expert for number, _, expert in of_layers
        )


def muon_flops(size: int, side: int, *, iterations: int = 5) -> float:
    """Return the FLOPs to orthogonalise a matrix of `size` entries with one side of length `side`.

    A Newton–Schulz iteration of an m × n matrix, m ≤ n, takes 4m²n + 2m³ (Jordan et al. 2024, five iterations).

    >>> muon_flops(6, 3)
    320.0
    """
    short, long = sorted((side, size / side))
    return iterations * (4.0 * short * short * long + 2.0 * short**3)


def layer_muon_flops(layer: Layer, cut: ParallelSizes) -> tuple[float, float]:
    """Return the FLOPs to orthogonalise the trained matrices of a layer outside and inside routed experts."""
    matrices = [matrix for matrix in layer.linears(cut) if matrix.is_orthogonalised and matrix.trainable]
    of_experts = [matrix for matrix in matrices if matrix.kind == "routed"]
    of_others = [matrix for matrix in matrices if matrix.kind != "routed"]
    return (
        sum(muon_flops(matrix.size, layer.hidden_size) for matrix in of_others),
        sum(matrix.count * muon_flops(matrix.size, layer.hidden_size) for matrix in of_experts),
    )
