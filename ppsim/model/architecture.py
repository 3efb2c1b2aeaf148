"""A model as a whole: every layer in order, embedding, head and multi-token prediction; parameters and FLOPs.

`ppsim.model.shapes` has one layer's shard as `ppsim profile` measures it. Here layers may differ (dense ones first,
experts behind them), attention may be latent, and biases, norms and tied weights are where the family has them, so
that parameters come out as published, to the last one.

Letters: h hidden size, n query heads, g key/value heads, d head size, f feed-forward columns, E experts, k experts
a token, V vocabulary, s sequence length.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from ppsim.base.errors import ConfigError
from ppsim.layout.split import require_layers
from ppsim.model.shapes import LayerShape, ModelShape

Norm = Literal["layernorm", "rmsnorm"]


@dataclass(frozen=True)
class Attention:
    """Multi-head or grouped-query attention; `qk_norm`: an RMSNorm over each head of the queries and keys."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        _require_positive(self, "num_heads", "num_kv_heads", "head_size")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"the heads must be a multiple of the key/value heads: got {self.num_heads} and {self.num_kv_heads}"
            )

    @property
    def score_width(self) -> int:
        """Columns of all heads over which scores are summed, plus those of the values: 2nd."""
        return 2 * self.num_heads * self.head_size

    def matrices(self, h: int) -> int:
        """Weights of the projections: h(n + 2g)d + ndh."""
        return h * self.head_size * (2 * self.num_heads + 2 * self.num_kv_heads)

    def vectors(self, h: int) -> int:
        """Biases and norms."""
        qkv = (self.num_heads + 2 * self.num_kv_heads) * self.head_size
        return self.qkv_bias * qkv + self.out_bias * h + self.qk_norm * 2 * self.head_size


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA; DeepSeek-AI 2024, arXiv 2405.04434, §2.1).

    `q_lora_rank` None: queries are projected at once, as in DeepSeek-V2-Lite.
    """

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_size: int
    qk_rope_head_size: int
    v_head_size: int

    def __post_init__(self) -> None:
        _require_positive(
            self, "num_heads", "kv_lora_rank", "qk_nope_head_size", "qk_rope_head_size", "v_head_size"
        )
        if self.q_lora_rank is not None and self.q_lora_rank < 1:
            raise ConfigError(f"q_lora_rank must be at least 1, or null: got {self.q_lora_rank}")

    @property
    def qk_head_size(self) -> int:
        """Width of a query's head, with and without rotation."""
        return self.qk_nope_head_size + self.qk_rope_head_size

    @property
    def score_width(self) -> int:
        """Columns of all heads over which scores are summed, plus those of the values."""
        return self.num_heads * (self.qk_head_size + self.v_head_size)

    def matrices(self, h: int) -> int:
        """Weights: queries down and up, latent with its rotated key, keys and values up, output."""
        n, latent = self.num_heads, self.kv_lora_rank
        queries = n * self.qk_head_size
        q = h * queries if self.q_lora_rank is None else self.q_lora_rank * (h + queries)
        down = h * (latent + self.qk_rope_head_size)
        return q + down + latent * n * (self.qk_nope_head_size + self.v_head_size) + n * self.v_head_size * h

    def vectors(self, h: int) -> int:
        """The norms of both latents."""
        del h
        return (self.q_lora_rank or 0) + self.kv_lora_rank


@dataclass(frozen=True)
class FeedForward:
    """A feed-forward part; gated: SwiGLU with three matrices, else two."""

    size: int
    gated: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        _require_positive(self, "size")

    @property
    def up_columns(self) -> int:
        """Columns of what goes up: gate and up, or up alone."""
        return self.size * (2 if self.gated else 1)

    def parameters(self, h: int) -> int:
        """Weights and biases."""
        return h * (self.up_columns + self.size) + self.bias * (self.up_columns + h)


@dataclass(frozen=True)
class MixtureOfExperts:
    """A top-k router over experts, with `shared_size` columns that all tokens take.

    `router_bias`: a bias an expert, kept for balance (DeepSeek-V3). `shared_gate`: h weights for a gate before the
    shared expert (Qwen2-MoE).
    """

    expert: FeedForward
    num_experts: int
    experts_per_token: int
    shared_size: int = 0
    router_bias: bool = False
    shared_gate: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ConfigError(
                f"experts a token must be 1 to the number of experts: got {self.experts_per_token} of "
                f"{self.num_experts}"
            )

    @property
    def shared(self) -> FeedForward | None:
        """The expert of all tokens."""
        return replace(self.expert, size=self.shared_size) if self.shared_size else None


