"""What an action needs before it can run: the one place that says so.

::

    F(s, b)      after  F(s−1, b)
    I/B(s, b)    after  F(s, b)  and  I/B(s+1, b)
    W(s, b)      after  I(s, b)

(zero-bubble paper, arXiv 2401.10241, App. G.) Neighbours are those of one chain: the first stage of a replica does
not follow the last of another. Where microbatches are cut into slices of their sequence, causal attention adds

::

    F(s, slice j)      after  F(s, slice j−1)       whose keys and values it reads
    I/B(s, slice j)    after  I/B(s, slice j+1)     which adds to their gradients

(Seq1F1B, arXiv 2406.03488). An action thus needs at most one action of each kind: of its own stage, of a
neighbouring stage, of a neighbouring slice. The checker, the lowering to sends and receives, the event graph, hover
texts and explanations all read the columns made here.
"""

from dataclasses import dataclass

import numpy as np

from ppsim.base.arrays import Ints32
from ppsim.schedule.kept import kept
from ppsim.schedule.table import NONE, Op, Schedule, is_one_of


@dataclass(frozen=True)
class Dependencies:
    """Per action of a compute-only table, the index of the action it waits for, or −1.

    `own` is of the same stage (the forward of a backward, the I of a W); `neighbour` is of the stage before (of
    a forward) or after (of a backward); `slice` of the same stage, for the slice before or after.
    """

    own: Ints32
    neighbour: Ints32
    slice: Ints32


def index_of(schedule: Schedule, ops: tuple[Op, ...]) -> Ints32:
    """Return an array [stages, units] with the index of the action that is one of `ops`, or −1."""
    table = np.full((schedule.num_stages, schedule.num_units), NONE, dtype=np.int32)
    actions = np.flatnonzero(is_one_of(schedule.op, ops))
    table[schedule.stage[actions], schedule.microbatch[actions]] = actions
    return table


def dependencies(schedule: Schedule) -> Dependencies:
    """Return what each action of a compute-only schedule waits for; linear in the number of actions.

    An action that the table lacks gives −1, so that the checker can use this before it trusts the table.
    """
    return kept(schedule, "dependencies", lambda: _dependencies(schedule), part=12 / 50)


def _dependencies(schedule: Schedule) -> Dependencies:
    op, stage, microbatch = schedule.op, schedule.stage, schedule.microbatch
    forward = index_of(schedule, (Op.F,))
    backward = index_of(schedule, (Op.I, Op.B))
    own = np.full(len(op), NONE, dtype=np.int32)
    neighbour = np.full(len(op), NONE, dtype=np.int32)

    is_backward = (op == Op.I) | (op == Op.B)
    own[is_backward] = forward[stage[is_backward], microbatch[is_backward]]
    is_weight = op == Op.W
    own[is_weight] = backward[stage[is_weight], microbatch[is_weight]]

    model_stage = schedule.model_stage[stage]
    is_forward = op == Op.F
    has_previous = is_forward & (model_stage > 0)
    neighbour[has_previous] = forward[stage[has_previous] - 1, microbatch[has_previous]]
    has_next = is_backward & (model_stage < schedule.num_model_stages - 1)
    neighbour[has_next] = backward[stage[has_next] + 1, microbatch[has_next]]

    of_slice = np.full(len(op), NONE, dtype=np.int32)
    place = microbatch % schedule.num_slices
    has_before = is_forward & (place > 0)
    of_slice[has_before] = forward[stage[has_before], microbatch[has_before] - 1]
    has_behind = is_backward & (place < schedule.num_slices - 1)
    of_slice[has_behind] = backward[stage[has_behind], microbatch[has_behind] + 1]
    return Dependencies(own=own, neighbour=neighbour, slice=of_slice)


def transfers_of(compute: Schedule) -> tuple[Ints32, Ints32]:
    """Return, for each transfer between ranks, the action that makes its content and the one that takes it."""
    needs = dependencies(compute).neighbour
    target = np.flatnonzero((needs != NONE) & (compute.rank[needs] != compute.rank)).astype(np.int32)
    return needs[target], target
