"""Readers of the config.json of diffusers' transformers, which name a class where others have a `model_type`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ppsim.model.architecture import Model
from ppsim.model.diffusion import flux, mmdit
from ppsim.model.fields import Fields


def _flux(fields: Fields) -> Model:
    patch = fields.count("in_channels", default=64) * fields.count("patch_size", default=1) ** 2
    fields.seen |= {"axes_dims_rope", "out_channels"}
    return flux(
        guidance=fields.flag("guidance_embeds", default=False),
        num_layers=(fields.num_layers("num_layers"), fields.count("num_single_layers")),
        heads=(fields.count("num_attention_heads"), fields.count("attention_head_dim")),
        inputs=(patch, fields.count("joint_attention_dim"), fields.count("pooled_projection_dim")),
    )


def _stable_diffusion_3(fields: Fields) -> Model:
    heads = fields.count("num_attention_heads"), fields.count("attention_head_dim")
    patch = fields.count("in_channels") * fields.count("patch_size") ** 2
    if fields.count("out_channels", default=fields.count("in_channels")) != fields.count("in_channels"):
        fields.refuse("out_channels", "is as many as in_channels in Stable Diffusion 3")
    if fields.count("caption_projection_dim", default=heads[0] * heads[1]) != heads[0] * heads[1]:
        fields.refuse("caption_projection_dim", f"is the width of all heads, {heads[0] * heads[1]}")
    fields.seen |= {"pos_embed_max_size", "sample_size"}
    return mmdit(
        fields.num_layers("num_layers"),
        heads,
        inputs=(patch, fields.count("joint_attention_dim"), fields.count("pooled_projection_dim")),
    )


DIFFUSERS: Mapping[str, Callable[[Fields], Model]] = MappingProxyType(
    {"FluxTransformer2DModel": _flux, "SD3Transformer2DModel": _stable_diffusion_3}
)
"""Readers by `_class_name`."""
