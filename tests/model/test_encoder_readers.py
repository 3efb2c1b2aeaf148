"""Each reader of an encoder, on sizes that all differ: every field of its result."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim.model import encoder_readers as encoder_readers_module
from ppsim.model.architecture import Layer
from ppsim.model.attention_and_mlp import Attention, FeedForward
from ppsim.model.encoder import Encoder
from ppsim.model.encoder_readers import READERS
from ppsim.model.hf_fields import ConfigFields
from ppsim.model.weight_matrices import WeightMatrix as Matrix
from tests.defaults import number_defaults

H, FFN, OUT, TEXT = 60, 92, 44, 31
HEADS, DEPTH, PATCH, CHANNELS = 5, 3, 7, 4
"""Sizes of all encoders, TEXT of the decoder."""

MERGE, TIMES = 3, 6
COMMON = {"hidden_size": H, "intermediate_size": FFN, "patch_size": PATCH}
BY_HEADS = COMMON | {"num_heads": HEADS, "depth": DEPTH, "out_hidden_size": OUT}
BY_HEADS |= {"spatial_merge_size": MERGE, "temporal_patch_size": TIMES, "in_channels": CHANNELS}
NAMED = COMMON | {"num_attention_heads": HEADS, "num_hidden_layers": DEPTH, "num_channels": CHANNELS}
WHISPER = {
    "d_model": H, "encoder_attention_heads": HEADS, "max_source_positions": 41, "num_mel_bins": 13,
    "encoder_ffn_dim": FFN, "encoder_layers": DEPTH,
}  # fmt: skip
PIXELS = CHANNELS * PATCH**2


def attention(**other: Any) -> Attention:
    biases = {"qkv_bias": True, "out_bias": True} | other
    return Attention(HEADS, HEADS, H // HEADS, is_causal=False, **biases)


BIASED = Layer(H, attention(), FeedForward(FFN, gated=False, bias=True), "layernorm")
PLAIN = {"qkv_bias": False, "out_bias": False}


def patches(columns: int, *, biased: bool) -> tuple[Matrix, ...]:
    return (Matrix("patch embedding", "patches", columns, (H,), biased=biased),)


def pair(inputs: int, wide: int, outputs: int) -> tuple[Matrix, Matrix]:
    return (
        Matrix("projector up", "patches of a token", inputs, (wide,), split="outputs", biased=True),
        Matrix("projector down", "projector activation", wide, (outputs,), split="inputs", biased=True),
    )


def whisper(window: int | None, out: int, own: int) -> Encoder:
    layer = replace(BIASED, attention=attention(window=window))
    return Encoder(
        "audio", (layer,) * DEPTH, (
            Matrix("convolution 1", "spectrum", 3 * 13, (H,), biased=True, rows=2.0),
            Matrix("convolution 2", "frames", 3 * H, (H,), biased=True),
        ),
        (Matrix("projector", "pooled", H, (out,), biased=True),), own=(own, 0), merge=2, num_tokens=20,
        source="a clip of 30 s, max_source_positions", is_fixed=True,
    )  # fmt: skip


QWEN = Encoder(
    "image", (BIASED,) * DEPTH, patches(PIXELS * TIMES, biased=True), pair(9 * H, 9 * H, OUT) * 3,
    own=(108 * H, 2 * H + 2 * 2 * 9 * H), merge=9, num_tokens=12, source="num_position_embeddings 108",
    is_divided=True,
)  # fmt: skip
GATED = FeedForward(FFN, gated=True, bias=True)
FULL, WINDOWED = (Layer(H, attention(window=window), GATED, "rmsnorm") for window in (None, 4**2))
QWEN_25 = Encoder(
    "image", (WINDOWED, FULL, WINDOWED), patches(PIXELS * TIMES, biased=False), pair(9 * H, 9 * H, OUT), own=(0, H),
    merge=9, num_tokens=12**2, source="256 × 256 pixels, as in Megatron-Bridge's synthetic data",
)  # fmt: skip
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], Encoder]] = {
    "qwen3": (
        "qwen3_vl", "vision", BY_HEADS | {"num_position_embeddings": 108, "deepstack_visual_indexes": [1, 2]}, {}, QWEN
    ),
    "qwen3 omni": (
        "qwen3_omni_moe_thinker", "vision", BY_HEADS | {"num_position_embeddings": 108}, {},
        replace(QWEN, projector=pair(9 * H, 9 * H, OUT), own=(108 * H, 2 * H), is_divided=False),
    ),
    "qwen2.5": (
        "qwen2_5_vl", "vision", BY_HEADS | {"window_size": 31, "fullatt_block_indexes": [1]}, {}, QWEN_25,
    ),
    "glm": (
        "glm4v_moe", "vision", BY_HEADS | {"attention_bias": True, "image_size": 9 * PATCH + 1}, {}, Encoder(
            "image",
            (Layer(H, attention(out_bias=False), FeedForward(OUT, gated=True, bias=False), "rmsnorm"),) * DEPTH,
            patches(PIXELS * TIMES, biased=True), (
                Matrix("downsample", "patches of a token", 9 * H, (OUT,), biased=True),
                Matrix("projector", "downsampled", OUT, (OUT,)),
                Matrix("projector up", "projected", OUT, (FFN, FFN)),
                Matrix("projector down", "projector activation", FFN, (OUT,)),
            ), own=(81 * H + 2 * H, 2 * OUT), merge=9, num_tokens=9, source="image_size of vision_config",
        ),
    ),
    "llama4": (
        "llama4", "vision", NAMED | {
            "image_size": 9 * PATCH + 2, "pixel_shuffle_ratio": 0.25, "projector_input_dim": 37,
            "projector_output_dim": 53, "vision_output_dim": 71,
        }, {}, Encoder(
            "image", (BIASED,) * DEPTH, patches(PIXELS, biased=False), (
                Matrix("adapter up", "patches of a token", 16 * H, (37,)),
                Matrix("adapter down", "adapter activation", 53, (53,)),
                Matrix("projector", "adapted", 71, (TEXT,)),
            ), own=((81 + 2) * H + 4 * H, 0), merge=16, num_tokens=5, source="image_size of vision_config",
            is_fixed=True, more_rows=1,
        ),
    ),
    "siglip": (
        "gemma3", "vision", NAMED | {"image_size": 9 * PATCH + 3}, {"mm_tokens_per_image": 11}, Encoder(
            "image", (BIASED,) * DEPTH, patches(PIXELS, biased=True), (Matrix("projector", "pooled", H, (TEXT,)),),
            own=(81 * H + 2 * H, H), merge=7, num_tokens=11, source="mm_tokens_per_image", is_fixed=True,
        ),
    ),
    "gemma4": (
        "gemma4", "vision", NAMED | {
            "num_key_value_heads": 1, "head_dim": 17, "position_embedding_size": 23, "pooling_kernel_size": 4,
        }, {"vision_soft_tokens_per_image": 29}, Encoder(
            "image", (Layer(
                H, Attention(HEADS, 1, 17, qk_norm=True, value_norm=True, is_causal=False), FeedForward(FFN),
                num_norms=4,
            ),) * DEPTH, patches(PIXELS, biased=False), (Matrix("projector", "pooled", H, (TEXT,)),),
            own=(2 * 23 * H, 0), merge=16, num_tokens=29, source="vision_soft_tokens_per_image",
        ),
    ),
    "pixtral": (
        "mistral3", "vision", NAMED | {"image_size": 11 * PATCH + 4},
        {"spatial_merge_size": 3, "multimodal_projector_bias": True}, Encoder(
            "image", (Layer(H, attention(**PLAIN), FeedForward(FFN), "rmsnorm"),) * DEPTH,
            patches(PIXELS, biased=False), (
                Matrix("merger", "patches of a token", 9 * H, (H,)),
                Matrix("projector up", "merged", H, (TEXT,), biased=True),
                Matrix("projector down", "projector activation", TEXT, (TEXT,), biased=True),
            ), own=(H, H), merge=9, num_tokens=9, source="image_size of vision_config, the largest",
        ),
    ),
    "moonvit": (
        "kimi_vl", "vision",
        NAMED | {"init_pos_emb_height": 8, "init_pos_emb_width": 15, "merge_kernel_size": [2, 3]}, {}, Encoder(
            "image", (BIASED,) * DEPTH, patches(PIXELS, biased=True), pair(6 * H, 6 * H, TEXT),
            own=(120 * H + 2 * H, 2 * H), merge=6, num_tokens=20, source="table of 8 × 15 positions",
        ),
    ),
    "whisper": ("qwen2_audio", "audio", WHISPER, {}, whisper(None, TEXT, 41 * H + 2 * H - H * DEPTH)),
    "qwen2.5 omni": (
        "qwen2_5_omni_thinker", "audio", WHISPER | {"n_window": 19, "output_dim": OUT}, {},
        whisper(19, OUT, 2 * H - H * DEPTH + 2 * OUT),
    ),
    # 13 mels × 38 frames are halved, upwards, to 7 × 19, 4 × 10 and 2 × 5; 3 chunks of 38 are in 117 frames.
    "qwen3 omni, audio": (
        "qwen3_omni_moe_thinker", "audio", WHISPER | {
            "downsample_hidden_size": 16, "n_window": 19, "n_window_infer": 117, "output_dim": OUT,
        }, {}, Encoder(
            "audio", (replace(BIASED, attention=attention(window=3 * 5)),) * DEPTH, (
                Matrix("convolution 1", "spectrum", 9, (16,), biased=True, rows=7 * 19 / 5),
                Matrix("convolution 2", "spectrum", 9 * 16, (16,), biased=True, rows=4 * 10 / 5),
                Matrix("convolution 3", "spectrum", 9 * 16, (16,), biased=True, rows=2 * 5 / 5),
                Matrix("convolved", "frames", 16 * 2, (H,)),
            ), (
                Matrix("projector up", "encoded", H, (H,), biased=True),
                Matrix("projector down", "projector activation", H, (OUT,), biased=True),
            ), own=(2 * H, 0), merge=1, num_tokens=3000 // 38 * 5, source="a clip of 30 s", is_fixed=True,
        ),
    ),
}  # fmt: skip


def read(family: str, kind: str, sizes: dict[str, Any], top: dict[str, Any]) -> Encoder:
    return READERS[family, kind](ConfigFields(sizes, "config.json"), ConfigFields(top, "config.json"), TEXT)


@pytest.mark.parametrize("name", CASES)
def test_an_encoder_has_the_matrices_and_sizes_of_its_class(name: str) -> None:
    family, kind, sizes, top, encoder = CASES[name]
    assert read(family, kind, sizes, top) == encoder


@pytest.mark.parametrize(
    ("family", "kind", "changes", "field", "value"),
    [
        ("qwen2_5_vl", "vision", {"fullatt_block_indexes": None, "depth": 8}, "layers", (WINDOWED,) * 7 + (FULL,)),
        ("qwen2_5_vl", "vision", {"out_hidden_size": None}, "projector", pair(9 * H, 9 * H, TEXT)),
        ("qwen2_5_vl", "vision", {"in_channels": None}, "embedding", patches(3 * 49 * TIMES, biased=False)),
        ("llama4", "vision", {"pixel_shuffle_ratio": None}, "merge", 4),
        ("kimi_vl", "vision", {"merge_kernel_size": None}, "merge", 4),
        ("qwen3_omni_moe_thinker", "audio", {"n_window_infer": 37}, "layers", None),
    ],
)
def test_a_missing_size_of_an_encoder_has_its_usual_value(
    family: str, kind: str, changes: dict[str, Any], field: str, value: object
) -> None:
    sizes, top = next(case[2:4] for case in CASES.values() if case[:2] == (family, kind))
    found = read(family, kind, sizes | changes, top | changes)
    if value is None:  # a window shorter than a chunk is a chunk
        assert found.layers[0].attention.window == 5
    else:
        assert getattr(found, field) == value


def test_a_biased_projector_is_a_field_of_the_file() -> None:
    family, kind, sizes, top, encoder = CASES["pixtral"]
    unbiased = read(family, kind, sizes, {"spatial_merge_size": 3}).projector
    assert unbiased == tuple(replace(matrix, biased=False) for matrix in encoder.projector)
    glm, vision, sizes, top, encoder = CASES["glm"]
    found = read(glm, vision, {**sizes, "attention_bias": None}, top)
    assert found.layers[0].attention == replace(encoder.layers[0].attention, qkv_bias=False)


def test_what_is_left_out_in_model_encoder_readers_has_these_values() -> None:
    assert number_defaults(encoder_readers_module) == {
        "_layer": {"bias": True, "gated": False},
        "_patches": {"times": 1, "bias": True},
    }  # fmt: skip
