"""Estimates from specifications: FLOPs and communication as counted, limits, and published runs."""

from dataclasses import fields, replace
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.analytic import estimate_of, read
from ppsim.base.errors import ConfigError
from ppsim.costs import analytic
from ppsim.costs.analytic import end_estimate, layer_estimate
from ppsim.costs.cores import core_of
from ppsim.costs.dp_and_optimizer import optimizer_s
from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.pair_overlap import LayerTimes, pair_s
from ppsim.costs.pass_kernels import PassKernels
from ppsim.costs.time_breakdown import BASIS, TimeBreakdown
from ppsim.machine.cluster_files import load_cluster, packaged_clusters
from ppsim.machine.collectives import point_to_point_s, seconds
from ppsim.machine.kernels.published_tables import kernel_times
from ppsim.machine.kernels.times import KernelTime
from ppsim.model.architecture import Model
from ppsim.model.attention_base import ScoredAttention
from ppsim.model.compressed_attention import CompressedAttention
from ppsim.model.execution import Execution
from ppsim.model.mixers.short_convolution import ShortConvolution
from ppsim.model.optimizer import Optimizer
from ppsim.model.recurrent import Recurrent
from ppsim.model.registry import find_model
from ppsim.model.shapes import LayerShape, ModelShape, head_forward_flops, layer_forward_flops, layer_of
from ppsim.parallel.groups import group
from ppsim.parallel.layout import Layout
from tests.costs.timed import kernels

SHAPES = {
    "gpt": LayerShape("gpt", hidden_size=4096, num_heads=32, num_kv_heads=32, head_size=128, ffn_size=16384),
    "llama": LayerShape("llama", hidden_size=4096, num_heads=32, num_kv_heads=8, head_size=128, ffn_size=14336),
    "moe": LayerShape(
        "moe", hidden_size=4096, num_heads=32, num_kv_heads=8, head_size=128, ffn_size=1536, num_experts=64,
        experts_per_token=8, shared_ffn_size=1536,
    ),
}  # fmt: skip
LAYERS = {kind: layer_of(shape) for kind, shape in SHAPES.items()}
SHAPE = {"micro_batch": 2, "sequence_length": 4096}
KINDS = st.sampled_from(sorted(LAYERS))
EXECUTIONS = st.builds(
    Execution,
    attention=st.sampled_from(["fused", "unfused"]),
    recompute=st.sampled_from(["none", "core_attn", "layernorm+mlp_act+moe_act", "mlp+moe", "full"]),
    sequence_parallel=st.booleans(),
    dropout=st.booleans(),
    context=st.sampled_from(["ring", "all-to-all"]),
)


def place(name="dgx-h100", *, execution=None, **sizes):
    return ExecutionContext(cluster=load_cluster(name), layout=Layout(**sizes), execution=execution or Execution())


def test_an_all_to_all_of_heads_goes_there_and_back() -> None:
    estimate = layer_estimate(LAYERS["llama"], place(cp=4, execution=Execution(context="all-to-all")), **SHAPE)
    assert estimate.backward_input.cp_s == pytest.approx(estimate.forward.cp_s) != 0


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_round_the_ring_messages_run_beside_blocks_of_attention(cp: int) -> None:
    """Worked out by hand: what a block leaves of each of cp - 1 messages, and of cp in the backward.

    There, keys and values go beside the first block, gradients beside the last, both beside each between.
    """
    layer, where = LAYERS["llama"], place(cp=cp)
    shape = {"micro_batch": 1, "sequence_length": 8192}
    link = where.cluster.tiers[0].link
    hop_s = point_to_point_s(2 * 2 * 1024 * 8192 / cp, link)
    core = core_of(layer.attention, where, **shape)
    for factor in (0.01, 1.0, 30.0):  # of a link that is so many times as slow
        slow = replace(
            link,
            bytes_per_s=link.bytes_per_s / factor,
            step_s=factor * link.step_s,
            launch_s=factor * link.launch_s,
        )
        tiers = (replace(where.cluster.tiers[0], link=slow), *where.cluster.tiers[1:])
        found = layer_estimate(layer, replace(where, cluster=replace(where.cluster, tiers=tiers)), **shape)
        block_s, backward_s = core.forward.attention_s / cp, core.backward_input.attention_s / cp
        hops = [hop_s] * (cp - 1), [hop_s, *[2 * hop_s] * (cp - 2), hop_s]
        for part, sent, beside in zip(
            (found.forward, found.backward_input), hops, (block_s, backward_s), strict=True
        ):
            left = sum(max(0.0, factor * one - beside) for one in sent)
            assert part.cp_s == pytest.approx(left, abs=1e-12)
        assert factor == 1.0 or (found.forward.cp_s > 0) is (factor > 1)


def by_bandwidth(execution, **sizes):
    """A place whose launches and steps take no time: what is left goes by bytes and FLOPs."""
    where = place(execution=execution, **sizes)
    free = {"launch_s": 0.0, "step_s": 0.0, "token_s": 0.0}
    tiers = tuple(replace(tier, link=replace(tier.link, **free)) for tier in where.cluster.tiers)
    device = where.cluster.device
    device = replace(device, efficiency=replace(device.efficiency, kernel_s=0.0, host_s=0.0))
    return replace(where, cluster=replace(where.cluster, device=device, tiers=tiers))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("execution", [Execution(), Execution(dtype="float8"), Execution(attention="unfused")])
