"""Profile of a user's own model or layer, built by a function that is named on the command line."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor, nn

from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import validated
from ppsim.costs.profile import Profile
from ppsim.parallel.layer_partition import even_split
from ppsim.profiling.calibration_run import rehearsal_of
from ppsim.profiling.chunks import BuiltChunk, LayerWindow, profile_chunks, subject_of
from ppsim.profiling.harness import (
    NUM_BLOCKS,
    MeasuredPart,
    count_flops,
    header,
    measured_components,
    profile_module,
    shape_of,
)
from ppsim.profiling.settings import MeasurementKey, MeasuringSettings, Say
from ppsim.profiling.timing import is_out_of_memory
from ppsim.runtime.train_config import UserModel
from ppsim.runtime.user_model import UserFunction, UserModelParts, build_user_model, check_user_model, function_of
from ppsim.schedule.option_types import Dtype

SEED = 0
"""Seed of the weights and of the first measured microbatch."""

FIRST = LayerWindow(0, 0, is_first=True)
"""The first stage without layers."""


@dataclass(frozen=True)
class UserChunkBuilder:
    """Builds any window of layers of a user's model."""

    function: UserFunction
    num_layers: int
    micro_batch: int
    device: str

    def build(self, window: LayerWindow) -> BuiltChunk:
        before = [] if window.is_first else [window.start]
        behind = [] if window.is_last else [self.num_layers - window.stop]
        parts = build_user_model(self.function, [*before, window.num_layers, *behind], seed=SEED)
        [module] = [one.to(self.device) for stage, one in enumerate(parts.stages()) if stage == len(before)]
        loss: Callable[[Tensor], Tensor] | None = None
        if window.is_last:
            targets = parts.rows(self.micro_batch, SEED)[1].to(self.device)

            def loss(output: Tensor) -> Tensor:
                return parts.loss(output, targets)

        return BuiltChunk(module, self._layers[window.start : window.stop], loss)

    def input_of(self, window: LayerWindow) -> Tensor:
        if window.is_first:
            return self._made.rows(self.micro_batch, SEED)[0].to(self.device)
        if window.start not in self._sent:
            first = self.build(LayerWindow(0, window.start, is_first=True)).module
            with torch.no_grad():
                self._sent[window.start] = first(self.input_of(FIRST))
        return torch.randn_like(self._sent[window.start])

    def shape(self) -> dict[str, Any]:
        return shape_of(self.input_of(FIRST), self.build(LayerWindow(0, 1, is_first=True)).module)

    def forward_flops(self, contents: str) -> float | None:
        """Return None: torch's counter is used."""

    @cached_property
    def _made(self) -> UserModelParts:
        """The whole model, used only for its inputs and targets."""
        return build_user_model(self.function, [self.num_layers], seed=SEED)

    @cached_property
    def _layers(self) -> list[nn.Module]:
        """Each layer on the meta device: only its structure is needed."""
        parts = build_user_model(self.function, [0, *[1] * self.num_layers, 0], seed=SEED)
        return [module.to("meta") for module in parts.stages()][1:-1]

    @cached_property
    def _sent(self) -> dict[int, Tensor]:
        return {}


def profile_pipeline(
    function: UserFunction,
    settings: MeasuringSettings,
    *,
    pp: int,
    num_layers: int | None,
    micro_batches: Sequence[int],
    say: Say,
) -> dict[str, Any]:
    """Return the profile of a user's own model for a pipeline of `pp` stages, at each micro-batch.

    On a CPU, a calibration run with `pp` processes follows if all layers are equal. Raises `ConfigError` for fewer
    layers than stages, and for a model that no pipeline could run.
    """
    num_layers = function.num_layers(num_layers)
    if num_layers < pp:
        raise ConfigError(
            f"--pp {pp} is more than the {num_layers} layers of {function.where}: give --pp {num_layers} or less, "
            f"or --layers {pp}"
        )
    counts, content, chunks = even_split(num_layers, pp), {}, []
    notes = [
        f"A model of one's own, in chunks for {pp} stages: {', '.join(map(str, counts))} layers. Median and "
        f"quartiles. FLOPs by torch's counter."
    ]
    for micro_batch in micro_batches:
        boundaries, _ = check_user_model(
            function, counts, micro_batch=micro_batch, seed=SEED, device=settings.device
        )
        builder = UserChunkBuilder(function, num_layers, micro_batch, settings.device)
        model = {"name": function.name, "hidden_size": boundaries[1].shape[-1]}
        content = profile_chunks(builder, [counts], settings, model=model, notes=notes, say=say)
        chunks += content["chunks"]
    content["chunks"] = chunks
    if reason := _why_no_calibration_run(content, settings):
        say(f"no calibration run with {pp} processes: {reason}")
        return content
    return content | {"rehearsal": _calibration_run(function, content, settings, num_processes=pp, say=say)}


def _why_no_calibration_run(content: dict[str, Any], settings: MeasuringSettings) -> str:
    if settings.device != "cpu":
        return f"it takes a {settings.device} device for each rank"
    if len(set(content["model"]["layer_kinds"])) > 1:
        return "its layers are not alike, and the pipelines have others than it"
    return ""


