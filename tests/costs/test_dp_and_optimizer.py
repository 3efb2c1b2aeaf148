"""Collectives over data-parallel ranks."""

from dataclasses import replace

import pytest

import ppsim
from ppsim.costs.dp_and_optimizer import _deferred
from ppsim.costs.ledger import Ledger
from ppsim.costs.replica_collectives import num_buckets, passes_s, per_step_s, replica_collective_s
from ppsim.machine import collectives
from ppsim.model.pipeline_stages import Stage, stages_of
from tests.projection.jobs import job as job_of


def test_instances_all_reduce_the_shards_of_the_gradients_not_the_whole() -> None:
    """Hybrid sharding: a reduce-scatter within each instance, then each rank sums its shard over the instances."""
    job = ppsim.job(model="llama3-8b", stack="plain", gpus=16, num_distributed_optimizer_instances=2)
    parameters = Ledger(job).stages(stages_of(job.model, [len(job.model.layers)]))[0].held
    inner, outer = job.place.ranks("dp-cp").instances(2)
    num_bytes = parameters.trained * job.optimizer.bytes_of_gradient
    within_s = collectives.seconds("reduce-scatter", num_bytes, inner, job.cluster)
    between_s = collectives.seconds("all-reduce", num_bytes / 8, outer, job.cluster)
    assert (inner.num_ranks, outer.num_ranks) == (8, 2)
    assert replica_collective_s(job, parameters, "reduce-scatter") == pytest.approx(within_s + between_s)


def test_each_zero_stage_gathers_and_reduces_once_per_step_or_in_each_pass() -> None:
    """2 bytes per gathered parameter, 4 per reduced gradient; an all-reduce without ZeRO."""
    job = ppsim.job(model="llama3-8b", stack="plain", gpus=8)
    held = Ledger(job).stages(stages_of(job.model, [32]))[0].held
    group = job.place.ranks("dp-cp")
    gather_s, scatter_s, reduce_s = (
        collectives.seconds(operation, num_bytes * held.dense, group, job.cluster)
        for operation, num_bytes in (("all-gather", 2), ("reduce-scatter", 4), ("all-reduce", 4))
    )
    for zero, in_passes, in_step in (
        (0, (0.0, 0.0), (0.0, reduce_s)), (1, (0.0, 0.0), (gather_s, scatter_s)),
        (2, (0.0, scatter_s), (gather_s, 0.0)), (3, (gather_s, scatter_s), (0.0, 0.0)),
    ):  # fmt: skip
        staged = replace(job, optimizer=replace(job.optimizer, zero_stage=zero))
        assert passes_s(staged, held) == pytest.approx(in_passes), zero
        assert per_step_s(staged, held) == pytest.approx(in_step), zero


def test_frozen_parameters_are_gathered_in_zero_3_only_and_never_reduced() -> None:
    job = ppsim.job(model="mixtral-8x7b", stack="plain", gpus=16, ep=8, lora="16")
    held = Ledger(job).stages(stages_of(job.model, [32]))[0].held
    dense, expert = job.place.ranks("dp-cp"), job.place.ranks("expert-dp")
    assert (dense.num_ranks, expert.num_ranks) == (16, 2)

    def seconds(operation: collectives.Operation, of_dense: int, of_expert: int) -> float:
        sizes = zip((of_dense, of_expert), (dense, expert), strict=True)
        return sum(collectives.seconds(operation, size, group, job.cluster) for size, group in sizes if size)

    trained, trained_expert = held.trained, held.trained_expert
    assert 0 < trained < held.dense / 10
    assert trained_expert < held.expert / 10
    assert per_step_s(job, held) == pytest.approx(
        (
            seconds("all-gather", 2 * trained, 2 * trained_expert),
            seconds("reduce-scatter", 4 * trained, 4 * trained_expert),
        )
    )
    in_zero_3 = replace(job, optimizer=replace(job.optimizer, zero_stage=3))
    assert passes_s(in_zero_3, held)[0] == pytest.approx(seconds("all-gather", 2 * held.dense, 2 * held.expert))


