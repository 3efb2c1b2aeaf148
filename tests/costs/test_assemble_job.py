"""Rules and transfers of a job's stages."""

import math
from dataclasses import replace
from typing import Any

import pytest

from ppsim.base.errors import ScheduleError
from ppsim.catalog.build import build
from ppsim.costs import assemble_job as assemble_job_module
from ppsim.costs.assemble_job import (
    _balanced,
    _encoded_bytes,
    _hops,
    _max_in_flight,
    _require_backwards,
    _require_pairs,
    _why_not_in_megatron,
    assemble_job,
)
from ppsim.costs.job import Job
from ppsim.costs.ledger import Ledger
from ppsim.costs.pair_overlap import pair_s
from ppsim.costs.time_breakdown import work_of
from ppsim.machine.collectives import point_to_point_s
from ppsim.model.encoder import EncoderPart
from ppsim.model.pipeline_stages import stages_of, stages_of_layout
from tests.projection.jobs import job

FULL = "full recomputation (give --recompute none, or modules such as layernorm+moe_act)"


def moe(**execution: Any) -> Job:
    own = job("mixtral-8x7b", layers=8, ep=2, dp=2, pp=2)
    return replace(own, execution=replace(own.execution, **({"overlap_ep": "megatron"} | execution)))


@pytest.mark.parametrize(
    ("execution", "reason"),
    [
        ({}, None),
        ({"recompute": "full"}, FULL),
        ({"recompute": "block/2"}, FULL),
        ({"recompute": "uniform/2"}, FULL),
        ({"recompute": "full*1"}, FULL),
        ({"recompute": "moe"}, "--recompute moe (moe_act, layernorm and core_attn do)"),
        ({"recompute": "layernorm+moe_act"}, None),
        ({"dtype": "float32"}, "--dtype float32 (bfloat16 does)"),
        ({"moe_dispatcher": "allgather"}, "--moe-dispatcher allgather (alltoall does)"),
        ({"moe_dispatcher": "alltoall"}, None),
        ({"cuda_graphs": "attn+moe_router"}, None),
    ],
)
def test_megatron_overlaps_no_experts_of_these_jobs(execution: dict[str, Any], reason: str | None) -> None:
    assert _why_not_in_megatron(moe(**execution)) == reason


def test_pairs_need_experts_stages_and_a_schedule_with_pairs() -> None:
    own = moe()
    combined = build("combined-1f1b", pp=2, vpp=2, microbatches=4)
    _require_pairs(own, combined)
    with pytest.raises(ScheduleError, match="has no pairs of a forward and a backward"):
        _require_pairs(own, build("1f1b", pp=2, microbatches=4))
    with pytest.raises(ScheduleError, match="needs --ep above 1"):
        _require_pairs(replace(own, layout=replace(own.layout, ep=1)), combined)
    with pytest.raises(ScheduleError, match="does not go with --recompute moe"):
        _require_pairs(moe(recompute="moe"), combined)
    _require_pairs(moe(overlap_ep=0.5, recompute="moe"), build("1f1b", pp=2, microbatches=4))


def test_split_backwards_leave_nothing_on_the_host() -> None:
    own = job(layers=8, pp=2)
    split, whole = (build(name, pp=2, microbatches=4) for name in ("zb-h1", "1f1b"))
    _require_backwards(own, split)
    _require_backwards(replace(own, offload=0.5), whole)
    with pytest.raises(ScheduleError, match=r"leave out --offload$"):
        _require_backwards(replace(own, offload=0.5), split)
    with pytest.raises(ScheduleError, match=r"leave out --offload-modules$"):
        _require_backwards(replace(own, offload_modules="core_attn"), split)


@pytest.mark.parametrize(("layout", "divisor"), [({}, 1), ({"tp": 2}, 2), ({"cp": 2}, 2)])
def test_a_transfer_sends_the_hidden_states_of_a_rank(layout: dict[str, int], divisor: int) -> None:
    own = job(layers=8, pp=2, micro_batch=2, **layout)
    hops, by_link = _hops(own, build("1f1b", pp=2, microbatches=2), stages_of(own.model, [4, 4]))
    num_bytes = 2 * 4096 * 4096 * 2 / divisor
    link = own.cluster.tiers[0].p2p_link
    assert hops[0] == pytest.approx(point_to_point_s(num_bytes, link))
    assert by_link == {link.name: hops[0]}


