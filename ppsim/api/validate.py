"""Comparison of published or own measurements with projections."""

from collections.abc import Callable
from pathlib import Path
from typing import overload

from ppsim.api.project import plan_of_keywords
from ppsim.base.write_outputs import ignore_message
from ppsim.validation.fit_result import AfterFits, FittedCluster, after_fits, fit_cluster
from ppsim.validation.source_errors import SourceErrors, leave_source_out
from ppsim.validation.validation_result import ValidationReport, validate_sets

Announce = Callable[[str], None]


@overload
def validate(
    runs: str | Path | None = None, *, fit_on: None = None, announce: Announce = ignore_message
) -> ValidationReport: ...


@overload
def validate(runs: str | Path | None = None, *, fit_on: str, announce: Announce = ignore_message) -> AfterFits: ...


def validate(
    runs: str | Path | None = None, *, fit_on: str | None = None, announce: Announce = ignore_message
) -> ValidationReport | AfterFits:
    """Compare measurements with projections: for one set by name, for a CSV file, or for all sets (None).

    A row has options of `ppsim.project`, a metric and a value. Rows that cannot be projected are listed separately.
    `fit_on` first fits the cluster to some rows, as `ppsim.fit` does, and reports the other rows before and after:
    "fit" (marked rows), "one" (for each cluster and dtype, the run with the fewest GPUs), "one-a-model" (also for
    each model), or row numbers such as "1,3-5". `announce` is called with the name of a set before its projection.
    Raises `ConfigError` for an unknown set, with all errors in the rows of a file, and if no row can be used for
    fitting.

    >>> import ppsim
    >>> [one.name for one in ppsim.validate("zero-bubble").sets]
    ['zero-bubble']
    >>> len(ppsim.validate("dgxc-405b", fit_on="one").to_frame())
    2
    """
    name = None if runs is None else str(runs)
    if fit_on is not None:
        return after_fits(name, fit_on, plan_of_keywords, announce=announce)
    return validate_sets(name, plan_of_keywords, announce=announce)


def source_errors(announce: Announce = ignore_message) -> list[SourceErrors]:
    """Project each source of published runs without the constants and the spread that it determined.

    Returns the errors per class of jobs; the last one is of all classes. Takes one to two minutes.
    """
    return leave_source_out(validate(announce=announce).sets, plan_of_keywords)


def refit_cluster(cluster: str) -> FittedCluster:
    """Refit the constants of a packaged cluster to the published runs to which they were fitted originally."""
    return fit_cluster(cluster, plan_of_keywords)
