"""Mamba-2, the gated delta rule, windows and hybrids: parameters, FLOPs, division and memory, each by its closed form."""

from dataclasses import replace

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model import recurrent as recurrent_module
from ppsim.model.activations import layer_activations, weight_gradient_bytes
from ppsim.model.architecture import Layer
from ppsim.model.attention_and_mlp import Attention, FeedForward, MixtureOfExperts, NoAttention, NoFeedForward
from ppsim.model.execution import Execution
from ppsim.model.hybrid import HybridMixers, windowed
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.parameters import held_of_layer, require_division_of_layer
from ppsim.model.pipeline_stages import Stage
from ppsim.model.rank_memory import rank_memory
from ppsim.model.recurrent import ChunkProduct, GatedDeltaNet, KimiDeltaAttention, Mamba, Recurrent
from ppsim.model.registry import find_model
from ppsim.parallel.sizes import ParallelSizes
from tests.defaults import number_defaults
from tests.model.operator_lines import lines_of, matrix_lines_of

MAMBA = Mamba(num_heads=8, head_size=16, state_size=32, num_groups=2, chunk_size=64)
DELTA = GatedDeltaNet(num_key_heads=2, num_value_heads=4, key_size=16, value_size=32)

KIMI = KimiDeltaAttention(num_key_heads=2, num_value_heads=4, key_size=16, value_size=32, gate_bias=True)


def alone(mixer) -> Layer:
    return Layer(64, mixer, NoFeedForward(), num_norms=1)


@pytest.mark.parametrize("length", [1, 7, 128, 129, 1000])
def test_a_window_has_the_pairs_that_its_mask_has(length: int) -> None:
    """A query sees itself and the window - 1 tokens before it: counted one by one."""
    window = 128
    pairs = sum(min(query + 1, window) for query in range(length))
    attention = Attention(4, 2, 16, window=window)
    if length > window:
        assert attention.keys_per_query(length) * length == pytest.approx(pairs, rel=1e-12)
        assert attention.core_flops(length, causal=True) * length == pytest.approx(pairs * 4 * 4 * 16, rel=1e-12)
    else:  # the whole half, as everywhere without a window
        assert attention.keys_per_query(length) == length / 2


def test_chunked_attention_sees_its_own_chunk() -> None:
    attention = Attention(4, 2, 16, window=8, is_chunked=True)
    assert attention.keys_per_query(32) == 8 / 2
    assert attention.core_flops(32, causal=False) == 2 * attention.core_flops(32, causal=True)


def test_half_of_gpt_oss_sees_a_window() -> None:
    model = find_model("gpt-oss-20b")
    assert [layer.attention.window for layer in model.layers[:4]] == [128, None, 128, None]
    short, whole = (layer.forward_flops(8192, causal=True) for layer in model.layers[:2])
    assert whole - short == pytest.approx(4 * 4096 * (8192 / 2 - (128 - 128 * 127 / 16384)), rel=1e-12)
    assert model.layers[0].parameters == model.layers[1].parameters


def test_sinks_are_a_number_a_head_and_no_product() -> None:
    with_sinks, without = (Layer(64, Attention(4, 2, 16, sinks=sinks), FeedForward(8)) for sinks in (True, False))
    assert with_sinks.parameters - without.parameters == 4
    assert with_sinks.forward_flops(8) == without.forward_flops(8)
    assert (
        held_of_layer(with_sinks, ParallelSizes(tp=2)).dense - held_of_layer(without, ParallelSizes(tp=2)).dense
        == 2
    )


def test_a_gate_has_as_many_columns_as_the_queries() -> None:
    gated, plain = (Layer(64, Attention(4, 2, 16, gated=gated), FeedForward(8)) for gated in (True, False))
    assert gated.parameters - plain.parameters == 64 * 4 * 16
    batch, cut, kernels = (1, 32), ParallelSizes(tp=2), Execution()
    kept = [
        layer_activations(layer, MemorySettings(*batch, cut, execution=kernels))["attention"]
        for layer in (gated, plain)
    ]
    assert kept[0] - kept[1] == 2 * 64 // 2 * 32 * 2  # the gate, and what it leaves


