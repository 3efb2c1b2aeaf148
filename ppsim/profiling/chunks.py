"""Measure the chunks of a model as a trainer builds them; `ppsim.costs.chunk_costs` derives other chunks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ppsim.base.errors import ConfigError
from ppsim.base.files import to_json, write_atomically
from ppsim.base.version import __version__
from ppsim.costs.chunk_costs import FIRST, KINDS, LAST, cost_key, short_contents, undetermined_parts
from ppsim.costs.utilization import split_ratio
from ppsim.profiling.harness import (
    COSTLY_SPLIT,
    NUM_BLOCKS,
    MeasuredPart,
    count_flops,
    header,
    measured_costs,
    num_inputs,
)
from ppsim.profiling.measure import MeasuredModule, release_memory
from ppsim.profiling.settings import MeasuringSettings, Say


@dataclass(frozen=True)
class LayerWindow:
    """The layers from `start` to before `stop`; `is_first` adds the embedding, `is_last` the head and loss."""

    start: int
    stop: int
    is_first: bool = False
    is_last: bool = False

    @property
    def num_layers(self) -> int:
        return self.stop - self.start

    def contents(self, kinds: str) -> str:
        return FIRST * self.is_first + kinds[self.start : self.stop] + LAST * self.is_last


@dataclass(frozen=True)
class BuiltChunk:
    """A chunk, called with tokens or with hidden states; `loss` computes a scalar from the last chunk's output."""

    module: nn.Module
    layers: Sequence[nn.Module]
    loss: Callable[[Tensor], Tensor] | None = None


class Builder(Protocol):
    """Interface that builds chunks of a model."""

    @property
    def num_layers(self) -> int:
        """Number of layers of the model."""

    def build(self, window: LayerWindow) -> BuiltChunk:
        """Return the chunk as a pipeline would run it."""

    def input_of(self, window: LayerWindow) -> Tensor:
        """Return tokens, or random numbers in place of the previous chunk's output."""

    def forward_flops(self, contents: str) -> float | None:
        """Return the model FLOPs of a chunk's forward, None if ppsim has no formula for the model's layers."""

    def shape(self) -> dict[str, Any]:
        """Return the key of the measurements."""


class TrainersBuilder(Builder, Protocol):
    """A builder that also knows how the trainer divides the layers among stages."""

    def own_split(self) -> list[int]:
        """Return the layers per stage by the trainer's rule."""


def windows_of(counts: Sequence[int]) -> list[LayerWindow]:
    """Return the layers of each stage.

    >>> [window.contents("tttt") for window in windows_of([0, 3, 1])]
    ['E', 'ttt', 'tL']
    """
    ends = [0]
    for count in counts:
        ends.append(ends[-1] + count)
    last = len(counts) - 1
    return [
        LayerWindow(start, stop, is_first=stage == 0, is_last=stage == last)
        for stage, (start, stop) in enumerate(pairwise(ends))
    ]


def profile_chunks(
    builder: Builder,
    splits: Sequence[Sequence[int]],
    settings: MeasuringSettings,
    *,
    model: dict[str, Any],
    notes: list[str],
    say: Say,
) -> dict[str, Any]:
    """Return the profile of every chunk of `splits`, and of more chunks to derive the costs of all other chunks.

    Raises `ConfigError` if the builder builds other layers than requested, for a split without all layers, or if no
    chunks determine the costs of each kind of layer.
    """
    for counts in splits:
        if sum(counts) != builder.num_layers or min(counts) < 0:
            raise ConfigError(
                f"the split {list(counts)} does not hold the {builder.num_layers} layers of the model"
            )
    torch.set_num_threads(settings.num_threads)
    torch.manual_seed(0)
    kinds, shape = kinds_of(builder, splits[0], say=say), builder.shape()
    chunks = []
    for contents, window in _wanted(kinds, splits).items():
        say(f"measuring {short_contents(contents)}")
        chunks.append({"contents": contents, "shape": shape, **_measured(builder, window, contents, settings, say)})
    ratios = [ratio for chunk in chunks if (ratio := split_ratio(chunk)) is not None]
    if ratios and max(ratios) > COSTLY_SPLIT:
        say(f"(I + W) / B is up to {max(ratios):.2f}: splitting the backward costs that much in torch's runtime")
    facts = model | {"num_layers": builder.num_layers, "layer_kinds": kinds}
    content = header(str(model["name"]), facts, settings, notes)
    return content | {"chunks": chunks}


def profile_inside(
    trainer: tuple[str, str],
    builder: TrainersBuilder,
    splits: Sequence[Sequence[int]],
    settings: MeasuringSettings,
    *,
    model: dict[str, Any],
    note: str,
    output: str | Path | None,
    say: Say,
) -> dict[str, Any]:
    """Profile a trainer's own split and `splits`; `trainer` is its name and version."""
    name, version = trainer
    counted = "by torch's counter" if builder.forward_flops("t") is None else "by formula"
    content = profile_chunks(
        builder, [builder.own_split(), *splits], settings,
        model={"name": "chunks" if output is None else Path(output).stem} | model,
        notes=[f"{note} Median and quartiles. FLOPs {counted}."], say=say,
    )  # fmt: skip
    provenance = content["provenance"]
    provenance["source"] = f"ppsim {__version__} inside {name}"
    provenance["software"][name.lower()] = version
    if output is not None:
        write_atomically(output, to_json(content))
    return content


