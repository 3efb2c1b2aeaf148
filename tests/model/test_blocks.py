"""Operators of every known layer form a graph: what one reads, another has written, with as many columns."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from ppsim.model import attention_and_mlp as attention_and_mlp_module
from ppsim.model import blocks as blocks_module
from ppsim.model import conditioning as conditioning_module
from ppsim.model import mixer as mixer_module
from ppsim.model.architecture import End, Layer, Model
from ppsim.model.attention_and_mlp import (
    Attention,
    FeedForward,
    LatentAttention,
    MixtureOfExperts,
    NoAttention,
    NoFeedForward,
)
from ppsim.model.attention_base import Indexer
from ppsim.model.blocks import end_operators, has_norm_in_gemm, layer_input, operators_of
from ppsim.model.conditioning import Conditioning, Patches
from ppsim.model.execution import Execution
from ppsim.model.fine_tuning import fine_tuning_of
from ppsim.model.operators import Operator, Tensor, tensors_of
from ppsim.model.registry import _told, find_model
from ppsim.parallel.sizes import ParallelSizes
from tests.defaults import number_defaults
from tests.model.operator_lines import lines_of

Graph = tuple[tuple[Operator, ...], dict[str, Tensor]]
KERNELS = (Execution(), Execution(attention="unfused", dropout=True))


def layers() -> list[Layer]:
    """Return a layer of each kind of all models, by its matrices and parts."""
    found: dict[str, Layer] = {}
    for name in _told():
        for layer in find_model(name).kinds:
            key = (
                type(layer.attention).__name__,
                layer.norm,
                layer.streams,
                layer.num_norms,
                layer.summed_residuals,
            )
            names = tuple(one.name for one in layer.linears(ParallelSizes()))
            found.setdefault(repr((key, names, layer.conditioned)), layer)
    return list(found.values())


@pytest.fixture(scope="module")
def graphs() -> list[Graph]:
    return [
        (operators, tensors_of(operators, layer_input(layer)))
        for layer, tp, kernels in product(layers(), (1, 2), KERNELS)
        for operators in [operators_of(layer, ParallelSizes(tp=tp), kernels, 4096)]
    ]


def test_there_are_layers_of_many_kinds(graphs: list[Graph]) -> None:
    assert len(graphs) > 4 * 40


def test_operators_have_names_of_their_own(graphs: list[Graph]) -> None:
    assert not [
        name
        for operators, _ in graphs
        for name, count in Counter(one.name for one in operators).items()
        if count > 1
    ]


def test_what_an_operator_reads_was_written_before(graphs: list[Graph]) -> None:
    for operators, _ in graphs:
        written = {"x"}
        for one in operators:
            assert set(one.reads) <= written, one.name
            written |= {tensor.name for tensor in one.writes}


def test_saved_tensors_exist(graphs: list[Graph]) -> None:
    for operators, tensors in graphs:
        for one in operators:
            assert {*one.saved_for_i, *one.saved_for_w} <= tensors.keys(), one.name


def test_a_gemm_has_an_input_per_column_that_it_reads(graphs: list[Graph]) -> None:
    for operators, tensors in graphs:
        for one in operators:
            if one.weight is not None and one.weight.is_product and one.reads:
                assert tensors[one.reads[0]].columns == one.weight.inputs, one.name


def test_a_layer_ends_with_the_state_that_it_gives(graphs: list[Graph]) -> None:
    for operators, _ in graphs:
        assert operators[-1].writes[0].name in ("x1", "x2")


def norms(name: str, kernels: Execution) -> dict[str, str]:
    """Return the module of each norm of the last layer."""
    layer = find_model(name).layers[-1]
    operators = operators_of(layer, ParallelSizes(), kernels, 4096)
    return {one.name: one.module for one in operators if one.kind == "norm" and one.name.startswith("norm")}


def test_a_norm_is_fused_into_a_gemm_unless_it_stands_apart() -> None:
    fused = Execution()
    assert norms("llama3-8b", Execution(norm_in_gemm=False)) == {
        "norm1": "layernorm/attn_norm",
        "norm2": "layernorm/mlp_norm",
    }
    assert norms("llama3-8b", fused) == {"norm1": "qkv_linear", "norm2": "mlp"}
    assert norms("mixtral-8x7b", fused) == {"norm1": "qkv_linear", "norm2": "layernorm/mlp_norm"}
    assert norms("deepseek-v3", fused)["norm2"] == "layernorm/mlp_norm"
    streams = find_model("deepseek-v4-flash").layers[-1]
    assert (has_norm_in_gemm(streams, 1), has_norm_in_gemm(streams, 2)) == (False, False)


def test_sums_of_earlier_states_read_one_row_more_than_they_sum() -> None:
    layer = next(layer for name in _told() for layer in find_model(name).kinds if layer.summed_residuals)
    operators = operators_of(layer, ParallelSizes(), Execution(), 4096)
    assert layer.summed_residuals is not None
    sums = {one.name: one.columns for one in operators if one.kind == "weighted sum"}
    assert sums == {
        f"sum{half}": (rows + 1) * layer.hidden_size
        for half, rows in enumerate(layer.summed_residuals, start=1) if rows > 1
    }  # fmt: skip


@pytest.mark.parametrize(("name", "rotates"), [("llama3-8b", True), ("gpt2", False)])
def test_models_with_layer_norms_rotate_nothing(name: str, rotates: bool) -> None:
    """They add positions to the embedding."""
    operators = operators_of(find_model(name).layers[0], ParallelSizes(), Execution(), 1024)
    assert any("rotation" in one.kind for one in operators) == rotates


ATTENTION = Attention(12, 6, 10)
EVERYTHING = Attention(
    12,
    6,
    10,
    qkv_bias=True,
    qk_norm=True,
    sinks=True,
    yarn=32.0,
    gated=True,
    head_gates=True,
    value_size=14,
    value_norm=True,
    indexer=Indexer(4, 8, 24, block=3),
)
LATENT = LatentAttention(6, 18, 22, 10, 4, 7, num_keys=40, indexer=Indexer(5, 9, 40), gated=True)
WIDE = MixtureOfExperts(
    FeedForward(26, weighted_apart=True),
    8,
    3,
    shared_size=34,
    shared_gate=True,
    latent_size=16,
    latent_norm=True,
    joined_norms=True,
)
IMAGE = Layer(36, ATTENTION, FeedForward(46, gated=False), "plain", conditioned=Conditioning(6, 0.25))
LAYERS = {
    "attention with all options, four norms, dropout, an unfused activation": (
        Layer(36, EVERYTHING, FeedForward(46), num_norms=4), ParallelSizes(tp=2),
        Execution(fused_activation=False, dropout=True), 100,
    ),
    "latent attention with an indexer and a gate, latent experts": (
        Layer(38, LATENT, WIDE), ParallelSizes(tp=2, dp=4, ep=4, etp=1), Execution(weighted_output=True), 30,
    ),
    "three residual streams, values that are keys, scores in memory": (
        Layer(
            36, replace(ATTENTION, gated=True, tied_values=True), MixtureOfExperts(FeedForward(26, clamped=True), 8, 3),
            streams=3,
        ), ParallelSizes(tp=3, dp=2, ep=2), Execution(attention="unfused", dropout=True, norm_in_gemm=False), 50,
    ),
    "sums of residuals, no rotation, context parallelism by all-to-all": (
        Layer(36, ATTENTION, FeedForward(46, gated=False), "layernorm", summed_residuals=(3, 4)), ParallelSizes(cp=2),
        Execution(context="all-to-all", activation_func_fp8_input_store=True), 50,
    ),
    "no token mixer, two streams, activation inputs in 8 bits": (
        Layer(36, NoAttention(), FeedForward(46), num_norms=1, streams=2), ParallelSizes(),
        Execution(activation_func_fp8_input_store=True), 50,
    ),
    "no channel mixer, latent attention without a query latent": (
        Layer(36, replace(LATENT, q_lora_rank=None, num_keys=None, indexer=None, gated=False), NoFeedForward(), num_norms=1),
        ParallelSizes(tp=2), Execution(norm_in_gemm=False), 50,
    ),
    "a text stream": (IMAGE, ParallelSizes(tp=2), Execution(), 50),
    "a text stream that ends": (
        replace(IMAGE, conditioned=Conditioning(6, 0.25, text_ends=True)), ParallelSizes(tp=2), Execution(), 50,
    ),
    "one stream with one modulated norm": (
        replace(IMAGE, conditioned=Conditioning(3)), ParallelSizes(tp=2), Execution(), 50,
    ),
}  # fmt: skip
DENSE = Layer(36, ATTENTION, FeedForward(46))
TEXT = Model((DENSE,), 1000, 64, mtp=(DENSE,))
STREAMS = Model((replace(DENSE, streams=3),), 1000, 64, mtp=(replace(DENSE, streams=3),), final_norm=False)
PATCHES = Model((IMAGE,), 70, 64, patches=Patches(((5, 0.25), (7, 0.75)), (11, 13), 17, classes=19))
ENDS: dict[str, tuple[Model, End]] = {
    "embedding": (TEXT, "embedding"),
    "mtp": (TEXT, "mtp"),
    "head": (TEXT, "head"),
    "conditions": (TEXT, "conditions"),
    "embedding of streams": (STREAMS, "embedding"),
    "mtp of streams": (STREAMS, "mtp"),
    "head of streams": (STREAMS, "head"),
    "embedding of patches": (PATCHES, "embedding"),
    "head of patches": (PATCHES, "head"),
    "conditions of patches": (PATCHES, "conditions"),
    "head after frozen weights": (TEXT.with_fine_tuning(fine_tuning_of("", "embedding+layers+norms")), "head"),
    "frozen head": (TEXT.with_fine_tuning(fine_tuning_of("", "head")), "head"),
}
OF_LAYERS = {
    "attention with all options, four norms, dropout, an unfused activation": """
