"""Moments of a device: a CPU's are the host's, a GPU's events on the stream that is current, tied to the host by `zero`.

An idle GPU clocks at a fifth: before anything is measured it multiplies for a second. Spins are counted without.
"""

import time
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from ppsim.runtime import clock, partitions
from ppsim.runtime.clock import RecordedRange, clock_of
from ppsim.runtime.worker import StepRecorder


class Device:
    """A GPU that takes a millisecond for each kernel; notes what the host asks it, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.kernels, self.host = 0, 100.0
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = device.kernels
                device.asked.append(f"record {self.at}")

            def synchronize(self) -> None:
                device.asked.append(f"wait {self.at}")

            def elapsed_time(self, last: Any) -> float:
                return float(last.at - self.at)

        class Stream:
            def synchronize(self) -> None:
                device.asked.append("wait for the stream")

        monkeypatch.setattr(time, "perf_counter", lambda: self.host)
        for name, stand_in in {
            "Event": Event, "current_stream": Stream,
            "synchronize": lambda where: self.asked.append(f"wait for {where}"),
            "_sleep": lambda cycles: self.asked.append(f"sleep {cycles}"),
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, stand_in)

    def launch(self, name: str = "a kernel") -> str:
        self.kernels += 1
        self.host += 1e-6
        self.asked.append("launch")
        return name


def test_a_gpus_moments_are_events_and_its_seconds_those_of_the_host_since_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To zero it waits for the device and for the event; to read a moment for nothing, which who reads it does."""
    device, clock = Device(monkeypatch), clock_of(torch.device("cuda", 1))
    device.launch()
    clock.zero()
    begin = clock.now()
    device.launch()
    end = clock.now()
    assert device.asked == ["launch", "wait for cuda:1", "record 1", "wait 1", "record 1", "launch", "record 2"]
    device.asked.clear()
    assert clock.seconds(begin) == 100.0 + 1e-6
    assert clock.seconds(end) == pytest.approx(100.0 + 1e-6 + 1e-3, abs=1e-9)
    assert clock.between(begin, end) == 1e-3
    assert device.asked == []
    clock.wait(end)
    assert clock.done() == device.host
    assert device.asked == ["wait 2", "wait for cuda:1"]


def test_a_gpus_work_is_timed_between_two_events_and_waited_for_when_its_seconds_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, clock = Device(monkeypatch), clock_of(torch.device("cuda"))
    done, seconds = clock.time(device.launch, "a product", launch_s=1e-6)
    assert (done, device.asked) == ("a product", ["sleep 3000", "record 0", "launch", "record 1"])
    assert seconds() == 1e-3
    assert device.asked[4:] == ["wait 1"]
    device.asked.clear()
    _, launch_s = clock.time_launch(device.launch)
    assert launch_s() == pytest.approx(1e-6)
    assert device.asked == ["wait for the stream", "launch"]


def test_a_cpus_moments_are_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is done with a piece of work when the host is."""
    device, clock = Device(monkeypatch), clock_of(torch.device("cpu"))
    clock.zero()
    begin = clock.now()
    assert clock.time(device.launch, launch_s=1.0)[1]() == pytest.approx(1e-6)
    assert clock.time_launch(device.launch)[1]() == pytest.approx(1e-6)
    end = clock.now()
    clock.wait(end)
    assert (clock.seconds(begin), clock.seconds(end)) == (100.0, clock.done())
    assert clock.between(begin, end) == end - begin == pytest.approx(2e-6)
    assert device.asked == ["launch", "launch"]


def test_a_recorder_waits_for_each_event_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    device, recorder = Device(monkeypatch), StepRecorder(clock_of(torch.device("cuda")))
    recorder.clock.zero()
    recorder.ranges.append(RecordedRange("0F0", recorder.clock.now()))
    device.launch()
    recorder.ranges[-1].end = recorder.clock.now()
    device.asked.clear()
    (record,) = recorder.take_step()
    assert record["end"] - record["begin"] == pytest.approx(1e-3)
    assert device.asked == ["wait 0", "wait 1"]


class There:
    """A GPU, as far as its kind is asked."""

    type = "cuda"


def test_products_of_random_numbers_go_on_for_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which each round of products takes a quarter of a second."""
    now, random = [0.0], torch.randn(8, 8)
    rounds: list[float] = []

    def synchronize(where: Any) -> None:
        rounds.append(now[0])
        now[0] += 0.25

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(torch, "randn", lambda *sizes, **where: random)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    clock.raise_clock(There())  # type: ignore[arg-type]
    assert rounds == [0.0, 0.25, 0.5, 0.75]
    clock.raise_clock(torch.device("cpu"))
    assert len(rounds) == 4


def test_a_run_of_spin_kernels_reports_their_cycles_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "_cycles_per_s", lambda clock: 1.98e9)
    for name, stand_in in {
        "init": lambda: None, "current_device": lambda: 0, "get_device_name": lambda where: "a GPU",
        "Stream": lambda where: None,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    device = partitions.Streams(2)
    assert device.facts() == {"name": "a GPU", "spin_cycles_per_s": 1.98e9}


class Rising:
    """A clock that rises by a tenth with each spin, until it has its full rate."""

    def __init__(self, begin: float) -> None:
        self.rate, self.spins = begin, 0

    def time(self, work: Any, cycles: int) -> tuple[None, Any]:
        self.rate, self.spins = min(self.rate * 1.1, 2e9), self.spins + 1
        seconds = 5e-6 + cycles / self.rate
        return None, lambda: seconds


def test_cycles_of_spins_are_counted_once_the_clock_has_risen() -> None:
    slow = Rising(0.3e9)
    assert partitions._cycles_per_s(slow) == pytest.approx(2e9)  # type: ignore[arg-type]
    assert slow.spins > 20
    assert partitions._cycles_per_s(steady := Rising(2e9)) == pytest.approx(2e9)  # type: ignore[arg-type]
    assert steady.spins == 10
