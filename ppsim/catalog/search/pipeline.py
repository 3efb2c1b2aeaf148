"""Data structures of the compiled search kernels: named tuples of arrays (lists in plain Python).

An action of kind 0, 1, 2 (F, I, W) on stage s has the code ``kind * num_stages + s``. A table is an order: the
codes of rank 0's row, then of rank 1's, and so on. Actions of one code run in microbatch order. A node is ``code *
num_microbatches + microbatch``.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.simulation.bounds.problem import Problem

Codes: TypeAlias = NDArray[np.int32]
Counts: TypeAlias = NDArray[np.int64]

NOTHING = -1
"""No code, stage or rank."""


class Pipeline(NamedTuple):
    """Placement, durations and dependencies."""

    num_microbatches: int
    num_stages: int
    num_ranks: int
    stages: Counts
    """Stages of rank 0, of rank 1, …, ascending within a rank."""
    firsts: Counts
    """Offsets of each rank's stages in `stages`; p + 1 entries. Rank r's row begins at ``3 * m * firsts[r]``."""
    rank_of: Counts
    """Rank per stage."""
    cost_s: Floats
    """Duration per code."""
    needs: Counts
    """Per code: the code in a neighbouring stage that must run first for the same microbatch, or `NOTHING`.

    A forward needs the forward of the previous stage, an input gradient the input gradient of the next stage. The
    dependency on the previous kind in the same stage is implicit.
    """
    feeds: Counts
    """Inverse of `needs`: the code whose input this code produces, or `NOTHING`."""
    wakes: Counts
    """Per code: the rank of `feeds` if it is another rank, or `NOTHING`."""
    hop_s: Floats
    """Per code: time from the end of the action in `needs` to the arrival of its result."""
    tolerance_s: float
    """Times closer than this are equal."""


class MemoryCaps(NamedTuple):
    """Memory of actions and caps of ranks."""

    activation: Floats
    """Memory that F allocates, per stage."""
    kept: Floats
    """Memory that remains from I to W, per stage."""
    changes: Floats
    """Memory that an action of each code adds on its rank."""
    cap: Floats
    """Maximum memory of each rank."""


class SearchTable(NamedTuple):
    """A table under construction."""

    order: Codes
    at: Counts
    """Place of each rank's next action in `order`."""
    now_s: Floats
    """End of each rank's last action."""
    end_s: Floats
    """End of each F and I, per node."""
    done: Counts
    """Number of actions of each code that have run, which is the microbatch of the next one."""


class PendingWeightGradients(NamedTuple):
    """Waiting weight gradients and memory of each rank."""

    queue: Counts
    """Codes in the order of their input gradients; rank r's start at ``m * firsts[r]``."""
    num_queued: Counts
    """Number of entries ever added to each rank's queue."""
    num_run: Counts
    """Number of queued entries that have run, per rank."""
    held: Floats
    """Memory of each rank."""


class IdleTime(NamedTuple):
    """Idle time of ranks since their first forward."""

    idle_s: Floats
    """Idle time per rank; the initial values are the caller's (0 for equal stages, as in the paper)."""
    worst_s: Floats
    """One entry: the largest idle time, or a larger value if more is allowed."""


def pipeline_of(problem: Problem, stages: Counts, firsts: Counts, *, tolerance_s: float) -> Pipeline:
    num_stages, rank_of = problem.num_stages, problem.stage_to_rank.astype(np.int64)
    codes, none = np.arange(3 * num_stages), np.full(num_stages, NOTHING)
    forwards, inputs = codes[:num_stages], codes[num_stages : 2 * num_stages]
    needs = np.concatenate([forwards - 1, inputs + 1, none])
    feeds = np.concatenate([forwards + 1, inputs - 1, none])
    needs[[0, 2 * num_stages - 1]] = NOTHING  # the loss follows the last forward on its own stage
    feeds[[num_stages - 1, num_stages]] = NOTHING
    hops = problem.hop_s
    return Pipeline(
        num_microbatches=problem.num_microbatches, num_stages=num_stages, num_ranks=problem.num_ranks,
        stages=stages, firsts=firsts, rank_of=rank_of,
        cost_s=np.concatenate([problem.forward_s, problem.input_s, problem.weight_s]),
        needs=needs, feeds=feeds,
        wakes=_woken(feeds, rank_of),
        hop_s=np.concatenate([[0.0], hops, hops, [0.0], np.zeros(num_stages)]),
        tolerance_s=tolerance_s,
    )  # fmt: skip


def _woken(feeds: Counts, rank_of: Counts) -> Counts:
    own = np.tile(rank_of, 3)
    other = rank_of[feeds % len(rank_of)]
    return np.where((feeds == NOTHING) | (other == own), NOTHING, other)


def empty_table(pipeline: Pipeline) -> SearchTable:
    return SearchTable(
        order=np.zeros(3 * pipeline.num_stages * pipeline.num_microbatches, dtype=np.int32),
        at=3 * pipeline.num_microbatches * pipeline.firsts[:-1],
        now_s=np.zeros(pipeline.num_ranks),
        end_s=np.zeros(2 * pipeline.num_stages * pipeline.num_microbatches),
        done=np.zeros(3 * pipeline.num_stages, dtype=np.int64),
    )


def empty_backlog(pipeline: Pipeline) -> PendingWeightGradients:
    p = pipeline.num_ranks
    return PendingWeightGradients(
        queue=np.zeros(pipeline.num_stages * pipeline.num_microbatches, dtype=np.int64),
        num_queued=np.zeros(p, dtype=np.int64), num_run=np.zeros(p, dtype=np.int64), held=np.zeros(p),
    )  # fmt: skip
