"""Calibration constants of the user's cluster from measured steps."""

from pathlib import Path
from statistics import median

import numpy as np

from ppsim.api.project import plan_of_keywords
from ppsim.api.read import MeasuredRun, file_format, files_of, read
from ppsim.base.errors import ConfigError
from ppsim.base.files import read_head
from ppsim.runs.log_totals import LogTotals
from ppsim.runs.readers.nsight import read_recordings
from ppsim.runs.readers.recording import Recording, kernels_per_step
from ppsim.trainers.primus.read_trace import is_dump
from ppsim.trainers.read_config import logged_arguments
from ppsim.trainers.torch.read_trace import recording_of
from ppsim.validation.fit_result import FitResult, calibration_rows, fit_cases
from ppsim.validation.published_runs import PublishedRun, RecordedTimes, RowProperties, cases_of


def fit(
    *runs: str | Path,
    cluster: str | None = None,
    run_config: str | Path | None = None,
    rows: str | None = None,
) -> FitResult:
    """Fit the constants of a cluster and of its jobs to measured steps; the priors are the GPU type's constants.

    `runs` are

    - CSV files or names of validation sets as for `ppsim.validate` (rows marked "fit", or all rows if none is
      marked; `rows` selects others, e.g. "1,3-5"), or
    - runs and logs as for `ppsim.read`, with the trainer's configuration as `run_config` (a Megatron-LM log
      contains it). The median step is used.

    If the rows are from several clusters, `cluster` selects one. Raises `ConfigError` for errors in any row, and if
    no row is usable.

    >>> import ppsim
    >>> with open("runs.csv", "w") as file:
    ...     _ = file.write("model,gpus,tp,pp,global_batch,metric,value\\nllama3-8b,16,2,2,64,iteration_s,3.4\\n")
    >>> found = ppsim.fit("runs.csv")
    >>> mine = ppsim.project(model="llama3-8b", gpus=16, tp=2, pp=2, global_batch=64, cluster=found.cluster)
    >>> 3.35 < mine.iteration_time_s < 3.45
    True
    """
    if not runs:
        raise ConfigError("there must be at least one measured run")
    cases = [case for one in runs for case in _cases(str(one), cluster, run_config, rows)]
    return fit_cases(cases, plan_of_keywords, source=", ".join(Path(one).name for one in runs), cluster=cluster)


def _cases(path: str, cluster: str | None, run_config: str | Path | None, rows: str | None) -> list[PublishedRun]:
    if Path(path).suffix.lower() == ".csv" or not Path(path).suffix:
        cases = cases_of(path)
        return calibration_rows(cases, rows or "fit", plan_of_keywords) or cases
    seconds, recorded, is_log = _step_of(path)
    if run_config is None and not is_log:
        raise ConfigError(
            f"{path} says how long its steps took, not what ran: give --run-config FILE and --cluster, or put the "
            "step into a .csv with the words of ppsim project"
        )
    if run_config is None and not logged_arguments(read_head(path)[0]):
        raise ConfigError(
            f"{path} has no arguments of Megatron-LM, so what ran is unknown: give --run-config FILE and --cluster"
        )
    options = {"run_config": str(run_config or path), **({"cluster": cluster} if cluster else {})}
    return [
        PublishedRun(
            RowProperties(metric="iteration_s", value=seconds, title=Path(path).name), options, recorded=recorded
        )
    ]


def _step_of(path: str) -> tuple[float, RecordedTimes | None, bool]:
    """Return the median step in seconds, its kernel times (else its pass times), and whether the file is a log."""
    name = Path(path).name
    if recordings := _recordings(path):
        totals, steps_s = zip(*map(kernels_per_step, recordings), strict=True)
        times = RecordedTimes(name, kernels=totals)
        if None not in steps_s:
            return max(steps_s), times, False
        return _run_of(path)[0], times, False
    measured = read(path)
    if isinstance(measured, LogTotals):
        timers = [measured.timers_s.get(f"{one}-compute") for one in ("forward", "backward")]
        passes_s = [sum(timer[1] for timer in timers if timer)] if all(timers) else []
        return measured.iteration_time_s, RecordedTimes(name, passes_s=passes_s) if passes_s else None, True
    seconds, passes_s = _run_of(measured)
    return seconds, RecordedTimes(name, passes_s=passes_s), False


def _recordings(path: str) -> list[Recording]:
    if is_dump(Path(path)):
        return []
    recordings = []
    for file in files_of(path):
        kind = file_format(file)
        if kind not in ("trace", "sqlite"):
            return []
        recordings += [recording_of(file)] if kind == "trace" else read_recordings(file)
    recordings.sort(key=lambda one: one.rank or 0)
    return recordings if all(one.device for one in recordings) else []


def _run_of(run: str | MeasuredRun) -> tuple[float, list[float]]:
    """Return the median seconds from one step start to the next, and the seconds of all passes of each rank."""
    recorded = read(run) if isinstance(run, str) else run
    assert isinstance(recorded, MeasuredRun)
    measured = recorded.measured.run
    table, actions = measured.graph.schedule, measured.graph.num_actions
    taken = np.median((measured.end - measured.start)[:, :actions], axis=0)
    between_s = max(0.0, median(measured.gaps_s)) if len(measured.gaps_s) else 0.0
    passes_s = np.bincount(table.rank, weights=taken, minlength=table.num_ranks)
    return median(recorded.step_times_s) + between_s, passes_s.tolist()
