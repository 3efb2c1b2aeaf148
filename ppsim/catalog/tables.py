"""Tables at costs: one that is fitted is judged where it will run, beside the patterns that it improves on."""

from typing import Any

import numpy as np

from ppsim.base.errors import ScheduleError
from ppsim.catalog import build as catalog
from ppsim.catalog.entry import Entry
from ppsim.schedule.table import Schedule
from ppsim.simulation.bounds.problem import Criterion
from ppsim.simulation.run import simulate
from ppsim.simulation.stage_costs import StageCosts


def build(
    name: str | Entry,
    *,
    pp: int,
    microbatches: int,
    vpp: int | None = None,
    group_size: int | None = None,
    num_slices: int | None = None,
    costs: StageCosts | None = None,
    memory_limit_bytes: float | None = None,
) -> Schedule:
    """Return the table of a schedule, by name or `Entry`, for `pp` ranks and `microbatches` microbatches.

    `vpp` is the number of stages a rank; None takes the least that the schedule allows. `group_size` is for
    interleaved-1f1b only, `num_slices` for a schedule that cuts microbatches into slices (None: its default).
    `costs` are for a schedule that is fitted to them, network included; without, F, I and W take one unit each.
    `memory_limit_bytes` (a rank, static bytes included) is for one that fits into it. Raises `ConfigError` naming
    the value that the schedule forbids and the nearest that it allows.

    >>> table = build("1f1b", pp=2, microbatches=2)
    >>> [str(action) for action in table]
    ['0F0', '0F1', '0B0', '0B1', '1F0', '1B0', '1F1', '1B1']
    """
    entry = catalog.find(name) if isinstance(name, str) else name
    shape: dict[str, Any] = {
        "pp": pp, "microbatches": microbatches, "vpp": vpp, "group_size": group_size, "num_slices": num_slices,
    }  # fmt: skip
    if costs is None:
        return catalog.build(entry, **shape, memory_limit_bytes=memory_limit_bytes)
    return fit(entry, **shape, costs=costs, memory_limit_bytes=memory_limit_bytes)[0]


def fit(
    entry: Entry,
    *,
    costs: StageCosts,
    memory_limit_bytes: float | None = None,
    criterion: Criterion = "step",
    **shape: Any,
) -> tuple[Schedule, str]:
    """Return the fastest table of a schedule that is fitted to costs, and a sentence that says which it is.

    The fastest on the network that the costs name, of those that a fit to an ideal network finds and of the
    published patterns that keep the memory limit. `shape` are the other arguments of `build`.
    """

    def judge(table: Schedule, limit: float | None = None) -> float:
        return _seconds(table, costs, criterion, limit)

    is_ideal = (costs.communication, costs.channel, costs.overlap_slowdown) == ("overlap", "ideal", 0.0)
    ours = catalog.build(
        entry, **shape, costs=costs, memory_limit_bytes=memory_limit_bytes, judge=None if is_ideal else judge
    )
    patterns = [catalog.build(other, **shape) for other in entry.published]
    times = {table.name: judge(table, memory_limit_bytes) for table in patterns}
    best = min(patterns, key=lambda table: times[table.name], default=ours)
    ours_s, best_s = judge(ours), times.get(best.name, np.inf)
    if best_s < ours_s:
        return best.named(entry.name), f"schedule: that of {best.name}, which these channels suit better"
    gain = f", {100 * (1 - ours_s / best_s):.2f} % below {best.name}" if ours_s < best_s < np.inf else ""
    return ours, f"schedule: fitted to the costs of every stage{gain}"


def _seconds(table: Schedule, costs: StageCosts, criterion: Criterion, limit: float | None) -> float:
    """The step time or the span, infinite where the channels deadlock or a rank exceeds the limit."""
    try:
        timeline = simulate(table, costs)
    except ScheduleError:
        return np.inf
    if limit is not None and timeline.memory.peak_bytes.max() > limit:
        return np.inf
    return timeline.step_time_s if criterion == "step" else timeline.span_s
