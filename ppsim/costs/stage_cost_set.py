"""Costs per model stage from any source, and their assumptions."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from ppsim.base.arrays import Floats
from ppsim.costs.pair_overlap import LayerTimes
from ppsim.costs.time_breakdown import CostEstimate
from ppsim.parallel.sequence_slices import equal_time_slices
from ppsim.schedule.table import Schedule
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.step import StepCosts

if TYPE_CHECKING:  # heavy imports: models
    from ppsim.model.offloading import Offload
    from ppsim.model.pipeline_stages import Stage

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class LayerCosts:
    """Costs that one more layer adds to its stage and rank, for a search over splits.

    `work_s` has the seconds of F + B of each layer, `passes_s` the mean seconds of F, B, I and W, `exposed_s` the
    same if the collectives of a pass (ZeRO 2 and 3) take longer than its compute. `reduce_s` and `optimizer_s` are
    per step. A stage that has layers takes the time of `fixed` more layers.
    """

    work_s: Floats
    passes_s: Floats
    exposed_s: Floats
    reduce_s: float = 0.0
    optimizer_s: float = 0.0
    static_bytes: float = 0.0
    activation_bytes: float = 0.0
    fixed: float = 0.0


@dataclass(frozen=True)
class StageCostSet:
    """Costs per stage, layers per stage, model FLOPs of a microbatch's forward, and the assumptions.

    `parts` has the costs of each stage by cause (empty if unknown), `contents` the layout string of each stage,
    `stages` and `offloads` the stages of a job.
    If forwards overlap backwards in pairs, `layer_times` has the times of each layer, and `pair_host_s` the part of
    each pair's seconds (row: stage of the forward) in which the device waits for kernel launches.
    """

    costs: StageCosts
    split: list[int]
    forward_flops: float
    assumptions: list[str] = field(default_factory=list)
    step_costs: StepCosts = field(default_factory=StepCosts)
    parts: list[CostEstimate] = field(default_factory=list)
    contents: list[str] = field(default_factory=list)
    stages: "list[Stage]" = field(default_factory=list)
    offloads: "list[Offload]" = field(default_factory=list)
    layer_times: list[list[LayerTimes]] = field(default_factory=list)
    pair_host_s: Floats | None = None

    def scaled(self, times: float) -> "StageCostSet":
        """The fixed extra time of the step is not multiplied."""
        if times == 1:
            return self
        return replace(
            self,
            costs=self.costs.scaled(times),
            step_costs=self.step_costs.scaled(times),
            parts=[part.slowed(times) for part in self.parts],
            pair_host_s=None if self.pair_host_s is None else times * self.pair_host_s,
        )


def stages_of_ranks(schedule: Schedule) -> list[list[int]]:
    return values_of_ranks(schedule, range(schedule.num_model_stages))


def values_of_ranks(schedule: Schedule, of_stages: Sequence[Entry]) -> list[list[Entry]]:
    """Return the values of the stages of each rank, including stages of model replicas."""
    return [
        [of_stages[schedule.model_stage[stage]] for stage in schedule.stages_of(rank)]
        for rank in range(schedule.num_ranks)
    ]


def slice_costs(
    costs: StageCosts, schedule: Schedule, sequence_length: int, hidden_size: int, time: str
) -> tuple[StageCosts, list[str]]:
    """Raises `ConfigError` for a sequence too short for the slices of the schedule."""
    if schedule.num_slices == 1:
        return costs, []
    tokens = equal_time_slices(sequence_length, schedule.num_slices, hidden_size=hidden_size)
    return costs.replace(slice_token_shares=[count / sequence_length for count in tokens]), [
        f"slices: {short_counts(tokens)} tokens, of equal FLOPs under causal attention, each an equal share of the "
        f"microbatch's {time}"
    ]


def short_counts(counts: list[int]) -> str:
    """Return a list of counts as text, with runs written as 4×2.

    >>> short_counts([1, 2, 2, 2, 1])
    '1, 3×2, 1'
    """
    runs: list[list[int]] = []
    for value in counts:
        if runs and runs[-1][1] == value:
            runs[-1][0] += 1
        else:
            runs.append([1, value])
    return ", ".join(str(value) if times == 1 else f"{times}×{value}" for times, value in runs)
