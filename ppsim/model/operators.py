"""A layer's forward on one rank as a list of operators, and the bytes that it saves for the backward.

Tensors refer to row counts by name, so that one list serves microbatches of every size.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from ppsim.model.recompute import require_of_layer
from ppsim.model.weight_matrices import WeightMatrix

Rows = Literal["tokens", "own_tokens", "capacity"]
Dtype = Literal["act", "operand", "f32", "f8", "mask", "i64"]
Kind = Literal[
    "norm",
    "rotation",
    "scaled rotation",
    "activation",
    "gated activation",
    "clamped activation",
    "convolution",
    "gate",
    "add",
    "mix",
    "weighted sum",
    "modulation",
    "scale",
    "dispatch",
    "combine",
    "look up",
    "dropout",
    "copies",
    "norms",
    "final norm",
    "loss",
    "",
]
"""Kind of an operator that is neither a GEMM nor a core; "" takes no time."""

RowCounts: TypeAlias = Mapping[Rows, int | Fraction]
"""Rows on this rank. tokens: tokens of its context-parallel part; own_tokens: 1/tp of `tokens` with sequence
parallelism, else `tokens`; capacity: rows allocated for token-expert pairs."""


@dataclass(frozen=True)
class Tensor:
    """A tensor; `component` is its line in the memory report, `storage` the tensor whose storage it shares.

    dtype: "act" is the dtype of activations, "operand" of GEMM inputs, "f32" 4 bytes, "f8" and "mask" 1 byte,
    "i64" 8 bytes.
    """

    name: str
    rows: Rows
    columns: float
    component: str
    dtype: Dtype = "act"
    storage: str | None = None


@dataclass(frozen=True)
class Operator:
    """One operator of a forward.

    - `module`: a path; a value of `--recompute` matches all operators with that value in their path.
    - `saved_for_i`, `saved_for_w`: names of tensors that the input gradient and the weight gradient read.
    - `quantized`: a GEMM saves a copy of its input in the operand dtype.
    - `share`: fraction of the tokens that it computes.
    - `passes_gradient`: its inputs have the gradient of its output (sums and views).
    - `gives_gradient`: its GEMM has an input gradient.
    - `sublayer`: 1 for the token mixer, 2 for the channel mixer.

    Its time is the time of its GEMM, of its `core` (a `ppsim.model.mixer.Mixer`), or of the memory traffic of its
    `kind` with `columns` columns (None: the columns of its first output).
    """

    name: str
    module: str
    reads: tuple[str, ...]
    writes: tuple[Tensor, ...]
    saved_for_i: tuple[str, ...] = ()
    saved_for_w: tuple[str, ...] = ()
    weight: WeightMatrix | None = None
    quantized: bool = False
    share: float = 1.0
    passes_gradient: bool = False
    kind: Kind = ""
    columns: float | None = None
    core: Any = None
    sublayer: Literal[1, 2] = 1
    trainable: bool = True
    gives_gradient: bool = True

    @property
    def rows(self) -> Rows:
        return self.writes[0].rows if self.writes else "tokens"

    @property
    def passed(self) -> float:
        """Columns that a memory-bound operator moves in each of its reads and writes."""
        return (self.writes[0].columns if self.writes else 0.0) if self.columns is None else self.columns


@dataclass(frozen=True)
class Checkpoint:
    """Operators that the backward runs again. Their inputs are saved, and also outputs that other operators save.

    With `discards_output`, no outputs are saved; they are recomputed just before their first use in the backward
    (Megatron-LM, core/tensor_parallel/random.py: `CheckpointWithoutOutput`).
    """

    operators: tuple[str, ...]
    discards_output: bool = False


MemoryPlan: TypeAlias = tuple[Checkpoint, ...]

DISCARDING = ("layernorm", "mhc", "mla_up_proj", "mlp_act", "moe_act")
"""Modules that Megatron-LM recomputes with `CheckpointWithoutOutput`; mlp_act exists in ppsim only."""


def plan_of(operators: Sequence[Operator], recompute: str) -> MemoryPlan:
    require_of_layer(recompute)
    if recompute == "full":
        return (Checkpoint(tuple(one.name for one in operators)),)
    plan = []
    for word in recompute.split("+"):
        inside = tuple(operator.name for operator in operators if word in operator.module.split("/"))
        plan.append(Checkpoint(inside, discards_output=word in DISCARDING))
    return tuple(plan)


def tensors_of(operators: Iterable[Operator], layer_input: Tensor) -> dict[str, Tensor]:
    return {layer_input.name: layer_input} | {
        tensor.name: tensor for operator in operators for tensor in operator.writes
    }


def stored(tensors: Mapping[str, Tensor], name: str, *, is_operand: bool = False) -> Tensor:
    """Return the tensor that owns a tensor's storage, or its copy in the operand dtype of a GEMM."""
    while storage := tensors[name].storage:
        name = storage
    return replace(tensors[name], name=f"{name} as operand", dtype="operand") if is_operand else tensors[name]


