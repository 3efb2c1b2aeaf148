"""Options to recompute and offload the layers of a stage, with the seconds and bytes of each."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from ppsim.base.errors import ConfigError
from ppsim.costs.job import Job
from ppsim.costs.job_plans import recomputing
from ppsim.costs.ledger import Ledger
from ppsim.costs.offload import copy_s, layer_buffer_bytes, offload_of_layer
from ppsim.costs.time_breakdown import work_of
from ppsim.model.architecture import Layer
from ppsim.model.memory_rows import kept_of_layer
from ppsim.model.pipeline_stages import Stage, StagePlan
from ppsim.model.recompute import BY_OPERATORS, MODULES, LayerPlan, Recompute, text_of, words_of_layers

_MOST_POINTS = 128
"""Maximum number of points on a frontier, evenly spaced by index if there are more."""

_FEW_LAYERS = 4
"""Number of layers per rank up to which mixes of two kinds of recomputation are coarse."""

_ACTIVATION_ALONE = "mlp_act"
"""A module that no trainer recomputes alone."""


class LayerOption(NamedTuple):
    """One way to run a layer; `seconds` are of F + B, `buffer_bytes` are for copies."""

    recompute: Recompute
    seconds: float
    saved_bytes: float
    buffer_bytes: float


class FrontierPoint(NamedTuple):
    """The way to run a stage with the fewest seconds of F + B for its saved bytes; `words`: its layers' options."""

    seconds: float
    saved_bytes: float
    words: tuple[Recompute, ...]


@dataclass(frozen=True)
class StageOptions:
    """Recomputation and offloading options for the stages of a job.

    If the job already recomputes something, the only options are this recomputation and "none".
    """

    ledger: Ledger
    splits_backward: bool

    @property
    def job(self) -> Job:
        return self.ledger.job

    @cached_property
    def words(self) -> list[Recompute]:
        given = words_of_layers(self.job.execution.recompute)
        if given != ["none"]:
            return list(dict.fromkeys(["none", *given]))
        if self.job.execution.compile is not None:  # torch's blocks
            options = [] if self.splits_backward else [BY_OPERATORS]
        else:
            alone = [module for module in MODULES if module != _ACTIVATION_ALONE and self._is_possible(module)]
            options = [*alone, *(word for kind in self._kinds for word in self._unions(kind, alone))]
        return [one for one in dict.fromkeys(("none", *options, "full")) if self._is_possible(one)]

    @cached_property
    def _kinds(self) -> list[Layer]:
        return list(dict.fromkeys(self.job.model.layers))

    def _unions(self, layer: Layer, alone: Sequence[Recompute]) -> Iterator[Recompute]:
        """Sets of modules that save the most bytes per second for a layer: the best two, the best three, …."""
        plain = self._way(layer, "none", "")

        def price(word: Recompute) -> float:
            option = self._way(layer, word, "")
            saved = plain.saved_bytes - option.saved_bytes
            return (option.seconds - plain.seconds) / saved if saved > 0 else math.inf

        useful = sorted((word for word in alone if price(word) < math.inf), key=price)
        for number in range(2, len(useful) + 1):
            yield "+".join(sorted(useful[:number], key=list(MODULES).index))

    def _is_possible(self, word: Recompute) -> bool:
        with suppress(ConfigError):
            recomputing(self.job, word)
            return True
        return False

    @property
    def offloads(self) -> list[str]:
        modules = self.job.offload_modules
        return ["", modules] if modules and not self.splits_backward else [""]

    @cached_property
    def _ways(self) -> dict[tuple[Layer, str], list[LayerOption]]:
        return {
            (kind, offload): [self._way(kind, word, offload) for word in self.words]
            for kind in self._kinds
            for offload in self.offloads
        }

    def _way(self, layer: Layer, word: Recompute, offload: str) -> LayerOption:
        """The part of the copies of offloaded tensors that takes longer than the layer's backward is exposed."""
        cost, buffer, exposed_s = self.job.costs.layer(layer, word), 0.0, 0.0
        saved = float(sum(kept_of_layer(layer, self.job.settings, word).values()))
        if offload:
            one, part = offload_of_layer(self.job, layer, word, offload), self._part_gone
            buffer = layer_buffer_bytes(self.job, layer, word, offload)
            exposed_s = max(0.0, copy_s(self.job, part * one.copied) - cost.backward.total_s)
            saved -= part * one.freed
        return LayerOption(word, work_of(cost) + exposed_s, self.job.allocator_slack * saved, buffer)

    @property
    def _part_gone(self) -> float:
        """Fraction of the modules' saved tensors that goes to the host, assumed equal for all layers."""
        return self.job.offload_rules.activation_offload_fraction

    def transients(self, stages: Sequence[Stage]) -> list[tuple[int, frozenset[Recompute]]]:
        """Return possible values of a rank's bytes with no microbatch in flight, ascending.

        Each value has the options of recomputation that need at most these bytes.
        """
        needs = {word: self._static(stages, word) for word in self.useful_words}
        levels = sorted(set(needs.values()))
        return [(level, frozenset(word for word, need in needs.items() if need <= level)) for level in levels]

    @cached_property
    def useful_words(self) -> list[Recompute]:
        """Options that are useful for at least one layer."""
        return list(
            dict.fromkeys(option.recompute for ways in self._ways.values() for option in self._useful(ways))
        )

    def _useful(self, ways: Iterable[LayerOption]) -> list[LayerOption]:
        """Ways on the convex hull of time against memory; with few layers per rank, all that no other way beats."""
        return _hull(ways, is_convex=len(self.job.model.layers) > _FEW_LAYERS * self.job.layout.pp)

    def _static(self, stages: Sequence[Stage], word: Recompute) -> int:
        planned = [
            replace(stage, plan=(LayerPlan(len(stage.layers), word),), offload_modules="") for stage in stages
        ]
        (sums,) = self.ledger.ranks([planned])
        return sums.idle_bytes

    def frontier(self, stage: Stage, allowed: frozenset[Recompute], offload: str) -> list[FrontierPoint]:
        """Return the Pareto-optimal ways to run a stage, fastest first; costs include parts outside layers."""
        key = _held(stage), allowed, offload
        if key not in self._frontiers:
            kinds = {id(layer): layer for layer in stage.layers}
            points = [FrontierPoint(*self._ends(stage), ())]
            for kind, number in Counter(map(id, stage.layers)).items():
                of_kind = self._of_kind(kinds[kind], number, allowed, offload)
                points = _pruned(
                    FrontierPoint(
                        point.seconds + other.seconds,
                        point.saved_bytes + other.saved_bytes,
                        point.words + other.words,
                    )
                    for point in points
                    for other in of_kind
                )
            self._frontiers[key] = points
        return self._frontiers[key]

    @cached_property
    def _frontiers(self) -> dict[object, list[FrontierPoint]]:
        return {}

    def _ends(self, stage: Stage) -> tuple[float, float]:
        """Seconds of F + B and saved bytes of a stage without its layers."""
        job, costs = self.job, self.job.costs
        (bare,) = self.ledger.stages([replace(stage, layers=(), plan=(), offload_modules=None)])
        embedding, head = costs.ends
        seconds = work_of(embedding) * stage.embedding + work_of(head) * stage.head * (1 + len(job.model.mtp))
        seconds += sum(map(work_of, map(costs.mtp, stage.mtp)))
        seconds += sum(map(work_of, map(costs.encoder, stage.encoder_parts(job.model))))
        return seconds + work_of(costs.outside_layers) * bool(stage.layers), bare.saved_bytes

    def _of_kind(
        self, layer: Layer, number: int, allowed: frozenset[Recompute], offload: str
    ) -> list[FrontierPoint]:
        frontier = self._of_kinds.setdefault((id(layer), allowed, offload), [[FrontierPoint(0.0, 0.0, ())]])
        ways = self._useful(option for option in self._ways[layer, offload] if option.recompute in allowed)
        while len(frontier) <= number:
            frontier.append(
                _pruned(
                    FrontierPoint(
                        one.seconds + option.seconds,
                        one.saved_bytes + option.saved_bytes,
                        (*one.words, option.recompute),
                    )
                    for one in frontier[-1]
                    for option in ways
                    if not one.words or _order(option.recompute) >= _order(one.words[-1])
                )
            )
        return frontier[number]

    @cached_property
    def _of_kinds(self) -> dict[object, list[list[FrontierPoint]]]:
        return {}

    def buffers(self, stage: Stage, offload: str) -> float:
        ways = (option for layer in set(stage.layers) for option in self._ways[layer, offload])
        return max((option.buffer_bytes for option in ways), default=0.0)