norm1 <qkv_linear> x > n1 own·36 attention; I: x; kind: norm
qkv <qkv_linear> n1 > q T·60 attention, gate T·6 attention, k T·30 attention, v T·42 attention; W: n1; weight: queries, keys, values 36·138; 8 bits
norm of v <qkv_linear> v > normed values T·42 attention; I: v; kind: norm
norm of q <qkv_linear> q > normed q T·60 attention; I: q; kind: norm
norm of k <qkv_linear> k > normed k T·30 attention; I: k; kind: norm
rotate <qkv_linear> normed q, normed k > rotated q T·60 attention, rotated k T·30 attention; kind: scaled rotation; columns: 90
indexer's queries up <qkv_linear> n1 > indexer's queries up T·32 attention; W: n1; weight: indexer's queries up 36·32
indexer's keys <qkv_linear> n1 > indexer's keys T·8 attention; W: n1; weight: indexer's keys 36·8
choice <core_attn> indexer's queries up, indexer's keys > index T·32 scores [f32]; I: indexer's queries up, indexer's keys, index
core <core_attn> rotated q, rotated k, normed values > o T·84 attention, lse T·6 scores [f32]; I: rotated q, rotated k, normed values, o, lse; core
gate <attn> o, gate > gated o T·84 attention; I: o, gate; kind: gate
attention output <attn_proj> gated o > mixed own·36 norms; I: gated o; W: gated o; weight: attention output 84·36; 8 bits
post norm1 <> mixed > post1 own·36 norms; I: mixed; kind: norm
add1 <> x, post1 > x1 own·36 norms, mask1 own·36 dropout masks [mask]; I: mask1; kind: add; passes
norm2 <mlp> x1 > n2 own·36 feed-forward; I: x1; kind: norm
fed up <mlp> n2 > fed up T·46 feed-forward; W: n2; weight: up 36·46; 8 bits
fed act <mlp/mlp_act> fed up > fed activated T·23 feed-forward, fed silu T·23 feed-forward; I: fed up, fed silu; kind: gated activation
fed down <mlp> fed activated > fed own·36 norms; W: fed activated; weight: down 23·36; 8 bits
post norm2 <> fed > post2 own·36 norms; I: fed; kind: norm
add2 <> x1, post2 > x2 own·36 norms, mask2 own·36 dropout masks [mask]; I: mask2; kind: add; passes
""",
    "latent attention with an indexer and a gate, latent experts": """
