"""Lower bounds of a configuration's memory and time, which exclude most configurations without building a
schedule.
"""

import pickle
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.catalog.build import find
from ppsim.costs.assemble_job import layers_per_stage
from ppsim.costs.job import Job
from ppsim.costs.job_plans import stages_with_plans
from ppsim.costs.ledger import Ledger
from ppsim.costs.pair_overlap import pair_s
from ppsim.costs.similar_jobs import scale_of
from ppsim.costs.stage_memory import StageMemory, stage_memory
from ppsim.costs.time_breakdown import CostEstimate
from ppsim.machine import collectives
from ppsim.model.pipeline_stages import Stage, stages_of
from ppsim.parallel.groups import group, hop_tiers
from ppsim.projection.plan import Plan
from ppsim.schedule.placement import STYLES
from ppsim.simulation.bounds.problem import CAP_ROUNDING
from ppsim.tuning.space import Configuration, SearchProblem

_ROUNDING = 1 - 1e-9
"""Factor that allows for rounding: the simulator adds the same times in another order."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, eq=False)
class ConfigurationBounds:
    """The layers per stage, the bytes and the lower bounds of a configuration.

    - `bound_s`: of the iteration time, infinite if `least_bytes` exceed the memory limit.
    - `least_bytes`: of the highest peak memory of a rank.
    """

    candidate: Configuration
    counts: tuple[int, ...]
    bound_s: float
    least_bytes: float
    memory: StageMemory


@dataclass(frozen=True, eq=False)
class _Stages:
    """Stages of a configuration, the stages of each rank [ranks, vpp], and their bytes."""

    ledger: Ledger
    stages: list[Stage]
    ranks: NDArray[np.int64]
    memory: StageMemory

    def seconds(self) -> Floats:
        """Seconds of F, I and W of each stage; W is the rest of a backward that was measured whole."""
        costs = self.memory.costs(self.ledger, self.stages)
        distinct = {id(cost): cost for cost in costs}
        passes_s = {key: _passes_s(cost) for key, cost in distinct.items()}
        return np.array([passes_s[id(cost)] for cost in costs]).T


class BoundsCalculator:
    """Computes bounds and plans, and caches the parts that configurations share."""

    def __init__(self, question: SearchProblem) -> None:
        self.question = question
        self._known: dict[Hashable, Any] = {}

    def of(self, configuration: Configuration, *, is_limited: bool = True) -> ConfigurationBounds:
        """Without a limit, also bound the time of a configuration that does not fit."""
        entry, job = find(configuration.schedule), self._job(configuration)
        counts = self._counts(job, configuration)
        key = id(job), entry.placement, configuration.vpp, counts
        bounds = self._shared(("stages", key), lambda: self._stages(job, configuration, counts))
        least = _least_bytes(configuration, job, bounds)
        bound = np.inf
        if not is_limited or least <= self.question.memory_bound_bytes * CAP_ROUNDING:
            bound = self._shared(
                ("bound", key, entry.splits_backward), lambda: self._bound_s(job, configuration, bounds)
            )
        if configuration.split == "searched":
            least, bound = 0.0, self._bound_of_splits_s(job, bounds)
        # The job's scale does not multiply fixed time and launches, so only a scale below 1 is applied.
        return ConfigurationBounds(configuration, counts, min(1.0, scale_of(job)) * bound, least, bounds.memory)

    def plan(self, bounds: ConfigurationBounds) -> Plan:
        return self.question.plan_of(bounds.candidate, job=self._job(bounds.candidate), split=list(bounds.counts))

    def plan_of(self, configuration: Configuration) -> Plan:
        job = self._job(configuration)
        return self.question.plan_of(configuration, job=job, split=list(self.counts(configuration)))

    def counts(self, configuration: Configuration) -> tuple[int, ...]:
        return self._counts(self._job(configuration), configuration)

    def _shared(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        if key not in self._known:
            self._known[key] = make()
        shared: _Value = self._known[key]
        return shared

    def _job(self, configuration: Configuration) -> Job:
        layout = (configuration.tp, configuration.cp, configuration.ep, configuration.pp)
        others = configuration.recompute, configuration.zero, configuration.switched
        return self._shared(
            ("job", layout, configuration.micro_batch, *others),
            lambda: self._new(configuration),
        )

    def _new(self, configuration: Configuration) -> Job:
        job = self.question.job_of(configuration)
        job.share_costs(self._shared(("costs", self._compute_key(job)), lambda: job.costs))
        return job

    def _compute_key(self, job: Job) -> Hashable:
        layout, sizes = job.layout, job.place.domain_sizes
        extents = tuple(group(layout, name, sizes).extents for name in ("tp", "cp", "ep"))
        return job.micro_batch, job.execution, layout.tp, layout.cp, layout.ep, layout.etp, extents

    def _counts(self, job: Job, configuration: Configuration) -> tuple[int, ...]:
        pp, vpp, split = configuration.pp, configuration.vpp, configuration.split
        placement = find(configuration.schedule).placement
        key = None if split == "even" else (self._compute_key(job), vpp, vpp > 1 and placement)

        def found() -> tuple[int, ...]:
            stages = _stages_of_ranks(placement, pp, vpp).tolist()
            return tuple(layers_per_stage(job, pp * vpp, "balanced" if key else "even", stages))

        return self._shared(("counts", pp * vpp, key), found)

    def _stages(self, job: Job, configuration: Configuration, counts: tuple[int, ...]) -> _Stages:
        placement = find(configuration.schedule).placement
        ranks = _stages_of_ranks(placement, configuration.pp, configuration.vpp)
        planned = job.execution.recompute, job.offload_modules, counts, placement, configuration.vpp
        stages: list[Stage] = self._shared(
            ("planned", planned), lambda: stages_with_plans(job, stages_of(job.model, counts), ranks.tolist())
        )
        ledger = self._shared(("ledger", id(job)), lambda: Ledger(job))
        by_layer = job.offload > 0 and len(stages) == 1
        memory = stage_memory(ledger, stages, ranks.tolist(), by_layer=by_layer)
        if self.question.runtime == "torch":  # torch's first stage frees nothing before W
            memory.activation_bytes[1, 0] = memory.activation_bytes[0, 0]
        return _Stages(ledger, stages, ranks, memory)

    def _bound_s(self, job: Job, configuration: Configuration, found: _Stages) -> float:
        """A rank waits for its first forward pass and does all its work.

        Its last backward pass then has to propagate to the first stage, whose gradients are reduced afterwards. If
        the backward pass is split, W can overlap with the propagation. So the bound is the larger of (the rank's
        work with W) and (its work without W plus the propagation). A pair of a forward and a backward may be
        shorter than its parts, by `gain` at most.
        """
        stages, gain = found.ranks, _most_gained_s(job, found)
        forward, inputs, weights = found.seconds()
        if self.question.runtime == "torch":  # torch's first stage computes no input gradient
            weights[0] += inputs[0]
            inputs[0] = 0.0
        gather, reduce = _exposed_per_step_s(job, found)
        entry = find(configuration.schedule)
        hop_s = 0.0 if "bandwidth_bytes_per_s" in dict(self.question.overheads) else _hop_s(job)
        hop = np.where(_changes_rank(entry.placement, configuration.pp, configuration.vpp), hop_s, 0.0)
        down = _sums(forward[:-1] + hop)
        begin = down + np.maximum.accumulate(gather - down)
        is_split = entry.splits_backward
        backward = inputs if is_split else inputs + weights
        first = weights[0] if is_split else 0.0
        # from the end of a stage's last input gradient until the end of rank 0
        up = _sums(backward[:-1] + hop) + first + reduce[0]
        num = job.num_microbatches
        work = num * (forward + inputs + weights - gain)[stages].sum(axis=1)
        of_ranks = reduce[stages]
        reduced = of_ranks.min(axis=1) if job.overlap_grad_reduce else of_ranks.sum(axis=1)
        if job.update == "post-validated":
            return float((work + reduced).max() + job.rest_s) * _ROUNDING
        to_inputs = num * (forward + backward - gain)[stages].sum(axis=1)
        starts = begin[stages].min(axis=1)
        longest = [
            (starts + work + reduced).max(),
            (starts + to_inputs + up[stages].min(axis=1)).max() - gain.max(),
            begin[-1] + forward[-1] + backward[-1] + up[-1] - 2 * gain.sum(),
        ]
        return float(max(longest) + job.rest_s) * _ROUNDING

    def _bound_of_splits_s(self, job: Job, stages: _Stages) -> float:
        """All layers per stage have the same sum of work: the busiest rank has at least the mean."""
        work_s = (stages.seconds().sum(axis=0) - _most_gained_s(job, stages)).sum() / len(stages.ranks)
        return float(job.num_microbatches * work_s) * _ROUNDING


def _passes_s(cost: CostEstimate) -> tuple[float, float, float]:
    inputs_s = cost.backward_input.total_s
    return cost.forward.total_s, inputs_s, cost.backward.total_s - inputs_s


def _most_gained_s(job: Job, stages: _Stages) -> Floats:
    """Return the most seconds that pairs with a forward of each stage can save."""
    gain = np.zeros(len(stages.stages))
    order, slowdown = job.execution.ep_order, job.place.dispatch_slowdown
    if order is None:
        return gain
    times = list(map(stages.ledger.layer_times, stages.stages))
    for of_rank in stages.ranks.tolist():
        for forward, backward in product(of_rank, of_rank):
            alone_s = sum(layer.forward_s for layer in times[forward])
            alone_s += sum(layer.backward_s for layer in times[backward])
            saved_s = alone_s - pair_s(times[forward], times[backward], order, slowdown=slowdown)
            gain[forward] = max(gain[forward], saved_s)
    return gain


def _exposed_per_step_s(job: Job, stages: _Stages) -> tuple[Floats, Floats]:
    """Exposed time per stage: parameter all-gather, gradient reduction.

    With overlap, all buckets except one can be hidden.
    """
    sums = stages.ledger.stages(stages.stages)
    distinct = {id(stage): stage for stage in sums}
    kinds = {key: (stage.num_buckets, *stage.per_step_s) for key, stage in distinct.items()}
    buckets, gather, reduce = np.array([kinds[id(stage)] for stage in sums]).T
    return (
        gather / (buckets if job.overlap_param_gather else 1.0),
        reduce / (buckets if job.overlap_grad_reduce else 1.0),
    )


@lru_cache(maxsize=2)
def bounds_calculator(question: bytes) -> BoundsCalculator:
    """`question` is a pickled `SearchProblem`; each process caches the latest two calculators."""
    return BoundsCalculator(pickle.loads(question))


def _sums(values: Floats) -> Floats:
    """Exclusive prefix sums, followed by the total."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _hop_s(job: Job) -> float:
    layout, tiers = job.layout, job.cluster.tiers
    tokens = job.micro_batch * job.length // layout.cp
    num_bytes = tokens * job.model.residual_size * float(job.execution.element_bytes)
    message = num_bytes / (layout.tp if job.scatter_gather else job.settings.cut.norm_divisor)
    crossed = set(hop_tiers(layout, job.place.domain_sizes))
    return min(collectives.point_to_point_s(message, tiers[tier].p2p_link) for tier in crossed)


