"""Fused cells of one forward and one full backward."""

import numpy as np

from ppsim.base.arrays import Ints64
from ppsim.schedule.table import NONE, Op, Schedule


def fused_pairs(schedule: Schedule) -> tuple[Ints64, Ints64]:
    """Return the entries of the forwards and of the backwards.

    >>> import ppsim
    >>> forward, backward = fused_pairs(ppsim.build("combined-1f1b", pp=1, microbatches=3))
    >>> [f"{ppsim.build('combined-1f1b', pp=1, microbatches=3)[entry]}" for entry in (*forward, *backward)]
    ['0F1', '0F2', '0B0', '0B1']
    """
    fused, op = schedule.fused, schedule.op
    size = np.bincount(fused[fused != NONE], minlength=1)
    first = np.flatnonzero((fused[:-1] != NONE) & (fused[:-1] == fused[1:]))
    first = first[size[fused[first]] == 2]
    first = first[np.minimum(op[first], op[first + 1]) == Op.F]
    first = first[np.maximum(op[first], op[first + 1]) == Op.B]
    forward = np.where(op[first] == Op.F, first, first + 1)
    return forward, 2 * first + 1 - forward
