"""Measure many shapes into one file, which is rewritten after each shape, so an interrupted sweep can continue."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ppsim.base.errors import ConfigError, RunFailed
from ppsim.base.files import read_json, to_json, write_atomically
from ppsim.model.measurement_key import describe_key
from ppsim.model.shapes import ModelShape
from ppsim.profiling.duration_estimate import estimate_duration
from ppsim.profiling.float8 import fused_cast
from ppsim.profiling.harness import (
    NUM_BLOCKS,
    build_blocks,
    measure_shape,
    model_header,
    require_measurable,
    type_of,
)
from ppsim.profiling.layers import build_embedding, build_head
from ppsim.profiling.measure import release_memory
from ppsim.profiling.measuring_progress import MeasuringProgress
from ppsim.profiling.settings import MeasurementKey, MeasuringSettings, Say, summarise_samples
from ppsim.profiling.timing import first_sentence, is_out_of_memory, sample_times, without_interruptions
from ppsim.runtime.clock import Seconds, clock_of, raise_clock

OPTIMIZERS = ("adamw", "muon")


def require_optimizer(name: str) -> None:
    if name not in OPTIMIZERS:
        raise ConfigError(f"unknown optimizer '{name}': there are {' and '.join(OPTIMIZERS)}")
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        raise ConfigError(f"torch {torch.__version__} has no Muon: --optimizer adamw, or torch 2.9 or newer")


_PART = 0.25
"""Fraction of a component's minimum measuring time for an optimizer step, which matters less in projections."""


def measure_optimizer(
    model: ModelShape,
    key: MeasurementKey,
    name: str,
    settings: MeasuringSettings,
    *,
    say: Say = lambda message: None,
) -> list[dict[str, Any]]:
    torch.set_num_threads(settings.num_threads)
    torch.manual_seed(0)
    shard = replace(model, sequence_length=key.sequence_length).shard(tp=key.tp, ep=key.ep)
    where, kind = torch.device(settings.device), type_of(key)
    parts: dict[str, tuple[Callable[[], nn.Module], int]] = {
        "embedding": (lambda: build_embedding(shard), 1),
        "layer": (
            lambda: build_blocks(shard, replace(key, recompute="none", cp=1), MeasuringSettings()),
            NUM_BLOCKS,
        ),
        "head": (lambda: build_head(shard), 1),
    }
    say(f"measuring a step of {name}")
    measured = []
    for component, (build, num_units) in parts.items():
        with where:
            module = build()
        step = measure_step(
            module.to(where, kind), name, settings, is_hidden=component == "layer", num_units=num_units
        )
        shape = {"tp": key.tp, "ep": key.ep, "dtype": key.dtype}
        measured.append({"component": component, "optimizer": name, **shape, **step})
    return measured


def measure_step(
    module: nn.Module, name: str, settings: MeasuringSettings, *, is_hidden: bool, num_units: int = 1
) -> dict[str, Any]:
    """Return the cost of an optimizer step for one of the `num_units` equal units of `module`.

    16-bit parameters have float32 gradients and master weights; the step copies the master weights into the
    parameters. As its authors recommend, Muon updates only the matrices of layers (`is_hidden`, each expert
    separately), and AdamW the rest.
    """
    step = _Step([parameter.detach() for parameter in module.parameters()], name, is_hidden=is_hidden)
    clock = clock_of(torch.device(settings.device))

    def repeat() -> dict[str, Seconds]:
        return {"gradient_norm_s": clock.time(step.clip)[1], "step_s": clock.time(step.step)[1]}

    with without_interruptions():
        for _ in range(settings.num_warm_up + 1):  # the first step creates the state
            step.clip()
            step.step()
        taken = sample_times(repeat, num_repeats=settings.num_repeats, least_s=_PART * settings.least_s)
    return {
        **{
            key: summarise_samples([seconds / num_units for seconds in taken[key]])
            for key in ("step_s", "gradient_norm_s")
        },
        "state_bytes": step.state_bytes // num_units,
        "parameters": sum(one.numel() for one in step.parameters) // num_units,
        "fused": step.is_fused,
    }


