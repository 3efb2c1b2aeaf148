"""Published runs, or one's own, beside what `ppsim project` says of them."""

from collections.abc import Callable
from pathlib import Path

from ppsim.api.plans import plan_of
from ppsim.validation.fit import FittedCluster, fit_cluster
from ppsim.validation.validated import Validated, validated


def validate(runs: str | Path | None = None, *, announce: Callable[[str], None] = lambda name: None) -> Validated:
    """Return measured numbers beside projections: of one set by name, of a CSV file of one's own, or of all sets.

    A row is words of `ppsim.project`, a metric and a value; it is projected as `ppsim.project(**words)` is, and one
    that cannot be is listed. `announce` is called with the name of each set before it is projected. Raises
    `ConfigError` for an unknown set, and for all that is wrong in a row of a file.

    >>> import ppsim
    >>> [one.name for one in ppsim.validate("zero-bubble").sets]
    ['zero-bubble']
    """
    return validated(None if runs is None else str(runs), plan_of, announce=announce)


def fitted_again(cluster: str) -> FittedCluster:
    """Return the constants of a packaged cluster found again from the rows that they were fitted on."""
    return fit_cluster(cluster, plan_of)
