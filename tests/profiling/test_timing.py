"""Repeats of a measurement, and errors of a device in words."""

import gc
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

from ppsim.profiling import timing
from ppsim.profiling import timing as timing_module
from ppsim.profiling.timing import (
    are_enough,
    first_sentence,
    is_certain,
    is_out_of_memory,
    sample_times,
    without_interruptions,
)

CERTAIN, UNSURE = [1.0] * 4, [1.0, 2.0] * 2


def test_a_median_is_certain_by_its_quartiles() -> None:
    assert (is_certain([1.0] * 3), is_certain(CERTAIN), is_certain(UNSURE)) == (False, True, False)
    # Standard error of the median: 1.2533 · IQR / 1.349 / √n. For 100 samples half of 1 and half of 1 + x, IQR = x.
    assert is_certain([1.0, 1.05] * 50)
    assert not is_certain([1.0, 1.06] * 50)


def test_enough_is_a_certain_median_or_four_times_the_least_time() -> None:
    assert not are_enough([CERTAIN], 0.9, 1.0)
    assert are_enough([CERTAIN], 1.0, 1.0)
    assert not are_enough([CERTAIN, UNSURE], 3.9, 1.0)
    assert are_enough([CERTAIN, UNSURE], 4.0, 1.0)


def test_samples_are_taken_in_rounds_until_they_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.5, 1.0])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(clock))
    number = [0]

    def repeat() -> dict[str, Callable[[], float]]:
        number[0] += 1
        return {"F": lambda: 1.0, "B": lambda: 2.0}

    assert sample_times(repeat, num_repeats=4, least_s=1.0) == {"F": [1.0] * 8, "B": [2.0] * 8}
    assert number == [8]


@pytest.mark.parametrize("is_enabled", [True, False])
def test_no_garbage_is_collected_within_a_measurement(is_enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "keep_freed_memory", lambda: None)
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        with without_interruptions():
            assert not gc.isenabled()
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_garbage_is_collected_and_memory_kept_before_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(timing, "keep_freed_memory", lambda: calls.append("memory"))
    monkeypatch.setattr(timing.gc, "collect", lambda: calls.append("garbage"))
    with without_interruptions():
        assert calls == ["memory", "garbage"]


def test_errors_of_a_device_are_a_sentence() -> None:
    assert is_out_of_memory(RuntimeError("[enforce fail] can't allocate memory: you tried"))
    assert is_out_of_memory(RuntimeError("CUDA out of memory. Tried"))
    assert not is_out_of_memory(RuntimeError("illegal access"))
    outer = RuntimeError("a long report")
    outer.__cause__ = ValueError("\n  the cause. More of it\nand more.")
    assert first_sentence(outer) == "the cause"
    assert first_sentence(ValueError()) == "ValueError"
    assert first_sentence(ValueError("ends.")) == "ends"


def test_samples_are_repeated_until_they_are_close() -> None:
    assert (timing_module._CLOSE_ENOUGH, timing_module.PATIENCE) == (0.005, 4)
