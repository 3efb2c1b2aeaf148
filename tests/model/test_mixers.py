"""Kinds of mixers in one file each: parameters, FLOPs, saved bytes and projections against values written out here."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ppsim.model
from ppsim.base.errors import ConfigError
from ppsim.model.activations import layer_activations
from ppsim.model.attention_and_mlp import Attention, FeedForward, MixtureOfExperts
from ppsim.model.blocks import operators_of
from ppsim.model.config import _READERS, model_from
from ppsim.model.execution import Execution
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.mixers import parallel, short_convolution
from ppsim.model.mixers import short_convolution as short_convolution_module
from ppsim.model.mixers.parallel import ParallelMixers
from ppsim.model.mixers.short_convolution import ShortConvolution
from ppsim.model.recurrent import Mamba
from ppsim.model.registry import NAMES, find_model
from ppsim.parallel.sizes import ParallelSizes
from tests.cli.running import ppsim as command
from tests.defaults import number_defaults
from tests.model.operator_lines import lines_of, matrix_lines_of

LFM2 = {  # the config.json of LiquidAI/LFM2-1.2B
    "architectures": ["Lfm2ForCausalLM"], "block_auto_adjust_ff_dim": True, "block_dim": 2048, "block_ff_dim": 12288,
    "block_ffn_dim_multiplier": 1.0, "block_mlp_init_scale": 1.0, "block_multiple_of": 256, "block_norm_eps": 1e-5,
    "block_out_init_scale": 1.0, "block_use_swiglu": True, "block_use_xavier_init": True, "bos_token_id": 1,
    "conv_L_cache": 3, "conv_bias": False, "conv_dim": 2048, "conv_dim_out": 2048, "conv_use_xavier_init": True,
    "eos_token_id": 7, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "hidden_size": 2048, "initializer_range": 0.02,
    "max_position_embeddings": 128000, "model_type": "lfm2", "norm_eps": 1e-5, "num_attention_heads": 32,
    "num_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pad_token_id": 0, "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16", "use_cache": True, "use_pos_enc": True, "vocab_size": 65536,
}  # fmt: skip
FALCON = {  # sizes of tiiuae/Falcon-H1-34B-Base
    "model_type": "falcon_h1", "attention_bias": False, "attn_layer_indices": None, "head_dim": 128,
    "hidden_size": 5120, "intermediate_size": 21504, "key_multiplier": 0.1, "mamba_chunk_size": 256, "mamba_d_conv": 4,
    "mamba_d_head": 128, "mamba_d_ssm": 4096, "mamba_d_state": 256, "mamba_expand": 2, "mamba_n_groups": 2,
    "mamba_n_heads": 32, "max_position_embeddings": 262144, "num_attention_heads": 20, "num_hidden_layers": 72,
    "num_key_value_heads": 4, "projectors_bias": False, "ssm_multipliers": [1, 1, 1, 1, 1], "vocab_size": 261120,
}  # fmt: skip
SMALL = LFM2 | {"hidden_size": 1024, "block_ff_dim": 6656, "num_attention_heads": 16, "num_heads": 16}
LARGE = LFM2 | {"block_auto_adjust_ff_dim": False, "block_ff_dim": 10752, "num_hidden_layers": 30}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (SMALL, 354_483_968),
        (LFM2 | {"hidden_size": 1536, "block_ff_dim": 10240, "num_attention_heads": 24}, 742_489_344),
        (LFM2, 1_170_340_608),
        (LARGE | {"full_attn_idxs": [2, 5, 8, 10, 12, 14, 20, 27]}, 2_569_272_320),  # 22 convolutions, 8 attentions
    ],
)
def test_parameters_of_lfm2_are_those_of_its_model_card(config: dict, parameters: int) -> None:
    """LiquidAI/LFM2-2.6B-Exp, README.md, table of properties: 350M, 700M, 1.2B and 2.6B."""
    assert model_from(config).parameters == parameters


def test_layer_types_and_full_attn_idxs_say_the_same() -> None:
    kinds = ["full_attention" if layer in LFM2["full_attn_idxs"] else "conv" for layer in range(16)]
    other = {name: value for name, value in LFM2.items() if name != "full_attn_idxs"} | {"layer_types": kinds}
    assert model_from(other) == model_from(LFM2)


def test_parameters_of_falcon_h1_are_the_sum_of_its_matrices() -> None:
    h, f, inner, groups = 5120, 21504, 32 * 128, 2 * 256
    attention = h * (20 + 2 * 4) * 128 + 20 * 128 * h
    mamba = h * (2 * inner + 2 * groups + 32) + (inner + 2 * groups) * (4 + 1) + 3 * 32 + inner * h
    layer = attention + mamba + 3 * h * f + 2 * h
    assert model_from(FALCON).parameters == 72 * layer + 2 * 261120 * h + h
    normed = model_from(FALCON | {"mamba_rms_norm": True})
    assert normed.parameters == 72 * (layer + inner) + 2 * 261120 * h + h


def test_forward_flops_of_a_short_convolution_are_those_of_its_projections() -> None:
    convolution, _, attention = model_from(LFM2).layers[:3]
    h, f, s = 2048, 8192, 4096
    assert convolution.forward_flops(s, causal=True) == 2 * (h * 3 * h + h * h + 3 * h * f)
    assert attention.forward_flops(s, causal=True) == 2 * (h * (h + 2 * 512) + h * h + 3 * h * f) + 4 * h * s / 2


def test_forward_flops_of_parallel_mixers_are_those_of_both() -> None:
    h, f, s, q, n, inner = 5120, 21504, 4096, 256, 256, 4096
    projections = 2 * (h * 28 * 128 + 2560 * h + h * (2 * inner + 2 * 2 * n + 32) + inner * h + 3 * h * f)
    scores, scan = 4 * 2560 * s / 2, 2 * q * (2 * n + inner) / 2 + 4 * inner * n
    assert model_from(FALCON).layers[0].forward_flops(s, causal=True) == projections + scores + scan


def test_a_short_convolution_saves_what_its_gates_and_its_convolution_read() -> None:
    """Per token in 2 bytes: h of both norms' inputs, both norms' outputs, B, C, values, gated values, the convolution's, y; 3f."""
    layer, h, f = model_from(LFM2).layers[0], 2048, 8192
    found = layer_activations(layer, MemorySettings(1, 4096))
    assert found == {
        "attention": 2 * 4096 * 7 * h,
        "norms": 2 * 4096 * 2 * h,
        "feed-forward": 2 * 4096 * (h + 3 * f),
    }
    halved = layer_activations(layer, MemorySettings(1, 4096, ParallelSizes(tp=2)))
    assert halved == {name: size // 2 for name, size in found.items()}
    assert [one.name for one in operators_of(layer, ParallelSizes(), Execution(), 4096)][1:6] == [
        "gates, values", "first gate", "convolution", "second gate", "attention output",
    ]  # fmt: skip


def test_parallel_mixers_save_the_norms_output_once_and_what_each_of_them_does() -> None:
    """Queries, keys, values, output; gate, x, B, C, time steps, scan's result, and what the gate leaves."""
    h, inner, groups = 5120, 4096, 512
    attention, mamba = (2 * 20 + 2 * 4) * 128, inner + inner + 2 * groups + 32 + 2 * inner
    found = layer_activations(model_from(FALCON).layers[0], MemorySettings(1, 4096))
    assert found["attention"] == 2 * 4096 * (h + attention + mamba)
    assert found["scores"] == 4 * 4096 * 20
    assert found["norms"] == 2 * 4096 * 2 * h


@pytest.mark.parametrize("recompute", ["none", "full", "core_attn+layernorm+mlp", "block/2"])
@pytest.mark.parametrize("config", [LFM2, FALCON], ids=["lfm2", "falcon_h1"])
def test_project_answers_with_tp_pp_and_recomputation(config: dict, recompute: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    job = (
        f"--gpus 64 --cluster dgx-h100 --tp 2 --pp 2 --global-batch-size 64 --seq-len 4096 --recompute {recompute}"
    )
    done = command("project", "--model", str(file), *job.split(), "--json", "--allow-oom")
    assert done.exit_code == 0, done.output


def test_recomputing_the_core_of_parallel_mixers_takes_less_than_full(tmp_path: Path) -> None:
    job = {"gpus": 64, "cluster": "dgx-h100", "tp": 2, "pp": 2, "global_batch": 64, "seq_len": 4096}
    (tmp_path / "config.json").write_text(json.dumps(FALCON))
    none, core, full = (
        ppsim.project(model=str(tmp_path / "config.json"), recompute=how, **job)
        .stage_cost_set.parts[0]
        .backward.recompute_s
        for how in ("none", "core_attn", "full")
    )
    assert none == 0 < core < full


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LFM2 | {"block_ffn_dim_multiplier": 1.3}, "block_ffn_dim_multiplier is 1 in every release"),
        (FALCON | {"mamba_d_ssm": 4000}, "mamba_d_ssm 4000 is not mamba_n_heads 32 × mamba_d_head 128"),
        (FALCON | {"projectors_bias": True}, "projectors_bias true is not known"),
    ],
)
def test_a_size_that_no_release_has_is_refused(config: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_from(config)


def test_context_parallelism_of_a_short_convolution_is_refused() -> None:
    with pytest.raises(ConfigError, match="context parallelism of a short convolution is not known: got cp 2"):
        model_from(LFM2).layers[0].attention.require_division(ParallelSizes(cp=2))


@pytest.mark.parametrize("name", NAMES)
def test_operators_and_tensors_of_a_layer_have_names_of_their_own(name: str) -> None:
    for layer in find_model(name).kinds:
        operators = operators_of(layer, ParallelSizes(), Execution(), 4096)
        made = [tensor for one in operators for tensor in one.writes]
        tensors = ["x", *(tensor.name for tensor in made if tensor.storage is None)]
        assert len({one.name for one in operators}) == len(operators)
        assert len(set(tensors)) == len(tensors)


def test_a_kind_in_the_package_mixers_is_one_file() -> None:
    """No other file, except readers of trainers, names the kinds or their model types."""
    folder = Path(ppsim.model.__path__[0])
    files = {short_convolution: ("ShortConvolution", "lfm2"), parallel: ("ParallelMixers", "falcon_h1")}
    readers = folder.parent / "trainers"
    elsewhere = [
        file
        for file in folder.parent.rglob("*.py")
        if file.parent.name != "mixers" and not file.is_relative_to(readers)
    ]
    others = [file.read_text() for file in elsewhere]
    for module, words in files.items():
        assert module.READERS.keys() <= _READERS.keys()
        assert not [word for word in words for text in others if word in text]


def test_what_is_left_out_in_model_short_convolution_has_these_values() -> None:
    assert number_defaults(short_convolution_module) == {
        "ShortConvolution": {"kernel": 3, "bias": False},
    }  # fmt: skip


MIXERS = {
    "short convolution": (ShortConvolution(24, kernel=5, bias=True), ParallelSizes(tp=2)),
    "parallel mixers": (
        ParallelMixers((Attention(6, 2, 10, sinks=True), Mamba(8, 12, 14, num_groups=4, chunk_size=20))),
        ParallelSizes(tp=2),
    ),
}
LINES_OF_MIXERS = {
    "short convolution": """
gates, values <- attention input 36·12+12+12 split outputs biased
convolution <- gated values 5·12 vector split outputs biased
attention output <- heads 12·36 split inputs biased
gates, values <attn> n1 > B T·12 attention, C T·12 attention, value T·12 attention; W: n1; weight: gates, values 36·36; 8 bits
first gate <attn> B, value > gated T·12 attention; I: B, value; kind: gate
convolution <attn> gated > conv T·12 attention; I: gated; kind: convolution
second gate <attn> C, conv > y T·12 attention; I: C, conv; kind: gate
attention output <attn_proj> y > mixed own·36 norms; I: y; W: y; weight: attention output 12·36; 8 bits
""",
    "parallel mixers": """
queries, keys, values <- attention input 36·30+10+10 split outputs
sinks <- scores 1·3 vector split outputs
attention output <- heads 30·36 split inputs
gate, x, B, C, time step <- attention input 36·48+48+28+28+4 split outputs
convolution <- x, B, C 4·48+28+28 vector split outputs biased
decay, skip, bias of time step <- x 1·4+4+4 vector split outputs
gated norm <- heads 1·48 vector split outputs
attention output <- heads 48·36 split inputs
0 qkv <qkv_linear> n1 > 0 q T·30 attention, 0 k T·10 attention, 0 v T·10 attention; W: n1; weight: queries, keys, values 36·50; 8 bits
0 rotate <qkv_linear> 0 q, 0 k > 0 rotated q T·30 attention, 0 rotated k T·10 attention; kind: rotation; columns: 40
0 core <core_attn> 0 rotated q, 0 rotated k, 0 v > 0 o T·30 attention, 0 lse T·3 scores [f32]; I: 0 rotated q, 0 rotated k, 0 v, 0 o, 0 lse; core
0 attention output <attn_proj> 0 o > 0 mixed own·36 norms; I: 0 o; W: 0 o; weight: attention output 30·36; 8 bits
1 convolution <scan>  > ; kind: convolution; columns: 104
1 scan <scan>  > ; core
1 gate <scan>  > ; kind: gate; columns: 48
1 makes kept <scan>  > 1 kept T·300 attention; I: 1 kept
1 gate, x, B, C, time step <attn> n1 > 1 gate, x, B, C, time step out T·156 norms; W: n1; weight: gate, x, B, C, time step 36·156; 8 bits
1 view of attention output <attn> 1 kept > 1 heads T·48 attention [1 kept]; passes
1 attention output <attn> 1 heads > 1 mixed own·36 norms; W: 1 heads; weight: attention output 48·36
add mixers <> 0 mixed, 1 mixed > mixed own·36 norms; kind: add; passes
""",
}
"""Matrices on a rank, then operators."""


@pytest.mark.parametrize("name", MIXERS)
def test_a_mixer_has_these_matrices_and_operators(name: str) -> None:
    mixer, sizes = MIXERS[name]
    lines = [*matrix_lines_of(mixer.linears(36, sizes.tp)), *lines_of(mixer.operators(36, sizes, Execution(), 50))]
    assert lines == LINES_OF_MIXERS[name].strip().splitlines()


def test_mixers_of_two_kinds_are_bounded_divided_and_counted_together() -> None:
    convolution, both = MIXERS["short convolution"][0], MIXERS["parallel mixers"][0]
    assert (convolution.core_flops(50, causal=True), convolution.divided) == (
        0,
        {"channels of the convolution": 24},
    )
    attention, mamba = both.parts
    assert both.core_flops(50, causal=True) == attention.core_flops(50, causal=True) + mamba.core_flops(
        50, causal=True
    )
    assert both.core_flops(50, causal=False) == attention.core_flops(50, causal=False) + mamba.core_flops(
        50, causal=False
    )
    assert both.divided == {"heads": 6, "Mamba heads": 8, "Mamba groups": 4}
    assert both.transient_bytes == mamba.transient_bytes > 0
    normed = ParallelMixers((Attention(6, 2, 10, qk_norm=True), Attention(6, 2, 7, qk_norm=True)))
    assert normed.norm_parameters == 34
    for mixer, allowed, refused in (
        (convolution, {"tp": 3}, {"tp": 5}), (convolution, {}, {"cp": 2}), (both, {"tp": 2}, {"tp": 3}),
        (both, {"cp": 8}, {"cp": 16}), (both, {}, {"tp": 4}),
    ):  # fmt: skip
        mixer.require_division(ParallelSizes(**allowed))
        with pytest.raises(ConfigError):
            mixer.require_division(ParallelSizes(**refused))
    for name in ("channels", "kernel"):
        with pytest.raises(ConfigError, match=name):
            ShortConvolution(**{"channels": 24, name: 0})


OF_FILES = {"hidden_size": 120, "num_attention_heads": 6, "num_key_value_heads": 3, "num_hidden_layers": 4}
OF_FILES |= {"vocab_size": 211, "max_position_embeddings": 83, "intermediate_size": 300, "head_dim": 13}
GROUPED = Attention(6, 3, 13, qk_norm=True)


@pytest.mark.parametrize(
    ("given", "mixers", "sizes", "tied"),
    [
        ({"full_attn_idxs": [1, 3]}, "caca", 256, True),
        ({"layer_types": ["conv", "full_attention", "conv", "conv"], "block_ff_dim": 1000}, "cacc", 768, True),
        ({"block_multiple_of": 7, "tie_embedding": False}, "aaaa", 203, False),
        ({"block_auto_adjust_ff_dim": False, "block_ffn_dim_multiplier": 1}, "aaaa", 300, True),
    ],
)
def test_a_file_of_lfm2_gives_these_layers(given: Any, mixers: str, sizes: int, tied: bool) -> None:
    """Two thirds of the given width, 200 or 666, are rounded up to a multiple of 256 or 7."""
    convolution = {"conv_L_cache": 5, "conv_bias": True}
    model = model_from({"model_type": "lfm2", **OF_FILES, **convolution, **given})
    kinds = {"c": ShortConvolution(120, 5, True), "a": GROUPED}
    assert [layer.attention for layer in model.layers] == [kinds[letter] for letter in mixers]
    assert {layer.ffn for layer in model.layers} == {FeedForward(sizes)}
    assert (model.tied_embeddings, model.sequence_length) == (tied, 83)


def test_a_file_of_lfm2_with_experts_has_two_dense_layers_by_default() -> None:
    sparse = {"moe_intermediate_size": 19, "num_experts": 7, "num_experts_per_tok": 3}
    experts = MixtureOfExperts(FeedForward(19), 7, 3, router_bias=True)
    model = model_from({"model_type": "lfm2_moe", **OF_FILES, **sparse})
    assert [layer.ffn for layer in model.layers] == [FeedForward(300)] * 2 + [experts] * 2
    given = model_from(
        {"model_type": "lfm2_moe", **OF_FILES, **sparse, "num_dense_layers": 1, "use_expert_bias": False}
    )
    assert [layer.ffn for layer in given.layers] == [FeedForward(300)] + [replace(experts, router_bias=False)] * 3
    short = {
        name: size
        for name, size in OF_FILES.items()
        if name not in ("max_position_embeddings", "intermediate_size")
    }
    found = model_from({"model_type": "lfm2", **short, "layer_types": ["conv"] * 4})
    assert (found.layers[0].attention, found.layers[0].ffn) == (ShortConvolution(120), FeedForward(8192))
    assert found.sequence_length == 128_000


def test_a_file_of_falcon_h1_gives_these_mixers() -> None:
    given = {
        "mamba_n_heads": 10,
        "mamba_d_state": 14,
        "mamba_n_groups": 5,
        "mamba_d_conv": 3,
        "mamba_chunk_size": 29,
    }
    attention = Attention(6, 3, 13)
    for columns, size in (
        ({"mamba_d_ssm": 70}, 7),
        ({"mamba_expand": 3}, 36),
        ({"mamba_d_head": 24}, 24),
        ({}, 24),
    ):
        model = model_from({"model_type": "falcon_h1", **OF_FILES, **given, **columns, "mamba_rms_norm": True})
        mamba = Mamba(10, size, 14, num_groups=5, kernel=3, chunk_size=29)
        assert {layer.attention for layer in model.layers} == {ParallelMixers((attention, mamba))}
    with pytest.raises(ConfigError, match="70 is not mamba_n_heads 10 × mamba_d_head 24"):
        model_from({"model_type": "falcon_h1", **OF_FILES, **given, "mamba_d_ssm": 70, "mamba_d_head": 24})
    wide = {name: size for name, size in OF_FILES.items() if name != "max_position_embeddings"} | {
        "hidden_size": 640
    }
    usual = model_from({"model_type": "falcon_h1", **wide})
    assert usual.layers[0].attention.mixers[1] == Mamba(128, 10, 256, chunk_size=256, gated_norm=False)
    assert usual.sequence_length == 8192