norm1 <layernorm/attn_norm> x > n1 own·38 attention; I: x; kind: norm
queries down <qkv_linear> n1 > ql own·18 attention; W: n1; weight: queries down 38·18; 8 bits
norm of queries <qkv_linear/mla_up_proj> ql > qn own·18 attention; I: ql; kind: norm
keys and values down <qkv_linear> n1 > kvl own·26 attention; W: n1; weight: keys and values down 38·26; 8 bits
norm of latent <qkv_linear/mla_up_proj> kvl > kn own·22 attention; I: kvl; kind: norm
queries up <qkv_linear/mla_up_proj> qn > q T·42 attention; W: qn; weight: queries up 18·42
keys and values up <qkv_linear/mla_up_proj> kn > kv T·51 attention; W: kn; weight: keys and values up 22·51
rotate <qkv_linear/mla_up_proj> q, kv, kvl > rq T·42 attention [q], rk T·42 attention, v T·21 attention [kv]; kind: rotation; columns: 69
indexer's queries up <qkv_linear> qn > indexer's queries up T·45 attention; W: qn; weight: indexer's queries up 18·45
indexer's keys <qkv_linear> n1 > indexer's keys T·9 attention; W: n1; weight: indexer's keys 38·9
indexer's weights <qkv_linear> n1 > indexer's weights T·5 attention; W: n1; weight: indexer's weights 38·5
choice <core_attn> indexer's queries up, indexer's keys, indexer's weights > index T·30 scores [f32]; I: indexer's queries up, indexer's keys, indexer's weights, index
core <core_attn> rq, rk, v > o T·21 attention, lse T·3 scores [f32]; I: rq, rk, v, o, lse; core
output gate <attn> n1 > gate T·21 attention; W: n1; weight: output gate 38·21; 8 bits
gate <attn> o, gate > gated o T·21 attention; I: o, gate; kind: gate
attention output <attn_proj> gated o > mixed own·38 norms; I: gated o; W: gated o; weight: attention output 21·38; 8 bits
add1 <> x, mixed > x1 own·38 norms; kind: add; passes
norm2 <layernorm/mlp_norm> x1 > n2 own·38 experts; I: x1; kind: norm
router <moe/router> n2 > logits own·8 experts [f32]; W: n2; weight: router 38·8
top k <moe/router> logits > probabilities own·8 experts [f32]; I: logits, probabilities
latent down <moe/latent> n2 > latent own·16 experts; W: n2; weight: latent down 38·16; 8 bits
dispatch <moe/dispatch> latent > sent C·16 experts; kind: dispatch
routed up <moe/experts/fused_group_mlp/expert_fc1> sent > routed up C·52 experts; W: sent; weight: up 16·52; 8 bits
routed act <moe/experts/fused_group_mlp/moe_act> routed up > routed activated C·26 experts, routed before its weight C·26 experts; I: routed up, routed before its weight; kind: gated activation
routed down <moe/experts/fused_group_mlp> routed activated > routed C·16 experts; W: routed activated; weight: down 26·16; 8 bits
combine <moe/combine> routed > combined own·16 experts; I: routed; kind: combine
norm of combined <moe/latent> combined > normed latent own·16 experts; I: combined; kind: norm
latent up <moe/latent> normed latent > combined up own·38 experts; W: normed latent; weight: latent up 16·38
shared gate <moe/shared_experts> n2 > ; weight: shared gate 38·1
shared up <moe/shared_experts> n2 > shared up T·34 experts; W: n2; weight: up 38·34; 8 bits
shared act <moe/shared_experts/> shared up > shared activated T·17 experts; I: shared up; kind: gated activation
shared down <moe/shared_experts> shared activated > shared own·38 experts; W: shared activated; weight: down 17·38; 8 bits
norm of combined up <moe> combined up > normed combined up own·38 experts; I: combined up; kind: norm
norm of shared <moe> shared > normed shared own·38 experts; I: shared; kind: norm
join <moe> normed combined up, normed shared > fed own·38 norms; kind: add; passes
add2 <> x1, fed > x2 own·38 norms; kind: add; passes
""",
    "three residual streams, values that are keys, scores in memory": """
mix1 <mhc>  > streams own·108 residual streams, h1 own·36 norms; I: streams; kind: mix
numbers1 <>  > numbers 1 own·15 residual streams; W: streams; weight: mixing 108·15
norm1 <layernorm/mhc> h1 > n1 own·36 attention; I: h1; kind: norm
qkv <qkv_linear> n1 > q T·40 attention, gate T·40 attention, k T·20 attention; W: n1; weight: queries, keys, values 36·100; 8 bits
rotate <qkv_linear> q, k > rotated q T·40 attention, rotated k T·20 attention; kind: rotation; columns: 60
scores <core_attn> rotated q, rotated k > scores T·200 scores; I: rotated q, rotated k
softmax <core_attn> scores > dropped T·200 scores, softmax T·200 scores, mask of scores T·200 scores [mask]; I: dropped, softmax, mask of scores; passes
core <core_attn> dropped, k > o T·40 attention; I: dropped, k; core
gate <attn> o, gate > gated o T·40 attention; I: o, gate; kind: gate
attention output <attn_proj> gated o > mixed own·36 norms; I: gated o; W: gated o; weight: attention output 40·36; 8 bits
add1 <> x, mixed > x1 own·36 norms, mask1 own·36 dropout masks [mask], half1 own·36 residual streams; I: mask1, half1; passes
mix2 <mhc>  > streams 2 own·108 residual streams, h2 own·36 norms; I: streams 2; kind: mix
numbers2 <>  > numbers 2 own·15 residual streams; W: streams; weight: mixing 108·15
norm2 <layernorm/mhc> h2 > n2 own·36 experts; I: h2; kind: norm
router <moe/router> n2 > logits own·8 experts [f32]; W: n2; weight: router 36·8
top k <moe/router> logits > probabilities own·8 experts [f32]; I: logits, probabilities
dispatch <moe/dispatch> n2 > sent C·36 experts; kind: dispatch
routed up <moe/experts/fused_group_mlp/expert_fc1> sent > routed up C·16 experts; W: sent; weight: up 36·16; 8 bits
routed act <moe/experts/fused_group_mlp/moe_act> routed up > routed activated C·8 experts; I: routed up; kind: clamped activation
routed down <moe/experts/fused_group_mlp> routed activated > routed C·36 experts; W: routed activated; weight: down 8·36; 8 bits
combine <moe/combine> routed > combined own·36 experts; kind: combine
join <moe> combined > fed own·36 norms; passes
add2 <> x1, fed > x2 own·36 norms, mask2 own·36 dropout masks [mask], half2 own·36 residual streams; I: mask2, half2; passes
""",
    "sums of residuals, no rotation, context parallelism by all-to-all": """