def kinds_of(builder: Builder, counts: Sequence[int], *, say: Say = lambda message: None) -> str:
    """Return one letter per layer, the same letter for layers that are built equally."""
    layers: list[_Layer] = []
    for chunk, window in enumerate(windows_of(counts)):
        say(f"building {window.num_layers} layers from {window.start} on")
        layers += [_Layer.of(layer, chunk) for layer in _built(builder, window).layers]
        release_memory()
    by_structure: dict[str, list[int]] = {}
    for index, layer in enumerate(layers):
        by_structure.setdefault(layer.structure, []).append(index)
    kinds: dict[int, tuple[str, str]] = {}
    for structure, members in by_structure.items():
        names = [name for name in layers[members[0]].attributes if not _is_place(name, members, layers)]
        for index in members:
            kinds[index] = structure, repr([layers[index].attributes[name] for name in names])
    letters: dict[tuple[str, str], str] = {}
    for index in range(len(layers)):
        if kinds[index] not in letters and len(letters) == len(KINDS):
            raise ConfigError(f"the layers are of more than {len(KINDS)} kinds: too many to measure apart")
        letters.setdefault(kinds[index], KINDS[len(letters) % len(KINDS)])
    return "".join(letters[kinds[index]] for index in range(len(layers)))


@dataclass(frozen=True)
class _Layer:
    """Features that distinguish layers."""

    chunk: int
    structure: str
    attributes: dict[str, bool | int | float | str]

    @classmethod
    def of(cls, layer: nn.Module, chunk: int) -> "_Layer":
        plain = {
            f"{name}.{key}": value
            for name, module in layer.named_modules()
            for key, value in sorted(vars(module).items())
            if isinstance(value, bool | int | float | str)
        }
        classes = [(name, type(module).__qualname__) for name, module in layer.named_modules()]
        shapes = [(name, *one.shape, one.dtype, one.requires_grad) for name, one in layer.named_parameters()]
        return cls(chunk, repr((classes, shapes, list(plain))), plain)


def _is_place(name: str, members: Sequence[int], layers: Sequence[_Layer]) -> bool:
    """Return whether an attribute is a layer's position, counted over the model or within each chunk."""
    values = [layers[index].attributes[name] for index in members]
    if len(members) > 1 and len(set(values)) == len(values):
        return True
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return False
    firsts: dict[int, set[int]] = {}
    for index, value in zip(members, values, strict=True):
        firsts.setdefault(layers[index].chunk, set()).add(int(value) - index)
    return all(len(differences) == 1 for differences in firsts.values()) and len(members) > len(firsts)


def _wanted(kinds: str, splits: Sequence[Sequence[int]]) -> dict[str, LayerWindow]:
    wanted: dict[str, LayerWindow] = {}
    for window in [window for counts in splits for window in windows_of(counts)]:
        if contents := window.contents(kinds):
            wanted.setdefault(cost_key(contents), window)
    for window in _more_windows(kinds, longest=max(NUM_BLOCKS, *(max(counts) for counts in splits))):
        missing = undetermined_parts(list(wanted))
        if not missing:
            break
        contents = cost_key(window.contents(kinds))
        if contents not in wanted and set(contents) & set(missing):
            wanted[contents] = window
    if undetermined_parts(list(wanted)):
        raise ConfigError(
            f"the chunks of a model with {len(kinds)} layer{'s' * (len(kinds) > 1)} cannot be told apart: "
            f"each kind of layer has to come twice in a row"
        )
    return wanted


def _more_windows(kinds: str, *, longest: int) -> Iterator[LayerWindow]:
    """Yield single layers, then several equal layers in a row (inner layers first), then both ends of the model."""
    num_layers = len(kinds)
    for count in (1, NUM_BLOCKS, *range(2, longest + 1)):
        starts = range(num_layers - count + 1)
        for start in sorted(starts, key=lambda start: start in (0, num_layers - count)):
            if len(set(kinds[start : start + count])) == 1:
                yield LayerWindow(start, start + count)
    for count in range(1, min(longest, num_layers - 1) + 1):
        yield LayerWindow(num_layers - count, num_layers, is_last=True)
        yield LayerWindow(0, count, is_first=True)


def _built(builder: Builder, window: LayerWindow) -> BuiltChunk:
    built = builder.build(window)
    if len(built.layers) != window.num_layers:
        raise ConfigError(
            f"the model was built with {len(built.layers)} layers where {window.num_layers} were asked for: "
            f"it has to be built from the configuration that it is given"
        )
    return built


def _measured(
    builder: Builder, window: LayerWindow, contents: str, settings: MeasuringSettings, say: Say
) -> dict[str, Any]:
    subject = subject_of(builder, window)
    flops = builder.forward_flops(contents)
    if flops is None:
        flops, _ = count_flops(subject)
    [costs] = measured_costs([MeasuredPart(short_contents(contents), [subject], flops)], settings, say=say)
    if window.is_first:
        costs |= {"backward_input_s": None, "backward_weight_s": None}
        costs["activation_bytes_kept_for_weight"] = costs["activation_bytes"]
    del subject
    release_memory()
    return costs | {"forward_flops": flops}


def subject_of(builder: Builder, window: LayerWindow) -> MeasuredModule:
    built, first = _built(builder, window), builder.input_of(window)
    inputs = [first, *(builder.input_of(window) for _ in range(num_inputs(first.device, first) - 1))]
    return MeasuredModule(built.module, inputs, is_first=window.is_first, loss=built.loss)