def test_the_ideal_is_a_ranks_share_of_the_models_flops_at_the_peak_of_the_jobs_type(kind, tp, execution):
    where = place(tp=tp, execution=execution)
    estimate = layer_estimate(LAYERS[kind], where, **SHAPE)
    flops = layer_forward_flops(SHAPES[kind], **SHAPE, causal=True) / tp
    peak = where.cluster.device.peak(execution.dtype)
    assert estimate.forward.ideal_s == pytest.approx(flops / peak)
    assert estimate.backward.ideal_s == pytest.approx(2 * flops / peak)
    assert estimate.basis == BASIS


def test_of_the_head_too():
    model, shape = Model((LAYERS["llama"],) * 32, 128256, 8192), ModelShape(SHAPES["llama"], 32, 128256, 8192)
    where = place(tp=8)
    head = end_estimate(model, "head", where, **SHAPE)
    ideal = head_forward_flops(shape, **SHAPE) / 8 / where.cluster.device.peak("bfloat16")
    assert head.forward.ideal_s == pytest.approx(ideal)
    assert head.backward.ideal_s == pytest.approx(2 * ideal)


def test_what_is_computed_beyond_the_models_flops_has_a_part_of_its_own():
    """Unfused attention's masked half; attention in 16 bits beside products in 8; the router that tp ranks repeat."""
    peak = load_cluster("dgx-h100").device.peak_flops_per_s
    scores = 2 * 4096 * 4096 * LAYERS["moe"].attention.score_width  # of the masked half, all tokens
    for kind, tp, execution, more in (
        ("llama", 2, Execution(), 0.0),
        ("llama", 2, Execution(attention="unfused"), scores / 2 / peak["bfloat16"]),
        ("llama", 2, Execution(dtype="float8"), scores / 2 * (1 / peak["bfloat16"] - 1 / peak["float8"])),
        ("moe", 4, Execution(), 2 * 2 * 4096 * 4096 * 64 * (1 - 1 / 4) / peak["bfloat16"]),
    ):
        forward = layer_estimate(LAYERS[kind], place(tp=tp, execution=execution), **SHAPE).forward
        assert forward.more_flops_s == pytest.approx(more, rel=1e-9, abs=1e-15)


def test_a_padded_vocabulary_takes_the_time_of_its_columns_and_no_flops_of_the_model():
    """Padding 1,000 to 65,536 columns makes product and cross entropy 65.5 times as large, the ideal no different."""
    model, where = Model((LAYERS["llama"],) * 32, 1000, 8192), by_bandwidth(Execution(cross_entropy="fused"))
    plain, padded = (end_estimate(model, "head", replace(where, vocab_multiple=k), **SHAPE) for k in (1, 65536))
    for one, other in ((plain.forward, padded.forward), (plain.backward, padded.backward)):
        assert one.ideal_s == other.ideal_s
        whole = other.ideal_s + other.more_flops_s
        assert whole == pytest.approx(65.536 * (one.ideal_s + one.more_flops_s))
        norms = 65.536 * one.memory_s - other.memory_s
        assert 0 < norms < 65.536 * one.memory_s
    assert padded.forward.total_s > 40 * plain.forward.total_s


@given(kind=KINDS, execution=EXECUTIONS, tp=st.sampled_from([1, 2, 8]), cp=st.sampled_from([1, 4]), ep=st.sampled_from([1, 4]),
       name=st.sampled_from(sorted(packaged_clusters())))  # fmt: skip
def test_no_part_is_negative_and_nothing_beats_the_peak(kind, execution, tp, cp, ep, name):
    where = place(name, execution=execution, tp=tp, cp=cp, dp=4, ep=ep if kind == "moe" else 1)
    estimate = layer_estimate(LAYERS[kind], where, **SHAPE)
    for parts in (estimate.forward, estimate.backward_input, estimate.backward_weight):
        assert all(getattr(parts, part.name) >= -1e-15 for part in fields(TimeBreakdown))
        assert parts.total_s > parts.ideal_s > 0
    weight = estimate.backward_weight
    assert weight.tp_s == weight.ep_s == weight.cp_s == weight.recompute_s == 0


@given(kind=KINDS, execution=EXECUTIONS, tp=st.sampled_from([1, 2, 8]), by=st.integers(1, 4))
def test_more_sequences_or_longer_ones_take_longer(kind, execution, tp, by):
    where = place(execution=execution, tp=tp)
    for name in SHAPE:
        small, large = (layer_estimate(LAYERS[kind], where, **SHAPE | {name: SHAPE[name] * k}) for k in (1, by))
        for passes in ("forward", "backward_input", "backward_weight"):
            assert getattr(large, passes).total_s >= getattr(small, passes).total_s * (1 - 1e-12)


