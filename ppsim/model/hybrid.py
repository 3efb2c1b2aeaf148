"""Layers that differ by a pattern: hybrids of Mamba, attention and MLPs, and sliding windows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Layer, Model, Norm
from ppsim.model.attention_and_mlp import Attention, FeedForward, MixtureOfExperts, NoAttention, NoFeedForward
from ppsim.model.attention_base import ScoredAttention
from ppsim.model.mixer import Mixer

LETTERS: Mapping[str, str] = MappingProxyType(
    {
        "M": "a Mamba mixer",
        "G": "a gated delta net",
        "*": "attention",
        "-": "a feed-forward part",
        "E": "experts",
    }
)
"""Letters of Megatron-LM's `--hybrid-layer-pattern` (and Nemotron-H's config.json)."""


@dataclass(frozen=True)
class HybridMixers:
    """Mixers of a hybrid's layers; None: there are no such layers."""

    hidden_size: int
    mamba: Mixer | None = None
    delta: Mixer | None = None
    attention: Mixer | None = None
    dense: FeedForward | None = None
    experts: MixtureOfExperts | None = None
    norm: Norm = "rmsnorm"

    def of_letter(self, letter: str, pattern: str) -> Layer:
        parts = {"M": self.mamba, "G": self.delta, "*": self.attention, "-": self.dense, "E": self.experts}
        if letter not in parts:
            letters = ", ".join(f"{name} ({what})" for name, what in LETTERS.items())
            raise ConfigError(
                f"the pattern {pattern} has a layer '{letter}', which is not known; there are {letters}"
            )
        part = parts[letter]
        if part is None:
            raise ConfigError(f"the pattern {pattern} asks for {LETTERS[letter]}, whose sizes are not given")
        if isinstance(part, FeedForward | MixtureOfExperts):
            return Layer(self.hidden_size, NoAttention(), part, self.norm, num_norms=1)
        return Layer(self.hidden_size, part, NoFeedForward(), self.norm, num_norms=1)

    def layers(self, pattern: str) -> tuple[Layer, ...]:
        """Return the layers of a pattern; "|" between pipeline stages is skipped.

        >>> parts = HybridMixers(64, attention=Attention(4, 4, 16), dense=FeedForward(256, gated=False))
        >>> [layer.has_mixer for layer in parts.layers("*-|*-")]
        [True, False, True, False]
        """
        by_letter = {letter: self.of_letter(letter, pattern) for letter in dict.fromkeys(pattern) if letter != "|"}
        if not by_letter:
            raise ConfigError(f"the pattern '{pattern}' has no layers")
        return tuple(by_letter[letter] for letter in pattern if letter != "|")

    def whole(self, pattern: str) -> Layer:
        """Return one layer from a pattern of two letters, as multi-token prediction layers are written."""
        first, *others = self.layers(pattern)
        if len(others) != 1 or not first.has_mixer or not others[0].has_feed_forward:
            raise ConfigError(
                f"a layer for further tokens is a mixer and a feed-forward part, as *E: got {pattern}"
            )
        return replace(first, ffn=others[0].ffn, num_norms=2)


def windowed(layer: Layer, window: int, *, is_chunked: bool = False) -> Layer:
    if not isinstance(layer.attention, Attention):
        raise ConfigError("sliding windows are known for multi-head and grouped-query attention only")
    return replace(layer, attention=replace(layer.attention, window=window, is_chunked=is_chunked))


def with_documents(model: Model, length: int) -> Model:
    """Return the model with attention inside documents of `length` tokens, packed in each sequence."""

    def inside(layer: Layer) -> Layer:
        mixer = layer.attention
        if not isinstance(mixer, ScoredAttention) or not mixer.num_heads:
            return layer
        if not isinstance(mixer, Attention):
            raise ConfigError("--document-length is known for multi-head and grouped-query attention only")
        return windowed(layer, length, is_chunked=True) if length < (mixer.window or inf) else layer

    return replace(model, layers=tuple(map(inside, model.layers)))
