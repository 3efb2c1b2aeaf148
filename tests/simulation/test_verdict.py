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


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (MemoryVerdict(1, 61.0 * GIB, MemoryLimit.given(60 * GIB)), "DOES NOT FIT: rank 1 needs 61.0 GiB, 60.0 GiB usable"),
        (MemoryVerdict(2, 59.0 * GIB, MemoryLimit.given(60 * GIB)), "fits: rank 2 needs 59.0 GiB, 60.0 GiB usable"),
        (MemoryVerdict(0, 1.0 * GIB, None), "fit unknown: rank 0 needs 1.00 GiB (--memory-limit sets the usable memory)"),
        (
            MemoryVerdict(0, 1.0 * GIB, MemoryLimit.given(60 * GIB), activations_only=True),
            "fit unknown: rank 0 needs 1.00 GiB for activations alone, 60.0 GiB usable",
        ),
        (
            MemoryVerdict(0, 61.0 * GIB, MemoryLimit.given(60 * GIB), assumed_gpus=1, find_gpus=lambda: 8),
            "on 1 GPU (assumed): needs 61.0 of 60.0 GiB; fits on 8: give --gpus",
        ),
        (
            MemoryVerdict(0, 61.0 * GIB, MemoryLimit.given(60 * GIB), assumed_gpus=2),
            "on 2 GPUs (assumed): needs 61.0 of 60.0 GiB; give --gpus, and larger --tp or --pp",
        ),
    ],
)  # fmt: skip
def test_a_verdict_is_a_sentence(verdict: MemoryVerdict, text: str) -> None:
    assert str(verdict) == text


def test_a_larger_number_of_gpus_is_sought_only_for_an_assumed_number_that_is_too_small() -> None:
    limit = MemoryLimit.given(60 * GIB)

    def fits_on(peak_gib: float, assumed: int | None) -> int | None:
        return MemoryVerdict(0, peak_gib * GIB, limit, assumed_gpus=assumed, find_gpus=lambda: 8).fits_on

    assert (fits_on(61, 1), fits_on(59, 1), fits_on(61, None)) == (8, None, None)


def test_a_verdict_names_four_ignored_options_and_has_all_in_json() -> None:
    limit = MemoryLimit.of_device(79.2 * GIB)
    verdict = MemoryVerdict(3, 50.0 * GIB, limit, ignored_memory_options=("a", "b", "c", "d", "e"))
    assert verdict.notes == ["ignored options that change memory: a, b, c, d, …"]
    few = MemoryVerdict(3, 50.0 * GIB, limit, ignored_memory_options=("a", "b", "c", "d"))
    assert few.notes == ["ignored options that change memory: a, b, c, d"]
    assert verdict.to_json() == {
        "rank": 3, "peak_bytes": 50.0 * GIB, "limit_bytes": limit.usable_bytes, "tight_above_bytes": limit.safe_bytes,
        "ignored_memory_options": ["a", "b", "c", "d", "e"], "assumed_gpus": None, "fits_on_gpus": None,
        "activations_only": False, "headroom_bytes": limit.usable_bytes - 50 * GIB,
    }  # fmt: skip
    unknown = MemoryVerdict(0, 1.0, None).to_json()
    assert [unknown[name] for name in ("limit_bytes", "tight_above_bytes", "headroom_bytes")] == [None] * 3
