"""Token mixers with attention, and channel mixers (MLP, experts)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from ppsim.base.errors import ConfigError
from ppsim.model.attention_base import EqualWidthAttention, Indexer, ScoredAttention, keys_in_window
from ppsim.model.compressed_attention import CompressedAttention
from ppsim.model.execution import Execution
from ppsim.model.mixer import gemm, output, scored_core
from ppsim.model.operators import Kind, Operator, Tensor
from ppsim.model.weight_matrices import LinearKind, WeightMatrix, of_columns, out_of_heads
from ppsim.parallel.sizes import ParallelSizes, require_positive


@dataclass(frozen=True)
class Attention(EqualWidthAttention):
    """Multi-head or grouped-query attention.

    - `qk_norm`: an RMSNorm over each head of queries and keys; `joint_norm`: one over all query heads and one over
      all key heads (OLMo 2, MiniMax-M2).
    - `window`: tokens that a query sees, itself included; `is_chunked`: only those in its own chunk (Llama 4).
    - `sinks`: a learned score per head that takes part in the softmax (gpt-oss).
    - `yarn`: factor by which YaRN extends the context, None without YaRN. It also scales the cosines and sines of
      the rotation by 0.1 ln(factor) + 1 (Peng et al. 2023, arXiv 2309.00071, §3.4; gpt-oss).
    - `gated`: a gate before the output (Qwen3-Next); `head_gates`: the gate has one number per head (Step 3.5).
    - `is_causal`: False for images, whose queries see all tokens.
    - `value_size`: columns of a value head; None for `head_size`.
    - `indexer`: chooses the blocks of keys that a query attends to (MiniMax-M3).
    - `value_norm`: an RMSNorm without weights over each head of values; `tied_values`: values are the keys before
      their norm, without a projection (Gemma 4).
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
    yarn: float | None = None
    gated: bool = False
    is_causal: bool = True
    joint_norm: bool = False
    value_size: int | None = None
    head_gates: bool = False
    indexer: Indexer | None = None
    value_norm: bool = False
    tied_values: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "num_heads", "num_kv_heads", "head_size", "window", "value_size")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"the heads must be a multiple of the key/value heads: got {self.num_heads} and {self.num_kv_heads}"
            )

    @property
    def norm_parameters(self) -> int:
        heads = self.num_heads + self.num_kv_heads if self.joint_norm else 2
        return self.qk_norm * heads * self.head_size + (2 * self.indexer.head_size if self.indexer else 0)

    @property
    def v_head_size(self) -> int:  # type: ignore[override]
        return self.value_size or self.head_size

    def core_flops(self, sequence_length: int, *, causal: bool) -> float:
        core_flops = super().core_flops(sequence_length, causal=causal)
        return core_flops + self.choice_flops(sequence_length, causal=causal)

    def keys_per_query(self, sequence_length: int) -> float:
        """Windows of images (Qwen2.5-VL) are chunks without a mask."""
        if self.indexer:
            return self.indexer.keys_per_query(sequence_length)
        if self.window is None or self.window >= sequence_length:
            return super().keys_per_query(sequence_length)
        if not self.is_causal:
            return float(self.window)
        return self.window / 2 if self.is_chunked else keys_in_window(self.window, sequence_length)

    def kv_heads_per_rank(self, tp: int) -> int:
        """Heads are replicated if there are more ranks than heads."""
        return max(min(1, self.num_kv_heads), self.num_kv_heads // tp)

    def linears(self, h: int, tp: int) -> list[WeightMatrix]:
        d, v, heads, groups = self.head_size, self.v_head_size, self.num_heads // tp, self.kv_heads_per_rank(tp)
        gates = (heads if self.head_gates else heads * v,) if self.gated else ()
        qkv = heads * d, *gates, groups * d, *(() if self.tied_values else (groups * v,))
        return [
            WeightMatrix("queries, keys, values", "attention input", h, qkv, split="outputs", biased=self.qkv_bias),
            *[of_columns("sinks", "scores", (heads,))] * self.sinks,
            *_of_indexer(self.indexer, "attention input", h, h),
            out_of_heads(heads * v, h, biased=self.out_bias),
        ]

    def require_division(self, sizes: ParallelSizes) -> None:
        super().require_division(sizes)
        if sizes.cp > 1 and self.indexer:
            raise ConfigError(f"context parallelism is not known with sparse attention: got cp {sizes.cp}")
        if self.num_kv_heads and self.num_kv_heads % sizes.tp and sizes.tp % self.num_kv_heads:
            raise ConfigError(
                f"tp must divide the key/value heads or be a multiple: got {sizes.tp} with {self.num_kv_heads}"
            )

    def operators(
        self, h: int, sizes: ParallelSizes, execution: Execution, sequence_length: int
    ) -> Iterator[Operator]:
        inwards, *_, out = self.linears(h, sizes.tp)
        names = ["q", *["gate"] * self.gated, "k", *([] if self.tied_values else ["v"])]
        outputs = tuple(
            Tensor(name, "tokens", size, "attention") for name, size in zip(names, inwards.columns, strict=True)
        )
        yield gemm(inwards, "qkv_linear", "n1", outputs, name="qkv")
        last, values = [outputs[0], outputs[names.index("k")]], outputs[-1]
        if self.value_norm:
            normed = replace(values, name="normed values")
            yield Operator(
                "norm of v", "qkv_linear", (values.name,), (normed,), saved_for_i=(values.name,), kind="norm"
            )
            values = normed
        if self.qk_norm:
            both = [replace(one, name=f"normed {one.name}") for one in last]
            for one, after in zip(last, both, strict=True):
                yield Operator(
                    f"norm of {one.name}", "qkv_linear", (one.name,), (after,), saved_for_i=(one.name,), kind="norm"
                )
            last = both
        rotated = (replace(last[0], name="rotated q"), replace(last[1], name="rotated k"))
        columns = last[0].columns + last[1].columns
        reads = last[0].name, last[1].name
        kind: Kind = "scaled rotation" if (self.yarn or 1) > 1 else "rotation"
        yield Operator("rotate", "qkv_linear", reads, rotated, kind=kind, columns=columns)
        yield from _choice(self.indexer, "attention input", h, h, sequence_length)
        yield from scored_core(
            self, self.v_head_size, ("rotated q", "rotated k", values.name), sizes, execution, sequence_length
        )
        source = "o"
        if self.gated:
            source = "gated o"
            yield _gate(source, out)
        yield output(out, source, out.outputs)


def _gate(name: str, out: WeightMatrix) -> Operator:
    gated = Tensor(name, "tokens", out.inputs, "attention")
    return Operator("gate", "attn", ("o", "gate"), (gated,), saved_for_i=("o", "gate"), kind="gate")


def _of_indexer(indexer: Indexer | None, read: str, inputs: int, h: int) -> list[WeightMatrix]:
    """Ranks replicate the indexer's matrices."""
    if indexer is None:
        return []
    weights = (
        [] if indexer.block else [WeightMatrix("indexer's weights", "attention input", h, (indexer.num_heads,))]
    )
    return [
        WeightMatrix("indexer's queries up", read, inputs, (indexer.columns,)),
        WeightMatrix("indexer's keys", "attention input", h, (indexer.head_size,)),
        *weights,
    ]


def _choice(
    indexer: Indexer | None, read: str, inputs: int, h: int, sequence_length: int, source: str = "n1"
) -> Iterator[Operator]:
    """The choice of keys saves its operands and an int32 per index."""
    if indexer is None:
        return
    outputs: list[Tensor] = []
    for one in _of_indexer(indexer, read, inputs, h):
        outputs.append(Tensor(one.name, "tokens", one.outputs, "attention"))
        yield gemm(
            one, "qkv_linear", "n1" if one.reads == "attention input" else source, (outputs[-1],), quantized=False
        )
    names = tuple(one.name for one in outputs)
    part = min(1.0, sequence_length / indexer.num_keys)
    chosen = Tensor("index", "tokens", indexer.indices * part, "scores", "f32")
    yield Operator("choice", "core_attn", names, (chosen,), saved_for_i=(*names, "index"))


@dataclass(frozen=True)
class NoAttention(Attention):
    """Placeholder in a layer without a token mixer."""

    num_heads: int = 0
    num_kv_heads: int = 0
    head_size: int = 0

    def __post_init__(self) -> None:
        """Skip the checks."""

    def linears(self, h: int, tp: int) -> list[WeightMatrix]:
        return []


@dataclass(frozen=True)
class LatentAttention(ScoredAttention):
    """Multi-head latent attention (MLA; DeepSeek-AI 2024, arXiv 2405.04434, §2.1).

    `q_lora_rank` None: queries are projected directly, as in DeepSeek-V2-Lite. `num_keys`: the most keys that a
    query attends to (sparse attention of DeepSeek-V3.2 and GLM-5; DeepSeek-AI 2025, arXiv 2512.02556, §2.1). A
    layer of GLM-5.2 without an `indexer` reuses the choice of an earlier layer. `gated`: a gate before the output
    (Kimi K3).
    """

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_size: int
    qk_rope_head_size: int
    v_head_size: int
    num_keys: int | None = None
    indexer: Indexer | None = None
    gated: bool = False
    has_norm_apart = True

    def __post_init__(self) -> None:
        sizes = "num_heads", "kv_lora_rank", "qk_nope_head_size", "qk_rope_head_size", "v_head_size", "num_keys"
        require_positive(self, *sizes)
        if self.q_lora_rank is not None and self.q_lora_rank < 1:
            raise ConfigError(f"q_lora_rank must be at least 1, or null: got {self.q_lora_rank}")
        if self.indexer and self.q_lora_rank is None:
            raise ConfigError("an indexer reads the latent of queries: q_lora_rank is missing")

    @property
    def qk_head_size(self) -> int:  # type: ignore[override]
        return self.qk_nope_head_size + self.qk_rope_head_size

    @property
    def norm_parameters(self) -> int:
        return (self.q_lora_rank or 0) + self.kv_lora_rank + (2 * self.indexer.head_size if self.indexer else 0)

    def keys_per_query(self, sequence_length: int) -> float:
        if self.num_keys is None or self.num_keys >= sequence_length:
            return super().keys_per_query(sequence_length)
        return keys_in_window(self.num_keys, sequence_length)

    def core_flops(self, sequence_length: int, *, causal: bool) -> float:
        core_flops = super().core_flops(sequence_length, causal=causal)
        return core_flops + self.choice_flops(sequence_length, causal=causal)

    def require_division(self, sizes: ParallelSizes) -> None:
        super().require_division(sizes)
        if sizes.cp > 1 and self.num_keys is not None:
            raise ConfigError(f"context parallelism is not known with sparse latent attention: got cp {sizes.cp}")

    def linears(self, h: int, tp: int) -> list[WeightMatrix]:
        """Ranks replicate the down-projections and the indexer's matrices."""
        heads, rank, latent = self.num_heads // tp, self.q_lora_rank, self.kv_lora_rank
        queries, values = (heads * self.qk_head_size,), heads * self.v_head_size
        keys = heads * self.qk_nope_head_size
        down = [] if rank is None else [WeightMatrix("queries down", "attention input", h, (rank,))]
        read = "attention input" if rank is None else "latent of queries"
        return [
            *down,
            WeightMatrix("queries up", read, rank or h, queries, split="outputs"),
            WeightMatrix("keys and values down", "attention input", h, (latent, self.qk_rope_head_size)),
            WeightMatrix("keys and values up", "latent", latent, (keys, values), split="outputs"),
            *[WeightMatrix("output gate", "attention input", h, (values,), split="outputs")] * self.gated,
            *_of_indexer(self.indexer, "latent of queries", self.q_lora_rank or h, h),
            out_of_heads(values, h),
        ]

    def operators(
        self, h: int, sizes: ParallelSizes, execution: Execution, sequence_length: int
    ) -> Iterator[Operator]:
        """Keys and values are written to separate tensors (Megatron-LM, `fused_apply_mla_rope_for_kv`)."""
        linears = self.linears(h, sizes.tp)
        by_name, out = {linear.name: linear for linear in linears}, linears[-1]
        q_up, kv_down, kv_up = (
            by_name[name] for name in ("queries up", "keys and values down", "keys and values up")
        )
        heads, component = self.num_heads // sizes.tp, "attention"

        def own(name: str, columns: int, storage: str | None = None) -> Tensor:
            return Tensor(name, "own_tokens", columns, component, storage=storage)

        def wide(name: str, columns: float, storage: str | None = None) -> Tensor:
            return Tensor(name, "tokens", columns, component, storage=storage)

        source, latent_norms = "n1", "qkv_linear/mla_up_proj" if execution.fuses_norms else "qkv_linear"
        if self.q_lora_rank is not None:
            yield gemm(by_name["queries down"], "qkv_linear", "n1", (own("ql", self.q_lora_rank),))
            yield Operator(
                "norm of queries", latent_norms, ("ql",), (own("qn", self.q_lora_rank),), saved_for_i=("ql",),
                kind="norm",
            )  # fmt: skip
            source = "qn"
        # 8-bit copies of latents are not counted: the up-projections save them in the dtype of activations.
        queries = wide("q", heads * self.qk_head_size)
        yield gemm(kv_down, "qkv_linear", "n1", (own("kvl", self.kv_lora_rank + self.qk_rope_head_size),))
        yield Operator(
            "norm of latent", latent_norms, ("kvl",), (own("kn", self.kv_lora_rank),), saved_for_i=("kvl",),
            kind="norm",
        )  # fmt: skip
        yield gemm(q_up, "qkv_linear/mla_up_proj", source, (queries,), quantized=source == "n1")
        kv = wide("kv", heads * (self.qk_nope_head_size + self.v_head_size))
        yield gemm(kv_up, "qkv_linear/mla_up_proj", "kn", (kv,), quantized=False)
        rotated = (
            wide("rq", queries.columns, "q"),
            wide("rk", queries.columns),
            wide("v", heads * self.v_head_size, "kv"),
        )
        given, taken = kv.columns, heads * (self.qk_head_size + self.v_head_size)
        yield Operator(
            "rotate", "qkv_linear/mla_up_proj", ("q", "kv", "kvl"), rotated,
            kind="rotation", columns=heads * self.qk_rope_head_size + (given + taken) / 2,
        )  # fmt: skip
        yield from _choice(self.indexer, "latent of queries", self.q_lora_rank or h, h, sequence_length, "qn")
        yield from scored_core(self, self.v_head_size, ("rq", "rk", "v"), sizes, execution, sequence_length)
        if self.gated:
            gate = by_name["output gate"]
            yield gemm(gate, "attn", "n1", (wide("gate", gate.outputs),))
            yield _gate("gated o", out)
        yield output(out, "gated o" if self.gated else "o", out.outputs)


@dataclass(frozen=True)
class FeedForward:
    """A dense MLP; gated: SwiGLU with three matrices, else two; clamped: activation inputs are clamped (gpt-oss).

    weighted_apart: a separate kernel multiplies an expert's activation by the routing weight, and saves the
    activation (Megatron-LM, `TEGroupedMLP`: for GELU, and for squared ReLU without
    `use_fused_weighted_squared_relu`).
    """

    size: int
    gated: bool = True
    bias: bool = False
    clamped: bool = False
    weighted_apart: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "size")

    def linears(self, h: int, tp: int, *, kind: LinearKind = "dense", count: int = 1) -> list[WeightMatrix]:
        size, inputs = self.size // tp, "routed tokens" if kind == "routed" else "feed-forward input"
        up = (size, size) if self.gated else (size,)
        return [
            WeightMatrix("up", inputs, h, up, kind=kind, split="outputs", count=count, biased=self.bias),
            WeightMatrix(
                "down", f"{kind} activation", size, (h,), kind=kind, split="inputs", count=count, biased=self.bias
            ),
        ]