@pytest.mark.parametrize("kind", LAYERS)
def test_tensor_parallel_ranks_compute_less_each_and_more_together(kind):
    whole, part = (layer_estimate(LAYERS[kind], place(tp=tp), **SHAPE) for tp in (1, 4))
    for name in ("forward", "backward_input", "backward_weight"):
        one, other = getattr(whole, name), getattr(part, name)
        assert one.total_s / 4 < other.total_s < one.total_s


def test_full_recomputation_is_one_more_forward_its_communication_included():
    none, full = (
        layer_estimate(LAYERS["gpt"], place(execution=Execution(recompute=recompute), tp=8), **SHAPE)
        for recompute in ("none", "full")
    )
    assert full.backward.total_s - none.backward.total_s == pytest.approx(none.forward.total_s)
    assert full.forward == none.forward


@pytest.mark.parametrize("context", ["ring", "all-to-all"])
def test_a_recomputed_core_sends_its_context_again_and_other_modules_do_not(context: str) -> None:
    full, core, others = (
        layer_estimate(LAYERS["gpt"], place(execution=Execution(recompute=how, context=context), cp=8), **SHAPE)
        for how in ("full", "core_attn", "layernorm")
    )
    assert full.sent_again_s == pytest.approx(full.forward.cp_s) != 0
    assert core.sent_again_s == pytest.approx(core.forward.cp_s)
    assert others.sent_again_s == 0


def again_s(name, recompute, execution=None, **sizes):
    """What the backward of a model's last layer takes longer with a recomputation than with none."""
    layer = find_model(name).layers[-1]
    none, some = (
        layer_estimate(layer, by_bandwidth(replace(execution or Execution(), recompute=how), **sizes), **SHAPE)
        for how in ("none", recompute)
    )
    assert some.forward == none.forward
    assert some.backward_weight == none.backward_weight
    assert some.backward_input.recompute_s == pytest.approx(some.backward.total_s - none.backward.total_s)
    return some.backward_input.recompute_s


@pytest.mark.parametrize("attention", ["fused", "unfused"])
def test_the_core_of_attention_costs_its_forward_again_fused_or_not(attention):
    """A fused kernel recomputes scores in its backward anyway; Megatron-LM's core_attn runs its forward once more."""
    execution = Execution(attention=attention)
    where = by_bandwidth(execution)
    passes = core_of(LAYERS["gpt"].attention, where, **SHAPE)
    again, none = (
        layer_estimate(LAYERS["gpt"], replace(where, execution=replace(execution, recompute=how)), **SHAPE).backward
        for how in ("core_attn", "none")
    )
    assert again.total_s - none.total_s == pytest.approx(passes.forward.attention_s)
    assert again.recompute_s == pytest.approx(passes.forward.attention_s)


def test_each_module_costs_the_forward_that_it_is():
    """Bytes of norms and activation functions; products and half of the messages of a feed-forward part.

    A norm inside a GEMM runs again with it: before attention never, before a dense feed-forward part by mlp.
    """
    bandwidth, tokens, e = 0.7 * 3.35e12, 2 * 4096, 2
    norm_s = 2 * e * 4096 * tokens / bandwidth
    assert again_s("llama3-8b", "layernorm") == 0
    assert again_s("llama3-8b", "layernorm", Execution(compile=True)) == pytest.approx(2 * norm_s)
    assert again_s("mixtral-8x7b", "layernorm") == pytest.approx(norm_s)
    assert again_s("llama3-8b", "mlp_act") == pytest.approx(3 * e * 14336 * tokens / bandwidth)
    assert again_s("mixtral-8x7b", "moe_act") == pytest.approx(3 * e * 2 * 14336 * tokens / bandwidth)
    device = by_bandwidth(Execution()).cluster.device

    def product_s(columns, depth):
        return kernel_times(device, "bfloat16").product_s("forward", tokens, columns, depth)

    products_s = product_s(2 * 14336, 4096) + product_s(4096, 14336)
    assert again_s("llama3-8b", "mlp") == pytest.approx(products_s + norm_s + again_s("llama3-8b", "mlp_act"))
    parallel = Execution(sequence_parallel=True)
    tp_s = layer_estimate(LAYERS["llama"], by_bandwidth(parallel, tp=8), **SHAPE).forward.tp_s
    shown, hidden = (again_s("llama3-8b", "mlp", replace(parallel, hidden_tp_forward=one), tp=8) for one in (0, 1))
    assert shown - hidden == pytest.approx(tp_s / 2)
    # Queries' 64 in place; of each head's keys and values 128 + 128 read, 192 + 128 written.
    rotation = 128 * (2 * 64 + 256 + 320) * e * tokens / bandwidth
    norms_s = 2 * e * (1536 + 512) * tokens / bandwidth  # they are recomputed with the projections
    latents_s = product_s(128 * 192, 1536) + product_s(128 * 256, 512) + rotation + norms_s
    assert again_s("deepseek-v3", "mla_up_proj") == pytest.approx(latents_s)


def test_modules_add_up_and_a_mixture_holds_its_parts():
    for name, modules in (
        ("llama3-8b", ("core_attn", "layernorm", "mlp")), ("deepseek-v3", ("mla_up_proj", "moe_act", "shared_experts")),
    ):  # fmt: skip
        assert again_s(name, "+".join(modules)) == pytest.approx(sum(again_s(name, one) for one in modules))
    parts, mixture, both, layer = (
        again_s("deepseek-v3", how, dp=8, ep=8)
        for how in ("moe_act+shared_experts", "moe", "moe+moe_act+shared_experts", "full")
    )
    assert parts < mixture == both < layer


