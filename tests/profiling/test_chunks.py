"""Which chunks of a model are built and measured, and which of its layers are taken to be alike."""

from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import validated
from ppsim.costs.chunk_costs import undetermined_parts
from ppsim.costs.profile import Profile
from ppsim.profiling import chunks
from ppsim.profiling.chunks import BuiltChunk, LayerWindow, kinds_of, profile_chunks
from ppsim.profiling.settings import MeasuringSettings
from tests.defaults import number_defaults

WIDTH = 8


class Layer(nn.Module):
    """A linear layer with a number of its place, and an attribute that has no parameter."""

    def __init__(self, number: int, place: int, window: float, width: int) -> None:
        super().__init__()
        self.number, self.window = number, window
        self.scale = 1.0 / (place + 1)
        self.first, self.second = nn.Linear(WIDTH, width), nn.Linear(width, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(self.first(x))


@dataclass
class Stack:
    """A builder of such layers between an embedding and a head; `built` are the windows that were asked for."""

    windows: list[int] | list[float]
    widths: list[int] = field(default_factory=list)
    counts_from_chunk: bool = False
    spare: int = 0
    built: list[LayerWindow] = field(default_factory=list)

    @property
    def num_layers(self) -> int:
        return len(self.windows)

    def build(self, window: LayerWindow) -> BuiltChunk:
        self.built.append(window)
        widths = self.widths or [WIDTH] * self.num_layers
        first = window.start if self.counts_from_chunk else 0
        layers = [
            Layer(index - first, index, self.windows[index], widths[index])
            for index in range(window.start, window.stop + self.spare)
        ]
        ends = [nn.Embedding(16, WIDTH)] if window.is_first else []
        module = nn.Sequential(*ends, *layers, *([nn.Linear(WIDTH, 16)] if window.is_last else []))
        return BuiltChunk(module, layers, torch.mean if window.is_last else None)

    def input_of(self, window: LayerWindow) -> torch.Tensor:
        return torch.randint(0, 16, (2, 4)) if window.is_first else torch.randn(2, 4, WIDTH)

    def shape(self) -> dict[str, Any]:
        return {"micro_batch": 2, "sequence_length": 4, "dtype": "float32"}

    def forward_flops(self, contents: str) -> float | None:
        return None


@pytest.mark.parametrize(
    ("stack", "counts", "kinds"),
    [
        (Stack([0] * 6), [2, 2, 2], "tttttt"),
        (Stack([0] * 6, counts_from_chunk=True), [2, 2, 2], "tttttt"),
        (Stack([4, 4, 0, 4, 4, 0]), [2, 2, 2], "ttuttu"),
        (Stack([0] * 6, widths=[16, 8, 8, 8, 8, 8]), [3, 3], "tuuuuu"),
        (Stack([0] * 4, widths=[16, 8, 8, 16]), [1, 1, 1, 1], "tuut"),
        (Stack([0.5, 0.5, 0.1, 0.5]), [2, 2], "ttut"),
        (Stack([True, True, False, True]), [2, 2], "ttut"),
        (Stack([1, 2, 1, 2]), [1, 1, 1, 1], "tutu"),
    ],
)
def test_layers_are_alike_where_all_but_their_place_is(stack, counts, kinds):
    """A number that rises, and what is another in every layer, say where; a window that comes again says what.

    So do a switch, a share and a number in chunks of one layer each, which cannot be seen to rise.
    """
    assert kinds_of(stack, counts) == kinds


def measured(stack, *splits):
    settings = MeasuringSettings(num_repeats=2, num_warm_up=0)
    model = {"name": "stack", "hidden_size": WIDTH, "vocab_size": 16}
    return profile_chunks(stack, splits, settings, model=model, notes=[], say=lambda message: None)


@pytest.mark.parametrize("counts", [[1], [1, 1], [2, 1], [0, 3, 0], [2, 2, 2], [6, 1, 1], [3, 0]])
def test_whatever_the_pipeline_its_chunks_tell_every_other(counts):
    if sum(counts) == 1:
        with pytest.raises(ConfigError, match="of a model with 1 layer cannot be told apart"):
            measured(Stack([0]), counts)
        return
    content = measured(Stack([0] * sum(counts)), counts)
    assert undetermined_parts([chunk["contents"] for chunk in content["chunks"]]) == []
    layer = validated(Profile, content, "test").measurements[1]
    assert (layer.parameters, layer.activation_bytes) == (144, 2 * 2 * 4 * WIDTH * 4)
    assert layer.forward_flops == 2 * 2 * (2 * 4) * WIDTH * WIDTH


def test_a_chunk_that_comes_again_is_measured_once_and_let_go_of():
    stack = Stack([0] * 8)
    content = measured(stack, [2, 2, 2, 2], [1, 3, 3, 1])
    contents = [chunk["contents"] for chunk in content["chunks"]]
    assert sorted(contents) == sorted(["Ett", "tt", "ttL", "Et", "ttt", "tL"])
    assert len(stack.built) == 4 + len(contents)
    assert all(chunk["backward_input_s"] is None for chunk in content["chunks"] if chunk["contents"][0] == "E")


def test_a_split_of_other_layers_and_a_builder_that_does_not_listen_are_refused():
    with pytest.raises(ConfigError, match=r"the split \[2, 3\] does not hold the 6 layers"):
        measured(Stack([0] * 6), [3, 3], [2, 3])
    with pytest.raises(ConfigError, match="built with 4 layers where 3 were asked for"):
        measured(Stack([0] * 6 + [0], spare=1), [3, 4])


@pytest.mark.parametrize(
    ("ratios", "largest"), [({}, None), ({"tt": 1.3}, None), ({"tt": 1.31, "ttL": 1.46}, "1.46")]
)
def test_the_costliest_split_of_the_backward_is_said_above_1_3(ratios, largest, monkeypatch):
    """A chunk without a ratio, here the first one, is left out."""
    monkeypatch.setattr(chunks, "split_ratio", lambda chunk: ratios.get(chunk["contents"]))
    said: list[str] = []
    settings = MeasuringSettings(num_repeats=2, num_warm_up=0)
    profile_chunks(Stack([0] * 6), [[2, 2, 2]], settings, model={"name": "stack"}, notes=[], say=said.append)
    about = [line for line in said if "(I + W) / B" in line]
    assert len(about) == (largest is not None)
    assert all(largest in line for line in about)
    assert [line for line in said if "building" in line] == [
        f"building 2 layers from {start} on" for start in (0, 2, 4)
    ]
    assert sum("measuring" in line for line in said) >= 3


def test_single_layers_and_pairs_come_first_inner_ones_before_those_at_the_ends():
    found = [(one.start, one.stop, one.is_first, one.is_last) for one in chunks._more_windows("tttu", longest=3)]
    inner = [(1, 2), (2, 3), (0, 1), (3, 4)], [(1, 3), (0, 2)], [(0, 3)]
    ends = [end for count in (1, 2, 3) for end in ((4 - count, 4, False, True), (0, count, True, False))]
    expected = [(*span, False, False) for spans in inner for span in spans] + ends
    assert list(dict.fromkeys(found)) == expected


def test_a_chunk_has_three_inputs_and_the_first_one_does_its_backward_at_once() -> None:
    stack, drawn = Stack([0] * 4), []
    input_of = stack.input_of
    stack.input_of = lambda window: drawn.append(window) or input_of(window)  # type: ignore[method-assign]
    for window in (LayerWindow(0, 2, is_first=True), LayerWindow(2, 4, is_last=True)):
        subject = chunks.subject_of(stack, window)
        assert (subject.is_first, subject.loss is not None) == (window.is_first, window.is_last)
        assert drawn == [window] * 3
        assert len({id(tensor) for (tensor,) in subject._inputs}) == 3
        drawn.clear()


def test_weights_are_drawn_alike_and_threads_are_those_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[str, int]] = []
    for name in ("manual_seed", "set_num_threads"):
        monkeypatch.setattr(torch, name, lambda number, name=name: called.append((name, number)))
    monkeypatch.setattr(chunks, "_wanted", lambda kinds, splits: {})
    settings = MeasuringSettings(num_threads=3)
    profile_chunks(Stack([0] * 2), [[2]], settings, model={"name": "s"}, notes=[], say=lambda message: None)
    assert called == [("set_num_threads", 3), ("manual_seed", 0)]


