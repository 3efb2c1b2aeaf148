"""Rows of a ledger: the parts of a stage, in order, each under one plan of recomputation."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ppsim.model.architecture import Layer, Model
from ppsim.model.encoder import EncoderPart
from ppsim.model.pipeline_stages import Stage
from ppsim.model.recompute import Recompute, of_layer

RowKind = Literal[
    "stage", "outside layers", "received", "layer", "checkpoint", "mtp", "mtp weights", "embedding", "head",
    "encoder",
]  # fmt: skip
"""
- stage: parameters of every stage; outside layers: costs of every stage that has layers.
- received: earlier residuals that arrive with the input of a stage's first layer.
- checkpoint: layers that save one input together.
- mtp: a layer of multi-token prediction; mtp weights: its weights, once if several such layers share them.
"""


@dataclass(frozen=True, eq=False)
class Row:
    """A part of a model: `layers` of a layer, checkpoint or MTP row, `encoder` of an encoder row."""

    kind: RowKind
    layers: tuple[Layer, ...] = ()
    recompute: Recompute = "none"
    encoder: EncoderPart | None = None

    @property
    def is_passed(self) -> bool:
        """Return whether microbatches pass through the layers of the row."""
        return self.kind in ("layer", "checkpoint", "mtp")

    @property
    def key(self) -> tuple[Any, ...]:
        """Layers and encoders are identified by id, because hashing them is slow."""
        encoder = self.encoder and (id(self.encoder.encoder), self.encoder.first, self.encoder.last)
        return self.kind, tuple(map(id, self.layers)), self.recompute, encoder


def rows_of(model: Model, stage: Stage, recompute: Recompute) -> Iterator[Row]:
    """`recompute` applies to layers without a plan of their own."""
    yield Row("stage")
    if stage.layers:
        yield Row("outside layers")
        if not stage.embedding and stage.layers[0].summed_residuals:
            yield Row("received", stage.layers[:1])
    for layers, plan in stage.planned(recompute):
        if plan.joined:
            yield Row("checkpoint", layers, plan.recompute)
        else:
            yield from (Row("layer", (layer,), plan.recompute) for layer in layers)
    yield from (Row("mtp", (layer,), of_layer(recompute)) for layer in stage.mtp)
    yield from (Row("mtp weights", (layer,)) for layer in model.distinct(stage.mtp))
    if stage.embedding:
        yield Row("embedding")
    if stage.head:
        yield Row("head")
    yield from (Row("encoder", encoder=part) for part in stage.encoder_parts(model))
