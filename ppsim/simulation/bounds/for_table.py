"""Lower bounds for the costs and the placement of a simulated table."""

from collections.abc import Sequence

import numpy as np

from ppsim.base.arrays import Ints32
from ppsim.schedule.table import Schedule
from ppsim.simulation.bounds.lower import LowerBounds, lower_bounds
from ppsim.simulation.bounds.problem import CAP_ROUNDING, Problem
from ppsim.simulation.cost_arrays import CostArrays
from ppsim.simulation.stage_costs import StageCosts


def bounds_of(schedule: Schedule, costs: StageCosts, *, memory_limit_bytes: float | None = None) -> LowerBounds:
    """Return lower bounds for all tables with this placement and number of microbatches, on any channel.

    Raises `ConfigError` if no table is within `memory_limit_bytes` per rank (static bytes included). For model
    replicas, slices and fused pairs with their own cost the bounds ignore memory.

    >>> from ppsim import build
    >>> unit = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, activation_bytes=1)
    >>> bounds_of(build("zb-h1", pp=4, microbatches=8), unit, memory_limit_bytes=4).span_s
    27.0
    """
    arrays = costs.resolved_for(schedule)
    bounds = _bounds_of_alike(schedule, costs, arrays.least(), memory_limit_bytes)
    if not arrays.by_microbatch:
        return bounds
    own = _bounds_by_microbatch(schedule, arrays)
    return LowerBounds(max(bounds.step_s, own.step_s), max(bounds.span_s, own.span_s))


def _bounds_of_alike(
    schedule: Schedule, costs: StageCosts, arrays: CostArrays, memory_limit_bytes: float | None
) -> LowerBounds:
    if schedule.num_replicas > 1 or schedule.num_slices > 1 or costs.fused_s is not None:
        return _bounds_of_chains(schedule, arrays)
    return lower_bounds(_problem(schedule.stage_to_rank, schedule.num_microbatches, arrays, memory_limit_bytes))


def _bounds_by_microbatch(schedule: Schedule, costs: CostArrays) -> LowerBounds:
    """Bounds from each microbatch's own costs (docs/notes/bounds.md, section 11).

    The bounds are 0 if fused cells have their own cost, which may be smaller than the cost of their parts.
    """
    overhead, num_slices = costs.action_overhead_s, schedule.num_slices
    if costs.fused_s is not None:
        return LowerBounds(0.0, 0.0)
    shape = (schedule.num_stages, schedule.num_microbatches)
    forward, full, inputs, weights, hops = (
        np.broadcast_to(costs.values(name), shape)
        for name in ("forward_s", "backward_s", "backward_input_s", "backward_weight_s", "transfer_s")
    )
    backward = np.minimum(full + num_slices * overhead, inputs + weights + 2 * num_slices * overhead)
    forward = forward + num_slices * overhead
    chain_of_stage = np.arange(schedule.num_stages) // schedule.num_model_stages
    is_mine = chain_of_stage[:, None] == schedule.chain_of_unit[::num_slices][None, :]
    work = np.zeros(schedule.num_ranks)
    np.add.at(work, schedule.stage_to_rank, ((forward + backward) * is_mine).sum(axis=1))
    span_s = float(work.max()) - overhead
    if num_slices > 1 or schedule.num_replicas > 1:
        return LowerBounds(span_s, span_s)
    crossed = (schedule.stage_to_rank[1:] != schedule.stage_to_rank[:-1])[:, None]
    hop = np.where(crossed, hops[:-1] + costs.hop_overhead_s, 0.0)
    reach = np.zeros(shape)
    np.cumsum(forward[:-1] + hop, axis=0, out=reach[1:])
    up = np.minimum(full, inputs)[1:] + overhead
    ways = forward.sum(axis=0) + 2 * hop.sum(axis=0) + up.sum(axis=0) + backward[0]
    begin = np.full(schedule.num_ranks, np.inf)
    np.minimum.at(begin, schedule.stage_to_rank, reach.min(axis=1))
    return LowerBounds(float(max(*ways, *(begin + work))) - overhead, span_s)


