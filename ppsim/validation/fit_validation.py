"""Validation sets after a fit: the cluster is fitted to some rows, the other rows are compared before and after."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ppsim.base.display import Printable
from ppsim.base.errors import ConfigError
from ppsim.validation.bayesian_fit import MeasuredStep, Posterior, fit_rows, fitted_plan_of, rows_of
from ppsim.validation.calibration_rows import SPARING, calibration_rows
from ppsim.validation.error_summary import CaseError, coverage_of, score_of, validate_set
from ppsim.validation.project_case import PlanOf
from ppsim.validation.published_runs import PublishedRun, case_sets, cases_of, require_set

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class AfterFit:
    """Test rows are pairs of errors before and after the fit; `skipped` rows cannot be projected."""

    name: str
    fits: list[Posterior]
    test_rows: list[tuple[CaseError, CaseError]]
    skipped: list[tuple[PublishedRun, str]]

    def to_json(self) -> dict[str, Any]:
        return {
            "set": self.name,
            "fits": [
                {"cluster": one.cluster.name, "rows": [row.name for row in one.rows],
                 "constants": {told.prior.name: told.value for told in one.found},
                 "outliers": [asdict(doubt) for doubt in one.outliers]}
                for one in self.fits
            ],
            "before": asdict(score_of([before.error for before, _ in self.test_rows])),
            "after": asdict(score_of([after.error for _, after in self.test_rows])),
            "coverage": coverage_of([after for _, after in self.test_rows]),
            "rows": [
                {**after.to_json(), "row": after.case.number, "error_before": before.error}
                for before, after in self.test_rows
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
        return {"sets": [one.to_json() for one in self.sets]}

    def to_frame(self) -> "pandas.DataFrame":
        import pandas

        return pandas.DataFrame(
            [
                {"set": one.name, "row": after.case.number, "measured_s": after.measured,
                 "error_before": before.error, "error_after": after.error}
                for one in self.sets for before, after in one.test_rows
            ]
        )  # fmt: skip


def after_fits(name: str | None, selection: str, plan_of: PlanOf, *, announce: Callable[[str], None]) -> AfterFits:
    """`selection` is as in `calibration_rows`.

    Raises `ConfigError` for an unknown set, and for a named set without any row to fit to.
    """
    found = []
    for one in case_sets() if name is None else [name]:
        if name is None and (case_sets()[one].order_only or all(case.is_memory for case in cases_of(one))):
            continue
        announce(one)
        made = _after_fit(one, selection, plan_of)
        if made.fits:
            found.append(made)
        elif name is not None:
            require_set(name)
            raise ConfigError(
                f"no row of {name} can be fitted on: mark some fit, name them by number, or take one a dtype (one)"
            )
    return AfterFits(found)


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
