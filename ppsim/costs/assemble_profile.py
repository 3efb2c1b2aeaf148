"""Costs per stage from a profile, the placement of stages and a layer split."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.base.units import percent, rate, seconds, size
from ppsim.costs.affine_layer_cost import line_through
from ppsim.costs.chunk_costs import LAYER, ChunkNumbers, short_contents, stages_of
from ppsim.costs.profile import Measurement, Profile, Quantity, Shape, describe
from ppsim.costs.stage_cost_set import (
    LayerCosts,
    StageCostSet,
    short_counts,
    slice_costs,
    stages_of_ranks,
    values_of_ranks,
)
from ppsim.parallel.layer_balance import balance_ranks
from ppsim.parallel.layer_partition import MegatronSplit, Split, balanced_split, layer_split, rule_of, split_layers
from ppsim.schedule.table import Schedule
from ppsim.simulation.stage_costs import StageCosts

BYTES_PER_PARAMETER = 16
"""16-bit weight and gradient, float32 master weight and two Adam moments: 2 + 2 + 4 + 4 + 4."""


@dataclass(frozen=True)
class _Components:
    embedding: Measurement
    layer: Measurement
    head: Measurement

    @property
    def all(self) -> tuple[Measurement, Measurement, Measurement]:
        return self.embedding, self.layer, self.head

    def require_layers(self, num_layers: int) -> None:
        """Accept any number of layers, since all are equal."""

    def layer_seconds(self, num_layers: int) -> list[float]:
        return [_work(self.layer)] * num_layers

    def end_seconds(self) -> tuple[float, float]:
        return _work(self.embedding), _work(self.head)

    def balanced(self, num_layers: int, schedule: Schedule) -> list[int]:
        layers, (embedding_s, head_s) = self.layer_seconds(num_layers), self.end_seconds()
        num_stages = schedule.num_model_stages
        if len(set(layers)) == 1:
            counts = balanced_split(
                num_layers, num_stages, layer_s=layers[0], embedding_s=embedding_s, head_s=head_s
            )
        else:
            counts = layer_split(layers, num_stages, embedding_s=embedding_s, head_s=head_s)
        return balance_ranks(counts, layers, (embedding_s, head_s), stages_of_ranks(schedule))

    def said(self, counts: Sequence[int]) -> Iterator[str]:
        if intercept_s := sum(line_of(self.layer, name)[0] for name in ("forward_s", "backward_s")):
            yield f"a stage takes {seconds(intercept_s)} for F and B beside its layers, measured"

    def per_stage(self, value: str, counts: Sequence[int]) -> NDArray[np.float64]:
        intercept, slope = line_of(self.layer, value)
        total: NDArray[np.float64] = intercept * (np.array(counts) > 0) + slope * np.array(counts)
        total[0] += _number(self.embedding, value)
        total[-1] += _number(self.head, value)
        return total


@dataclass(frozen=True)
class _Chunks(_Components):
    """A model measured in chunks: stages are measured chunks, or linear combinations of measured chunks."""

    numbers: ChunkNumbers
    kinds: str
    name: str

    def require_layers(self, num_layers: int) -> None:
        if len(set(self.kinds)) > 1 and num_layers != len(self.kinds):
            raise ConfigError(
                f"profile {self.name} has layers of {len(set(self.kinds))} kinds ({self.kinds}): it cannot tell "
                f"what {num_layers} layers would be (it has {len(self.kinds)})"
            )

    def layer_seconds(self, num_layers: int) -> list[float]:
        if len(set(self.kinds)) == 1:
            return super().layer_seconds(num_layers)
        of_kind = {kind: self._layer_work(kind) for kind in set(self.kinds)}
        return [of_kind[kind] for kind in self.kinds]

    def said(self, counts: Sequence[int]) -> Iterator[str]:
        stages = self._stages(counts)
        made_up = sorted({stage for stage in stages if not self.numbers.is_measured(stage)}, key=stages.index)
        num_measured = sum(map(self.numbers.is_measured, stages))
        rest = f", {', '.join(map(short_contents, made_up))} made up of others" if made_up else ""
        yield f"chunks: {num_measured} of {len(stages)} stages measured as they are{rest}"

    def per_stage(self, value: str, counts: Sequence[int]) -> NDArray[np.float64]:
        return np.array([self.numbers.number(value, stage) for stage in self._stages(counts)])

    def _stages(self, counts: Sequence[int]) -> list[str]:
        kinds = self.kinds[0] * sum(counts) if len(set(self.kinds)) == 1 else self.kinds
        return stages_of(kinds, counts)

    def _layer_work(self, kind: str) -> float:
        """F + B that one more layer adds or, if noise makes that negative, F + B of a layer alone."""
        alone = self._work(kind)
        more = self._work(2 * kind) - alone
        return more if more > 0 else alone

    def _work(self, contents: str) -> float:
        return self.numbers.number("forward_s", contents) + self.numbers.number("backward_s", contents)


def assemble(
    profile: Profile,
    schedule: Schedule,
    *,
    shape: Shape | None = None,
    num_layers: int | None = None,
    split: Split = "auto",
    transfer_s: float | None = None,
    bandwidth_bytes_per_s: float | None = None,
    bytes_per_parameter: float = BYTES_PER_PARAMETER,
) -> StageCostSet:
    """Return stage costs for the placement of `schedule`.

    Embedding and head are free if the profile has layers only. A P2P transfer takes `transfer_s`, else its bytes
    over `bandwidth_bytes_per_s`, else the profile's measured time. Raises `ConfigError` for a split, a component or
    a sequence that does not fit, `ScheduleError` if the schedule splits a backward that cannot be split.
    """
    shape = shape or profile.shape_at()
    parts = _components(profile, shape)
    if schedule.splits_backward and (unsplit := [part.component for part in parts.all if is_whole(part)]):
        raise ScheduleError(
            f"{schedule.name} splits the backward, which cannot be done to the {' and the '.join(unsplit)} of "
            f"profile {profile.name}: only B was measured"
        )
    num_layers = profile.model.num_layers if num_layers is None else num_layers
    parts.require_layers(num_layers)
    counts = _counts(split, num_layers, schedule, parts)
    pp, vpp = schedule.num_ranks, len(counts) // schedule.num_ranks
    how = rule_of(split, num_layers, pp=pp, vpp=vpp)
    hop_s, hop = _hop(profile, parts.layer, bandwidth_bytes_per_s) if transfer_s is None else (transfer_s, "")
    parameters = parts.per_stage("parameters", counts).tolist()
    assumptions = [
        f"costs: profile {profile}",
        f"shape: {describe(shape)}",
        *([origin] if (origin := assumption(profile, shape)) else []),
        f"layers: {num_layers}, split {short_counts(counts)} ({how}), embedding on stage 0, head and loss on the "
        "last",
        f"static memory: {bytes_per_parameter:g} bytes per parameter, no sharding",
        *parts.said(counts),
        *_more_assumptions(profile, schedule, shape, hop),
    ]
    static = [bytes_per_parameter * sum(of_rank) for of_rank in values_of_ranks(schedule, parameters)]
    costs = _stage_costs(parts, counts, hop_s).replace(static_bytes=static)
    costs, calibration = _with_calibration_run(profile, schedule, costs)
    costs, slices = slice_costs(costs, schedule, shape.sequence_length, profile.model.hidden_size, _SLICE_TIME)
    flops = float(parts.per_stage("forward_flops", counts).sum())
    contents = stages_of(num_layers * LAYER, counts)
    return StageCostSet(costs, counts, flops, assumptions + calibration + slices, contents=contents)


def layer_costs_of(profile: Profile, shape: Shape, num_layers: int) -> LayerCosts:
    parts = _components(profile, shape)
    layer, names = parts.layer, ("forward_s", "backward_s", "backward_input_s", "backward_weight_s")
    fixed, passes = np.array([line_of(layer, name) for name in names]).T
    for one in (fixed, passes):
        one[1] = one[1] or one[2] + one[3]
    return LayerCosts(
        work_s=np.array(parts.layer_seconds(num_layers)),
        passes_s=passes,
        exposed_s=passes,
        static_bytes=BYTES_PER_PARAMETER * layer.parameters,
        activation_bytes=float(layer.activation_bytes),
        fixed=float(fixed[:2].sum() / (passes[:2].sum() or 1.0)),
    )


def assumption(profile: Profile, shape: Shape) -> str | None:
    parts = [part for part in profile.measurements if part.shape == shape and part.estimated_from]
    if not parts:
        return None
    origins = dict.fromkeys(describe(one) for part in parts for one in part.estimated_from)
    return (
        f"{', '.join(part.component for part in parts)} at {describe(shape)}: estimated from those measured at "
        f"{' and at '.join(origins)}, by device facts"
    )


def threads_in_words(number: int) -> str:
    """Return the threads per process in words.

    >>> threads_in_words(1)
    '1 thread each'
    """
    return f"{number} thread{'s' * (number > 1)} each"


def _with_calibration_run(profile: Profile, schedule: Schedule, costs: StageCosts) -> tuple[StageCosts, list[str]]:
    """Apply the slowdown of the calibration run if its number of processes is the schedule's number of ranks."""
    if (rehearsal := profile.rehearsal) is None:
        return costs, []
    there = f"{rehearsal.num_processes} processes at once, {threads_in_words(rehearsal.num_threads)}"
    if schedule.num_ranks != rehearsal.num_processes:
        return costs, [
            f"calibration run with {there}: not applied, because the schedule has {schedule.num_ranks} ranks"
        ]
    slowed = {
        name: np.multiply(value, rehearsal.slowdown).tolist()
        for name in ("forward_s", "backward_s", "backward_input_s", "backward_weight_s")
        if (value := getattr(costs, name)) is not None
    }
    factor = f"{rehearsal.slowdown:.2f} times as long as with one process"
    spread = f"half of its steps took within {percent(rehearsal.step_spread)} of each other"
    if rehearsal.reference_s:
        spread += f" at equal speed; the machine speed varied by {percent(rehearsal.pace_spread)}"
    if rehearsal.reference_ends_s is None:
        spread += "; measured by an earlier version: profile again, so that ppsim compare knows the machine speed"
    return costs.replace(**slowed), [f"calibration run with {there}: actions take {factor}; {spread}"]


