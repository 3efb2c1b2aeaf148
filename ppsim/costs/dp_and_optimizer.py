"""Step costs outside the pipeline: data-parallel collectives, shared embeddings, gradient norm and optimizer."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.costs.job import Job
from ppsim.costs.offload import HOST_EFFICIENCY, copy_s
from ppsim.costs.stage_cost_set import StageCostCache, values_of_ranks
from ppsim.machine import collectives
from ppsim.machine.cluster import Device
from ppsim.model.architecture import Layer
from ppsim.model.parameters import RankParameters, held_parameters, padded_vocabulary
from ppsim.model.pipeline_stages import Stage, call_per_group
from ppsim.model.rank_memory import gathered_bytes
from ppsim.parallel.groups import RankGroup, all_devices, tier_between
from ppsim.schedule.table import Schedule
from ppsim.simulation.step_costs import SharedGradients, StepCosts

NORM_BYTES = 4
"""The gradient norm reads each gradient once."""


def step_costs(
    job: Job, schedule: Schedule, stages: Sequence[Stage], known: StageCostCache | None = None
) -> StepCosts:
    """Up to ZeRO 1, gradients are reduced once per step; from ZeRO 2 on, every backward reduces its own.

    Parameters are gathered once per step in ZeRO 1 and 2, and for every pass in ZeRO 3.
    """
    device, zero, replicas = job.cluster.device, job.optimizer.zero_stage, schedule.num_replicas
    known = StageCostCache() if known is None else known
    held = call_per_group(lambda one: parameters_of_stages(job, one), [(stage,) for stage in stages], known["held"])
    reduce_s = gather_s = [0.0] * len(stages)
    if zero < 2:
        operation: collectives.Operation = "reduce-scatter" if zero else "all-reduce"
        reduce_s = _for_each(held, lambda one: replica_collective_s(job, one, operation), known["reduce"])
    if zero in (1, 2):
        gather_s = _for_each(held, lambda one: replica_collective_s(job, one, "all-gather"), known["gather"])
    rank_stages = values_of_ranks(schedule, stages)
    parts = call_per_group(lambda mine: _parts_of_replica(job, mine), rank_stages, known["parts"])
    norm_s = max(dense + expert for dense, expert in parts) * NORM_BYTES
    norm_s /= device.memory_bytes_per_s * device.efficiency.memory
    everyone = all_devices(job.layout, job.domain_sizes)
    return StepCosts(
        gather_s=np.tile(gather_s, replicas),
        reduce_s=np.tile(reduce_s, replicas),
        num_buckets=np.tile(_for_each(held, lambda one: num_buckets(job, one), known["buckets"]), replicas),
        overlap_gather=job.overlap_param_gather,
        overlap_reduce=job.overlap_grad_reduce,
        deferred_s=[_deferred_s(job, mine) for mine in rank_stages] if job.num_deferred else 0.0,
        sharing=_sharing(job, schedule, stages, held),
        norm_s=norm_s + collectives.seconds("all-reduce", 4.0, everyone, job.cluster),
        optimizer_s=call_per_group(lambda mine: _update_s(job, mine), rank_stages, known["update"]),
        update=job.update,
        rest_s=job.rest_s,
        straggling=device.efficiency.jitter * expected_maximum(num_independent(job)),
    )


def layer_reduction_s(job: Job, layer: Layer) -> tuple[float, float]:
    """Return the seconds per step that one more layer adds to the gradient reduction and to the update."""
    one, two = ([Stage((layer,) * number)] for number in (1, 2))
    update_s = _update_s(job, two) - _update_s(job, one)
    if job.optimizer.zero_stage >= 2:  # reduced after each pass
        return 0.0, update_s
    operation: collectives.Operation = "reduce-scatter" if job.optimizer.zero_stage else "all-reduce"
    took_s = [replica_collective_s(job, parameters_of_stages(job, stages), operation) for stages in (one, two)]
    return took_s[1] - took_s[0], update_s


def num_independent(job: Job) -> int:
    """Return the number of nodes that contain data-parallel ranks of a stage.

    Ranks of one node share host, power and cooling, and count as one random draw.
    """
    return math.prod(job.place.ranks("dp").extents[1:])


@lru_cache(maxsize=4096)
def expected_maximum(count: int) -> float:
    """Return the expected maximum of `count` independent standard normals.

    It is ∫ (1 − Φⁿ) over x > 0 minus ∫ Φⁿ over x < 0 (David & Nagaraja 2003, Order Statistics, §3.1).

    >>> round(expected_maximum(2), 6), round(expected_maximum(1000), 3)
    (0.56419, 3.241)
    """
    step = 0.01
    at = [step * (number + 0.5) for number in range(-1000, 1000)]
    return step * sum((x > 0) - (0.5 * (1 + math.erf(x / math.sqrt(2)))) ** count for x in at)


def num_buckets(job: Job, parameters: RankParameters) -> float:
    """Megatron-LM's buckets hold 40 million gradients, or a million per dp · cp rank if that is more."""
    largest = max(40_000_000, 1_000_000 * job.layout.dp * job.layout.cp)
    return float(max(1, -(-(parameters.trained + parameters.trained_expert) // largest)))


def _for_each(
    held: Sequence[RankParameters],
    seconds_of: Callable[[RankParameters], float],
    known: dict[RankParameters, float],
) -> list[float]:
    for one in set(held) - known.keys():
        known[one] = seconds_of(one)
    return [known[one] for one in held]


def passes_s(job: Job, stage: Stage) -> tuple[float, float]:
    """Return seconds per pass to gather a stage's parameters and to reduce its gradients."""
    zero = job.optimizer.zero_stage
    held = parameters_of_stages(job, [stage])
    gather_s = replica_collective_s(job, held, "all-gather") if zero == 3 else 0.0
    return gather_s, replica_collective_s(job, held, "reduce-scatter") if zero >= 2 else 0.0


def parameters_of_stages(job: Job, stages: Sequence[Stage]) -> RankParameters:
    return held_parameters(job.model, list(stages), job.settings.cut, vocab_multiple=job.vocab_multiple)


ReplicaGroup: TypeAlias = Literal["dp-cp", "expert-dp"]
_GROUPS: tuple[ReplicaGroup, ...] = ("dp-cp", "expert-dp")


def replica_collective_s(job: Job, parameters: RankParameters, operation: collectives.Operation) -> float:
    """ZeRO 3 gathers frozen weights too, and only primary weights are gathered in 8 or 4 bits."""
    optimizer, held = job.optimizer, parameters
    sizes: list[float] = [count * optimizer.bytes_of_gradient for count in (held.trained, held.trained_expert)]
    if operation == "all-gather":
        trained_experts = 0 if held.frozen_expert else held.expert_gemms
        counts = [(held.trained, min(held.matrices, held.gemms)), (held.trained_expert, trained_experts)]
        if optimizer.zero_stage == 3:
            counts = [(held.dense, held.gemms), (held.expert, held.expert_gemms)]
        of_gemms = gathered_bytes(job.settings)
        sizes = [(count - gemms) * optimizer.weight_bytes + gemms * of_gemms for count, gemms in counts]
    return sum(
        _among_instances_s(job, operation, size, name) for size, name in zip(sizes, _GROUPS, strict=True) if size
    )


def _among_instances_s(job: Job, operation: collectives.Operation, num_bytes: float, name: ReplicaGroup) -> float:
    """A collective within a distributed-optimizer instance; gradients are then summed over instances."""
    group = job.place.ranks(name)
    inner, outer = group.instances(job.optimizer.instances_among(group.num_ranks))
    seconds = collectives.seconds(operation, num_bytes, inner, job.cluster)
    if operation == "all-gather" or outer.num_ranks == 1:
        return seconds
    return seconds + collectives.seconds("all-reduce", num_bytes / inner.num_ranks, outer, job.cluster)


def _num_sharing(job: Job, name: ReplicaGroup) -> int:
    num_ranks = job.place.ranks(name).num_ranks
    return job.optimizer.ranks_of_state(num_ranks)


def _share(job: Job, name: ReplicaGroup, stages: Sequence[Stage]) -> float:
    if job.optimizer.zero_stage == 0:
        return 1.0
    num_ranks = _num_sharing(job, name)
    num_layers = sum(len(stage.layers) + len(stage.mtp) for stage in stages)
    if not job.optimizer.layer_wise or num_layers == 0:
        return 1 / num_ranks
    return math.ceil(num_layers / num_ranks) / num_layers


def _deferred_s(job: Job, stages: Sequence[Stage]) -> float:
    """Seconds of the output layer's weight gradients after a rank's last backward pass.

    Megatron-LM, core/pipeline_parallel/schedules.py, `finish_embedding_wgrad_compute`. A backward that was measured
    whole defers nothing.
    """
    _, head = job.ends
    if head.whole_backward is not None:
        return 0.0
    times = sum(1 + len(job.model.mtp) for stage in stages if stage.head)
    return job.num_deferred * times * head.backward_weight.total_s


def _parts_of_replica(job: Job, stages: Sequence[Stage]) -> tuple[float, float]:
    held = parameters_of_stages(job, stages)
    return held.trained * _share(job, "dp-cp", stages), held.trained_expert * _share(job, "expert-dp", stages)


def _update_s(job: Job, stages: Sequence[Stage]) -> float:
    optimizer, device = job.optimizer, job.place.device
    held, traffic = parameters_of_stages(job, stages), optimizer.traffic_bytes
    dense, expert = _parts_of_replica(job, stages)
    if optimizer.name == "adam":
        on_host = optimizer.offload_fraction * (dense + expert)
        on_device_s = optimizer_s(device, dense + expert - on_host, bytes_per_parameter=traffic)
        return on_device_s if not on_host else update_on_host_s(job, on_host, on_device_s)
    of_matrix = traffic - 2 * (optimizer.state_bytes() - optimizer.state_bytes(is_matrix=True))
    matrices = held.matrices * _share(job, "dp-cp", stages) + expert
    moved_s = optimizer_s(device, matrices, bytes_per_parameter=of_matrix)
    moved_s += optimizer_s(device, dense + expert - matrices, bytes_per_parameter=traffic)
    shares = _share(job, "dp-cp", stages), _share(job, "expert-dp", stages)
    flops = sum(_muon_flops(job, layer, *shares) for stage in stages for layer in (*stage.layers, *stage.mtp))
    return moved_s + flops / (device.peak("bfloat16") * device.matmul_share("bfloat16"))


def optimizer_s(device: Device, parameters: float, *, bytes_per_parameter: float) -> float:
    """The step reaches a far smaller fraction of bandwidth than other kernels.

    In one measurement, Adam took 93.8 ms; at full bandwidth it would take 19.9 ms.
    """
    corrected = device.efficiency.operator_time.get("optimizer", 1.0)
    return corrected * parameters * bytes_per_parameter / (device.memory_bytes_per_s * device.efficiency.optimizer)


def update_on_host_s(job: Job, parameters: float, on_device_s: float) -> float:
    """Float32 gradients go to the host, and updated weights come back.

    Transfers and update follow one another. With `overlap_cpu_optimizer_d2h_h2d` they overlap, parameter by
    parameter (Megatron-LM, core/optimizer/cpu_offloading/hybrid_optimizer.py at d98e8a64). Raises `ConfigError` if
    the bandwidth of the link or of host memory is unknown.
    """
    optimizer, device = job.optimizer, job.cluster.device
    if device.host_memory_bytes_per_s is None:
        raise ConfigError(
            f"{device.name} has no host_memory_bytes_per_s, which an optimizer on the host needs: give it in a "
            "--cluster file"
        )
    out_s, back_s = (copy_s(job, size * parameters) for size in (4, optimizer.weight_bytes))
    num_bytes = parameters * optimizer.host_traffic_bytes
    on_host_s = num_bytes / (HOST_EFFICIENCY * device.host_memory_bytes_per_s)
    if optimizer.overlap_cpu_optimizer_d2h_h2d:
        return max(out_s, on_host_s, on_device_s, back_s)
    return out_s + max(on_host_s, on_device_s) + back_s


def muon_flops(size: int, side: int, *, iterations: int = 5) -> float:
    """Return the FLOPs to orthogonalise a matrix of `size` entries with one side of length `side`.

    A Newton–Schulz iteration of an m × n matrix, m ≤ n, takes 4m²n + 2m³ (Jordan et al. 2024, five iterations).

    >>> muon_flops(6, 3)
    320.0
    """
    short, long = sorted((side, size / side))
    return iterations * (4.0 * short * short * long + 2.0 * short**3)


def _muon_flops(job: Job, layer: Layer, share: float, expert_share: float) -> float:
    matrices = [one for one in layer.linears(job.settings.cut) if one.is_orthogonalised and one.trainable]
    h, linears = layer.hidden_size, matrices
    of_experts = sum(one.count * muon_flops(one.size, h) for one in linears if one.kind == "routed")
    of_others = sum(muon_flops(one.size, h) for one in linears if one.kind != "routed")
    return of_others * share + of_experts * expert_share


def _sharing(
    job: Job, schedule: Schedule, stages: Sequence[Stage], held: Sequence[RankParameters]
) -> tuple[SharedGradients, ...]:
    """All-reduces of gradients among pipeline ranks: shared embeddings, conditional embedders, and model replicas.

    Replicas of a stage are data-parallel too (Li & Hoefler 2021, arXiv 2107.06925, §3.2). Each reduces its
    gradients among its dp · cp ranks. A rank's part is then summed over the replicas on other ranks; without
    ZeRO, this happens between the two halves of the all-reduce.
    """
    shared = []
    model, num_stages, of = job.model, schedule.num_model_stages, job.optimizer.bytes_of_gradient
    rank_of = schedule.stage_to_rank.tolist()
    with_table = {
        rank_of[index]
        for index, stage in enumerate(stages)
        if stage.embedding or stage.mtp or (stage.head and model.tied_embeddings)
    }
    if len(with_table) > 1 and model.trains("embedding"):
        vocab = padded_vocabulary(model.vocab_size, tp=job.layout.tp, multiple=job.vocab_multiple) // job.layout.tp
        table = vocab * (model.projected_size or model.hidden_size)
        shared.append(_sum_over(job, tuple(sorted(with_table)), table * of))
    ranks_of_all = tuple(dict.fromkeys(rank_of))
    if model.patches and len(ranks_of_all) > 1:
        conditioning = model.patches.conditioning_parameters(model.hidden_size)
        shared.append(_sum_over(job, ranks_of_all, conditioning * of))
    dense, expert = (_num_sharing(job, name) for name in _GROUPS)
    for stage, one in enumerate(held):
        ranks = tuple(dict.fromkeys(rank_of[stage::num_stages]))
        if len(ranks) > 1:
            shared.append(_sum_over(job, ranks, (one.trained / dense + one.trained_expert / expert) * of))
    return tuple(shared)


def _sum_over(job: Job, ranks: tuple[int, ...], num_bytes: float) -> SharedGradients:
    sizes = job.domain_sizes
    tier = max(tier_between(job.layout, sizes, ranks[0], other) for other in ranks[1:])
    extents = tuple(len(ranks) if index == tier else 1 for index in range(len(sizes)))
    found = collectives.seconds("all-reduce", num_bytes, RankGroup("embedding", len(ranks), extents), job.cluster)
    return SharedGradients(ranks, found)
