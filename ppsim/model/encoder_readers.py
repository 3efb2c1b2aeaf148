"""Readers of `vision_config` and `audio_config`, by the classes of transformers 5.23."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ppsim.model.architecture import Layer, Norm
from ppsim.model.attention_and_mlp import Attention, FeedForward
from ppsim.model.encoder import Encoder
from ppsim.model.hf_fields import ConfigFields
from ppsim.model.weight_matrices import WeightMatrix

_MOCK_IMAGE = 256
"""Side in pixels of an image in Megatron-Bridge's synthetic data (data/builders/mock_vlm_sft.py: `image_size`)."""


def _layer(
    hidden: int,
    heads: int,
    size: int,
    *,
    bias: bool = True,
    gated: bool = False,
    norm: Norm = "layernorm",
    window: int | None = None,
) -> Layer:
    attention = Attention(
        heads, heads, hidden // heads, qkv_bias=bias, out_bias=bias, is_causal=False, window=window
    )
    return Layer(hidden, attention, FeedForward(size, gated=gated, bias=bias), norm)


def _patches(fields: ConfigFields, hidden: int, *, times: int = 1, bias: bool = True) -> WeightMatrix:
    channels = fields.count("in_channels", "in_chans", "num_channels", default=3)
    columns = channels * times * fields.count("patch_size") ** 2
    return WeightMatrix("patch embedding", "patches", columns, (hidden,), biased=bias)


def _pair(inputs: int, wide: int, outputs: int) -> tuple[WeightMatrix, WeightMatrix]:
    return (
        WeightMatrix("projector up", "patches of a token", inputs, (wide,), split="outputs", biased=True),
        WeightMatrix("projector down", "projector activation", wide, (outputs,), split="inputs", biased=True),
    )


def _qwen(fields: ConfigFields, top: ConfigFields, text_size: int) -> Encoder:
    """Qwen3-VL and Qwen3.5: a merger at the end, and one after each of `deepstack_visual_indexes`."""
    hidden, depth = fields.count("hidden_size"), fields.num_layers("depth")
    merge, times = fields.count("spatial_merge_size"), fields.count("temporal_patch_size")
    positions, out = fields.count("num_position_embeddings"), fields.count("out_hidden_size")
    deep = len(fields.counts("deepstack_visual_indexes", 0) or ())
    layer = _layer(hidden, fields.count("num_heads"), fields.count("intermediate_size"))
    wide = merge**2 * hidden
    return Encoder(
        "image", (layer,) * depth, (_patches(fields, hidden, times=times),),
        _pair(wide, wide, out) * (1 + deep), own=(positions * hidden, 2 * hidden + deep * 2 * wide),
        merge=merge**2, num_tokens=positions // merge**2, is_divided=True,
        source=f"num_position_embeddings {positions}",
    )  # fmt: skip