def test_parameters_of_mamba_are_those_of_its_parts() -> None:
    """In, out, convolution with biases, decay, skip and bias of the time step, gated norm, and the norm before."""
    inner, convolved = 128, 128 + 2 * 2 * 32
    parameters = 64 * (inner + convolved + 8) + inner * 64 + 5 * convolved + 3 * 8 + inner + 64
    assert alone(MAMBA).parameters == parameters


def test_flops_of_the_scan_are_those_of_its_chunks() -> None:
    """2Q(GN + HP) + 4HPN a token; the first half as much where only unmasked pairs count (arXiv 2405.21060, §6)."""
    within, across = 2 * 64 * (2 * 32 + 8 * 16), 4 * 8 * 16 * 32
    assert MAMBA.core_flops(4096, causal=False) == within + across
    assert MAMBA.core_flops(4096, causal=True) == within / 2 + across
    assert MAMBA.core_flops(32, causal=False) == within / 2 + across  # a sequence of half a chunk
    weights = 64 * (128 + 256 + 8) + 128 * 64
    assert alone(MAMBA).forward_flops(4096) == 2 * weights + within + across


def test_flops_of_the_delta_rule_are_those_of_its_chunks() -> None:
    """2Q(3k + 2v) + 6kv a token and head (arXiv 2412.06464, §3.3)."""
    within, across = 4 * 2 * 64 * (3 * 16 + 2 * 32), 4 * 6 * 16 * 32
    assert DELTA.core_flops(4096, causal=False) == within + across
    assert DELTA.core_flops(4096, causal=True) == within / 2 + across


def test_kimis_gates_come_by_way_of_a_narrow_one() -> None:
    """Beside what both have: h to two of a head's width, up to a decay a key column and a gate a value column."""
    assert KIMI.core_flops(4096, causal=True) == DELTA.core_flops(4096, causal=True)
    gates = 64 * 2 * 32 + 32 * (4 * 16 + 4 * 32) + 4 * 32 + 4 * 16  # a bias of the gate, one of the decay
    plain = 64 * (4 * 32 + 4) + 4  # the gate at once, the decay at once, and its bias
    assert alone(KIMI).parameters - alone(DELTA).parameters == gates - plain


def test_kimis_narrow_gates_are_whole_on_every_rank() -> None:
    layer, narrow = alone(KIMI), 64 * 2 * 32
    whole = 64 + KIMI.norm_parameters + narrow
    assert 2 * (held_of_layer(layer, ParallelSizes(tp=2)).dense - whole) == layer.parameters - whole


@pytest.mark.parametrize("mixer", [MAMBA, DELTA], ids=["mamba", "delta"])
def test_tensor_parallel_ranks_hold_and_compute_equal_parts(mixer) -> None:
    layer = alone(mixer)
    whole = 64 + mixer.norm_parameters
    assert 2 * (held_of_layer(layer, ParallelSizes(tp=2)).dense - whole) == layer.parameters - whole
    flops = [sum(one.flops for one in mixer.chunk_products(tp)) for tp in (1, 2)]
    assert flops[0] == 2 * flops[1]
    assert held_of_layer(layer, ParallelSizes()).matrices == sum(
        one.weights for one in layer.all_linears if one.is_product
    )


def test_what_a_mixer_keeps_is_divided_by_tp_and_does_not_grow_with_the_square_of_the_sequence() -> None:
    kept = {
        (tp, length): layer_activations(alone(MAMBA), MemorySettings(1, length, ParallelSizes(tp=tp)))
        for tp in (1, 2)
        for length in (64, 128)
    }
    columns = 128 + 256 + 8 + 3 * 128
    assert kept[1, 64] == {"norms": 64 * 64 * 2, "attention": 64 * 64 * 2 + columns * 64 * 2}
    assert kept[2, 64]["attention"] == 64 * 64 * 2 // 2 + columns // 2 * 64 * 2
    assert kept[1, 128] == {name: 2 * size for name, size in kept[1, 64].items()}


