"""benchmarks/estimates.py: what --cpu-time measures."""

import importlib.util
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from ppsim.runtime.clock import HostClock, clock_of

PATH = Path(__file__).parents[2] / "benchmarks" / "estimates.py"
spec = importlib.util.spec_from_file_location("benchmarks_estimates", PATH)
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)


def test_the_cpu_time_of_a_thread_that_sleeps_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostClock, "now", HostClock.now)  # to be put back
    clock = clock_of(torch.device("cpu"))
    assert clock.time(time.sleep, 0.1)[1]() >= 0.1
    benchmark.measure_thread_time()
    assert clock.time(time.sleep, 0.1)[1]() < 0.05
