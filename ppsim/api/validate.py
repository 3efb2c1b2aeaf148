"""Published runs, or one's own, beside what `ppsim project` says of them."""

from collections.abc import Callable
from pathlib import Path
from typing import overload

from ppsim.api.project import plan_of
from ppsim.base.outputs import silent
from ppsim.validation.after_fit import AfterFits, after_fits
from ppsim.validation.fit import FittedCluster, fit_cluster
from ppsim.validation.validated import Validated, validated

Announce = Callable[[str], None]


@overload
def validate(runs: str | Path | None = None, *, fit_on: None = None, announce: Announce = silent) -> Validated: ...


@overload
def validate(runs: str | Path | None = None, *, fit_on: str, announce: Announce = silent) -> AfterFits: ...


def validate(
    runs: str | Path | None = None, *, fit_on: str | None = None, announce: Announce = silent
) -> Validated | AfterFits:
    """Return measured numbers beside projections: of one set by name, of a CSV file of one's own, or of all sets.

    A row is words of `ppsim.project`, a metric and a value; it is projected as `ppsim.project(**words)` is, and one
    that cannot be is listed. `fit_on` fits the cluster on some rows first, as `ppsim.fit` does, and has the others
    before and after: "fit" (marked so), "one" (of each cluster and dtype the run on the fewest devices),
    "one-a-model" (of each model too), or numbers of rows as "1,3-5". `announce` is called with the name of a set
    before it is projected. Raises `ConfigError` for an unknown set, for all that is wrong in the rows of a file,
    and where no row can be fitted on.

    >>> import ppsim
    >>> [one.name for one in ppsim.validate("zero-bubble").sets]
    ['zero-bubble']
    >>> len(ppsim.validate("dgxc-405b", fit_on="one").to_frame())
    2
    """
    name = None if runs is None else str(runs)
    if fit_on is not None:
        return after_fits(name, fit_on, plan_of, announce=announce)
    return validated(name, plan_of, announce=announce)


def fitted_again(cluster: str) -> FittedCluster:
    """Return the constants of a packaged cluster found again from the rows that they were fitted on."""
    return fit_cluster(cluster, plan_of)
