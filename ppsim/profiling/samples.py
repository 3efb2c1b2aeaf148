"""Samples of one thing, as a profile file has them. Imports no torch."""

import statistics


def quantity(samples: list[float]) -> dict[str, float]:
    """Return median and quartiles as a profile file has them, none beyond the samples.

    >>> quantity([5.0, 1.0, 3.0, 2.0, 4.0])
    {'median': 3.0, 'low': 1.5, 'high': 4.5}
    """
    low, median, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else samples * 3
    # Of two or three samples the quartiles are extrapolated: as far as below 0, which no profile may hold.
    return {"median": median, "low": max(low, min(samples)), "high": min(high, max(samples))}
