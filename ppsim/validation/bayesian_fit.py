"""Bayesian fit of a cluster's and its jobs' constants to measured steps, with uncertainties.

Maximum a posteriori estimate with log-normal priors (`ppsim.validation.priors`). The remaining errors of jobs are a
Gaussian process (`ppsim.machine.job_similarity`). Laplace's approximation gives the uncertainty (Tierney and Kadane
1986, section 2).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.units import signed_percent
from ppsim.machine.cluster import Cluster, Constant, Constants
from ppsim.machine.job_similarity import MEASURED_SPREAD, USUAL, MeasuredJob, job_covariance
from ppsim.projection.plan import Plan
from ppsim.projection.summary import spread_of
from ppsim.validation.operator_fit import operator_constants
from ppsim.validation.priors import REST, Prior, priors_of, rest_of
from ppsim.validation.project_case import PlanOf, measured_of, project_run
from ppsim.validation.published_runs import PublishedRun

MOVED = 0.99
"""A constant counts as determined by the rows if posterior / prior standard deviation is below this."""

ADDED = 0.9
"""Threshold, like `MOVED`, for constants that are absent without a fit."""

_ROUNDS, _HALVINGS, _DONE, _NEAR, _STEP = 8, 6, 0.02, 0.3, 0.05
"""Gauss-Newton: maximum steps, and halvings per step. In prior sigmas: step at which to stop, step below which
the slopes are reused, and finite difference for the slopes.
"""

OUTLIER = 2.0
"""Standard deviations beyond which a row is reported as doubtful; beyond the same deviation from similar runs,
its loss is linear.
"""

_ROUNDS_OF_WEIGHTS, _SAME = 5, 0.1
"""Maximum number of reweightings, and relative change of weights at which to stop."""


@dataclass(frozen=True)
class MeasuredStep:
    """`name` is its place in a file ("runs.csv, row 3")."""

    case: PublishedRun
    plan: Plan
    measured_s: float
    name: str


@dataclass(frozen=True)
class ConstantEstimate:
    """`spread` is the standard deviation of the logarithm of the value."""

    prior: Prior
    value: float
    spread: float

    @property
    def moved(self) -> bool:
        return self.spread < MOVED * self.prior.spread


@dataclass(frozen=True)
class OutlierRow:
    """A row whose `error` is `times` the spread of its GPU type; the error is attributed to its job."""

    row: str
    error: float
    times: float

    def __str__(self) -> str:
        off = f"{self.row} by {signed_percent(self.error)}, {self.times:.1f} × the usual error of its GPU type"
        return f"{off}: specific to its job, with little effect on other jobs"


@dataclass(frozen=True)
class Posterior:
    """Result of a fit for a cluster and its jobs.

    - `found`: constants determined by the rows; `left`: constants that stay at their priors.
    - `runs`: runs of an earlier fit, then the rows, each with its time relative to the constants.
    - `before`, `after`: signed errors of the rows.
    - `jobs`: the model of each job; `rest` constants are numbered by this list.
    """

    cluster: Cluster
    rows: Sequence[MeasuredStep]
    found: list[ConstantEstimate]
    left: list[ConstantEstimate]
    correlation: Floats
    runs: tuple[MeasuredJob, ...]
    before: list[float]
    after: list[float]
    jobs: list[Any]
    outliers: list[OutlierRow]
    operators: Mapping[str, Constant] = field(default_factory=dict)

    def constants(self, source: str) -> Constants:
        mine = [index for index, one in enumerate(self.found) if not one.prior.name.startswith(REST)]
        names = [self.found[index].prior.name for index in mine]
        told = {
            one.prior.name: Constant(
                value=_rounded(one.value), sigma=_rounded(one.value * one.spread), source=_origin(one)
            )
            for one in (self.found[index] for index in mine)
        }
        pairs = {
            f"{names[a]} {names[b]}": round(float(self.correlation[mine[a], mine[b]]), 3)
            for a in range(len(mine)) for b in range(a)
        }  # fmt: skip
        stacks = {row.plan.job.stack for row in self.rows if row.plan.job}
        return replace(
            self.cluster.constants.having(told), runs=self.runs, fitted_on=(source,), correlation=pairs,
            stack=stacks.pop() if len(stacks) == 1 else "",
        )  # fmt: skip

    def rest_s(self, plan: Plan) -> float | None:
        names = {
            f"{REST}.{number}" for number, model in enumerate(self.jobs) if plan.job and model == plan.job.model
        }
        return next((_rounded(one.value) for one in self.found if one.prior.name in names), None)


def _origin(one: ConstantEstimate) -> str:
    return f"fit, from {one.prior.median:.3g} within {100 * one.prior.spread:.0f} % ({one.prior.reason})"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def rows_of(
    cases: Sequence[PublishedRun], plan_of: PlanOf, source: str
) -> tuple[list[MeasuredStep], list[tuple[PublishedRun, str]]]:
    rows, refused = [], []
    for number, case in enumerate(cases, start=1):
        try:
            if case.properties.unexpressed:
                raise ConfigError(case.properties.unexpressed)
            if case.is_memory:
                raise ConfigError("memory tells nothing of times")
            plan = plan_of(case.options)
            if plan.job is None:
                raise ConfigError("without a model, costs are measured and no cluster's")
            rows.append(MeasuredStep(case, plan, measured_of(case, plan), f"{source}, row {case.number or number}"))
        except PpsimError as error:
            refused.append((case, str(error).splitlines()[0]))
    return rows, refused


def fit_rows(rows: Sequence[MeasuredStep], plan_of: PlanOf) -> Posterior:
    if not rows:
        raise ConfigError("there is no row to fit on")
    clusters = {row.plan.job.cluster.name: row.plan.job.cluster for row in rows if row.plan.job}
    if len(clusters) > 1:
        raise ConfigError(f"rows are of {len(clusters)} clusters, {', '.join(clusters)}: name one by --cluster")
    (cluster,) = clusters.values()
    if operators := _operators(rows):
        cluster = cluster.with_constants(cluster.constants.having(operators))
        rows = [replace(row, plan=plan_of(_with_cluster(row, cluster))) for row in rows]
    plans = [row.plan for row in rows]
    jobs: list[Any] = []
    for plan in plans:
        if plan.job and plan.job.model not in jobs:
            jobs.append(plan.job.model)
    asked = [
        one for one in priors_of(cluster, plans)
        if any(_may_depend(row, one.name, ()) for row in rows) and not _is_measured(one.name, operators)
    ]  # fmt: skip
    for number, model in enumerate(jobs):
        ran = [row for row in rows if row.plan.job and row.plan.job.model == model]
        if len(ran) > 1:  # one step cannot separate extra time from a rate
            asked.append(rest_of(number, [row.plan for row in ran], min(row.measured_s for row in ran)))
    question = FitProblem(cluster, rows, jobs, plan_of)
    solved = question.solved(asked)
    if untold := _undetermined(
        asked, solved, cluster
    ):  # otherwise the rates would compensate for the removed constants
        without = {one.prior for one in untold}
        asked = [one for one in asked if one not in without]
        solved = question.solved(asked)
    places = [place for place, spread in enumerate(solved.spreads) if spread < MOVED]
    told = [
        ConstantEstimate(prior, prior.value(at) if place in places else prior.median, prior.spread * spread)
        for place, (prior, at, spread) in enumerate(zip(asked, solved.at, solved.spreads, strict=True))
    ]
    found, left = (
        [one for place, one in enumerate(told) if (place in places) == is_told] for is_told in (True, False)
    )
    machine, at = [asked[place] for place in places], solved.at[places]
    runs = question.runs(machine, at, solved.sigmas)
    before = [math.log(project_run(row.case, row.plan) / row.measured_s) for row in rows]
    return Posterior(
        cluster, rows, found, [*left, *untold], solved.correlation[np.ix_(places, places)], runs,
        np.expm1(before).tolist(), np.expm1(question.logs(machine, at, runs=runs)).tolist(), jobs,
        _doubts(rows, before), operators,
    )  # fmt: skip


def _operators(rows: Sequence[MeasuredStep]) -> dict[str, Constant]:
    """For a kind of operator in several runs, the constant is the geometric mean."""
    by_name: dict[str, list[Constant]] = {}
    for row in rows:
        for name, one in operator_constants(row.plan, row.case.recorded).items() if row.case.recorded else ():
            by_name.setdefault(name, []).append(one)
    found = {}
    for name, ones in by_name.items():
        value = _rounded(math.exp(sum(math.log(one.value) for one in ones) / len(ones)))
        found[name] = Constant(value=value, sigma=_rounded(MEASURED_SPREAD * value), source=ones[-1].source)
    return found


def _is_measured(name: str, operators: Mapping[str, Constant]) -> bool:
    """Measured GEMMs contain the effect of the rate of their dtype."""
    kind, _, dtype = name.partition(".")
    return kind == "compute_share" and any(
        f"operator_time.{one}-{dtype}" in operators for one in ("gemm", "experts")
    )


def _with_cluster(row: MeasuredStep, cluster: Cluster) -> dict[str, Any]:
    job = row.plan.job
    stack = {"stack": job.stack} if job and job.stack_basis else {}
    return {**row.case.options, **stack, "cluster": cluster}


def _undetermined(asked: Sequence[Prior], solved: "_Solved", cluster: Cluster) -> list[ConstantEstimate]:
    """Return extra step times, and new launch times, that the rows cannot separate from a rate."""
    nothing = ("launch_s",) if cluster.constants.launch_s is None else ()
    return [
        ConstantEstimate(one, one.median, one.spread * spread)
        for one, spread in zip(asked, solved.spreads, strict=True)
        if spread > ADDED and (one.name.startswith(REST) or one.name in nothing)
    ]


def _doubts(rows: Sequence[MeasuredStep], logs: Sequence[float]) -> list[OutlierRow]:
    found = [
        OutlierRow(row.name, float(np.expm1(log)), abs(log) / spread_of(row.plan))
        for row, log in zip(rows, logs, strict=True)
    ]
    return [one for one in found if one.times > OUTLIER]


@dataclass(frozen=True)
class _Solved:
    """Posterior deviations are in prior sigmas; `sigmas` are the deviations of the runs."""

    at: Floats
    spreads: Floats
    correlation: Floats
    sigmas: Floats


@dataclass(frozen=True)
class FitProblem:
    """Rows of a cluster and the models of their jobs."""

    cluster: Cluster
    rows: Sequence[MeasuredStep]
    jobs: Sequence[Any]
    plan_of: PlanOf

    @property
    def earlier(self) -> tuple[MeasuredJob, ...]:
        return self.cluster.constants.runs

    def logs(
        self,
        priors: Sequence[Prior],
        at: Floats,
        only: Sequence[int] | None = None,
        runs: tuple[MeasuredJob, ...] = (),
    ) -> Floats:
        """Return log(projected / measured) per row, for constants `at` prior sigmas from their medians.

        `only` restricts the rows (others are 0); `runs` are the cluster's measured runs.
        """
        values = {prior.name: prior.value(one) for prior, one in zip(priors, at.tolist(), strict=True)}
        machine = {name: Constant(value=value) for name, value in values.items() if not name.startswith(REST)}
        cluster = self.cluster.with_constants(replace(self.cluster.constants.having(machine), runs=runs))
        found = np.zeros(len(self.rows))
        for index in range(len(self.rows)) if only is None else only:
            row = self.rows[index]
            words = _with_cluster(row, cluster)
            if (rest := values.get(self._rest(row))) is not None:
                words["rest"] = rest
            found[index] = np.log(project_run(row.case, self.plan_of(words)) / row.measured_s)
        return found

    def runs(self, priors: Sequence[Prior], at: Floats, sigmas: Floats) -> tuple[MeasuredJob, ...]:
        rests = {one.name: one.value(there) for one, there in zip(priors, at.tolist(), strict=True)}
        found = list(self.earlier)
        for row, log, sigma in zip(self.rows, self.logs(priors, at), sigmas[: len(self.rows)], strict=True):
            job = row.plan.job
            assert job is not None
            projected, rest = row.measured_s * math.exp(log), rests.get(self._rest(row), job.rest_s)
            rest = min(rest, row.measured_s / 2)  # a step shorter than its rest would be negative
            times = _rounded((row.measured_s - rest) / (projected - rest))
            spread = _rounded(spread_of(row.plan))
            found.append(MeasuredJob(**vars(job.job_features), times=times, sigma=_rounded(sigma), spread=spread))
        return tuple(found)

    def _rest(self, row: MeasuredStep) -> str:
        return f"{REST}.{self.jobs.index(row.plan.job.model if row.plan.job else None)}"

    def slopes(self, priors: Sequence[Prior], at: Floats, now: Floats) -> Floats:
        """Return the derivatives of `logs`, shape [rows, constants]."""
        found = np.zeros((len(self.rows), len(priors)))
        for column, prior in enumerate(priors):
            moved = at.copy()
            moved[column] += _STEP * (-1 if prior.value(at[column] + _STEP) == prior.value(at[column]) else 1)
            only = [index for index, row in enumerate(self.rows) if _may_depend(row, prior.name, self.jobs)]
            there = self.logs(priors, moved, only)
            found[only, column] = (there[only] - now[only]) / (moved[column] - at[column])
        return found

    def solved(self, priors: Sequence[Prior]) -> _Solved:
        """Outliers have reduced weight: runs with a large error, or with a much larger error than similar runs."""
        jobs = [*(row.plan.job.job_features for row in self.rows if row.plan.job), *self.earlier]
        spreads = np.array(
            [*map(spread_of, (row.plan for row in self.rows)), *(run.spread for run in self.earlier)]
        )
        common = np.outer(spreads, spreads) * job_covariance(jobs, jobs)
        known = np.array([MEASURED_SPREAD] * len(self.rows) + [run.sigma for run in self.earlier])
        sigmas, state = known, _State(np.zeros(len(priors)), self.logs(priors, np.zeros(len(priors))))
        past: Floats = np.array([-math.log(run.times) for run in self.earlier])
        weights: Floats = np.zeros(0)
        for _ in range(_ROUNDS_OF_WEIGHTS):
            errors, last = np.concatenate([state.errors, past]), weights
            own = sigmas**2 * np.linalg.solve(common + np.diag(sigmas**2), errors)
            sigmas, usual = known / np.sqrt(_usual(own / known, OUTLIER)), _usual(errors / spreads, USUAL)
            weights = np.concatenate([sigmas, usual])
            if len(last) and np.allclose(weights, last, rtol=_SAME):
                break
            root: Floats = np.sqrt(usual)
            information: Floats = np.asarray(
                np.linalg.inv(common + np.diag(sigmas**2)) * np.outer(root, root), float
            )
            state = self._most_probable(priors, state, information, past)
        slopes = np.zeros((len(self.rows), 0)) if state.slopes is None else state.slopes
        mine = information[: len(self.rows), : len(self.rows)]
        covariance = np.linalg.inv(slopes.T @ mine @ slopes + np.eye(len(priors)))
        deviations = np.sqrt(np.diag(covariance))
        return _Solved(state.at, deviations, covariance / np.outer(deviations, deviations), sigmas)

    def _most_probable(
        self, priors: Sequence[Prior], state: "_State", information: Floats, past: Floats
    ) -> "_State":
        """Gauss-Newton with step halving until the probability increases; `past` are errors of earlier runs."""
        mine = information[: len(self.rows), : len(self.rows)]
        push = information[: len(self.rows), len(self.rows) :] @ past

        def cost(at: Floats, errors: Floats) -> float:
            return float(errors @ mine @ errors + 2 * errors @ push + at @ at)

        at, errors, slopes = state.at, state.errors, state.slopes
        for _ in range(_ROUNDS if priors else 0):
            if slopes is None:
                slopes = self.slopes(priors, at, errors)
            step = np.linalg.solve(
                slopes.T @ mine @ slopes + np.eye(len(at)), -slopes.T @ (mine @ errors + push) - at
            )  # fmt: skip
            for _ in range(_HALVINGS):
                tried = self.logs(priors, at + step)
                if cost(at + step, tried) <= cost(at, errors):
                    break
                step = step / 2
            else:
                break
            at, errors = at + step, tried
            size = float(np.max(np.abs(step)))
            if size < _DONE:
                break
            slopes = slopes if size < _NEAR else None
        return _State(at, errors, self.slopes(priors, at, errors) if slopes is None else slopes)


def _usual(deviations: Floats, most: float) -> Floats:
    """Huber weights (Huber 1964): 1 up to `most` deviations, then inversely proportional to the deviation."""
    found: Floats = np.minimum(1.0, most / np.maximum(np.abs(deviations), 1e-12))
    return found


@dataclass(frozen=True)
class _State:
    """Constants in prior sigmas, errors of rows, and slopes if still valid."""

    at: Floats
    errors: Floats
    slopes: Floats | None = None


def _may_depend(row: MeasuredStep, name: str, jobs: Sequence[Any]) -> bool:
    """If False, the slope is zero, and its computation is skipped."""
    job = row.plan.job
    assert job is not None
    kind, _, of = name.partition(".")
    if kind == "compute_share":
        return of == job.execution.dtype
    if kind == REST:
        return bool(jobs[int(of)] == job.model)
    if name == "overlap.tp":
        return job.layout.tp > 1 and max(job.execution.hidden_tp_forward, job.execution.hidden_tp_backward) > 0
    if name == "overlap.ep":
        return job.layout.ep > 1 and job.execution.hidden_ep > 0
    if name == "routing_host_s":
        return any(layer.is_moe for layer in job.model.kinds)
    return True


def fitted_plan_of(posteriors: Mapping[str, Posterior], plan_of: PlanOf) -> PlanOf:
    clusters = {
        name: one.cluster.with_constants(one.constants("the rows fitted on")) for name, one in posteriors.items()
    }

    def fitted(words: Mapping[str, Any]) -> Plan:
        plan = plan_of(words)
        name = plan.job.cluster.name if plan.job else ""
        if name not in posteriors:
            return plan
        changed: dict[str, Any] = {"cluster": clusters[name]}
        if (rest := posteriors[name].rest_s(plan)) is not None:
            changed["rest"] = rest
        return plan_of({**words, **changed})

    return fitted
