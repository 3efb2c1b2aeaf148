"""Samples of one quantity in the form of a profile file. Does not import torch."""

import statistics


def summarise_samples(samples: list[float]) -> dict[str, float]:
    """Return median and quartiles in the form of a profile file, limited to the range of the samples.

    >>> summarise_samples([5.0, 1.0, 3.0, 2.0, 4.0])
    {'median': 3.0, 'low': 1.5, 'high': 4.5}
    """
    low, median, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else samples * 3
    # With two or three samples the quartiles are extrapolated, possibly below 0, which a profile may not contain.
    return {"median": median, "low": max(low, min(samples)), "high": min(high, max(samples))}
