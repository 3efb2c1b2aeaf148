"""A user's own model, built by a function that is named on the command line (docs/howto/own_model.md).

The function has this form:

    def stages(layers=(8,)):
        return modules, inputs, targets, loss
"""

import difflib
import importlib
import importlib.util
import inspect
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from ppsim.base.errors import ConfigError
from ppsim.parallel.layer_partition import require_layers
from ppsim.runtime.train_config import StageBoundary, TrainConfig, UserModel

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class UserFunction:
    """A user's function: `where` is FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION.

    `home` is the folder of the file, "" for a module.
    """

    where: str
    call: Callable[..., Any]
    home: str

    @property
    def name(self) -> str:
        return self.where.rpartition(":")[2]

    @property
    def takes_layers(self) -> bool:
        """True if the function has a parameter, without which it cannot build stages."""
        return bool(inspect.signature(self.call).parameters)

    def num_layers(self, given: int | None) -> int:
        self.require_parameter()
        if given is not None:
            require_layers(given, "--layers")
            return given
        default = next(iter(inspect.signature(self.call).parameters.values())).default
        try:
            total = sum(int(count) for count in default)
        except (TypeError, ValueError):
            raise ConfigError(
                f"{self.where} does not say how many layers the model has: give its parameter a default, as "
                f"{self.name}(layers=(8,)), or --layers"
            ) from None
        require_layers(total, f"the layers of {self.where}")
        return total

    def require_parameter(self) -> None:
        if not self.takes_layers:
            raise ConfigError(
                f"{self.where} takes no layers of each stage, so that there is nothing to split: write "
                f"{self.name}(layers)"
            )

    def made(self, *arguments: Any) -> Any:
        layers_text = f" for the layers {list(arguments[0])}" if arguments else ""
        with import_folder(self.home), _failing(f"{self.where} fails{layers_text}"):
            return self.call(*arguments)