def test_w_reads_the_gradients_of_every_column_that_has_a_bias():
    """e bytes a column and token: those of a gate too, though none of a router's, which no gradient moves."""
    plain = find_model("llama3-8b").layers[0]
    biased = replace(plain, ffn=replace(plain.ffn, bias=True))
    where = by_bandwidth(Execution(), tp=2)
    none, all_ = (layer_estimate(one, where, **SHAPE).backward_weight.memory_s for one in (plain, biased))
    assert none == 0
    assert all_ == pytest.approx(2 * (2 * 14336 / 2 + 4096) * 2 * 4096 / (0.7 * 3.35e12))


def test_a_layer_sums_over_tp_twice_each_way():
    where = place(tp=8)
    estimate = layer_estimate(LAYERS["llama"], where, **SHAPE)
    ranks = group(where.layout, "tp", where.domain_sizes)
    once = seconds("all-reduce", 2 * 4096 * 4096 * 2, ranks, where.cluster)
    assert estimate.forward.tp_s == pytest.approx(2 * once)
    assert estimate.backward_input.tp_s == pytest.approx(2 * once)


def test_a_further_token_norms_three_columns_and_joins_two_in_a_row():
    """A norm passes twice over memory forward and five times backward; the two in a row are written and read, 4."""
    model, where = find_model("deepseek-v3").with_layers(6), by_bandwidth(Execution())
    further = end_estimate(model, "mtp", where, **SHAPE)
    once = 2 * 4096 * 7168 * 2 / (0.7 * 3.35e12)
    assert further.forward.memory_s == pytest.approx((3 * 2 + 4) * once)
    assert further.backward_input.memory_s == pytest.approx((3 * 5 + 4) * once)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_head_sums_three_numbers_per_token_in_float32_over_tp(sequence_parallel):
    """Vocabulary-parallel cross entropy: the maximum, the sum of exponentials and the logit of the target."""
    where = place(tp=8, execution=Execution(sequence_parallel=sequence_parallel))
    ranks = group(where.layout, "tp", where.domain_sizes)
    model = Model((LAYERS["llama"],) * 32, 128256, 8192)
    found = end_estimate(model, "head", where, **SHAPE)
    tokens, hidden_bytes = 2 * 4096, 2 * 4096 * 4096 * 2
    gathered = seconds("all-gather", hidden_bytes, ranks, where.cluster) if sequence_parallel else 0.0
    summed = seconds("reduce-scatter" if sequence_parallel else "all-reduce", hidden_bytes, ranks, where.cluster)
    assert found.forward.tp_s == pytest.approx(
        gathered + 3 * seconds("all-reduce", tokens * 4, ranks, where.cluster)
    )
    assert found.backward_input.tp_s == pytest.approx(gathered + summed)
    assert found.backward_weight.tp_s == 0


@pytest.mark.parametrize("kind", LAYERS)
def test_elements_in_32_bits_are_twice_the_bytes_of_those_in_16(kind):
    """Messages and what passes over memory: norms, residuals, activations, routing, look-up, norm of the head."""
    model = Model((LAYERS[kind],) * 32, 128256, 8192)
    sizes = {"tp": 2, "cp": 2, "dp": 4, "ep": 4 if kind == "moe" else 1}
    short, long = (
        by_bandwidth(Execution(dtype=dtype, cross_entropy="fused", context="all-to-all"), **sizes)
        for dtype in ("bfloat16", "float32")
    )
    for estimate in (
        lambda where: layer_estimate(LAYERS[kind], where, **SHAPE),
        lambda where: end_estimate(model, "embedding", where, **SHAPE),
        lambda where: end_estimate(model, "head", where, **SHAPE),
    ):
        one, other = estimate(short), estimate(long)
        for name in ("forward", "backward_input"):
            for part in ("memory_s", "ep_s", "cp_s"):
                assert getattr(getattr(other, name), part) == pytest.approx(2 * getattr(getattr(one, name), part))
    tp_s = [layer_estimate(LAYERS[kind], where, **SHAPE).forward.tp_s for where in (short, long)]
    assert tp_s[1] == pytest.approx(2 * tp_s[0])


@pytest.mark.parametrize("dropout", [False, True])
def test_scores_in_32_bits_are_twice_the_bytes_but_for_their_masks(dropout):
    """Softmax passes over a score 2e bytes forward and 3e backward; dropout 2e more, and one byte of mask."""

    def attention_s(dtype, passes):
        where = by_bandwidth(Execution(dtype=dtype, attention="unfused", dropout=dropout))
        fast = replace(where.cluster.device, peak_flops_per_s={dtype: 1e30})
        fast = replace(fast, efficiency=replace(fast.efficiency, matmul={dtype: 1.0}))
        where = replace(where, cluster=replace(where.cluster, device=fast))
        return getattr(layer_estimate(LAYERS["gpt"], where, **SHAPE), passes).attention_loss_s

    scores = 2 * 32 * 4096 * 4096 / (0.7 * 3.35e12)
    operands = 2 * 32 * 4096 * 128 * 4 / (0.7 * 3.35e12)  # of both products, an element each
    for passes, products, softmax in (("forward", 2, 2), ("backward_input", 4, 3)):
        for dtype, e in (("bfloat16", 2), ("float32", 4)):
            masked = (2 * e + 1) * dropout
            assert attention_s(dtype, passes) == pytest.approx(
                scores * (products * e + softmax * e + masked) + products / 2 * e * operands, rel=1e-3
            )


