"""An evaluation that no runtime can do: interleaved schedules without most of their wrap-around.

In a looped placement a forward goes on from the last rank to the first, and a backward from the first to the last.
The column 1F1B-I of the zero-bubble paper (Qi et al. 2024, arXiv 2401.10241, Tables 5 and 8) comes out to its four
printed digits when only the first microbatch of each group of p waits for that hop, and the others take it as done.
What such an action would compute with has not arrived; the bubble is too small by up to 0.005. This is here so that
the printed numbers can be had beside the right ones.
"""

from dataclasses import replace

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.schedule.graph import EventGraph
from ppsim.schedule.placement import loop
from ppsim.schedule.table import Op


def without_wraparound(graph: EventGraph) -> EventGraph:
    """Return the graph in which no action waits for a transfer between the last rank and the first.

    The first microbatch of each group of p still waits. The transfers stay in the graph; nobody waits for them.
    The graph must be of overlapping communication on ideal channels. Raises `ConfigError` for a placement that is
    not looped.
    """
    schedule = graph.schedule
    p = schedule.num_ranks
    if schedule.stage_to_rank.tolist() != loop(p, schedule.num_stages):
        raise ConfigError("relaxed wrap-around is for looped placements; this table places its stages otherwise")
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