def test_the_backward_of_a_scan_holds_its_states() -> None:
    """HPN numbers per chunk and their gradients in float32."""
    wide = Mamba(64, 64, 128, chunk_size=128)
    settings = MemorySettings(1, 4096, workspace_bytes=0)
    memory = rank_memory(find_model("gpt2"), [Stage((Layer(64, wide, NoFeedForward()),))], settings, in_flight=[1])
    assert memory.components["gradient of a layer"] == 2 * 4 * (64 * 64 * 128) * 4096 // 128


def test_a_latent_narrows_what_experts_hold_and_keep() -> None:
    expert = FeedForward(32, gated=False)
    wide, narrow = (
        Layer(64, NoAttention(), MixtureOfExperts(expert, 8, 2, latent_size=latent), num_norms=1)
        for latent in (None, 16)
    )
    assert wide.expert_parameters == 8 * 2 * 32 * 64
    assert narrow.expert_parameters == 8 * 2 * 32 * 16
    assert narrow.parameters - narrow.expert_parameters - (wide.parameters - wide.expert_parameters) == 2 * 16 * 64
    kept = [layer_activations(one, MemorySettings(1, 32))["experts"] for one in (wide, narrow)]
    assert kept[0] - kept[1] == 32 * 2 * (2 * (64 - 16) - 16)
    assert weight_gradient_bytes(narrow, MemorySettings(1, 32)) < weight_gradient_bytes(wide, MemorySettings(1, 32))


def test_halves_are_a_whole_layer() -> None:
    """A layer cut in two has its parameters, FLOPs and activations."""
    whole = find_model("llama3-8b").layers[0]
    first = replace(whole, ffn=NoFeedForward(), num_norms=1)
    second = replace(whole, attention=NoAttention(), num_norms=1)
    assert first.parameters + second.parameters == whole.parameters
    assert first.forward_flops(4096) + second.forward_flops(4096) == whole.forward_flops(4096)
    batch, cut, kernels = (1, 4096), ParallelSizes(tp=4), Execution()
    kept = [
        sum(layer_activations(one, MemorySettings(*batch, cut, execution=kernels)).values())
        for one in (first, second, whole)
    ]
    assert kept[0] + kept[1] == kept[2]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("nemotron-h-8b", (24, 4, 24, 0)),
        ("nemotron-h-47b", (45, 5, 48, 0)),
        ("nemotron-h-56b", (54, 10, 54, 0)),
        ("nemotron-nano-9b-v2", (27, 4, 25, 0)),
        ("nemotron-nano-12b-v2", (28, 6, 28, 0)),
        ("nemotron-3-nano-30b-a3b", (23, 6, 0, 23)),
        ("nemotron-3-super-120b-a12b", (40, 8, 0, 40)),
    ],
)
def test_patterns_have_the_published_numbers_of_layers(name: str, counts: tuple[int, ...]) -> None:
    layers = find_model(name).layers
    mixers = [layer.attention for layer in layers if layer.has_mixer]
    mambas = sum(isinstance(mixer, Mamba) for mixer in mixers)
    experts = sum(layer.is_moe for layer in layers)
    assert (mambas, len(mixers) - mambas, len(layers) - len(mixers) - experts, experts) == counts


