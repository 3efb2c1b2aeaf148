"""A module of one's own, made by a function that is named on the command line, measured as a layer."""

import importlib
import sys
from typing import Any

import torch

from ppsim.base.errors import ConfigError
from ppsim.profiling.failures import is_out_of_memory
from ppsim.profiling.harness import profile_module
from ppsim.profiling.settings import Say, Settings


def profile_made(where: str, settings: Settings, *, num_layers: int, say: Say) -> dict[str, Any]:
    """Return the profile of what the factory PKG.MOD:FACTORY makes, as `profile_module` does.

    Raises `ConfigError` for a factory that there is not, and for a module that fails or does not fit.
    """
    module, inputs = _made_by(where, settings.device)
    try:
        return profile_module(
            module, inputs, name=where.rpartition(":")[2], num_layers=num_layers, num_repeats=settings.num_repeats,
            num_warm_up=settings.num_warm_up, num_threads=settings.num_threads, least_s=settings.least_s,
            cuda_graphs=settings.cuda_graphs, say=say,
        )  # fmt: skip
    except RuntimeError as error:
        reason = "does not fit the memory of this device" if is_out_of_memory(error) else f"fails: {error}"
        raise ConfigError(f"{where} {reason.splitlines()[0]}") from error


def _made_by(where: str, device: str) -> tuple[Any, Any]:
    """What the factory PKG.MOD:FACTORY returns: a module and example inputs, on the device."""
    home, colon, factory = where.partition(":")
    if not (home and colon and factory):
        raise ConfigError(f"--module is '{where}': write it as package.module:factory")
    sys.path.insert(0, "")  # as `python -m` does: a module in the folder where the command is given
    try:
        make = getattr(importlib.import_module(home), factory)
        module, inputs = make()
    except Exception as error:
        raise ConfigError(f"--module {where} fails: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove("")
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    if not isinstance(module, torch.nn.Module) or not isinstance(inputs, tuple | list):
        raise ConfigError(f"--module {where}: the factory returns a torch module and its example inputs, a tuple")
    return module.to(device), tuple(one.to(device) if isinstance(one, torch.Tensor) else one for one in inputs)
