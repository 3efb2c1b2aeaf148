"""Bytes of the rows of a ledger (`ppsim.model.stage_rows`) on one rank."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ppsim.model.activations import (
    end_activations,
    layer_activations,
    layer_backward,
    weight_gradient_bytes,
)
from ppsim.model.architecture import Layer, Model
from ppsim.model.encoder import Encoder, EncoderPart
from ppsim.model.execution import held_in_backward
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.parameters import RankParameters, held_of_layer
from ppsim.model.recompute import BY_OPERATORS, Recompute, recomputes
from ppsim.model.stage_rows import Row

LAYER_GRADIENT = "gradient of a layer"


@dataclass(frozen=True, eq=False)
class RowBytes:
    """Bytes of a part of a model on one rank.

    Added over the rows of a stage or rank:

    - `saved`: bytes per microbatch from the forward to the backward, by component.
    - `for_weight`: bytes per microbatch from I to W.
    - `num_graphs`: layers with CUDA graphs of their own.

    Added over a stage, the largest of a rank: `mixed_again`, bytes of recomputed residual streams in a backward.
    Once per stage: `first_streams`, bytes per microbatch of the streams from which others are mixed again.

    The largest of a rank:

    - `moments`: transient bytes of a backward, by component.
    - `gathered`: bytes of a layer's weights that ZeRO 3 gathers; `reduced`: gradients that ZeRO 2 reduces together.
    - `deferred`: bytes for deferred weight gradients of the head.

    Once per rank: `sizes` of trained matrices.
    """

    saved: Mapping[str, int] = field(default_factory=dict)
    for_weight: int = 0
    num_graphs: int = 0
    mixed_again: int = 0
    first_streams: int = 0
    moments: tuple[Mapping[str, int], ...] = ()
    gathered: int = 0
    reduced: int = 0
    deferred: int = 0
    sizes: frozenset[int] = frozenset()


def bytes_of_row(model: Model, row: Row, settings: MemorySettings) -> RowBytes:
    if row.is_passed:
        return _of_layers(model, row, settings)
    if row.kind == "received":  # the layer counts its first residual
        summed = row.layers[0].summed_residuals
        assert summed is not None
        return RowBytes({"earlier residuals": (summed[0] - 1) * settings.hidden_bytes(model.hidden_size)})
    if row.kind == "embedding" and model.trains("embedding"):
        return RowBytes(end_activations(model, "embedding", settings))
    if row.kind == "head":
        return _head(model, settings)
    return _encoder(row.encoder, settings) if row.encoder else RowBytes()


def _of_layers(model: Model, row: Row, settings: MemorySettings) -> RowBytes:
    sizes, kinds = settings.cut, _distinct(row.layers)
    matrices = [matrix for layer in kinds for matrix in layer.linears(sizes)]
    whole, mixes = sum(saved_bytes(layer, settings) for layer in row.layers), False
    if row.kind == "checkpoint":  # it already holds its input
        source = settings.hidden_bytes(row.layers[0].streams * row.layers[0].hidden_size)
        saved = {"layer input": source} if row.layers[-1].has_backward else {}
        largest, again = max(backward_bytes(layer, settings) for layer in kinds) + whole - source, whole
    else:
        (layer,), mixes = row.layers, recomputes(row.recompute, "mhc")
        saved = kept_of_layer(layer, settings, row.recompute)
        largest = backward_bytes(layer, settings, row.recompute)
        again = saved_bytes(layer, settings, "mhc") if mixes else whole
    if row.kind == "mtp":
        saved |= end_activations(model, "mtp", settings)
    # A layer is gathered and reduced together with the parameters that every stage holds.
    everywhere = RankParameters(model.outside_parameters("conditions"))
    held = [held_of_layer(layer, sizes) + everywhere for layer in kinds if row.kind != "mtp"]
    return RowBytes(
        saved,
        for_weight=sum(weight_gradient_bytes(layer, settings) for layer in row.layers),
        num_graphs=sum(map(settings.captures, row.layers)),
        mixed_again=whole - again,
        first_streams=settings.hidden_bytes(model.residual_size) if mixes else 0,
        moments=({LAYER_GRADIENT: largest},),
        gathered=max(map(settings.gathered_layer_bytes, held), default=0),
        reduced=max((layer.trained + layer.trained_expert for layer in held), default=0),
        sizes=frozenset(matrix.size for matrix in matrices if matrix.is_orthogonalised and matrix.trainable),
    )


def _head(model: Model, settings: MemorySettings) -> RowBytes:
    """The head saves its part of one microbatch, because its backward follows its forward."""
    sizes, execution, h = settings.cut, settings.execution, model.hidden_size
    e, tokens, vocabulary = execution.element_bytes, settings.tokens, settings.vocabulary_of(model)
    logits, uses = tokens * vocabulary, 1 + len(model.mtp)
    saved = sum(end_activations(model, "head", settings).values())
    held = held_in_backward(execution.cross_entropy, e, is_torch=settings.fully_shard, tp=sizes.tp)
    moments = [
        {
            "head": uses * saved,
            "logits": int(uses * of_logits * logits),
            "gradient of the logits": int(of_gradients * logits),
            "gradient of the hidden states": of_hidden * tokens * h,
            "gathered sequence": (1 + model.trains("head")) * tokens * h * e if sizes.norm_divisor > 1 else 0,
        }
        for of_logits, of_gradients, of_hidden in held
    ]
    if execution.gradient_placeholders and model.trains("head"):
        moments[-1]["gradient placeholder of the head"] = vocabulary * h * settings.optimizer.weight_bytes
    deferred = (logits * e + settings.hidden_bytes(h)) * model.trains("head")
    return RowBytes(moments=tuple(moments), deferred=settings.deferred_head * deferred)


def _encoder(part: EncoderPart, settings: MemorySettings) -> RowBytes:
    own, num_bytes = of_encoder(part.encoder, settings), encoder_activations(part, settings)
    held, frozen = EncoderPart(part.encoder, part.first, part.first + 1).held(settings.cut)
    row = RowBytes(
        {"encoder": num_bytes} if num_bytes else {},
        gathered=held * settings.optimizer.weight_bytes,
        reduced=held - frozen,
    )
    if own is None:
        return row
    recompute = own.execution.recompute
    backwards = sorted({backward_bytes(layer, own, recompute) for layer in _distinct(part.layers)})
    return replace(
        row,
        for_weight=sum(weight_gradient_bytes(layer, own) for layer in part.layers),
        moments=tuple({LAYER_GRADIENT: num_bytes} for num_bytes in backwards),
    )


def _distinct(layers: Sequence[Layer]) -> list[Layer]:
    return list({id(layer): layer for layer in layers}.values())


def kept_of_layer(layer: Layer, settings: MemorySettings, recompute: Recompute) -> dict[str, int]:
    """Saved bytes per microbatch, by component."""
    kept = layer_activations(layer, settings, recompute)
    extra = settings.states_kept_by_graphs(layer) * settings.hidden_bytes(layer.streams * layer.hidden_size)
    return kept | {"graph buffers": extra} if extra else kept


def saved_bytes(layer: Layer, settings: MemorySettings, recompute: Recompute = "none") -> int:
    """Saved bytes per microbatch without buffers of CUDA graphs."""
    return sum(layer_activations(layer, settings, recompute).values())


def backward_bytes(layer: Layer, settings: MemorySettings, recompute: Recompute = "none") -> int:
    """Bytes beyond those saved by the forward, including a recurrent mixer's states."""
    if not layer.has_backward:
        return 0
    again = 0
    if recompute == BY_OPERATORS:
        whole, kept = layer_activations(layer, settings), layer_activations(layer, settings, recompute)
        again = sum(whole.values()) - sum(size for name, size in kept.items() if name in whole)
        recompute = "none"
    states = settings.tokens * layer.attention.transient_bytes // settings.cut.tp
    return max(layer_backward(layer, settings, recompute), states) + again


