"""The margin in bytes, and the four verdicts."""

import pytest

from ppsim.machine.cluster_files import load_cluster, packaged_clusters
from ppsim.simulation import verdict as verdict_module
from ppsim.simulation.verdict import MemoryLimit, MemoryVerdict

GIB = 2**30


@pytest.mark.parametrize(
    ("total", "fragments", "words"),
    [
        (79.2, "", {71.1: "fits", 71.3: "fits tightly", 74.1: "fits tightly", 74.3: "does not fit"}),
        (79.2, "experts", {59.3: "fits", 59.5: "fits tightly", 74.1: "fits tightly", 74.3: "does not fit"}),
        (267.69, "", {259.6: "fits", 259.8: "fits tightly", 262.6: "fits tightly", 262.8: "does not fit"}),
        (267.69, "CUDA graphs", {200.7: "fits", 200.8: "fits tightly", 262.6: "fits tightly"}),
        (24.0, "", {21.3: "fits", 21.8: "fits tightly", 22.9: "does not fit"}),
    ],
)
def test_the_margin_is_in_bytes_and_larger_if_memory_fragments(
    total: float, fragments: str, words: dict[float, str]
) -> None:
    limit = MemoryLimit.of_device(total * GIB, fragments=fragments)
    assert {peak: limit.word(peak * GIB) for peak in words} == words


def test_a_given_limit_is_used_as_it_is() -> None:
    limit = MemoryLimit.given(60 * GIB)
    assert [limit.word(peak * GIB) for peak in (59.9, 60, 60.1)] == ["fits", "fits", "does not fit"]


def test_fits_is_true_for_both_verdicts_that_fit_and_none_if_unknown() -> None:
    limit = MemoryLimit.of_device(79.2 * GIB)
    found = {peak: MemoryVerdict(0, peak * GIB, limit) for peak in (50, 73, 90)}
    assert [(one.word, one.fits) for one in found.values()] == [
        ("fits", True), ("fits tightly", True), ("does not fit", False)
    ]  # fmt: skip
    assert found[50].notes == found[90].notes == []
    assert found[73].notes == [
        "less than 8.00 of 79.2 GiB is free", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps"
    ]  # fmt: skip
    assert MemoryVerdict(0, 90.0 * GIB, limit, assumed_gpus=8).fits is None
    assert MemoryVerdict(0, 50.0 * GIB, limit, assumed_gpus=8).fits is True
    assert MemoryVerdict(0, 1.0, None).word == MemoryVerdict(0, 1.0, limit, activations_only=True).word == "unknown"


REPORTED_GIB = {
    "dgx-a100": 79.2, "dgx-h100": 79.2, "dgx-h200": 139.8, "dgx-b200": 178.35, "dgx-b300": 267.69,
    "gb200-nvl72": 184.31, "gb300-nvl72": 276.5, "mi300x-8": 191.98, "mi325x-8": 255.98, "mi355x-8": 287.98,
}  # fmt: skip
"""Total capacity in torch's out-of-memory messages."""


@pytest.mark.parametrize("name", REPORTED_GIB)
def test_the_memory_of_a_device_is_what_torch_reports(name: str) -> None:
    assert name in packaged_clusters()
    assert round(load_cluster(name).device.memory_bytes / GIB, 2) == REPORTED_GIB[name]


def test_a_verdict_keeps_5_to_8_gib_free() -> None:
    assert (verdict_module._MARGIN, verdict_module._SAFE_MARGIN) == (5 * 2**30, 8 * 2**30)
    assert (verdict_module._MOST_NAMED, verdict_module._SMALLEST_BYTES) == (4, 80e9)
    assert verdict_module._FRAGMENTING_SHARE == 0.75
