"""Cost sources for plans that have a training job on a cluster."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ppsim.base.units import percent
from ppsim.costs.assemble_job import assemble_job
from ppsim.costs.cost_sources import RankCosts, RunCosts
from ppsim.costs.dp_and_optimizer import expected_maximum
from ppsim.costs.job import Job
from ppsim.costs.layer_costs import layer_costs_of
from ppsim.costs.ledger import Ledger
from ppsim.costs.similar_jobs import scale_of
from ppsim.costs.stage_cost_set import LayerCosts, StageCostSet
from ppsim.parallel.layer_partition import Split
from ppsim.schedule.table import Schedule
from ppsim.simulation.step import StepCosts


@dataclass(frozen=True)
class JobSource:
    """A training job: all pipelines, placed on a cluster."""

    job: Job

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.job)

    @property
    def name(self) -> str:
        return f"{self.job.model_name} on {self.job.cluster.name}"

    @property
    def num_layers(self) -> int:
        return len(self.job.model.layers)

    @property
    def sequence_length(self) -> int:
        return self.job.length

    @property
    def hidden_size(self) -> int:
        return self.job.model.hidden_size

    @property
    def tokens_per_microbatch(self) -> int:
        """Tokens of a microbatch, summed over data-parallel ranks."""
        return self.job.micro_batch * self.job.length * self.job.layout.dp

    @property
    def gpus_per_rank(self) -> int:
        return self.job.layout.num_devices // self.job.layout.pp

    def assemble(self, schedule: Schedule, split: Split) -> StageCostSet:
        return assemble_job(self.job, schedule, split=split, ledger=self.ledger).scaled(scale_of(self.job))

    def layer_costs(self) -> LayerCosts:
        return layer_costs_of(self.ledger)

    def peak(self) -> tuple[float | None, list[str]]:
        """Dense peak of the data sheet in FLOP/s."""
        peak = self.job.cluster.device.peak(self.job.execution.dtype)
        return peak, [
            f"MFU: model FLOPs (causal half of attention, no recomputation) relative to {peak / 1e12:g} TFLOP/s"
        ]

    def jitter(self) -> float | None:
        return None

    def to_json(self) -> dict[str, Any]:
        job, layout = self.job, self.job.layout
        etp = {} if layout.etp is None else {"etp": layout.etp}
        return {
            "job": {
                "model": job.model_name,
                "cluster": job.cluster.name,
                "device": job.cluster.device.name,
                **{name: getattr(layout, name) for name in ("tp", "cp", "ep", "dp", "pp", "order")},
                **etp,
                "global_batch": job.global_batch,
                "micro_batch": job.micro_batch,
                "sequence_length": job.length,
                "dtype": job.execution.dtype,
                "recompute": job.execution.recompute,
                "zero_stage": job.optimizer.zero_stage,
            }
        }


@dataclass(frozen=True)
class MeasuredSource(JobSource):
    """A training job with measured pipeline times; the rest of the step has only the extra step time (`rest_s`)."""

    costs: RankCosts

    def assemble(self, schedule: Schedule, split: Split) -> StageCostSet:
        estimated = super().assemble(schedule, split)
        without = "not in the step time: data-parallel communication, optimizer, gradient norm"
        if isinstance(self.costs, RunCosts):
            own = super().assemble(self.costs.table, self.costs.split)
            assembled = self.costs.with_faults(self.costs.correcting(estimated, own), schedule)
            if self.costs.knows_gaps:
                without = "data parallelism, optimizer, gradient norm: the recorded time between steps"
        else:
            assembled = self.costs.replacing(estimated, schedule)
        lines, slow = [*assembled.assumptions, without], self._slow_rank(schedule.num_ranks)
        if slow:
            lines.append(
                f"the slowest of {schedule.num_ranks} ranks takes {percent(slow)} longer than those measured"
            )
        around = StepCosts(update=self.job.update, rest_s=self.job.rest_s, slow_rank=slow)
        return replace(assembled, assumptions=lines, step_costs=around)

    def _slow_rank(self, num_ranks: int) -> float:
        """Expected extra time, as a fraction, of the slowest of equal ranks."""
        jitter = self.job.cluster.constants.jitter
        if jitter is None or isinstance(self.costs.forward_s, tuple):
            return 0.0
        return jitter.value * expected_maximum(num_ranks)
