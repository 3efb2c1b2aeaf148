"""How long a shape will take to measure, before it is: by FLOPs, at a part of the device's peak."""

from dataclasses import dataclass

import torch

from ppsim.machine.devices import data_sheet
from ppsim.model.shapes import ModelShape
from ppsim.profiling.graphs import NUM_WARM_UP as GRAPH_WARM_UP
from ppsim.profiling.harness import NUM_BLOCKS, forward_flops
from ppsim.profiling.measure import LAUNCHES, LAUNCHES_BEFORE
from ppsim.profiling.settings import LEAST_REPEATS, Key, Settings

PART_OF_PEAK = 0.4
"""What is reckoned with, all in all: products run at more, what moves memory at less."""

SHAPE_S = {"cuda": 1.5, "cpu": 0.2}
"""What a shape takes beside: weights drawn, memory allocated and given back, its share of optimizer steps."""

FACTS_S = {"cuda": 60.0, "cpu": 5.0}
"""What the facts of a device take at most."""

_F, _B, _SPLIT = 1.0, 2.0, 2.0
"""Forwards' worth of FLOPs: F, B, and I with W."""

_AGAIN = (1.0, 8.0)
"""Forwards more in B, and in I with W, of recomputed layers: W does it for each of a Llama's seven matrices."""

_IN_FLIGHT = 2 * _F

_CPU_FLOPS_PER_S = 5e10
_REFERENCE = "NVIDIA H100 80GB HBM3"


@dataclass(frozen=True)
class Expected:
    """FLOPs and seconds of measuring one shape, or several."""

    flops: float
    seconds: float


def assumed_rate(device: str, dtype: str) -> tuple[float, str]:
    """Return the FLOP/s to reckon with, and what they are: of this device, of an H100 where there is none."""
    if device == "cpu":
        return _CPU_FLOPS_PER_S, f"{_CPU_FLOPS_PER_S / 1e9:.0f} GFLOP/s, a guess for a CPU"
    dtype = "bfloat16" if dtype == "fp8" else dtype  # by what is measured beside products of 8 bit
    here = torch.cuda.get_device_name() if torch.cuda.is_available() else _REFERENCE
    sheet, name = data_sheet(here), here
    if sheet is None or sheet.peak(dtype) is None:
        name = _REFERENCE
        sheet = data_sheet(name)
        assert sheet is not None
    peak = sheet.peak(dtype) or sheet.flops_per_s["bfloat16"]
    return PART_OF_PEAK * peak, f"{100 * PART_OF_PEAK:.0f} % of {peak / 1e12:.1f} TFLOP/s ({name}, {sheet.source})"


def expected(model: ModelShape, key: Key, settings: Settings) -> Expected:
    """Return what measuring a model at a key takes, repeats bounded by `settings.component_s`."""
    rate, _ = assumed_rate(settings.device, key.dtype)
    layer, head = forward_flops(model, key)
    again = _AGAIN if key.recompute == "full" else (0.0, 0.0)
    # Layers are measured in a row, and one of them alone, which is the one that is launched.
    flops = _component_flops(NUM_BLOCKS * layer, layer, layer, settings, rate, again)
    flops += _component_flops(head, 0.0, head, settings, rate, (0.0, 0.0))
    if not settings.compiled:
        flops += layer  # to see its attention
    return Expected(flops, flops / rate + SHAPE_S[settings.device])


def _component_flops(
    row: float, alone: float, launched: float, settings: Settings, rate: float, again: tuple[float, float]
) -> float:
    """FLOPs of all that is done with a component, whose forwards take these: what `harness._measured` calls."""
    both, whole, split = row + alone, _B + again[0], _SPLIT + again[1]
    if settings.cuda_graphs:  # no I and W; without a graph a repeat and the bytes, and three warm-ups
        eager = _IN_FLIGHT + _F + whole + _F + _F + whole
        return both * (eager + (GRAPH_WARM_UP + settings.num_warm_up + settings.num_repeats) * (_F + whole))
    repeat, repeats = 2 * _F + whole + split, float(settings.num_repeats)
    if settings.component_s is not None:
        repeats = min(repeats, max(LEAST_REPEATS, settings.component_s * rate / (repeat * both)))
    # A trial of the split, which is a repeat; two forwards in flight; bytes kept and held.
    flops = row * repeat + both * (_IN_FLIGHT + (settings.num_warm_up + repeats) * repeat + _F + split)
    if settings.device != "cpu":  # transient bytes, and launches
        flops += both * (_F + whole) + launched * (_IN_FLIGHT + (LAUNCHES_BEFORE + LAUNCHES) * repeat)
    return flops
