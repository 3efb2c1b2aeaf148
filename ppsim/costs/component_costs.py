"""Seconds of the parts of a model for one microbatch: the columns of a ledger that are not bytes."""

from collections import Counter
from dataclasses import replace
from functools import cached_property
from typing import Any

from ppsim.costs.analytic import end_estimate, layer_estimate
from ppsim.costs.encoder_costs import encoder_estimate
from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.pair_overlap import LayerTimes
from ppsim.costs.profile import Profile, Shape
from ppsim.costs.profile_costs import ProfileCosts
from ppsim.costs.time_breakdown import NO_COST, CostEstimate, work_of
from ppsim.model.architecture import End, Layer, Model
from ppsim.model.encoder import EncoderPart
from ppsim.model.recompute import Recompute, of_layer
from ppsim.model.stage_rows import Row


class ComponentCosts:
    """F, I, W and B of each part of a model, each estimated once; a profile's times are used if they match.

    >>> import ppsim
    >>> job = ppsim.job(model="llama3-8b", gpus=8, pp=2)
    >>> [cost.forward.total_s > 0 for cost in job.costs.layers().values()]
    [True]
    """

    def __init__(
        self,
        model: Model,
        context: ExecutionContext,
        *,
        micro_batch: int,
        sequence_length: int,
        profile: Profile | None = None,
    ) -> None:
        self.model, self.place, self.profile = model, context, profile
        self.recompute = of_layer(context.execution.recompute)
        self._batch = {"micro_batch": micro_batch, "sequence_length": sequence_length}
        self._layers: dict[Recompute, dict[Layer, tuple[CostEstimate, CostEstimate]]] = {}
        self._measured: dict[Recompute, ProfileCosts] = {}
        self._ends: dict[End, CostEstimate] = {}
        self._encoders: dict[tuple[int, int, int], CostEstimate] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_encoders": {}}  # found by ids, which belong to a process

    def measured(self, recompute: Recompute | None = None) -> ProfileCosts | None:
        """Return the profile's costs for layers with this recomputation, by default the job's."""
        if self.profile is None:
            return None
        recompute = recompute or self.recompute
        if recompute not in self._measured:
            self._measured[recompute] = ProfileCosts.at(self.profile, self._shape(recompute))
        return self._measured[recompute]

    def _shape(self, recompute: Recompute) -> Shape:
        execution, layout = self.place.execution, self.place.layout
        return Shape(
            **self._batch,
            dtype=execution.dtype,
            tp=layout.tp,
            cp=layout.cp,
            ep=layout.ep,
            recompute=recompute,
        )

    def layers(self, recompute: Recompute | None = None) -> dict[Layer, CostEstimate]:
        """Costs of one more layer on a stage, for each kind of layer; `recompute` is by default the job's."""
        return {layer: cost for layer, (cost, _) in self._with_fixed(recompute or self.recompute).items()}

    def layer(self, layer: Layer, recompute: Recompute | None = None) -> CostEstimate:
        return self._with_fixed(recompute or self.recompute)[layer][0]

    def _with_fixed(self, recompute: Recompute) -> dict[Layer, tuple[CostEstimate, CostEstimate]]:
        """Return the costs of each kind of layer, and the measured fixed costs of a stage that has layers."""
        if recompute not in self._layers:
            context = replace(self.place, execution=replace(self.place.execution, recompute=recompute))
            measured, fixed = self.measured(recompute), {}
            for layer in dict.fromkeys((*self.model.layers, *self.model.mtp)):
                estimate = layer_estimate(layer, context, **self._batch)
                # a profile's experts are divided by tp
                is_known = not layer.is_moe or context.layout.expert_tp == context.layout.tp
                fixed[layer] = measured.layer(layer, estimate) if measured and is_known else (estimate, NO_COST)
            self._layers[recompute] = fixed
        return self._layers[recompute]

    def mtp(self, layer: Layer) -> CostEstimate:
        """Costs of a multi-token prediction layer, without its use of the head."""
        return self.layer(layer) + self._end("mtp") + self._end("embedding")

    def _end(self, end: End) -> CostEstimate:
        if end not in self._ends:
            self._ends[end] = end_estimate(self.model, end, self.place, **self._batch)
        return self._ends[end]

    @cached_property
    def outside_layers(self) -> CostEstimate:
        """Costs of a stage besides its layers: conditional embedders, and a fixed cost (the largest measured)."""
        measured = max((fixed for _, fixed in self._with_fixed(self.recompute).values()), key=work_of)
        return measured + self._end("conditions")

    def encoder(self, part: EncoderPart) -> CostEstimate:
        key = id(part.encoder), part.first, part.last  # hashing a whole encoder takes long
        if key not in self._encoders:
            self._encoders[key] = encoder_estimate(part, self.place, micro_batch=self._batch["micro_batch"])
        return self._encoders[key]

    @cached_property
    def encoders(self) -> CostEstimate:
        """Costs of all encoders."""
        return sum(map(self.encoder, self.model.encoder_parts), NO_COST)

    @cached_property
    def ends(self) -> tuple[CostEstimate, CostEstimate]:
        """Costs of embedding and head."""
        embedding, head = self._end("embedding"), self._end("head")
        if measured := self.measured():
            embedding = measured.end("embedding", self.model, embedding)
            head = measured.end("head", self.model, head)
        return embedding, head

    def in_order(self, row: Row) -> list[CostEstimate]:
        """Return the costs of each layer of a row, without the head that multi-token prediction uses."""
        if row.kind == "mtp":
            return [self.mtp(row.layers[0])]
        return [self.layer(layer, row.recompute) for layer in row.layers if row.is_passed]

    def times_of(self, row: Row) -> list[LayerTimes | None]:
        """Return the times of each layer of a row; None for layers without experts."""
        return [self.layer(layer, row.recompute).times for layer in row.layers if row.is_passed]

    @cached_property
    def bases(self) -> list[tuple[str, str]]:
        """The source of the costs of each part."""
        kinds = list(self.layers().values())
        names = ["layer"] if len(kinds) == 1 else [f"layers of kind {kind}" for kind in range(1, len(kinds) + 1)]
        parts = [*zip(names, kinds, strict=True), *zip(("embedding", "head"), self.ends, strict=True)]
        return [(name, part.basis) for name, part in parts]

    @cached_property
    def shares(self) -> dict[str, float]:
        """Fractions of the whole model's F + B by source."""
        embedding, head = self.ends
        whole = embedding + head * (1 + len(self.model.mtp)) + self.encoders
        for layer, number in Counter(self.model.layers).items():
            whole += self.layer(layer) * number
        for layer, number in Counter(self.model.mtp).items():
            whole += self.mtp(layer) * number
        seconds = {
            "profile": whole.known.profile_s,
            "table": whole.known.table_s,
            "links": whole.forward.communication_s + whole.backward.communication_s,
        }
        total = work_of(whole)
        shares = {name: value / total for name, value in seconds.items()}
        return {**shares, "data sheet": max(0.0, 1 - sum(shares.values()))}
