"""Timeline of a simulated or measured step, and its metrics."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from ppsim.base.arrays import Floats, Ints32
from ppsim.base.display import Drawable
from ppsim.base.units import percent, seconds
from ppsim.schedule.graph import EventGraph
from ppsim.schedule.networks import name_of, network_of
from ppsim.schedule.rounds import microbatches_in_words
from ppsim.schedule.table import NONE, Op, Schedule, last_of_cell
from ppsim.simulation.cost_arrays import CostArrays
from ppsim.simulation.memory_per_action import RankMemoryUse, memory_of

if TYPE_CHECKING:
    import networkx
    import pandas


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(Drawable):
    """Start and end of every action and transfer of a step, in seconds from the first start.

    Arrays have one entry per node of `graph`: the compute actions in table order, then the transfers. `blocker` is
    the node whose end determined the start (−1: none). `earliest` is the time before which a node lacks its
    parameters. In a measured timeline, a transfer for which no action waited ends when the runtime posted it.

    >>> import ppsim
    >>> table = ppsim.build("1f1b", pp=4, microbatches=8)
    >>> costs = ppsim.StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    >>> timeline = ppsim.simulate(table, costs)
    >>> timeline.step_time_s, round(timeline.bubble_ratio, 3)
    (33.0, 0.273)
    """

    graph: EventGraph
    start: Floats
    end: Floats
    blocker: Ints32
    costs: CostArrays
    origin: Literal["simulated", "measured"] = "simulated"
    earliest: Floats | None = None

    @property
    def one_line(self) -> str:
        table = self.schedule
        batch = microbatches_in_words(table.num_microbatches, table.num_rounds)
        return (
            f"{table.name or 'own table'}, pp {table.num_ranks}, vpp {table.vpp}, {batch}, {self.origin}: "
            f"step {seconds(self.step_time_s)}, bubble {percent(self.bubble_ratio)}"
        )

    @property
    def schedule(self) -> Schedule:
        return self.graph.schedule

    @property
    def num_actions(self) -> int:
        return self.graph.num_actions

    @property
    def ready_s(self) -> Floats | None:
        """Time at which each stage has its parameters (None: from the start)."""
        if self.earliest is None:
            return None
        ready_s, is_forward = np.zeros(self.schedule.num_stages), self.schedule.op == Op.F
        ready_s[self.schedule.stage[is_forward]] = self.earliest[: self.num_actions][is_forward]
        return ready_s

    @cached_property
    def begin_s(self) -> float:
        return float(self.start[: self.num_actions].min())

    @cached_property
    def step_time_s(self) -> float:
        """Time from the first start to the last end over all ranks."""
        return float(self.end[: self.num_actions].max()) - self.begin_s

    @cached_property
    def rank_begin_s(self) -> Floats:
        return np.minimum.reduceat(self.start[: self.num_actions], self.schedule.rank_offsets[:-1])

    @cached_property
    def rank_end_s(self) -> Floats:
        return np.maximum.reduceat(self.end[: self.num_actions], self.schedule.rank_offsets[:-1])

    @cached_property
    def span_s(self) -> float:
        """Longest time from a rank's own first start to its own last end (the cost in zero-bubble papers)."""
        return float((self.rank_end_s - self.rank_begin_s).max())

    @cached_property
    def busy_s(self) -> Floats:
        """Compute time of each rank."""
        duration = self.end[: self.num_actions] - self.start[: self.num_actions]
        return np.add.reduceat(duration, self.schedule.rank_offsets[:-1])

    @property
    def bubble_ratio(self) -> float:
        """1 − Σ busy / (p · step time)."""
        return ratio_idle(float(self.busy_s.mean()), self.step_time_s)

    @property
    def span_bubble_ratio(self) -> float:
        return ratio_idle(float(self.busy_s.mean()), self.span_s)

    @cached_property
    def memory(self) -> RankMemoryUse:
        return memory_of(self.schedule, self.costs)

    @cached_property
    def makers(self) -> Ints32:
        """Per transfer, the last action of the cell that produces its message."""
        source = self.graph.source
        return last_of_cell(self.schedule)[source] if (self.schedule.fused != NONE).any() else source

    def name_of(self, node: int) -> str:
        """Return `3F0` for an action, `3SEND_F0` for the transfer of its result.

        >>> import ppsim
        >>> costs = ppsim.StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
        >>> timeline = ppsim.simulate(ppsim.build("1f1b", pp=2, microbatches=2), costs)
        >>> timeline.name_of(0), timeline.name_of(timeline.num_actions)
        ('0F0', '1SEND_B0')
        """
        return name_of(self.graph, node)

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with one row per node.

        `rank` is the sender's for a transfer, `to_rank` is −1 for an action. `microbatch` is the running number of
        the slice in sliced tables.

        >>> import ppsim
        >>> costs = ppsim.StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
        >>> frame = ppsim.simulate(ppsim.build("1f1b", pp=2, microbatches=2), costs).to_frame()
        >>> frame.loc[frame["rank"] == 1, ["name", "start_s", "end_s", "blocker"]].head(3)
          name  start_s  end_s   blocker
        4  1F0      1.0    2.0  0SEND_F0
        5  1B0      2.0    4.0       1F0
        6  1F1      4.0    5.0       1B0
        """
        import pandas

        schedule, source, target = self.schedule, self.graph.source, self.graph.target
        names = [self.name_of(node) for node in range(self.graph.num_nodes)]
        made_by = np.concatenate([np.arange(self.num_actions), source])
        kinds = np.array([op.name for op in Op if op is not Op.IDLE])
        kind = np.concatenate([kinds[schedule.op], np.where(schedule.op[source] == Op.F, "SEND_F", "SEND_B")])
        return pandas.DataFrame(
            {
                "name": names,
                "kind": kind,
                "rank": schedule.rank[made_by],
                "to_rank": np.concatenate([np.full(self.num_actions, NONE), schedule.rank[target]]),
                "stage": schedule.stage[made_by],
                "microbatch": schedule.microbatch[made_by],
                "start_s": self.start,
                "end_s": self.end,
                "blocker": [names[node] if node != NONE else "" for node in self.blocker.tolist()],
            }
        )

    def to_networkx(self) -> "networkx.DiGraph[str]":
        """Return the dependencies with times as a networkx graph; raises `MissingExtra` without networkx.

        `ppsim.Schedule.to_networkx` describes nodes and edges; the queues of channels are additional edges. Edges
        have slack_s (between the two nodes) and fixes (True if the edge determined the start).

        >>> import networkx, ppsim
        >>> costs = ppsim.StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
        >>> graph = ppsim.simulate(ppsim.build("1f1b", pp=2, microbatches=2), costs).to_networkx()
        >>> graph.nodes["1B0"]["end_s"], graph.edges["1F0", "1B0"]["fixes"]
        (4.0, True)
        """
        graph = network_of(self.graph)
        names = list(graph)
        for node, name in enumerate(names):
            graph.nodes[name].update(start_s=float(self.start[node]), end_s=float(self.end[node]))
        for before, name, attributes in graph.edges(data=True):
            ends = graph.nodes[name]
            attributes["slack_s"] = ends["start_s"] - graph.nodes[before]["end_s"]
            blocker = int(self.blocker[ends["number"]])
            attributes["fixes"] = blocker != NONE and names[blocker] == before
        return graph


def ratio_idle(busy: float, whole: float) -> float:
    return 1.0 - busy / whole if whole > 0 else 0.0