sum1 <> x > h1 own·36 norms; I: x; kind: weighted sum; columns: 144
norm1 <layernorm/attn_norm> h1 > n1 own·36 attention; I: h1; kind: norm
qkv <qkv_linear> n1 > q T·120 attention, k T·60 attention, v T·60 attention; W: n1; weight: queries, keys, values 36·240; 8 bits
rotate <qkv_linear> q, k > rotated q T·120 attention, rotated k T·60 attention; columns: 180
core <core_attn> rotated q, rotated k, v > o T·120 attention, lse T·12 scores [f32], o of these heads T·120 scores; I: rotated q, rotated k, v, o, lse, o of these heads; core
attention output <attn_proj> o > mixed own·36 norms; I: o; W: o; weight: attention output 120·36; 8 bits
add1 <> x, mixed > x1 own·36 norms; kind: add; passes
sum2 <> x1 > h2 own·36 norms; I: x1; kind: weighted sum; columns: 180
norm2 <layernorm/mlp_norm> h2 > n2 own·36 feed-forward; I: h2; kind: norm
fed up <mlp> n2 > fed up T·46 feed-forward; W: n2; weight: up 36·46; 8 bits
fed act <mlp/mlp_act> fed up > fed activated T·46 feed-forward; I: fed up; kind: activation
fed down <mlp> fed activated > fed own·36 norms; W: fed activated; weight: down 46·36; 8 bits
add2 <> x1, fed > x2 own·36 norms; kind: add; passes
""",
    "no token mixer, two streams, activation inputs in 8 bits": """
mix2 <mhc>  > streams own·72 residual streams, h2 own·36 norms; I: streams; kind: mix
numbers2 <>  > numbers 2 own·8 residual streams; W: streams; weight: mixing 72·8
norm2 <layernorm/mhc> h2 > n2 own·36 feed-forward; I: h2; kind: norm
fed up <mlp> n2 > fed up T·92 feed-forward; W: n2; weight: up 36·92; 8 bits
fed act <mlp/mlp_act> fed up > fed activated T·46 feed-forward, fed up in 8 bits T·92 feed-forward [f8]; I: fed up in 8 bits; kind: gated activation
fed down <mlp> fed activated > fed own·36 norms; W: fed activated; weight: down 46·36; 8 bits
add2 <> x, fed > x2 own·36 norms, half2 own·36 residual streams; I: half2; passes
""",
    "no channel mixer, latent attention without a query latent": """
norm1 <layernorm/attn_norm> x > n1 own·36 attention; I: x; kind: norm
keys and values down <qkv_linear> n1 > kvl own·26 attention; W: n1; weight: keys and values down 36·26; 8 bits
norm of latent <qkv_linear> kvl > kn own·22 attention; I: kvl; kind: norm
queries up <qkv_linear/mla_up_proj> n1 > q T·42 attention; W: n1; weight: queries up 36·42; 8 bits
keys and values up <qkv_linear/mla_up_proj> kn > kv T·51 attention; W: kn; weight: keys and values up 22·51
rotate <qkv_linear/mla_up_proj> q, kv, kvl > rq T·42 attention [q], rk T·42 attention, v T·21 attention [kv]; kind: rotation; columns: 69
core <core_attn> rq, rk, v > o T·21 attention, lse T·3 scores [f32]; I: rq, rk, v, o, lse; core
attention output <attn_proj> o > mixed own·36 norms; I: o; W: o; weight: attention output 21·36; 8 bits
add1 <> x, mixed > x1 own·36 norms; kind: add; passes
""",
    "a text stream": """
modulation <>  > ; weight: modulation 36·108
modulation of text <>  > ; weight: modulation of text 36·108
norm1 <qkv_linear> x > n1 own·36 attention; I: x; kind: norm
qkv <qkv_linear> n1 > q T·60 attention, k T·30 attention, v T·30 attention; W: n1; weight: queries, keys, values 36·120 ×0.75; 8 bits
qkv of text <qkv_linear>  > ; weight: queries, keys, values 36·120 ×0.25
rotate <qkv_linear> q, k > rotated q T·60 attention, rotated k T·30 attention; kind: rotation; columns: 90
core <core_attn> rotated q, rotated k, v > o T·60 attention, lse T·6 scores [f32]; I: rotated q, rotated k, v, o, lse; core
attention output <attn_proj> o > mixed own·36 norms; I: o; W: o; weight: attention output 60·36 ×0.75; 8 bits
attention output of text <attn_proj>  > ; weight: attention output 60·36 ×0.25
modulate1 <> mixed > scaled1 own·36 modulation, gated1 own·36 modulation; I: scaled1, gated1; kind: modulation
add1 <> x, gated1 > x1 own·36 norms; kind: add; passes
norm2 <mlp> x1 > n2 own·36 feed-forward; I: x1; kind: norm
fed up <mlp> n2 > fed up T·23 feed-forward; W: n2; weight: up 36·23 ×0.75; 8 bits
fed up of text <mlp>  > ; weight: up 36·23 ×0.25
fed act <mlp/mlp_act> fed up > fed activated T·23 feed-forward; I: fed up; kind: activation
fed down <mlp> fed activated > fed own·36 norms; W: fed activated; weight: down 23·36 ×0.75; 8 bits
fed down of text <mlp>  > ; weight: down 23·36 ×0.25
modulate2 <> fed > scaled2 own·36 modulation, gated2 own·36 modulation; I: scaled2, gated2; kind: modulation
add2 <> x1, gated2 > x2 own·36 norms; kind: add; passes
""",
    "a text stream that ends": """
