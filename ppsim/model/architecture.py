"""A model as a whole: every layer in order, embedding, head and multi-token prediction; parameters and FLOPs.

`ppsim.model.shapes` has one layer's shard as `ppsim profile` measures it. Here layers may differ (dense ones first,
experts behind them), attention may be latent, and biases, norms and tied weights are where the family has them, so
that parameters come out as published, to the last one.

Letters: h hidden size, n query heads, g key/value heads, d head size, f feed-forward columns, E experts, k experts
a token, V vocabulary, s sequence length.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

from ppsim.base.errors import ConfigError
from ppsim.layout.cut import Cut
from ppsim.layout.split import require_layers
from ppsim.model.linears import Linear, LinearKind
from ppsim.model.recurrent import GatedDeltaNet, Mamba, Recurrent, require_positive

Norm = Literal["layernorm", "rmsnorm"]


@dataclass(frozen=True)
class Attention:
    """Multi-head or grouped-query attention; `qk_norm`: an RMSNorm over each head of the queries and keys.

    `window`: how many tokens a query sees, itself included (None: all before it); `is_chunked`: those of its own
    chunk of so many tokens instead (Llama 4). `sinks`: a learned score a head that takes part in the softmax
    (gpt-oss). `gated`: a gate of as many columns as the queries before the output (Qwen3-Next).
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    window: int | None = None
    is_chunked: bool = False
    sinks: bool = False
    gated: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "num_heads", "num_kv_heads", "head_size")
        if self.window is not None:
            require_positive(self, "window")
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

    @property
    def gate_columns(self) -> int:
        """Columns that a gate multiplies."""
        return self.gated * self.num_heads * self.head_size

    @property
    def divided(self) -> dict[str, int]:
        """What tensor-parallel ranks divide."""
        return {"heads": self.num_heads}

    def keys_a_query(self, sequence_length: int) -> float:
        """Return how many keys a query sees on average: half of the sequence, or what its window leaves.

        A window of w tokens: w - w(w - 1)/2s, the first w - 1 queries having fewer. Chunks of w: w/2.

        >>> Attention(1, 1, 1, window=3).keys_a_query(4) == (1 + 2 + 3 + 3) / 4
        True
        """
        if self.window is None or self.window >= sequence_length:
            return sequence_length / 2
        if self.is_chunked:
            return self.window / 2
        return self.window - self.window * (self.window - 1) / (2 * sequence_length)

    def core_flops(self, sequence_length: int, *, causal: bool) -> float:
        """Return the FLOPs of scores and their use a token; as many again where masked ones count."""
        return 2.0 * self.keys_a_query(sequence_length) * self.score_width * (1 if causal else 2)

    def kv_heads_on_a_rank(self, tp: int) -> int:
        """Return key/value heads of a rank: those of more ranks than heads are repeated."""
        return max(1, self.num_kv_heads // tp)

    def linears(self, h: int, tp: int) -> list[Linear]:
        """Return the projections that a rank holds: h × (n + 2g)d, with a gate (2n + 2g)d, and nd × h."""
        d, heads, groups = self.head_size, self.num_heads // tp, self.kv_heads_on_a_rank(tp)
        qkv = (heads * d,) * (1 + self.gated) + (groups * d, groups * d)
        sinks = [Linear("sinks", "scores", 1, (heads,), kind="vector", split="outputs")] if self.sinks else []
        return [
            Linear("queries, keys, values", "attention input", h, qkv, split="outputs", biased=self.qkv_bias),
            *sinks,
            Linear("attention output", "heads", heads * d, (h,), split="inputs", biased=self.out_bias),
        ]


@dataclass(frozen=True)
class NoAttention(Attention):
    """Of a layer that has a feed-forward part alone, as those of hybrids: no heads."""

    num_heads: int = 0
    num_kv_heads: int = 0
    head_size: int = 0

    def __post_init__(self) -> None:
        """There is nothing to check."""

    def kv_heads_on_a_rank(self, tp: int) -> int:
        """Return none."""
        return 0

    def linears(self, h: int, tp: int) -> list[Linear]:
        """Return none."""
        return []


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
        require_positive(self, "num_heads", "kv_lora_rank", "qk_nope_head_size", "qk_rope_head_size", "v_head_size")
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
    def gate_columns(self) -> int:
        """Columns that a gate multiplies: none."""
        return 0

    @property
    def divided(self) -> dict[str, int]:
        """What tensor-parallel ranks divide."""
        return {"heads": self.num_heads}

    def keys_a_query(self, sequence_length: int) -> float:
        """Return how many keys a query sees on average."""
        return sequence_length / 2

    def core_flops(self, sequence_length: int, *, causal: bool) -> float:
        """Return the FLOPs of scores and their use a token; as many again where masked ones count."""
        return 2.0 * self.keys_a_query(sequence_length) * self.score_width * (1 if causal else 2)

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
        require_positive(self, "size")

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
class NoFeedForward(FeedForward):
    """Of a layer that has a mixer alone, as those of hybrids: no columns."""

    size: int = 0
    gated: bool = False

    def __post_init__(self) -> None:
        """There is nothing to check."""

    def linears(self, h: int, tp: int, *, kind: LinearKind = "dense", count: int = 1) -> list[Linear]:
        """Return none."""
        return []


@dataclass(frozen=True)
class MixtureOfExperts:
    """A top-k router over experts, with `shared_size` columns that all tokens take.

    `router_bias`: a bias an expert, kept for balance (DeepSeek-V3). `shared_gate`: h weights for a gate before the
    shared expert (Qwen2-MoE). `latent_size`: routed experts are that narrow, with a projection of every token down
    before it is sent to them and up behind (Nemotron 3 Super).
    """

    expert: FeedForward
    num_experts: int
    experts_per_token: int
    shared_size: int = 0
    router_bias: bool = False
    shared_gate: bool = False
    latent_size: int | None = None

    def __post_init__(self) -> None:
        if self.latent_size is not None:
            require_positive(self, "latent_size")
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
        """Return the matrices that a rank holds: router, latents, its experts, the shared expert and its gate."""
        read, width = "feed-forward input", self.latent_size or h
        router = Linear("router", read, h, (self.num_experts,), kind="router", biased=self.router_bias)
        routed = self.expert.linears(width, cut.expert_tp, kind="routed", count=self.num_experts // cut.ep)
        shared = self.shared.linears(h, cut.tp, kind="shared") if self.shared else []
        gate = [Linear("shared gate", read, h, (1,), kind="gate")] if self.shared_gate else []
        if self.latent_size:
            routed = [
                Linear("latent down", read, h, (width,), kind="latent"),
                *routed,
                Linear("latent up", "experts' output", width, (h,), kind="latent"),
            ]
        return [router, *routed, *shared, *gate]


Mixer: TypeAlias = Attention | LatentAttention | Mamba | GatedDeltaNet


@dataclass(frozen=True)
class Layer:
    """One layer: norms, attention or another mixer of tokens, and a feed-forward part or a mixture of experts.

    Hybrids have layers of one half and one norm: `NoAttention` or `NoFeedForward` stands for the other.
    """

    hidden_size: int
    attention: Mixer
    ffn: FeedForward | MixtureOfExperts
    norm: Norm = "rmsnorm"
    num_norms: int = 2

    @property
    def is_moe(self) -> bool:
        """Whether it has experts."""
        return isinstance(self.ffn, MixtureOfExperts)

    @property
    def has_mixer(self) -> bool:
        """Whether its tokens see each other."""
        return not isinstance(self.attention, NoAttention)

    @property
    def is_recurrent(self) -> bool:
        """Whether its tokens change a state instead of looking at each other."""
        return isinstance(self.attention, Recurrent)

    @property
    def has_feed_forward(self) -> bool:
        """Whether it has a feed-forward part or experts."""
        return not isinstance(self.ffn, NoFeedForward)

    @property
    def num_halves(self) -> int:
        """How many parts it has, each with a residual around it."""
        return self.has_mixer + self.has_feed_forward

    @property
    def expert_width(self) -> int:
        """Columns of a token as it is sent to a routed expert."""
        return (self.ffn.latent_size if isinstance(self.ffn, MixtureOfExperts) else None) or self.hidden_size

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
        return sum(
            one.size * (self.experts_per_token if one.kind == "routed" else 1)
            for one in self.all_linears
            if one.kind != "vector"
        )

    def forward_flops(self, sequence_length: int, *, causal: bool = False) -> float:
        """FLOPs of a token's forward: 2 a weight of a matrix product, and 2s a column of scores and their use.

        `causal`: half the scores. A window has the scores within it, Mamba and the delta rule the products of their
        chunks. Norms, activations, rotations and convolutions are not counted.
        """
        return 2.0 * self.weights_a_token + self.attention.core_flops(sequence_length, causal=causal)


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
        require_positive(self, "vocab_size", "sequence_length")
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
