"""An evaluation that no runtime can do: interleaved schedules without most of their wrap-around.

In a looped placement a forward goes on from the last rank to the first, and a backward from the first to the last.
The column 1F1B-I of the zero-bubble paper (Qi et al. 2024, arXiv 2401.10241, Tables 5 and 8) comes out to its four
printed digits if only the first microbatch of each group of p waits for that transfer. The input of the others has
not arrived, so the bubble is too small, by up to 0.005.
"""

from dataclasses import replace

import numpy as np

from ppsim.schedule.graph import EventGraph, build_graph
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.simulate import simulate_graph
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline


def simulate_as_in_the_paper(schedule: Schedule, costs: StageCosts) -> Timeline:
    """Return the timeline of a looped table, on ideal channels, as the paper evaluated it."""
    return simulate_graph(without_wraparound(build_graph(schedule)), costs)


def without_wraparound(graph: EventGraph) -> EventGraph:
    """Return the graph in which no action waits for a transfer between the last rank and the first.

    The first microbatch of each group of p still waits. The transfers stay in the graph; nobody waits for them.
    """
    schedule = graph.schedule
    p = schedule.num_ranks
    source_stage, microbatch = schedule.stage[graph.source], schedule.microbatch[graph.source]
    is_forward = schedule.op[graph.source] == Op.F
    wraps = source_stage % p == np.where(is_forward, p - 1, 0)
    dropped = np.flatnonzero(wraps & (microbatch % p != 0))

    node = np.repeat(np.arange(graph.num_nodes), np.diff(graph.offsets))
    is_dropped = np.zeros(graph.num_nodes, dtype=np.bool_)
    is_dropped[graph.num_actions + dropped] = True
    keep = ~(is_dropped[graph.waits_for] & (node < graph.num_actions))
    counts = np.bincount(node[keep], minlength=graph.num_nodes)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return replace(graph, offsets=offsets, waits_for=graph.waits_for[keep])
