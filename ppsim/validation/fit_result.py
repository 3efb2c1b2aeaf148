"""Results of `ppsim fit` (constants of a cluster and its jobs) and of `ppsim validate --fit-on`, and their rows."""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.display import Printable
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.costs.similar_jobs import features_of
from ppsim.machine.cluster import Cluster, Constants
from ppsim.machine.cluster_files import cluster_named, load_cluster, packaged_clusters
from ppsim.machine.job_similarity import MeasuredJob
from ppsim.validation.bayesian_fit import (
    REST,
    ConstantEstimate,
    MeasuredStep,
    Posterior,
    fit_rows,
    fitted_plan_of,
    rows_of,
)
from ppsim.validation.error_summary import CaseError, ErrorSummary, coverage_of, score_of, validate_set
from ppsim.validation.project_case import PlanOf, measured_of, project_run
from ppsim.validation.published_runs import PublishedRun, case_sets, cases_of, require_set

if TYPE_CHECKING:
    import pandas

_START = {
    "compute_share": 1.0,
    "kernel_s": 10e-6,
    "launch_s": 1e-3,
    "jitter": 0.02,
    "overlap_slowdown": 0.5,
    "rest": 0.1,
}
_OUTLIER = 0.02
"""Relative error beyond which the loss is linear instead of quadratic (Huber 1964)."""


@dataclass(frozen=True)
class FittedCluster:
    """Names are as in `Constants.named`, or options of the jobs that were fitted together with the constants."""

    cluster: Cluster
    found: dict[str, float]
    in_use: dict[str, float]
    num_rows: int


def fit_cluster(name: str, plan_of: PlanOf, *, rounds: int = 30) -> FittedCluster:
    """Gauss-Newton on relative errors of time, from fixed starting values, with reduced weight beyond `_OUTLIER`.

    Raises `ConfigError` for a cluster whose constants come from no set.
    """
    cluster = load_cluster(name)
    sets = [require_set(one) for one in cluster.constants.fitted_on]
    cases = [case for one in cluster.constants.fitted_on for case in cases_of(one) if case.properties.use == "fit"]
    if not cases:
        raise ConfigError(f"the constants of cluster '{name}' were fitted on no set")
    in_use = {constant: one.value for constant, one in cluster.constants.named.items()}
    in_use |= {word: told.defaults[word] for told in sets for word in told.fitted}
    names = list(in_use)
    values = np.array([_START[constant.partition(".")[0]] for constant in names])
    measured = np.array([measured_of(case, plan_of(case.options)) for case in cases])

    def errors(values: Floats) -> Floats:
        tried = dict(zip(names, values.tolist(), strict=True))
        machine = cluster.with_constants(cluster.constants.with_values(tried))
        settings = {name: value for name, value in tried.items() if name not in cluster.constants.named}
        plans = (plan_of({**case.options, "cluster": machine, **settings}) for case in cases)
        found: Floats = np.array(list(map(project_run, cases, plans))) / measured - 1
        return found

    for _ in range(rounds):
        now = errors(values)
        slopes = np.empty((len(cases), len(names)))
        for index, value in enumerate(values):
            moved = values.copy()
            moved[index] += (by := 1e-3 * max(value, 1e-6))
            slopes[:, index] = (errors(moved) - now) / by
        weights = np.sqrt(np.minimum(1.0, _OUTLIER / np.maximum(np.abs(now), 1e-12)))
        step = np.linalg.lstsq(slopes * weights[:, None], -now * weights, rcond=None)[0]
        values = np.maximum(values + step, 0.0)
        if np.all(np.abs(step) <= 1e-4 * np.maximum(values, 1e-7)):
            break
    found = {constant: float(f"{value:.3g}") for constant, value in zip(names, values, strict=True)}
    return FittedCluster(cluster, found, in_use, len(cases))


MARKED, ONE, ONE_A_MODEL = "fit", "one", "one-a-model"

SPARING = (MARKED, ONE, ONE_A_MODEL)
"""Selections with which rows marked fit are never test rows."""