def test_scattered_transfers_are_gathered_by_the_receivers() -> None:
    own = job(layers=8, pp=2, tp=2, scatter_gather=True)
    own = replace(own, execution=replace(own.execution, sequence_parallel=False))
    table, stages = build("1f1b", pp=2, microbatches=2), stages_of(own.model, [4, 4])
    whole, link = 4096 * 4096 * 2, own.cluster.tiers[0].p2p_link
    hops, _ = _hops(own, table, stages)
    assert hops[0] == pytest.approx(
        point_to_point_s(whole / 2, link) + own.place.seconds("all-gather", whole, "tp")
    )
    hops, _ = _hops(replace(own, scatter_gather=False), table, stages)
    assert hops[0] == pytest.approx(point_to_point_s(whole, link))


def test_the_assembled_stages_have_layers_parts_and_contents() -> None:
    own = job(layers=8, pp=2)
    found = assemble_job(own, build("1f1b", pp=2, microbatches=4), split=(3, 5))
    assert found.split == [3, 5]
    assert [part.forward.total_s for part in found.parts] == pytest.approx(list(found.costs.forward_s))
    assert found.costs.backward_s is None
    assert [part.backward_input.total_s for part in found.parts] == pytest.approx(
        list(found.costs.backward_input_s)
    )
    assert [part.backward_weight.total_s for part in found.parts] == pytest.approx(
        list(found.costs.backward_weight_s)
    )
    assert (found.layer_times, found.pair_host_s) == ([], None)


def test_pairs_of_stages_of_a_rank_hide_the_messages_that_others_do_not() -> None:
    own = moe()
    table = build("combined-1f1b", pp=2, vpp=2, microbatches=4)
    found = assemble_job(own, table, split="even")
    of_stage = Ledger(own).layer_times(stages_of(own.model, [2] * 4)[1])
    silent = [replace(one, launches=(0.0, 0.0), waits=(0.0, 0.0)) for one in of_stage]
    one, other = found.parts[1].forward, found.parts[3].backward
    together_s = pair_s(of_stage, of_stage, "megatron", slowdown=own.place.dispatch_slowdown)
    waits_s = together_s - pair_s(silent, silent, "megatron", slowdown=own.place.dispatch_slowdown)
    apart_s = sum(layer.forward_s + layer.backward_s for layer in of_stage)
    assert found.costs.fused_s[1][3] == pytest.approx(one.total_s + other.total_s + together_s - apart_s)
    waits_apart_s = sum(sum(layer.waits) for layer in of_stage)
    assert found.pair_host_s[1][3] == pytest.approx(one.host_s + other.host_s + waits_s - waits_apart_s)
    apart_s = found.parts[0].forward.total_s + found.parts[1].backward.total_s
    assert found.costs.fused_s[0][1] == pytest.approx(apart_s), "stages of two ranks are never a pair"
    host_s = found.parts[0].forward.host_s + found.parts[1].backward.host_s
    assert found.pair_host_s[0][1] == pytest.approx(host_s)
    assert found.pair_host_s.min() >= -1e-12


def test_forward_flops_are_a_third_of_the_model_flops_of_a_rank() -> None:
    one = job(tp=2, cp=2, dp=4, pp=2, micro_batch=2, global_batch=48)
    whole = one.model.training_flops(4096, causal=True) / 3 * 4096
    assert assemble_job(one, build("1f1b", pp=2, microbatches=6)).forward_flops == pytest.approx(whole * 2 / 4)


@pytest.mark.parametrize(
    ("recompute", "reason"),
    [
        ("none", None), ("layernorm+moe_act", None), ("full", "full recomputation"), ("block/2", "full recomputation"),
        ("uniform/2", "full recomputation"), ("mlp+moe", "--recompute moe"),
    ],
)  # fmt: skip
def test_megatron_overlaps_experts_without_full_recomputation_or_of_experts(
    recompute: str, reason: str | None
) -> None:
    found = _why_not_in_megatron(job("deepseek-v3", layers=8, recompute=recompute))
    assert (found is None) if reason is None else (found or "").startswith(reason)