def of_encoder(encoder: Encoder, settings: MemorySettings) -> MemorySettings | None:
    """Return the settings of an encoder; None if it encodes nothing."""
    if not encoder.images:
        return None
    execution = settings.execution
    return replace(
        settings,
        micro_batch=settings.micro_batch * encoder.images,
        sequence_length=encoder.rows,
        cut=encoder.cut(settings.cut),
        execution=execution.of_encoder(is_full=encoder.is_divided and execution.recompute == "full"),
    )


def encoder_activations(part: EncoderPart, settings: MemorySettings) -> int:
    encoder, own = part.encoder, of_encoder(part.encoder, settings)
    if own is None:
        return 0
    number, execution, parts = settings.micro_batch * encoder.tokens, own.execution, Counter(part.layers)
    layers = sum(times * saved_bytes(layer, own, execution.recompute) for layer, times in parts.items())
    columns = sum(encoder.merge * matrix.rows * matrix.inputs for matrix in part.embedding if encoder.trains_layers)
    projector = part.own_projector(settings.cut)
    columns += sum(one.rows * one.inputs for one in projector if encoder.trains_projector)
    if encoder.trains_layers or encoder.trains_projector:
        columns += sum(one.rows * one.outputs for one in projector[:-1])
    return layers + round(number * columns * execution.element_bytes)