def calibration_rows(cases: Sequence[PublishedRun], selection: str, plan_of: PlanOf) -> list[PublishedRun]:
    """Rows are selected by "fit", "one", "one-a-model" or row numbers such as "1,3-5" (from 1).

    "fit" selects marked rows. "one" selects, for each cluster and dtype, the run with the fewest GPUs (among rows
    marked fit, if any). "one-a-model" selects one for each model too. Raises `ConfigError` for other values.
    """
    if selection == MARKED:
        return [case for case in cases if case.properties.use == "fit"]
    if selection in (ONE, ONE_A_MODEL):
        return _smallest(cases, plan_of, of_each_model=selection == ONE_A_MODEL)
    numbers = _numbers(selection)
    if beyond := sorted(numbers - {case.number for case in cases}):
        raise ConfigError(f"there is no row {beyond[0]}: rows are 1 to {len(cases)}")
    return [case for case in cases if case.number in numbers]


def _smallest(cases: Sequence[PublishedRun], plan_of: PlanOf, *, of_each_model: bool) -> list[PublishedRun]:
    smallest: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for index, case in enumerate(cases):
        try:
            job = None if case.properties.unexpressed or case.is_memory else plan_of(case.options).job
        except PpsimError:
            continue
        if job is not None:
            kind = job.cluster.name, job.execution.dtype, features_of(job).model if of_each_model else ""
            smallest.setdefault(kind, []).append((job.layout.num_devices, index))
    chosen = []
    for ran in smallest.values():
        marked = [one for one in ran if cases[one[1]].properties.use == "fit"]
        chosen.append(min(marked or ran)[1])
    return [cases[index] for index in sorted(chosen)]


def _numbers(text: str) -> set[int]:
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise ConfigError(f"rows to fit on are {', '.join(SPARING)} or numbers as 1,3-5: got {text!r}")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


DEFAULT_BASE = "dgx-h100"


