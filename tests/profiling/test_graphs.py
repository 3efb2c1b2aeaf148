"""CUDA graphs: what capture finds, on a stand-in for streams and graphs."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from ppsim.base.errors import RunFailed
from ppsim.profiling.harness import replay_graph
from ppsim.profiling.measure import Input, MeasuredModule
from ppsim.profiling.settings import MeasuringSettings
from tests.profiling.once import ONCE


class Stream:
    """Waits for none."""

    def wait_stream(self, other: "Stream") -> None:
        pass


class Watched(MeasuredModule):
    """Remembers its input, and its outputs as far as somebody else does."""

    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), [torch.randn(4, 8)])
        self.x: Input = ()
        self.outputs: list[weakref.ref[Tensor]] = []

    def forward(self, x: Input) -> Tensor:
        self.x, output = x, super().forward(x)
        self.outputs.append(weakref.ref(output))
        return output


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done with graphs, in order."""
    done: list[str] = []

    class Graph:
        def pool(self) -> None:
            return None

        def replay(self) -> None:
            done.append("replay")

    @contextmanager
    def graph(one: Any, pool: Any = None) -> Iterator[None]:
        done.append("capture")
        yield

    for name, stand_in in {
        "Stream": Stream, "current_stream": Stream, "stream": lambda stream: nullcontext(), "CUDAGraph": Graph,
        "graph": graph,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return done


def test_at_capture_nothing_is_left_of_the_warm_up_but_gradients_of_parameters(
    captures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes that an output keeps belong to the stream beside; an input's gradient would be added to in every replay."""
    subject, found = Watched(), []
    capture = torch.cuda.graph

    def looking(one: Any, pool: Any = None) -> Any:
        if not found:
            grads = [parameter.grad is not None for parameter in subject.module.parameters()]
            found.append(([output() for output in subject.outputs], subject.x[0].grad, grads))
        return capture(one, pool)

    monkeypatch.setattr(torch.cuda, "graph", looking)
    seconds = replay_graph(subject, MeasuringSettings(num_repeats=4, num_warm_up=1))
    assert found == [([None] * 3, None, [True, True])]
    assert subject.x[0].grad is None
    assert captures == ["capture", "capture", *["replay"] * 10]
    assert {name: len(samples) for name, samples in seconds.items()} == {"F": 4, "B": 4}


def test_what_cannot_be_captured_is_said_in_the_words_of_torch(
    captures: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(one: Any, pool: Any = None) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    monkeypatch.setattr(torch.cuda, "graph", refuses)
    with pytest.raises(RunFailed, match=r"cannot be captured \(operation not permitted when stream is capturing\)"):
        replay_graph(Watched(), ONCE)
    assert captures == []


def test_the_warm_up_is_on_a_stream_between_two_waits(captures: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream beside waits for the current one, which waits for it before the capture."""
    names = iter(("beside", "current", "current"))

    class Named(Stream):
        def __init__(self) -> None:
            self.name = next(names)

        def wait_stream(self, other: Stream) -> None:
            assert isinstance(other, Named)
            captures.append(f"{self.name} waits for {other.name}")

    subject = Watched()
    pass_once = subject.pass_once
    monkeypatch.setattr(subject, "pass_once", lambda inputs: captures.append("warm-up") or pass_once(inputs))
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Named)
    replay_graph(subject, MeasuringSettings(num_repeats=1, num_warm_up=0))
    assert captures[:6] == [
        "beside waits for current", *["warm-up"] * 3, "current waits for beside", "capture"
    ]  # fmt: skip
    assert all(parameter.grad is None for parameter in subject.module.parameters())
