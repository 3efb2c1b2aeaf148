"""A table for many microbatches from a good one for few: a window of every row is repeated.

A search over a long table spends its time on steady-state passes that should all be alike; one over a short table
does not, and what it found can be repeated (the idea of a repetend: Tessel, and the building blocks of V-Half).
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ppsim.catalog.search.pipeline import Codes
from ppsim.catalog.search.target import Candidate, Target, better

_MOST_AT_ONCE = 4  # microbatches in a window
_CUTS = np.linspace(0.2, 0.8, 13)  # where the window is, in parts of a row


def repeated(short: Candidate, target: Target) -> Candidate | None:
    """Return the best table of `target` made by repeating a window of each row of `short`, or None.

    `short` is of the same stages and costs with fewer microbatches. A window holds q passes of each code, so that
    memory is behind it what it was before it; where the windows of two ranks do not fit each other, the table
    deadlocks or is slow, and another cut is tried.
    """
    num_more = target.problem.num_microbatches - short.target.problem.num_microbatches
    offsets = short.target.row_offsets
    rows = [short.order[begin:end] for begin, end in pairwise(offsets)]
    best: Candidate | None = None
    for at_once in range(1, _MOST_AT_ONCE + 1):
        if num_more % at_once:
            continue
        begins = [_balanced_windows(row, at_once) for row in rows]
        if not all(len(row) for row in begins):
            continue
        for cut in _CUTS:
            order = _stretched(rows, begins, cut, at_once, num_more // at_once)
            candidate = target.timed(order)
            if candidate and candidate.fits:
                best = better(best, candidate) if best else candidate
    return best


def _balanced_windows(row: Codes, at_once: int) -> Codes:
    """Where windows begin that hold `at_once` passes of every code of the row."""
    codes = np.unique(row)
    passed = np.zeros((len(row) + 1, len(codes)), dtype=np.int32)
    passed[1:] = np.cumsum(row[:, None] == codes, axis=0)
    length = at_once * len(codes)
    begins: Codes = np.flatnonzero((passed[length:] - passed[:-length] == at_once).all(axis=1)).astype(np.int32)
    return begins


def _stretched(rows: Sequence[Codes], begins: Sequence[Codes], cut: float, at_once: int, times: int) -> Codes:
    parts = []
    for row, possible in zip(rows, begins, strict=True):
        begin = possible[np.argmin(np.abs(possible - cut * len(row)))]
        window = row[begin : begin + at_once * len(np.unique(row))]
        parts += [row[:begin], np.tile(window, times), row[begin:]]
    return np.concatenate(parts)
