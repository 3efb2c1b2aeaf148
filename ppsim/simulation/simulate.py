"""Simulate a schedule table with given costs."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ppsim.base.arrays import Floats, Numbers
from ppsim.base.errors import require_kind
from ppsim.base.numba_jit import Engine, running_on
from ppsim.schedule.check import validate
from ppsim.schedule.graph import EventGraph
from ppsim.schedule.rounds import round_starts
from ppsim.schedule.table import Op, Schedule, fused_pairs
from ppsim.simulation.cost_arrays import CostArrays
from ppsim.simulation.memory_per_action import slice_shares
from ppsim.simulation.overlap import evaluate_slowed
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline


def simulate(
    schedule: Schedule,
    costs: StageCosts,
    *,
    ready_s: Floats | None = None,
    engine: Engine = "auto",
) -> Timeline:
    """Return the timeline of one step; no forward of a stage starts before its entry of `ready_s`.

    Raises `ScheduleError` for an incomplete or misordered table, `Deadlock` with the actions that wait for each
    other, and `ConfigError` if costs and table differ in the number of stages.

    >>> from ppsim import build, StageCosts, simulate
    >>> table = build("1f1b", pp=4, microbatches=8)
    >>> simulate(table, StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)).step_time_s
    33.0
    """
    require_kind("schedule", schedule, Schedule, "a ppsim.Schedule, as from ppsim.build")
    require_kind("costs", costs, StageCosts, "a ppsim.StageCosts")
    validate(schedule)
    with running_on(engine):
        graph = costs.graph(schedule)
        return simulate_graph(graph, costs, ready_s=ready_s)


def simulate_graph(graph: EventGraph, costs: StageCosts, *, ready_s: Floats | None = None) -> Timeline:
    table, earliest = costs.resolved_for(graph.schedule), None
    if ready_s is not None:
        schedule = graph.schedule
        earliest = np.zeros(graph.num_nodes)
        earliest[: graph.num_actions] = np.where(schedule.op == Op.F, ready_s[schedule.stage], 0.0)
    times = evaluate_slowed(
        graph, durations_s(graph, table), overheads_s(graph, costs), costs.overlap_slowdown,
        earliest=earliest,
    )  # fmt: skip
    return Timeline(
        graph=graph, start=times.start, end=times.end, blocker=times.blocker, costs=table, earliest=earliest
    )


def durations_s(graph: EventGraph, costs: CostArrays) -> Floats:
    schedule, num_actions, duration = graph.schedule, graph.num_actions, np.empty(graph.num_nodes)
    compute, transfers = duration[:num_actions], duration[num_actions:]
    microbatch, time_share, token_share = slice_shares(schedule, costs)
    seconds = costs.of_passes(schedule.op, schedule.stage, microbatch)
    np.multiply(seconds, time_share, out=compute)
    if costs.fused_s is not None:
        mean = costs.mean_passes(schedule.op, schedule.stage)
        size = np.divide(seconds, mean, out=np.ones(len(mean)), where=mean > 0)
        _share_out_pairs(schedule, mean, costs.fused_s, size * time_share, compute)
    del seconds  # frees memory: these arrays are large for a large table
    compute[schedule.rank_offsets[:-1]] += costs.first_pass_s
    compute[schedule.rank_offsets[schedule.stage_to_rank[0] + 1] - 1] += costs.last_pass_s
    hop = schedule.stage[graph.source]
    np.minimum(hop, schedule.stage[graph.target], out=hop)
    transfers[:] = costs.of("transfer_s", hop, microbatch[graph.source])
    if isinstance(token_share, np.ndarray):
        transfers *= token_share[graph.source]
    for on_link, (extra_s, _, block_s) in _slow_links(graph, costs.slow_links):
        transfers[on_link] += extra_s
        compute[graph.source[on_link]] += block_s
    return duration


def _slow_links(graph: EventGraph, slow_links: Numbers | None) -> Iterator[tuple[NDArray[np.bool_], Floats]]:
    """Yield the mask of each slow link's transfers, and its three times."""
    rank = graph.schedule.rank
    for row in [] if slow_links is None else np.atleast_2d(slow_links):
        yield (rank[graph.source] == row[0]) & (rank[graph.target] == row[1]), row[2:]


def _share_out_pairs(schedule: Schedule, seconds: Floats, fused_s: Floats, share: Floats, compute: Floats) -> None:
    """Replace the durations of fused forward-backward pairs by proportional shares of the pair's cost.

    `fused_s` is for whole microbatches of mean size. Otherwise, the time saved by fusing scales with the smaller of
    the two sizes in `share`.
    """
    forward, backward = fused_pairs(schedule)
    first = np.minimum(forward, backward)
    second = first + 1
    saved = seconds[first] + seconds[second] - fused_s[schedule.stage[forward], schedule.stage[backward]]
    parts = compute[first] + compute[second]
    pair = parts - saved * np.minimum(share[first], share[second])
    of_first = np.divide(compute[first], parts, out=np.full(len(first), 0.5), where=parts > 0)
    compute[first] = pair * of_first
    compute[second] = pair - compute[first]


def overheads_s(graph: EventGraph, costs: StageCosts) -> Floats:
    overhead = np.full(graph.num_nodes, costs.hop_overhead_s)
    of_actions = overhead[: graph.num_actions]
    of_actions[:] = costs.action_overhead_s + costs.variation_s
    if costs.between_rounds_s:
        of_actions[round_starts(graph.schedule)] += costs.between_rounds_s
    if costs.message_overhead_s:
        schedule, behind = graph.schedule, graph.source + 1
        is_followed = behind < schedule.rank_offsets[schedule.rank[graph.source] + 1]
        messages = np.bincount(np.concatenate([behind[is_followed], graph.target]), minlength=graph.num_actions)
        of_actions += messages * costs.message_overhead_s
    for on_link, (_, latency_s, _) in _slow_links(graph, costs.slow_links):
        overhead[graph.num_actions :][on_link] += latency_s
    return overhead
