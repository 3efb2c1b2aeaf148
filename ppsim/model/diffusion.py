"""Readers of diffusion transformers: DiT by its authors' class, Stable Diffusion 3 and Flux by diffusers'."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from ppsim.model.architecture import Layer, Model
from ppsim.model.attention_and_mlp import Attention, FeedForward
from ppsim.model.conditioning import Conditioning, Patches
from ppsim.model.hf_fields import ConfigFields

_TIME = 256  # sinusoidal features of a time step
_IMAGE = 4096  # patches of a 1024 × 1024 image


def _attention(heads: int, head_size: int, *, qk_norm: bool = False) -> Attention:
    return Attention(heads, heads, head_size, qkv_bias=True, out_bias=True, qk_norm=qk_norm, is_causal=False)


def _layer(attention: Attention, conditioned: Conditioning) -> Layer:
    hidden = attention.num_heads * attention.head_size
    ffn = FeedForward(4 * hidden, gated=False, bias=True)
    return Layer(hidden, attention, ffn, norm="plain", conditioned=conditioned)


def _with_text(fields: ConfigFields, layers: Sequence[Layer], patch: int, times: int, text: int) -> Model:
    share = text / (_IMAGE + text)
    embedded = (patch, 1 - share), (fields.count("joint_attention_dim"), share)
    patches = Patches(embedded, (*(_TIME,) * times, fields.count("pooled_projection_dim")), patch)
    return Model(tuple(layers), patch, _IMAGE + text, final_norm=False, patches=patches, source="config.json")


def _dit(fields: ConfigFields) -> Model:
    """facebookresearch/DiT, models.py: conditioned by class (including "none"); predicts mean and variance.

    Sinusoidal positions are counted, as in published parameter numbers.
    """
    hidden, heads = fields.count("hidden_size"), fields.count("num_heads")
    if hidden % heads:
        fields.refuse("hidden_size", f"{hidden} is no multiple of num_heads {heads}")
    layer = _layer(_attention(heads, hidden // heads), Conditioning(6))
    patch, channels = fields.count("patch_size", default=2), fields.count("in_channels", default=4)
    columns, image = channels * patch**2, (fields.count("input_size", default=32) // patch) ** 2
    patches = Patches(
        ((columns, 1.0),), (_TIME,), 2 * columns, classes=fields.count("num_classes", default=1000) + 1
    )
    return Model(
        (layer,) * fields.num_layers("depth"), 2 * columns, image, learned_positions=image, final_norm=False,
        patches=patches, source="config.json",
    )  # fmt: skip


def _stable_diffusion_3(fields: ConfigFields) -> Model:
    """In the last layer, the text has only queries, keys and values."""
    heads, size = fields.count("num_attention_heads"), fields.count("attention_head_dim")
    patch = fields.count("in_channels") * fields.count("patch_size") ** 2
    if fields.count("out_channels", default=fields.count("in_channels")) != fields.count("in_channels"):
        fields.refuse("out_channels", "is as many as in_channels in Stable Diffusion 3")
    if fields.count("caption_projection_dim", default=heads * size) != heads * size:
        fields.refuse("caption_projection_dim", f"is the width of all heads, {heads * size}")
    text = 154
    conditioned = Conditioning(6, text / (_IMAGE + text))
    layer = _layer(_attention(heads, size), conditioned)
    last = replace(layer, conditioned=replace(conditioned, text_ends=True))
    return _with_text(fields, [layer] * (fields.num_layers("num_layers") - 1) + [last], patch, 1, text)


def _flux(fields: ConfigFields) -> Model:
    """Layers of one stream have one norm, one modulation of three vectors, and one bias after both mixers."""
    attention = _attention(fields.count("num_attention_heads"), fields.count("attention_head_dim"), qk_norm=True)
    text = 512
    double = _layer(attention, Conditioning(6, text / (_IMAGE + text)))
    single = replace(double, attention=replace(attention, out_bias=False), num_norms=1, conditioned=Conditioning(3))
    layers = [double] * fields.num_layers("num_layers") + [single] * fields.count("num_single_layers")
    patch = fields.count("in_channels", default=64) * fields.count("patch_size", default=1) ** 2
    return _with_text(fields, layers, patch, 1 + fields.flag("guidance_embeds", default=False), text)


DIFFUSERS: Mapping[str, Callable[[ConfigFields], Model]] = MappingProxyType(
    {"FluxTransformer2DModel": _flux, "SD3Transformer2DModel": _stable_diffusion_3, "DiT": _dit}
)
"""Readers by `_class_name`."""
