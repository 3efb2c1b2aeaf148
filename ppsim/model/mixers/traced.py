"""Models stored by `ppsim models --trace` (`ppsim.profiling.trace_model`).

The file has the distinct layers under `kinds`, and each layer's index into `kinds` under `layers`. A mixer or MLP
is a JSON object: `kind` is the name of its ppsim class, and the other keys are its fields. The token mixer is a
`TracedMixer`; files of versions before 0.4 also have other classes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from types import MappingProxyType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Layer, Model
from ppsim.model.attention_and_mlp import (
    Attention,
    FeedForward,
    LatentAttention,
    MixtureOfExperts,
    NoAttention,
    NoFeedForward,
)
from ppsim.model.attention_base import ScoredAttention, blocks_before, keys_in_window
from ppsim.model.config_parts import Reader
from ppsim.model.execution import Execution
from ppsim.model.hf_fields import ConfigFields
from ppsim.model.mixer import Mixer, gemm, scored_core
from ppsim.model.mixers.parallel import ParallelMixers, numbered
from ppsim.model.operators import Kind, Operator, Tensor
from ppsim.model.recurrent import ChunkProduct, GatedDeltaNet, KimiDeltaAttention, Mamba, Recurrent
from ppsim.model.weight_matrices import WeightMatrix
from ppsim.parallel.sizes import ParallelSizes, require_positive

TRACED = "ppsim_traced"
"""The `model_type` of stored models."""

SIDES = ("outputs", "inputs", None)
"""How tensor-parallel ranks divide a matrix: by columns, by rows, or not at all."""


@dataclass(frozen=True)
class TracedCore(ScoredAttention):
    """One attention call; window and chunks as in `Attention`.

    `q`, `k`, `v`: columns of the saved tensors that hold them; 0: another call or GEMM saves the tensor. `block`:
    tokens per compressed key. A query sees at most `num_blocks` compressed keys in addition, chosen by an indexer
    with `index_columns` columns (DeepSeek-V4).
    """

    num_heads: int
    num_kv_heads: int
    qk_size: int
    v_size: int
    window: int | None = None
    is_causal: bool = True
    q: float = 0.0
    k: float = 0.0
    v: float = 0.0
    is_chunked: bool = False
    block: int | None = None
    num_blocks: int | None = None
    index_columns: int = 0

    def __post_init__(self) -> None:
        require_positive(self, "num_heads", "num_kv_heads", "qk_size", "window", "block", "num_blocks")

    @property
    def qk_head_size(self) -> int:  # type: ignore[override]
        return self.qk_size

    @property
    def v_head_size(self) -> int:  # type: ignore[override]
        return self.v_size

    def keys_per_query(self, sequence_length: int) -> float:
        further = blocks_before(self.block, sequence_length, self.num_blocks) if self.block else 0.0
        if self.window is None or not self.is_causal or self.window >= sequence_length:
            return super().keys_per_query(sequence_length) + further
        seen = self.window / 2 if self.is_chunked else keys_in_window(self.window, sequence_length)
        return seen + further

    def core_flops(self, sequence_length: int, *, causal: bool) -> float:
        blocks = blocks_before(self.block, sequence_length) if self.block else 0.0
        scored = 2.0 * self.index_columns * blocks * (1 if causal else 2)
        return super().core_flops(sequence_length, causal=causal) + scored

    def linears(self, h: int, tp: int) -> list[WeightMatrix]:
        """The enclosing mixer has the matrices."""
        return []

    def operators(
        self, h: int, sizes: ParallelSizes, execution: Execution, sequence_length: int
    ) -> Iterator[Operator]:
        for name in ("q", "k", "v"):
            output = Tensor(name, "tokens", getattr(self, name) / sizes.tp, "attention")
            yield Operator(f"makes {name}", "qkv_linear", (), (output,))
        yield from scored_core(self, max(1, self.v_size), ("q", "k", "v"), sizes, execution, sequence_length)


@dataclass(frozen=True)
class TracedScan(Recurrent):
    """The scan of a traced recurrent mixer: only the GEMMs of its Python code that have no weights.

    The enclosing mixer has the weight matrices, the convolution and the saved columns.
    """

    num_heads: int
    chunk_size: int
    products: tuple[ChunkProduct, ...] = ()

    def __post_init__(self) -> None:
        require_positive(self, "num_heads", "chunk_size")

    @property
    def inner_size(self) -> int:
        """0: the columns that context-parallel ranks exchange are unknown, so cp above 1 is refused."""
        return 0

    @property
    def convolved(self) -> int:
        return 0

    @property
    def kept_columns(self) -> int:
        return 0

    @property
    def divided(self) -> dict[str, int]:
        return {"heads": self.num_heads}

    def chunk_products(self, tp: int = 1) -> tuple[ChunkProduct, ...]:
        return tuple(replace(product, count=max(1, product.count // tp)) for product in self.products)

    def linears(self, h: int, tp: int) -> list[WeightMatrix]:
        return []

    def operators(
        self, h: int, sizes: ParallelSizes, execution: Execution, sequence_length: int
    ) -> Iterator[Operator]:
        yield Operator("scan", "scan", (), (), core=self)


@dataclass(frozen=True)
class TracedGemm:
    """A GEMM with a weight matrix; `split` as in `WeightMatrix`.

    `reads`: "n1" for the output of the preceding norm, else the name of a tensor; `saves`: the tensor's columns if
    this GEMM is the first that saves it, else 0. `rows`: rows per token, of all `count` parallel matrices.
    """

    module: str
    reads: str
    inputs: int
    columns: tuple[int, ...]
    biased: bool = False
    split: str | None = None
    rows: float = 1.0
    saves: float = 0.0
    count: int = 1

    def __post_init__(self) -> None:
        require_positive(self, "inputs", "count")
        if self.split not in SIDES:
            raise ConfigError(f"split must be outputs or inputs: got '{self.split}'")
        if not self.columns or min(self.columns) < 1:
            raise ConfigError(f"columns must have a number of 1 or more: got {list(self.columns)}")


@dataclass(frozen=True)
class TracedSaved:
    """A tensor saved by an operator other than a GEMM or an attention call.

    `columns` are per token; `does` is the operator's kind.
    """

    module: str
    columns: float
    does: str = "gate"
    is_float32: bool = False
    is_divided: bool = True


@dataclass(frozen=True)
class TracedMixer(Mixer):
    """A mixer, or a whole layer, from a trace; `norm_weights`: parameters outside GEMMs."""

    gemms: tuple[TracedGemm, ...] = ()
    cores: tuple[TracedCore, ...] = ()
    scans: tuple[TracedScan, ...] = ()
    saved: tuple[TracedSaved, ...] = ()
    norm_weights: int = 0

    @property
    def num_heads(self) -> int:  # type: ignore[override]
        return sum(core.num_heads for core in self.cores)

    @property
    def window(self) -> int | None:
        return min((core.window for core in self.cores if core.window), default=None)

    @cached_property
    def parts(self) -> tuple[Mixer, ...]:
        return (*self.cores, *self.scans)

    @property
    def norm_parameters(self) -> int:
        return self.norm_weights

    @property
    def divided(self) -> dict[str, int]:
        sizes = {f"heads of attention call {number}": core.num_heads for number, core in enumerate(self.cores)}
        sizes |= {f"key/value heads of call {number}": one.num_kv_heads for number, one in enumerate(self.cores)}
        for one in self.gemms:
            for columns in one.columns if one.split == "outputs" else (one.inputs,) if one.split else ():
                sizes[f"columns of {one.module}"] = columns
        return sizes

    def require_division(self, sizes: ParallelSizes) -> None:
        super().require_division(sizes)
        if sizes.cp > 1 and (self.scans or (self.gemms and not self.cores)):
            raise ConfigError(f"context parallelism of a traced scan is not known: got cp {sizes.cp} (nearest: 1)")

    def core_flops(self, sequence_length: int, *, causal: bool) -> float:
        return sum(part.core_flops(sequence_length, causal=causal) for part in self.parts)

    def linears(self, h: int, tp: int) -> list[WeightMatrix]:
        return [_linear(one, tp) for one in self.gemms]

    def operators(
        self, h: int, sizes: ParallelSizes, execution: Execution, sequence_length: int
    ) -> Iterator[Operator]:
        for number, kept in enumerate(self.saved):
            columns = kept.columns / (sizes.tp if kept.is_divided else 1)
            output = Tensor(f"saved {number}", "tokens", columns, "attention", "f32" if kept.is_float32 else "act")
            kind: Kind = kept.does if kept.does in _DOES else "gate"  # type: ignore[assignment]
            yield Operator(f"{kept.module} {number}", "attn", (), (output,), saved_for_i=(output.name,), kind=kind)
        for number, part in enumerate(self.parts):
            for operator in part.operators(h, sizes, execution, sequence_length):
                yield numbered(operator, f"call {number}")
        written = {"n1", *(f"call {number} o" for number in range(len(self.cores)))}
        for number, (one_gemm, linear) in enumerate(zip(self.gemms, self.linears(h, sizes.tp), strict=True)):
            if one_gemm.reads not in written:
                written.add(one_gemm.reads)
                columns = one_gemm.saves / (sizes.tp if one_gemm.split == "inputs" else 1)
                output = Tensor(one_gemm.reads, "tokens", columns, "attention")
                yield Operator(f"makes {one_gemm.reads}", "attn", (), (output,))
            out = Tensor(f"out {number}", "tokens", one_gemm.rows * linear.outputs, "norms")
            module = "qkv_linear" if one_gemm.reads == "n1" else "attn_proj"
            yield gemm(linear, module, one_gemm.reads, (out,), name=f"{one_gemm.module} {number}")
        outs = tuple(f"out {number}" for number in range(len(self.gemms)))[-1:]
        yield Operator("mixed", "", outs, (Tensor("mixed", "own_tokens", h, "norms"),), passes_gradient=True)


_DOES = ("norm", "activation", "gate", "rotation", "convolution")


def _linear(one: TracedGemm, tp: int) -> WeightMatrix:
    by_outputs = tp if one.split == "outputs" else 1
    return WeightMatrix(
        one.module, one.reads, one.inputs // (tp if one.split == "inputs" else 1),
        tuple(columns // by_outputs for columns in one.columns), split=one.split,  # type: ignore[arg-type]
        biased=one.biased, rows=one.rows, count=one.count,
    )  # fmt: skip


_PARTS: Mapping[str, type[Any]] = MappingProxyType(
    {
        one.__name__: one
        for one in (
            Attention, NoAttention, LatentAttention, Mamba, GatedDeltaNet, KimiDeltaAttention, ParallelMixers,
            TracedMixer, FeedForward, NoFeedForward, MixtureOfExperts,
        )
    }
)  # fmt: skip

T = TypeVar("T")


def _made(cls: type[T], data: Any, where: str) -> T:
    if not isinstance(data, dict):
        raise ConfigError(f"{where} must be an object: got {data!r}")
    hints, names = get_type_hints(cls), {field.name for field in fields(cls)}  # type: ignore[arg-type]
    if wrong := [name for name in data if name not in names and name != "kind"]:
        raise ConfigError(f"{where} has an unknown field '{wrong[0]}'")
    values = {
        name: _value(hints[name], given, f"{where}, {name}") for name, given in data.items() if name != "kind"
    }
    try:
        return cls(**values)
    except TypeError:
        missing = [one.name for one in fields(cls) if one.name not in values]  # type: ignore[arg-type]
        raise ConfigError(f"{where} needs {', '.join(missing)}") from None


def _value(hint: Any, given: Any, where: str) -> Any:
    if get_origin(hint) is tuple:
        if not isinstance(given, list):
            raise ConfigError(f"{where} must be a list: got {given!r}")
        return tuple(_value(get_args(hint)[0], one, where) for one in given)
    allowed = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if Mixer in allowed:
        return _part(given, where)
    if FeedForward in allowed:
        return _made(FeedForward, given, where)
    if any(kind in (TracedGemm, TracedCore, TracedScan, TracedSaved, ChunkProduct) for kind in allowed):
        return _made(allowed[0], given, where)
    of_number = float in allowed and isinstance(given, int) and not isinstance(given, bool)
    if type(given) not in allowed and not of_number:
        raise ConfigError(f"{where} must be of type {getattr(allowed[0], '__name__', allowed[0])}: got {given!r}")
    if isinstance(given, int | float) and not 0 <= given <= 10**12:
        raise ConfigError(f"{where} must be from 0 to 10^12: got {given!r}")
    return given


def _part(data: Any, where: str) -> Any:
    kind = str(data.get("kind")) if isinstance(data, dict) else ""
    if kind not in _PARTS:
        raise ConfigError(f"{where} must have a kind of {', '.join(_PARTS)}: got {kind!r}")
    return _made(_PARTS[kind], data, where)


def _layer(data: Any, where: str) -> Layer:
    if not isinstance(data, dict) or not {"hidden_size", "mixer", "ffn"} <= set(data):
        raise ConfigError(f"{where} must have hidden_size, mixer and ffn")
    norm = data.get("norm", "rmsnorm")
    if norm not in ("layernorm", "rmsnorm", "plain"):
        raise ConfigError(f"{where}, norm must be layernorm, rmsnorm or plain: got {norm!r}")
    hidden, num_norms = (
        _value(int, data.get(name, default), f"{where}, {name}")
        for name, default in (("hidden_size", 0), ("num_norms", 2))
    )
    mixer, ffn = _part(data["mixer"], f"{where}, mixer"), _part(data["ffn"], f"{where}, ffn")
    if not isinstance(mixer, Mixer) or not isinstance(ffn, FeedForward | MixtureOfExperts) or hidden < 1:
        raise ConfigError(f"{where} must have a hidden_size of 1 or more, a mixer, and a feed-forward part as ffn")
    return Layer(hidden, mixer, ffn, norm, num_norms)


def _traced(fields: ConfigFields) -> Model:
    kinds = [_layer(one, f"kinds {number}") for number, one in enumerate(fields.objects("kinds"))]
    order = fields.counts("layers", 1) or []
    if not kinds or not order or max(order) >= len(kinds):
        fields.refuse("layers", f"must be numbers of the {len(kinds)} kinds")
    if len(widths := {kind.hidden_size for kind in kinds}) > 1:
        fields.refuse("kinds", f"must have one hidden_size: got {' and '.join(map(str, sorted(widths)))}")
    before, behind, multiplied = fields.counts("extra", 3) or (0, 0, 0)
    return Model(
        tuple(kinds[one] for one in order),
        fields.count("vocab_size"),
        fields.count("max_position_embeddings"),
        tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        learned_positions=fields.number("learned_positions", default=0),
        projected_size=fields.optional("projected_size"),
        final_norm=fields.flag("final_norm", default=True),
        extra=(before, behind, multiplied),
        source=fields.text("source") or "a trace",
        notes=tuple(fields.sentences("assumptions")),
    )


READERS: Mapping[str, Reader] = MappingProxyType({TRACED: _traced})