@dataclass(frozen=True, repr=False)
class FitResult(Printable):
    """Constants fitted to measured steps of a cluster, whose name or file is `base`, and of its jobs.

    `skipped` are unusable rows with the reason. `source` names the files of the rows.

    >>> import ppsim
    >>> with open("runs.csv", "w") as file:
    ...     _ = file.write("model,gpus,tp,pp,global_batch,metric,value\\nllama3-8b,16,2,2,64,iteration_s,3.0\\n")
    >>> found = ppsim.fit("runs.csv")
    >>> [run.title for run in found.constants.runs]
    ['llama3-8b/bfloat16 on 16, tp2-cp1-ep1-pp2-b1-s8192']
    """

    posterior: Posterior
    base: str
    source: str
    skipped: Sequence[tuple[PublishedRun, str]]

    @property
    def one_line(self) -> str:
        return f"{self.base}: {', '.join(self.constants.named) or 'nothing'} from {self.source}"

    @property
    def constants(self) -> Constants:
        return self.posterior.constants(self.source)

    @property
    def cluster(self) -> Cluster:
        return self.posterior.cluster.with_constants(self.constants)

    @property
    def rests(self) -> dict[str, ConstantEstimate]:
        """Fitted extra step times (not covered by any model part) by the model's name."""
        return {
            self._job_name(one): one for one in self.posterior.found if one.prior.name.startswith(REST)
        }  # fmt: skip

    def _job_name(self, estimate: ConstantEstimate) -> str:
        model = self.posterior.jobs[int(estimate.prior.name.partition(".")[2])]
        return next(
            row.case.properties.title or row.plan.job.model_name
            for row in self.posterior.rows if row.plan.job and row.plan.job.model == model
        )  # fmt: skip

    @property
    def estimates(self) -> list[ConstantEstimate]:
        """Constants that the rows determine come first."""
        return [*self.posterior.found, *self.posterior.left]

    def to_json(self) -> dict[str, Any]:
        posterior = self.posterior
        return {
            "cluster": posterior.cluster.name,
            "fitted_on": self.source,
            "constants": self._constants(),
            "outliers": [asdict(outlier) for outlier in posterior.outliers],
            "extra_step_time_s": {name: rest.value for name, rest in self.rests.items()},
            "correlation": dict(self.constants.correlation),
            "runs": [asdict(run) for run in self.constants.runs],
            "rows": [
                {"row": row.name, "command": row.case.command, "measured_s": row.measured_s,
                 "error_before": before, "error_after": after}
                for row, before, after in zip(posterior.rows, posterior.before, posterior.after, strict=True)
            ],
            "skipped": [{"command": case.command, "reason": reason} for case, reason in self.skipped],
        }  # fmt: skip

    def _constants(self) -> list[dict[str, Any]]:
        return [
            {"constant": estimate.prior.name, "is_determined": index < len(self.posterior.found),
             "value": estimate.value, "relative_sigma": estimate.spread, "prior": estimate.prior.median,
             "prior_relative_sigma": estimate.prior.spread, "prior_reason": estimate.prior.reason}
            for index, estimate in enumerate(self.estimates)
        ]  # fmt: skip

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with one row per constant of the fit.

        is_determined is False if a constant stays at its prior; "rest.0" is the extra step time of the first job,
        in seconds.

        >>> import ppsim
        >>> ppsim.fit("dgxc-gb200", rows="one").to_frame()["constant"][0]
        'compute_share.bfloat16'
        """
        import pandas

        return pandas.DataFrame(self._constants())

    def to_calibration(self, path: str | Path) -> dict[str, Any]:
        """Return the part of a calibration file at `path` with the fitted constants, which extend the base cluster.

        >>> import ppsim
        >>> with open("runs.csv", "w") as file:
        ...     said = file.write("model,gpus,tp,pp,global_batch,cluster,metric,value\\n")
        ...     said = file.write("llama3-8b,8,2,2,32,dgx-h100,iteration_s,3.0\\n")
        >>> ppsim.fit("runs.csv").to_calibration("mine.json")["base"]
        'dgx-h100'
        """
        constants, base = self.constants, self.base
        if base not in packaged_clusters():
            base = os.path.relpath(base, Path(path).resolve().parent)
        number = len(self.posterior.rows)
        steps = "a measured step" if number == 1 else f"{number} measured steps"
        fitted_names = {*(one.prior.name for one in self.posterior.found), *self.posterior.operators}
        written: dict[str, Any] = {}
        for name, one in constants.named.items():
            if name in fitted_names:
                kind, _, which = name.partition(".")
                (written.setdefault(kind, {}) if which else written)[which or kind] = asdict(one)
        return {
            "base": base,
            "title": f"{self.posterior.cluster.title}, fitted to {steps}",
            "source": f"ppsim fit {self.source}",
            "constants": {
                **written,
                "fitted_on": [self.source],
                **({"stack": constants.stack} if constants.stack else {}),
                "runs": [_without_defaults(run) for run in constants.runs],
                "correlation": dict(constants.correlation),
            },
        }


def _without_defaults(run: MeasuredJob) -> dict[str, Any]:
    defaults = {one.name: one.default for one in fields(MeasuredJob)}
    return {name: value for name, value in vars(run).items() if value != defaults[name]}


def fit_cases(
    cases: Sequence[PublishedRun], plan_of: PlanOf, *, source: str, cluster: str | None = None
) -> FitResult:
    """Raises `ConfigError` for cases of several clusters without `cluster`, and if no case is usable."""
    rows, listed = rows_of(cases, plan_of, source)
    if cluster is not None:
        cases_of_cluster = [row for row in rows if _cluster_of(row) == cluster]
        listed += [(row.case, f"ran on {_cluster_of(row)}") for row in rows if row not in cases_of_cluster]
        rows = cases_of_cluster
    if not rows:
        reasons = [f"{case.number or 'run'}: {reason}" for case, reason in listed]
        raise ConfigError("\n  ".join([f"{source} has no row to fit on", *reasons]))
    return FitResult(fit_rows(rows, plan_of), _cluster_of(rows[0]), source, listed)


def _cluster_of(row: MeasuredStep) -> str:
    return cluster_named(str(row.case.settings.get("cluster") or DEFAULT_BASE))


@dataclass(frozen=True)
class AfterFit:
    """Test rows are pairs of errors before and after the fit; `skipped` rows cannot be projected."""

    name: str
    fits: list[Posterior]
    test_rows: list[tuple[CaseError, CaseError]]
    skipped: list[tuple[PublishedRun, str]]

    @property
    def scores(self) -> tuple[ErrorSummary, ErrorSummary]:
        """Errors of the test rows before and after the fit."""
        before, after = (score_of([pair[index].error for pair in self.test_rows]) for index in (0, 1))
        return before, after

    @property
    def coverage(self) -> tuple[int, int] | None:
        """As `coverage_of`, of the test rows after the fit."""
        return coverage_of([after for _, after in self.test_rows])

    def to_json(self) -> dict[str, Any]:
        before, after = self.scores
        return {
            "set": self.name,
            "fits": [
                {"cluster": one.cluster.name, "rows": [row.name for row in one.rows],
                 "constants": {told.prior.name: told.value for told in one.found},
                 "outliers": [asdict(doubt) for doubt in one.outliers]}
                for one in self.fits
            ],
            "before": asdict(before),
            "after": asdict(after),
            "coverage": self.coverage,
            "rows": [
                {**row.to_json(), "row": row.case.number, "error_before": unfitted.error}
                for unfitted, row in self.test_rows
            ],
            "skipped": [{"command": case.command, "reason": reason} for case, reason in self.skipped],
        }  # fmt: skip


@dataclass(frozen=True, repr=False)
class AfterFits(Printable):
    """Sets before and after a fit to some of their rows; `str` is the output of `ppsim validate --fit-on`.

    >>> import ppsim
    >>> found = ppsim.validate("dgxc-405b", fit_on="one")
    >>> (one,) = found.sets
    >>> [row.name for row in one.fits[0].rows], len(one.test_rows)
    (['dgxc-405b, row 1', 'dgxc-405b, row 4'], 2)
    """

    sets: list[AfterFit]

    def to_json(self) -> dict[str, Any]:
        return {"sets": [run_set.to_json() for run_set in self.sets]}

    def to_frame(self) -> "pandas.DataFrame":
        import pandas

        return pandas.DataFrame(
            [
                {"set": run_set.name, "row": after.case.number, "measured_s": after.measured,
                 "error_before": before.error, "error_after": after.error}
                for run_set in self.sets for before, after in run_set.test_rows
            ]
        )  # fmt: skip


def after_fits(name: str | None, selection: str, plan_of: PlanOf, *, announce: Callable[[str], None]) -> AfterFits:
    """`selection` is as in `calibration_rows`.

    Raises `ConfigError` for an unknown set, and for a named set without any row to fit to.
    """
    fits = []
    for one in case_sets() if name is None else [name]:
        if name is None and (case_sets()[one].order_only or all(case.is_memory for case in cases_of(one))):
            continue
        announce(one)
        fit = _after_fit(one, selection, plan_of)
        if fit.fits:
            fits.append(fit)
        elif name is not None:
            raise ConfigError(
                f"no row of {name} can be fitted on: mark some fit, name them by number, or take one a dtype (one)"
            )
    return AfterFits(fits)


def _after_fit(name: str, which: str, plan_of: PlanOf) -> AfterFit:
    cases = cases_of(name)
    chosen = calibration_rows(cases, which, plan_of)
    rows, _ = rows_of(chosen, plan_of, name)
    clusters: dict[str, list[MeasuredStep]] = {}
    for row in rows:
        assert row.plan.job is not None
        clusters.setdefault(row.plan.job.cluster.name, []).append(row)
    fits = {cluster: fit_rows(ran, plan_of) for cluster, ran in clusters.items()}
    used = {case.number for case in chosen}
    others = [
        case for case in cases if case.number not in used and (case.properties.use != "fit" or which not in SPARING)
    ]
    if not fits:
        return AfterFit(name, [], [], [])
    before = validate_set(name, plan_of, others)
    after = validate_set(name, fitted_plan_of(fits, plan_of), others)
    return AfterFit(name, list(fits.values()), list(zip(before.rows, after.rows, strict=True)), before.skipped)
