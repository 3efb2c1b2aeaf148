"""Division of a model among ranks, and the parameters on one rank."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

from ppsim.base.errors import ConfigError
from ppsim.base.files import prefix_errors
from ppsim.model.architecture import End, Layer, Model
from ppsim.model.attention_and_mlp import FeedForward
from ppsim.model.pipeline_stages import Stage
from ppsim.model.stage_rows import Row, RowKind, rows_of
from ppsim.parallel.sizes import ParallelSizes, require_divides


@dataclass(frozen=True)
class RankParameters:
    """Parameters on a rank: dense ones, replicated over cp·dp ranks, and routed experts, with their own replicas.

    `gemms` and `expert_gemms`: the parts of `dense` and `expert` in GEMMs inside layers (`NarrowWeights`).
    `matrices`: the trained part of `gemms`, which Muon updates. `frozen` and `frozen_expert`: the parts of `dense`
    and `expert` without gradients.
    """

    dense: int = 0
    expert: int = 0
    matrices: int = 0
    frozen: int = 0
    frozen_expert: int = 0
    gemms: int = 0
    expert_gemms: int = 0

    @property
    def trained(self) -> int:
        return self.dense - self.frozen

    @property
    def trained_expert(self) -> int:
        return self.expert - self.frozen_expert

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self.__dict__.values())

    def __add__(self, other: "RankParameters") -> "RankParameters":
        return RankParameters(*map(sum, zip(self.numbers, other.numbers, strict=True)))


class Tables(NamedTuple):
    """Copies of the embedding table on a rank, as embedding and as head."""

    embedding: int
    head: int

    def trained(self, model: Model) -> int:
        return self.embedding * model.trains("embedding") + self.head * model.trains("head")

    def held(self, model: Model, size: int) -> RankParameters:
        """`size`: parameters of the table."""
        return RankParameters(sum(self) * size, frozen=(sum(self) - self.trained(model)) * size)


def require_division(model: Model, sizes: ParallelSizes) -> None:
    for layer in model.kinds:
        require_division_of_layer(layer, sizes)
    for encoder in model.encoders:
        with prefix_errors(f"the {encoder.kind} encoder"):
            require_division_of_layer(encoder.layers[0], encoder.cut(sizes))
    if model.has_experts:
        return
    for name, value, usual in (("ep", sizes.ep, 1), ("etp", sizes.expert_tp, sizes.tp)):
        if value != usual:
            raise ConfigError(f"the model has no experts to divide: got {name} {value}")


def require_division_of_layer(layer: Layer, sizes: ParallelSizes) -> None:
    ffn = layer.ffn
    layer.attention.require_division(sizes)
    if layer.training and layer.training.rank:
        require_divides("tp", sizes.tp, "rank of the adapters", layer.training.rank)
        require_divides("etp", sizes.expert_tp, "rank of the adapters", layer.training.rank)
    if isinstance(ffn, FeedForward):
        require_divides("tp", sizes.tp, "feed-forward columns", ffn.size)
        return
    require_divides("ep", sizes.ep, "experts", ffn.num_experts)
    require_divides("etp", sizes.expert_tp, "columns of an expert", ffn.expert.size)
    require_divides("tp", sizes.tp, "columns of the shared expert", ffn.shared_size)


VOCAB_MULTIPLE = 128
"""The vocabulary per tensor-parallel rank is padded to a multiple of this (Megatron-LM's default)."""


def padded_vocabulary(vocab_size: int, *, tp: int, multiple: int) -> int:
    """Round up to a multiple of `multiple`·tp.

    >>> padded_vocabulary(128256, tp=8, multiple=128)
    129024
    """
    step = multiple * tp
    return -(-vocab_size // step) * step


def held_parameters(
    model: Model, stages: Sequence[Stage], sizes: ParallelSizes, *, vocab_multiple: int = 1
) -> RankParameters:
    """Parameters on a rank for these stages, divided as in Megatron-LM.

    Norms, routers, MLA's down-projections and biases after a reduction are replicated.
    """
    rows = (row for stage in stages for row in rows_of(model, stage, "none"))
    held = sum((held_of_row(model, row, sizes) for row in rows), RankParameters())
    tables = tables_of(model, [(stage.embedding, stage.head, bool(stage.mtp)) for stage in stages])
    vocabulary = padded_vocabulary(model.vocab_size, tp=sizes.tp, multiple=vocab_multiple) // sizes.tp
    return held + tables.held(model, model.table(vocabulary))


def tables_of(model: Model, stages: Sequence[tuple[bool, bool, bool]]) -> Tables:
    """`stages`: whether a stage has the embedding, the head, and multi-token prediction.

    A tied embedding is on the ranks of the first and the last stage, once if they are the same rank. Multi-token
    prediction has a copy of the embedding if its rank has none.
    """
    has_embedding = any(embedding for embedding, _, _ in stages)
    of_embedding = sum(embedding or (mtp and not has_embedding) for embedding, _, mtp in stages)
    of_head = sum(head and not (model.tied_embeddings and (has_embedding or mtp)) for _, head, mtp in stages)
    return Tables(of_embedding, of_head)


_ENDS: Mapping[RowKind, End] = MappingProxyType(
    {"stage": "conditions", "embedding": "embedding", "head": "head", "mtp weights": "mtp"}
)


def held_of_row(model: Model, row: Row, sizes: ParallelSizes) -> RankParameters:
    """Parameters of a part of a stage on a rank, without the embedding table."""
    if row.encoder:
        dense, frozen = row.encoder.held(sizes)
        return RankParameters(dense, frozen=frozen)
    layers = row.layers if row.kind in ("layer", "checkpoint", "mtp weights") else ()
    held = sum((held_of_layer(layer, sizes) for layer in layers), RankParameters())
    if end := _ENDS.get(row.kind):
        for matrix in model.outside_weights(end, sizes.tp):
            word = "norms" if matrix.name == "final norm" else end
            dense, trains = matrix.weights + matrix.biases, model.trains(word)
            held += RankParameters(dense, frozen=dense * (not trains))
    return held


def held_of_layer(layer: Layer, sizes: ParallelSizes) -> RankParameters:
    dense, expert, matrices, gemms, expert_gemms = layer.norm_parameters, 0, 0, 0, 0
    frozen, frozen_expert = 0 if layer.trains_norms else layer.norm_parameters, 0
    for linear in layer.linears(sizes):
        held = linear.weights + linear.biases
        if linear.kind in ("routed", "routed adapter"):
            expert += held
            frozen_expert += held * (not linear.trainable)
            expert_gemms += linear.weights * (linear.is_orthogonalised and not layer.in_16_bits)
        else:
            dense += held
            frozen += held * (not linear.trainable)
            gemms += linear.weights * (linear.is_orthogonalised and not layer.in_16_bits)
            matrices += linear.weights * (linear.is_orthogonalised and linear.trainable)
    return RankParameters(dense, expert, matrices, frozen, frozen_expert, gemms, expert_gemms)


def exact_multiple(value: int, factor: float) -> int:
    """Multiply and round half to even, without floating-point error."""
    if factor == int(factor):
        return value * int(factor)  # fractions are slow
    return round(value * Fraction(factor).limit_denominator(10**6))