def _qwen25(fields: ConfigFields, top: ConfigFields, text_size: int) -> Encoder:
    """Qwen2.5-VL: attention in windows except in `fullatt_block_indexes`."""
    hidden, depth = fields.count("hidden_size"), fields.num_layers("depth")
    merge, times = fields.count("spatial_merge_size"), fields.count("temporal_patch_size")
    patch, heads = fields.count("patch_size"), fields.count("num_heads")
    window = (fields.count("window_size") // patch) ** 2
    full = fields.layers("fullatt_block_indexes") or {7, 15, 23, 31}
    size, out = fields.count("intermediate_size"), fields.count("out_hidden_size", default=text_size)
    kinds = [_layer(hidden, heads, size, gated=True, norm="rmsnorm", window=wide) for wide in (None, window)]
    side = round(_MOCK_IMAGE / (patch * merge))
    return Encoder(
        "image", tuple(kinds[layer not in full] for layer in range(depth)),
        (_patches(fields, hidden, times=times, bias=False),), _pair(merge**2 * hidden, merge**2 * hidden, out),
        own=(0, hidden), merge=merge**2, num_tokens=side**2,
        source=f"{_MOCK_IMAGE} × {_MOCK_IMAGE} pixels, as in Megatron-Bridge's synthetic data",
    )  # fmt: skip


def _glm(fields: ConfigFields, top: ConfigFields, text_size: int) -> Encoder:
    """GLM-4.5V."""
    hidden, out = fields.count("hidden_size"), fields.count("out_hidden_size")
    heads, depth = fields.count("num_heads"), fields.num_layers("depth")
    merge, times = fields.count("spatial_merge_size"), fields.count("temporal_patch_size")
    wide, bias = fields.count("intermediate_size"), fields.flag("attention_bias", default=False)
    side = fields.count("image_size") // fields.count("patch_size")
    layer = _layer(hidden, heads, out, bias=False, gated=True, norm="rmsnorm")
    layer = replace(layer, attention=Attention(heads, heads, hidden // heads, qkv_bias=bias, is_causal=False))
    projector = (
        WeightMatrix("downsample", "patches of a token", merge**2 * hidden, (out,), biased=True),
        WeightMatrix("projector", "downsampled", out, (out,)),
        WeightMatrix("projector up", "projected", out, (wide, wide)),
        WeightMatrix("projector down", "projector activation", wide, (out,)),
    )
    return Encoder(
        "image", (layer,) * depth, (_patches(fields, hidden, times=times),), projector,
        own=(side**2 * hidden + 2 * hidden, 2 * out), merge=merge**2, num_tokens=side**2 // merge**2,
        source="image_size of vision_config",
    )  # fmt: skip


def _llama4(fields: ConfigFields, top: ConfigFields, text_size: int) -> Encoder:
    hidden = fields.count("hidden_size")
    layer = _layer(hidden, fields.count("num_attention_heads"), fields.count("intermediate_size"))
    side = fields.count("image_size") // fields.count("patch_size")
    ratio = fields.factor("pixel_shuffle_ratio") if not fields.is_word("pixel_shuffle_ratio", None) else 0.5
    merge = round(1 / ratio**2)
    inner, middle = fields.count("projector_input_dim"), fields.count("projector_output_dim")
    out = fields.count("vision_output_dim")
    projector = (
        WeightMatrix("adapter up", "patches of a token", merge * hidden, (inner,)),
        WeightMatrix("adapter down", "adapter activation", middle, (middle,)),
        WeightMatrix("projector", "adapted", out, (text_size,)),
    )
    return Encoder(
        "image", (layer,) * fields.num_layers(), (_patches(fields, hidden, bias=False),), projector,
        own=((side**2 + 2) * hidden + 4 * hidden, 0), merge=merge, num_tokens=side**2 // merge, is_fixed=True,
        more_rows=1, source="image_size of vision_config",
    )  # fmt: skip


def _siglip(fields: ConfigFields, top: ConfigFields, text_size: int) -> Encoder:
    """Gemma 3: SigLIP."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    layer = _layer(hidden, heads, fields.count("intermediate_size"))
    patches = (fields.count("image_size") // fields.count("patch_size")) ** 2
    tokens = top.count("mm_tokens_per_image")
    return Encoder(
        "image", (layer,) * fields.num_layers(), (_patches(fields, hidden),),
        (WeightMatrix("projector", "pooled", hidden, (text_size,)),), own=(patches * hidden + 2 * hidden, hidden),
        merge=patches // tokens, num_tokens=tokens, is_fixed=True, source="mm_tokens_per_image",
    )  # fmt: skip


def _gemma4(fields: ConfigFields, top: ConfigFields, text_size: int) -> Encoder:
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads, size = fields.count("num_key_value_heads"), fields.count("head_dim")
    attention = Attention(heads, kv_heads, size, qk_norm=True, value_norm=True, is_causal=False)
    layer = Layer(hidden, attention, FeedForward(fields.count("intermediate_size")), num_norms=4)
    positions = fields.count("position_embedding_size")
    return Encoder(
        "image", (layer,) * fields.num_layers(), (_patches(fields, hidden, bias=False),),
        (WeightMatrix("projector", "pooled", hidden, (text_size,)),), own=(2 * positions * hidden, 0),
        merge=fields.count("pooling_kernel_size") ** 2,
        num_tokens=top.count("vision_soft_tokens_per_image"),
        source="vision_soft_tokens_per_image",
    )  # fmt: skip


def _pixtral(fields: ConfigFields, top: ConfigFields, text_size: int) -> Encoder:
    """Mistral 3 and Ministral 3: Pixtral."""
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    layer = _layer(hidden, heads, fields.count("intermediate_size"), bias=False, gated=True, norm="rmsnorm")
    merge, bias = top.count("spatial_merge_size"), top.flag("multimodal_projector_bias", default=False)
    side = fields.count("image_size") // fields.count("patch_size")
    projector = (
        WeightMatrix("merger", "patches of a token", merge**2 * hidden, (hidden,)),
        WeightMatrix("projector up", "merged", hidden, (text_size,), biased=bias),
        WeightMatrix("projector down", "projector activation", text_size, (text_size,), biased=bias),
    )
    return Encoder(
        "image", (layer,) * fields.num_layers(), (_patches(fields, hidden, bias=False),), projector,
        own=(hidden, hidden), merge=merge**2, num_tokens=(side // merge) ** 2,
        source="image_size of vision_config, the largest",
    )  # fmt: skip


def _moonvit(fields: ConfigFields, top: ConfigFields, text_size: int) -> Encoder:
    """Kimi-VL and Kimi K2.5: MoonViT."""
    hidden = fields.count("hidden_size", "vt_hidden_size")
    heads = fields.count("num_attention_heads", "vt_num_attention_heads")
    size = fields.count("intermediate_size", "vt_intermediate_size")
    number = fields.num_layers("num_hidden_layers", "vt_num_hidden_layers")
    high, wide = (fields.count(f"pos_emb_{side}", f"init_pos_emb_{side}") for side in ("height", "width"))
    first, second = fields.counts("merge_kernel_size", 2) or (2, 2)
    merge = first * second
    return Encoder(
        "image", (_layer(hidden, heads, size),) * number, (_patches(fields, hidden),),
        _pair(merge * hidden, merge * hidden, text_size), own=(high * wide * hidden + 2 * hidden, 2 * hidden),
        merge=merge, num_tokens=high * wide // merge, source=f"table of {high} × {wide} positions",
    )  # fmt: skip


def _whisper(fields: ConfigFields, top: ConfigFields, text_size: int) -> Encoder:
    """Qwen2-Audio: Whisper's encoder, for clips of 30 s."""
    hidden, heads = fields.count("d_model"), fields.count("encoder_attention_heads")
    positions, mels = fields.count("max_source_positions"), fields.count("num_mel_bins")
    layer = _layer(hidden, heads, fields.count("encoder_ffn_dim"))
    number = fields.num_layers("encoder_layers")
    convolutions = (
        WeightMatrix("convolution 1", "spectrum", 3 * mels, (hidden,), biased=True, rows=2.0),
        WeightMatrix("convolution 2", "frames", 3 * hidden, (hidden,), biased=True),
    )
    # Keys have no bias, unlike in other encoders: h parameters per layer are subtracted.
    return Encoder(
        "audio", (layer,) * number, convolutions,
        (WeightMatrix("projector", "pooled", hidden, (text_size,), biased=True),),
        own=(positions * hidden + 2 * hidden - hidden * number, 0),
        merge=2, num_tokens=positions // 2, is_fixed=True, source="a clip of 30 s, max_source_positions",
    )  # fmt: skip


def _qwen2_omni(fields: ConfigFields, top: ConfigFields, text_size: int) -> Encoder:
    """Qwen2.5-Omni: Whisper's layers, with attention in windows of `n_window` rows, and two learned tokens."""
    window, out = fields.count("n_window"), fields.count("output_dim")
    audio = _whisper(fields, top, out)
    hidden, number = audio.layers[0].hidden_size, len(audio.layers)
    heads = fields.count("encoder_attention_heads")
    layer = _layer(hidden, heads, fields.count("encoder_ffn_dim"), window=window)
    own = 2 * hidden - hidden * number + 2 * out  # positions are constants
    return replace(audio, layers=(layer,) * number, own=(own, 0))


def _qwen3_omni_images(fields: ConfigFields, top: ConfigFields, text_size: int) -> Encoder:
    """The encoder of Qwen3-VL, whole on each rank: Megatron-Bridge uses the class of transformers."""
    return replace(_qwen(fields, top, text_size), is_divided=False)


def _qwen3_omni(fields: ConfigFields, top: ConfigFields, text_size: int) -> Encoder:
    """Qwen3-Omni: three convolutions with stride 2 in both directions over chunks of `n_window` × 2 frames.

    Attention is within `n_window_infer` frames; a frame is 10 ms.
    """
    hidden, heads = fields.count("d_model"), fields.count("encoder_attention_heads")
    channels, mels = fields.count("downsample_hidden_size"), fields.count("num_mel_bins")
    chunk, seen = 2 * fields.count("n_window"), fields.count("n_window_infer")
    wide, long = [mels], [chunk]
    for _ in range(3):
        wide.append((wide[-1] + 1) // 2)
        long.append((long[-1] + 1) // 2)
    convolutions = tuple(
        WeightMatrix(f"convolution {one}", "spectrum", 9 * (channels if one > 1 else 1), (channels,), biased=True,
               rows=wide[one] * long[one] / long[-1])
        for one in (1, 2, 3)
    )  # fmt: skip
    window = max(1, seen // chunk) * long[-1]
    layer = _layer(hidden, heads, fields.count("encoder_ffn_dim"), window=window)
    return Encoder(
        "audio", (layer,) * fields.num_layers("encoder_layers"),
        (*convolutions, WeightMatrix("convolved", "frames", channels * wide[-1], (hidden,))),
        (
            WeightMatrix("projector up", "encoded", hidden, (hidden,), biased=True),
            WeightMatrix(
                "projector down", "projector activation", hidden, (fields.count("output_dim"),),
                biased=True,
            ),
        ),
        own=(2 * hidden, 0), merge=1, num_tokens=3000 // chunk * long[-1], is_fixed=True, source="a clip of 30 s",
    )  # fmt: skip


EncoderReader = Callable[[ConfigFields, ConfigFields, int], Encoder]
READERS: Mapping[tuple[str, str], EncoderReader] = MappingProxyType(
    {
        ("gemma3", "vision"): _siglip,
        ("gemma4", "vision"): _gemma4,
        ("glm4v_moe", "vision"): _glm,
        ("kimi_k25", "vision"): _moonvit,
        ("kimi_vl", "vision"): _moonvit,
        ("llama4", "vision"): _llama4,
        ("mistral3", "vision"): _pixtral,
        ("qwen2_5_vl", "vision"): _qwen25,
        ("qwen2_audio", "audio"): _whisper,
        ("qwen2_5_omni_thinker", "vision"): _qwen25,
        ("qwen2_5_omni_thinker", "audio"): _qwen2_omni,
        ("qwen3_5", "vision"): _qwen,
        ("qwen3_5_moe", "vision"): _qwen,
        ("qwen3_vl", "vision"): _qwen,
        ("qwen3_vl_moe", "vision"): _qwen,
        ("qwen3_omni_moe_thinker", "vision"): _qwen3_omni_images,
        ("qwen3_omni_moe_thinker", "audio"): _qwen3_omni,
    }
)
"""Readers by model_type and kind of encoder.

Arguments: the encoder's fields, the fields of the file, and the hidden size of the text model.
"""
