"""Diffusion transformers by name: DiT, Stable Diffusion 3, Flux."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ppsim.model.architecture import Layer, Model
from ppsim.model.conditioning import Conditioning, Patches
from ppsim.model.halves import Attention, FeedForward

_TIME = 256  # sines of a time step


def _attention(hidden: int, heads: int, *, qk_norm: bool) -> Attention:
    return Attention(heads, heads, hidden // heads, qkv_bias=True, out_bias=True, qk_norm=qk_norm, is_causal=False)


def dit(num_layers: int, hidden: int, heads: int, *, image: int = 256, classes: int = 1000) -> Model:
    """Return DiT with patches of 2 × 2 of 4 channels: classes, one of them none, and both moments predicted.

    Its positions are sines, which published numbers of parameters count.
    """
    layer = Layer(
        hidden, _attention(hidden, heads, qk_norm=False), FeedForward(4 * hidden, gated=False, bias=True),
        norm="plain", conditioned=Conditioning(6),
    )  # fmt: skip
    patches = Patches(((16, 1.0),), (_TIME,), 32, classes + 1)
    return Model(
        (layer,) * num_layers, 32, image, learned_positions=image, final_norm=False, patches=patches,
        source="Peebles & Xie 2023, arXiv 2212.09748, Tables 1 and 9; facebookresearch/DiT, models.py",
    )  # fmt: skip


def mmdit(
    num_layers: int,
    heads: tuple[int, int],
    *,
    inputs: tuple[int, int, int] = (64, 4096, 2048),
    image: int = 4096,
    text: int = 154,
) -> Model:
    """Return Stable Diffusion 3: `heads` of a size; `inputs`: columns of a patch, of text, of pooled text.

    A sequence is an image of 1024 × 1024 pixels and its text.
    """
    (number, size), share = heads, text / (image + text)
    hidden, (patch, words, pooled) = number * size, inputs
    layer = Layer(
        hidden, _attention(hidden, number, qk_norm=False), FeedForward(4 * hidden, gated=False, bias=True),
        norm="plain", conditioned=Conditioning(6, share),
    )  # fmt: skip
    last = replace(layer, conditioned=Conditioning(6, share, text_ends=True))
    patches = Patches(((patch, 1 - share), (words, share)), (_TIME, pooled), patch)
    return Model(
        (layer,) * (num_layers - 1) + (last,), patch, image + text, final_norm=False, patches=patches,
        source="Esser et al. 2024, arXiv 2403.03206, §4; sizes of the released config.json",
    )  # fmt: skip


def flux(
    *,
    guidance: bool,
    num_layers: tuple[int, int] = (19, 38),
    heads: tuple[int, int] = (24, 128),
    inputs: tuple[int, int, int] = (64, 4096, 768),
    image: int = 4096,
    text: int = 512,
) -> Model:
    """Return Flux.1: layers of two streams, then those whose attention and feed-forward part are side by side.

    `heads`, `inputs` and sequence as `mmdit` has them. The layers of one stream have one norm, one
    modulation of three vectors, and one bias behind both of their halves.
    """
    (number, size), share = heads, text / (image + text)
    hidden, (patch, words, pooled) = number * size, inputs
    attention, ffn = _attention(hidden, number, qk_norm=True), FeedForward(4 * hidden, gated=False, bias=True)
    double = Layer(hidden, attention, ffn, norm="plain", conditioned=Conditioning(6, share))
    single = replace(double, attention=replace(attention, out_bias=False), num_norms=1, conditioned=Conditioning(3))
    times = (_TIME,) * (1 + guidance)
    patches = Patches(((patch, 1 - share), (words, share)), (*times, pooled), patch)
    return Model(
        (double,) * num_layers[0] + (single,) * num_layers[1],
        patch, image + text, final_norm=False, patches=patches,
        source="config.json of black-forest-labs/FLUX.1; black-forest-labs/flux, model.py",
    )  # fmt: skip


DIFFUSION: Mapping[str, Callable[[], Model]] = MappingProxyType(
    {
        "dit-s-2": lambda: dit(12, 384, 6),
        "dit-b-2": lambda: dit(12, 768, 12),
        "dit-l-2": lambda: dit(24, 1024, 16),
        "dit-xl-2": lambda: dit(28, 1152, 16),
        "sd3-medium": lambda: mmdit(24, (24, 64)),
        "flux.1-dev": lambda: flux(guidance=True),
        "flux.1-schnell": lambda: flux(guidance=False),
    }
)
"""Names of these models, for the table of `ppsim.model.names`."""