modulation <>  > ; weight: modulation 36·108
modulation of text <>  > ; weight: modulation of text 36·36
norm1 <qkv_linear> x > n1 own·36 attention; I: x; kind: norm; share 0.75
qkv <qkv_linear> n1 > q T·60 attention, k T·30 attention, v T·30 attention; W: n1; weight: queries, keys, values 36·120 ×0.75; 8 bits
qkv of text <qkv_linear>  > ; weight: queries, keys, values 36·120 ×0.25
rotate <qkv_linear> q, k > rotated q T·60 attention, rotated k T·30 attention; kind: rotation; columns: 90; share 0.75
core <core_attn> rotated q, rotated k, v > o T·60 attention, lse T·6 scores [f32]; I: rotated q, rotated k, v, o, lse; core; share 0.75
attention output <attn_proj> o > mixed own·36 norms; I: o; W: o; weight: attention output 60·36 ×0.75; 8 bits; share 0.75
modulate1 <> mixed > scaled1 own·36 modulation, gated1 own·36 modulation; I: scaled1, gated1; kind: modulation; share 0.75
add1 <> x, gated1 > x1 own·36 norms; kind: add; passes; share 0.75
norm2 <mlp> x1 > n2 own·36 feed-forward; I: x1; kind: norm; share 0.75
fed up <mlp> n2 > fed up T·23 feed-forward; W: n2; weight: up 36·23 ×0.75; 8 bits; share 0.75
fed act <mlp/mlp_act> fed up > fed activated T·23 feed-forward; I: fed up; kind: activation; share 0.75
fed down <mlp> fed activated > fed own·36 norms; W: fed activated; weight: down 23·36 ×0.75; 8 bits; share 0.75
modulate2 <> fed > scaled2 own·36 modulation, gated2 own·36 modulation; I: scaled2, gated2; kind: modulation; share 0.75
add2 <> x1, gated2 > x2 own·36 norms; kind: add; passes; share 0.75
""",
    "one stream with one modulated norm": """
modulation <>  > ; weight: modulation 36·54
norm1 <qkv_linear> x > n1 own·36 attention; I: x; kind: norm
qkv <qkv_linear> n1 > q T·60 attention, k T·30 attention, v T·30 attention; W: n1; weight: queries, keys, values 36·120; 8 bits
rotate <qkv_linear> q, k > rotated q T·60 attention, rotated k T·30 attention; kind: rotation; columns: 90
core <core_attn> rotated q, rotated k, v > o T·60 attention, lse T·6 scores [f32]; I: rotated q, rotated k, v, o, lse; core
attention output <attn_proj> o > mixed own·36 norms; I: o; W: o; weight: attention output 60·36; 8 bits
modulate1 <> mixed > scaled1 own·36 modulation, gated1 own·36 modulation; I: scaled1, gated1; kind: modulation
add1 <> x, gated1 > x1 own·36 norms; kind: add; passes
norm2 <mlp> x1 > n2 own·36 feed-forward; I: x1; kind: norm
fed up <mlp> n2 > fed up T·23 feed-forward; W: n2; weight: up 36·23; 8 bits
fed act <mlp/mlp_act> fed up > fed activated T·23 feed-forward; I: fed up; kind: activation
fed down <mlp> fed activated > fed own·36 norms; W: fed activated; weight: down 23·36; 8 bits
add2 <> x1, fed > x2 own·36 norms; kind: add; passes
""",
}
"""Operators of `LAYERS`, in the form of `lines_of`."""

OF_ENDS = {
    "embedding": """
embedding 36
look up <>  > embedded T·36 embedding, ids T·1 embedding [i64]; I: ids; kind: look up
""",
    "mtp": """
multi-token prediction 36
embedding <>  > token own·36 multi-token prediction
norms <> token, x > both in a row own·72 multi-token prediction; I: token, x; kind: norms; columns: 108
join <>  > both in a row own·72 multi-token prediction; kind: copies; columns: 144
projection of two tokens <> both in a row > projection of two tokens T·18 multi-token prediction; W: both in a row; weight: projection of two tokens 72·18; 8 bits
""",
    "head": """
head 36
norm <> x > normed own·36 head; I: x; kind: final norm
head <> normed > logits T·504 logits; W: normed; weight: head 36·504
loss <> logits > loss T·504 logits; kind: loss
""",
    "conditions": """
conditions 36
""",
    "embedding of streams": """
embedding 108
look up <>  > embedded T·36 embedding, ids T·1 embedding [i64]; I: ids; kind: look up
dropout <>  > embedded T·36 embedding, mask own·36 embedding [mask]; I: mask; kind: dropout
copies <>  > embedded T·36 embedding; kind: copies; columns: 144
""",
    "mtp of streams": """
multi-token prediction 108
embedding <>  > token own·36 multi-token prediction
norms <> token, x > embedding own·36 multi-token prediction, streams own·108 multi-token prediction; I: token; kind: norms; columns: 180
join <>  > embedding own·36 multi-token prediction, streams own·108 multi-token prediction; kind: copies; columns: 396
projection of the token <> embedding > projection of the token T·18 multi-token prediction; W: embedding; weight: projection of the token 36·18; 8 bits
projection of streams <> streams > projection of streams T·18 multi-token prediction; W: streams; weight: projection of streams 36·18 ×3; 8 bits
""",
    "head of streams": """
head 108
join <> x > joined own·36 head; I: x; kind: copies; columns: 144
norm <> joined > normed own·36 head; kind: final norm
head <> normed > logits T·504 logits; W: normed; weight: head 36·504
loss <> logits > loss T·504 logits; kind: loss
""",
    "embedding of patches": """
embedding 36
embedding 1 <>  > embedded T·36 embedding; weight: embedding 1 5·36 ×0.25; no gradient
embedding 2 <>  > embedded T·36 embedding; weight: embedding 2 7·36 ×0.75; no gradient
look up <>  > embedded T·36 embedding, ids T·1 embedding [i64]; I: ids; kind: look up
""",
    "head of patches": """
head 36
norm <> x > normed own·36 head; I: x; kind: final norm
head <> normed > logits T·40 logits; W: normed; weight: head 36·40
loss <> logits > loss T·40 logits; kind: loss
""",
    "conditions of patches": """
conditions 36
embedder 0 <> condition 0 > ; weight: embedder 0 31·36
embedder 1 <> condition 1 > ; weight: embedder 1 37·36
embedder 2 <> condition 2 > ; weight: embedder 2 14·36
embedder 3 <> condition 3 > ; weight: embedder 3 37·36
""",
    "head after frozen weights": """
head 36
norm <> x > normed own·36 head; kind: final norm
head <> normed > logits T·504 logits; W: normed; weight: head 36·504; no gradient
loss <> logits > loss T·504 logits; kind: loss
""",
    "frozen head": """
