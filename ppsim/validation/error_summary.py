"""Signed errors of a set for ppsim, for a constant MFU and for other tools on the same rows.

Errors are projected / measured − 1 of time or bytes: negative is optimistic.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.file_schema import non_default_fields
from ppsim.projection.loss_breakdown import interval_by_spread
from ppsim.projection.plan import Plan
from ppsim.projection.project import outcome_of
from ppsim.projection.summary import exposed_dp_s, fitted_spread, slow_host_s, source_spread, spread_of
from ppsim.validation.project_case import PlanOf, measured_of, project_run
from ppsim.validation.published_runs import CaseSet, PublishedRun, case_sets, cases_of, require_set


@dataclass(frozen=True)
class CaseError:
    """Values are seconds or bytes; `constant_mfu` is the value at a constant MFU (None: unknown).

    `spread` is the standard deviation of log(projected seconds); 0 for bytes. `longest_s`: the upper end of the
    interval is at least this, if the host may limit an eager step or data-parallel communication may be exposed.
    """

    case: PublishedRun
    plan: Plan
    measured: float
    projected: float
    constant_mfu: float | None
    spread: float = 0.0
    longest_s: float = 0.0

    @property
    def error(self) -> float:
        return self.projected / self.measured - 1

    @property
    def kind(self) -> Literal["dense", "MoE"]:
        """The kind is "dense" for measured costs."""
        job = self.plan.job
        return "MoE" if job is not None and job.model.has_experts else "dense"

    @property
    def inside_interval(self) -> bool | None:
        """None for bytes, which have no interval."""
        if self.case.is_memory:
            return None
        low, high = interval_by_spread(self.projected, self.spread)
        return low <= self.measured <= max(high, self.longest_s)

    @property
    def constant_mfu_error(self) -> float | None:
        return None if self.constant_mfu is None else self.constant_mfu / self.measured - 1

    @property
    def other_error(self) -> float | None:
        properties = self.case.properties
        return None if properties.other is None else properties.other / properties.value - 1

    def to_json(self) -> dict[str, Any]:
        unit = "bytes" if self.case.is_memory else "s"
        plan, job = self.plan, self.plan.job
        return {
            **non_default_fields(self.case.properties),
            "use": self.case.properties.use,
            "table": self.case.properties.table,
            "title": self.case.properties.title,
            "schedule": plan.schedule_name,
            "gpus": plan.pp * plan.source.gpus_per_rank,
            **({} if job is None else {"cluster": job.cluster.name, "dtype": job.execution.dtype}),
            "options": dict(self.case.settings),
            "command": self.case.command,
            f"measured_{unit}": self.measured,
            f"projected_{unit}": self.projected,
            "error": self.error,
            "inside_interval": self.inside_interval,
            "constant_mfu_error": self.constant_mfu_error,
            "other_error": self.other_error,
        }


@dataclass(frozen=True)
class ErrorSummary:
    """`worst` is the largest error with its sign."""

    num_rows: int
    mean: float
    mean_absolute: float
    worst: float


@dataclass(frozen=True)
class SetValidation:
    """A set's rows and their evaluation; scores use the test rows, or the fit rows if there are no others.

    - `rank_correlations`: Spearman's correlation of measured and projected values, per group of schedules.
    - `groups_in_order`: number of groups with the right order of all schedules whose measurements differ.
    """

    name: str
    properties: CaseSet
    rows: list[CaseError]
    mfu_basis: str
    rank_correlations: dict[str, float]
    groups_in_order: int
    skipped: list[tuple[PublishedRun, str]]

    @property
    def test_rows(self) -> list[CaseError]:
        return [row for row in self.rows if row.case.properties.use == "test"] or self.rows

    @property
    def calibration_rows(self) -> list[CaseError]:
        return [row for row in self.rows if row.case.properties.use == "fit"]

    @property
    def score(self) -> ErrorSummary:
        return score_of([row.error for row in self.test_rows])

    @property
    def clusters_fitted_on_file(self) -> list[str]:
        """Clusters whose constants were fitted to the file of this set; empty for packaged sets."""
        if self.name in case_sets():
            return []
        clusters = [row.plan.job.cluster for row in self.rows if row.plan.job is not None]
        sources = {cluster.name: ", ".join(cluster.constants.fitted_on).split(", ") for cluster in clusters}
        return sorted(name for name, files in sources.items() if Path(self.name).name in files)

    @property
    def calibration_score(self) -> ErrorSummary | None:
        return score_of([row.error for row in self.calibration_rows]) if self.calibration_rows else None

    @property
    def constant_mfu(self) -> ErrorSummary | None:
        errors = [row.constant_mfu_error for row in self.test_rows]
        numbers = [error for error in errors if error is not None]
        return score_of(numbers) if numbers and len(numbers) == len(errors) else None

    @property
    def other(self) -> ErrorSummary | None:
        errors = [row.other_error for row in self.test_rows if row.other_error is not None]
        return score_of(errors) if errors else None

    @property
    def coverage(self) -> tuple[int, int] | None:
        """(Times inside the 90 % interval, all times) of the test rows."""
        return coverage_of(self.test_rows) if not self.properties.order_only else None

    @property
    def mean_rank_correlation(self) -> float | None:
        values = self.rank_correlations.values()
        return sum(values) / len(values) if values else None

    def to_json(self) -> dict[str, Any]:
        scores = {
            "ppsim": self.score if self.rows else None,
            "constant_mfu": self.constant_mfu,
            self.properties.other_tool or "other": self.other,
        }
        fitted = self.calibration_score
        return {
            "set": self.name,
            "title": self.properties.title,
            "source": self.properties.source,
            "notes": self.properties.notes,
            "order_only": self.properties.order_only,
            "num_test_rows": len(self.test_rows),
            "num_calibration_rows": len(self.calibration_rows),
            "errors": {name: asdict(score) for name, score in scores.items() if score},
            "calibration_errors": {"mean_absolute": fitted.mean_absolute} if fitted else None,
            "clusters_fitted_on_file": self.clusters_fitted_on_file,
            "constant_mfu_basis": self.mfu_basis,
            "rank_correlations": self.rank_correlations,
            "groups_in_order": self.groups_in_order,
            "coverage": self.coverage,
            "rows": [row.to_json() for row in self.rows],
            "skipped": [
                {**non_default_fields(case.properties), "command": case.command, "reason": reason}
                for case, reason in self.skipped
            ],
        }


@dataclass(frozen=True)
class HardwareErrors:
    """Errors of the test rows with times for a cluster, a dtype and a kind of model."""

    cluster: str
    dtype: str
    kind: Literal["dense", "MoE"]
    score: ErrorSummary
    constant_mfu: ErrorSummary
    coverage: tuple[int, int] | None


def hardware_scores(sets: Sequence[SetValidation]) -> list[HardwareErrors]:
    """Projections from measured costs, and sets that only compare the order of schedules, are excluded."""
    groups: dict[tuple[str, str, Literal["dense", "MoE"]], list[CaseError]] = {}
    for row in (row for run_set in sets if not run_set.properties.order_only for row in run_set.test_rows):
        job = row.plan.job
        if row.constant_mfu is not None and job is not None and row.plan.measured is None:
            groups.setdefault((job.cluster.name, job.execution.dtype, row.kind), []).append(row)
    return [
        HardwareErrors(
            *group,
            score_of([row.error for row in rows]),
            score_of([row.constant_mfu_error for row in rows if row.constant_mfu_error is not None]),
            coverage_of(rows),
        )
        for group, rows in sorted(groups.items())
    ]


def coverage_of(rows: Sequence[CaseError]) -> tuple[int, int] | None:
    """Return (times inside the 90 % interval, all times), or None if no row is a time."""
    inside = [row.inside_interval for row in rows if row.inside_interval is not None]
    return (sum(inside), len(inside)) if inside else None


def validate_set(name: str, plan_of: PlanOf, cases: Sequence[PublishedRun] | None = None) -> SetValidation:
    """Raises `ConfigError` for an unknown set; cases that cannot be projected are listed with the reason."""
    told, cases = require_set(name), cases_of(name) if cases is None else cases
    projected, reasons = [], []
    for case in cases:
        try:
            if case.properties.unexpressed:
                raise ConfigError(case.properties.unexpressed)
            plan = plan_of(case.options)
            projected.append((case, plan, measured_of(case, plan), project_run(case, plan)))
        except PpsimError as error:
            reasons.append((case, str(error).splitlines()[0]))
    constant, basis = _constant_mfu([(case, plan, seconds) for case, plan, seconds, _ in projected])
    rows = [
        CaseError(*found, mfu, *((0.0, 0.0) if found[0].is_memory else _interval_of(found[1], found[3])))
        for found, mfu in zip(projected, constant, strict=True)
    ]
    groups: dict[str, list[CaseError]] = {}
    for row in rows:
        if row.case.properties.group:
            groups.setdefault(row.case.properties.group, []).append(row)
    groups = {group: members for group, members in groups.items() if len(members) > 1}
    return SetValidation(
        name, told, rows, basis,
        {group: rank_correlation(*_pair(members)) for group, members in groups.items()},
        sum(_is_in_order(*_pair(members)) for members in groups.values()),
        reasons,
    )  # fmt: skip


def _interval_of(plan: Plan, seconds: float) -> tuple[float, float]:
    def seconds_of(other: Plan) -> float:
        return outcome_of(other)[0]

    spread = fitted_spread(plan, seconds, seconds_of, spread_of(plan)) or source_spread(plan)
    return spread, max(slow(plan, seconds, seconds_of) or 0.0 for slow in (slow_host_s, exposed_dp_s))


def score_of(errors: Sequence[float]) -> ErrorSummary:
    """Summarise errors; all values are 0 for an empty list.

    >>> score_of([0.02, -0.04])
    ErrorSummary(num_rows=2, mean=-0.01, mean_absolute=0.03, worst=-0.04)
    """
    if not errors:
        return ErrorSummary(0, 0.0, 0.0, 0.0)
    count, absolute = len(errors), [abs(error) for error in errors]
    return ErrorSummary(count, sum(errors) / count, sum(absolute) / count, max(errors, key=abs))


def rank_correlation(measured: Sequence[float], predicted: Sequence[float]) -> float:
    """Return Spearman's rank correlation; ties get their mean rank.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.5
    """
    import pandas

    return float(np.corrcoef(pandas.Series(measured).rank(), pandas.Series(predicted).rank())[0, 1])


def _pair(rows: Sequence[CaseError]) -> tuple[list[float], list[float]]:
    return [row.measured for row in rows], [row.projected for row in rows]


def _is_in_order(measured: Sequence[float], predicted: Sequence[float]) -> bool:
    pairs = [(a, b) for a in range(len(measured)) for b in range(len(measured)) if measured[a] < measured[b]]
    return all(predicted[a] < predicted[b] for a, b in pairs)


def _constant_mfu(cases: Sequence[tuple[PublishedRun, Plan, float]]) -> tuple[list[float | None], str]:
    """A constant MFU per dtype is the mean of the fit rows, else the best fit.

    Seconds are None for memory, and if a plan has no model.
    """
    if any(case.is_memory or plan.job is None for case, plan, _ in cases):
        return [None] * len(cases), ""
    at_peak = [_at_peak_s(plan) for _, plan, _ in cases]
    dtypes = [plan.job.execution.dtype if plan.job else "" for _, plan, _ in cases]
    share, bases = {}, []
    for dtype in dict.fromkeys(dtypes):
        here = [(*case, ideal) for case, ideal, of in zip(cases, at_peak, dtypes, strict=True) if of == dtype]
        fit = [ideal / measured for case, _, measured, ideal in here if case.properties.use == "fit"]
        if not fit and len(here) == 1:
            return [None] * len(cases), ""  # a single row would be fitted exactly
        share[dtype] = sum(fit) / len(fit) if fit else _best_share([(m, ideal) for _, _, m, ideal in here])
        basis = "mean of the fit rows" if fit else "best fit to the rows"
        bases.append(f"{100 * share[dtype]:.1f} % of {dtype}'s peak, {basis}")
    return [ideal / share[dtype] for ideal, dtype in zip(at_peak, dtypes, strict=True)], "; ".join(bases)


def _best_share(rows: Sequence[tuple[float, float]]) -> float:
    """Try the shares that fit one row exactly: the least mean absolute error is at one of these."""

    def error(share: float) -> float:
        return sum(abs(seconds / share / measured - 1) for measured, seconds in rows)

    return min((seconds / measured for measured, seconds in rows), key=error)


def _at_peak_s(plan: Plan) -> float:
    job = plan.job
    assert job is not None
    flops = job.model.training_flops(job.length, causal=True) * job.tokens_per_step
    return flops / (job.layout.num_devices * job.cluster.device.peak(job.execution.dtype))
