"""Profile of a user's own model or layer, built by a function that is named on the command line."""

import gc
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ppsim.base.errors import ConfigError
from ppsim.profiling.chunks import LayerWindow, subject_of
from ppsim.profiling.failures import is_out_of_memory
from ppsim.profiling.harness import (
    NUM_BLOCKS,
    MeasuredPart,
    count_flops,
    header,
    measured_components,
    profile_module,
    shape_of,
)
from ppsim.profiling.settings import MeasuringSettings, Say
from ppsim.profiling.user_chunks import FIRST, SEED, UserChunkBuilder, profile_pipeline
from ppsim.runtime.user_model import UserFunction, check_user_model, function_of


def profile_made(
    where: str, settings: MeasuringSettings, *, num_layers: int | None, micro_batches: Sequence[int] | None,
    pp: int = 1,
    say: Say,
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
    made = function.made()
    module, inputs = made if isinstance(made, tuple | list) and len(made) == 2 else (None, None)
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
    width = 1
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
