"""Megatron-LM's arguments for layers that differ: patterns, windows, sinks, gated delta nets, latent experts."""

from pathlib import Path

import pytest

from ppsim.model.architecture import Model
from ppsim.model.attention_and_mlp import Attention
from ppsim.model.recurrent import GatedDeltaNet, Mamba
from ppsim.trainers.read_config import read_run_config
from ppsim.trainers.run_config import RunConfig

BASE = {
    "num-layers": 4, "hidden-size": 256, "num-attention-heads": 4, "micro-batch-size": 1, "disable-bias-linear": True,
    "normalization": "RMSNorm", "position-embedding-type": "rope", "vocab-size": 1000, "ffn-hidden-size": 512,
}  # fmt: skip


def configuration(tmp_path: Path, **more: object) -> RunConfig:
    lines = [f"  --{name}: {value}" for name, value in (BASE | named(more)).items()]
    path = tmp_path / "model_config.yaml"
    path.write_text("MODEL_ARGS:\n" + "\n".join(lines) + "\n")
    return read_run_config(path)


def model(tmp_path: Path, **more: object) -> Model:
    found = configuration(tmp_path, **more)
    assert found.model is not None, found.why_no_model
    return found.model


def named(more: dict[str, object]) -> dict[str, object]:
    return {name.replace("_", "-"): value for name, value in more.items()}


@pytest.mark.parametrize("flag", ["hybrid_layer_pattern", "hybrid_override_pattern"])
def test_a_pattern_is_the_layers_of_the_model(tmp_path: Path, flag: str) -> None:
    """Heads without a number are those of twice the hidden size; groups 8, states 128, chunks 128 are defaults."""
    found = model(tmp_path, is_hybrid_model=True, **{flag: "M*-M/*-"}, squared_relu=True)
    mixer = found.layers[0].attention
    assert mixer == Mamba(8, 64, 128, num_groups=8, chunk_size=128)
    assert [layer.has_mixer for layer in found.layers] == [True, True, False, True]
    assert not found.layers[2].ffn.gated
    assert [(layer.has_mixer, layer.has_feed_forward) for layer in found.mtp] == [(True, True)]


def test_sizes_of_mamba_are_read(tmp_path: Path) -> None:
    sizes = {"mamba_num_heads": 6, "mamba_head_dim": 32, "mamba_state_dim": 16, "mamba_num_groups": 2}
    found = model(tmp_path, hybrid_layer_pattern="MMMM", **sizes)
    assert found.layers[0].attention == Mamba(6, 32, 16, num_groups=2, chunk_size=128)


def test_experts_of_a_latent_are_that_narrow(tmp_path: Path) -> None:
    found = model(
        tmp_path, hybrid_layer_pattern="'*E*E'", num_experts=8, moe_latent_size=64, moe_ffn_hidden_size=128
    )
    expert = found.layers[1]
    assert expert.expert_width == 64
    assert expert.expert_parameters == 8 * 2 * 64 * 128


def test_one_layer_of_so_many_attends_where_the_others_are_delta_nets(tmp_path: Path) -> None:
    delta = {"linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_num_key_heads": 4}
    found = model(
        tmp_path, experimental_attention_variant="gated_delta_net", linear_attention_freq=2,
        linear_num_value_heads=8, attention_output_gate=True, **delta,
    )  # fmt: skip
    first, second = (layer.attention for layer in found.layers[:2])
    assert first == GatedDeltaNet(4, 8, 64, 64)
    assert isinstance(second, Attention)
    assert second.gated
    assert [layer.attention == first for layer in found.layers] == [True, False, True, False]


def test_windows_are_the_tokens_before_and_the_query_itself(tmp_path: Path) -> None:
    """Every second layer sees all, as `is_layer_window_attention` counts them from 1."""
    found = model(tmp_path, window_size="(127,0)", window_attn_skip_freq=2, softmax_type="learnable")
    assert [layer.attention.window for layer in found.layers] == [128, None, 128, None]
    assert all(layer.attention.sinks for layer in found.layers)
    listed = model(tmp_path, window_size="127,0", window_attn_skip_freq="([1]*3+[0])")
    assert [layer.attention.window for layer in listed.layers] == [128, 128, 128, None]
    everywhere = model(tmp_path, window_size="127,0")
    assert [layer.attention.window for layer in everywhere.layers] == [128] * 4


@pytest.mark.parametrize("name", ["rotary_scaling_factor", "yarn_rotary_scaling_factor"])
def test_yarn_has_its_factor_and_other_positions_have_none(tmp_path: Path, name: str) -> None:
    yarn = {"position_embedding_type": "yarn"}
    found = [
        model(tmp_path, **words).layers[0].attention.yarn
        for words in ({**yarn, name: 32.0}, yarn, {"position_embedding_type": "rope", name: 32.0})
    ]
    assert found == [32.0, 1.0, None]
    refused = configuration(tmp_path, **yarn, **{name: "four"}).why_no_model
    assert f"{name} must be a number of 1 or more: got 'four'" in refused


@pytest.mark.parametrize(
    ("ratio", "pattern"), [(0.0, "M-M-M-M-"), (0.25, "*-M-M-M-"), (0.5, "*-M-*-M-"), (0.75, "*-*-*-M-")]
)
def test_primus_spreads_attention_over_pairs(tmp_path: Path, ratio: float, pattern: str) -> None:
    """Its `HybridStack.allocate_layers`: a feed-forward part behind every mixer."""
    spec = "primus.hybrid_mamba_mla_layer_specs hybrid_stack_spec"
    found = model(tmp_path, num_layers=8, model_type="mamba", spec=spec, hybrid_attention_ratio=ratio)
    letters = {Mamba: "M", Attention: "*"}
    found_letters = [letters.get(type(layer.attention), "-") for layer in found.layers]
    assert "".join(found_letters) == pattern


def test_layers_for_further_tokens_have_the_older_arguments_pattern(tmp_path: Path) -> None:
    pattern = {"hybrid_override_pattern": "M*-M", "mtp_hybrid_override_pattern": "M-"}
    found = model(tmp_path, mtp_num_layers=2, **pattern)
    assert len(found.mtp) == 2
    assert found.mtp[0].attention == found.layers[0].attention
    assert found.mtp[0].ffn == found.layers[2].ffn
