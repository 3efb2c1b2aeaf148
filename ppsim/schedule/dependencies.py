"""Dependencies of actions.

::

    F(s, b)      after  F(s−1, b)
    I/B(s, b)    after  F(s, b)  and  I/B(s+1, b)
    W(s, b)      after  I(s, b)

(zero-bubble paper, arXiv 2401.10241, App. G.) The first stage of a model replica does not follow the last stage of
another. With slices of the sequence, causal attention adds

::

    F(s, slice j)      after  F(s, slice j−1)       whose keys and values it reads
    I/B(s, slice j)    after  I/B(s, slice j+1)     which adds to their gradients

(Seq1F1B, arXiv 2406.03488).
"""

from dataclasses import dataclass

import numpy as np

from ppsim.base.arrays import Ints32
from ppsim.schedule.analysis_cache import cached
from ppsim.schedule.table import NONE, Op, Schedule, is_one_of


@dataclass(frozen=True)
class Dependencies:
    """Indices of the actions that each action waits for, or −1.

    `own`: same stage and microbatch (the F of a backward, the I of a W). `neighbour`: the previous or next stage.
    `slice`: the previous or next slice of the same stage.
    """

    own: Ints32
    neighbour: Ints32
    slice: Ints32


def index_of(schedule: Schedule, ops: tuple[Op, ...]) -> Ints32:
    """Return an array [stages, microbatches or slices] of the actions that are one of `ops`, or −1."""
    table = np.full((schedule.num_stages, schedule.num_units), NONE, dtype=np.int32)
    actions = np.flatnonzero(is_one_of(schedule.op, ops))
    table[schedule.stage[actions], schedule.microbatch[actions]] = actions
    return table


def dependencies(schedule: Schedule) -> Dependencies:
    """A dependency that the table lacks is −1, so that the checker can call this on unchecked tables."""
    return cached(schedule, "dependencies", lambda: _dependencies(schedule), part=12 / 50)


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
    slice_index = microbatch % schedule.num_slices
    has_before = is_forward & (slice_index > 0)
    of_slice[has_before] = forward[stage[has_before], microbatch[has_before] - 1]
    has_behind = is_backward & (slice_index < schedule.num_slices - 1)
    of_slice[has_behind] = backward[stage[has_behind], microbatch[has_behind] + 1]
    return Dependencies(own=own, neighbour=neighbour, slice=of_slice)


def transfers_of(compute: Schedule) -> tuple[Ints32, Ints32]:
    """Return, per transfer between ranks, the actions that produce and need the message."""
    needs = dependencies(compute).neighbour
    target = np.flatnonzero((needs != NONE) & (compute.rank[needs] != compute.rank)).astype(np.int32)
    return needs[target], target
