"""Measuring in a partition while the others are as busy."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

import ppsim
from ppsim.cli import main
from ppsim.profiling import harness
from ppsim.profiling.beside import in_partition
from ppsim.profiling.measure import Module
from ppsim.profiling.models import MODELS
from ppsim.profiling.settings import Key, Settings

ranks: list[str] = []


class Noting(nn.Module):
    """Notes the thread that calls it; the third call that is not from the main thread may fail."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.linear, self.fails, self.calls = nn.Linear(4, 4), fails, 0

    def forward(self, x: Tensor) -> Tensor:
        ranks.append(threading.current_thread().name)
        self.calls += 1
        if self.fails and self.calls == 3 and ranks[-1].startswith("rank "):
            raise ValueError("out of breath")
        output: Tensor = self.linear(x)
        return output


def measured_within(num_partitions: int, *, fails: bool = False) -> list[str]:
    """The threads that worked while this one waited for ten calls of theirs."""
    ranks.clear()
    subject = Module(Noting(fails), [torch.randn(2, 4)])
    with in_partition(subject, "cpu", num_partitions, num_threads=1):
        while num_partitions > 1 and len(ranks) < (3 if fails else 10):
            threading.Event().wait(0.001)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]
    return ranks


def test_every_other_partition_does_the_same_work() -> None:
    assert set(measured_within(3)) == {"rank 1", "rank 2"}
    assert measured_within(1) == []


def test_beside_whatever_is_measured_the_others_do_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a pipeline's ranks one has the head: beside four of it, a head took longer than it does in a run."""
    busy_with = []

    @contextmanager
    def noted(subject: Module, *arguments: object, **settings: object) -> Iterator[None]:
        busy_with.append(type(subject.module))
        yield

    monkeypatch.setattr(harness, "in_partition", noted)
    key = Key(1, 16, "float32")
    harness.measure_shape(MODELS["nano"], key, Settings(num_repeats=4, num_warm_up=1, num_partitions=2))
    assert busy_with == [nn.Sequential] * 3


def test_what_a_neighbour_fails_with_is_raised() -> None:
    with pytest.raises(ValueError, match="out of breath"):
        measured_within(2, fails=True)


def profiled(folder: Path, *arguments: str) -> Any:
    path = folder / "p.json"
    command = ["profile", "--model", "nano", "--seq-len", "16", "--repeats", "2", *arguments, "-o", str(path)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    return json.loads(path.read_text())


def test_the_profile_says_that_it_is_of_a_partition_and_holds_the_same_bytes(tmp_path: Path) -> None:
    whole, part = profiled(tmp_path, "--start-over"), profiled(tmp_path, "--partitions", "2", "--start-over")
    assert "num_partitions" not in whole["provenance"]["device"]
    assert part["provenance"]["device"]["num_partitions"] == 2
    for one, other in zip(whole["measurements"], part["measurements"], strict=True):
        assert one["activation_bytes"] == other["activation_bytes"]
    assert ppsim.load_profile(str(tmp_path / "p.json")).provenance.device.num_partitions == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--partitions", "0"], "--partitions must be at least 1: got 0"),
        (["--partitions", "2", "--module", "a.b:c"], "--module is measured on the whole device"),
    ],
)
def test_wrong_numbers_of_partitions_are_refused(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["profile", *arguments, "-o", str(tmp_path / "p.json")])
    assert result.exit_code == 2
    assert sentence in result.stderr