def problem_of(
    stage_to_rank: Sequence[int] | Ints32,
    num_microbatches: int,
    costs: StageCosts,
    *,
    memory_limit_bytes: float | None = None,
) -> Problem:
    num_ranks = int(max(stage_to_rank)) + 1
    arrays = costs.resolved(num_stages=len(stage_to_rank), num_ranks=num_ranks)
    return _problem(stage_to_rank, num_microbatches, arrays, memory_limit_bytes)


def _problem(
    stage_to_rank: Sequence[int] | Ints32, count: int, arrays: CostArrays, memory_limit_bytes: float | None
) -> Problem:
    limit = float("inf") if memory_limit_bytes is None else memory_limit_bytes * CAP_ROUNDING
    cap = np.maximum(limit - arrays.static_bytes, 0.0)
    return Problem.of_costs(stage_to_rank, count, arrays, cap=cap)


def _bounds_of_chains(schedule: Schedule, table: CostArrays) -> LowerBounds:
    """Bounds from paths and work (docs/notes/bounds.md, section 11)."""
    num_ranks, num_slices, rank = schedule.num_ranks, schedule.num_slices, schedule.stage_to_rank
    overhead = table.action_overhead_s
    to_input = np.minimum(table.backward_s, table.backward_input_s)
    split = table.backward_input_s + table.backward_weight_s
    # Work and paths differ: the results of a fused cell are sent when all its parts are done.
    forward_work, path_down, path_up = table.forward_s, table.forward_s, to_input
    least_pair = np.full(num_ranks, np.inf)
    if table.fused_s is not None:
        pair_s = np.where(rank[:, None] == rank[None, :], table.fused_s, np.inf)
        np.minimum.at(least_pair, rank, pair_s.min(axis=1))
        forward_work = np.minimum(table.forward_s, (pair_s - table.backward_s[None, :]).min(axis=1))
        path_down, path_up = np.minimum(table.forward_s, pair_s.min(axis=1)), np.minimum(to_input, least_pair[rank])

    begin, finish = np.full(num_ranks, np.inf), np.full(num_ranks, np.inf)  # s before first F, after last I or B
    work, work_to_input = np.zeros(num_ranks), np.zeros(num_ranks)
    bounds = []
    of_time, of_tokens = table.time_shares[0], table.token_shares[0]
    microbatches = np.bincount(schedule.chain_of_unit, minlength=schedule.num_replicas) // num_slices
    for chain in range(schedule.num_replicas):
        here = slice(chain * schedule.num_model_stages, (chain + 1) * schedule.num_model_stages)
        ranks, first, last = rank[here], here.start, here.stop - 1
        hop = table.transfer_s[here][:-1] * of_tokens + table.hop_overhead_s
        hop = np.where(ranks[1:] != ranks[:-1], hop, 0.0)
        down, up = path_down[here] * of_time + overhead, path_up[here] * of_time + overhead
        whole = min(table.backward_s[first] * of_time, split[first] * of_time + overhead)
        at_first = min(whole, least_pair[ranks[0]] * of_time) + overhead
        reach = np.concatenate(([0.0], np.cumsum(down[:-1] + hop)))  # earliest start of stage s
        # Time from the end of a stage's last backward to the end of the first stage's backward.
        back = np.concatenate(([0.0], at_first + np.cumsum(np.concatenate(([0.0], up[1:-1]))) + np.cumsum(hop)))
        backward = np.minimum(table.backward_s, split + num_slices * overhead)[here] + num_slices * overhead
        at_last = backward[0] if first == last else path_up[last] + num_slices * overhead
        bounds.append(reach[-1] + path_down[last] + num_slices * overhead + at_last + back[-1])
        np.minimum.at(begin, ranks, reach)
        np.minimum.at(finish, ranks, back)
        forwards = forward_work[here] + num_slices * overhead
        np.add.at(work, ranks, microbatches[chain] * (forwards + backward))
        np.add.at(work_to_input, ranks, microbatches[chain] * (forwards + to_input[here] + num_slices * overhead))
    bounds += [*(begin + work), *(begin + work_to_input + finish)]
    return LowerBounds(step_s=float(max(bounds)) - overhead, span_s=float(work.max()) - overhead)
