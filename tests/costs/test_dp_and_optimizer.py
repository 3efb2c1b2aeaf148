"""Collectives over data-parallel ranks."""

import pytest

import ppsim
from ppsim.costs.ledger import Ledger
from ppsim.costs.replica_collectives import replica_collective_s
from ppsim.machine import collectives
from ppsim.model.pipeline_stages import stages_of


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