def test_adam_in_float32_reads_the_weights_it_writes():
    """28 bytes a parameter: two moments read and written, gradient and weight read, weight written; 30 of mixed ones."""
    assert Optimizer(precision="fp32").traffic_bytes == 28
    assert Optimizer(precision="bf16").traffic_bytes == 30


def test_what_is_hidden_is_not_counted():
    usual = Execution(context="all-to-all")
    execution = replace(usual, hidden_tp_forward=1.0, hidden_tp_backward=0.25, overlap_ep=1.0, hidden_cp=1.0)
    sizes = {"tp": 2, "cp": 2, "dp": 4, "ep": 4}
    shown, hidden = (
        layer_estimate(LAYERS["moe"], place(execution=one, **sizes), **SHAPE) for one in (usual, execution)
    )
    assert min(shown.forward.tp_s, shown.forward.ep_s, shown.forward.cp_s) > 0
    assert hidden.forward.tp_s == hidden.forward.cp_s == 0
    assert hidden.backward_input.tp_s == pytest.approx(0.75 * shown.backward_input.tp_s)
    # what sends tokens takes 20 of the 132 cores from the compute beside it
    assert hidden.forward.ep_s == pytest.approx(20 / 132 * shown.forward.ep_s)
    with pytest.raises(ConfigError, match=r"--overlap-ep is a part from 0 to 1: got 1\.5"):
        Execution(overlap_ep=1.5)


def test_no_more_of_the_dispatch_is_hidden_than_the_other_pass_of_the_pair_takes():
    """A forward's all-to-alls run beside a backward, and the other way round; what is longer than that stays."""
    bare, hiding = (by_bandwidth(Execution(overlap_ep=part), dp=64, ep=64) for part in (0.0, 1.0))
    shown, hidden = (layer_estimate(LAYERS["moe"], where, **SHAPE) for where in (bare, hiding))
    forward, backward = shown.forward, shown.backward
    busy_s = [one.total_s - one.ep_s - one.host_s for one in (forward, backward)]
    assert shown.forward.ep_s > busy_s[0]
    kept = 1 - 20 / 132
    assert hidden.backward_input.ep_s == pytest.approx(shown.backward_input.ep_s - kept * busy_s[0])
    assert hidden.forward.ep_s == pytest.approx(shown.forward.ep_s - kept * min(shown.forward.ep_s, busy_s[1]))


def test_the_busiest_experts_take_as_much_longer_as_they_have_more_tokens():
    """Products, what moves around them, and the dispatch; attention and its like as before."""
    one, twice = (
        layer_estimate(LAYERS["moe"], by_bandwidth(Execution(expert_imbalance=load), dp=8, ep=8), **SHAPE)
        for load in (1.0, 2.0)
    )
    assert twice.forward.ep_s == pytest.approx(2 * one.forward.ep_s)
    assert one.forward.memory_s < twice.forward.memory_s < 2 * one.forward.memory_s
    assert twice.forward.attention_loss_s == one.forward.attention_loss_s
    with pytest.raises(ConfigError, match=r"--expert-imbalance is 1 \(even\) or more: got 0\.5"):
        Execution(expert_imbalance=0.5)


def test_experts_of_a_fixed_capacity_keep_no_host_waiting_and_are_even():
    """The host launches a layer of experts in 4.2 ms per pass, which a small one waits for unless shapes are known."""
    small = {"micro_batch": 1, "sequence_length": 1024}
    waits, knows, half = (
        layer_estimate(LAYERS["moe"], place(dp=8, ep=8, execution=one), **small)
        for one in (
            Execution(),
            Execution(expert_capacity=1.0, expert_imbalance=3.0),
            Execution(expert_capacity=0.5),
        )
    )
    host_s = load_cluster("dgx-h100").device.efficiency.routing_host_s
    assert waits.forward.total_s == pytest.approx(host_s)
    assert knows.forward.ep_s == waits.forward.ep_s
    assert knows.forward.total_s < host_s / 2
    assert half.forward.matmul_loss_s < knows.forward.matmul_loss_s
    with pytest.raises(ConfigError, match="--moe-expert-capacity-factor must be above 0: got 0"):
        Execution(expert_capacity=0.0)