_SLICE_TIME = (
    "measured time; that smaller kernels run less well is left out (slices have been reported to pay from about 4k "
    "tokens on), and so are gradients of keys and values"
)


def _components(profile: Profile, shape: Shape) -> _Components:
    """Raises `ConfigError` if a component is missing; a user's own module needs no embedding and no head."""
    layer = profile.find("layer", shape)
    if _is_only_layers(profile):
        return _Components(_nothing(layer), layer, _nothing(layer))
    embedding, head = profile.find("embedding", shape), profile.find("head", shape)
    if chunks := [asdict(chunk) for chunk in profile.chunks if chunk.shape == shape]:
        kinds = profile.model.layer_kinds or profile.model.num_layers * LAYER
        return _Chunks(embedding, layer, head, ChunkNumbers(chunks), kinds, profile.name)
    return _Components(embedding, layer, head)


def _is_only_layers(profile: Profile) -> bool:
    return all(part.component == "layer" for part in profile.measurements)


def _stage_costs(parts: _Components, counts: Sequence[int], hop_s: float) -> StageCosts:
    has_full_backward = all(part.backward_s is not None for part in parts.all)
    return StageCosts(
        forward_s=parts.per_stage("forward_s", counts),
        backward_input_s=parts.per_stage("backward_input_s", counts),
        backward_weight_s=parts.per_stage("backward_weight_s", counts),
        backward_s=parts.per_stage("backward_s", counts) if has_full_backward else None,
        activation_bytes=parts.per_stage("activation_bytes", counts),
        activation_bytes_kept_for_weight=parts.per_stage("activation_bytes_kept_for_weight", counts),
        transfer_s=hop_s,
    )