head 36
norm <> x > normed own·36 head; I: x; kind: final norm
head <> normed > logits T·504 logits; weight: head 36·504; frozen
loss <> logits > loss T·504 logits; kind: loss
""",
}
"""Component and columns of the input, and operators of `ENDS`."""


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_has_these_operators(name: str) -> None:
    assert lines_of(operators_of(*LAYERS[name])) == OF_LAYERS[name].strip().splitlines()


@pytest.mark.parametrize("name", ENDS)
def test_an_end_of_a_model_has_these_operators(name: str) -> None:
    """With two ranks, the 1000 rows of the vocabulary are padded to 1008, the 70 outputs for patches to 80."""
    model, end = ENDS[name]
    source, operators = end_operators(
        model, end, ParallelSizes(tp=2), Execution(dropout="streams" in name), vocab_multiple=8
    )
    found = [f"{source.component} {source.columns:g}", *lines_of(operators)]
    assert found == OF_ENDS[name].strip().splitlines()


def test_what_is_left_out_in_model_attention_and_mlp_has_these_values() -> None:
    assert number_defaults(attention_and_mlp_module) == {
        "Attention": {"qkv_bias": False, "out_bias": False, "qk_norm": False, "is_chunked": False, "sinks": False, "gated": False, "is_causal": True, "joint_norm": False, "head_gates": False, "value_norm": False, "tied_values": False},
        "NoAttention": {"num_heads": 0, "num_kv_heads": 0, "head_size": 0},
        "LatentAttention": {"gated": False},
        "FeedForward": {"gated": True, "bias": False, "clamped": False, "weighted_apart": False},
        "FeedForward.linears": {"count": 1},
        "NoFeedForward": {"size": 0, "gated": False},
        "NoFeedForward.linears": {"count": 1},
        "MixtureOfExperts": {"shared_size": 0, "router_bias": False, "shared_gate": False, "grouped": True, "latent_norm": False, "joined_norms": False},
    }  # fmt: skip


def test_what_is_left_out_in_model_blocks_has_these_values() -> None:
    assert number_defaults(blocks_module) == {
        "end_operators": {"vocab_multiple": 1},
    }  # fmt: skip


def test_what_is_left_out_in_model_conditioning_has_these_values() -> None:
    assert number_defaults(conditioning_module) == {
        "Conditioning": {"text": 0.0, "text_ends": False},
        "Patches": {"classes": 0},
    }  # fmt: skip


def test_what_is_left_out_in_model_mixer_has_these_values() -> None:
    assert number_defaults(mixer_module) == {
        "gemm": {"quantized": True},
    }  # fmt: skip


def tuned(layer: Layer, text: str) -> Layer:
    """Return the layer with these adapters; the one before it has them too."""
    return Model((layer, layer), 1000, 64).with_fine_tuning(fine_tuning_of(text, "")).layers[1]


def frozen(layer: Layer, text: str) -> Layer:
    return Model((layer,), 1000, 64).with_fine_tuning(fine_tuning_of("", text)).layers[0]


TUNED = {
    "adapters of a dense layer": (tuned(DENSE, "4:linear_qkv+linear_proj+linear_fc1"), ParallelSizes(tp=2)),
    "adapters without sequence parallelism": (
        tuned(DENSE, "4:linear_qkv+linear_fc2"), ParallelSizes(tp=2, sequence_parallel=False),
    ),
    "adapters of latent attention and experts": (
        tuned(Layer(38, replace(LATENT, num_keys=None, indexer=None), replace(WIDE, latent_size=None, latent_norm=False)),
              "6:linear_q_down_proj+linear_kv_up_proj+linear_fc1+router"), ParallelSizes(tp=2, dp=4, ep=2, etp=1),
    ),
    "frozen norms and MLP": (frozen(DENSE, "norms+mlp"), ParallelSizes(tp=2)),
}  # fmt: skip
OF_TUNED = {
    "adapters of a dense layer": """
queries, keys, values 36·120 dense frozen
queries, keys, values, A 36·2 adapter
queries, keys, values, B 4·120 adapter
attention output 60·36 dense frozen
attention output, A 60·4 adapter
attention output, B 4·18 adapter
up 36·46 dense frozen
up, A 36·2 adapter
up, B 4·46 adapter
down 23·36 dense frozen
norm1 <qkv_linear> x > n1 own·36 attention; I: x; kind: norm; frozen
qkv <qkv_linear> n1 > q of W T·60 attention, k of W T·30 attention, v of W T·30 attention; weight: queries, keys, values 36·120; 8 bits; frozen
qkv input <qkv_linear> n1 > gathered n1 of qkv T·36 attention; passes
qkv A <qkv_linear> gathered n1 of qkv > qkv A T·4 attention; W: gathered n1 of qkv; weight: queries, keys, values, A 36·2
qkv B <qkv_linear> qkv A > qkv B T·120 attention; W: qkv A; weight: queries, keys, values, B 4·120
qkv scale <qkv_linear> qkv B > qkv adapted T·120 attention; kind: scale
qkv sum 0 <qkv_linear> q of W, qkv adapted > q T·60 attention; kind: add; columns: 120; passes
qkv sum 1 <qkv_linear> k of W > k T·30 attention; columns: 120; passes
qkv sum 2 <qkv_linear> v of W > v T·30 attention; columns: 120; passes
rotate <qkv_linear> q, k > rotated q T·60 attention, rotated k T·30 attention; kind: rotation; columns: 90
core <core_attn> rotated q, rotated k, v > o T·60 attention, lse T·6 scores [f32]; I: rotated q, rotated k, v, o, lse; core
attention output <attn_proj> o > mixed of W own·36 norms; weight: attention output 60·36; 8 bits; frozen
attention output A <attn_proj> o > attention output A T·4 attention; W: o; weight: attention output, A 60·4
attention output B <attn_proj> attention output A > attention output B T·36 attention; W: attention output A; weight: attention output, B 4·18
attention output scale <attn_proj> attention output B > attention output adapted own·36 attention; kind: scale
attention output sum 0 <attn_proj> mixed of W, attention output adapted > mixed own·36 norms; kind: add; columns: 36; passes
add1 <> x, mixed > x1 own·36 norms; kind: add; passes
norm2 <mlp> x1 > n2 own·36 feed-forward; I: x1; kind: norm; frozen
fed up <mlp> n2 > fed up of W T·46 feed-forward; weight: up 36·46; 8 bits; frozen
fed up input <mlp> n2 > gathered n2 of fed up T·36 feed-forward; passes
fed up A <mlp> gathered n2 of fed up > fed up A T·4 feed-forward; W: gathered n2 of fed up; weight: up, A 36·2
fed up B <mlp> fed up A > fed up B T·46 feed-forward; W: fed up A; weight: up, B 4·46
fed up scale <mlp> fed up B > fed up adapted T·46 feed-forward; kind: scale
fed up sum 0 <mlp> fed up of W, fed up adapted > fed up T·46 feed-forward; kind: add; columns: 46; passes
fed act <mlp/mlp_act> fed up > fed activated T·23 feed-forward; I: fed up; kind: gated activation
fed down <mlp> fed activated > fed own·36 norms; weight: down 23·36; 8 bits; frozen
add2 <> x1, fed > x2 own·36 norms; kind: add; passes
""",
    "adapters without sequence parallelism": """
