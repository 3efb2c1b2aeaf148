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
from ppsim.layout.cut import Cut
from ppsim.layout.split import require_layers
from ppsim.model.linears import Linear, LinearKind

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
    def qk_head_size(self) -> int:
        """Width of a query's head."""
        return self.head_size

    @property
    def v_head_size(self) -> int:
        """Width of a value's head."""
        return self.head_size

    @property
    def score_width(self) -> int:
        """Columns of all heads over which scores are summed, plus those of the values: 2nd."""
        return 2 * self.num_heads * self.head_size

    @property
    def norm_parameters(self) -> int:
        """Weights of the norms of queries and keys."""
        return self.qk_norm * 2 * self.head_size

    def kv_heads_on_a_rank(self, tp: int) -> int:
        """Return key/value heads of a rank: those of more ranks than heads are repeated."""
        return max(1, self.num_kv_heads // tp)

    def linears(self, h: int, tp: int) -> list[Linear]:
        """Return the projections that a rank holds: h × (n + 2g)d and nd × h."""
        d, heads, groups = self.head_size, self.num_heads // tp, self.kv_heads_on_a_rank(tp)
        qkv = heads * d, groups * d, groups * d
        return [
            Linear("queries, keys, values", "attention input", h, qkv, split="outputs", biased=self.qkv_bias),
            Linear("attention output", "heads", heads * d, (h,), split="inputs", biased=self.out_bias),
        ]


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

    @property
    def norm_parameters(self) -> int:
        """Weights of the norms of both latents."""
        return (self.q_lora_rank or 0) + self.kv_lora_rank

    def linears(self, h: int, tp: int) -> list[Linear]:
        """Return the matrices that a rank holds: down to both latents, whole on each; up from them; output."""
        heads, rank, latent = self.num_heads // tp, self.q_lora_rank, self.kv_lora_rank
        queries, values = (heads * self.qk_head_size,), heads * self.v_head_size
        keys = heads * self.qk_nope_head_size
        if rank is None:
            of_queries = [Linear("queries up", "attention input", h, queries, split="outputs")]
        else:
            of_queries = [
                Linear("queries down", "attention input", h, (rank,)),
                Linear("queries up", "latent of queries", rank, queries, split="outputs"),
            ]
        return [
            *of_queries,
            Linear("keys and values down", "attention input", h, (latent, self.qk_rope_head_size)),
            Linear("keys and values up", "latent", latent, (keys, values), split="outputs"),
            Linear("attention output", "heads", values, (h,), split="inputs"),
        ]


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

    def linears(self, h: int, tp: int, *, kind: LinearKind = "dense", count: int = 1) -> list[Linear]:
        """Return the matrices that one of `tp` ranks holds: gate and up, or up alone, and down."""
        size, inputs = self.size // tp, "routed tokens" if kind == "routed" else "feed-forward input"
        up = (size, size) if self.gated else (size,)
        return [
            Linear("up", inputs, h, up, kind=kind, split="outputs", count=count, biased=self.bias),
            Linear(
                "down", f"{kind} activation", size, (h,), kind=kind, split="inputs", count=count, biased=self.bias
            ),
        ]


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
    def gated(self) -> bool:
        """Whether its experts are."""
        return self.expert.gated

    @property
    def shared(self) -> FeedForward | None:
        """The expert of all tokens."""
        return replace(self.expert, size=self.shared_size) if self.shared_size else None

    def linears(self, h: int, cut: Cut) -> list[Linear]:
        """Return the matrices that a rank holds: router, its experts, the shared expert and its gate."""
        read = "feed-forward input"
        router = Linear("router", read, h, (self.num_experts,), kind="router", biased=self.router_bias)
        routed = self.expert.linears(h, cut.expert_tp, kind="routed", count=self.num_experts // cut.ep)
        shared = self.shared.linears(h, cut.tp, kind="shared") if self.shared else []
        gate = [Linear("shared gate", read, h, (1,), kind="gate")] if self.shared_gate else []
        return [router, *routed, *shared, *gate]


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
    def experts_per_token(self) -> int:
        """How many routed experts a token takes, 0 where there are none."""
        return self.ffn.experts_per_token if isinstance(self.ffn, MixtureOfExperts) else 0

    def linears(self, cut: Cut) -> tuple[Linear, ...]:
        """Return every matrix of the layer that a rank holds, once, in the order of a forward."""
        key = cut.tp, cut.expert_tp, cut.ep
        if key not in self._linears_of:
            h, ffn = self.hidden_size, self.ffn
            of_ffn = ffn.linears(h, cut.tp) if isinstance(ffn, FeedForward) else ffn.linears(h, cut)
            self._linears_of[key] = (*self.attention.linears(h, cut.tp), *of_ffn)
        return self._linears_of[key]

    @cached_property
    def _linears_of(self) -> dict[tuple[int, int, int], tuple[Linear, ...]]:
        """Those of the cuts that were asked for: a search asks for the same ones again and again."""
        return {}

    @cached_property
    def all_linears(self) -> tuple[Linear, ...]:
        """Every matrix of the whole layer."""
        return self.linears(Cut())

    @property
    def norm_parameters(self) -> int:
        """Parameters of its norms, which every rank has whole."""
        return self.num_norms * norm_parameters(self.norm, self.hidden_size) + self.attention.norm_parameters

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts."""
        return sum(one.weights + one.biases for one in self.all_linears if one.kind == "routed")

    @property
    def parameters(self) -> int:
        """All parameters."""
        return sum(one.weights + one.biases for one in self.all_linears) + self.norm_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token takes: those of k experts only."""
        ffn = self.ffn
        if not isinstance(ffn, MixtureOfExperts):
            return self.parameters
        unused = ffn.num_experts - ffn.experts_per_token
        return self.parameters - self.expert_parameters // ffn.num_experts * unused

    @cached_property
    def weights_a_token(self) -> int:
        """Weights that a token is multiplied by: those of k experts only."""
        return sum(one.size * (self.experts_per_token if one.kind == "routed" else 1) for one in self.all_linears)

    def forward_flops(self, sequence_length: int, *, causal: bool = False) -> float:
        """FLOPs of a token's forward: 2 a weight of a matrix product, and 2s a column of scores and their use.

        `causal`: half the scores. Norms, activations and rotations are not counted.
        """
        scores = 2.0 * sequence_length * self.attention.score_width
        return 2.0 * self.weights_a_token + (scores / 2 if causal else scores)


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
        forward += len(self.mtp) * 2.0 * mtp_linear(self.hidden_size).weights
        return 3.0 * forward

    def rule_of_thumb_flops(self) -> float:
        """Return 6N: six times the parameters that a token takes (Kaplan et al. 2020, arXiv 2001.08361)."""
        return 6.0 * self.active_parameters

    def with_layers(self, num_layers: int) -> "Model":
        """Return the model cut to its first `num_layers`, or with its last layer repeated."""
        require_layers(num_layers)
        more = (self.layers[-1],) * max(0, num_layers - len(self.layers))
        return replace(self, layers=self.layers[:num_layers] + more)


def norm_parameters(norm: Norm, h: int) -> int:
    """Return the parameters of a norm: weights and biases of a LayerNorm, weights of an RMSNorm."""
    return 2 * h if norm == "layernorm" else h


def mtp_linear(h: int, tp: int = 1) -> Linear:
    """Return the projection before a layer for a further token, of hidden state and embedding in a row."""
    return Linear("projection of two tokens", "both in a row", 2 * h, (h // tp,), split="outputs")


def mtp_own_parameters(layer: Layer, tp: int = 1) -> int:
    """Return what a rank has of a multi-token-prediction layer beside a layer: three norms, and that projection."""
    return 3 * norm_parameters(layer.norm, layer.hidden_size) + mtp_linear(layer.hidden_size, tp).weights


def _require_positive(sizes: object, *names: str) -> None:
    for name in names:
        if getattr(sizes, name) < 1:
            raise ConfigError(f"{name} must be at least 1: got {getattr(sizes, name)}")