def _more_assumptions(profile: Profile, schedule: Schedule, shape: Shape, hop: str) -> Iterator[str]:
    if hop:
        yield hop
    if _is_only_layers(profile):
        yield "embedding and head: none in the profile, taken to cost nothing"
    if shape.tp > 1 or shape.cp > 1 or shape.ep > 1:
        cp = f", cp {shape.cp}" if shape.cp > 1 else ""
        yield (
            f"tp {shape.tp}{cp}, ep {shape.ep}: one rank's part, measured on one device; "
            "no collective is in the times"
        )
    if shape.recompute != "none":
        yield f"recomputation: {shape.recompute}, of the layers"
    if schedule.num_replicas > 1:
        yield f"replicas: {schedule.num_replicas}, each with all layers, embedding and head"


def _counts(split: Split, num_layers: int, schedule: Schedule, parts: _Components) -> list[int]:
    if not isinstance(split, str | MegatronSplit) and any("m" in one for one in split if isinstance(one, str)):
        raise ConfigError("the layout holds m, but a profile has no layers of multi-token prediction")
    num_stages = schedule.num_model_stages

    def balanced() -> list[int]:
        return parts.balanced(num_layers, schedule)

    return split_layers(split, num_layers, num_stages, pp=schedule.num_ranks, balanced=balanced)