def gathered_inputs(operators: Iterable[Operator], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that tensor-parallel ranks gather before GEMMs, by the first operator that reads them."""
    found: dict[str, Tensor] = {}
    for operator in operators:
        if operator.weight is not None and operator.weight.split == "outputs" and operator.writes:
            tensor = tensors[operator.reads[0]]
            if tensor.rows == "own_tokens" and tensor not in found.values():
                found[operator.name] = tensor
    return found


def summed_outputs(operators: Iterable[Operator]) -> dict[str, Tensor]:
    """Return the tensors, by operator, that ranks reduce.

    They are outputs of the vocabulary's table, and of GEMMs with divided inputs, except in experts.
    """
    return {
        operator.name: operator.writes[0]
        for operator in operators
        if operator.kind == "look up"
        or (
            operator.weight is not None
            and operator.weight.split == "inputs"
            and operator.writes
            and operator.rows != "capacity"
        )
    }


class _Saved:
    """A walk over the operators, which finds the storages that stay from F to B."""

    def __init__(self, operators: Sequence[Operator], source: Tensor, plan: MemoryPlan, *, casts: bool) -> None:
        self.makers = {tensor.name: operator.name for operator in operators for tensor in operator.writes}
        self.reads = {one.name: one.reads for one in operators}
        self.tensors, self.source = tensors_of(operators, source), source.name
        regions = [one.operators for one in plan if not one.discards_output]
        self.region = {name: number for number, names in enumerate(regions) for name in names}
        self.discarded = {name for one in plan if one.discards_output for name in one.operators}
        self.found: dict[str, Tensor] = {}
        self.savers: dict[str, dict[str, None]] = {}
        self.discarded_later: list[tuple[str, Tensor]] = []
        for one in operators:
            for name in one.saved_for_i:
                self.need(name, one.name)
            for name in one.saved_for_w:
                self.need(name, one.name, is_operand=casts and one.quantized)
            if one.name in self.region:
                for name in one.reads:
                    self.need(name, one.name, is_input=True)

    def need(
        self, name: str, saver: str, *, user: str | None = None, is_operand: bool = False, is_input: bool = False
    ) -> None:
        """Add the storage of a saved tensor, unless the checkpoint of its user recomputes it."""
        region, maker = self.region.get(user or saver), self.makers.get(name)
        if maker in self.discarded:
            if user is None and region is None and saver not in self.discarded:
                self.discarded_later.append((saver, stored(self.tensors, name, is_operand=is_operand)))
            for source in self.reads[maker]:
                self.need(source, maker, user=user or saver)
        elif region is None or self.region.get(maker or "") != region:
            self._add(name, saver, is_operand=is_operand, is_input=is_input)

    def _add(self, name: str, saver: str, *, is_operand: bool, is_input: bool) -> None:
        tensor = stored(self.tensors, name, is_operand=is_operand)
        if is_input and stored(self.tensors, name).name == self.source:
            tensor = replace(tensor, component="layer input")
        self.found[tensor.name] = tensor
        self.savers.setdefault(tensor.name, {})[saver] = None


def saved(
    operators: Sequence[Operator], layer_input: Tensor, plan: MemoryPlan, *, casts: bool = False
) -> Iterable[Tensor]:
    """Return the tensors that a forward saves for its backward, each storage once.

    `casts`: GEMMs cast their inputs, and save the copy for the weight gradient. The original stays only if another
    operator saves it. If a checkpoint discards the original and recomputes it, there is no copy (Megatron-LM:
    `set_save_original_input`).
    """
    return _Saved(operators, layer_input, plan, casts=casts).found.values()


@dataclass(frozen=True)
class OffloadGroup:
    """Saved tensors of an offloaded module in a layer; the tensors `freed` leave the device after the copy."""

    module: str
    copied: tuple[Tensor, ...]
    freed: tuple[Tensor, ...]


def offload_groups(
    operators: Sequence[Operator], layer_input: Tensor, plan: MemoryPlan, modules: str, *, casts: bool = False
) -> list[OffloadGroup]:
    """A storage is copied once per operator that saves it, and leaves the device with the last of its groups.

    It stays if an operator outside the offloaded modules saves it too. Tensors that the plan discards later are
    also copied (Megatron-LM at d98e8a64, core/pipeline_parallel/fine_grained_activation_offload.py: `tensor_push`,
    `bulk_offload_group`).
    """
    names, walk = modules.split("+"), _Saved(operators, layer_input, plan, casts=casts)
    group_of = {
        operator.name: word for operator in operators for word in names if word in operator.module.split("/")
    }
    copied: dict[str, list[Tensor]] = {word: [] for word in group_of.values()}
    freed: dict[str, list[Tensor]] = {word: [] for word in copied}
    for saver, tensor in walk.discarded_later:
        if saver in group_of:
            copied[group_of[saver]].append(tensor)
    for name, savers in walk.savers.items():
        inside = [group_of[saver] for saver in savers if saver in group_of]
        for word in inside:
            copied[word].append(walk.found[name])
        if len(inside) == len(savers):
            freed[max(inside, key=list(copied).index)].append(walk.found[name])
    return [OffloadGroup(word, tuple(copied[word]), tuple(freed[word])) for word in copied]


@dataclass(frozen=True)
class TensorColumns:
    """Number of columns with the same rows, dtype and component."""

    component: str
    rows: Rows
    dtype: Dtype
    columns: float


def sum_columns(tensors: Iterable[Tensor]) -> tuple[TensorColumns, ...]:
    found: Counter[tuple[str, Rows, Dtype]] = Counter()
    for tensor in tensors:
        found[tensor.component, tensor.rows, tensor.dtype] += tensor.columns  # type: ignore[assignment]
    return tuple(TensorColumns(*key, columns) for key, columns in found.items())


def bytes_of(columns: Iterable[TensorColumns], rows: RowCounts, widths: Mapping[Dtype, float]) -> dict[str, int]:
    num_bytes: dict[str, int] = {}
    for column in columns:
        size = round(rows[column.rows] * column.columns * widths[column.dtype])
        num_bytes[column.component] = num_bytes.get(column.component, 0) + size
    return num_bytes


def saved_for_weight(operators: Iterable[Operator], layer_input: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that a layer holds between I and W of a split backward, in the dtype of activations.

    They are the input of each trained GEMM, once, and the gradient of its output: 32 s·b·h bytes in a GPT layer in
    16 bits (Qi et al. 2024, arXiv 2401.10241, Table 1).
    """
    operators = list(operators)
    tensors = tensors_of(operators, layer_input)
    read: set[str] = set()
    for operator in operators:
        if operator.weight is None or not operator.trainable:
            continue
        fresh = [tensors[name] for name in operator.saved_for_w if name not in read]
        read.update(operator.saved_for_w)
        # An adapter's outputs are gathered afterwards.
        made = (
            [replace(operator.writes[0], columns=operator.weight.outputs)]
            if operator.weight.is_adapter
            else operator.writes
        )
        for tensor in (*fresh, *made):
            yield replace(tensor, columns=operator.share * tensor.columns, dtype="act")
