"""Seconds of windows, scans, delta rules, hybrids and latent experts: FLOPs, bytes and messages in closed form."""

import itertools
from dataclasses import replace

import pytest

from ppsim.costs.analytic import layer_estimate
from ppsim.costs.cores import core_of, recurrence
from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.pass_kernels import total
from ppsim.machine.cluster_files import load_cluster
from ppsim.model.attention_and_mlp import NoAttention, NoFeedForward
from ppsim.model.execution import Execution
from ppsim.model.recurrent import Mamba
from ppsim.model.registry import find_model
from ppsim.parallel.layout import Layout
from tests.costs.timed import kernels

LENGTH = 8192


def place(**sizes) -> ExecutionContext:
    execution, cluster = sizes.pop("execution", Execution()), load_cluster(sizes.pop("cluster", "dgx-h100"))
    return ExecutionContext(cluster=cluster, layout=Layout(**sizes), execution=execution)


def estimate(layer, where=None):
    return layer_estimate(layer, where or place(), micro_batch=1, sequence_length=LENGTH)


MAMBA, MLP, ATTENTION = find_model("nemotron-h-8b").kinds[:3]
WINDOWED, WHOLE = find_model("gpt-oss-20b").kinds
DELTA, GATED = find_model("qwen3-next-80b-a3b").kinds
_, SPARSE, HEAVY = find_model("deepseek-v4-flash").layers[1:4]


@pytest.mark.parametrize(
    ("layer", "tp"),
    [
        *itertools.product([MAMBA, ATTENTION, MLP, WINDOWED, WHOLE, DELTA, GATED], [1, 2]),
        (SPARSE, 1),
        (HEAVY, 1),
    ],
)
def test_the_ideal_is_a_ranks_share_of_the_layers_causal_flops(layer, tp) -> None:
    where = place(tp=tp, dp=8)
    found, peak = estimate(layer, where), where.cluster.device.peak("bfloat16")
    assert found.forward.ideal_s == pytest.approx(layer.forward_flops(LENGTH, causal=True) * LENGTH / tp / peak)
    parts = found.forward, found.backward_input, found.backward_weight
    assert sum(part.ideal_s for part in parts) == pytest.approx(3 * found.forward.ideal_s)
    for part in parts:
        assert part.matmul_loss_s >= 0
        assert part.attention_loss_s >= 0
        assert part.more_flops_s >= -1e-4 * part.ideal_s  # the column that weighs a shared expert is no kernel


def test_a_window_costs_its_pairs_and_the_tiles_at_its_end() -> None:
    where = place()
    of = {name: core_of(layer.attention, where, micro_batch=1, sequence_length=LENGTH).forward
          for name, layer in (("window", WINDOWED), ("whole", WHOLE))}  # fmt: skip
    pairs = (LENGTH * 128 - 128 * 127 / 2) * 64 * 2 * 2 * 64
    assert of["window"].attention_ideal_s == pytest.approx(pairs / where.cluster.device.peak("bfloat16"))
    assert of["whole"].attention_ideal_s / of["window"].attention_ideal_s == pytest.approx(
        LENGTH / 2 / (128 - 128 * 127 / 2 / LENGTH)
    )
    assert of["window"].attention_s / of["window"].attention_ideal_s > 1.4  # half a tile of 128 more, for 128
    assert of["window"].attention_s < of["whole"].attention_s / 10


