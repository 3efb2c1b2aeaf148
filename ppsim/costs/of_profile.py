"""Profile + placement + layer split → costs per stage."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ppsim.base.errors import ConfigError, ScheduleError
from ppsim.base.units import rate, seconds, size
from ppsim.costs.estimate import assumption
from ppsim.costs.lines import line_through
from ppsim.costs.parts import Estimate
from ppsim.costs.profile import Component, Measurement, Profile, Quantity, Shape, describe
from ppsim.layout.slices import equal_time_slices
from ppsim.layout.split import (
    MegatronSplit,
    Split,
    balanced_split,
    counts_of,
    even_split,
    given_split,
    rule_of,
    why_no_split,
)
from ppsim.schedule.table import Schedule
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.step_costs import StepCosts

BYTES_PER_PARAMETER = 16
"""16-bit weight and gradient, float32 master weight and two Adam moments: 2 + 2 + 4 + 4 + 4."""


@dataclass(frozen=True)
class Assembled:
    """Costs per stage, the layers each stage holds, model FLOPs of a microbatch's forward, and what was assumed.

    `around` is what the step takes beside its pipeline, `parts` the costs of each stage by cause (empty where
    nobody can tell the causes apart), `contents` what each stage holds, as strings of E, t, m and L.
    """

    costs: StageCosts
    split: list[int]
    forward_flops: float
    assumptions: list[str] = field(default_factory=list)
    around: StepCosts = field(default_factory=StepCosts)
    parts: list[Estimate] = field(default_factory=list)
    contents: list[str] = field(default_factory=list)


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
) -> Assembled:
    """Return stage costs for the placement of `schedule`: embedding on the first stage, head and loss on the last.

    Every replica of the model is cut alike: layers and costs have one entry a stage of the model. Slices of a
    microbatch are cut to take the same time (`ppsim.layout.slices`). `shape` defaults to `profile.shape_at()`,
    `num_layers` to its model's; `split` gives the layers of each stage, or how to find them. A hop takes
    `transfer_s`, else its bytes over `bandwidth_bytes_per_s`, else what the profile says; the rest of communication
    is left at its defaults, for the caller to choose. A profile of layers only has free ends. Raises `ConfigError`
    for a split that does not fit, for components that the profile lacks and for a sequence too short for its
    slices, `ScheduleError` for a schedule that splits a backward that cannot be split.
    """
    shape = shape or profile.shape_at()
    layer = profile.find("layer", shape)
    is_only_layers = all(part.component == "layer" for part in profile.measurements)  # a module of one's own
    embedding, head = (_nothing(layer) if is_only_layers else profile.find(component, shape) for component in _ENDS)
    if schedule.splits_backward and (
        whole := [part.component for part in (embedding, layer, head) if is_whole(part)]
    ):
        raise ScheduleError(
            f"{schedule.name} splits the backward, which cannot be done to the {' and the '.join(whole)} of "
            f"profile {profile.name}: only B was measured"
        )
    num_layers = profile.model.num_layers if num_layers is None else num_layers
    num_stages = schedule.num_model_stages
    pp, vpp = schedule.num_ranks, num_stages // schedule.num_ranks
    if isinstance(split, MegatronSplit):
        counts = split.layers_per_stage(num_layers, pp=pp, vpp=vpp)
    else:
        counts = _split(split, num_layers, num_stages, layer, embedding, head)

    def per_stage(value: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        intercept, slope = line_of(layer, value)
        total = intercept * (np.array(counts) > 0) + slope * np.array(counts)
        total[0] += _number(embedding, value)
        total[-1] += _number(head, value)
        return total

    has_full_backward = all(part.backward_s is not None for part in (layer, embedding, head))
    parameters = per_stage("parameters")
    hop_s, hop_assumption = _hop(profile, layer, bandwidth_bytes_per_s) if transfer_s is None else (transfer_s, "")
    costs = StageCosts(
        forward_s=per_stage("forward_s"),
        backward_input_s=per_stage("backward_input_s"),
        backward_weight_s=per_stage("backward_weight_s"),
        backward_s=per_stage("backward_s") if has_full_backward else None,
        activation_bytes=per_stage("activation_bytes"),
        activation_bytes_kept_for_weight=per_stage("activation_bytes_kept_for_weight"),
        transfer_s=hop_s,
        static_bytes=[
            bytes_per_parameter * parameters[schedule.model_stage[schedule.stages_of(rank)]].sum()
            for rank in range(schedule.num_ranks)
        ],
    )
    how = rule_of(split, num_layers, pp=pp, vpp=vpp, balanced="balanced by measured F + B")
    assumptions = [
        f"costs: profile {profile}",
        f"shape: {describe(shape)}",
        f"layers: {num_layers}, split {short_counts(counts)} ({how}), embedding on stage 0, head and loss on the "
        "last",
        f"static memory: {bytes_per_parameter:g} bytes a parameter, no sharding",
    ]
    if origin := assumption(profile, shape):
        assumptions.insert(2, origin)
    if intercept_s := sum(line_of(layer, name)[0] for name in ("forward_s", "backward_s")):
        assumptions.append(f"a stage takes {seconds(intercept_s)} for F and B beside its layers, measured")
    if hop_assumption:
        assumptions.append(hop_assumption)
    if is_only_layers:
        assumptions.append("embedding and head: none in the profile, taken to cost nothing")
    if shape.tp > 1 or shape.cp > 1 or shape.ep > 1:
        cp = f", cp {shape.cp}" if shape.cp > 1 else ""
        assumptions.append(
            f"tp {shape.tp}{cp}, ep {shape.ep}: one rank's part, measured on one device; "
            "no collective is in the times"
        )
    if shape.recompute != "none":
        assumptions.append(f"recomputation: {shape.recompute}, of the layers")
    if schedule.num_replicas > 1:
        assumptions.append(f"replicas: {schedule.num_replicas}, each with all layers, embedding and head")
    if schedule.num_slices > 1:
        tokens = equal_time_slices(
            shape.sequence_length, schedule.num_slices, hidden_size=profile.model.hidden_size
        )
        costs = costs.replace(slice_token_shares=[count / shape.sequence_length for count in tokens])
        assumptions.append(
            f"slices: {short_counts(tokens)} tokens, of equal FLOPs under causal attention, each an equal share of "
            "the microbatch's measured time; that smaller kernels run less well is left out (slices have been "
            "reported to pay from about 4k tokens on), and so are gradients of keys and values"
        )
    contents = ["t" * count for count in counts]
    contents[0], contents[-1] = "E" + contents[0], contents[-1] + "L"
    flops = float(per_stage("forward_flops").sum())
    return Assembled(costs, counts, flops, assumptions, contents=contents)


def _split(
    split: Literal["auto", "even"] | Sequence[int] | Sequence[str],
    num_layers: int,
    num_stages: int,
    layer: Measurement,
    embedding: Measurement,
    head: Measurement,
) -> list[int]:
    if reason := why_no_split(split, num_layers, num_stages):
        raise ConfigError(reason)
    if split == "even":
        return even_split(num_layers, num_stages)
    if split == "auto":
        return balanced_split(
            num_layers, num_stages, layer_s=_work(layer), embedding_s=_work(embedding), head_s=_work(head)
        )
    if any(isinstance(stage, str) and "m" in stage for stage in split):
        raise ConfigError("the layout holds m, but a profile has no layers of multi-token prediction")
    return given_split(counts_of(split), num_layers, num_stages)


_ENDS: tuple[Component, Component] = ("embedding", "head")


def _nothing(layer: Measurement) -> Measurement:
    """A component that costs nothing, at the shape of a layer."""
    free = Quantity(median=0.0, low=0.0, high=0.0)
    return Measurement(
        component="head",
        shape=layer.shape,
        forward_s=free,
        backward_s=free if layer.backward_s else None,
        backward_input_s=free,
        backward_weight_s=free,
        activation_bytes=0,
        activation_bytes_kept_for_weight=0,
        output_bytes=layer.output_bytes,
        parameters=0,
    )


def is_whole(part: Measurement) -> bool:
    """Return whether the backward of a component cannot be split."""
    return part.backward_input_s is None


def line_of(layer: Measurement, name: str) -> tuple[float, float]:
    """Return a and b of the a + n·b that n layers take; a is 0 where none was measured alone, and but for times."""
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
    """A value, 0 where there is none; of a backward that cannot be split all is in I."""
    value = part.backward_s if name == "backward_input_s" and is_whole(part) else getattr(part, name)
    if isinstance(value, Quantity):
        return value.median
    return 0.0 if value is None else float(value)


def _hop(profile: Profile, layer: Measurement, bandwidth_bytes_per_s: float | None) -> tuple[float, str]:
    """What a layer's output takes at the bandwidth, or the measured transfer nearest in size, scaled to it."""
    if bandwidth_bytes_per_s is not None:
        took = layer.output_bytes / bandwidth_bytes_per_s
        at = f"{size(layer.output_bytes)} at {rate(bandwidth_bytes_per_s)}"
        return took, f"transfers: {seconds(took)} a hop, {at}, calibrated, beside the latency of a hop"
    if not profile.transfers:
        return 0.0, "transfers: the profile has none; 0 s assumed (--transfer-ms gives one)"
    wanted = layer.output_bytes
    nearest = min(profile.transfers, key=lambda transfer: abs(transfer.bytes - wanted))
    if nearest.bytes == wanted:
        text = f"transfers: {seconds(nearest.seconds.median)} a hop of {size(wanted)}, measured"
        return nearest.seconds.median, text
    scaled = nearest.seconds.median * wanted / nearest.bytes
    return scaled, f"transfers: {seconds(scaled)} a hop of {size(wanted)}, scaled from {size(nearest.bytes)}"


def short_counts(counts: list[int]) -> str:
    """Return a list of counts with runs written as 4×2.

    >>> short_counts([1, 2, 2, 2, 1])
    '1, 3×2, 1'
    """
    runs: list[list[int]] = []
    for value in counts:
        if runs and runs[-1][1] == value:
            runs[-1][0] += 1
        else:
            runs.append([1, value])
    return ", ".join(str(value) if times == 1 else f"{times}×{value}" for times, value in runs)
