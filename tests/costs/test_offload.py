"""Activations on the host: what it frees, what of the copies is seen, and where it cannot be."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import ppsim
from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.costs.assemble_job import assemble_job
from ppsim.costs.job import Job
from ppsim.costs.layer_costs import layer_costs_of
from ppsim.costs.ledger import Ledger
from ppsim.costs.offload import HOST_EFFICIENCY, NUM_BUFFERS, _waits_s, buffer_bytes, copy_s, offload_of
from ppsim.costs.time_breakdown import CostEstimate, TimeBreakdown
from ppsim.model import offloading as offloading_module
from ppsim.model.offloading import Offload, OffloadRules
from ppsim.model.pipeline_stages import Stage
from ppsim.projection.loss_breakdown import loss_budget
from ppsim.projection.plan import Plan
from ppsim.projection.project import project
from tests.defaults import number_defaults
from tests.projection.jobs import job


def test_a_part_of_every_microbatch_leaves_and_two_of_them_are_on_their_way() -> None:
    one = job(pp=4)
    table = ppsim.build("1f1b", pp=4, microbatches=8)
    here, away = (assemble_job(replace(one, offload=part), table).costs for part in (0.0, 0.5))
    for stage in range(4):
        whole = here.activation_bytes[stage]
        assert away.activation_bytes[stage] == pytest.approx(0.5 * whole)
        assert away.static_bytes[stage] - here.static_bytes[stage] == pytest.approx(NUM_BUFFERS * 0.5 * whole)


@pytest.mark.parametrize(
    ("schedule", "part", "held"),
    [("1f1b", 0.25, 0.75), ("1f1b", 0.5, 0.5), ("1f1b", 1.0, 1 / 32), ("gpipe", 0.5, 1.5)],
)
def test_the_only_microbatch_in_flight_leaves_by_layer(schedule: str, part: float, held: float) -> None:
    """TransformerEngine, pytorch/cpu_offload.py: memory is "(num_layers - num_offloaded_layers) * T"."""
    one, table = job(pp=1), ppsim.build(schedule, pp=1, microbatches=4)
    here, away = (assemble_job(replace(one, offload=x), table).costs for x in (0.0, part))
    added = away.static_bytes[0] - here.static_bytes[0]
    assert away.activation_bytes[0] + added == pytest.approx(held * here.activation_bytes[0])


OF_LAYER = 4096 * 2 * (6144 + 4096)
"""Bytes of queries, keys, values and output of a layer of Llama 3 8B with 4,096 tokens."""

COPIED = OF_LAYER + 4096 * 2 * 4096
"""Attention and its output projection both save the output, so that it goes to the host twice."""


def away(**rules: Any) -> Job:
    """Return a job that offloads attention, by these rules."""
    return replace(job(pp=4), offload_modules="core_attn+attn_proj", offload_rules=OffloadRules(**rules))


def test_modules_that_are_offloaded_leave_and_the_copies_of_a_layer_are_back_ahead() -> None:
    table = ppsim.build("1f1b", pp=4, microbatches=8)
    here, there = (assemble_job(one, table, split="even") for one in (job(pp=4), away()))
    for stage in range(4):
        gone = here.costs.activation_bytes[stage] - there.costs.activation_bytes[stage]
        assert gone == here.split[stage] * OF_LAYER
        assert there.costs.static_bytes[stage] - here.costs.static_bytes[stage] == COPIED
    assert any("offload: what core_attn+attn_proj saves" in line for line in there.assumptions)


def test_a_fraction_of_the_modules_goes_those_of_the_first_layers() -> None:
    """8 layers of two modules are 16 groups; those that stay are rounded down (Megatron-LM)."""
    stage = Stage(job().model.layers[:8], offload_modules="core_attn+attn_proj")
    for fraction, layers in ((1.0, 8), (0.5, 4), (0.74, 6), (0.0, 0)):
        found = offload_of(away(activation_offload_fraction=fraction), stage, 0.0)
        assert found.freed == layers * OF_LAYER
        assert sum(map(bool, found.copied)) == layers == sum(map(bool, found.copied[:layers]))


def test_if_some_modules_stay_all_others_of_the_next_backward_are_back_ahead() -> None:
    """Each module that a backward leaves behind it brings one back, those that stay too: Megatron-LM's own manager,
    run on a CPU, has the same peaks. So half on the host can take more memory than nothing there."""
    stage = Stage(job().model.layers[:8], offload_modules="core_attn+attn_proj")
    whole, half = (offload_of(away(activation_offload_fraction=part), stage, 0.0) for part in (1.0, 0.5))
    assert (whole.ahead, whole.ahead_in_forward) == (COPIED, COPIED)
    assert half.ahead_in_forward == 4 * COPIED
    assert half.ahead == 2 * 4 * COPIED - 4 * OF_LAYER
    last = replace(stage, head=True)
    whole, half = (offload_of(away(activation_offload_fraction=part), last, 0.0) for part in (1.0, 0.5))
    assert (whole.ahead_in_forward, half.ahead_in_forward) == (0, 0)
    assert half.ahead == 4 * COPIED - 4 * OF_LAYER


def test_tensors_below_the_smallest_size_stay() -> None:
    stage = Stage(job().model.layers[:8], offload_modules="core_attn+attn_proj")
    for smallest, freed in ((4096 * 4096, 4096 * 2 * (4096 + 4096)), (4096 * 4096 + 1, 0)):
        found = offload_of(away(min_offloaded_tensor_size=smallest), stage, 0.0)
        assert found.freed == 8 * freed


def test_the_last_layer_is_not_copied_if_its_backward_follows_at_once() -> None:
    layers, one = job().model.layers[:8], away()
    first, last = (
        offload_of(one, Stage(layers, head=head, offload_modules=one.offload_modules), 0.0)
        for head in (False, True)
    )
    assert first.copied == (COPIED,) * 8
    assert last.copied == (*(COPIED,) * 7, 0.0)
    assert first.freed == last.freed


def test_a_forward_waits_for_copies_only_if_their_number_is_limited() -> None:
    """With 0 it waits for each; with n, for all but the last n, as far as the layers after them do not cover it."""
    table = ppsim.build("1f1b", pp=4, microbatches=8)
    waits, copied_s = [], copy_s(slow := away_on_a_slow_link(), 8 * COPIED)
    for allowed in (0, 1, 7, 8, None):
        one = replace(slow, offload_rules=OffloadRules(max_inflight_offloads=allowed))
        waits.append(assemble_job(one, table, split="even").parts[1].forward.offload_s)
    f_s = assemble_job(slow, table, split="even").parts[1].forward.total_s / 8
    assert waits[0] == pytest.approx(copied_s)
    assert waits[1] == pytest.approx(copied_s * 7 / 8 - 7 * f_s, rel=0.01)
    assert waits[0] > waits[1] > waits[2] > waits[3] == waits[4] == 0


def away_on_a_slow_link() -> Job:
    """Return a job whose copies take longer than its passes."""
    one = away()
    return replace(one, cluster=replace(one.cluster, device=replace(one.cluster.device, host_bytes_per_s=2e9)))


def test_a_backward_waits_for_copies_that_are_longer_and_the_last_stage_for_those_out_too() -> None:
    table, slow = ppsim.build("1f1b", pp=4, microbatches=8), away_on_a_slow_link()
    before, after = (assemble_job(one, table, split="even").parts for one in (job(pp=4), slow))
    copied_s = copy_s(slow, 8 * COPIED)
    assert after[1].backward.total_s == pytest.approx(copied_s)
    copied_s *= 7 / 8
    assert after[3].backward.total_s == pytest.approx(copied_s + copied_s - before[3].forward.total_s)


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
    assert loss_budget(made)["activation offload"] > 0
    assert sum(loss_budget(made).values()) == pytest.approx(made.iteration_time_s)


def test_it_is_refused_where_it_cannot_be() -> None:
    one = job(pp=4)
    with pytest.raises(ConfigError, match=r"--offload is a part from 0 to 1: got 1\.5"):
        replace(one, offload=1.5)
    with pytest.raises(ScheduleError, match="zb-h1 splits the backward"):
        assemble_job(replace(one, offload=0.5), ppsim.build("zb-h1", pp=4, microbatches=8))
    with pytest.raises(ConfigError, match="attn_projs"):
        ppsim.job(model="llama3-8b", stack="plain", gpus=8, offload_modules="attn_projs")
    with pytest.raises(ConfigError, match="leave out it or --offload-modules"):
        replace(one, offload=0.5, offload_modules="core_attn")
    with pytest.raises(ScheduleError, match="leave out --offload-modules"):
        assemble_job(replace(one, offload_modules="core_attn"), ppsim.build("zb-h1", pp=4, microbatches=8))
    for rules, sentence in (
        ({"min_offloaded_tensor_size": -1}, "--min-offloaded-tensor-size is 0 or more elements: got -1"),
        ({"activation_offload_fraction": 1.5}, "--activation-offload-fraction is a part from 0 to 1: got 1.5"),
        ({"max_inflight_offloads": -2}, "--max-inflight-offloads is 0 or more copies: got -2"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            ppsim.job(model="llama3-8b", stack="plain", gpus=8, offload_modules="core_attn", **rules)
    bare = replace(one.cluster, device=replace(one.cluster.device, host_bytes_per_s=None))
    with pytest.raises(ConfigError, match="has no host_bytes_per_s"):
        assemble_job(replace(one, offload=0.5, cluster=bare), ppsim.build("1f1b", pp=4, microbatches=8))


def test_a_layer_more_keeps_what_is_not_offloaded_once() -> None:
    """What one more layer adds, by which splits are searched: half of it with half offloaded, not a quarter."""
    one = job(pp=4)
    whole, half = (layer_costs_of(Ledger(replace(one, offload=part))).activation_bytes for part in (0.0, 0.5))
    assert half == pytest.approx(0.5 * whole)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"max_inflight_offloads": 2}, "--offload-modules: give modules"),
        ({"activation_offload_fraction": 0.5, "offload": 0.5}, "--offload-modules: give modules"),
        ({"overlap_cpu_optimizer_d2h_h2d": True}, "--optimizer-offload-fraction: give both"),
        ({"offload_modules": "fused_group_mlp"}, "fused_group_mlp goes with --fused-experts"),
        ({"offload_modules": "moe_act+fused_group_mlp", "fused_experts": True}, "without expert_fc1 and moe_act"),
    ],
)
def test_rules_of_offloading_are_refused_where_nothing_is_offloaded(words, told) -> None:
    with pytest.raises(ConfigError, match=told):
        ppsim.job(model="llama3-8b", stack="plain", gpus=8, pp=2, **words)


def test_a_stage_without_the_offloaded_modules_waits_for_no_copy() -> None:
    """The first 7 layers of Nemotron-H 8B are Mamba and MLP."""
    words: dict[str, Any] = {"offload_modules": "core_attn+attn_proj", "max_inflight_offloads": 0}
    words |= {"model": "nemotron-h-8b", "gpus": 4, "pp": 4, "seq_len": 2048, "stack": "plain"}
    assert ppsim.project(**words, split=[7, 15, 15, 15]).iteration_time_s > 0


@pytest.mark.parametrize(
    ("part", "ahead", "buffers"), [(0.0, 3.0, 9 + 7 - 6), (0.0, 12.0, 12), (0.0, 0.0, 0), (0.5, 3.0, 3)]
)
def test_a_peak_is_in_a_backward_or_in_the_forward_whose_copies_are_under_way(
    part: float, ahead: float, buffers: float
) -> None:
    """Two stages of a rank: at most 9 bytes are under way in a forward that has 7, of which a backward has 6."""
    offloads: Any = [
        SimpleNamespace(ahead=ahead, ahead_in_forward=9.0, forward=2.0),
        SimpleNamespace(ahead=0.0, ahead_in_forward=1.0, forward=7.0),
    ]
    assert buffer_bytes(replace(job(layers=4), offload=part), 6.0, offloads) == buffers


def test_what_is_left_out_in_model_offloading_has_these_values() -> None:
    assert number_defaults(offloading_module) == {
        "OffloadRules": {"min_offloaded_tensor_size": 1048576, "activation_offload_fraction": 1.0},
        "Offload": {"freed": 0.0, "ahead": 0.0, "ahead_in_forward": 0.0, "forward": 0.0},
    }  # fmt: skip


@pytest.mark.parametrize(("layers", "ahead"), [(0, 75.0), (1, 75.0), (2, 25.0), (4, 0.0), (5, 0.0)])
def test_a_stage_with_one_microbatch_in_flight_holds_a_layer_at_least(layers: int, ahead: float) -> None:
    """Of 100 bytes 75 leave and 25 stay, as much as one of four layers."""
    own = job(offload=0.75)
    stage = Stage(own.model.layers[:layers])
    assert offload_of(own, stage, 100.0, by_layer=True) == Offload(75.0, (75.0,), ahead, ahead)
    assert offload_of(own, stage, 100.0) == Offload(75.0, (75.0,), 150.0, 150.0)


@pytest.mark.parametrize(
    ("allowed", "copies", "waited_s"),
    [
        # A layer takes 1 s, a copy 3 s. Each waits for its copy.
        (0, (3, 3, 3), 9.0),
        # The second layer is done at 2 s and waits for the first copy until 4 s, the third from 5 s until 7 s.
        (1, (3, 3, 3), 4.0),
        (1, (3, 0, 3), 1.0),
        (2, (3, 3, 3), 1.0),
        (3, (3, 3, 3), 0.0),
        (None, (3, 3, 3), 0.0),
        (0, (), 0.0),
    ],
)
def test_a_forward_waits_for_copies_beyond_those_in_flight(
    allowed: int | None, copies: tuple[int, ...], waited_s: float
) -> None:
    own = away(max_inflight_offloads=allowed)
    num_bytes = 1 / copy_s(own, 1.0)
    costs = [CostEstimate(TimeBreakdown(memory_s=1.0), TimeBreakdown(), TimeBreakdown())] * len(copies)
    copied = tuple(seconds * num_bytes for seconds in copies)
    assert _waits_s(own, costs, Offload(copied=copied)) == pytest.approx(waited_s)


def test_copies_take_their_bytes_at_four_fifths_of_the_line_rate() -> None:
    own = job()
    assert own.cluster.device.host_bytes_per_s is not None
    assert copy_s(own, 7.0) == pytest.approx(7.0 / (0.8 * own.cluster.device.host_bytes_per_s))
    assert NUM_BUFFERS == 2