def test_the_exposed_bucket_has_the_embedding_and_half_a_bucket() -> None:
    """With 8-bit parameters, the output table too."""
    for options, tables in (
        ({"gpus": 8}, 1),
        ({"gpus": 16, "tp": 4}, 1),
        ({"gpus": 8, "dtype": "float8", "fp8_param_gather": True}, 2),
        ({"gpus": 8, "bucket_size": 10**9}, 1),
    ):
        job = ppsim.job(model="llama3-8b", stack="plain", zero=1, **options)
        [sums] = Ledger(job).stages(stages_of(job.model, [32]))
        bucket = options.get("bucket_size", 40_000_000)
        last = tables * 128256 * 4096 / options.get("tp", 1) + bucket / 2
        assert 1 / sums.num_buckets == pytest.approx(last / sums.held.dense, rel=0.01)


@pytest.mark.parametrize(
    ("options", "channels", "operations"),
    [
        ({"gpus": 8}, 16, (1, 1)),
        ({"gpus": 16}, 16, (1, 1)),
        ({"gpus": 16, "tp": 4}, 4, (1, 1)),  # two ranks per node, two channels each
        ({"gpus": 8, "overlap_param_gather": False}, 16, (0, 1)),
        ({"gpus": 8, "overlap_grad_reduce": False, "overlap_param_gather": False}, 16, (0, 0)),
        ({"gpus": 8, "zero": 0}, 16, (0, 1)),
    ],
)
def test_the_sms_of_nccl_slow_the_compute_that_hides_the_other_buckets(options, channels, operations) -> None:
    job = ppsim.job(model="llama3-8b", stack="plain", **{"zero": 1, "global_batch": 128} | options)
    [sums] = Ledger(job).stages(stages_of(job.model, [32]))
    alone = Ledger(job).estimate(sums.stage)
    hidden = (1 - 1 / sums.num_buckets) * channels / 132 / job.num_microbatches
    gather_s, reduce_s = (
        hidden * is_hidden * seconds for is_hidden, seconds in zip(operations, sums.per_step_s, strict=True)
    )
    assert sums.costs.forward.total_s - alone.forward.total_s == pytest.approx(gather_s)
    assert sums.costs.backward.total_s - alone.backward.total_s == pytest.approx(reduce_s)
    assert sums.costs.backward_input.total_s == alone.backward_input.total_s


def test_two_stages_on_a_rank_are_slowed_as_one() -> None:
    """The SMs are held for as long, however a rank's layers are divided."""
    job = ppsim.job(model="llama3-8b", stack="plain", zero=1, gpus=8)

    def slower_s(*layers: int) -> float:
        ledger = Ledger(job)
        pairs = [(sums.costs, ledger.estimate(sums.stage)) for sums in ledger.stages(stages_of(job.model, layers))]
        return sum(slowed.backward.total_s - alone.backward.total_s for slowed, alone in pairs)

    assert slower_s(16, 16) == pytest.approx(slower_s(32), rel=0.02)


def test_stages_without_embedding_have_equal_buckets_of_40_million() -> None:
    job = ppsim.job(model="llama3-8b", stack="plain", gpus=1, zero=1)
    held = Ledger(job).stages(stages_of(job.model, [32]))[0].held
    for trained, number in ((0, 1), (1, 1), (40_000_000, 1), (40_000_001, 2), (120_000_000, 3)):
        assert num_buckets(job, Stage(()), replace(held, dense=trained, expert=0, frozen=0)) == number


@pytest.mark.parametrize(("limit", "deferred"), [({}, 0), ({"wgrad_deferral_limit": 3}, 3)])
def test_the_rank_with_the_head_ends_with_its_deferred_weight_gradients(
    limit: dict[str, int], deferred: int
) -> None:
    job = job_of(layers=4, pp=2, global_batch=8, **limit)
    assert job.num_deferred == deferred
    first, last = Ledger(job).ranks([[stage] for stage in stages_of(job.model, [2, 2])])
    head_s = job.costs.ends[1].backward_weight.total_s
    assert (_deferred(job, first).total_s, _deferred(job, last).total_s) == pytest.approx((0, deferred * head_s))
