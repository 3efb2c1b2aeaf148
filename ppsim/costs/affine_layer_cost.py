"""Linear model of a stage's time, a + n·b for n layers."""

from typing import Any

from ppsim.costs.utilization import PASSES


def line_through(alone_s: float, mean_s: float, num_in_row: int) -> tuple[float, float]:
    """Return a and b of a + n·b in seconds, from one layer's time and the mean of `num_in_row` consecutive layers.

    If noise would make a or b negative, returns (0, `mean_s`).

    >>> line_through(1.25, 1.0625, 4)
    (0.25, 1.0)
    >>> line_through(0.9, 1.0, 4), line_through(5.0, 1.0, 4)
    ((0.0, 1.0), (0.0, 1.0))
    """
    slope = (num_in_row * mean_s - alone_s) / (num_in_row - 1)
    if alone_s <= mean_s or slope < 0:
        return 0.0, mean_s
    return alone_s - slope, slope


def stage_lines(measurement: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return (a, b) by action letter, for actions measured with one layer and with several consecutive layers."""
    alone = measurement["alone"]
    return {
        letter: line_through(alone[key]["median"], measurement[key]["median"], alone["num_in_row"])
        for letter, key in PASSES.items()
        if measurement[key] is not None and alone[key] is not None
    }
