"""Measurement of layers on this device."""

import dataclasses
import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ppsim.api.keyword_options import accept_options
from ppsim.base.errors import ConfigError
from ppsim.base.files import require_writable, to_json, write_atomically
from ppsim.base.option_declarations import declared_options, flag_of, given_options, require_least
from ppsim.model.recompute import require_of_layer
from ppsim.profiling.options import OF_MODELS, ProfileOptions
from ppsim.runtime.launch import require_device, require_extra
from ppsim.runtime.options import DEFAULT_MODEL
from ppsim.runtime.train_config import MODELS

if TYPE_CHECKING:  # pydantic may be missing on the measured machine
    from ppsim.costs.profile import Profile
    from ppsim.model.shapes import ModelShape
    from ppsim.profiling.grids import BenchmarkGrid
    from ppsim.profiling.measuring_progress import Watch
    from ppsim.profiling.settings import MeasurementKey, MeasuringSettings, Say
    from ppsim.profiling.sweep import SuiteJob

_LEAST_S = 1.0
"""Seconds of measurement per component (minimum and limit), unless `LEAST_REPEATS` repeats take longer."""

DEFAULT_RANKS = 2

_WORDS = declared_options(ProfileOptions)


@accept_options(ProfileOptions)
def profile(output: str | Path | None = None, **options: Unpack[ProfileOptions]) -> "Profile":
    """Measure the costs of a layer on this device (F, B, I and W, memory, optimizer step) and return the profile.

    Options and defaults are as for `ppsim profile`. micro_batch, seq_len, tp, cp and ep may be lists, to measure
    several shapes; `optimizer` is a list. `output` also writes the profile to a file after each shape, and a
    repeated call resumes from it. For an existing torch module, use `ppsim.profiling.harness.profile_module`.

    Raises `MissingExtra` without torch, `ConfigError` for options that cannot be measured, `RunFailed` for
    failures.

    >>> import ppsim
    >>> cpu = ppsim.profile(model="nano", seq_len=16, micro_batch=1, repeats=1, warm_up=0, optimizer=[])
    >>> ppsim.project(profile=cpu, pp=2).timeline.schedule.num_microbatches
    8
    """
    require_extra("ppsim profile")
    from ppsim.costs.profile import load_profile

    settings = settings_from(options)
    require_device(settings.device)
    name = options["model"] or DEFAULT_MODEL
    with tempfile.TemporaryDirectory(prefix="ppsim-") as folder:
        path = Path(folder) / f"{name}.json" if output is None else Path(output)
        if path.suffix != ".json":
            raise ConfigError(f"a profile is a .json file: got {path}")
        require_writable(path)
        if options["module"] is not None:
            write_atomically(path, to_json(profiled_module(options, settings)))
            return load_profile(path)
        job, num_processes = measurement_job(options, path)
        measure([job], settings, options, num_processes=num_processes)
        return load_profile(path)


@contextmanager
def _silently() -> "Iterator[tuple[Say, Watch]]":
    yield lambda message: None, lambda pace: None


def measure(
    jobs: "Sequence[SuiteJob]",
    settings: "MeasuringSettings",
    options: Mapping[str, Any],
    *,
    num_processes: int,
    grid: "BenchmarkGrid | None" = None,
    show: Callable[[list[dict[str, Any]]], None] = lambda contents: None,
    progress: "Callable[[], AbstractContextManager[tuple[Say, Watch]]]" = _silently,
) -> None:
    """Measure jobs, and the device if `grid` is given.

    A single job then has a calibration run with `num_processes` ranks (1: no calibration run).
    """
    from ppsim.profiling.calibration_run import run_calibration
    from ppsim.profiling.grids import grid_of
    from ppsim.profiling.suite import run_jobs
    from ppsim.profiling.sweep import require_success

    optimizers = ["adamw"] if options["optimizer"] is None else list(options["optimizer"])
    gc.freeze()  # so that garbage collections do not scan all objects that torch has imported
    try:
        with progress() as (say, watch):
            contents = run_jobs(
                jobs, settings, optimizers=[] if optimizers == ["none"] else optimizers,
                facts=grid or (grid_of(settings.device) if options["facts"] else None),
                start_over=bool(options["start_over"]), time_limit_s=options["time_limit"], say=say, watch=watch,
            )  # fmt: skip
    finally:
        gc.unfreeze()
    show(contents)
    require_success(contents)
    if num_processes > 1:
        [job] = jobs
        with progress() as (say, watch):
            run_calibration(job.path, job.model, job.keys[0], settings, num_processes=num_processes, say=say, watch=watch)


def measurement_job(options: Mapping[str, Any], path: Path) -> "tuple[SuiteJob, int]":
    from ppsim.profiling.sweep import SuiteJob

    model = model_from(options)
    keys = tuple(keys_from(options, model))
    return SuiteJob(options["model"] or DEFAULT_MODEL, model, keys, path), num_calibration_ranks(
        options, model, keys[0]
    )


