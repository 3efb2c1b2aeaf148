"""An idle GPU clocks at a fifth: before anything is calibrated or measured it multiplies for a second."""

import time
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from ppsim.runtime import clock
from ppsim.runtime.partitions import cuda


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


def test_cycles_are_counted_at_the_clock_of_a_run_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def calibrated() -> float:
        order.append("cycles")
        return 1.98e9

    monkeypatch.setattr(cuda, "raise_clock", lambda where: order.append("clock"))
    monkeypatch.setattr(cuda, "_cycles_per_s", calibrated)
    monkeypatch.setattr(torch, "zeros", lambda *sizes, **where: None)
    for name, stand_in in {
        "init": lambda: None, "current_device": lambda: 0, "get_device_name": lambda where: "a GPU",
        "Stream": lambda where: None,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    device = cuda.Streams(2, spinning=True)
    assert order == ["clock", "cycles"]
    assert device.facts() == {"name": "a GPU", "spin_cycles_per_s": 1.98e9}
