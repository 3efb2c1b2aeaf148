"""Lower bounds of a configuration's memory and time, which exclude most configurations without building a
schedule.
"""

import pickle
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.catalog.build import find
from ppsim.costs.assemble_job import layers_per_stage
from ppsim.costs.dp_and_optimizer import num_buckets, parameters_of_stages, replica_collective_s
from ppsim.costs.job import Job
from ppsim.machine import collectives
from ppsim.model.activations import embedding_activations, mtp_activations, weight_gradient_bytes
from ppsim.model.pipeline_stages import Stage
from ppsim.model.rank_memory import bytes_at_rest, kept_of_layer
from ppsim.model.recompute import of_layer, words_of_layers
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
    """The layers per stage and the lower bounds of a configuration.

    - `bound_s`: of the iteration time, infinite if `least_bytes` exceed the memory limit.
    - `least_bytes`: of the highest peak memory of a rank.
    - `static_bytes`: exact bytes per rank.
    - `update_bytes`: exact bytes per rank of the optimizer step beyond `static_bytes`.
    - `activation_bytes`: exact bytes per microbatch, shape [2, stages]: all activations, and the part that W needs.
    """

    candidate: Configuration
    counts: tuple[int, ...]
    bound_s: float
    least_bytes: float
    static_bytes: Floats
    update_bytes: Floats
    activation_bytes: Floats