def num_calibration_ranks(options: Mapping[str, Any], model: "ModelShape", key: "MeasurementKey") -> int:
    """Return the ranks of the calibration run: `pp`, else `DEFAULT_RANKS`; 1 means no calibration run.

    Without `pp`, there is none if the runtime cannot run it or `repeats` is given. Raises `ConfigError` if the
    runtime cannot run the requested ranks.
    """
    from ppsim.profiling.settings import why_not_rehearsed

    given = options["pp"]
    require_least("pp", given)
    device = options["device"] or "cpu"
    reason = why_not_rehearsed(model, key, device=device, compiled=bool(options["compile"]))
    if reason and (given or 1) > 1:
        raise ConfigError(f"--pp {given} cannot be rehearsed: {reason}; leave out --pp")
    if given is not None:
        return int(given)
    return 1 if reason or options["repeats"] is not None else DEFAULT_RANKS


def profiled_module(
    options: Mapping[str, Any], settings: "MeasuringSettings", say: "Say" = lambda message: None
) -> dict[str, Any]:
    from ppsim.profiling.module import profile_made

    if wrong := [name for name in OF_MODELS if options[name] is not None]:
        raise ConfigError(f"--module says what is measured: leave out {flag_of(wrong[0])}")
    pp = 1 if options["pp"] is None else options["pp"]
    require_least("pp", pp)
    if options["facts"] or options["time_limit"] is not None:
        raise ConfigError("--facts and --time-limit are for models: leave them out with --module")
    micro_batches = _listed("micro_batch", options["micro_batch"]) or None
    return profile_made(
        options["module"], settings, num_layers=options["layers"], micro_batches=micro_batches, pp=pp, say=say
    )


def settings_from(options: Mapping[str, Any], of_suite: "MeasuringSettings | None" = None) -> "MeasuringSettings":
    from ppsim.profiling.settings import MeasuringSettings

    repeats, warm_up, limit = options["repeats"], options["warm_up"], options["time_limit"]
    if (repeats is not None and repeats < 1) or (warm_up is not None and warm_up < 0):
        raise ConfigError(
            f"--repeats must be at least 1 and --warm-up not negative: got "
            f"{30 if repeats is None else repeats} and {5 if warm_up is None else warm_up}"
        )
    if limit is not None and limit <= 0:
        raise ConfigError(f"--time-limit must be more than 0 seconds: got {limit:g}")
    num_threads = 1 if options["threads"] is None else options["threads"]
    require_least("threads", num_threads)
    given = {"device": options["device"], "num_repeats": repeats, "num_warm_up": warm_up}
    settings = dataclasses.replace(
        of_suite
        or (MeasuringSettings(least_s=_LEAST_S, component_s=_LEAST_S) if repeats is None else MeasuringSettings()),
        **given_options(given),
        num_threads=num_threads,
        compiled=bool(options["compile"]),
        cuda_graphs=bool(options["cuda_graphs"]),
    )
    if settings.cuda_graphs and settings.device != "cuda":
        raise ConfigError(f"--cuda-graphs is for --device cuda: a {settings.device.upper()} has none")
    return settings


def model_from(options: Mapping[str, Any]) -> "ModelShape":
    from ppsim.profiling.model_shapes import find_model, of_gpt

    name = options["model"] or DEFAULT_MODEL
    model = find_model(name)
    if changed := given_options({"hidden_size": options["hidden"], "num_heads": options["heads"]}):
        if name not in MODELS:
            raise ConfigError(
                f"--hidden and --heads are for {', '.join(MODELS)}: {name} has other sizes beside them"
            )
        model = of_gpt(dataclasses.replace(MODELS[name], **changed))
    return model if options["layers"] is None else dataclasses.replace(model, num_layers=options["layers"])


def keys_from(options: Mapping[str, Any], model: "ModelShape") -> "list[MeasurementKey]":
    from ppsim.profiling.settings import MeasurementKey

    usual = {"tp": 1, "cp": 1, "ep": 1, "seq_len": model.sequence_length, "micro_batch": 2}
    dtype = options["dtype"] or _WORDS["dtype"].option.default
    recompute = require_of_layer(options["recompute"] or "none")
    return [
        MeasurementKey(
            micro_batch=micro_batch, sequence_length=sequence_length, dtype=dtype, tp=tp, cp=cp, ep=ep,
            recompute=recompute,
        )
        for tp, cp, ep, sequence_length, micro_batch in product(
            *(_listed(name, options[name]) or [one] for name, one in usual.items())
        )
    ]  # fmt: skip


def _listed(name: str, given: int | Sequence[int] | None) -> list[int]:
    numbers = [] if given is None else [given] if isinstance(given, int) else list(given)
    require_least(name, min(numbers, default=None))
    return numbers