class _Step:
    def __init__(self, parameters: list[Tensor], name: str, *, is_hidden: bool) -> None:
        self.parameters = parameters
        self.has_masters = any(parameter.element_size() < 4 for parameter in parameters)
        masters = [one.float() if one.element_size() < 4 else one.clone() for one in parameters]
        self.masters = masters
        matrices: list[Tensor] = []
        others: list[Tensor] = []
        for master in masters:
            if name == "muon" and is_hidden and master.dim() >= 2:
                matrices += master.flatten(0, -3).unbind() if master.dim() > 2 else [master]
            else:
                others.append(master)
        self._learning = [nn.Parameter(one) for one in (*matrices, *others)]
        for one in self._learning:
            one.grad = 1e-3 * torch.randn_like(one)
        of_muon, of_adamw = self._learning[: len(matrices)], self._learning[len(matrices) :]
        self._optimizers: list[Optimizer] = [torch.optim.Muon(of_muon)] if of_muon else []
        self.is_fused = False
        if of_adamw:
            adamw, self.is_fused = _adamw(of_adamw)
            self._optimizers.append(adamw)

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self._learning, 1.0)

    def step(self) -> None:
        for optimizer in self._optimizers:
            optimizer.step()
        if self.has_masters:
            torch._foreach_copy_(self.parameters, self.masters)

    @property
    def state_bytes(self) -> int:
        """Bytes of moments and separate master weights."""
        states = [state for optimizer in self._optimizers for state in optimizer.state.values()]
        held = [value for state in states for value in state.values() if isinstance(value, Tensor) and value.dim()]
        held += self.masters if self.has_masters else []
        return sum(one.numel() * one.element_size() for one in held)


def _adamw(parameters: list[nn.Parameter]) -> tuple[Optimizer, bool]:
    try:
        return torch.optim.AdamW(parameters, fused=True), True
    except RuntimeError:
        return torch.optim.AdamW(parameters), False


@dataclass(frozen=True)
class SuiteJob:
    """A model, measured at every key into one file."""

    model_name: str
    model: ModelShape
    keys: tuple[MeasurementKey, ...]
    path: Path


def sweep(
    job: SuiteJob,
    settings: MeasuringSettings,
    *,
    optimizers: Sequence[str] = (),
    start_over: bool = False,
    say: Say = lambda message: None,
    pace: MeasuringProgress | None = None,
) -> dict[str, Any]:
    """Measure a model at every key that its profile file lacks, and return the file's content.

    A shape that runs out of memory is recorded in `does_not_fit`, a shape with another error in `failed`. Optimizer
    steps are measured once per tp, ep and dtype. Raises `ConfigError`, before any measurement, if the model cannot
    be sharded as a key asks, or if the file was measured with other settings. Raises `RunFailed` if the device no
    longer responds.
    """
    for key in job.keys:
        require_measurable(job.model, key, settings)
    for name in optimizers:
        require_optimizer(name)
    content = model_header(job.path.stem, job.model_name, job.model, settings)
    if not start_over and job.path.exists():
        content = continue_profile(job.path, content)
    finished = finished_keys(content)
    waiting = [key for key in dict.fromkeys(job.keys) if key not in finished]
    if there := len(job.keys) - len(waiting):
        say(f"{there} of {len(job.keys)} shapes are in {job.path} already (--start-over forgets them)")
    notes = content["provenance"]["notes"]
    casts = [fused_cast(settings.device, compiled=settings.compiled)[1] for key in job.keys if key.dtype == "fp8"]
    notes += [note for note in dict.fromkeys(casts) if note not in notes]
    works = {key: estimate_duration(job.model, key, settings).seconds for key in waiting}
    filling = _Filling(job, settings, content, say, pace or MeasuringProgress(sum(works.values())))
    filling.add_shapes(works)
    filling.add_steps(optimizers)
    return content


