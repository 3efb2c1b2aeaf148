"""Time that a measurement has left, in proportion to its work."""

import pytest

from ppsim.profiling import measuring_progress
from ppsim.profiling.measuring_progress import MeasuringProgress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(measuring_progress.time, "monotonic", lambda: now[0])
    return now


def test_what_is_left_takes_as_long_as_what_is_done(clock: list[float]) -> None:
    progress = MeasuringProgress(10.0)
    assert (progress.left_s, progress.left) == (None, "")
    clock[0] += 6.0
    progress.done(2.0)
    progress.done(1.0)
    assert progress.elapsed_s == 6.0
    assert progress.left_s == 14.0  # 7 of 3 per 6 s
    progress.dropped(4.0)
    assert progress.left_s == 6.0
    assert progress.left == ", about 6.00 s left"


def test_work_is_stopped_that_would_end_after_the_limit_and_all_after_it(clock: list[float]) -> None:
    progress = MeasuringProgress(10.0, time_limit_s=10.0)
    assert progress.has_time_for(1e9)  # nothing is known yet
    clock[0] += 4.0
    progress.done(2.0)
    assert progress.has_time_for(3.0)  # ends after 10 s
    assert not progress.has_time_for(3.5)
    assert progress.is_stopped
    assert not progress.has_time_for(0.1)
    without = MeasuringProgress(10.0)
    without.done(1.0)
    assert without.has_time_for(1e9)
    assert not without.is_stopped


def test_work_of_unknown_speed_is_expected_to_take_no_time(clock: list[float]) -> None:
    progress = MeasuringProgress(10.0, time_limit_s=0.5)
    assert progress.has_time_for(10.0)
    clock[0] += 0.5
    assert progress.has_time_for(10.0), "as long as nothing is done"
    progress.done(5.0)
    assert not progress.has_time_for(1.0)