@dataclass(frozen=True)
class UserModelParts:
    """Result of a user's function for given numbers of layers per stage."""

    function: UserFunction
    layers: Sequence[int]
    modules: Iterable[nn.Module]
    inputs: Tensor
    targets: Tensor
    loss: Loss

    def stages(self) -> Iterator[nn.Module]:
        """Yield the stages; raises `ConfigError` if their number is wrong, or if a stage is not a module."""
        where, number, wanted = self.function.where, 0, len(self.layers)
        modules = iter(self.modules)
        while True:
            with (
                import_folder(self.function.home),
                _failing(f"{where} fails at stage {number} of the layers {list(self.layers)}"),
            ):
                module = next(modules, None)
            if module is None:
                break
            if not isinstance(module, nn.Module):
                raise ConfigError(f"{where}: stage {number} is no torch module: got {_kind(module)}")
            number += 1
            if number <= wanted:
                yield module
        if number != wanted:
            raise ConfigError(f"{where} gives {number} stages for the {wanted} of the layers {list(self.layers)}")

    def rows(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        drawn = torch.randint(0, len(self.inputs), (count,), generator=torch.Generator().manual_seed(seed))
        return self.inputs[drawn], self.targets[drawn]


def function_of(where: str) -> UserFunction:
    """Import a function; raises `ConfigError` if there is no such file, module or function, or the import fails."""
    home, colon, name = where.rpartition(":")
    if not (home and colon and name):
        raise ConfigError(f"--module is '{where}': write it as FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION")
    is_file = home.endswith(".py")
    if is_file and not Path(home).is_file():
        raise ConfigError(f"--module {where}: there is no file {home}")
    folder = str(Path(home).resolve().parent) if is_file else ""
    with import_folder(folder), _failing(f"--module {where} fails"):
        module = _module_in(Path(home).resolve()) if is_file else importlib.import_module(home)
    call = getattr(module, name, None)
    if not callable(call):
        functions = [each for each, value in vars(module).items() if inspect.isfunction(value)]
        close = difflib.get_close_matches(name, functions, n=1)
        there = f"did you mean {close[0]}?" if close else f"there are {', '.join(functions) or 'none'}"
        raise ConfigError(f"--module {where}: {home} has no function {name} ({there})")
    return UserFunction(where, call, folder)


def build_user_model(function: UserFunction, layers: Sequence[int], *, seed: int) -> UserModelParts:
    where, form = function.where, "it must return stages, inputs, targets and loss"
    function.require_parameter()
    torch.manual_seed(seed)
    returned = function.made(list(layers))
    if not isinstance(returned, tuple | list) or len(returned) != 4:
        got = f"{len(returned)} things" if isinstance(returned, tuple | list) else _kind(returned)
        raise ConfigError(f"{where} returns {got}: {form}")
    modules, inputs, targets, loss = returned
    if isinstance(modules, nn.Module) and not isinstance(modules, nn.ModuleList):
        raise ConfigError(
            f"{where} returns one module ({_kind(modules)}) where the stages should be: a list of them"
        )
    if not isinstance(modules, Iterable):
        raise ConfigError(f"{where} returns {_kind(modules)} where the stages should be: a list of modules")
    for name, data in (("inputs", inputs), ("targets", targets)):
        if not isinstance(data, Tensor) or not data.dim() or not len(data):
            raise ConfigError(f"{where}: {name} must be a tensor with a row for each sample: got {_kind(data)}")
    if len(inputs) != len(targets):
        raise ConfigError(f"{where}: there are {len(inputs)} inputs, but {len(targets)} targets")
    if not callable(loss):
        raise ConfigError(
            f"{where} gives no loss: the fourth that it returns must be a function of output and targets, got "
            f"{_kind(loss)}"
        )
    return UserModelParts(function, layers, modules, inputs, targets, loss)


class UserModelStages:
    """A user's model in a run, a `ppsim.runtime.trained.TrainedModel`."""

    def __init__(self, config: TrainConfig) -> None:
        assert isinstance(config.model, UserModel)
        self._config, self._model = config, config.model
        self._function = function_of(config.model.module)
        self._without_modules: UserModelParts | None = None

    def _made(self, layers: Sequence[int]) -> UserModelParts:
        return build_user_model(self._function, layers, seed=self._config.seed)

    def _data(self) -> UserModelParts:
        if self._without_modules is None:
            self._without_modules = replace(self._made(self._config.layers_per_stage), modules=())
        return self._without_modules

    def stages(self, wanted: Collection[int]) -> dict[int, nn.Module]:
        """If the function yields stages one by one, the stages that are not wanted are released."""
        parts = self._made(self._config.layers_per_stage)
        self._without_modules = replace(parts, modules=())
        return {stage: module for stage, module in enumerate(parts.stages()) if stage in wanted}

    def unsplit(self) -> tuple[nn.Module, list[list[nn.Parameter]]]:
        """Raises `ConfigError` if the model in one stage has other parameters than the stages together."""
        stages = self.stages(range(len(self._config.layers_per_stage)))
        (whole,) = self._made([self._model.num_layers]).stages()
        return whole, copy_weights(whole, list(stages.values()), self._model.module)

    def boundary(self, stage: int) -> Tensor:
        boundary = self._model.boundaries[stage]
        return torch.zeros(boundary.shape, dtype=getattr(torch, boundary.dtype))

    def batch(self, step: int, num_microbatches: int) -> tuple[Tensor, Tensor]:
        config = self._config
        return self._data().rows(num_microbatches * config.micro_batch, 1_000_003 * config.seed + step)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return self._data().loss(output, targets)


def copy_weights(source: nn.Module, stages: Sequence[nn.Module], where: str) -> list[list[nn.Parameter]]:
    """Copy the weights of the stages into the whole model, and return its parameters per stage.

    Parameters match, in order, if their names differ in numbers only: "layers.5.up.weight" of the model may be
    "layers.1.up.weight" of stage 1. Raises `ConfigError` if numbers or shapes of parameters differ.
    """
    waiting: dict[str, list[nn.Parameter]] = {}
    for name, parameter in source.named_parameters():
        waiting.setdefault(_without_numbers(name), []).append(parameter)
    parameters: list[list[nn.Parameter]] = []
    for index, stage in enumerate(stages):
        parameters.append([])
        for name, parameter in stage.named_parameters():
            alike = waiting.get(_without_numbers(name), [])
            if not alike or alike[0].shape != parameter.shape:
                raise ConfigError(
                    f"{where}: the model in one stage has no parameter for {name} of stage {index} (shape "
                    f"{list(parameter.shape)}), so that the two cannot be compared"
                )
            with torch.no_grad():
                alike[0].copy_(parameter)
            parameters[-1].append(alike.pop(0))
    if left := [name for name, alike in waiting.items() if alike]:
        raise ConfigError(
            f"{where}: the model in one stage has {left[0]} once more than its stages, so that the two cannot be "
            f"compared"
        )
    return parameters


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def check_user_model(
    function: UserFunction, layers: Sequence[int], *, micro_batch: int, seed: int, device: str, splits: bool = False
) -> tuple[list[StageBoundary], str]:
    """Run one microbatch through the stages one after the other, with a separate backward (or I and W) per stage.

    Returns the form of the microbatch before, between and after the stages, and the name of the parameters'
    shortest number format. Raises `ConfigError`, naming the stage, for a model that no pipeline could run.
    """
    parts = build_user_model(function, layers, seed=seed)
    inputs, targets = (part.to(device) for part in parts.rows(micro_batch, seed))
    boundaries, kinds, x = [_boundary(inputs)], set(), inputs
    for stage, module in enumerate(parts.stages()):
        is_last = stage == len(layers) - 1
        x = _tried_stage(
            parts, stage, module.to(device), x, targets=targets if is_last else None, splits=splits and stage > 0
        )
        boundaries.append(_boundary(x))
        kinds |= {parameter.dtype for parameter in module.parameters() if parameter.requires_grad}
    return boundaries, _name(min(kinds, key=lambda kind: (kind.itemsize, str(kind))))


def _tried_stage(
    parts: UserModelParts, stage: int, module: nn.Module, x: Tensor, *, targets: Tensor | None, splits: bool
) -> Tensor:
    """`targets` are given for the last stage only."""
    where = parts.function.where
    before = f"what stage {stage - 1} returns" if stage else "the inputs"
    x = x.detach().requires_grad_(stage > 0)
    with _failing(f"{where}: stage {stage} fails on {before}, {_shown(x)}"):
        output = module(x)
    if not isinstance(output, Tensor):
        raise ConfigError(f"{where}: stage {stage} must return one tensor: got {_kind(output)}")
    if not output.is_floating_point():
        raise ConfigError(f"{where}: stage {stage} returns {_shown(output)}, which has no gradient")
    what, end, grad = f"what stage {stage} returns", output, torch.ones_like(output)
    if targets is not None:
        what, end = f"the loss of stage {stage}", _tried_loss(parts, output, targets)
        grad = torch.ones_like(end)
    if not end.requires_grad:
        raise ConfigError(f"{where}: {what} has no gradient: it depends on no parameter that learns")
    if splits and end._is_view():
        raise ConfigError(
            f"{where}: {what} is a view of another tensor, which torch's split backward cannot detach: return a "
            f"clone() of it, or run a table that does not split the backward"
        )
    with _failing(f"{where}: the {'split ' if splits else ''}backward of stage {stage} fails"):
        if splits:
            _, groups = stage_backward_input([end], [grad], [x], module.parameters())
            stage_backward_weight(module.parameters(), groups)
        else:
            end.backward(grad)
    if all(parameter.grad is None for parameter in module.parameters()):
        raise ConfigError(f"{where}: no parameter of stage {stage} gets a gradient")
    if stage and x.grad is None:
        raise ConfigError(
            f"{where}: {what} does not depend on what stage {stage - 1} returns: no gradient goes back"
        )
    module.zero_grad(set_to_none=True)
    return output.detach()


def _tried_loss(parts: UserModelParts, output: Tensor, targets: Tensor) -> Tensor:
    where = parts.function.where
    with _failing(f"{where}: the loss fails on {_shown(output)} and targets {_shown(targets)}"):
        loss = parts.loss(output, targets)
    if not isinstance(loss, Tensor) or loss.dim():
        got = _shown(loss) if isinstance(loss, Tensor) else _kind(loss)
        raise ConfigError(f"{where}: the loss must be one number, a tensor without dimensions: got {got}")
    return loss


def _boundary(x: Tensor) -> StageBoundary:
    return StageBoundary(list(x.shape), _name(x.dtype), x.nbytes)


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _shown(x: Tensor) -> str:
    return f"{_name(x.dtype)} {list(x.shape)}"


def _kind(thing: Any) -> str:
    return "nothing (None)" if thing is None else type(thing).__name__


def _module_in(path: Path) -> ModuleType:
    """Import a file under a name of its own, so that it cannot replace an installed package."""
    name = f"ppsim_own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # objects that the file defines look their module up here
    spec.loader.exec_module(module)
    return module


@contextmanager
def import_folder(folder: str) -> Iterator[None]:
    """Search modules in a folder first ("" is the current one), as `python FILE.py` and `python -m` do."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """Convert any error or exit of user code to a one-line `ConfigError`; redirect its output to standard error."""
    try:
        with redirect_stdout(sys.stderr), _exits_raised():
            yield
    except (Exception, SystemExit) as error:
        lines = str(error).strip().splitlines() or ["no reason given"]
        raise ConfigError(f"{what}: {type(error).__name__}: {lines[0]}") from error


@contextmanager
def _exits_raised() -> Iterator[None]:
    """Let `os._exit` raise `SystemExit` in this process; processes that user code forks still exit."""
    exit_process, here = os._exit, os.getpid()

    def raise_exit(status: int) -> NoReturn:
        if os.getpid() != here:
            exit_process(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = raise_exit
    try:
        yield
    finally:
        os._exit = exit_process


class _TooLong(BaseException):
    """No `Exception`, which user code may catch."""


@contextmanager
def limit_time(where: str, timeout_s: float) -> Iterator[None]:
    """Raise `ConfigError` if user code takes longer. In other threads than the main one, there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Any) -> None:
        raise _TooLong

    handler, begun = signal.signal(signal.SIGALRM, interrupt), time.monotonic()
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    except _TooLong:
        raise ConfigError(
            f"--module {where} takes more than {timeout_s:g} s to build and try its stages: give a longer --timeout"
        ) from None
    finally:
        rest_s = max(left_s - (time.monotonic() - begun), 1e-3) if left_s else 0
        signal.setitimer(signal.ITIMER_REAL, rest_s)
        signal.signal(signal.SIGALRM, handler)