@pytest.mark.parametrize(("dtype", "slower"), [("bfloat16", 1.21), ("mxfp8", 1.48), ("nvfp4", 1.48)])
def test_the_host_launches_a_pair_more_slowly_than_its_forward_and_backward_apart(dtype, slower):
    """4.2 ms for F and 4.2 ms for B apart; casts to 8 and 4 bits have launches of their own (Megatron-Bridge#1760)."""
    where = replace(place(dp=8, ep=8, execution=Execution(dtype=dtype)), cluster=load_cluster("dgx-b200"))
    small = layer_estimate(LAYERS["moe"], where, micro_batch=1, sequence_length=1024)
    host_s = where.cluster.device.efficiency.routing_host_s
    assert small.times.launches == pytest.approx((slower * host_s, slower * host_s))
    assert small.forward.total_s == pytest.approx(host_s)  # apart
    together_s = pair_s([small.times], [small.times], "megatron")
    assert together_s == pytest.approx(slower * 2 * host_s)
    assert together_s > small.times.forward_s + small.times.backward_s


def test_the_legacy_grouped_gemm_calls_a_library_per_expert_and_gemm_on_amd_only():
    """Two calls per expert of a rank in F, I and W; at the end of an I that the device limits the host is ahead."""
    took = {
        (cluster, is_legacy, tokens): layer_estimate(
            LAYERS["moe"],
            replace(
                place(dp=8, ep=4),
                cluster=load_cluster(cluster),
                execution=Execution(legacy_grouped_gemm=is_legacy),
            ),
            micro_batch=1,
            sequence_length=tokens,
        )
        for cluster in ("mi355x-8", "dgx-h100") for is_legacy in (False, True) for tokens in (128, 65536)
    }  # fmt: skip
    efficiency = load_cluster("mi355x-8").device.efficiency
    calls_s = 2 * LAYERS["moe"].ffn.num_experts // 4 * efficiency.expert_call_s
    small, large = took["mi355x-8", True, 128], took["mi355x-8", True, 65536]
    for part in (small.forward, small.backward_input):
        assert part.total_s == pytest.approx(efficiency.routing_host_s + calls_s)
    assert small.backward_weight.total_s == pytest.approx(calls_s)
    assert took["mi355x-8", False, 128].forward.total_s == pytest.approx(efficiency.routing_host_s)
    assert large.forward == took["mi355x-8", False, 65536].forward
    assert large.backward == took["mi355x-8", False, 65536].backward
    device = load_cluster("mi355x-8").device
    slow = replace(device, efficiency=replace(efficiency, expert_call_s=0.1 / (calls_s / efficiency.expert_call_s)))
    cluster = replace(load_cluster("mi355x-8"), device=slow)
    ahead = layer_estimate(
        LAYERS["moe"],
        replace(place(dp=8, ep=4), cluster=cluster, execution=Execution(legacy_grouped_gemm=True)),
        micro_batch=1,
        sequence_length=65536,
    )
    assert ahead.backward_input == large.backward_input  # more than 0.1 s
    assert ahead.backward.total_s == pytest.approx(efficiency.routing_host_s + 2 * 0.1)
    for tokens in (128, 65536):
        assert took["dgx-h100", True, tokens] == took["dgx-h100", False, tokens]


def test_tokens_of_an_all_to_all_are_ordered_twice():
    """By ranks before it and by experts behind it: 4eh bytes a pair more, either way."""
    bare = {how: by_bandwidth(Execution(moe_dispatcher=how), dp=8, ep=8) for how in ("deepep", "alltoall")}
    once, twice = (layer_estimate(LAYERS["moe"], where, **SHAPE) for where in bare.values())
    device = bare["deepep"].cluster.device
    more = 8192 * 4 * 2 * 4096 * 8 / (device.memory_bytes_per_s * device.efficiency.memory)
    assert twice.forward.memory_s - once.forward.memory_s == pytest.approx(more)
    assert twice.backward_input.memory_s - once.backward_input.memory_s == pytest.approx(more)


def test_experts_across_nodes_wait_longer_than_those_in_one():
    inside, across = (layer_estimate(LAYERS["moe"], place(dp=32, ep=ep), **SHAPE).forward.ep_s for ep in (8, 32))
    assert across > 2 * inside > 0


def test_a_layer_too_small_to_keep_the_device_busy_waits_for_the_host():
    tiny = layer_of(LayerShape("gpt", hidden_size=64, num_heads=4, num_kv_heads=4, head_size=16, ffn_size=256))
    where = place("dgx-a100", execution=Execution(dtype="float16"))
    assert layer_estimate(tiny, where, micro_batch=1, sequence_length=128).forward.host_s > 0
    assert layer_estimate(LAYERS["gpt"], where, **SHAPE).forward.host_s == 0


def test_the_input_gradient_of_an_embedding_is_free():
    model = Model((LAYERS["gpt"],) * 32, 51200, 2048)
    embedding = end_estimate(model, "embedding", place(tp=4), **SHAPE)
    assert embedding.backward_input.total_s == 0 < embedding.backward_weight.total_s


def test_what_does_not_divide_is_refused():
    with pytest.raises(ConfigError, match="cp must divide the sequence: got 3 with 4096"):
        layer_estimate(LAYERS["gpt"], place(cp=3), **SHAPE)
    with pytest.raises(ConfigError, match="has no float8 in its tensor cores: it has float32, float64, tf32"):
        layer_estimate(LAYERS["gpt"], place("dgx-a100", execution=Execution(dtype="float8")), **SHAPE)


