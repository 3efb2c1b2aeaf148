"""Division of a model among ranks, and the parameters on one rank."""

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from ppsim.base.errors import ConfigError
from ppsim.base.files import prefix_errors
from ppsim.model.architecture import Layer, Model, mtp_own_parameters
from ppsim.model.attention_and_mlp import FeedForward
from ppsim.model.pipeline_stages import Stage
from ppsim.parallel.sizes import ParallelSizes, require_divides


@dataclass(frozen=True)
class RankParameters:
    """Parameters on a rank: dense ones, replicated over cp·dp ranks, and routed experts, with their own replicas.

    `gemms` and `expert_gemms`: the parts of `dense` and `expert` in GEMMs inside layers (`NarrowWeights`).
    `matrices`: the trained part of `gemms`, which Muon updates. `frozen` and `frozen_expert`: the parts of `dense`
    and `expert` without gradients.
    """

    dense: int
    expert: int
    matrices: int
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


def require_division(model: Model, cut: ParallelSizes) -> None:
    for layer in model.kinds:
        require_division_of_layer(layer, cut)
    for encoder in model.encoders:
        with prefix_errors(f"the {encoder.kind} encoder"):
            require_division_of_layer(encoder.layers[0], encoder.cut(cut))
    if any(layer.is_moe for layer in model.kinds):
        return
    for name, value, usual in (("ep", cut.ep, 1), ("etp", cut.expert_tp, cut.tp)):
        if value != usual:
            raise ConfigError(f"the model has no experts to divide: got {name} {value}")


def require_division_of_layer(layer: Layer, cut: ParallelSizes) -> None:
    ffn = layer.ffn
    layer.attention.require_division(cut)
    if layer.training and layer.training.rank:
        require_divides("tp", cut.tp, "rank of the adapters", layer.training.rank)
        require_divides("etp", cut.expert_tp, "rank of the adapters", layer.training.rank)
    if isinstance(ffn, FeedForward):
        require_divides("tp", cut.tp, "feed-forward columns", ffn.size)
        return
    require_divides("ep", cut.ep, "experts", ffn.num_experts)
    require_divides("etp", cut.expert_tp, "columns of an expert", ffn.expert.size)
    require_divides("tp", cut.tp, "columns of the shared expert", ffn.shared_size)


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
    model: Model, stages: list[Stage], cut: ParallelSizes, *, vocab_multiple: int = 1
) -> RankParameters:
    """Parameters on a rank for these stages, divided as in Megatron-LM.

    Norms, routers, MLA's down-projections and biases after a reduction are replicated. A tied embedding is on the
    ranks of the first and the last stage, once if they are the same rank. Multi-token prediction has a copy of the
    embedding if its rank has none.
    """
    dense = matrices = expert = frozen = frozen_expert = gemms = expert_gemms = 0
    before, behind, everywhere = model.own_parameters
    table = model.table(padded_vocabulary(model.vocab_size, tp=cut.tp, multiple=vocab_multiple) // cut.tp)
    has_embedding = any(stage.embedding for stage in stages)
    for stage in stages:
        further = model.distinct(stage.mtp)
        for layer, number in Counter((*stage.layers, *further)).items():
            held = held_of_layer(layer, cut)
            dense, matrices = dense + number * held.dense, matrices + number * held.matrices
            expert += number * held.expert
            frozen, frozen_expert = frozen + number * held.frozen, frozen_expert + number * held.frozen_expert
            gemms, expert_gemms = gemms + number * held.gemms, expert_gemms + number * held.expert_gemms
        needs_embedding = bool(stage.mtp) and not has_embedding
        of_mtp = sum(mtp_own_parameters(layer, cut.tp) for layer in further)
        of_embedding = needs_embedding * table + stage.embedding * (table + before)
        of_norm, of_head = model.final_norm_parameters * stage.head, 0
        if stage.head:
            here_already = model.tied_embeddings and (has_embedding or needs_embedding)
            of_head = behind - of_norm + (0 if here_already else table)
        for part in stage.encoder_parts(model):
            of_encoder, of_frozen = part.held(cut)
            dense, frozen = dense + of_encoder, frozen + of_frozen
        dense += everywhere + of_mtp + of_embedding + of_norm + of_head
        parts = {"mtp": of_mtp, "embedding": of_embedding, "norms": of_norm, "head": of_head}
        frozen += sum(count for word, count in parts.items() if not model.trains(word))
    return RankParameters(dense, expert, matrices, frozen, frozen_expert, gemms, expert_gemms)


def held_of_layer(layer: Layer, cut: ParallelSizes) -> RankParameters:
    dense, expert, matrices, gemms, expert_gemms = layer.norm_parameters, 0, 0, 0, 0
    frozen, frozen_expert = 0 if layer.trains_norms else layer.norm_parameters, 0
    for one in layer.linears(cut):
        held = one.weights + one.biases
        if one.kind in ("routed", "routed adapter"):
            expert += held
            frozen_expert += held * (not one.trainable)
            expert_gemms += one.weights * (one.is_orthogonalised and not layer.in_16_bits)
        else:
            dense += held
            frozen += held * (not one.trainable)
            gemms += one.weights * (one.is_orthogonalised and not layer.in_16_bits)
            matrices += one.weights * (one.is_orthogonalised and one.trainable)
    return RankParameters(dense, expert, matrices, frozen, frozen_expert, gemms, expert_gemms)


def exact_multiple(value: int, factor: float) -> int:
    """Multiply and round half to even, without floating-point error."""
    return round(value * Fraction(factor).limit_denominator(10**6))
