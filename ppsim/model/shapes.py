"""Layers and models that `ppsim profile` builds, by size, and the costs of a rank's shard.

Only FLOPs of GEMMs are counted, 2 per multiply-add, as in torch's flop counter, with all s × s scores (Narayanan et
al. 2021, arXiv 2104.04473, §5.1) unless `causal`. Bytes are those that autograd saves in eager torch with a fused
attention kernel: each storage once, without parameters and buffers. Letters as in `ppsim.model.activations`.
"""

from dataclasses import dataclass, replace

from ppsim.base.errors import ConfigError
from ppsim.model.activations import end_activations, layer_activations
from ppsim.model.architecture import Layer, Model
from ppsim.model.attention_and_mlp import Attention, FeedForward, MixtureOfExperts
from ppsim.model.execution import Execution
from ppsim.model.measurement_key import Kind
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.parameters import VOCAB_MULTIPLE, padded_vocabulary
from ppsim.model.recompute import BY_OPERATORS, Recompute, recomputes
from ppsim.parallel.sizes import ParallelSizes, require_divides, require_positive

_EAGER = Execution(fused_activation=False, weighted_output=True, norm_in_gemm=False)


@dataclass(frozen=True)
class LayerShape:
    """One transformer layer, or a rank's shard.

    `kind` is "gpt" (LayerNorm, biases, GELU), "llama" (RMSNorm, rotary positions, grouped queries, SwiGLU) or "moe"
    (llama's attention, and SwiGLU experts). `ffn_size` is the width between up- and down-projection, for "moe" of
    one expert. `num_local_experts`: experts on this rank; None: all.
    """

    kind: Kind
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    ffn_size: int
    num_experts: int = 0
    experts_per_token: int = 0
    shared_ffn_size: int = 0
    num_local_experts: int | None = None

    def __post_init__(self) -> None:
        require_positive(self, "hidden_size", "num_heads", "num_kv_heads", "head_size", "ffn_size")
        layer_of(self)  # raises for inconsistent heads or experts
        if self.kind == "gpt" and self.num_kv_heads != self.num_heads:
            raise ConfigError(f"a gpt layer has as many key/value heads as heads: got {self.num_kv_heads}")
        if self.kind != "gpt" and self.head_size % 2:
            raise ConfigError(f"rotary positions need an even head size: got {self.head_size}")
        if self.kind != "moe" and (self.num_experts or self.experts_per_token or self.shared_ffn_size):
            raise ConfigError(f"a {self.kind} layer has no experts: got {self.num_experts}")

    @property
    def local_experts(self) -> int:
        return self.num_experts if self.num_local_experts is None else self.num_local_experts

    def shard(self, *, tp: int = 1, ep: int = 1) -> "LayerShape":
        """Norms and the router are replicated. Raises `ConfigError` for sizes that are not divisible."""
        for name, value in (("tp", tp), ("ep", ep)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1: got {value}")
        divided = {
            "heads": self.num_heads,
            "key/value heads": self.num_kv_heads,
            "feed-forward columns": self.ffn_size,
            "feed-forward columns of the shared expert": self.shared_ffn_size,
        }
        for what, count in divided.items():
            require_divides("tp", tp, what, count)
        if ep > 1 and self.kind != "moe":
            raise ConfigError(f"a {self.kind} layer has no experts to divide: got ep {ep}")
        require_divides("ep", ep, "experts", self.local_experts)
        return replace(
            self,
            num_heads=self.num_heads // tp,
            num_kv_heads=self.num_kv_heads // tp,
            ffn_size=self.ffn_size // tp,
            shared_ffn_size=self.shared_ffn_size // tp,
            num_local_experts=self.local_experts // ep if self.kind == "moe" else None,
        )


@dataclass(frozen=True)
class ModelShape:
    """`num_layers` layers of one shape between an embedding and a head; `sequence_length` is used by default."""

    layer: LayerShape
    num_layers: int
    vocab_size: int
    sequence_length: int

    def __post_init__(self) -> None:
        require_positive(self, "num_layers", "vocab_size", "sequence_length")

    def shard(self, *, tp: int = 1, ep: int = 1) -> "ModelShape":
        """The vocabulary is padded as in Megatron-LM."""
        multiple = VOCAB_MULTIPLE if tp > 1 else 1
        vocab_size = padded_vocabulary(self.vocab_size, tp=tp, multiple=multiple) // tp
        return replace(self, layer=self.layer.shard(tp=tp, ep=ep), vocab_size=vocab_size)

    @property
    def whole(self) -> Model:
        """A gpt has a learned position per token."""
        layer = layer_of(self.layer)
        positions = self.sequence_length if self.layer.kind == "gpt" else 0
        return Model((layer,) * self.num_layers, self.vocab_size, self.sequence_length, learned_positions=positions)


def layer_of(shape: LayerShape) -> Layer:
    is_gpt = shape.kind == "gpt"
    attention = Attention(shape.num_heads, shape.num_kv_heads, shape.head_size, qkv_bias=is_gpt, out_bias=is_gpt)
    ffn: FeedForward | MixtureOfExperts = FeedForward(shape.ffn_size, gated=not is_gpt, bias=is_gpt)
    if shape.kind == "moe":
        ffn = MixtureOfExperts(
            FeedForward(shape.ffn_size), shape.num_experts, shape.experts_per_token, shape.shared_ffn_size
        )
    return Layer(shape.hidden_size, attention, ffn, "layernorm" if is_gpt else "rmsnorm")


def cut_of(shape: LayerShape) -> ParallelSizes:
    """Only ep is left, because tp has already divided the sizes of a shard's layer."""
    ep = shape.num_experts // shape.local_experts if shape.kind == "moe" else 1
    return ParallelSizes(dp=ep, ep=ep)


def shape_of(layer: Layer) -> LayerShape | None:
    """Return None if `ppsim profile` has no such kind."""
    a, ffn = layer.attention, layer.ffn
    if not isinstance(a, Attention):
        return None
    if isinstance(ffn, MixtureOfExperts):
        kind: Kind = "moe"
        widths = ffn.expert.size, ffn.num_experts, ffn.experts_per_token, ffn.shared_size
    else:
        kind, widths = "llama" if layer.norm == "rmsnorm" else "gpt", (ffn.size, 0, 0, 0)
    try:
        shape = LayerShape(kind, layer.hidden_size, a.num_heads, a.num_kv_heads, a.head_size, *widths)
    except ConfigError:
        return None
    return shape if layer_of(shape) == layer else None


def model_shape_of(model: Model) -> ModelShape | None:
    """Return None unless all layers are equal and of a kind in `ppsim profile`.

    Tied weights are separate, because embedding and head are measured separately.
    """
    shapes = {shape_of(layer) for layer in model.layers}
    shape = shapes.pop()
    if shapes or shape is None:
        return None
    return ModelShape(
        shape, num_layers=len(model.layers), vocab_size=model.vocab_size, sequence_length=model.sequence_length
    )


def layer_parameters(shape: LayerShape) -> int:
    layer = layer_of(shape)
    return sum(linear.weights + linear.biases for linear in layer.linears(cut_of(shape))) + layer.norm_parameters


def why_no_context_parallel(sequence_length: int, cp: int) -> str | None:
    """Return why a sequence cannot be cut into 2·cp chunks, two per rank.

    >>> why_no_context_parallel(100, 3)
    'cp 3 needs a sequence length divisible by 6, two chunks per rank: got 100 (nearest: 96 or 102)'
    """
    if cp < 1:
        return f"cp must be at least 1: got {cp}"
    chunks = 2 * cp
    if cp == 1 or sequence_length % chunks == 0:
        return None
    below = sequence_length // chunks * chunks
    nearest = f"{below} or {below + chunks}" if below else f"{chunks}"
    return (
        f"cp {cp} needs a sequence length divisible by {chunks}, two chunks per rank: got {sequence_length} "
        f"(nearest: {nearest})"
    )


def scores_in_prefix(cp: int) -> float:
    """Fraction of its s²/cp scores that a context-parallel rank computes without skipping masked blocks.

    Its queries, chunks i and 2·cp − 1 − i of s/(2·cp) positions, see the keys of i + 1 and 2·cp − i chunks.

    >>> scores_in_prefix(1), scores_in_prefix(2)
    (1.0, 0.625)
    """
    return 1.0 if cp == 1 else (2 * cp + 1) / (4 * cp)


def layer_forward_flops(
    layer: LayerShape, *, micro_batch: int, sequence_length: int, causal: bool = False, cp: int = 1
) -> float:
    """FLOPs of a layer's forward on one of `cp` ranks, with evenly divided scores; a backward has twice as many.

    With expert parallelism and even loads, a rank receives the number of token-expert pairs that it sends.

    >>> layer = LayerShape("gpt", hidden_size=64, num_heads=4, num_kv_heads=4, head_size=16, ffn_size=256)
    >>> layer_forward_flops(layer, micro_batch=1, sequence_length=32) == 32 * 64 * (24 * 64 + 4 * 32)
    True
    """
    of_token = layer_of(layer).forward_flops(sequence_length, causal=causal)
    return micro_batch * sequence_length * of_token / cp


def layer_activation_bytes(
    layer: LayerShape,
    *,
    micro_batch: int,
    sequence_length: int,
    dtype: str,
    recompute: Recompute = "none",
    fused_norm: bool = True,
    cp: int = 1,
) -> int:
    """Bytes that a layer's forward saves for its backward, for a rank's b·s/cp positions.

    Norms save more than their input (`_norm_bytes`) unless they are recomputed. Instead of the router's logits and
    probabilities, each expert of a token saves its weight in float32 and in the layer's dtype, and three int64
    indices (expert, token, position). Token counts per expert are not included.
    """
    execution, sizes = replace(_EAGER, dtype=dtype), replace(cut_of(layer), cp=cp)
    settings = MemorySettings(micro_batch, sequence_length, sizes, execution=execution)
    kept = sum(layer_activations(layer_of(layer), settings, recompute).values())
    if recompute in (BY_OPERATORS, "full"):
        return kept
    h, e, beside = layer.hidden_size, execution.element_bytes, 0
    if not recomputes(recompute, "layernorm"):
        beside += 2 * (_norm_bytes(layer.kind, h, e, fused_norm) - h * e)
    if layer.kind == "moe" and not recomputes(recompute, "moe"):
        beside += layer.experts_per_token * (4 + e + 24) - 8 * layer.num_experts
    return kept + settings.tokens * beside


def head_forward_flops(model: ModelShape, *, micro_batch: int, sequence_length: int) -> float:
    return micro_batch * sequence_length * model.whole.head_forward_flops()


def head_activation_bytes(
    model: ModelShape, *, micro_batch: int, sequence_length: int, dtype: str, fused_norm: bool = True
) -> int:
    """An int64 target per token is saved too."""
    settings = MemorySettings(micro_batch, sequence_length, execution=replace(_EAGER, dtype=dtype))
    h, e = model.layer.hidden_size, settings.execution.element_bytes
    kept = sum(end_activations(model.whole, "head", settings).values())
    logits = model.vocab_size * max(e, 4)
    return kept + settings.tokens * (logits + _norm_bytes(model.layer.kind, h, e, fused_norm) - h * e + 8)


def _norm_bytes(kind: Kind, h: int, e: int, fused: bool) -> int:
    """Bytes per token that a norm saves besides its output.

    LayerNorm saves its input, mean and reciprocal deviation; fused RMSNorm (torch on CUDA) its input and a float32
    reciprocal; RMSNorm of single operations (torch on CPU) its input, the normalised input and the reciprocal, at
    least in float32.
    """
    if kind == "gpt":
        return (h + 2) * e
    return h * e + 4 if fused else (2 * h + 1) * max(e, 4)
