"""Activations on the host: what it frees, what of the copies is seen, and where it cannot be."""

from dataclasses import replace

import pytest

import ppsim
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.costs.of_job import assemble_job
from ppsim.costs.of_layer import layer_costs_of
from ppsim.costs.offload import HOST_EFFICIENCY, NUM_BUFFERS
from ppsim.projection.budget import loss_budget
from ppsim.projection.plan import Plan
from ppsim.projection.project import project
from tests.projection.jobs import job


def test_a_part_of_every_microbatch_leaves_and_two_of_them_are_on_their_way() -> None:
    one = job(pp=4)
    table = ppsim.build("1f1b", pp=4, microbatches=8)
    here, away = (assemble_job(replace(one, offload=part), table).costs for part in (0.0, 0.5))
    for stage in range(4):
        whole = here.activation_bytes[stage]
        assert away.activation_bytes[stage] == pytest.approx(0.5 * whole)
        assert away.static_bytes[stage] - here.static_bytes[stage] == pytest.approx(NUM_BUFFERS * 0.5 * whole)


def test_modules_that_are_offloaded_leave_and_two_layers_of_them_are_on_their_way() -> None:
    """8 layers a stage of Llama 3 8B with 4,096 tokens: queries, keys, values and output have 6144 + 4096 columns."""
    one = job(pp=4)
    table = ppsim.build("1f1b", pp=4, microbatches=8)
    here, away = (
        assemble_job(replace(one, offload_modules=words), table, split="even")
        for words in ("", "core_attn+attn_proj")
    )
    of_layer = 4096 * 2 * (6144 + 4096)
    for stage in range(4):
        gone = here.costs.activation_bytes[stage] - away.costs.activation_bytes[stage]
        assert gone == here.split[stage] * of_layer
        assert away.costs.static_bytes[stage] - here.costs.static_bytes[stage] == NUM_BUFFERS * of_layer
    assert any("offload: what core_attn+attn_proj saves" in line for line in away.assumptions)


def test_a_copy_is_seen_as_far_as_it_is_longer_than_its_pass() -> None:
    one = job(pp=4)
    table = ppsim.build("1f1b", pp=4, microbatches=8)
    rate = 1e9  # a link so slow that both copies are longer than F and B
    slow = replace(
        one, offload=1.0, cluster=replace(one.cluster, device=replace(one.cluster.device, host_bytes_per_s=rate))
    )
    before, after = assemble_job(one, table), assemble_job(slow, table)
    for stage, (here, there) in enumerate(zip(before.parts, after.parts, strict=True)):
        copy = before.costs.activation_bytes[stage] / (rate * HOST_EFFICIENCY)
        assert there.forward.total_s == pytest.approx(max(copy, here.forward.total_s))
        assert there.backward.total_s == pytest.approx(max(copy, here.backward.total_s))
    made = project(Plan(pp=4, job=slow, schedule="1f1b"))
    assert loss_budget(made)["activations copied to the host and back"] > 0
    assert sum(loss_budget(made).values()) == pytest.approx(made.iteration_s)


def test_it_is_refused_where_it_cannot_be() -> None:
    one = job(pp=4)
    with pytest.raises(ConfigError, match=r"offload is a part from 0 to 1: got 1\.5"):
        replace(one, offload=1.5)
    with pytest.raises(ScheduleError, match="zb-h1 splits the backward"):
        assemble_job(replace(one, offload=0.5), ppsim.build("zb-h1", pp=4, microbatches=8))
    with pytest.raises(ConfigError, match="attn_projs"):
        ppsim.job(model="llama3-8b", gpus=8, offload_modules="attn_projs")
    with pytest.raises(ConfigError, match="leave out it or --offload-modules"):
        replace(one, offload=0.5, offload_modules="core_attn")
    with pytest.raises(ScheduleError, match="leave out --offload-modules"):
        assemble_job(replace(one, offload_modules="core_attn"), ppsim.build("zb-h1", pp=4, microbatches=8))
    bare = replace(one.cluster, device=replace(one.cluster.device, host_bytes_per_s=None))
    with pytest.raises(ConfigError, match="has no host_bytes_per_s"):
        assemble_job(replace(one, offload=0.5, cluster=bare), ppsim.build("1f1b", pp=4, microbatches=8))


def test_a_layer_more_keeps_what_is_not_offloaded_once() -> None:
    """What one more layer adds, by which splits are searched: half of it with half offloaded, not a quarter."""
    one = job(pp=4)
    whole, half = (layer_costs_of(replace(one, offload=part)).activation_bytes for part in (0.0, 0.5))
    assert half == pytest.approx(0.5 * whole)
