"""Fields of a config.json that the table of models does not have: other words, lists, nested objects, refusals."""

import pytest

from ppsim.base.errors import ConfigError
from ppsim.model.config import model_from
from ppsim.model.registry import _told, find_model


def config(name: str, **other: object) -> dict[str, object]:
    return _told()[name][0] | other


SAME = {
    "images and text": ("qwen3.5-35b-a3b", {"model_type": "qwen3_5_moe", "image_token_id": 1}, True),
    "Mistral with images": ("ministral-3-3b", {"model_type": "mistral3", "vision_config": {}}, True),
    "Kimi with images": ("kimi-k2", {"model_type": "kimi_k25", "ignore_index": -100}, True),
    "layers by word": ("hy3", {"mlp_layer_types": ["dense"] + ["sparse"] * 79}, False),
    "lists of equal sizes": (
        "hunyuan-a13b",
        {
            "moe_intermediate_size": [3072] * 32,
            "moe_topk": [8] * 32,
            "num_shared_expert": [1] * 32,
            "use_cla": False,
        },
        False,
    ),
    "last layer of experts": ("ernie-4.5-21b-a3b", {"moe_layer_end_index": -1, "moe_use_aux_free": True}, False),
    "pattern of letters": ("exaone-4.0-32b", {"sliding_window_pattern": "LLLG"}, False),
    "indexers by word": ("glm-5", {"indexer_types": ["full"] * 78}, False),
}


@pytest.mark.parametrize("case", SAME)
def test_other_words_for_the_same_model(case: str) -> None:
    name, other, is_nested = SAME[case]
    data = other | {"text_config": config(name)} if is_nested else config(name, **other)
    assert model_from(data).kinds == find_model(name).kinds


WITHOUT_EFFECT = {
    "phi-4": ("full_attn_mod", "interpolate_factor"),
    "mimo-7b": ("attention_bias", "use_mrope"),
    "ernie-4.5-0.3b": ("compression_ratio", "fuse_rope", "max_sequence_length", "weight_share_add_bias"),
    "ernie-4.5-21b-a3b": ("moe_capacity", "moe_gate", "moe_norm_min"),
    "minimax-m2.5": ("attn_type_list", "mtp_transformer_layers", "rotary_dim", "use_mtp"),
    "hunyuan-a13b": ("anyres_pooling_size", "image_token_id", "moe_drop_tokens", "pool_type"),
    "hy3": ("router_scaling_factor", "mlp_bias"),
    "ling-mini-2.0": ("embedding_dropout", "mtp_loss_scaling_factor", "norm_head"),
    "qwen3-next-80b-a3b": ("attn_output_gate", "mamba_ssm_dtype"),
    "flux.1-dev": ("axes_dims_rope", "out_channels"),
    "sd3-medium": ("pos_embed_max_size", "sample_size"),
}


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_fields_of_a_family_without_effect_on_sizes_are_accepted(name: str) -> None:
    for field in WITHOUT_EFFECT[name]:
        assert model_from(config(name, **{field: 64})).kinds == find_model(name).kinds, field
    with pytest.raises(ConfigError, match="unknown field 'moe_gate_of_another_family'"):
        model_from(config(name, moe_gate_of_another_family=1))


def test_a_layer_that_reuses_a_choice_of_keys_has_no_indexer() -> None:
    """GLM-5.2: three layers of four take the keys of the one before."""
    model = model_from(config("glm-5", indexer_types=["full", "shared"] * 39))
    own, reused = (layer.attention for layer in model.layers[:2])
    assert len(own.linears(6144, 1)) == len(reused.linears(6144, 1)) + 3
    assert own.keys_per_query(8192) == reused.keys_per_query(8192) < 2048


def test_llama_nemotron_has_a_width_per_layer() -> None:
    """The blocks of nvidia/Llama-3_3-Nemotron-Super-49B-v1, in another order; 49.9B: its model card."""
    widths = {5.25: 1, 1.3125: 10, 1.0: 8, 0.5: 6, 2.625: 5, 3.28125: 1}
    blocks = [block(5.25, heads=8)] * 48 + [block(2.625, heads=8)]
    blocks += [block(mult) for mult, number in widths.items() for _ in range(number)]
    data = {"model_type": "nemotron-nas", "hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 80}
    data |= {"vocab_size": 128_256, "max_position_embeddings": 8192, "block_configs": blocks}
    model = model_from(data)
    assert model.parameters == 49_867_145_216
    assert [layer.num_norms for layer in model.layers] == [2] * 49 + [1] * 31
    for name in ("attention_bias", "mlp_bias"):
        with pytest.raises(ConfigError, match=name):
            model_from(data | {name: True})
    with pytest.raises(ConfigError, match="block_configs has 80 layers, not num_hidden_layers 79"):
        model_from(data | {"num_hidden_layers": 79})
    linear = [block(1.0) | {"attention": {"replace_with_linear": True}}]
    with pytest.raises(ConfigError, match="replace_with_linear, which is not known"):
        model_from(data | {"block_configs": linear})


def block(mult: float, *, heads: int | None = None) -> dict[str, object]:
    return {"attention": {"n_heads_in_group": heads, "no_op": heads is None}, "ffn": {"ffn_mult": mult}}


def test_granite_has_a_dense_part_next_to_its_experts() -> None:
    """Grok-2 is read so, with two norms more per layer."""
    data = config("grok-2", embedding_multiplier=12.0)
    shared = data.pop("shared_intermediate_size")
    layers = [model_from(data | {"model_type": kind}).layers[0] for kind in ("granitemoe", "granitemoeshared")]
    assert layers[0] == layers[1]
    whole = find_model("grok-2").layers[0].parameters
    assert layers[0].parameters == whole - 3 * 8192 * shared - 2 * 8192


WRONG = {
    "experts that are shared": ("minimax-m2.5", {"shared_intermediate_size": 8}, "shared_intermediate_size 8 is not known; it is 0 in"),
    "a bias of ERNIE": ("ernie-4.5-0.3b", {"use_bias": True}, "use_bias true is not known"),
    "a bias of the head": ("phi-4", {"lm_head_bias": True}, "lm_head_bias true is not known"),
    "keys shared by layers": ("hunyuan-a13b", {"use_cla": True}, "use_cla true is not known"),
    "lists that differ": ("hunyuan-a13b", {"moe_topk": [8] * 31 + [4]}, "moe_topk must be one number for all layers"),
    "dense layers of Hunyuan": ("hunyuan-a13b", {"moe_layer_num_skipped": 1}, "moe_layer_num_skipped 1 is not known; it is 0 in"),
    "a window that is missing": ("olmo-3-7b", {"sliding_window": None}, "sliding_window is missing"),
    "an unknown field": ("glm-4.5", {"n_groups_of_experts": 2}, "unknown field 'n_groups_of_experts'"),
    "blocks that are missing": ("phi-4", {"model_type": "nemotron-nas"}, "block_configs is missing"),
    "a factor that is no number": (
        "phi-4", {"model_type": "nemotron-nas", "block_configs": [block(0)]}, "ffn_mult must be a number above 0",
    ),
    "an unknown word": ("hy3", {"mlp_layer_types": ["dense"] * 79 + ["wide"]}, "must be of dense, sparse: got 'wide'"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_known_is_refused_by_name(case: str) -> None:
    name, other, sentence = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        model_from(config(name, **other))
    assert sentence in str(caught.value)
