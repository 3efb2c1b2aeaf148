"""Candidates for one stage per rank."""

from collections.abc import Iterator
from itertools import product, starmap

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats
from ppsim.catalog.search.one_chunk_kernels import OneChunkChoices, heuristic
from ppsim.catalog.search.pipeline import Codes, IdleTime, empty_table
from ppsim.catalog.search.target import Candidate, SearchTarget

_F, _I, _W = 0, 1, 2


def heuristic_runs(target: SearchTarget, head: Floats, *, slack: float = 0.0) -> Iterator[Candidate]:
    """Yield the eight runs of the heuristic (arXiv 2401.10241, §3.1), in the order of the authors' code.

    `head` is the initial idle time of each rank, `slack` the idle time that the worst rank may always have (both 0
    in the paper).
    """
    for choices in starmap(OneChunkChoices, product((True, False), repeat=3)):
        table = empty_table(target.pipeline)
        idleness = IdleTime(idle_s=head.copy(), worst_s=np.array([max(slack, head.max())]))
        takes = np.zeros(target.problem.num_ranks, dtype=np.int64)
        target.run(heuristic, inputs=(target.memory, choices), outputs=(table, idleness, takes))
        yield Candidate(target, table.order, table.now_s)


def patterns(target: SearchTarget) -> Iterator[Candidate]:
    """Shorten the warm-up of ZB-H1 and ZB-H2, or postpone fewer weight gradients, if the cap requires it."""
    p, m = target.problem.num_ranks, target.problem.num_microbatches
    ranks = np.arange(p)
    activation, kept, cap = target.problem.activation, target.problem.kept, target.problem.cap
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(activation > 0, np.floor(cap / activation), np.inf)
    for pace in (1.0, 1.5, 2.0):
        warm_up = np.minimum(np.ceil(pace * (p - 1 - ranks)), room - 1)
        left = np.maximum(cap - (warm_up + 1) * activation, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            put_off = np.where(kept > 0, np.floor(left / kept), np.inf)
        put_off = np.minimum(put_off, np.floor(pace * ranks))
        words = [_word(m, int(min(warm, m)), int(min(off, m))) for warm, off in zip(warm_up, put_off, strict=True)]
        order: Codes = np.concatenate(words) * np.int32(p) + np.repeat(ranks, 3 * m).astype(np.int32)
        if candidate := target.timed(order):
            yield candidate


def _word(num_microbatches: int, num_warm_up: int, num_put_off: int) -> NDArray[np.int32]:
    steps = np.tile(np.array([_F, _I, _W], dtype=np.int32), (num_microbatches, 1))
    there = np.ones(steps.shape, dtype=bool)
    there[num_microbatches - num_warm_up :, _F] = False
    there[:num_put_off, _W] = False
    return np.concatenate([
        np.full(num_warm_up, _F, np.int32), steps[there], np.full(num_put_off, _W, np.int32),
    ])  # fmt: skip