@pytest.mark.parametrize("flops", [None, 77.0])
def test_the_first_chunk_has_no_backward_of_its_inputs_and_flops_are_by_formula_or_counted(
    flops: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, released = Stack([0] * 4), []
    stack.forward_flops = lambda contents: flops  # type: ignore[method-assign]
    monkeypatch.setattr(chunks, "release_memory", lambda: released.append(True))
    costs = {
        "backward_input_s": 1.0,
        "backward_weight_s": 2.0,
        "activation_bytes": 5,
        "activation_bytes_kept_for_weight": 3,
    }
    monkeypatch.setattr(chunks, "measured_costs", lambda parts, settings, say: [dict(costs)])
    counted = 2 * 2 * (2 * 4) * WIDTH * WIDTH
    for window, expected in (
        (LayerWindow(0, 1, is_first=True), [None, None, 5, 5]), (LayerWindow(1, 2), [1.0, 2.0, 5, 3]),
    ):  # fmt: skip
        measured_costs = chunks._measured(stack, window, "t", MeasuringSettings(), lambda message: None)
        assert measured_costs == {**dict(zip(costs, expected, strict=True)), "forward_flops": flops or counted}
    assert len(released) == 2


def test_more_kinds_of_layers_than_letters_are_refused() -> None:
    number = len(chunks.KINDS)
    stack = Stack([0] * number, widths=list(range(1, number + 1)))
    assert kinds_of(stack, [number]) == chunks.KINDS
    with pytest.raises(ConfigError, match=f"the layers are of more than {number} kinds"):
        kinds_of(Stack([0] * (number + 1), widths=list(range(1, number + 2))), [number + 1])


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(chunks) == {"LayerWindow": {"is_first": False, "is_last": False}}
