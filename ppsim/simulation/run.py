"""A table and its costs → a timeline."""

import numpy as np

from ppsim.compiling import Engine
from ppsim.costs.stages import CostArrays, StageCosts
from ppsim.errors import ConfigError
from ppsim.schedule.check import validate
from ppsim.schedule.graph import EventGraph, build_graph
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.engine import Floats, evaluate
from ppsim.simulation.relaxed import without_wraparound
from ppsim.simulation.timeline import Timeline


def simulate(
    schedule: Schedule, costs: StageCosts, *, relaxed_wraparound: bool = False, engine: Engine = "auto"
) -> Timeline:
    """Return the timeline of one step of `schedule` at `costs`.

    The table is checked first, and a table that cannot run is never simulated to a number: raises
    `ScheduleError` for an incomplete or misordered one, `Deadlock` naming the actions that wait for each other,
    `ConfigError` for costs of another number of stages.

    `relaxed_wraparound` evaluates the table as the zero-bubble paper did its 1F1B-I column: in a looped placement
    only the first microbatch of each group of p waits for the hop between the last rank and the first. No runtime
    can do that, and the times are too short: it serves to reproduce those numbers. Raises `ConfigError` for
    another placement than a loop, and for a network other than the paper's (overlap, ideal).

    >>> from ppsim import build, StageCosts, simulate
    >>> table = build("1f1b", pp=4, microbatches=8)
    >>> simulate(table, StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)).step_time_s
    33.0
    """
    validate(schedule)
    if relaxed_wraparound and (costs.communication, costs.channel) != ("overlap", "ideal"):
        raise ConfigError(
            f"relaxed wrap-around is for overlapping communication on ideal channels: got {costs.communication} on "
            f"channel {costs.channel}"
        )
    graph = build_graph(
        schedule, communication=costs.communication, channel=costs.channel, receives=costs.receives,
        engine=engine,
    )  # fmt: skip
    if relaxed_wraparound:
        graph = without_wraparound(graph)
    return simulate_graph(graph, costs, engine=engine)


def simulate_graph(graph: EventGraph, costs: StageCosts, *, engine: Engine = "auto") -> Timeline:
    """Return the timeline of an event graph built for the communication that `costs` names."""
    table = costs.resolved(num_stages=graph.schedule.num_stages, num_ranks=graph.schedule.num_ranks)
    times = evaluate(graph, durations_s(graph, table), overheads_s(graph, costs), engine=engine)
    return Timeline(graph=graph, start=times.start, end=times.end, blocker=times.blocker, costs=table)


def durations_s(graph: EventGraph, costs: CostArrays) -> Floats:
    """Return the duration of every node: compute by op and stage, transfers by the stages they run between."""
    schedule = graph.schedule
    by_op = np.stack([costs.forward_s, costs.backward_s, costs.backward_input_s, costs.backward_weight_s])
    assert (Op.F, Op.B, Op.I, Op.W) == (0, 1, 2, 3)  # the rows of by_op
    compute = by_op[schedule.op, schedule.stage]
    hop = np.minimum(schedule.stage[graph.source], schedule.stage[graph.target])
    return np.concatenate([compute, costs.transfer_s[hop]])


def overheads_s(graph: EventGraph, costs: StageCosts) -> Floats:
    """Return the host time or latency before every node."""
    return np.concatenate(
        [np.full(graph.num_actions, costs.action_overhead_s), np.full(graph.num_transfers, costs.hop_overhead_s)]
    )
