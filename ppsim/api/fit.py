"""Calibration constants of the user's cluster from measured steps."""

from pathlib import Path
from statistics import median

from ppsim.api.project import plan_of
from ppsim.api.read import read
from ppsim.base.errors import ConfigError
from ppsim.runs.log_totals import Totals
from ppsim.validation.calibration_rows import chosen_rows
from ppsim.validation.fit_result import Fitted, fitted
from ppsim.validation.published_runs import Case, Told, cases_of


def fit(
    *runs: str | Path,
    cluster: str | None = None,
    run_config: str | Path | None = None,
    rows: str | None = None,
) -> Fitted:
    """Fit the constants of a cluster and of its jobs to measured steps; the priors are the GPU type's constants.

    `runs` are

    - CSV files as for `ppsim.validate` (rows marked "fit", or all rows if none is marked; `rows` selects others,
      e.g. "1,3-5"),
    - names of validation sets, or
    - runs and logs as for `ppsim.read`. The median step is used, and `run_config` is the trainer's configuration of
      the run (a Megatron-LM log contains it).

    `cluster` is the cluster of the runs; if the rows are from several clusters, only its rows are used.

    `.cluster` of the result is an input of `ppsim.project`; `ppsim.save(found, "mine.toml")` writes it. Raises
    `ConfigError` for errors in any row, for rows of several clusters without `cluster`, and if no row is usable.

    >>> import ppsim
    >>> with open("runs.csv", "w") as file:
    ...     _ = file.write("model,gpus,tp,pp,global_batch,metric,value\\nllama3-8b,16,2,2,64,iteration_s,3.0\\n")
    >>> found = ppsim.fit("runs.csv")
    >>> mine = ppsim.project(model="llama3-8b", gpus=16, tp=2, pp=2, global_batch=64, cluster=found.cluster)
    >>> 2.9 < mine.iteration_time_s < 3.1
    True
    """
    if not runs:
        raise ConfigError("there must be at least one measured run")
    cases = [case for one in runs for case in _cases(str(one), cluster, run_config, rows)]
    return fitted(cases, plan_of, source=", ".join(Path(one).name for one in runs), cluster=cluster)


def _cases(path: str, cluster: str | None, run_config: str | Path | None, rows: str | None) -> list[Case]:
    if Path(path).suffix.lower() == ".csv" or not Path(path).suffix:
        cases = cases_of(path)
        return chosen_rows(cases, rows or "fit", plan_of) or cases
    found = read(path)
    if isinstance(found, Totals):
        seconds, config = found.iteration_time_s, run_config or path
    elif run_config is None:
        raise ConfigError(
            f"{path} says how long its steps took, not what ran: give --run-config FILE and --cluster, or put the "
            "step into a .csv with the words of ppsim project"
        )
    else:
        seconds, config = median(found.step_times_s), run_config
    words = {"run_config": str(config), **({"cluster": cluster} if cluster else {})}
    return [Case(Told(metric="iteration_s", value=seconds, title=Path(path).name), words)]
