"""Measured and projected peaks of each rank."""

from typing import Any

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.runs.peaks import PeakError, peak_errors, peaks_in

COSTS = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, activation_bytes=[3.0, 5.0])


def peak(rank: int, activations: Any, allocated: Any, at: str = "0F1") -> dict[str, Any]:
    return {"rank": rank, "peak_activation_bytes": activations, "peak_at": at, "peak_allocated_bytes": allocated}


def test_the_peak_of_a_rank_is_the_allocators_or_that_of_its_activations() -> None:
    timeline = ppsim.simulate(ppsim.build("1f1b", pp=2, microbatches=4), COSTS)
    first, second = peak_errors([peak(0, 7, 8), peak(1, 10, None, "1F0")], timeline)
    assert first == PeakError(0, 8, "0F1", 6.0, "0F1")
    assert second == PeakError(1, 10, "1F0", 5.0, "1F0")
    assert (first.error, second.error) == (6 / 8 - 1, -0.5)
    assert second.to_json() == {
        "rank": 1, "measured_bytes": 10, "measured_at": "1F0", "projected_bytes": 5.0, "projected_at": "1F0",
        "error": -0.5,
    }  # fmt: skip
    assert PeakError(0, 0, "", 6.0, "").error == 0
    assert peak_errors([peak(1, 7, 8), peak(0, 7, 8)], timeline) == []
    assert peak_errors([peak(0, 7, 8)], timeline) == []
    unknown = ppsim.simulate(ppsim.build("1f1b", pp=2, microbatches=4), COSTS.replace(activation_bytes=0.0))
    assert peak_errors([peak(0, 7, 8), peak(1, 10, None)], unknown) == []


def test_the_peaks_of_a_file_are_of_every_rank() -> None:
    assert peaks_in({"memory": {"ranks": [peak("1", 7.9, None, "x")]}}, "r.json") == [peak(1, 7, None, "x")]
    assert peaks_in({}, "r.json") == peaks_in(None, "r.json") == peaks_in({"memory": None}, "r.json") == []
    for memory in ({}, {"ranks": [{}]}, {"ranks": None}, [1], {"ranks": [peak(0, float("inf"), 1)]}):
        with pytest.raises(
            ConfigError, match=r"r.json is wrong: run.memory.ranks does not hold the peak of every rank"
        ):
            peaks_in({"memory": memory}, "r.json")