def test_an_optimizer_is_no_roofline():
    """Adam measured at 93.8 ms takes 19.9 ms by bandwidth alone; the class has that ratio."""
    device = load_cluster("dgx-h100").device
    by_bandwidth = replace(device, efficiency=replace(device.efficiency, optimizer=1.0))
    real, ideal = (optimizer_s(one, 1e9, bytes_per_parameter=30) for one in (device, by_bandwidth))
    assert real / ideal == pytest.approx(93.8 / 19.9, rel=0.01)


def test_layers_of_22b_are_met_within_four_percent():
    rows = [row for row in read() if row["metric"].startswith("layer")]
    assert len(rows) == 10
    assert all(estimate_of(row) == pytest.approx(float(row["value"]), rel=0.04) for row in rows)


@pytest.mark.parametrize(
    ("source", "mean_absolute"),
    [("SimuMax", 0.04), ("Narayanan", 0.045), ("Korthikanti", 0.03), ("vTrain", 0.10), ("dgxc", 0.08), ("Megatron-Bridge", 0.08)],
)  # fmt: skip
def test_dense_runs_that_nothing_was_fitted_to_are_met(source, mean_absolute):
    judged = [row for row in read() if row["use"] == "test" and row["kind"] != "moe"]
    rows = [row for row in judged if row["source"].startswith(source)]
    errors = [abs(estimate_of(row) / float(row["value"]) - 1) for row in rows]
    assert len(errors) >= 4
    assert sum(errors) / len(errors) < mean_absolute


def test_a_gathered_operand_of_8_bits_has_half_the_bytes():
    """What a reduce-scatter adds up stays in 16 bits; without sequence parallelism an all-reduce carries it all."""
    message = 2.0**28
    for dtype, share in (("bfloat16", 1.0), ("float8", 0.5), ("float8-row", 1.0), ("mxfp8", (1 + 1 / 32) / 2)):
        where = place(tp=8, execution=Execution(dtype=dtype, sequence_parallel=True))
        gathered, summed = (where.seconds(one, message, "tp") for one in ("all-gather", "reduce-scatter"))
        launch_s = where.seconds("all-gather", 0.0, "tp")
        expected = summed + launch_s + share * (gathered - launch_s)
        assert where.sum_over_tp_s(message) == pytest.approx(expected)
        assert where.sum_over_tp_s(message, "etp") == where.seconds(
            "reduce-scatter", message, "etp"
        ) + where.seconds("all-gather", message, "etp")
        alone = replace(where, execution=replace(where.execution, sequence_parallel=False))
        assert alone.sum_over_tp_s(message) == alone.seconds("all-reduce", message, "tp")