def _nothing(layer: Measurement) -> Measurement:
    free = Quantity(median=0.0, low=0.0, high=0.0)
    return Measurement(
        component="head",
        shape=layer.shape,
        forward_s=free,
        backward_s=free,
        backward_input_s=free,
        backward_weight_s=free,
        activation_bytes=0,
        activation_bytes_kept_for_weight=0,
        output_bytes=layer.output_bytes,
        parameters=0,
    )


def is_whole(part: Measurement) -> bool:
    return part.backward_input_s is None


def line_of(layer: Measurement, name: str) -> tuple[float, float]:
    """Return a and b of a + n·b for n layers; a is 0 if no layer was measured alone."""
    mean, alone = _number(layer, name), layer.alone
    if alone is None or not name.endswith("_s"):
        return 0.0, mean
    one = alone.backward_s if name == "backward_input_s" and is_whole(layer) else getattr(alone, name)
    return (0.0, mean) if one is None else line_through(one.median, mean, alone.num_in_row)


def _work(part: Measurement) -> float:
    if part.backward_s:
        return part.forward_s.median + part.backward_s.median
    return sum(_number(part, name) for name in ("forward_s", "backward_input_s", "backward_weight_s"))


def _number(part: Measurement, name: str) -> float:
    """A backward that cannot be split counts as I."""
    value = part.backward_s if name == "backward_input_s" and is_whole(part) else getattr(part, name)
    if isinstance(value, Quantity):
        return value.median
    return 0.0 if value is None else float(value)


def _hop(profile: Profile, layer: Measurement, bandwidth_bytes_per_s: float | None) -> tuple[float, str]:
    """Seconds to send a layer's output: by bandwidth, or scaled from the measured transfer nearest in size."""
    if bandwidth_bytes_per_s is not None:
        took = layer.output_bytes / bandwidth_bytes_per_s
        at = f"{size(layer.output_bytes)} at {rate(bandwidth_bytes_per_s)}"
        return took, f"transfers: {seconds(took)} per P2P transfer, {at}, calibrated, with a latency of its own"
    if not profile.transfers:
        return 0.0, "transfers: the profile has none; 0 s assumed (--transfer-ms gives one)"
    wanted = layer.output_bytes
    nearest = min(profile.transfers, key=lambda transfer: abs(transfer.bytes - wanted))
    if nearest.bytes == wanted:
        text = f"transfers: {seconds(nearest.seconds.median)} per P2P transfer of {size(wanted)}, measured"
        return nearest.seconds.median, text
    scaled = nearest.seconds.median * wanted / nearest.bytes
    return (
        scaled,
        f"transfers: {seconds(scaled)} per P2P transfer of {size(wanted)}, scaled from {size(nearest.bytes)}",
    )