queries, keys, values 36·120 dense frozen
queries, keys, values, A 36·2 adapter
queries, keys, values, B 4·120 adapter
attention output 60·36 dense frozen
up 36·46 dense frozen
down 23·36 dense frozen
down, A 23·4 adapter
down, B 4·18 adapter
norm1 <qkv_linear> x > n1 own·36 attention; I: x; kind: norm; frozen
qkv <qkv_linear> n1 > q of W T·60 attention, k of W T·30 attention, v of W T·30 attention; weight: queries, keys, values 36·120; 8 bits; frozen
qkv A <qkv_linear> n1 > qkv A own·4 attention; W: n1; weight: queries, keys, values, A 36·2
qkv B <qkv_linear> qkv A > qkv B own·120 attention; W: qkv A; weight: queries, keys, values, B 4·120
qkv scale <qkv_linear> qkv B > qkv adapted T·120 attention; kind: scale
qkv sum 0 <qkv_linear> q of W, qkv adapted > q T·60 attention; kind: add; columns: 120; passes
qkv sum 1 <qkv_linear> k of W > k T·30 attention; columns: 120; passes
qkv sum 2 <qkv_linear> v of W > v T·30 attention; columns: 120; passes
rotate <qkv_linear> q, k > rotated q T·60 attention, rotated k T·30 attention; kind: rotation; columns: 90
core <core_attn> rotated q, rotated k, v > o T·60 attention, lse T·6 scores [f32]; I: rotated q, rotated k, v, o, lse; core
attention output <attn_proj> o > mixed own·36 norms; weight: attention output 60·36; 8 bits; frozen
add1 <> x, mixed > x1 own·36 norms; kind: add; passes
norm2 <mlp> x1 > n2 own·36 feed-forward; I: x1; kind: norm; frozen
fed up <mlp> n2 > fed up T·46 feed-forward; weight: up 36·46; 8 bits; frozen
fed act <mlp/mlp_act> fed up > fed activated T·23 feed-forward; I: fed up; kind: gated activation
fed down <mlp> fed activated > fed of W own·36 norms; weight: down 23·36; 8 bits; frozen
fed down A <mlp> fed activated > fed down A T·4 feed-forward; W: fed activated; weight: down, A 23·4
fed down B <mlp> fed down A > fed down B T·36 feed-forward; W: fed down A; weight: down, B 4·18
fed down scale <mlp> fed down B > fed down adapted own·36 feed-forward; kind: scale
fed down sum 0 <mlp> fed of W, fed down adapted > fed own·36 norms; kind: add; columns: 36; passes
add2 <> x1, fed > x2 own·36 norms; kind: add; passes
""",
    "adapters of latent attention and experts": """