@pytest.mark.parametrize("dtype", ["float8", "mxfp8", "nvfp4"])
def test_attention_in_8_bits_goes_by_format_and_pass_and_a_windows_backward_computes_all_scores(dtype: str) -> None:
    in_16_bits, in_8_bits = (
        place(cluster="gb200-nvl72", execution=Execution(dtype=dtype, attention=how))
        for how in ("fused", "fused-fp8")
    )
    gain = in_8_bits.cluster.device.efficiency.attention_fp8_gain["mxfp8" if dtype == "mxfp8" else "float8"]

    def core(layer, where):
        return core_of(layer.attention, where, micro_batch=1, sequence_length=LENGTH)

    whole, window = core(WHOLE, in_16_bits), core(WINDOWED, in_16_bits)
    fp8, window_fp8 = core(WHOLE, in_8_bits), core(WINDOWED, in_8_bits)
    assert fp8.forward.attention_s == pytest.approx(whole.forward.attention_s / gain["forward"])
    assert fp8.backward_input.attention_s == pytest.approx(whole.backward_input.attention_s / gain["backward"])
    assert window_fp8.forward.attention_s == pytest.approx(window.forward.attention_s / gain["forward"])
    assert window_fp8.backward_input.attention_s == pytest.approx(fp8.backward_input.attention_s)
    assert window_fp8.backward_input.attention_s > 2 * window.backward_input.attention_s
    assert window_fp8.backward_input.attention_ideal_s == pytest.approx(window.backward_input.attention_ideal_s)
    # Delayed scaling also casts the output, and the gradients of queries, keys and values, back to 16 bits.
    both = 0 if dtype == "mxfp8" else 1
    of_inputs, of_output = 64 * (64 + 8 + 8.0), 64 * 64.0
    for found, columns, launches in (
        (fp8.forward, of_inputs + both * of_output, 3 + both),
        (fp8.backward_input, of_output + both * of_inputs, 1 + 3 * both),
    ):
        casts = found.memory_s - launches * in_8_bits.device.efficiency.kernel_s
        assert casts == pytest.approx(
            in_8_bits.wide_times.moved_s(
                "elementwise", (4 if dtype == "mxfp8" else 3) * LENGTH * columns, launches=0
            )
        )


@pytest.mark.parametrize(("dtype", "share"), [("float8", 0.5), ("nvfp4", 0.5), ("mxfp8", 1.0)])
def test_context_parallel_attention_with_one_scale_per_tensor_sends_8_bits(dtype: str, share: float) -> None:
    sent = [
        estimate(WHOLE, place(cp=8, cluster="gb200-nvl72", execution=Execution(
            dtype=dtype, attention=how, context="all-to-all"))).forward.cp_s
        for how in ("fused", "fused-fp8")
    ]  # fmt: skip
    launches_s = 4 * place(cp=8, cluster="gb200-nvl72").seconds("all-to-all", 1e-9, "cp")
    assert sent[1] - launches_s == pytest.approx(share * (sent[0] - launches_s), rel=1e-3)


def test_a_window_of_the_whole_sequence_costs_what_no_window_does() -> None:
    wide = replace(WHOLE, attention=replace(WHOLE.attention, window=LENGTH))
    assert estimate(wide) == estimate(WHOLE)


def test_the_core_of_a_recurrent_mixer_grows_with_the_sequence_and_attention_with_its_square() -> None:
    def core(layer, length):
        return core_of(layer.attention, place(), micro_batch=1, sequence_length=length).forward.attention_s

    for layer in (MAMBA, DELTA):
        assert core(layer, 65536) / core(layer, 32768) == pytest.approx(2, rel=0.03)
    assert core(ATTENTION, 65536) / core(ATTENTION, 32768) == pytest.approx(4, rel=0.02)


def test_the_backward_of_a_scan_is_two_forwards_and_what_it_computes_again() -> None:
    found = recurrence(MAMBA.attention, place(), tokens=LENGTH)
    launches = 2 + len(MAMBA.attention.chunk_products(place().cut.tp))
    assert [one.count for one in found.passes] == [launches, launches, 0]
    flops = sum(one.flops for one in MAMBA.attention.chunk_products()) * LENGTH / 128
    again = sum(one.flops for one in MAMBA.attention.chunk_products() if one.is_again) * LENGTH / 128
    peak = place().cluster.device.peak("bfloat16")
    assert found.forward.attention_ideal_s == pytest.approx(flops / peak)
    assert found.backward_input.attention_ideal_s == pytest.approx((2 * flops + again) / peak)
    assert not found.backward_weight.count


