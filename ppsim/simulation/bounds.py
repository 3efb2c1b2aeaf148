"""How fast any schedule could be for the costs and the placement of a table that was simulated."""

from collections.abc import Sequence

import numpy as np

from ppsim.costs.stages import StageCosts
from ppsim.schedule.bounds import LowerBounds, lower_bounds
from ppsim.schedule.problem import CAP_ROUNDING, Problem
from ppsim.schedule.table import Ints, Schedule


def bounds_of(schedule: Schedule, costs: StageCosts, *, memory_limit_bytes: float | None = None) -> LowerBounds:
    """Return what no table with this placement and number of microbatches can undercut, on any kind of channel.

    With `memory_limit_bytes`, static bytes included: no table that stays within it on every rank. Raises
    `ConfigError` where no table does.

    >>> from ppsim import build
    >>> unit = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, activation_bytes=1)
    >>> bounds_of(build("zb-h1", pp=4, microbatches=8), unit, memory_limit_bytes=4).span_s
    27.0
    """
    return lower_bounds(
        problem_of(schedule.stage_to_rank, schedule.num_microbatches, costs, memory_limit_bytes=memory_limit_bytes)
    )


def problem_of(
    stage_to_rank: Sequence[int] | Ints,
    num_microbatches: int,
    costs: StageCosts,
    *,
    memory_limit_bytes: float | None = None,
) -> Problem:
    """Return the search problem of a placement at these costs, in bytes, each backward split or full.

    Queues and blocking are left out: they only delay, and a bound without them holds with them. Raises
    `ConfigError` as `Problem.of` and `StageCosts.resolved` do.
    """
    num_ranks = int(max(stage_to_rank)) + 1
    arrays = costs.resolved(num_stages=len(stage_to_rank), num_ranks=num_ranks)
    limit = float("inf") if memory_limit_bytes is None else memory_limit_bytes * CAP_ROUNDING
    return Problem.of(
        stage_to_rank=stage_to_rank,
        num_microbatches=num_microbatches,
        forward_s=arrays.forward_s,
        backward_input_s=arrays.backward_input_s,
        backward_weight_s=arrays.backward_weight_s,
        backward_s=arrays.backward_s,
        transfer_s=arrays.transfer_s,
        activation=arrays.activation_bytes,
        activation_kept_for_weight=arrays.kept_bytes,
        cap=np.maximum(limit - arrays.static_bytes, 0.0),
        action_overhead_s=costs.action_overhead_s,
        hop_overhead_s=costs.hop_overhead_s,
    )