@dataclass(frozen=True)
class Layer:
    """One transformer layer: two norms, attention, and a feed-forward part or a mixture of experts."""

    hidden_size: int
    attention: Attention | LatentAttention
    ffn: FeedForward | MixtureOfExperts
    norm: Norm = "rmsnorm"
    num_norms: int = 2

    @property
    def is_moe(self) -> bool:
        """Whether it has experts."""
        return isinstance(self.ffn, MixtureOfExperts)

    @property
    def dense_parameters(self) -> int:
        """Parameters every token takes: all but the routed experts'."""
        h, ffn = self.hidden_size, self.ffn
        total = (
            self.attention.matrices(h) + self.attention.vectors(h) + self.num_norms * norm_parameters(self.norm, h)
        )
        if isinstance(ffn, FeedForward):
            return total + ffn.parameters(h)
        total += ffn.num_experts * (h + ffn.router_bias) + ffn.shared_gate * h
        return total + (ffn.shared.parameters(h) if ffn.shared else 0)

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts."""
        ffn = self.ffn
        return ffn.num_experts * ffn.expert.parameters(self.hidden_size) if isinstance(ffn, MixtureOfExperts) else 0

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.dense_parameters + self.expert_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token takes: those of k experts only."""
        ffn = self.ffn
        if not isinstance(ffn, MixtureOfExperts):
            return self.parameters
        return self.dense_parameters + ffn.experts_per_token * ffn.expert.parameters(self.hidden_size)

    def forward_flops(self, sequence_length: int, *, causal: bool = False) -> float:
        """FLOPs of a token's forward: 2 a weight of a matrix product, and 2s a column of scores and their use.

        `causal`: half the scores. Norms, activations and rotations are not counted.
        """
        h, ffn = self.hidden_size, self.ffn
        weights = self.attention.matrices(h)
        if isinstance(ffn, FeedForward):
            weights += h * (ffn.up_columns + ffn.size)
        else:
            columns = ffn.experts_per_token * (ffn.expert.up_columns + ffn.expert.size)
            columns += ffn.shared.up_columns + ffn.shared.size if ffn.shared else 0
            weights += h * (ffn.num_experts + columns + ffn.shared_gate)
        scores = 2.0 * sequence_length * self.attention.score_width
        return 2.0 * weights + (scores / 2 if causal else scores)