@dataclass(frozen=True)
class NoFeedForward(FeedForward):
    """Placeholder in a layer without a channel mixer."""

    size: int = 0
    gated: bool = False

    def __post_init__(self) -> None:
        """Skip the checks."""

    def linears(self, h: int, tp: int, *, kind: LinearKind = "dense", count: int = 1) -> list[WeightMatrix]:
        return []


MOST_EXPERTS = 10_000
"""Maximum number of experts per layer; published models have up to 896."""


@dataclass(frozen=True)
class MixtureOfExperts:
    """A top-k router over experts, with a shared expert of `shared_size` columns.

    - `router_bias`: a bias per expert for load balance (DeepSeek-V3).
    - `shared_gate`: h weights for a gate before the shared expert (Qwen2-MoE).
    - `latent_size`: width of routed experts narrower than h, with projections before the dispatch and after the
      combine (Nemotron 3 Super); `latent_norm`: an RMSNorm after the combine (Kimi K3).
    - `grouped`: use grouped GEMMs; separate GEMMs are assumed to take the same time.
    - `joined_norms`: an RMSNorm each for the outputs of shared and routed experts (Gemma 4).
    """

    expert: FeedForward
    num_experts: int
    experts_per_token: int
    shared_size: int = 0
    router_bias: bool = False
    shared_gate: bool = False
    latent_size: int | None = None
    grouped: bool = True
    latent_norm: bool = False
    joined_norms: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "latent_size")
        if self.num_experts > MOST_EXPERTS:  # expert weights are listed one by one
            raise ConfigError(f"the number of experts must be at most {MOST_EXPERTS:,}: got {self.num_experts}")
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ConfigError(
                f"experts per token must be 1 to the number of experts: got {self.experts_per_token} of "
                f"{self.num_experts}"
            )

    @property
    def gated(self) -> bool:
        return self.expert.gated

    @property
    def clamped(self) -> bool:
        return self.expert.clamped

    @property
    def shared(self) -> FeedForward | None:
        return replace(self.expert, size=self.shared_size) if self.shared_size else None

    def linears(self, h: int, sizes: ParallelSizes) -> list[WeightMatrix]:
        read, width = "feed-forward input", self.latent_size or h
        router = WeightMatrix("router", read, h, (self.num_experts,), kind="router", biased=self.router_bias)
        routed = self.expert.linears(width, sizes.expert_tp, kind="routed", count=self.num_experts // sizes.ep)
        shared = self.shared.linears(h, sizes.tp, kind="shared") if self.shared else []
        gate = [WeightMatrix("shared gate", read, h, (1,), kind="gate")] if self.shared_gate else []
        if self.latent_size:
            routed = [
                WeightMatrix("latent down", read, h, (width,), kind="latent"),
                *routed,
                *[WeightMatrix("norm of combined", "experts' output", 1, (width,), kind="vector")]
                * self.latent_norm,
                WeightMatrix("latent up", "experts' output", width, (h,), kind="latent"),
            ]
        return [router, *routed, *shared, *gate]


OfLatents: TypeAlias = LatentAttention | CompressedAttention