class BoundsCalculator:
    """Computes bounds and plans, and caches the parts that configurations share."""

    def __init__(self, question: SearchProblem) -> None:
        self.question = question
        self._known: dict[Hashable, Any] = {}
        model = question.job.model
        self._kinds = list(dict.fromkeys(model.layers))
        of_kind = np.array([[layer == kind for layer in model.layers] for kind in self._kinds], dtype=np.int64)
        # [kind, layer]: number of earlier layers of each kind.
        self._before = np.concatenate([np.zeros((len(self._kinds), 1), np.int64), of_kind.cumsum(axis=1)], axis=1)

    def of(self, configuration: Configuration) -> ConfigurationBounds:
        entry, job = find(configuration.schedule), self._job(configuration)
        counts = self._counts(job, configuration)
        of_stages = (
            job.layout,
            job.micro_batch,
            job.execution.recompute,
            job.optimizer.zero_stage,
            entry.placement,
            configuration.vpp,
            counts,
        )
        layers, stages = (
            self._layers_of(counts),
            _stages_of_ranks(entry.placement, configuration.pp, configuration.vpp),
        )
        (static, update), activation = self._shared(
            ("bytes", of_stages),
            lambda: (self._static_bytes(job, layers, stages), self._activation_bytes(job, layers)),
        )
        least = max(
            float((static + update).max()),
            _least_bytes(configuration, job.num_microbatches, static, activation, stages),
        )
        bound = np.inf
        if least <= self.question.memory_bound_bytes * CAP_ROUNDING:
            bound = self._shared(
                ("bound", of_stages, entry.splits_backward),
                lambda: self._bound_s(job, configuration, layers, stages),
            )
        # The job's scale does not multiply fixed time and launches, so only a scale below 1 is applied.
        bound *= min(1.0, job.scale)
        return ConfigurationBounds(configuration, counts, bound, least, static, update, activation)

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
        found: _Value = self._known[key]
        return found

    def _job(self, configuration: Configuration) -> Job:
        layout = (configuration.tp, configuration.cp, configuration.ep, configuration.pp)
        return self._shared(
            ("job", layout, configuration.micro_batch, configuration.recompute, configuration.zero),
            lambda: self._new(configuration),
        )

    def _new(self, configuration: Configuration) -> Job:
        job = self.question.job_of(configuration)
        costs = self._shared(("costs", self._compute_key(job)), lambda: (job.layer_costs, job.ends))
        # These cached properties depend only on the key.
        vars(job)["layer_costs"], vars(job)["ends"] = costs
        return job

    def _compute_key(self, job: Job) -> Hashable:
        layout, sizes = job.layout, job.domain_sizes
        extents = tuple(group(layout, name, sizes).extents for name in ("tp", "cp", "ep"))
        return job.micro_batch, job.execution, layout.tp, layout.cp, layout.ep, extents

    def _counts(self, job: Job, configuration: Configuration) -> tuple[int, ...]:
        pp, vpp, split = configuration.pp, configuration.vpp, configuration.split
        placement = find(configuration.schedule).placement
        key = (self._compute_key(job), vpp, vpp > 1 and placement) if split == "auto" else None

        def found() -> tuple[int, ...]:
            stages = _stages_of_ranks(placement, pp, vpp).tolist()
            return tuple(layers_per_stage(job, pp * vpp, split, stages))

        return self._shared(("counts", pp * vpp, key), found)

    def _layers_of(self, counts: tuple[int, ...]) -> NDArray[np.int64]:
        """Return the number of layers, with shape [stages, kinds]."""
        ends = np.cumsum(counts)
        found: NDArray[np.int64] = (self._before[:, ends] - self._before[:, ends - np.array(counts)]).T
        return found

    # --- bytes ---

    def _static_bytes(self, job: Job, layers: NDArray[np.int64], stages: NDArray[np.int64]) -> Floats:
        """Memory per rank without any microbatch in flight, and the bytes by which the update exceeds it."""
        last = len(layers) - 1
        has_first, has_last = ((stages == stage).any(axis=1).tolist() for stage in (0, last))
        of_rank = map(tuple, layers[stages].sum(axis=1).tolist())
        holds = list(zip(of_rank, has_first, has_last, strict=True))
        found = {
            one: self._shared(
                ("static", job.layout, job.micro_batch, job.execution.recompute, job.optimizer.zero_stage, one),
                lambda one=one: self._rank_bytes(job, *one),  # type: ignore[misc]
            )
            for one in set(holds)
        }
        of_ranks: Floats = np.array([found[one] for one in holds], dtype=np.float64).T
        return of_ranks

    def _stage(self, job: Job, held: tuple[int, ...], is_first: bool, is_last: bool) -> Stage:
        layers = [kind for kind, number in zip(self._kinds, held, strict=True) for _ in range(number)]
        return Stage(tuple(layers), is_first, is_last, job.model.mtp if is_last else ())

    def _rank_bytes(self, job: Job, held: tuple[int, ...], is_first: bool, is_last: bool) -> tuple[int, int]:
        # Static memory does not depend on the division of the rank's layers into stages.
        stage = self._stage(job, held, is_first, is_last)
        return bytes_at_rest(job.model, [stage], job.settings)

    def _activation_bytes(self, job: Job, layers: NDArray[np.int64]) -> Floats:
        """Return bytes per microbatch [2, stages]: all activations, and the part that stays from I to W."""
        layout = job.layout
        sizes = (layout.tp, layout.cp, layout.ep, job.micro_batch)
        key = ("activations", sizes, job.execution.recompute, job.optimizer.zero_stage)
        of_kind, first, last = self._shared(key, lambda: self._kept(job))
        found: Floats = (layers @ of_kind).T
        found[0, 0] += first
        found[:, -1] += last
        found[1] = np.minimum(found[0], found[1])
        if self.question.runtime == "torch":  # torch's first stage frees nothing before W
            found[1, 0] = found[0, 0]
        return job.allocator_slack * found

    def _kept(self, job: Job) -> tuple[Floats, float, Floats]:
        batch, cut, kernels = job.settings.batch, job.settings.cut, job.settings.kernels

        def total(found: dict[str, int]) -> int:
            return sum(found.values())

        words = words_of_layers(job.execution.recompute)
        of_kind = [
            min(total(kept_of_layer(kind, job.settings.recomputing(word))) for word in words)
            for kind in self._kinds
        ]
        mtp = job.model.mtp
        of_mtp = job.settings.recomputing(of_layer(job.execution.recompute))
        last = sum(total(kept_of_layer(layer, of_mtp)) for layer in mtp)
        last += total(mtp_activations(job.model, len(mtp), batch, cut)) if mtp else 0
        first = total(embedding_activations(job.model, batch, cut, kernels))
        for_weight = [weight_gradient_bytes(kind, batch, cut) for kind in self._kinds]
        last_for_weight = sum(weight_gradient_bytes(layer, batch, cut) for layer in mtp)
        return (
            np.array([of_kind, for_weight], dtype=np.float64).T,
            first,
            np.array([last, last_for_weight], dtype=float),
        )

    # --- seconds ---

    def _bound_s(
        self, job: Job, configuration: Configuration, layers: NDArray[np.int64], stages: NDArray[np.int64]
    ) -> float:
        """A rank waits for its first forward pass and does all its work.

        Its last backward pass then has to propagate to the first stage, whose gradients are reduced afterwards. If
        the backward pass is split, W can overlap with the propagation. So the bound is the larger of (the rank's
        work with W) and (its work without W plus the propagation).
        """
        forward, inputs, weights = self._compute_s(job, layers)
        if self.question.runtime == "torch":  # torch's first stage computes no input gradient
            weights[0] += inputs[0]
            inputs[0] = 0.0
        gather, reduce = self._replicas_s(job, layers)
        entry = find(configuration.schedule)
        hop_s = 0.0 if "bandwidth_bytes_per_s" in dict(self.question.overheads) else _hop_s(job)
        hop = np.where(_changes_rank(entry.placement, configuration.pp, configuration.vpp), hop_s, 0.0)
        down = _sums(forward[:-1] + hop)
        begin = down + np.maximum.accumulate(gather - down)
        is_split = entry.splits_backward
        way = inputs if is_split else inputs + weights
        first = weights[0] if is_split else 0.0
        # from the end of a stage's last input gradient until the end of rank 0
        up = _sums(way[:-1] + hop) + first + reduce[0]
        num = job.num_microbatches
        work = num * (forward + inputs + weights)[stages].sum(axis=1)
        mine = reduce[stages]
        reduced = mine.min(axis=1) if job.overlap_grad_reduce else mine.sum(axis=1)
        if job.update == "post-validated":
            return float((work + reduced).max() + job.rest_s) * _ROUNDING
        to_inputs = num * (forward + way)[stages].sum(axis=1)
        starts = begin[stages].min(axis=1)
        longest = [
            (starts + work + reduced).max(),
            (starts + to_inputs + up[stages].min(axis=1)).max(),
            begin[-1] + forward[-1] + way[-1] + up[-1],
        ]
        return float(max(longest) + job.rest_s) * _ROUNDING

    def _compute_s(self, job: Job, layers: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
        """Leave out the additional time of ZeRO 3."""
        key = ("seconds", self._compute_key(job))
        of_kind, first, last = self._shared(key, lambda: self._seconds(job))
        found: Floats = (layers @ of_kind).T
        found[:, 0] += first
        found[:, -1] += last
        return found[0], found[1], found[2]

    def _seconds(self, job: Job) -> tuple[Floats, Floats, Floats]:
        def passes(estimate: Any) -> Floats:
            parts = (estimate.forward, estimate.backward_input, estimate.backward_weight)
            return np.array([part.total_s for part in parts])

        embedding, head = map(passes, job.ends)
        mtp = job.model.mtp
        last = head * (1 + len(mtp)) + sum((passes(job.mtp_costs[layer]) for layer in mtp), np.zeros(3))
        return np.stack([passes(job.layer_costs[kind]) for kind in self._kinds]), embedding, last

    def _replicas_s(self, job: Job, layers: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Exposed time per stage: parameter all-gather, gradient reduction."""
        zero, last = job.optimizer.zero_stage, len(layers) - 1
        if zero == 3:
            return np.zeros(last + 1), np.zeros(last + 1)
        holds = [(tuple(held), index == 0, index == last) for index, held in enumerate(layers.tolist())]
        found = {
            one: self._shared(("replicas", zero, job.layout, one), lambda one=one: self._collectives_s(job, *one))  # type: ignore[misc]
            for one in set(holds)
        }
        return np.array([found[one][1] for one in holds]), np.array([found[one][0] for one in holds])

    def _collectives_s(self, job: Job, held: tuple[int, ...], is_first: bool, is_last: bool) -> tuple[float, float]:
        zero = job.optimizer.zero_stage
        held_by_rank = parameters_of_stages(job, [self._stage(job, held, is_first, is_last)])
        # With overlap, all buckets except one can be hidden.
        parts = num_buckets(job, held_by_rank)
        reduced, gathered = (
            parts if overlaps else 1.0 for overlaps in (job.overlap_grad_reduce, job.overlap_param_gather)
        )
        reduce: collectives.Operation = "reduce-scatter" if zero else "all-reduce"
        reduce_s = replica_collective_s(job, held_by_rank, reduce) if zero < 2 else 0.0
        gather_s = replica_collective_s(job, held_by_rank, "all-gather") if zero in (1, 2) else 0.0
        return reduce_s / reduced, gather_s / gathered


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
    whole = tokens * job.model.residual_size * float(job.settings.batch.element_bytes)
    message = whole / (layout.tp if job.scatter_gather else job.settings.cut.norm_divisor)
    crossed = set(hop_tiers(layout, job.domain_sizes))
    return min(collectives.point_to_point_s(message, tiers[tier].p2p_link) for tier in crossed)


def _least_bytes(
    configuration: Configuration, microbatches: int, static: Floats, activation: Floats, stages: NDArray[np.int64]
) -> float:
    """Assume one microbatch per rank, or the peak by the schedule's formula if that is exact."""
    least = float((static + activation[0][stages].sum(axis=1)).max())
    peak = find(configuration.schedule).peak_activations
    symbols = {"p": configuration.pp, "v": configuration.vpp, "m": microbatches, "k": 1}
    if peak.at_most or not peak.holds(**symbols):
        return least
    in_flight = round(peak(**symbols) * configuration.vpp)
    return max(least, float(static.min() + in_flight * activation.min()))  # some may hold only the part for W


@lru_cache(maxsize=1024)
def _stages_of_ranks(style: str, pp: int, vpp: int) -> NDArray[np.int64]:
    """Return the stages of each rank, with shape [ranks, vpp]."""
    rank_of = np.array(STYLES[style](pp, pp * vpp))
    return np.argsort(rank_of, kind="stable").reshape(pp, vpp)


@lru_cache(maxsize=1024)
def _changes_rank(style: str, pp: int, vpp: int) -> NDArray[np.bool_]:
    rank_of = np.array(STYLES[style](pp, pp * vpp))
    found: NDArray[np.bool_] = rank_of[1:] != rank_of[:-1]
    return found
