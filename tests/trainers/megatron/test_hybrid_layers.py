"""Megatron-LM's arguments for layers that differ: patterns, windows, sinks, gated delta nets, latent experts."""

from pathlib import Path

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Model
from ppsim.model.attention_and_mlp import Attention
from ppsim.model.recurrent import GatedDeltaNet, Mamba
from ppsim.trainers.arguments import Arguments
from ppsim.trainers.megatron.hybrid_layers import _evenly, _listed, _tokens_before, hybrid_pattern, yarn_factor
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


@pytest.mark.parametrize(
    ("pairs", "ratio", "pattern"),
    [
        (6, 0.0, "M-" * 6), (6, 0.1, "M-" * 6), (6, 0.34, ("*-" + "M-" * 2) * 2), (7, 0.3, ("*-" + "M-" * 2) * 2 + "M-"),
        (6, 0.5, "*-M-" * 3), (6, 0.67, "*-" * 2 + "*-M-" * 2), (6, 1.0, "*-" * 6),
    ],
)  # fmt: skip
def test_attention_is_spread_evenly_over_pairs_of_layers(pairs: int, ratio: float, pattern: str) -> None:
    assert _evenly(pairs, ratio) == pattern
    assert pattern.count("-") == pairs


@pytest.mark.parametrize(
    ("size", "before"),
    [("(127,0)", 127), ([127, 0], 127), ((0, 0), 0), ("[-1, 0]", None), ("-1,-1", None), ([-1, -1], None)],
)
def test_a_window_is_so_many_tokens_before(size: object, before: int | None) -> None:
    assert _tokens_before(size, "F") == before


@pytest.mark.parametrize("size", ["(-2,0)", "(8,1)", "(-1,1)", "(8,-1)"])
def test_a_window_of_other_tokens_is_refused(size: str) -> None:
    with pytest.raises(ConfigError, match="F: window_size must be so many tokens before and 0 behind"):
        _tokens_before(size, "F")


@pytest.mark.parametrize(
    ("given", "entries"),
    [
        (1, [10, 11, 12]), (3, [30, 31, 32]), ([5, 6, 7], [5, 6, 7]), ([5, 6, 7, 8], [5, 6, 7]), ("[0]*2+[4]", [0, 0, 4]),
        ("([1,2]+[3])*2", [1, 2, 3]),
    ],
)  # fmt: skip
def test_a_frequency_is_a_number_or_a_list_of_the_layers(given: object, entries: list[int]) -> None:
    assert _listed(given, "freq", 3, "F", lambda layer, every: 10 * every + layer) == entries


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (0, "F: freq must be 1 or more: got 0"),
        (True, "F: freq must be a whole number or a list: got True"),
        (1.5, "F: freq must be a whole number or a list: got 1.5"),
        ([1, 2], "F: freq has 2 entries for 3 layers"),
        ("[1]*10001", r"F: freq '\[1\]\*10001' is no list as"),
        ("[1]-[2]", "is no list as"),
        ("x", "is no list as"),
    ],
)
def test_other_frequencies_are_refused(given: object, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        _listed(given, "freq", 3, "F", lambda layer, every: layer)


def test_repetitions_up_to_ten_thousand_are_evaluated() -> None:
    assert _listed("[1]*10000", "freq", 3, "F", lambda layer, every: layer) == [1, 1, 1]


@pytest.mark.parametrize(
    ("values", "factor"),
    [
        ({}, None), ({"position_embedding_type": "rope", "rotary_scaling_factor": 4}, None),
        ({"position_embedding_type": "yarn"}, 1.0), ({"position_embedding_type": "yarn", "rotary_scaling_factor": 4}, 4.0),
        ({"position_embedding_type": "yarn", "yarn_rotary_scaling_factor": 1}, 1.0),
        ({"position_embedding_type": "yarn", "rotary_scaling_factor": 4, "yarn_rotary_scaling_factor": 8}, 4.0),
    ],
)  # fmt: skip
def test_the_factor_of_yarn_is_that_of_either_name(values: dict[str, object], factor: float | None) -> None:
    assert yarn_factor(Arguments(values, "F")) == factor


@pytest.mark.parametrize("factor", [0.5, True, "4", float("inf")])
def test_a_factor_of_yarn_below_1_is_refused(factor: object) -> None:
    with pytest.raises(ConfigError, match="F: rotary_scaling_factor must be a number of 1 or more"):
        yarn_factor(Arguments({"position_embedding_type": "yarn", "rotary_scaling_factor": factor}, "F"))


@pytest.mark.parametrize(
    ("values", "pattern"),
    [
        ({}, None), ({"hybrid_layer_pattern": " M*- "}, "M*-"), ({"hybrid_override_pattern": "M-"}, "M-"),
        ({"hybrid_layer_pattern": "M*", "hybrid_override_pattern": "M-"}, "M*"), ({"is_hybrid_model": True}, "M" * 6),
        ({"model_type": "mamba"}, "M" * 6), ({"model_provider": "hybrid"}, "M" * 6), ({"model_type": "gpt"}, None),
        ({"model_type": "mamba", "spec": "a hybrid_mamba_mla_spec", "hybrid_attention_ratio": 0.34}, "*-M-M-"),
        ({"model_type": "mamba", "spec": "hybrid_mamba_mla"}, "M-" * 3),
    ],
)  # fmt: skip
def test_a_hybrid_has_its_pattern_or_mamba_in_each_layer(values: dict[str, object], pattern: str | None) -> None:
    assert hybrid_pattern(Arguments(values, "F"), 6) == pattern


def test_a_hybrid_without_layers_or_with_ratios_is_refused() -> None:
    with pytest.raises(ConfigError, match="F: num_layers is missing"):
        hybrid_pattern(Arguments({"is_hybrid_model": True}, "F"), None)
    for name in ("hybrid_attention_ratio", "hybrid_mlp_ratio"):
        with pytest.raises(ConfigError, match="give hybrid-layer-pattern"):
            hybrid_pattern(Arguments({"is_hybrid_model": True, name: 0.5}, "F"), 6)
