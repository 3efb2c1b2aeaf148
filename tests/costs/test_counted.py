"""FLOPs, bytes and messages of the parts of a model, counted by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.costs.analytic import (
    _exchanged_s,
    _exposed_ring_s,
    end_estimate,
    parts_of,
)
from ppsim.costs.cores import _of_last, core_of
from ppsim.costs.pass_kernels import PassKernels
from ppsim.machine.collectives import point_to_point_s
from ppsim.machine.kernels.times import KernelTime
from ppsim.model.architecture import Model
from ppsim.model.conditioning import Patches
from ppsim.model.fine_tuning import fine_tuning_of
from ppsim.model.registry import find_model
from ppsim.model.shapes import LayerShape, layer_of
from tests.costs.counted import counted

H, VOCAB, TOKENS = 64, 1000, 2 * 128
SHAPE = {"micro_batch": 2, "sequence_length": 128}
LAYER = layer_of(LayerShape("llama", hidden_size=H, num_heads=8, num_kv_heads=2, head_size=8, ffn_size=96))
MODEL = Model((LAYER,) * 2, VOCAB, 128)
MESSAGE = TOKENS * H * 2  # bytes


def without(model: Model, frozen: str) -> Model:
    """Return the model with frozen weights."""
    return model.with_fine_tuning(fine_tuning_of("", frozen))


@pytest.mark.parametrize(
    ("execution", "forward", "backward"),
    [
        ({}, 4 * 2, 2 * 2),
        ({"cross_entropy": "unfused"}, 32, 12),
        ({"cross_entropy": "unfused", "dtype": "float32"}, 26, 8),
        ({"cross_entropy": "unfused", "deterministic_mode": True}, 36, 14),
        ({"cross_entropy": "compiled"}, 22, 18),
        ({"cross_entropy": "chunked"}, 32, 12),
    ],
)
def test_a_head_passes_over_the_logits_and_norms_twice_and_three_times(
    execution: dict[str, Any], forward: int, backward: int
) -> None:
    e = 4 if execution.get("dtype") == "float32" else 2
    found = end_estimate(MODEL, "head", counted(**execution), **SHAPE)
    assert found.forward.memory_s == pytest.approx(2 * TOKENS * H * e + forward * TOKENS * VOCAB)
    assert found.backward_input.memory_s == pytest.approx(3 * TOKENS * H * e + backward * TOKENS * VOCAB)
    assert found.backward_weight.memory_s == 0
    for part in (found.forward, found.backward_input, found.backward_weight):
        assert part.ideal_s + part.more_flops_s == pytest.approx(2 * TOKENS * H * VOCAB)


@pytest.mark.parametrize(
    ("execution", "forward", "backward"),
    [
        ({}, 2, 1),
        ({"cross_entropy": "unfused"}, 8, 3),
        ({"cross_entropy": "unfused", "deterministic_mode": True}, 9, 4),
        ({"cross_entropy": "compiled"}, 3, 3),
        ({"cross_entropy": "chunked"}, 64, 24),
    ],
)
def test_the_host_launches_the_loss_with_a_gemm_and_a_norm(
    execution: dict[str, Any], forward: int, backward: int
) -> None:
    place = counted(**execution)
    slow = replace(place.cluster.device.efficiency, host_s=1e12)
    place = replace(place, cluster=replace(place.cluster, device=replace(place.cluster.device, efficiency=slow)))
    found = end_estimate(MODEL, "head", place, **SHAPE)
    assert found.forward.host_s == pytest.approx(1e12 * (forward + 2), rel=1e-2)
    assert found.backward_input.host_s == pytest.approx(1e12 * (backward + 2), rel=1e-2)
    graphs = replace(place, execution=replace(place.execution, cuda_graphs="full"))
    assert end_estimate(MODEL, "head", graphs, **SHAPE).forward.host_s == 0


def test_tensor_parallel_ranks_have_columns_of_a_padded_vocabulary() -> None:
    found = end_estimate(MODEL, "head", counted(layout={"tp": 4}, vocab_multiple=128), **SHAPE)
    columns = 1024 // 4
    assert found.forward.memory_s == pytest.approx(2 * MESSAGE + 8 * TOKENS * columns)
    assert found.backward_weight.ideal_s + found.backward_weight.more_flops_s == pytest.approx(
        2 * TOKENS * H * columns
    )


def test_a_frozen_head_has_no_weight_gradient() -> None:
    found = end_estimate(without(MODEL, "head"), "head", counted(), **SHAPE)
    assert found.backward_weight.total_s == 0
    assert found.backward_input.total_s > 0
    assert found.forward.total_s == end_estimate(MODEL, "head", counted(), **SHAPE).forward.total_s


@pytest.mark.parametrize(("dropout", "passes"), [(False, 2), (True, 3)])
def test_an_embedding_is_read_and_written_and_its_gradient_added_in_32_bits(dropout: bool, passes: int) -> None:
    found = end_estimate(MODEL, "embedding", counted(dropout=dropout), **SHAPE)
    assert found.forward.memory_s == passes * MESSAGE
    assert found.backward_weight.memory_s == MESSAGE + 8 * TOKENS * H
    assert (found.backward_input.total_s, found.forward.more_flops_s) == (0, 0)
    assert end_estimate(without(MODEL, "embedding"), "embedding", counted(), **SHAPE).backward_weight.total_s == 0


def test_an_embedding_is_summed_over_tp_and_its_gradient_gathered() -> None:
    for is_sharded, operation in ((False, "all-reduce"), (True, "reduce-scatter")):
        place = counted(layout={"tp": 2}, sequence_parallel=is_sharded)
        found = end_estimate(MODEL, "embedding", place, **SHAPE)
        assert found.forward.tp_s == pytest.approx(place.seconds(operation, MESSAGE, "tp"))  # type: ignore[arg-type]
        assert found.backward_weight.tp_s == (place.seconds("all-gather", MESSAGE, "tp") if is_sharded else 0)


def test_projected_patches_are_gemms_of_their_tokens() -> None:
    patches = Patches(embedded=((16, 0.75), (32, 0.25)), conditions=(8, 4), outputs=16, classes=10)
    model = replace(MODEL, patches=patches)
    found = end_estimate(model, "embedding", counted(), **SHAPE)
    flops = 2 * TOKENS * (0.75 * 16 + 0.25 * 32) * H
    assert found.forward.more_flops_s == pytest.approx(flops)
    assert found.backward_weight.more_flops_s == pytest.approx(flops)
    weights = (8 + 1) * H + (4 + 1) * H + 2 * (H + 1) * H + 10 * H
    conditions = end_estimate(model, "conditions", counted(), **SHAPE)
    assert conditions.forward.memory_s == conditions.backward_input.memory_s == 2 * weights
    assert conditions.backward_weight.memory_s == (2 + 8) * weights
    assert end_estimate(MODEL, "conditions", counted(), **SHAPE).forward.total_s == 0


def test_a_further_token_is_a_projection_of_two_tokens() -> None:
    model = find_model("deepseek-v3").with_layers(6)
    h = model.hidden_size
    for tp in (1, 2):
        place = counted(layout={"tp": tp})
        found = end_estimate(model, "mtp", place, **SHAPE)
        flops = 2 * TOKENS * 2 * h * h / tp
        for part in (found.forward, found.backward_input, found.backward_weight):
            assert part.ideal_s * place.device.peak("bfloat16") == pytest.approx(flops)
        message = TOKENS * h * 2
        gathered = place.seconds("all-gather", message, "tp")
        assert found.forward.tp_s == pytest.approx(gathered)
        assert found.backward_input.tp_s == pytest.approx(place.seconds("all-reduce", 2 * message, "tp"))
    sharded = counted(layout={"tp": 2}, sequence_parallel=True)
    found = end_estimate(model, "mtp", sharded, **SHAPE)
    message = TOKENS * h * 2
    own, twice, summed = (
        sharded.seconds("all-gather", message, "tp"), sharded.seconds("all-gather", 2 * message, "tp"),
        sharded.seconds("reduce-scatter", 2 * message, "tp"),
    )  # fmt: skip
    assert found.forward.tp_s == pytest.approx(own + twice)
    assert found.backward_input.tp_s == pytest.approx(summed + twice + own)
    frozen = end_estimate(without(model, "layers"), "mtp", counted(), **SHAPE).backward_weight
    assert frozen.ideal_s == 0
    hides = counted(layout={"tp": 2}, hidden_tp_forward=0.75, hidden_tp_backward=0.5)
    hidden = end_estimate(model, "mtp", hides, **SHAPE)
    plain = end_estimate(model, "mtp", counted(layout={"tp": 2}), **SHAPE)
    assert hidden.backward_input.tp_s == pytest.approx(0.5 * plain.backward_input.tp_s)
    assert hidden.forward.tp_s == pytest.approx(0.25 * plain.forward.tp_s)


def test_the_device_waits_for_launches_that_communication_does_not_hide() -> None:
    place = counted()
    kernels = KernelTime(2.0, 3.0, 5.0, 7.0, 11.0, 13)
    peak = place.device.peak("bfloat16")
    found = parts_of(place, kernels, 4.0 * peak, launching_s=31.0, tp_s=1.0, ep_s=2.0)
    assert (found.ideal_s, found.more_flops_s) == (4.0, 2.0 + 5.0 - 4.0)
    assert (found.matmul_loss_s, found.attention_loss_s, found.memory_s) == (1.0, 2.0, 11.0)
    assert found.host_s == 31 - 1 - 2 - (3 + 7 + 11)
    assert (found.tp_s, found.ep_s) == (1.0, 2.0)
    assert parts_of(place, kernels, launching_s=20.0).host_s == 0


@pytest.mark.parametrize("cp", [2, 4])
def test_messages_of_a_ring_overlap_with_blocks_of_attention(cp: int) -> None:
    core = PassKernels(KernelTime(attention_s=4.0 * cp), KernelTime(attention_s=7.0 * cp))
    assert _exposed_ring_s(5.0, cp, core) == ((cp - 1) * (5 - 4), 2 * 0 + (cp - 2) * (10 - 7))
    assert _exposed_ring_s(8.0, cp, core) == ((cp - 1) * 4, 2 * (8 - 7) + (cp - 2) * (16 - 7))


def exchanged(context: str, **execution: Any) -> tuple[float, float, Any]:
    place = counted(layout={"cp": 4, "tp": 2}, context=context, **execution)
    core = PassKernels(KernelTime(), KernelTime())
    return (*_exchanged_s(LAYER.attention, core, H, place, TOKENS), place)


def test_exchanges_of_keys_and_values_have_their_bytes() -> None:
    queries, keys = 8 // 2 * 8 * TOKENS * 2, 2 // 2 * 8 * TOKENS * 2  # bytes of a tp rank
    forward_s, backward_s, place = exchanged("all-to-all")
    once = 2 * place.seconds("all-to-all", queries, "cp") + 2 * place.seconds("all-to-all", keys, "cp")
    assert (forward_s, backward_s) == pytest.approx((once, once))
    link = place.cluster.tiers[0].p2p_link
    hop_s = point_to_point_s(2 * keys, link)
    assert exchanged("ring")[:2] == pytest.approx((3 * hop_s, 2 * hop_s + 2 * 2 * hop_s))
    assert exchanged("ring", compile=True)[:2] == pytest.approx((3 * hop_s, 6 * hop_s))
    gathered_s = place.seconds("all-gather", 2 * queries * 4, "cp")
    returned_s = 4 * point_to_point_s(2 * queries * 2, link)  # float32
    assert exchanged("all-gather")[:2] == pytest.approx((gathered_s, gathered_s + returned_s))


def test_attention_with_one_scale_sends_8_bits() -> None:
    keys = 2 // 2 * 8 * TOKENS
    forward_s, _, place = exchanged("ring", dtype="float8", attention="fused-fp8")
    assert forward_s == pytest.approx(3 * point_to_point_s(2 * keys, place.cluster.tiers[0].p2p_link))
    in_blocks = exchanged("ring", dtype="mxfp8", attention="fused-fp8")
    assert in_blocks[0] == pytest.approx(3 * point_to_point_s(4 * keys, place.cluster.tiers[0].p2p_link))


def core(layout: dict[str, int] | None = None, layer: Any = LAYER, **execution: Any) -> PassKernels:
    return core_of(layer.attention, counted(layout=layout, **execution), **SHAPE)


CAUSAL = 2 * 8 * 128 * 128 * (8 + 8)  # FLOPs of two sequences, 8 heads of 8


def test_fused_attention_is_the_causal_half() -> None:
    found = core()
    assert found.forward.attention_s == pytest.approx(CAUSAL)
    assert found.backward_input.attention_s == pytest.approx(2.5 * CAUSAL)
    assert found.backward_input.attention_ideal_s == pytest.approx(2 * CAUSAL)
    assert found.backward_weight == KernelTime()
    assert core({"tp": 2}).forward.attention_s == pytest.approx(CAUSAL / 2)


@pytest.mark.parametrize(("dropout", "masked", "launches"), [(False, 0, 1), (True, 5, 2)])
def test_unfused_attention_has_all_scores_and_passes_over_them(dropout: bool, masked: int, launches: int) -> None:
    found = core(attention="unfused", dropout=dropout)
    scores = 2 * 8 * 128 * 128
    gemm = 2 * scores * 8
    assert found.forward.attention_s == pytest.approx(2 * gemm + (2 * 2 + masked) * scores)
    assert found.backward_input.attention_s == pytest.approx(4 * gemm + (3 * 2 + masked) * scores)
    assert (found.forward.count, found.backward_input.count) == (2 + launches, 4 + launches)
    assert found.forward.matmul_s == found.forward.memory_s == 0


def test_a_window_computes_half_a_tile_beyond_it() -> None:
    windowed = replace(LAYER, attention=replace(LAYER.attention, window=16))
    found = core_of(windowed.attention, counted(), micro_batch=1, sequence_length=1024)
    seen = windowed.attention.keys_per_query(1024)
    assert seen == pytest.approx((16 * 17 / 2 + (1024 - 16) * 16) / 1024), "the first 16 see fewer"
    keys = round(2 * (seen + 64))
    assert found.forward.attention_s == pytest.approx(8 * 1024 * keys * 16)
    assert found.forward.attention_ideal_s == pytest.approx(8 * 1024 * 2 * seen * 16, rel=1e-3)
    whole = core_of(windowed.attention, counted(), micro_batch=1, sequence_length=16)
    assert whole.forward.attention_s == pytest.approx(8 * 16 * 16 * 16)


def test_blocks_of_a_ring_are_joined() -> None:
    cp, tokens, e = 4, TOKENS // 4, 2
    found = core({"cp": cp})
    of_keys, outputs = 2 * 16, 8 * 8
    assert found.forward.memory_s == pytest.approx(tokens * e * (2 * of_keys + (3 * cp - 1) * outputs))
    assert found.backward_input.memory_s == pytest.approx(
        tokens * e * ((1.5 * cp + 3) * of_keys + (3 * cp - 1) * outputs)
    )
    assert found.forward.count == 1 + 2 * cp + 1
    assert core({"cp": cp}, context="all-to-all").forward.memory_s == 0
    assert core({"cp": cp}, compile=True).forward.memory_s == 0


def test_gathered_keys_are_joined_in_32_bits() -> None:
    cp, tokens = 4, TOKENS // 4
    found = core({"cp": cp}, context="all-gather")
    size = tokens * 8 * 8
    # A cast per block, three passes per further block, and a cast at the end.
    assert found.forward.memory_s == (6 * cp + (12 + 8 + 12) * (cp - 1) + 6) * size
    assert found.backward_input.memory_s == (3 * 10 * cp + 16 * cp + 18) * size
    assert (found.forward.count, found.backward_input.count) == (1 + 4 * cp - 2, 1 + 4 * cp + 3)


@pytest.mark.parametrize(
    ("dtype", "forward", "backward", "launches"),
    [("mxfp8", 4 * (64 + 32), 4 * 64, (3, 1)), ("float8", 3 * (64 + 32 + 64), 3 * (64 + 32 + 64), (4, 4))],
)
def test_attention_in_8_bits_casts_its_operands(
    dtype: str, forward: int, backward: int, launches: tuple[int, int]
) -> None:
    found = core(dtype=dtype, attention="fused-fp8")
    assert (found.forward.memory_s, found.backward_input.memory_s) == (forward * TOKENS, backward * TOKENS)
    assert (found.forward.count, found.backward_input.count) == (1 + launches[0], 1 + launches[1])


@pytest.mark.parametrize("cp", [1, 4])
@pytest.mark.parametrize(
    "execution",
    [
        {},
        {"context": "all-gather"},
        {"attention": "unfused"},
        {"dtype": "mxfp8", "attention": "fused-fp8"},
        {"dtype": "float8", "attention": "fused-fp8"},
    ],
    ids=str,
)
def test_two_tensor_parallel_ranks_each_compute_half_a_core(cp: int, execution: dict[str, Any]) -> None:
    whole, half = (core({"cp": cp, "tp": tp}, **execution) for tp in (1, 2))
    for name in ("forward", "backward_input"):
        one, other = getattr(whole, name), getattr(half, name)
        assert (other.memory_s, other.attention_s) == (one.memory_s / 2, pytest.approx(one.attention_s / 2)), name
        assert other.count == one.count
        assert one.attention_s > 0


def test_attention_in_8_bits_is_faster_by_the_gain_of_its_format() -> None:
    place = counted(dtype="float8", attention="fused-fp8")
    gain = {"float8": {"forward": 2.0, "backward": 4.0}, "mxfp8": {"forward": 8.0}}
    efficiency = replace(place.cluster.device.efficiency, attention_fp8_gain=gain)
    place = replace(
        place, cluster=replace(place.cluster, device=replace(place.cluster.device, efficiency=efficiency))
    )
    found = core_of(LAYER.attention, place, **SHAPE)
    assert found.forward.attention_s == pytest.approx(CAUSAL / 2)
    assert found.backward_input.attention_s == pytest.approx(2.5 * CAUSAL / 4)
    in_blocks = core_of(LAYER.attention, replace(place, execution=replace(place.execution, dtype="mxfp8")), **SHAPE)
    assert in_blocks.forward.attention_s == pytest.approx(CAUSAL / 8)
    assert in_blocks.backward_input.attention_s == pytest.approx(2.5 * CAUSAL)


def test_the_last_piece_of_a_sequence_sees_the_most_keys() -> None:
    assert _of_last(lambda length: (length + 1) / 2, 8, 1) == 4.5
    assert _of_last(lambda length: (length + 1) / 2, 8, 4) == 7.5  # the mean of 7 and 8


def test_a_recurrent_core_scans_at_the_rate_of_its_device() -> None:
    layer = next(one for one in find_model("mamba2-2.7b").layers if one.has_mixer)
    place = counted()
    found = core_of(layer.attention, place, **SHAPE)
    mixer: Any = layer.attention
    chunks = TOKENS // mixer.chunk_size
    flops = chunks * sum(one.flops for one in mixer.chunk_products(1))
    again = chunks * sum(one.flops for one in mixer.chunk_products(1) if one.is_again)
    assert (found.forward.attention_ideal_s, found.backward_input.attention_ideal_s) == (flops, 2 * flops + again)
    device = place.device
    slow = replace(device.efficiency, scan_flops_per_s=1e-6, kernel_s=3.0)
    slow_place = replace(place, cluster=replace(place.cluster, device=replace(device, efficiency=slow)))
    launches = 2 + len(mixer.chunk_products(1))
    taken_s = core_of(layer.attention, slow_place, **SHAPE).forward.attention_s
    assert taken_s == pytest.approx(flops / (device.num_cores * 1e-6) + 3 * launches)
    assert core_of(SimpleNamespace(), place, **SHAPE) == PassKernels(KernelTime(), KernelTime())  # type: ignore[arg-type]
