"""Summary of signed errors, the same for all parts."""

import statistics

from ppsim.base.units import percent, signed_percent


def summed_up(errors: list[float]) -> str:
    """Return mean signed, median signed, mean absolute and worst error.

    >>> summed_up([-0.02, 0.01])
    'mean signed -0.50 %, median -0.50 %, mean absolute 1.50 %, worst -2.00 %'
    """
    mean, median, worst = statistics.fmean(errors), statistics.median(errors), max(errors, key=abs)
    signed = f"mean signed {signed_percent(mean)}, median {signed_percent(median)}"
    return f"{signed}, mean absolute {percent(statistics.fmean(map(abs, errors)))}, worst {signed_percent(worst)}"


def row(cells: list[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"