def _calibration_run(
    function: UserFunction, content: dict[str, Any], settings: MeasuringSettings, *, num_processes: int, say: Say
) -> dict[str, Any]:
    profile = validated(Profile, content, function.where)
    first = content["chunks"][0]["shape"]
    key = MeasurementKey(first["micro_batch"], first["sequence_length"], cast(Dtype, first["dtype"]))

    def model_of(num_layers: int) -> UserModel:
        counts = even_split(num_layers, num_processes)
        boundaries, _ = check_user_model(
            function, counts, micro_batch=key.micro_batch, seed=SEED, device=settings.device
        )
        return UserModel(function.where, num_layers, boundaries)

    return rehearsal_of(profile, model_of, key, settings, num_processes=num_processes, say=say)


def profile_made(
    where: str, settings: MeasuringSettings, *, num_layers: int | None, micro_batches: Sequence[int] | None,
    pp: int, say: Say,
) -> dict[str, Any]:  # fmt: skip
    """Return the profile of the model or layer that a function builds.

    `where` is FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION. A function with a parameter, the layers per stage,
    builds a model (`ppsim.runtime.user_model`). A function without parameters returns a layer and example inputs.
    Raises `ConfigError` if the function does not exist, or if its model fails or does not fit into memory.
    """
    function = function_of(where)
    gc.freeze()  # later collections then skip everything that importing torch created
    try:
        if function.takes_layers and pp > 1:
            return profile_pipeline(
                function, settings, pp=pp, num_layers=num_layers, micro_batches=micro_batches or [2], say=say
            )
        if function.takes_layers:
            return _profile_stages(function, settings, num_layers=num_layers, micro_batches=micro_batches, say=say)
        if micro_batches is not None:
            raise ConfigError(f"{where} says the micro-batch by its example inputs: leave out --micro-batch-size")
        if pp > 1:
            raise ConfigError(
                f"--pp {pp} measures the stages of a pipeline, and {where} makes one layer: give it a parameter, "
                f"the layers of each stage, as {function.name}(layers=(8,)), or leave out --pp"
            )
        module, inputs = _layer_made(function, settings.device)
        return profile_module(
            module, inputs, name=function.name, num_layers=1 if num_layers is None else num_layers,
            num_repeats=settings.num_repeats, num_warm_up=settings.num_warm_up, num_threads=settings.num_threads,
            least_s=settings.least_s, cuda_graphs=settings.cuda_graphs, say=say,
        )  # fmt: skip
    except RuntimeError as error:
        reason = "does not fit the memory of this device" if is_out_of_memory(error) else f"fails: {error}"
        raise ConfigError(f"{where} {reason.splitlines()[0]}") from error
    finally:
        gc.unfreeze()


def _layer_made(function: UserFunction, device: str) -> tuple[nn.Module, tuple[Any, ...]]:
    parts = function.made()
    module, inputs = parts if isinstance(parts, tuple | list) and len(parts) == 2 else (None, None)
    inputs = (inputs,) if isinstance(inputs, Tensor) else inputs
    if not isinstance(module, nn.Module) or not isinstance(inputs, tuple | list):
        raise ConfigError(
            f"--module {function.where}: a function without parameters returns a torch module and its example "
            f"inputs, a tuple"
        )
    return module.to(device), tuple(one.to(device) if isinstance(one, Tensor) else one for one in inputs)


def _profile_stages(
    function: UserFunction,
    settings: MeasuringSettings,
    *,
    num_layers: int | None,
    micro_batches: Sequence[int] | None,
    say: Say,
) -> dict[str, Any]:
    num_layers = function.num_layers(num_layers)
    torch.set_num_threads(settings.num_threads)
    measurements: list[dict[str, Any]] = []
    for micro_batch in micro_batches or [2]:
        check_user_model(function, [0, 1, 0], micro_batch=micro_batch, seed=SEED, device=settings.device)
        builder = UserChunkBuilder(function, NUM_BLOCKS, micro_batch, settings.device)
        row, alone = (subject_of(builder, LayerWindow(0, count)) for count in (NUM_BLOCKS, 1))
        like, shape = row.next_input()[0], shape_of(builder.input_of(FIRST), row.module)
        width = like.shape[-1] if like.dim() else 1
        last = subject_of(builder, LayerWindow(NUM_BLOCKS, NUM_BLOCKS, is_last=True))
        named = {"embedding": [subject_of(builder, FIRST)], "layer": [row, alone], "head": [last]}
        parts = []
        for name, subjects in named.items():
            num_units = NUM_BLOCKS if name == "layer" else 1
            parts.append(MeasuredPart(name, subjects, count_flops(subjects[0])[0] / num_units, num_units))
        measurements += measured_components(parts, settings, shape=shape, say=say)
    notes = [
        f"A model of one's own: stages of 0, {NUM_BLOCKS} and 0 layers, per layer divided by {NUM_BLOCKS}. Median "
        f"and quartiles. FLOPs by torch's counter."
    ]
    model = {"name": function.name, "num_layers": num_layers, "hidden_size": width}
    return {**header(function.name, model, settings, notes), "measurements": measurements}
