"""Suites: several models measured into a folder of profiles."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from ppsim.base.files import read_json, to_json, write_atomically
from ppsim.profiling.device_microbenchmarks import add_facts, has_facts
from ppsim.profiling.duration_estimate import FACTS_S, DurationEstimate, estimate_duration
from ppsim.profiling.grids import BenchmarkGrid, grid_named, tables
from ppsim.profiling.harness import model_header, type_of
from ppsim.profiling.measuring_progress import MeasuringProgress, Watch
from ppsim.profiling.model_shapes import find_model
from ppsim.profiling.settings import MeasurementKey, MeasuringSettings, Say
from ppsim.profiling.sweep import SuiteJob, continue_profile, finished_keys, read_unfinished, sweep
from ppsim.schedule.option_types import Dtype


@dataclass(frozen=True)
class SuiteModel:
    """Shapes of a model: all combinations of (tp, ep), sequence length and micro-batch, in this order."""

    model: str
    cut: tuple[tuple[int, int], ...]
    sequence_lengths: tuple[int, ...]
    micro_batches: tuple[int, ...]
    dtype: Dtype | Literal["fp8"]

    def keys(self) -> tuple[MeasurementKey, ...]:
        return tuple(
            MeasurementKey(micro_batch=micro_batch, sequence_length=length, dtype=self.dtype, tp=tp, ep=ep)
            for (tp, ep), length, micro_batch in product(self.cut, self.sequence_lengths, self.micro_batches)
        )


@dataclass(frozen=True)
class Suite:
    """Shapes of models in parts, the most important part first, because the time may not suffice for all parts."""

    parts: tuple[SuiteModel, ...]
    settings: MeasuringSettings
    grid: BenchmarkGrid | None = None

    @property
    def micro_batches(self) -> list[int]:
        return sorted({size for part in self.parts for size in part.micro_batches})

    def jobs(self, folder: str | Path) -> list[SuiteJob]:
        """Return one job per part; the parts of one model share a file."""
        return [
            SuiteJob(part.model, find_model(part.model), part.keys(), Path(folder) / f"{part.model}.json")
            for part in self.parts
        ]


def _suite(settings: dict[str, Any], parts: Sequence[Sequence[Any]], grid: str | None = None) -> Suite:
    models = tuple(SuiteModel(*part) for part in parts)
    return Suite(models, MeasuringSettings(**settings), grid_named(grid) if grid else None)


SUITES = {name: _suite(**table) for name, table in tables()["suites"].items()}


def waiting_keys(job: SuiteJob) -> list[MeasurementKey]:
    if not job.path.exists():
        return list(job.keys)
    finished = finished_keys(read_unfinished(job.path))
    return [key for key in job.keys if key not in finished]


def expected_of(job: SuiteJob, keys: Sequence[MeasurementKey], settings: MeasuringSettings) -> DurationEstimate:
    parts = [estimate_duration(job.model, key, settings) for key in keys]
    return DurationEstimate(sum(part.flops for part in parts), sum(part.seconds for part in parts))


def run_jobs(
    jobs: Sequence[SuiteJob],
    settings: MeasuringSettings,
    *,
    optimizers: Sequence[str] = (),
    facts: BenchmarkGrid | None = None,
    start_over: bool = False,
    time_limit_s: float | None = None,
    say: Say = lambda message: None,
    watch: Watch = lambda pace: None,
) -> list[dict[str, Any]]:
    """Measure every job into its file, and return the contents of the files that were started.

    A repeated call measures only missing shapes. The device's microbenchmarks (`facts`) run after the first job,
    and go into every file. Raises `ConfigError`, before any measurement, if a file was measured with other
    settings.
    """
    for job in jobs:
        if job.path.exists() and not start_over:
            continue_profile(job.path, model_header(job.path.stem, job.model_name, job.model, settings))
    waiting = [list(job.keys) if start_over else waiting_keys(job) for job in jobs]
    total = sum(expected_of(job, keys, settings).seconds for job, keys in zip(jobs, waiting, strict=True))
    pace = MeasuringProgress(total, time_limit_s=time_limit_s)
    watch(pace)

    def watched(message: str) -> None:
        say(message)
        watch(pace)

    contents: dict[Path, dict[str, Any]] = {}
    known: dict[str, Any] = {}
    for job in jobs:
        if len(jobs) > 1:
            watched(f"{job.model_name}: {len(job.keys)} shapes, into {job.path}")
        content = sweep(
            job, settings, optimizers=optimizers, start_over=start_over and job.path not in contents, say=watched,
            pace=pace,
        )  # fmt: skip
        watch(pace)
        if not any(content[name] for name in ("measurements", "does_not_fit", "failed")):
            break
        if facts:
            known = _with_facts(job, content, settings, known=known, grid=facts, pace=pace, say=watched)
            content = read_json(job.path)
        contents[job.path] = content
    return list(contents.values())


def _with_facts(
    job: SuiteJob, content: dict[str, Any], settings: MeasuringSettings, *, known: dict[str, Any],
    grid: BenchmarkGrid, pace: MeasuringProgress,
    say: Say,
) -> dict[str, Any]:  # fmt: skip
    dtype, there = str(type_of(job.keys[0])).removeprefix("torch."), content.get("device_facts") or {}
    if has_facts(there, dtype):
        return there
    if has_facts(known, dtype):
        write_atomically(job.path, to_json(content | {"device_facts": known}))
        return known
    if not pace.has_time_for(FACTS_S[settings.device]):
        say("facts of the device are left: the time is over")
        return {}
    return add_facts(str(job.path), settings, dtype, grid=grid, say=say)
