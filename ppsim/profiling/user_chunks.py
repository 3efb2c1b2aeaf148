"""Chunks of a user's own model for a pipeline: stages of the even split, and chunks to derive all other chunks."""

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
from ppsim.profiling.chunks import BuiltChunk, LayerWindow, profile_chunks
from ppsim.profiling.harness import shape_of
from ppsim.profiling.settings import MeasurementKey, MeasuringSettings, Say
from ppsim.runtime.train_config import UserModel
from ppsim.runtime.user_model import UserFunction, UserModelParts, build_user_model, check_user_model
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
        made = build_user_model(self.function, [*before, window.num_layers, *behind], seed=SEED)
        [module] = [one.to(self.device) for stage, one in enumerate(made.stages()) if stage == len(before)]
        loss: Callable[[Tensor], Tensor] | None = None
        if window.is_last:
            targets = made.rows(self.micro_batch, SEED)[1].to(self.device)

            def loss(output: Tensor) -> Tensor:
                return made.loss(output, targets)

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
        made = build_user_model(self.function, [0, *[1] * self.num_layers, 0], seed=SEED)
        return [module.to("meta") for module in made.stages()][1:-1]

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
    if reason := _why_not_rehearsed(content, settings):
        say(f"no calibration run with {pp} processes: {reason}")
        return content
    return content | {"rehearsal": _calibration_run(function, content, settings, num_processes=pp, say=say)}


def _why_not_rehearsed(content: dict[str, Any], settings: MeasuringSettings) -> str:
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
