"""Many shapes, one file: written whole after each, so that a sweep that was killed goes on where it stopped."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ppsim.base.errors import ConfigError, RunFailed
from ppsim.base.files import read_json, to_json, write_whole
from ppsim.model.shapes import ModelShape, in_words
from ppsim.profiling.expect import expected
from ppsim.profiling.failures import first_sentence, is_out_of_memory
from ppsim.profiling.float8 import fused_cast
from ppsim.profiling.harness import (
    Key,
    Say,
    Settings,
    measure_shape,
    model_header,
    require_measurable,
)
from ppsim.profiling.optimizer import require_optimizer
from ppsim.profiling.pace import Pace
from ppsim.profiling.steps import measure_optimizer
from ppsim.runtime.clock import raise_clock

Measure = Callable[[ModelShape, Key, Settings], list[dict[str, Any]]]


def sweep(
    path: str | Path,
    model: ModelShape,
    keys: Sequence[Key],
    settings: Settings,
    *,
    model_name: str,
    optimizers: Sequence[str] = (),
    start_over: bool = False,
    say: Say = lambda message: None,
    measure_one: Measure | None = None,
    pace: Pace | None = None,
) -> dict[str, Any]:
    """Measure a model at every key, into the profile file at `path`, and return the file's content.

    Keys that the file holds already are not measured again (`start_over` forgets it); others in it stay. A shape
    that runs out of memory is recorded in `does_not_fit`, one that ends with another error in `failed`, and the
    sweep goes on. A step of each of `optimizers` is measured once for every tp, ep and dtype. `measure_one` is
    `measure_shape` unless given. `pace` counts seconds as `ppsim.profiling.expect` has them, of this sweep or,
    where it is given, of more; where its time is over, the sweep stops before the next shape.

    Raises `ConfigError` before anything is measured where the model cannot be cut as a key says, or where the file
    was measured otherwise; `RunFailed` where the device answers no more, which ends a process for good.
    """
    for key in keys:
        require_measurable(model, key, settings)
    for name in optimizers:
        require_optimizer(name)
    content = model_header(Path(path).stem, model_name, model, settings)
    if not start_over and Path(path).exists():
        content = continued(path, content)
    finished = finished_keys(content)
    waiting = [key for key in dict.fromkeys(keys) if key not in finished]
    if len(waiting) < len(keys):
        say(f"{len(keys) - len(waiting)} of {len(keys)} shapes are in {path} already (--start-over forgets them)")
    measure_one = measure_one or (lambda *arguments: measure_shape(*arguments, say=say))
    works = {key: expected(model, key, settings).seconds for key in waiting}
    pace = pace or Pace(sum(works.values()))
    notes = content["provenance"]["notes"]
    for note in {fused_cast(settings.device, compiled=settings.compiled)[1] for key in keys if key.dtype == "fp8"}:
        notes += [note] if note not in notes else []
    spans = content["provenance"].setdefault("measured_at", [])
    if waiting and not pace.is_stopped:
        raise_clock(torch.device(settings.device))
        spans.append([time.time()] * 2)
    for index, key in enumerate(waiting):
        if not pace.has_time_for(works[key]):
            say(f"{len(waiting) - index} of {len(keys)} shapes of {path} are left: the time is over")
            break
        say(f"shape {index + 1} of {len(waiting)}: {key}{pace.left}")
        try:
            content["measurements"] += measure_one(model, key, settings)
            pace.done(works[key])
        except ConfigError:
            raise
        except Exception as error:
            pace.dropped(works[key])
            if is_out_of_memory(error):
                content["does_not_fit"].append(asdict(key))
                say(f"{key} does not fit the memory of this device: recorded so")
            else:
                _failed(content, key, None, error, say)
        spans[-1][1] = time.time()
        _keep(path, content, settings)
    for key, name in _missing_steps(content, keys, optimizers):
        if pace.is_stopped:
            break
        try:
            content["optimizer"] += measure_optimizer(model, key, name, settings, say=say)
        except Exception as error:
            if is_out_of_memory(error):
                say(f"a step of {name} for {key} does not fit the memory of this device: left out")
            else:
                _failed(content, key, name, error, say)
        _keep(path, content, settings)
    return content


def _failed(content: dict[str, Any], key: Key, optimizer: str | None, error: Exception, say: Say) -> None:
    """Record an error that ends one measurement."""
    words = f"{type(error).__name__}: {first_sentence(error)}"
    content["failed"].append({"shape": asdict(key), "optimizer": optimizer, "error": words})
    say(f"{f'a step of {optimizer} for ' if optimizer else ''}{key} fails: {words}; recorded so")


def _keep(path: str | Path, content: dict[str, Any], settings: Settings) -> None:
    """Write the file, then give memory back; after an error in a kernel a process can do nothing with CUDA."""
    write_whole(path, to_json(content))
    try:
        _release(settings)
    except RuntimeError as error:
        raise RunFailed(
            f"the device answers no more ({first_sentence(error)}); {path} is whole: repeat the command, it goes "
            "on behind the shape that failed"
        ) from error


def require_success(contents: Sequence[dict[str, Any]]) -> None:
    """Raise `RunFailed` where something in profile files failed, but for want of memory; it says what first."""
    failed = [one for content in contents for one in content["failed"]]
    if failed:
        what = f"{in_words(failed[0]['shape'])}: {failed[0]['error']}"
        raise RunFailed(f"{len(failed)} {'shape' if len(failed) == 1 else 'shapes'} failed, first {what}")


def _missing_steps(
    content: dict[str, Any], keys: Sequence[Key], optimizers: Sequence[str]
) -> list[tuple[Key, str]]:
    """What the file lacks of every optimizer's steps: for each the first key of its tp, ep and dtype that fits."""
    there = {(part["optimizer"], part["tp"], part["ep"], part["dtype"]) for part in content["optimizer"]}
    too_large = [*content["does_not_fit"], *(one["shape"] for one in content["failed"] if not one["optimizer"])]
    there |= {
        (one["optimizer"], *(one["shape"][name] for name in ("tp", "ep", "dtype"))) for one in content["failed"]
    }
    missing: dict[tuple[str, int, int, str], Key] = {}
    for key in keys:
        for name in optimizers:
            if (what := (name, key.tp, key.ep, key.dtype)) not in there and asdict(key) not in too_large:
                missing.setdefault(what, key)
    return [(key, name) for (name, *_), key in missing.items()]


def begun(path: str | Path) -> dict[str, Any]:
    """Return the content of a file that a sweep has begun; raises `ConfigError` where it is no profile."""
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("measurements"), list):
        raise ConfigError(f"{path} is no profile: give another file, or --start-over to replace it")
    return content | {name: content.get(name, []) for name in ("does_not_fit", "failed", "optimizer")}


def continued(path: str | Path, fresh: dict[str, Any]) -> dict[str, Any]:
    """Return what `begun` does; raises `ConfigError` where it was not measured as `fresh` will be."""
    content = begun(path)
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
"""What every measurement of a file shares, and so must those that are added."""


def _at(content: dict[str, Any], name: str, key: str) -> Any:
    part = content.get(name) if name else content
    return part.get(key) if isinstance(part, dict) else None


def finished_keys(content: dict[str, Any]) -> set[Key]:
    """Return the shapes of a file, whether they were measured, do not fit or fail."""
    others = [one["shape"] for one in (*content["measurements"], *content["failed"])]
    shapes = [*others, *content["does_not_fit"]]
    names = Key.__dataclass_fields__
    return {Key(**{name: value for name, value in shape.items() if name in names}) for shape in shapes}


def _release(settings: Settings) -> None:
    gc.collect()
    if settings.device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
