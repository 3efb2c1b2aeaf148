"""Expected seconds of measurements: FLOPs of every pass that is run, at a rate."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim.profiling import duration_estimate
from ppsim.profiling.duration_estimate import _component_flops, assumed_rate, estimate_duration
from ppsim.profiling.settings import MeasurementKey, MeasuringSettings

SETTINGS = MeasuringSettings(num_repeats=20, num_warm_up=4)
KEY = MeasurementKey(micro_batch=1, sequence_length=64, dtype="bfloat16")


@pytest.mark.parametrize(
    ("changes", "again", "flops"),
    [
        # A repeat is F, F, B and I + W: 6. Trial of 30; two forwards, 4 + 20 repeats, F and a split of 40.
        ({}, (0, 0), 30 * 6 + 40 * (2 + 24 * 6 + 1 + 2)),
        ({"device": "cuda"}, (0, 0), 30 * 6 + 40 * (2 + 24 * 6 + 1 + 2) + 40 * 3 + 7 * (2 + 6 * 6)),
        ({}, (1, 8), 30 * 15 + 40 * (2 + 24 * 15 + 1 + 10)),
        ({"component_s": 2.0}, (0, 0), 30 * 6 + 40 * (2 + 12 * 6 + 1 + 2)),  # 8 repeats in 2 s
        ({"component_s": 1.25}, (0, 0), 30 * 6 + 40 * (2 + 7 * 6 + 1 + 2)),  # 5 repeats, and 2 to warm up
        ({"component_s": 0.1}, (0, 0), 30 * 6 + 40 * (2 + 7 * 6 + 1 + 2)),
        ({"component_s": 0.1, "num_warm_up": 1}, (0, 0), 30 * 6 + 40 * (2 + 6 * 6 + 1 + 2)),
        ({"component_s": 99.0}, (0, 0), 30 * 6 + 40 * (2 + 24 * 6 + 1 + 2)),
        ({"cuda_graphs": True}, (0, 0), 40 * (9 + (3 + 4 + 20) * 3)),
        ({"cuda_graphs": True}, (1, 8), 40 * (11 + (3 + 4 + 20) * 4)),
    ],
)
def test_the_flops_of_a_component_are_those_of_all_its_passes(
    changes: dict[str, Any], again: tuple[float, float], flops: float
) -> None:
    settings = replace(SETTINGS, **changes)
    assert _component_flops(30.0, 10.0, 7.0, settings, 960.0, again) == flops


@pytest.mark.parametrize(
    ("changes", "key", "least_s"),
    [
        ({}, {}, 0.2),
        ({"compiled": True}, {}, 0.2),
        ({"device": "cuda"}, {}, 1.5),
        ({}, {"recompute": "full"}, 0.2),
        ({"least_s": 1000.0}, {}, 0.2 + 3 * 4 * 1000),
        ({"least_s": 1000.0, "device": "cuda"}, {}, 1.5 + 3 * 1000),
    ],
)
def test_a_shape_takes_its_flops_or_the_least_of_three_components(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], key: dict[str, Any], least_s: float
) -> None:
    monkeypatch.setattr(duration_estimate, "forward_flops", lambda model, key: (5.0, 11.0))
    monkeypatch.setattr(duration_estimate, "assumed_rate", lambda device, dtype, num_threads: (100.0, ""))
    settings, model = replace(SETTINGS, **changes), object()
    found = estimate_duration(model, replace(KEY, **key), settings)  # type: ignore[arg-type]
    again = (1.0, 8.0) if key else (0.0, 0.0)
    expected = _component_flops(4 * 5.0, 5.0, 5.0, settings, 100.0, again)
    expected += _component_flops(11.0, 0.0, 11.0, settings, 100.0, (0.0, 0.0)) + 5.0 * (not settings.compiled)
    assert found.flops == pytest.approx(expected)
    assert found.seconds == pytest.approx(max(least_s, expected / 100 + (0.2 if settings.device == "cpu" else 1.5)))


@pytest.mark.parametrize(
    ("dtype", "tflops"), [("bfloat16", 989.4), ("fp8", 989.4), ("float32", None), ("float16", 989.4)]
)
def test_an_unknown_gpu_is_taken_as_an_h100_at_two_fifths_of_its_peak(dtype: str, tflops: float | None) -> None:
    rate, source = assumed_rate("cuda", dtype, num_threads=1)
    if tflops is not None:
        assert rate == pytest.approx(0.4 * tflops * 1e12)
        assert source.startswith("40 % of 989.4 TFLOP/s (NVIDIA H100 80GB HBM3, ")
    assert rate < 0.4 * 989.5e12


def test_a_cpu_has_the_rate_of_a_layer_just_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duration_estimate, "_rate_of_cpu", lambda dtype, num_threads: 7e9 * num_threads)
    rate, source = assumed_rate("cpu", "float32", num_threads=3)
    assert (rate, source.partition(",")[0]) == (21e9, "21 GFLOP/s")


def test_constants_of_the_estimate() -> None:
    assert duration_estimate.SHAPE_S == {"cuda": 1.5, "cpu": 0.2}
    assert duration_estimate.FACTS_S == {"cuda": 60.0, "cpu": 5.0}
    assert (duration_estimate.PART_OF_PEAK, duration_estimate._CPU_PASSES) == (0.4, 5)
