"""What the compiled kernels of the searches work on: named tuples of arrays.

A pass of kind 0, 1, 2 (F, I, W) on stage s has the code ``kind * num_stages + s``. A table is the codes of rank 0's
row, then of rank 1's, …: passes of one code run in microbatch order, so that codes say everything. A node is
``code * num_microbatches + microbatch``. In plain Python a kernel gets lists in place of the arrays.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.simulation.bounds.problem import Problem

Codes: TypeAlias = NDArray[np.int32]
Counts: TypeAlias = NDArray[np.int64]

NOTHING = -1
"""Where a code, a stage or a rank could stand: there is none."""


class Pipeline(NamedTuple):
    """Which rank runs what, what each pass costs, and what it waits for. Seconds."""

    num_microbatches: int
    num_stages: int
    num_ranks: int
    stages: Counts
    """The stages of rank 0, of rank 1, …, ascending within a rank."""
    firsts: Counts
    """Where each rank's stages begin in `stages`; p + 1 entries. Rank r's row begins at ``3 * m * firsts[r]``."""
    rank_of: Counts
    """A rank a stage."""
    cost_s: Floats
    """A duration a code."""
    needs: Counts
    """A code a code: the pass of a neighbouring stage and the same microbatch that must run before, or `NOTHING`.

    A forward needs that of the stage before, an input gradient that of the stage behind. What a pass needs of its
    own stage, the kind before its own, goes without saying.
    """
    feeds: Counts
    """A code a code, the other way: whose input a pass is, or `NOTHING`."""
    wakes: Counts
    """A rank a code: that of `feeds` where it is another, or `NOTHING`."""
    hop_s: Floats
    """A time a code: from the end of the pass in `needs` to the arrival of what it hands over."""
    tolerance_s: float
    """Times closer than this are one."""


class Memory(NamedTuple):
    """What passes hold, and how much of it a rank may."""

    activation: Floats
    """What F takes, a stage."""
    kept: Floats
    """What I keeps of it for W, a stage."""
    changes: Floats
    """What a pass of each code adds to its rank's memory."""
    cap: Floats
    """The most that a rank may hold at once."""


class Table(NamedTuple):
    """A table as far as a kernel has got with it."""

    order: Codes
    at: Counts
    """Where the next pass of each rank stands in `order`."""
    now_s: Floats
    """When the last pass of each rank ends."""
    end_s: Floats
    """When each F and I ends, a node."""
    done: Counts
    """How many passes of each code have run: the microbatch of the next."""


class Backlog(NamedTuple):
    """The weight gradients that each rank could run by now, and what it holds."""

    queue: Counts
    """Their codes, in the order of their input gradients: rank r's from ``m * firsts[r]``."""
    num_queued: Counts
    """How many were ever in a rank's queue."""
    num_run: Counts
    """How many of them have run."""
    held: Floats
    """A rank's memory."""


class Idleness(NamedTuple):
    """How long ranks have idled since their first forwards."""

    idle_s: Floats
    """What each rank has; it goes in as what it has of it to begin with (0 for equal stages, as in the paper)."""
    worst_s: Floats
    """One entry: the largest of all, or more where more is allowed."""


def pipeline_of(problem: Problem, stages: Counts, firsts: Counts, *, tolerance_s: float) -> Pipeline:
    """Return the problem's costs and dependencies as kernels want them; `stages` and `firsts` as in `Pipeline`."""
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


def empty_table(pipeline: Pipeline) -> Table:
    """Return a table for a kernel to fill."""
    return Table(
        order=np.zeros(3 * pipeline.num_stages * pipeline.num_microbatches, dtype=np.int32),
        at=3 * pipeline.num_microbatches * pipeline.firsts[:-1],
        now_s=np.zeros(pipeline.num_ranks),
        end_s=np.zeros(2 * pipeline.num_stages * pipeline.num_microbatches),
        done=np.zeros(3 * pipeline.num_stages, dtype=np.int64),
    )


def empty_backlog(pipeline: Pipeline) -> Backlog:
    """Return what waits before the first pass: nothing."""
    p = pipeline.num_ranks
    return Backlog(
        queue=np.zeros(pipeline.num_stages * pipeline.num_microbatches, dtype=np.int64),
        num_queued=np.zeros(p, dtype=np.int64), num_run=np.zeros(p, dtype=np.int64), held=np.zeros(p),
    )  # fmt: skip