def _least_bytes(configuration: Configuration, job: Job, stages: _Stages) -> float:
    """Assume one microbatch per rank, or the peak by the schedule's formula if that is exact."""
    memory, entry = stages.memory, find(configuration.schedule)
    static, (whole, for_weight) = memory.static_bytes, memory.activation_bytes
    least = float((static + np.maximum(memory.update_bytes, whole[stages.ranks].sum(axis=1))).max())
    peak = entry.peak_activations
    symbols = {"p": configuration.pp, "v": configuration.vpp, "m": job.num_microbatches, "k": 1}
    if peak.at_most or not peak.holds(**symbols):
        return least
    in_flight = round(peak(**symbols) * configuration.vpp)
    if job.execution.ep_order:  # the last forward may be in a pair, which frees while it allocates
        in_flight -= 1
    smallest = min(whole.min(), for_weight.min() if entry.splits_backward else np.inf)
    return max(least, float(static.min() + in_flight * smallest))


@lru_cache(maxsize=1024)
def _stages_of_ranks(style: str, pp: int, vpp: int) -> NDArray[np.int64]:
    """Return the stages of each rank, with shape [ranks, vpp]."""
    rank_of = np.array(STYLES[style](pp, pp * vpp))
    return np.argsort(rank_of, kind="stable").reshape(pp, vpp)


@lru_cache(maxsize=1024)
def _changes_rank(style: str, pp: int, vpp: int) -> NDArray[np.bool_]:
    rank_of = np.array(STYLES[style](pp, pp * vpp))
    are_boundaries: NDArray[np.bool_] = rank_of[1:] != rank_of[:-1]
    return are_boundaries
