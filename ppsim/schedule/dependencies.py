"""What an action needs before it can run: the one place that says so.

::

    F(s, b)      after  F(s−1, b)
    I/B(s, b)    after  F(s, b)  and  I/B(s+1, b)
    W(s, b)      after  I(s, b)

(zero-bubble paper, arXiv 2401.10241, App. G.) An action thus needs at most one action of its own stage and at
most one of a neighbouring stage. The checker, the lowering to sends and receives, the event graph, hover texts
and explanations all read the two columns made here.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppsim.schedule.table import NONE, Ints, Op, Schedule


@dataclass(frozen=True)
class Dependencies:
    """Per action of a compute-only table, the index of the action it waits for, or −1.

    `own` is of the same stage (the forward of a backward, the I of a W); `neighbour` is of the stage before (of
    a forward) or after (of a backward).
    """

    own: Ints
    neighbour: Ints


def index_of(schedule: Schedule, ops: tuple[Op, ...]) -> NDArray[np.int32]:
    """Return an array [stages, microbatches] with the index of the action that is one of `ops`, or −1."""
    table = np.full((schedule.num_stages, schedule.num_microbatches), NONE, dtype=np.int32)
    actions = np.flatnonzero(np.isin(schedule.op, ops))
    table[schedule.stage[actions], schedule.microbatch[actions]] = actions
    return table


def dependencies(schedule: Schedule) -> Dependencies:
    """Return what each action of a compute-only schedule waits for; linear in the number of actions.

    An action that the table lacks gives −1, so that the checker can use this before it trusts the table.
    """
    op, stage, microbatch = schedule.op, schedule.stage, schedule.microbatch
    forward = index_of(schedule, (Op.F,))
    backward = index_of(schedule, (Op.I, Op.B))
    own = np.full(len(op), NONE, dtype=np.int32)
    neighbour = np.full(len(op), NONE, dtype=np.int32)

    is_backward = (op == Op.I) | (op == Op.B)
    own[is_backward] = forward[stage[is_backward], microbatch[is_backward]]
    is_weight = op == Op.W
    own[is_weight] = backward[stage[is_weight], microbatch[is_weight]]

    has_previous = (op == Op.F) & (stage > 0)
    neighbour[has_previous] = forward[stage[has_previous] - 1, microbatch[has_previous]]
    has_next = is_backward & (stage < schedule.num_stages - 1)
    neighbour[has_next] = backward[stage[has_next] + 1, microbatch[has_next]]
    return Dependencies(own=own, neighbour=neighbour)