def test_a_stage_before_the_embedding_sends_what_the_encoder_gives() -> None:
    """Encoder layers send hidden states of patches, its projector outputs; behind the embedding, nothing."""
    own = job("qwen3-vl-8b", pp=3, micro_batch=2, global_batch=6)
    [encoder] = own.model.encoders
    half = EncoderPart(encoder, 0, 5), EncoderPart(encoder, 5, len(encoder.layers))

    class OfParts:
        def __init__(self, parts: tuple[EncoderPart, ...], *, embedding: bool = False) -> None:
            self.parts, self.embedding = parts, embedding

        def encoder_parts(self, _: Any) -> tuple[EncoderPart, ...]:
            return self.parts

    stages: Any = [OfParts(half[:1]), OfParts(half[1:]), OfParts((), embedding=True)]
    inside = 2 * encoder.images * encoder.rows * encoder.layers[0].hidden_size * 2
    outputs = encoder.projector[-1].outputs
    sent = 2 * encoder.tokens * sum(one.outputs for one in encoder.projector if one.outputs == outputs) * 2
    assert [_encoded_bytes(own, stages, at) for at in range(3)] == [inside, sent, None]
    assert _encoded_bytes(own, [OfParts(()), *stages[1:]], 0) == 0.0


def test_ends_and_further_tokens_weigh_in_the_balance_of_stages() -> None:
    own = job("deepseek-v3", layers=8)
    seen: dict[str, Any] = {}
    layers = [work_of(own.costs.layer(layer)) for layer in own.model.layers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            assemble_job_module, "layer_split", lambda *args, **sizes: seen.update(sizes, args=args) or [8]
        )
        patch.setattr(assemble_job_module, "balance_ranks", lambda *args: seen.update(balanced=args) or [8])
        assert _balanced(own, 1, [[0]]) == [8]
    embedding, head = (work_of(end) for end in own.costs.ends)
    assert len(own.model.mtp) == 1
    mtp = work_of(own.costs.mtp(own.model.mtp[0]))
    assert seen["args"] == (pytest.approx(layers), 1)
    assert (seen["embedding_s"], seen["head_s"], seen["mtp_s"]) == pytest.approx((embedding, 2 * head, mtp))
    assert seen["balanced"][2] == pytest.approx((embedding, mtp + 2 * head))


def test_a_single_stage_has_the_microbatches_in_flight_of_its_schedule() -> None:
    assert _max_in_flight(build("gpipe", pp=1, microbatches=3)) == 3
    assert _max_in_flight(build("1f1b", pp=1, microbatches=3)) == 1
    assert _max_in_flight(build("seq1f1b", pp=1, microbatches=2, num_slices=4)) == pytest.approx(1)
    assert _max_in_flight(build("1f1b", pp=2, microbatches=3)) == math.inf


def test_megatron_needs_virtual_stages_and_at_most_one_further_token() -> None:
    own = moe()
    with pytest.raises(ScheduleError, match="--overlap-ep megatron with --pp above 1 needs virtual stages"):
        _require_pairs(own, build("1f1b", pp=2, microbatches=1))
    _require_pairs(own, build("1f1b", pp=1, microbatches=1))
    further = own.model.layers[-1]
    models = [replace(own, model=replace(own.model, mtp=(further,) * number)) for number in (1, 2)]
    assert [_why_not_in_megatron(one) for one in models] == [None, "more than one layer of multi-token prediction"]


def test_hidden_states_of_further_tokens_go_on_to_the_head() -> None:
    own = job("deepseek-v3", layers=4, pp=3)
    num_bytes, link = 4096 * 7168 * 2, own.cluster.tiers[0].p2p_link
    table = build("1f1b", pp=3, microbatches=3)
    for layout, tokens in ((["Ettt", "tm", "L"], [1, 2, 2]), (["E", "tttt", "mL"], [1, 1, 2])):
        hops, _ = _hops(own, table, stages_of_layout(own.model, layout))
        assert hops == pytest.approx([point_to_point_s(number * num_bytes, link) for number in tokens])
