"""Step costs outside the pipeline: data-parallel collectives, shared embeddings, gradient norm and optimizer."""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.costs.job import Job
from ppsim.costs.ledger import Ledger, RankSums
from ppsim.costs.offload import HOST_EFFICIENCY, copy_s
from ppsim.costs.replica_collectives import GROUPS, ReplicaGroup, num_sharing
from ppsim.costs.stage_cost_set import values_of_ranks
from ppsim.costs.time_breakdown import TimeBreakdown
from ppsim.machine import collectives
from ppsim.machine.cluster import Device
from ppsim.model.parameters import RankParameters
from ppsim.model.pipeline_stages import Stage
from ppsim.parallel.groups import RankGroup, all_devices, tier_between
from ppsim.schedule.table import Schedule
from ppsim.simulation.step import SharedGradients, StepCosts

NORM_BYTES = 4
"""The gradient norm reads each gradient once."""


def step_costs(job: Job, schedule: Schedule, stages: Sequence[Stage], ledger: Ledger | None = None) -> StepCosts:
    """Costs per step of all stages and ranks of the schedule."""
    device, replicas, ledger = job.cluster.device, schedule.num_replicas, ledger or Ledger(job)
    sums, ranks = ledger.stages(stages), ledger.ranks(values_of_ranks(schedule, stages))
    gather_s, reduce_s = zip(*(stage.per_step_s for stage in sums), strict=True)
    norm_s = max(sum(_parts_of_replica(job, rank)) for rank in ranks) * NORM_BYTES
    norm_s /= device.memory_bytes_per_s * device.efficiency.memory
    everyone = all_devices(job.layout, job.place.domain_sizes)
    deferred = [_deferred(job, rank) for rank in ranks]
    return StepCosts(
        gather_s=np.tile(gather_s, replicas),
        reduce_s=np.tile(reduce_s, replicas),
        num_buckets=np.tile([stage.num_buckets for stage in sums], replicas),
        overlap_gather=job.overlap_param_gather,
        overlap_reduce=job.overlap_grad_reduce,
        deferred_s=[part.total_s for part in deferred],
        deferred_ideal_s=sum(part.ideal_s for part in deferred) / len(ranks),
        sharing=_sharing(job, schedule, stages, [stage.held for stage in sums]),
        norm_s=norm_s + collectives.seconds("all-reduce", 4.0, everyone, job.cluster),
        optimizer_s=[update_s(job, rank) for rank in ranks],
        update=job.update,
        rest_s=job.rest_s,
        straggling=device.efficiency.jitter * expected_maximum(num_independent(job)),
    )


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


def _share(job: Job, name: ReplicaGroup, num_layers: float) -> float:
    """Return the part of a rank's optimizer state that it holds and updates itself."""
    if job.optimizer.zero_stage == 0:
        return 1.0
    num_ranks = num_sharing(job, name)
    if not job.optimizer.layer_wise or num_layers == 0:
        return 1 / num_ranks
    return math.ceil(num_layers / num_ranks) / num_layers


def _deferred(job: Job, rank: RankSums) -> TimeBreakdown:
    """Time of the output layer's weight gradients after a rank's last backward pass.

    Megatron-LM, core/pipeline_parallel/schedules.py, `finish_embedding_wgrad_compute`. A backward that was measured
    whole defers nothing.
    """
    _, head = job.costs.ends
    if head.whole_backward is not None:
        return TimeBreakdown()
    return head.backward_weight * (job.num_deferred * rank.num_heads * (1 + len(job.model.mtp)))


def _parts_of_replica(job: Job, rank: RankSums) -> tuple[float, float]:
    held, of_experts = rank.held, _share(job, "expert-dp", rank.num_layers)
    return held.trained * _share(job, "dp-cp", rank.num_layers), held.trained_expert * of_experts


def update_s(job: Job, rank: RankSums) -> float:
    """Seconds of the optimizer on a rank."""
    optimizer, device = job.optimizer, job.place.device
    traffic = optimizer.traffic_bytes
    dense, expert = _parts_of_replica(job, rank)
    if optimizer.name == "adam":
        on_host = optimizer.offload_fraction * (dense + expert)
        on_device_s = optimizer_s(device, dense + expert - on_host, bytes_per_parameter=traffic)
        return on_device_s if not on_host else update_on_host_s(job, on_host, on_device_s)
    of_matrix = traffic - 2 * (optimizer.state_bytes() - optimizer.state_bytes(is_matrix=True))
    of_dense, of_experts = (_share(job, name, rank.num_layers) for name in GROUPS)
    matrices = rank.held.matrices * of_dense + expert
    moved_s = optimizer_s(device, matrices, bytes_per_parameter=of_matrix)
    moved_s += optimizer_s(device, dense + expert - matrices, bytes_per_parameter=traffic)
    dense_flops, expert_flops = rank.muon_flops
    flops = dense_flops * of_dense + expert_flops * of_experts
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
        table = model.table(job.settings.vocabulary_of(model))
        shared.append(_sum_over(job, tuple(sorted(with_table)), table * of))
    ranks_of_all = tuple(dict.fromkeys(rank_of))
    if (conditioning := model.outside_parameters("conditions")) and len(ranks_of_all) > 1:
        shared.append(_sum_over(job, ranks_of_all, conditioning * of))
    dense, expert = (num_sharing(job, name) for name in GROUPS)
    for stage, one in enumerate(held):
        ranks = tuple(dict.fromkeys(rank_of[stage::num_stages]))
        if len(ranks) > 1:
            shared.append(_sum_over(job, ranks, (one.trained / dense + one.trained_expert / expert) * of))
    return tuple(shared)


def _sum_over(job: Job, ranks: tuple[int, ...], num_bytes: float) -> SharedGradients:
    sizes = job.place.domain_sizes
    tier = max(tier_between(job.layout, sizes, ranks[0], other) for other in ranks[1:])
    extents = tuple(len(ranks) if index == tier else 1 for index in range(len(sizes)))
    seconds = collectives.seconds("all-reduce", num_bytes, RankGroup("embedding", len(ranks), extents), job.cluster)
    return SharedGradients(ranks, seconds)