def plan_of(layers: Sequence[Layer], point: FrontierPoint, offload: str) -> StagePlan:
    runs = [LayerPlan(len(list(same)), word) for word, same in groupby(join_options(layers, point.words))]
    return StagePlan(text_of(runs), offload)


def join_options(layers: Sequence[Any], words: Sequence[Recompute]) -> Iterator[Recompute]:
    """Yield the option of each layer; `words` are grouped by kind of layer.

    >>> dense, experts = object(), object()
    >>> list(join_options([dense, experts, dense], ["full", "none", "moe"]))
    ['full', 'moe', 'none']
    """
    left, begin = {}, 0
    for kind, number in Counter(map(id, layers)).items():
        left[kind] = iter(words[begin : begin + number])
        begin += number
    return (next(left[id(layer)]) for layer in layers)


def _held(stage: Stage) -> tuple[Any, ...]:
    layers = tuple(Counter(map(id, stage.layers)).items())
    return layers, stage.embedding, stage.head, len(stage.mtp), replace(stage, layers=()).key


def _order(word: Recompute) -> tuple[int, str]:
    """Full recomputation comes first, as in Megatron-LM's block, and none last."""
    return {"full": 0, "none": 2}.get(word, 1), word


def _hull(ways: Iterable[LayerOption], *, is_convex: bool = True) -> list[LayerOption]:
    """The ways that no other way beats in seconds and bytes, fastest first; if convex, only those on the hull.

    Over many layers, any other way is beaten by a mix of two on the hull.
    """
    hull: list[LayerOption] = []
    for option in sorted(ways, key=lambda one: (one.seconds, one.saved_bytes)):
        if hull and option.saved_bytes >= hull[-1].saved_bytes:
            continue
        while is_convex and len(hull) > 1 and _price(hull[-2], hull[-1]) >= _price(hull[-1], option):
            hull.pop()
        hull.append(option)
    return hull


def _price(faster: LayerOption, smaller: LayerOption) -> float:
    return (smaller.seconds - faster.seconds) / (faster.saved_bytes - smaller.saved_bytes)


def _pruned(points: Iterable[FrontierPoint]) -> list[FrontierPoint]:
    kept: list[FrontierPoint] = []
    for point in sorted(points):
        if not kept or point.saved_bytes < kept[-1].saved_bytes:
            kept.append(point)
    if len(kept) > _MOST_POINTS:
        step = (len(kept) - 1) / (_MOST_POINTS - 1)
        kept = [kept[round(step * at)] for at in range(_MOST_POINTS)]
    return kept
