"""Collectives of data-parallel ranks: parameters and gradients of a stage."""

from typing import Literal, TypeAlias

from ppsim.costs.job import Job
from ppsim.machine import collectives
from ppsim.model.parameters import RankParameters
from ppsim.model.pipeline_stages import Stage

ReplicaGroup: TypeAlias = Literal["dp-cp", "expert-dp"]
GROUPS: tuple[ReplicaGroup, ...] = ("dp-cp", "expert-dp")


def replica_collective_s(job: Job, parameters: RankParameters, operation: collectives.Operation) -> float:
    return sum(replica_collectives_s(job, parameters, operation).values())


def replica_collectives_s(
    job: Job, parameters: RankParameters, operation: collectives.Operation
) -> dict[ReplicaGroup, float]:
    """ZeRO 3 gathers frozen weights too, and only primary weights are gathered in 8 or 4 bits."""
    optimizer, held = job.optimizer, parameters
    sizes: list[float] = [count * optimizer.bytes_of_gradient for count in (held.trained, held.trained_expert)]
    if operation == "all-gather":
        trained_experts = 0 if held.frozen_expert else held.expert_gemms
        counts = [(held.trained, min(held.matrices, held.gemms)), (held.trained_expert, trained_experts)]
        if optimizer.zero_stage == 3:
            counts = [(held.dense, held.gemms), (held.expert, held.expert_gemms)]
        of_gemms = job.settings.gathered_bytes
        sizes = [(count - gemms) * optimizer.weight_bytes + gemms * of_gemms for count, gemms in counts]
    return {
        name: _among_instances_s(job, operation, size, name)
        for size, name in zip(sizes, GROUPS, strict=True)
        if size
    }


def _among_instances_s(job: Job, operation: collectives.Operation, num_bytes: float, name: ReplicaGroup) -> float:
    """A collective within a distributed-optimizer instance; gradients are then summed over instances."""
    group = job.place.ranks(name)
    inner, outer = group.instances(job.optimizer.instances_among(group.num_ranks))
    seconds = collectives.seconds(operation, num_bytes, inner, job.cluster)
    if operation == "all-gather" or outer.num_ranks == 1:
        return seconds
    return seconds + collectives.seconds("all-reduce", num_bytes / inner.num_ranks, outer, job.cluster)


def num_sharing(job: Job, name: ReplicaGroup) -> int:
    num_ranks = job.place.ranks(name).num_ranks
    return job.optimizer.ranks_of_state(num_ranks)


def passes_s(job: Job, held: RankParameters) -> tuple[float, float]:
    """Return seconds per pass to gather a stage's parameters and to reduce its gradients."""
    zero = job.optimizer.zero_stage
    gather_s = replica_collective_s(job, held, "all-gather") if zero == 3 else 0.0
    return gather_s, replica_collective_s(job, held, "reduce-scatter") if zero >= 2 else 0.0


def per_step_s(job: Job, held: RankParameters) -> tuple[float, float]:
    """Return seconds per step to gather a stage's parameters and to reduce its gradients.

    Up to ZeRO 1, gradients are reduced once per step; from ZeRO 2 on, every backward reduces its own. Parameters
    are gathered once per step in ZeRO 1 and 2, and for every pass in ZeRO 3.
    """
    zero = job.optimizer.zero_stage
    operation: collectives.Operation = "reduce-scatter" if zero else "all-reduce"
    reduce_s = replica_collective_s(job, held, operation) if zero < 2 else 0.0
    return replica_collective_s(job, held, "all-gather") if zero in (1, 2) else 0.0, reduce_s


def num_buckets(job: Job, stage: Stage, held: RankParameters) -> float:
    """Return 1 / the fraction of a stage's collectives per step that overlapped compute does not hide.

    A bucket of Megatron-LM closes after a whole tensor. The bucket that is reduced last and gathered first has the
    embedding table, and half a bucket of other tensors on average; with 8-bit parameters also an output table
    (core/distributed/param_and_grad_buffer.py at d98e8a64: `partition_buckets`). Buckets of stages without an
    embedding are equal.
    """
    optimizer, trained = job.optimizer, held.trained + held.trained_expert
    size = job.bucket_size or max(40_000_000, 1_000_000 * job.layout.dp * job.layout.cp)
    if optimizer.zero_stage < 2 and stage.embedding and trained:
        model = job.model
        tables = model.trains("embedding") + (
            optimizer.fp8_param_gather and stage.head and not model.tied_embeddings and model.trains("head")
        )
        table = model.table(job.settings.vocabulary_of(model))
        return trained / min(trained, min(trained, tables * table) + size / 2)
    return max(1, -(-trained // size))


def slowed_s(job: Job, held: RankParameters, hidden: float) -> tuple[float, float]:
    """Return the seconds per step that a stage's forwards and backwards take longer while NCCL holds SMs.

    `hidden` is the fraction of the all-gather, and of the reduction, during which the stage computes.
    """
    zero = job.optimizer.zero_stage

    def slower_s(operation: collectives.Operation) -> float:
        seconds = replica_collectives_s(job, held, operation).items()
        return hidden * sum(job.place.held_cores(group) * of_group for group, of_group in seconds)

    return (
        slower_s("all-gather") if zero == 1 and job.overlap_param_gather else 0.0,
        slower_s("reduce-scatter" if zero else "all-reduce") if job.overlap_grad_reduce else 0.0,
    )
