"""Expected time of measuring a shape: its FLOPs at a fraction of the device's peak."""

import time
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import cast

import torch

from ppsim.machine.devices import data_sheet
from ppsim.model.shapes import ModelShape
from ppsim.profiling.harness import GRAPH_WARM_UP, NUM_BLOCKS, forward_flops, type_of
from ppsim.profiling.measure import FEWEST_WARM_UPS, LAUNCHES, LAUNCHES_BEFORE
from ppsim.profiling.model_shapes import of_gpt
from ppsim.profiling.settings import LEAST_REPEATS, MeasurementKey, MeasuringSettings
from ppsim.profiling.timing import PATIENCE
from ppsim.runtime.gpt import Block
from ppsim.runtime.options import DEFAULT_MODEL
from ppsim.runtime.train_config import MODELS
from ppsim.schedule.option_types import Dtype

PART_OF_PEAK = 0.4
"""Assumed fraction of the peak, overall: GEMMs are above it, memory-bound operations below."""

SHAPE_S = {"cuda": 1.5, "cpu": 0.2}
"""Extra seconds per shape: drawing weights, allocating and freeing memory, its share of optimizer steps."""

FACTS_S = {"cuda": 60.0, "cpu": 5.0}
"""Maximum seconds for the device's microbenchmarks."""

_F, _B, _SPLIT = 1.0, 2.0, 2.0
"""FLOPs relative to a forward: F, B, and I + W."""

_AGAIN = (1.0, 8.0)
"""Extra forwards in B and in I + W of recomputed layers: I needs 1, W needs 1 for each of a Llama's 7 matrices."""

_IN_FLIGHT = 2 * _F
_COMPONENTS = 3

_CPU_PASSES = 5
_REFERENCE = "NVIDIA H100 80GB HBM3"


@dataclass(frozen=True)
class DurationEstimate:
    """FLOPs and seconds of measurements."""

    flops: float
    seconds: float


@cache
def _rate_of_cpu(dtype: str, num_threads: int) -> float:
    shape = MODELS[DEFAULT_MODEL]
    key = MeasurementKey(micro_batch=1, sequence_length=shape.sequence_length, dtype=cast(Dtype, dtype))
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    with torch.random.fork_rng(devices=[]):
        layer = Block(shape.layer).to(type_of(key))
        x = torch.randn(1, shape.sequence_length, shape.hidden_size, dtype=type_of(key))
    taken = []
    for _ in range(1 + _CPU_PASSES):
        begin = time.perf_counter()
        layer(x).sum().backward()
        taken.append(time.perf_counter() - begin)
    torch.set_num_threads(before)
    return (_F + _B) * forward_flops(of_gpt(shape), key)[0] / median(taken[1:])


def assumed_rate(device: str, dtype: str, *, num_threads: int) -> tuple[float, str]:
    """Return the FLOP/s to assume, and their source: this CPU as measured now, this GPU, or else an H100.

    A GPU is used only if its data sheet is known.
    """
    if device == "cpu":
        rate = _rate_of_cpu(dtype, num_threads)
        return rate, f"{rate / 1e9:.0f} GFLOP/s, what a layer of {DEFAULT_MODEL} runs at just now"
    dtype = "bfloat16" if dtype == "fp8" else dtype  # the rate of the other operations, which are not in 8 bit
    here = torch.cuda.get_device_name() if torch.cuda.is_available() else _REFERENCE
    sheet, name = data_sheet(here), here
    if sheet is None or sheet.peak(dtype) is None:
        name = _REFERENCE
        sheet = data_sheet(name)
        assert sheet is not None
    peak = sheet.peak(dtype) or sheet.flops_per_s["bfloat16"]
    return PART_OF_PEAK * peak, f"{100 * PART_OF_PEAK:.0f} % of {peak / 1e12:.1f} TFLOP/s ({name}, {sheet.source})"


def estimate_duration(model: ModelShape, key: MeasurementKey, settings: MeasuringSettings) -> DurationEstimate:
    rate, _ = assumed_rate(settings.device, key.dtype, num_threads=settings.num_threads)
    layer, head = forward_flops(model, key)
    again = _AGAIN if key.recompute == "full" else (0.0, 0.0)
    # Layers are measured in sequence, and one alone, which is also used for the launch times.
    flops = _component_flops(NUM_BLOCKS * layer, layer, layer, settings, rate, again)
    flops += _component_flops(head, 0.0, head, settings, rate, (0.0, 0.0))
    if not settings.compiled:
        flops += layer  # to observe its attention
    least_s = _COMPONENTS * settings.least_s * (PATIENCE if settings.device == "cpu" else 1)  # uncertain medians
    return DurationEstimate(flops, max(flops / rate, least_s) + SHAPE_S[settings.device])


def _component_flops(
    row: float, alone: float, launched: float, settings: MeasuringSettings, rate: float, again: tuple[float, float]
) -> float:
    """Return the FLOPs of measuring a component, as `harness.measured_costs` does."""
    both, whole, split = row + alone, _B + again[0], _SPLIT + again[1]
    if settings.cuda_graphs:  # no I and W; one repeat and the bytes without a graph; warm-ups and repeats with it
        eager = _IN_FLIGHT + _F + whole + _F + _F + whole
        return both * (eager + (GRAPH_WARM_UP + settings.num_warm_up + settings.num_repeats) * (_F + whole))
    repeat, repeats = 2 * _F + whole + split, float(settings.num_repeats)
    if settings.component_s is not None:
        repeats = min(repeats, max(LEAST_REPEATS, settings.component_s * rate / (repeat * both)))
    warm_ups = min(settings.num_warm_up, FEWEST_WARM_UPS if repeats <= LEAST_REPEATS else settings.num_warm_up)
    # Trial of the split (one repeat), two forwards in flight, saved bytes.
    flops = row * repeat + both * (_IN_FLIGHT + (warm_ups + repeats) * repeat + _F + split)
    if settings.device != "cpu":  # transient bytes, and launches
        flops += both * (_F + whole) + launched * (_IN_FLIGHT + (LAUNCHES_BEFORE + LAUNCHES) * repeat)
    return flops