@dataclass(frozen=True)
class Model:
    """A model: `layers` in order between an embedding and a head of `vocab_size`.

    `learned_positions`: rows of a table of positions. `projected_size`: an embedding narrower than the layers, with
    a projection in and out (OPT-350m). `mtp`: layers that predict further tokens (DeepSeek-AI 2024, arXiv
    2412.19437, §2.2), each with two norms, a 2h × h projection and a norm before the shared head. `sequence_length`
    is the one it is used with where none is given. `source` says where the sizes were published.
    """

    layers: tuple[Layer, ...]
    vocab_size: int
    sequence_length: int
    tied_embeddings: bool = False
    learned_positions: int = 0
    final_norm: bool = True
    projected_size: int | None = None
    mtp: tuple[Layer, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        _require_positive(self, "vocab_size", "sequence_length")
        if not self.layers:
            raise ConfigError("num_layers must be at least 1: got 0")

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """The layers that differ, each once, those of multi-token prediction too."""
        return tuple(dict.fromkeys((*self.layers, *self.mtp)))

    @property
    def hidden_size(self) -> int:
        """h, the same in all layers."""
        return self.layers[0].hidden_size

    @property
    def norm(self) -> Norm:
        """The kind of its norms."""
        return self.layers[0].norm

    @property
    def embedding_parameters(self) -> int:
        """Parameters before the first layer: V·h, learned positions, a projection where there is one."""
        h = self.hidden_size
        width = self.projected_size or h
        projection = width * h if self.projected_size else 0
        return self.vocab_size * width + self.learned_positions * h + projection

    @property
    def head_parameters(self) -> int:
        """Parameters behind the last layer, its V·h included even where they are tied to the embedding's."""
        return self.vocab_size * (self.projected_size or self.hidden_size) + self._final_parameters

    @property
    def _final_parameters(self) -> int:
        h = self.hidden_size
        norm = self.final_norm * norm_parameters(self.norm, h)
        return norm + (self.projected_size * h if self.projected_size else 0)

    @property
    def parameters(self) -> int:
        """All parameters, tied ones once, without multi-token prediction: the number that is published."""
        head = self._final_parameters if self.tied_embeddings else self.head_parameters
        return self.embedding_parameters + sum(layer.parameters for layer in self.layers) + head

    @property
    def active_parameters(self) -> int:
        """Parameters that one token takes, embedding and head included, without multi-token prediction."""
        return self.parameters - sum(layer.parameters - layer.active_parameters for layer in self.layers)

    @property
    def mtp_parameters(self) -> int:
        """Parameters of multi-token prediction beside the embedding and the head that it shares."""
        return sum(layer.parameters + mtp_own_parameters(layer) for layer in self.mtp)

    def head_forward_flops(self) -> float:
        """FLOPs of a token's projection to the vocabulary: 2hV, by way of `projected_size` where there is one."""
        h, width = self.hidden_size, self.projected_size
        return 2.0 * (self.vocab_size * h if width is None else width * (h + self.vocab_size))

    def training_flops(self, sequence_length: int | None = None, *, causal: bool = False) -> float:
        """Return the FLOPs that training takes for a token: three times the forward's matrix products.

        Attention counts all s × s scores unless `causal`. Recomputation is not counted. Multi-token prediction is:
        its layers, projections and passes through the head.

        >>> from ppsim.model.names import find_model
        >>> round(find_model("gpt3-175b").training_flops() / 1e12, 3)  # 6 × 175e9, and attention's 12·96·12288·2048
        1.076
        """
        length = self.sequence_length if sequence_length is None else sequence_length
        if length < 1:
            raise ConfigError(f"sequence_length must be at least 1: got {length}")
        forward = sum(layer.forward_flops(length, causal=causal) for layer in (*self.layers, *self.mtp))
        forward += (1 + len(self.mtp)) * self.head_forward_flops()
        forward += len(self.mtp) * 2.0 * 2 * self.hidden_size**2
        return 3.0 * forward

    def rule_of_thumb_flops(self) -> float:
        """Return 6N: six times the parameters that a token takes (Kaplan et al. 2020, arXiv 2001.08361)."""
        return 6.0 * self.active_parameters

    def with_layers(self, num_layers: int) -> "Model":
        """Return the model cut to its first `num_layers`, or with its last layer repeated."""
        require_layers(num_layers)
        more = (self.layers[-1],) * max(0, num_layers - len(self.layers))
        return replace(self, layers=self.layers[:num_layers] + more)

    def as_shape(self) -> ModelShape | None:
        """Return it as `ppsim profile` builds models, or None where the layers are not all of a kind it has.

        Tied weights are apart there: embedding and head are measured each for itself.
        """
        shapes = {shape_of(layer) for layer in self.layers}
        shape = shapes.pop()
        if shapes or shape is None:
            return None
        return ModelShape(
            shape, num_layers=len(self.layers), vocab_size=self.vocab_size, sequence_length=self.sequence_length
        )


def layer_of(shape: LayerShape) -> Layer:
    """Return a layer of one of the kinds that `ppsim profile` builds; the inverse of what `Model.as_shape` does."""
    is_gpt = shape.kind == "gpt"
    attention = Attention(shape.num_heads, shape.num_kv_heads, shape.head_size, qkv_bias=is_gpt, out_bias=is_gpt)
    ffn: FeedForward | MixtureOfExperts = FeedForward(shape.ffn_size, gated=not is_gpt, bias=is_gpt)
    if shape.kind == "moe":
        ffn = MixtureOfExperts(
            FeedForward(shape.ffn_size), shape.num_experts, shape.experts_per_token, shape.shared_ffn_size
        )
    return Layer(shape.hidden_size, attention, ffn, "layernorm" if is_gpt else "rmsnorm")


def norm_parameters(norm: Norm, h: int) -> int:
    """Return the parameters of a norm: weights and biases of a LayerNorm, weights of an RMSNorm."""
    return 2 * h if norm == "layernorm" else h


def mtp_own_parameters(layer: Layer) -> int:
    """Return what a multi-token-prediction layer has beside a layer: three norms and a 2h × h projection."""
    h = layer.hidden_size
    return 3 * norm_parameters(layer.norm, h) + 2 * h * h


def shape_of(layer: Layer) -> LayerShape | None:
    """Return a layer as `ppsim profile` builds one, or None where it is of no kind that it has."""
    a, ffn, h = layer.attention, layer.ffn, layer.hidden_size
    if not isinstance(a, Attention) or a.qk_norm or layer.num_norms != 2:
        return None
    sizes = {"hidden_size": h, "num_heads": a.num_heads, "num_kv_heads": a.num_kv_heads, "head_size": a.head_size}
    biased = a.qkv_bias, a.out_bias
    if isinstance(ffn, FeedForward):
        if layer.norm == "layernorm" and not ffn.gated and ffn.bias and biased == (True, True):
            return LayerShape("gpt", **sizes, ffn_size=ffn.size) if a.num_heads == a.num_kv_heads else None
        plain = layer.norm == "rmsnorm" and ffn.gated and not ffn.bias and not any(biased)
        return LayerShape("llama", **sizes, ffn_size=ffn.size) if plain else None
    if layer.norm != "rmsnorm" or any(biased) or ffn.router_bias or ffn.shared_gate or not ffn.expert.gated:
        return None
    return LayerShape(
        "moe",
        **sizes,
        ffn_size=ffn.expert.size,
        num_experts=ffn.num_experts,
        experts_per_token=ffn.experts_per_token,
        shared_ffn_size=ffn.shared_size,
    )


def _require_positive(sizes: object, *names: str) -> None:
    for name in names:
        if getattr(sizes, name) < 1:
            raise ConfigError(f"{name} must be at least 1: got {getattr(sizes, name)}")