HALVES = HybridMixers(64, mamba=MAMBA, attention=Attention(4, 2, 16), dense=FeedForward(128, gated=False))
WRONG = {
    "letter": (lambda: HALVES.layers("M-X"), "the pattern M-X has a layer 'X', which is not known"),
    "no sizes": (lambda: HALVES.layers("ME"), "the pattern ME asks for experts, whose sizes are not given"),
    "empty": (lambda: HALVES.layers("|"), "the pattern '|' has no layers"),
    "further": (lambda: HALVES.whole("-*"), "a layer for further tokens is a mixer and a feed-forward part"),
    "groups": (lambda: Mamba(6, 16, 32, num_groups=4), "must be a multiple of the groups: got 6 and 4"),
    "heads": (lambda: GatedDeltaNet(4, 6, 16, 16), "must be a multiple of its key heads: got 6 and 4"),
    "no state": (lambda: Mamba(8, 16, 0), "state_size must be at least 1: got 0"),
    "tp of groups": (
        lambda: require_division_of_layer(alone(MAMBA), ParallelSizes(tp=4)),
        "tp must divide the Mamba groups: got 4 with 2 (nearest below: 2)",
    ),
    "cp of heads": (
        lambda: require_division_of_layer(alone(MAMBA), ParallelSizes(tp=2, cp=8)),
        "tp × cp must divide the Mamba heads: got 16 with 8 (nearest below: 8)",
    ),
    "tp of key heads": (
        lambda: require_division_of_layer(alone(DELTA), ParallelSizes(tp=4)),
        "tp must divide the key heads of the delta net: got 4 with 2",
    ),
    "cp of a delta net": (
        lambda: require_division_of_layer(alone(DELTA), ParallelSizes(cp=2)),
        "context parallelism of a gated delta net is not known: got cp 2",
    ),
    "window of another mixer": (
        lambda: windowed(alone(MAMBA), 8), "sliding windows are known for multi-head"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_said_in_a_sentence(case: str) -> None:
    make, sentence = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        make()
    assert sentence in str(caught.value)


def test_tensor_parallel_ranks_divide_every_operator_of_a_mamba_mixer() -> None:
    """Nemotron 3 Nano: 64 heads of 64 columns, 8 groups of 128 states; x, gate and output have 4096 columns."""
    mamba = find_model("nemotron-3-nano-30b-a3b").layers[0].attention
    for tp in (1, 4):
        found = {one.name: one for one in mamba.operators(2688, ParallelSizes(tp=tp), Execution(), 4096)}
        assert found["convolution"].columns == (4096 + 2 * 8 * 128) // tp
        assert found["gate"].columns == 4096 // tp
        assert found["scan"].core is mamba
        projected = found["gate, x, B, C, time step"].weight
        assert (projected.inputs, sum(projected.columns)) == (2688, (2 * 4096 + 2 * 8 * 128 + 64) // tp)
        assert (found["attention output"].weight.inputs, found["attention output"].weight.columns) == (
            4096 // tp, (2688,),
        )  # fmt: skip
        assert found["makes kept"].writes[0].columns == mamba.kept_columns // tp


def test_what_is_left_out_in_model_recurrent_has_these_values() -> None:
    assert number_defaults(recurrent_module) == {
        "ChunkProduct": {"is_within": False, "is_again": False},
        "Recurrent.chunk_products": {"tp": 1},
        "Mamba": {"num_groups": 1, "kernel": 4, "chunk_size": 256, "bias": False, "conv_bias": True, "gated_norm": True},
        "Mamba.chunk_products": {"tp": 1},
        "GatedDeltaNet": {"kernel": 4, "chunk_size": 64},
        "GatedDeltaNet.chunk_products": {"tp": 1},
        "KimiDeltaAttention": {"gate_bias": False, "full_gate": False},
    }  # fmt: skip


RECURRENT = {
    "mamba": (Mamba(8, 12, 14, num_groups=4, kernel=3, chunk_size=20, bias=True), ParallelSizes(tp=2)),
    "mamba without a norm": (
        Mamba(8, 12, 14, num_groups=4, chunk_size=20, conv_bias=False, gated_norm=False), ParallelSizes(),
    ),
    "gated delta net": (GatedDeltaNet(4, 8, 9, 11, kernel=3, chunk_size=20), ParallelSizes(tp=2)),
    "kimi delta attention": (
        KimiDeltaAttention(4, 8, 9, 11, kernel=3, chunk_size=20, gate_bias=True), ParallelSizes(tp=2),
    ),
    "kimi delta attention with a full gate": (
        KimiDeltaAttention(4, 8, 9, 11, kernel=3, chunk_size=20, full_gate=True), ParallelSizes(),
    ),
}  # fmt: skip
LINES_OF_RECURRENT = {
    "mamba": """
gate, x, B, C, time step <- attention input 36·48+48+28+28+4 split outputs biased
convolution <- x, B, C 3·48+28+28 vector split outputs biased
decay, skip, bias of time step <- x 1·4+4+4 vector split outputs
gated norm <- heads 1·48 vector split outputs
attention output <- heads 48·36 split inputs biased
convolution <scan>  > ; kind: convolution; columns: 104
scan <scan>  > ; core
gate <scan>  > ; kind: gate; columns: 48
makes kept <scan>  > kept T·300 attention; I: kept
gate, x, B, C, time step <attn> n1 > gate, x, B, C, time step out T·156 norms; W: n1; weight: gate, x, B, C, time step 36·156; 8 bits
view of attention output <attn> kept > heads T·48 attention [kept]; passes
attention output <attn> heads > mixed own·36 norms; W: heads; weight: attention output 48·36
""",
    "mamba without a norm": """
gate, x, B, C, time step <- attention input 36·96+96+56+56+8 split outputs
convolution <- x, B, C 4·96+56+56 vector split outputs
decay, skip, bias of time step <- x 1·8+8+8 vector split outputs
attention output <- heads 96·36 split inputs
convolution <scan>  > ; kind: convolution; columns: 208
scan <scan>  > ; core
gate <scan>  > ; kind: gate; columns: 96
makes kept <scan>  > kept T·504 attention; I: kept
gate, x, B, C, time step <attn> n1 > gate, x, B, C, time step out T·312 norms; W: n1; weight: gate, x, B, C, time step 36·312; 8 bits
view of attention output <attn> kept > heads T·96 attention [kept]; passes
attention output <attn> heads > mixed own·36 norms; W: heads; weight: attention output 96·36
""",
    "gated delta net": """
queries, keys, values, gates <- attention input 36·18+18+44+44+4+4 split outputs
convolution <- queries, keys, values 3·18+18+44 vector split outputs
decay, bias of time step <- gates 1·4+4 vector split outputs
attention output <- heads 44·36 split inputs
convolution <scan>  > ; kind: convolution; columns: 80
scan <scan>  > ; core
gate <scan>  > ; kind: gate; columns: 44
makes kept <scan>  > kept T·416 attention; I: kept
queries, keys, values, gates <attn> n1 > queries, keys, values, gates out T·132 norms; W: n1; weight: queries, keys, values, gates 36·132; 8 bits
view of attention output <attn> kept > heads T·44 attention [kept]; passes
attention output <attn> heads > mixed own·36 norms; W: heads; weight: attention output 44·36
""",
    "kimi delta attention": """
queries, keys, values, strength <- attention input 36·18+18+44+4 split outputs
decay and gate down <- attention input 36·11+11
decay up <- narrow decay 11·36 split outputs
gate up <- narrow gate 11·44 split outputs biased
convolution <- queries, keys, values 3·18+18+44 vector split outputs
rate and bias of decay <- decay 1·4+36 vector split outputs
attention output <- heads 44·36 split inputs
convolution <scan>  > ; kind: convolution; columns: 80
scan <scan>  > ; core
gate <scan>  > ; kind: gate; columns: 44
makes kept <scan>  > kept T·539 attention; I: kept
queries, keys, values, strength <attn> n1 > queries, keys, values, strength out T·84 norms; W: n1; weight: queries, keys, values, strength 36·84; 8 bits
decay and gate down <attn> n1 > decay and gate down out own·22 norms; W: n1; weight: decay and gate down 36·22; 8 bits
view of decay up <attn> kept > narrow decay own·11 attention [kept]; passes
decay up <attn> narrow decay > decay up out T·36 norms; W: narrow decay; weight: decay up 11·36
view of gate up <attn> kept > narrow gate own·11 attention [kept]; passes
gate up <attn> narrow gate > gate up out T·44 norms; W: narrow gate; weight: gate up 11·44
view of attention output <attn> kept > heads T·44 attention [kept]; passes
attention output <attn> heads > mixed own·36 norms; W: heads; weight: attention output 44·36
""",
    "kimi delta attention with a full gate": """
queries, keys, values, strength, gate <- attention input 36·36+36+88+8+88 split outputs
decay down <- attention input 36·11
decay up <- narrow decay 11·72 split outputs
convolution <- queries, keys, values 3·36+36+88 vector split outputs
rate and bias of decay <- decay 1·8+72 vector split outputs
attention output <- heads 88·36 split inputs
convolution <scan>  > ; kind: convolution; columns: 160
scan <scan>  > ; core
gate <scan>  > ; kind: gate; columns: 88
makes kept <scan>  > kept T·1067 attention; I: kept
queries, keys, values, strength, gate <attn> n1 > queries, keys, values, strength, gate out T·256 norms; W: n1; weight: queries, keys, values, strength, gate 36·256; 8 bits
decay down <attn> n1 > decay down out own·11 norms; W: n1; weight: decay down 36·11; 8 bits
view of decay up <attn> kept > narrow decay own·11 attention [kept]; passes
decay up <attn> narrow decay > decay up out T·72 norms; W: narrow decay; weight: decay up 11·72
view of attention output <attn> kept > heads T·88 attention [kept]; passes
attention output <attn> heads > mixed own·36 norms; W: heads; weight: attention output 88·36
""",
}
"""Matrices on a rank, then operators."""


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_mixer_has_these_matrices_and_operators(name: str) -> None:
    mixer, sizes = RECURRENT[name]
    lines = [*matrix_lines_of(mixer.linears(36, sizes.tp)), *lines_of(mixer.operators(36, sizes, Execution(), 50))]
    assert lines == LINES_OF_RECURRENT[name].strip().splitlines()


def test_gemms_of_a_chunk_have_these_sizes() -> None:
    """Count, rows, columns and depth; w: over pairs of tokens in the chunk, a: again in the backward."""

    def products(mixer: Recurrent, tp: int) -> list[str]:
        return [
            f"{one.count} {one.rows}·{one.columns}·{one.depth}{' w' * one.is_within}{' a' * one.is_again}"
            for one in mixer.chunk_products(tp)
        ]

    mamba, delta = RECURRENT["mamba"][0], RECURRENT["gated delta net"][0]
    assert products(mamba, 2) == ["2 20·20·14 w a", "4 20·12·20 w", "4 12·14·20 a", "4 20·12·14"]
    assert products(delta, 2) == [
        "4 20·20·9 w", "4 20·9·20 w a", "4 20·11·20 w a", "4 20·20·9 w", "4 20·11·20 w", "4 20·11·9 a", "4 20·11·9",
        "4 9·11·20 a",
    ]  # fmt: skip
    assert ChunkProduct(3, 5, 7, 11).flops == 2 * 3 * 5 * 7 * 11
    assert (mamba.transient_bytes, delta.transient_bytes) == (8 * 96 * 14 // 20, 4 * 8 * 99 // 20)
    assert (mamba.inner_size, mamba.convolved, delta.inner_size, delta.convolved) == (96, 208, 88, 160)
    assert (mamba.norm_parameters, delta.norm_parameters, delta.num_heads) == (0, 11, 8)
    for mixer, names in (
        (mamba, ("num_heads", "head_size", "state_size", "num_groups", "kernel", "chunk_size")),
        (delta, ("num_key_heads", "num_value_heads", "key_size", "value_size", "kernel", "chunk_size")),
    ):
        for name in names:
            with pytest.raises(ConfigError, match=name):
                replace(mixer, **{name: 0})
    mamba.require_division(ParallelSizes(tp=2, cp=4))
    for sizes in (ParallelSizes(tp=2, cp=3), ParallelSizes(tp=8), ParallelSizes(cp=16)):
        with pytest.raises(ConfigError):
            mamba.require_division(sizes)
    for sizes in (ParallelSizes(tp=8), ParallelSizes(cp=2)):
        with pytest.raises(ConfigError):
            delta.require_division(sizes)