def test_products_of_experts_take_so_many_times_as_long_and_no_others():
    usual = by_bandwidth(Execution(), dp=8, ep=8)
    device = usual.cluster.device
    slow = replace(device, efficiency=replace(device.efficiency, experts=2 * device.efficiency.experts))
    slower = replace(usual, cluster=replace(usual.cluster, device=slow))
    of, of_slower = (kernels(LAYERS["moe"], where, tokens=8192) for where in (usual, slower))
    between_s = dict.fromkeys(("routed up", "routed down"), (64 // 8 // 4 - 1) * device.efficiency.kernel_s)
    for name in of:
        for one, two in zip(of[name].passes, of_slower[name].passes, strict=True):
            more_s = one.matmul_s - between_s.get(name, one.matmul_s)
            assert two.matmul_s == pytest.approx(one.matmul_s + more_s)


def exchanged(name: str, mixer: type, **execution: object) -> tuple[float, float, object, ExecutionContext]:
    """Return the seconds of the first such mixer of a model among 4 cp and 2 tp ranks, for 256 tokens."""
    where = place(cp=4, tp=2, execution=Execution(**execution))
    layer = next(layer for layer in find_model(name).layers if isinstance(layer.attention, mixer))
    found = analytic._exchanged_s(layer.attention, PassKernels(), layer.hidden_size, where, 256)
    return *found, layer, where


def test_recurrent_heads_are_exchanged_for_tokens_in_two_bytes_an_element() -> None:
    forward_s, backward_s, layer, where = exchanged("mamba2-130m", Recurrent)
    mixer = layer.attention
    widths = (mixer.inner_size + mixer.convolved + mixer.num_heads) // 2, mixer.inner_size // 2
    once = sum(where.seconds("all-to-all", width * 256 * 2.0, "cp") for width in widths)
    assert forward_s == backward_s == pytest.approx(once)


def test_compressed_keys_are_gathered_behind_the_rows_of_the_rank_before() -> None:
    forward_s, backward_s, layer, where = exchanged("deepseek-v4-flash", CompressedAttention)
    mixer, link = layer.attention, where.cluster.tiers[0].p2p_link
    before_s = point_to_point_s(mixer.rows_before * layer.hidden_size * 2.0, link)
    gathered = mixer.gathered_columns * 256 * 4 * 2
    assert forward_s == pytest.approx(before_s + (where.seconds("all-gather", gathered, "cp") if gathered else 0))
    assert backward_s == pytest.approx(
        before_s + (where.seconds("reduce-scatter", gathered, "cp") if gathered else 0)
    )
    bare = replace(mixer, block=None, indexer=None)
    assert bare.gathered_columns == 0
    before_s = point_to_point_s(bare.rows_before * layer.hidden_size * 2.0, link)
    assert analytic._exchanged_s(bare, PassKernels(), layer.hidden_size, where, 256) == (before_s, before_s)


def test_latent_attention_exchanges_half_its_width_each_for_queries_and_for_keys() -> None:
    forward_s, backward_s, layer, where = exchanged("deepseek-v3", ScoredAttention, context="all-to-all")
    width = layer.attention.score_width // 2 // 2
    assert forward_s == backward_s == pytest.approx(4 * where.seconds("all-to-all", width * 256 * 2.0, "cp"))


def test_a_mixer_without_scores_exchanges_nothing() -> None:
    convolution = ShortConvolution(64, 3, bias=False)
    assert analytic._exchanged_s(convolution, PassKernels(), 64, place(cp=4), 256) == (0.0, 0.0)


def test_parts_of_a_layer_in_a_pair_are_its_experts_and_the_rest() -> None:
    """Between dispatch and combine, both included; without experts, the second sublayer."""
    kernels_of = {
        name: PassKernels(*(KernelTime(matmul_s=float(seconds)) for seconds in passes))
        for name, passes in (("a", (1, 2, 3)), ("b", (5, 7, 11)), ("c", (13, 17, 19)), ("d", (23, 29, 31)))
    }
    passes = (
        TimeBreakdown(ideal_s=100.0, ep_s=6.0, host_s=4.0),
        TimeBreakdown(ideal_s=200.0, ep_s=10.0, host_s=8.0),
        TimeBreakdown(ideal_s=20.0, host_s=16.0),
    )
    for kinds, sublayers in (
        (("norm", "dispatch", "combine", "add"), (1, 1, 1, 1)),
        (("norm", "gemm", "gemm", "add"), (1, 2, 2, 1)),
    ):
        operators = [
            SimpleNamespace(name=name, kind=kind, sublayer=sublayer)
            for name, kind, sublayer in zip("abcd", kinds, sublayers, strict=True)
        ]
        found = analytic._times(operators, kernels_of, passes, (3.0, 5.0))
        assert found == LayerTimes(
            (100.0 - 18, 200.0 - 24, 0.0), (18.0, 24.0, 30.0), 3.0, (3.0, 5.0), (4.0, 8.0 + 16.0)
        )


def test_launches_of_a_pair_are_those_of_its_kernels_or_of_routing() -> None:
    usual = place()
    device = replace(usual.cluster.device, efficiency=replace(usual.cluster.device.efficiency, host_s=2.0))
    where = replace(usual, cluster=replace(usual.cluster, device=device))
    of = PassKernels(KernelTime(count=3), KernelTime(count=5), KernelTime(count=7))
    launches = partial(analytic._launches_s, where, of)
    assert launches(1.0) == pytest.approx((1.21 * 6, 1.21 * 24))
    assert launches(10.0, 20.0, 4.0) == pytest.approx((1.21 * 10, 1.21 * (30 + 4)))
    assert launches(10.0, 0.0, 4.0) == pytest.approx((1.21 * 10, 1.21 * (24 + 4)))
    in_8_bits = replace(where, execution=Execution(dtype="float8"))
    assert analytic._launches_s(in_8_bits, of, 1.0) == pytest.approx((1.48 * 6, 1.48 * 24))
    captured = replace(where, execution=Execution(cuda_graphs="full"))
    assert analytic._launches_s(captured, of, 10.0, 20.0, 4.0) == (0.0, 0.0)


def test_what_a_gathered_exchange_of_experts_sends_is_a_ranks_own_tokens() -> None:
    """With sequence parallelism, each of two tp ranks sends half of the tokens."""
    where = {
        is_divided: place(tp=2, dp=8, ep=8, execution=Execution(sequence_parallel=is_divided))
        for is_divided in (False, True)
    }
    layer, tokens = LAYERS["moe"], 2 * 4096
    for is_divided, rows in ((False, tokens), (True, tokens / 2)):
        found = layer_estimate(layer, where[is_divided], **SHAPE).forward.ep_s
        assert found == pytest.approx(analytic._experts_s(layer, where[is_divided], rows))


def test_only_messages_of_a_further_token_and_of_the_heads_backward_are_hidden() -> None:
    model = Model((LAYERS["llama"],) * 2, 128256, 8192, mtp=(LAYERS["llama"],))
    hides, bare = (place(tp=8, execution=Execution(**one)) for one in (HIDING, {}))
    for end, shares in (("embedding", (1, 1)), ("head", (1, 0.25)), ("mtp", (0.5, 0.25))):
        hidden, shown = (end_estimate(model, end, where, **SHAPE) for where in (hides, bare))
        backward_s = [one.backward_input.tp_s + one.backward_weight.tp_s for one in (hidden, shown)]
        assert hidden.forward.tp_s == pytest.approx(shares[0] * shown.forward.tp_s), end
        assert backward_s[0] == pytest.approx(shares[1] * backward_s[1]), end


HIDING = {"hidden_tp_forward": 0.5, "hidden_tp_backward": 0.75}