queries down 38·18 dense frozen
queries down, A 38·3 adapter
queries down, B 6·9 adapter
queries up 18·42 dense frozen
keys and values down 38·26 dense frozen
keys and values up 22·51 dense frozen
keys and values up, A 22·3 adapter
keys and values up, B 6·51 adapter
output gate 38·21 dense frozen
attention output 21·38 dense frozen
router 38·8 router frozen
router, A 38·3 adapter
router, B 6·4 adapter
up 38·52 routed frozen
up, A 38·6 routed adapter
up, B 6·52 routed adapter
down 26·38 routed frozen
up 38·34 shared frozen
up, A 38·3 adapter
up, B 6·34 adapter
down 17·38 shared frozen
shared gate 38·1 gate frozen
norm1 <layernorm/attn_norm> x > n1 own·38 attention; I: x; kind: norm; frozen
queries down <qkv_linear> n1 > ql of W own·18 attention; weight: queries down 38·18; 8 bits; frozen
queries down A <qkv_linear> n1 > queries down A own·6 attention; W: n1; weight: queries down, A 38·3
queries down B <qkv_linear> queries down A > queries down B own·18 attention; W: queries down A; weight: queries down, B 6·9
queries down scale <qkv_linear> queries down B > queries down adapted own·18 attention; kind: scale
queries down sum 0 <qkv_linear> ql of W, queries down adapted > ql own·18 attention; kind: add; columns: 18; passes
norm of queries <qkv_linear/mla_up_proj> ql > qn own·18 attention; I: ql; kind: norm; frozen
keys and values down <qkv_linear> n1 > kvl own·26 attention; weight: keys and values down 38·26; 8 bits; frozen
norm of latent <qkv_linear/mla_up_proj> kvl > kn own·22 attention; I: kvl; kind: norm; frozen
queries up <qkv_linear/mla_up_proj> qn > q T·42 attention; weight: queries up 18·42; frozen
keys and values up <qkv_linear/mla_up_proj> kn > kv of W T·51 attention; weight: keys and values up 22·51; frozen
keys and values up input <qkv_linear/mla_up_proj> kn > gathered kn of keys and values up T·22 attention; passes
keys and values up A <qkv_linear/mla_up_proj> gathered kn of keys and values up > keys and values up A T·6 attention; W: gathered kn of keys and values up; weight: keys and values up, A 22·3
keys and values up B <qkv_linear/mla_up_proj> keys and values up A > keys and values up B T·51 attention; W: keys and values up A; weight: keys and values up, B 6·51
keys and values up scale <qkv_linear/mla_up_proj> keys and values up B > keys and values up adapted T·51 attention; kind: scale
keys and values up sum 0 <qkv_linear/mla_up_proj> kv of W, keys and values up adapted > kv T·51 attention; kind: add; columns: 51; passes
rotate <qkv_linear/mla_up_proj> q, kv, kvl > rq T·42 attention [q], rk T·42 attention, v T·21 attention [kv]; kind: rotation; columns: 69
core <core_attn> rq, rk, v > o T·21 attention, lse T·3 scores [f32]; I: rq, rk, v, o, lse; core
output gate <attn> n1 > gate T·21 attention; weight: output gate 38·21; 8 bits; frozen
gate <attn> o, gate > gated o T·21 attention; I: o, gate; kind: gate
attention output <attn_proj> gated o > mixed own·38 norms; weight: attention output 21·38; 8 bits; frozen
add1 <> x, mixed > x1 own·38 norms; kind: add; passes
norm2 <layernorm/mlp_norm> x1 > n2 own·38 experts; I: x1; kind: norm; frozen
router <moe/router> n2 > logits of W own·8 experts [f32]; weight: router 38·8; frozen
router A <moe/router> n2 > router A own·6 experts; W: n2; weight: router, A 38·3
router B <moe/router> router A > router B own·8 experts; W: router A; weight: router, B 6·4
router scale <moe/router> router B > router adapted own·8 experts; kind: scale
router sum 0 <moe/router> logits of W, router adapted > logits own·8 experts [f32]; kind: add; columns: 8; passes
top k <moe/router> logits > probabilities own·8 experts [f32]; I: logits, probabilities
dispatch <moe/dispatch> n2 > sent C·38 experts; kind: dispatch
routed up <moe/experts/fused_group_mlp/expert_fc1> sent > routed up of W C·52 experts; weight: up 38·52; 8 bits; frozen
routed up A <moe/experts/fused_group_mlp/expert_fc1> sent > routed up A C·6 experts; W: sent; weight: up, A 38·6
routed up B <moe/experts/fused_group_mlp/expert_fc1> routed up A > routed up B C·52 experts; W: routed up A; weight: up, B 6·52
routed up scale <moe/experts/fused_group_mlp/expert_fc1> routed up B > routed up adapted C·52 experts; kind: scale
routed up sum 0 <moe/experts/fused_group_mlp/expert_fc1> routed up of W, routed up adapted > routed up C·52 experts; kind: add; columns: 52; passes
routed act <moe/experts/fused_group_mlp/moe_act> routed up > routed activated C·26 experts, routed before its weight C·26 experts; I: routed up, routed before its weight; kind: gated activation
routed down <moe/experts/fused_group_mlp> routed activated > routed C·38 experts; weight: down 26·38; 8 bits; frozen
combine <moe/combine> routed > combined own·38 experts; kind: combine
shared gate <moe/shared_experts> n2 > ; weight: shared gate 38·1; frozen
shared up <moe/shared_experts> n2 > shared up of W T·34 experts; weight: up 38·34; 8 bits; frozen
shared up input <moe/shared_experts> n2 > gathered n2 of shared up T·38 experts; passes
shared up A <moe/shared_experts> gathered n2 of shared up > shared up A T·6 experts; W: gathered n2 of shared up; weight: up, A 38·3
shared up B <moe/shared_experts> shared up A > shared up B T·34 experts; W: shared up A; weight: up, B 6·34
shared up scale <moe/shared_experts> shared up B > shared up adapted T·34 experts; kind: scale
shared up sum 0 <moe/shared_experts> shared up of W, shared up adapted > shared up T·34 experts; kind: add; columns: 34; passes
shared act <moe/shared_experts/> shared up > shared activated T·17 experts; I: shared up; kind: gated activation
shared down <moe/shared_experts> shared activated > shared own·38 experts; weight: down 17·38; 8 bits; frozen
norm of combined <moe> combined > normed combined own·38 experts; I: combined; kind: norm; frozen
norm of shared <moe> shared > normed shared own·38 experts; I: shared; kind: norm; frozen
join <moe> normed combined, normed shared > fed own·38 norms; kind: add; passes
add2 <> x1, fed > x2 own·38 norms; kind: add; passes
""",
    "frozen norms and MLP": """
queries, keys, values 36·120 dense
attention output 60·36 dense
up 36·46 dense frozen
down 23·36 dense frozen
norm1 <qkv_linear> x > n1 own·36 attention; I: x; kind: norm; frozen
qkv <qkv_linear> n1 > q T·60 attention, k T·30 attention, v T·30 attention; W: n1; weight: queries, keys, values 36·120; 8 bits
rotate <qkv_linear> q, k > rotated q T·60 attention, rotated k T·30 attention; kind: rotation; columns: 90
core <core_attn> rotated q, rotated k, v > o T·60 attention, lse T·6 scores [f32]; I: rotated q, rotated k, v, o, lse; core
attention output <attn_proj> o > mixed own·36 norms; I: o; W: o; weight: attention output 60·36; 8 bits
add1 <> x, mixed > x1 own·36 norms; kind: add; passes
norm2 <mlp> x1 > n2 own·36 feed-forward; I: x1; kind: norm; frozen
fed up <mlp> n2 > fed up T·46 feed-forward; weight: up 36·46; 8 bits; frozen
fed act <mlp/mlp_act> fed up > fed activated T·23 feed-forward; I: fed up; kind: gated activation
fed down <mlp> fed activated > fed own·36 norms; weight: down 23·36; 8 bits; frozen
add2 <> x1, fed > x2 own·36 norms; kind: add; passes
""",
}
"""Matrices on a rank, then operators of `TUNED`."""


@pytest.mark.parametrize("name", TUNED)
def test_a_fine_tuned_layer_has_these_matrices_and_operators(name: str) -> None:
    layer, sizes = TUNED[name]
    matrices = [
        f"{one.name} {one.inputs}·{one.outputs} {one.kind}{'' if one.trainable else ' frozen'}"
        for one in layer.linears(sizes)
    ]
    assert [*matrices, *lines_of(operators_of(layer, sizes, Execution(), 50))] == OF_TUNED[
        name
    ].strip().splitlines()
