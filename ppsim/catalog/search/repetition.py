"""Build a table for many microbatches by repeating a window of each row of a good short table.

The window is similar to the repetend of Tessel and to the building blocks of V-Half.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ppsim.catalog.search.anneal import AnnealParameters, RepeatedWindow, anneal_window, empty_unrolled, unroll
from ppsim.catalog.search.pipeline import Codes
from ppsim.catalog.search.target import Candidate, SearchTarget, better

_MOST_AT_ONCE = 4  # microbatches in a window
_SEARCHED_AT_ONCE, _FEW = 3, 3  # microbatches in a window; microbatches per rank in its test table
_HEATS, _REACHES = (8.0, 4.0, 2.0, 1.0), (8, 2, 8, 2)  # temperatures and reaches of the rounds
_MOST_MOVES, _MOST_PASSES = 4_000, 5_000_000  # per round: less than 0.1 s
_CUTS = np.linspace(0.2, 0.8, 13)  # window positions, relative to the row


def repeat_window(short: Candidate, target: SearchTarget) -> Candidate | None:
    """A window contains q actions of each code, so that the memory after it is the same as before it.

    If the windows of two ranks do not match, the table deadlocks or is slow, and another position is tried.
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
        for share in _CUTS:
            order = _stretched(rows, begins, share, at_once, num_more // at_once)
            candidate = target.timed(order)
            if candidate and candidate.fits:
                best = better(best, candidate) if best else candidate
    return best


def _balanced_windows(row: Codes, at_once: int) -> Codes:
    codes = np.unique(row)
    passed = np.zeros((len(row) + 1, len(codes)), dtype=np.int32)
    passed[1:] = np.cumsum(row[:, None] == codes, axis=0)
    length = at_once * len(codes)
    begins: Codes = np.flatnonzero((passed[length:] - passed[:-length] == at_once).all(axis=1)).astype(np.int32)
    return begins


def _stretched(rows: Sequence[Codes], begins: Sequence[Codes], share: float, at_once: int, times: int) -> Codes:
    parts = []
    for row, possible in zip(rows, begins, strict=True):
        begin = _nearest(possible, share * len(row))
        window = row[begin : begin + at_once * len(np.unique(row))]
        parts += [row[:begin], np.tile(window, times), row[begin:]]
    return np.concatenate(parts)


def searched_windows(tables: Sequence[Candidate], target: SearchTarget) -> Iterator[Candidate]:
    """Search for tables in which each rank repeats one window.

    The search moves actions in all repetitions at once, in a test table with few microbatches.
    """
    dice, problem = np.ones(1, dtype=np.int64), target.problem
    number = min(_FEW * problem.num_ranks, problem.num_microbatches)
    few = replace(target, problem=replace(problem, num_microbatches=number))
    num_moves = min(_MOST_MOVES, _MOST_PASSES // few.num_actions)
    mean_s = float(few.work_s.sum()) / few.num_actions
    for table in tables:
        unrolled = [(unroll_window(target, window), window) for window in _windows(table, _SEARCHED_AT_ONCE)]
        fitting = [(one.score_s, index) for index, (one, _) in enumerate(unrolled) if one and one.fits]
        if not fitting:
            continue
        window = unrolled[min(fitting)[1]][1]
        score_s = np.inf
        for heat, reach in zip(_HEATS, _REACHES, strict=True):
            rules = AnnealParameters(
                few.handicap_s, few.bound_s, heat_s=mean_s * heat, num_moves=num_moves, reach=reach
            )
            moved, best, last = (RepeatedWindow(window.codes.copy(), window.ahead.copy()) for _ in range(3))
            outputs = (dice, moved, best, last, empty_unrolled(few.pipeline))
            found_s = few.run(anneal_window, inputs=(few.memory, rules), outputs=outputs, times=1 + num_moves)
            if found_s < score_s - target.tolerance_s:
                score_s, window = found_s, best
        candidate = unroll_window(target, window)
        if candidate and candidate.fits:
            yield candidate


def unroll_window(target: SearchTarget, window: RepeatedWindow) -> Candidate | None:
    """Return None if the table deadlocks."""
    table = empty_unrolled(target.pipeline)
    target.run(unroll, inputs=(window,), outputs=(table,))
    return target.timed(table.order)


def _windows(table: Candidate, at_once: int) -> Iterator[RepeatedWindow]:
    rows = [table.order[begin:end] for begin, end in pairwise(table.target.row_offsets)]
    begins = [_balanced_windows(row, at_once) for row in rows]
    if not all(len(row) for row in begins):
        return
    for share in _CUTS:
        codes, ahead = [], np.zeros(3 * table.target.problem.num_stages, dtype=np.int64)
        for row, possible in zip(rows, begins, strict=True):
            begin = _nearest(possible, share * len(row))
            microbatches = np.unique(row)
            run = np.bincount(row[:begin], minlength=len(ahead))[microbatches]
            ahead[microbatches] = run - at_once * -(-run.max() // at_once)
            codes.append(row[begin : begin + at_once * len(microbatches)])
        yield RepeatedWindow(np.concatenate(codes), ahead)


def _nearest(possible: Codes, position: float) -> int:
    return int(possible[np.argmin(np.abs(possible - position))])