@pytest.mark.parametrize(
    ("cluster", "published"), [("dgx-a100", 102.5e12), ("dgx-h200", 239.2e12), ("gb200-nvl72", 360.4e12)]
)
def test_a_scan_takes_what_published_steps_of_a_pure_mamba_2_leave_for_it(cluster, published) -> None:
    """48 layers of 2048 trained in bfloat16 on 4 sequences of 4096, FLOP/s by 6N (state-spaces/mamba, issue 904)."""
    where = place(cluster=cluster)
    layer = replace(MAMBA, hidden_size=2048, attention=Mamba(64, 64, 128, chunk_size=256))
    tokens, vocabulary = 4 * 4096, 50288 * 2048
    parameters = 48 * sum(one.weights for one in layer.linears(where.cut)) + vocabulary
    head_s = 6 * vocabulary * tokens / (0.7 * where.device.peak("bfloat16"))
    found = total(kernels(layer, where, tokens=tokens).values())
    took = 48 * sum(one.busy_s for one in found.passes) + head_s
    assert took == pytest.approx(6 * parameters * tokens / published, rel=0.01)


def test_convolution_and_gate_are_passes_over_memory() -> None:
    """2e a convolved column and 3e a gated one forward, 5e and 6e backward."""
    where = place()
    of = kernels(MAMBA, where, tokens=LENGTH)
    both = of["convolution"] + of["gate"]
    speed = where.cluster.device.memory_bytes_per_s * where.cluster.device.efficiency.memory
    launches, convolved = where.cluster.device.efficiency.kernel_s, 8192 + 2 * 8 * 128
    forward, backward = (one.memory_s for one in both.passes[:2])
    assert forward == pytest.approx(LENGTH * 2 * (2 * convolved + 3 * 8192) / speed + 2 * launches)
    assert backward == pytest.approx(LENGTH * 2 * (5 * convolved + 6 * 8192) / speed + 4 * launches)


def test_halves_of_a_layer_cost_the_layer() -> None:
    """Products, core, norms, residuals and sums over tp: nothing is counted twice, nothing is lost."""
    whole = find_model("llama3-8b").layers[0]
    first, second = replace(whole, ffn=NoFeedForward(), num_norms=1), replace(whole, attention=NoAttention())
    for where in (place(tp=4), place(tp=4, execution=Execution(sequence_parallel=True))):
        halves, found = estimate(first, where) + estimate(second, where), estimate(whole, where)
        for part in ("forward", "backward_input", "backward_weight"):
            assert getattr(halves, part).total_s == pytest.approx(getattr(found, part).total_s, rel=1e-9)
            assert getattr(halves, part).tp_s == pytest.approx(getattr(found, part).tp_s)


def test_tokens_are_sent_to_experts_as_narrow_as_their_latent() -> None:
    sparse = next(layer for layer in find_model("nemotron-3-super-120b-a12b").layers if layer.is_moe)
    wide = replace(sparse, ffn=replace(sparse.ffn, latent_size=None))
    sent = [estimate(layer, place(dp=64, ep=64)).forward.ep_s for layer in (sparse, wide)]
    assert sent[1] / sent[0] == pytest.approx(4096 / 1024, rel=0.05)


def test_mamba_exchanges_heads_for_tokens_among_context_parallel_ranks() -> None:
    """What its projection gives, and the result back; a feed-forward half exchanges nothing."""
    where = place(cp=2)
    tokens, mixer = LENGTH // 2, MAMBA.attention
    columns = mixer.inner_size + mixer.convolved + mixer.num_heads, mixer.inner_size
    expected = sum(where.seconds("all-to-all", 2.0 * count * tokens, "cp") for count in columns)
    found = estimate(MAMBA, where)
    assert found.forward.cp_s == pytest.approx(expected)
    assert found.backward_input.cp_s == pytest.approx(expected)  # gradients the other way, no ring
    assert not estimate(MLP, where).forward.cp_s


def test_recomputing_a_feed_forward_part_repeats_nothing_of_a_layer_without_one() -> None:
    where = place(tp=2, execution=Execution(recompute="mlp"))
    assert not estimate(MAMBA, where).backward_input.recompute_s
    again = estimate(MLP, where)
    assert again.backward_input.recompute_s > again.forward.tp_s > 0


def test_the_core_of_attention_is_recomputed_where_there_is_one() -> None:
    """A scan is computed again from what it keeps whatever is asked for; a word of attention adds nothing to it."""
    where = place(cp=2, execution=Execution(recompute="core_attn", context="all-to-all"))
    assert not estimate(MAMBA, where).backward_input.recompute_s
    again = estimate(ATTENTION, where)
    assert again.backward_input.recompute_s > again.forward.cp_s > 0