class _Filling:
    def __init__(
        self, job: SuiteJob, settings: MeasuringSettings, content: dict[str, Any], say: Say, pace: MeasuringProgress
    ) -> None:
        self.job, self.settings, self.content, self.say, self.pace = job, settings, content, say, pace

    def add_shapes(self, works: dict[MeasurementKey, float]) -> None:
        job, spans = self.job, self.content["provenance"].setdefault("measured_at", [])
        if works and not self.pace.is_stopped:
            raise_clock(torch.device(self.settings.device))
            spans.append([time.time()] * 2)
        for index, (key, work) in enumerate(works.items()):
            if not self.pace.has_time_for(work):
                left = len(works) - index
                self.say(f"{left} of {len(job.keys)} shapes of {job.path} are left: the time is over")
                break
            self.say(f"shape {index + 1} of {len(works)}: {key}{self.pace.left}")
            measure = partial(measure_shape, job.model, key, self.settings, say=self.say)
            is_measured = self._try("measurements", measure, key)
            (self.pace.done if is_measured else self.pace.dropped)(work)
            spans[-1][1] = time.time()
            self._write()

    def add_steps(self, optimizers: Sequence[str]) -> None:
        for key, name in _missing_steps(self.content, self.job.keys, optimizers):
            if self.pace.is_stopped:
                break
            measure = partial(measure_optimizer, self.job.model, key, name, self.settings, say=self.say)
            self._try("optimizer", measure, key, name)
            self._write()

    def _try(
        self,
        into: str,
        measure: Callable[[], list[dict[str, Any]]],
        key: MeasurementKey,
        optimizer: str | None = None,
    ) -> bool:
        what = f"a step of {optimizer} for {key}" if optimizer else str(key)
        try:
            self.content[into] += measure()
            return True
        except ConfigError:
            raise
        except Exception as error:
            if not is_out_of_memory(error):
                sentence = f"{type(error).__name__}: {first_sentence(error)}"
                self.content["failed"].append({"shape": asdict(key), "optimizer": optimizer, "error": sentence})
                self.say(f"{what} fails: {sentence}; recorded so")
            elif optimizer:
                self.say(f"{what} does not fit the memory of this device: left out")
            else:
                self.content["does_not_fit"].append(asdict(key))
                self.say(f"{what} does not fit the memory of this device: recorded so")
        return False

    def _write(self) -> None:
        """Write the file; raises `RunFailed` if the process can no longer use CUDA after an error in a kernel."""
        write_atomically(self.job.path, to_json(self.content))
        try:
            release_memory()
        except RuntimeError as error:
            raise RunFailed(
                f"the device answers no more ({first_sentence(error)}); {self.job.path} is whole: repeat the "
                "command, it goes on behind the shape that failed"
            ) from error


def require_success(contents: Sequence[dict[str, Any]]) -> None:
    """Raise `RunFailed` if profile files have failures other than lack of memory."""
    failed = [failure for content in contents for failure in content["failed"]]
    if failed:
        what = f"{describe_key(failed[0]['shape'])}: {failed[0]['error']}"
        raise RunFailed(f"{len(failed)} {'shape' if len(failed) == 1 else 'shapes'} failed, first {what}")


def _missing_steps(
    content: dict[str, Any], keys: Sequence[MeasurementKey], optimizers: Sequence[str]
) -> list[tuple[MeasurementKey, str]]:
    """Return the missing optimizer steps, each with the first key of its tp, ep and dtype that fits into memory."""
    there = {(part["optimizer"], part["tp"], part["ep"], part["dtype"]) for part in content["optimizer"]}
    too_large = [*content["does_not_fit"], *(one["shape"] for one in content["failed"] if not one["optimizer"])]
    there |= {
        (one["optimizer"], *(one["shape"][name] for name in ("tp", "ep", "dtype"))) for one in content["failed"]
    }
    missing: dict[tuple[str, int, int, str], MeasurementKey] = {}
    for key in keys:
        for name in optimizers:
            if (what := (name, key.tp, key.ep, key.dtype)) not in there and asdict(key) not in too_large:
                missing.setdefault(what, key)
    return [(key, name) for (name, *_), key in missing.items()]


def read_unfinished(path: str | Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("measurements"), list):
        raise ConfigError(f"{path} is no profile: give another file, or --start-over to replace it")
    return content | {name: content.get(name, []) for name in ("does_not_fit", "failed", "optimizer")}


def continue_profile(path: str | Path, fresh: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a file; raises `ConfigError` if it was measured with other settings than `fresh`."""
    content = read_unfinished(path)
    for name, keys in _SAME.items():
        for key in keys:
            there, here = (_at(one, name, key) for one in (content, fresh))
            if there != here:
                raise ConfigError(
                    f"{path} holds measurements with {key.replace('_', ' ')} {there}, not {here}: give another "
                    "file, or --start-over to replace it"
                )
    return content


_SAME = {
    "": ("format",),
    "model": ("name", "num_layers", "hidden_size", "num_heads", "vocab_size"),
    "provenance": (
        "source",
        "device",
        "software",
        "num_repeats",
        "num_warm_up",
        "least_s",
        "compiled",
        "cuda_graphs",
    ),
}
"""Settings that all measurements of a file must share."""


def _at(content: dict[str, Any], name: str, key: str) -> Any:
    part = content.get(name) if name else content
    return part.get(key) if isinstance(part, dict) else None


def finished_keys(content: dict[str, Any]) -> set[MeasurementKey]:
    """Return all shapes of a file: measured, too large or failed."""
    others = [one["shape"] for one in (*content["measurements"], *content["failed"])]
    shapes = [*others, *content["does_not_fit"]]
    names = MeasurementKey.__dataclass_fields__
    return {MeasurementKey(**{name: value for name, value in shape.items() if name in names}) for shape in shapes}
