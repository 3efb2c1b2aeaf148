"""A timeline as numbers: the JSON of `simulate --json` and part of `project --json`."""

from typing import Any

from ppsim.simulation.bounds.for_table import bounds_of
from ppsim.simulation.bounds.problem import is_within
from ppsim.simulation.idle_causes import CAUSES, critical_path, idle_by_cause_s
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline, ratio_idle


def report_of(timeline: Timeline, costs: StageCosts, *, memory_limit_bytes: float | None = None) -> dict[str, Any]:
    """Bounds are for tables within `memory_limit_bytes` per rank, or for any memory if the timeline exceeds it."""
    bounds = bounds_of(timeline.schedule, costs, memory_limit_bytes=_kept(timeline, memory_limit_bytes))
    schedule, idle, busy_s = timeline.schedule, idle_by_cause_s(timeline), timeline.busy_s
    memory = timeline.memory  # last: for large tables it needs more host memory than the values above
    ranks = [
        {
            "rank": rank,
            "busy_s": float(busy_s[rank]),
            "idle_s": timeline.step_time_s - float(busy_s[rank]),
            "bubble_ratio": ratio_idle(float(busy_s[rank]), timeline.step_time_s),
            "peak_activation_bytes": float(memory.peak_activation_bytes[rank]),
            "peak_bytes": float(memory.peak_bytes[rank]),
            "peak_at": timeline.name_of(int(memory.peak_at[rank])),
            "idle_by_cause_s": {cause: float(idle[cause][rank]) for cause in CAUSES},
        }
        for rank in range(schedule.num_ranks)
    ]
    path = critical_path(timeline)
    return {
        "schedule": schedule.name,
        "pp": schedule.num_ranks,
        "vpp": schedule.vpp,
        "microbatches": schedule.num_microbatches,
        "replicas": schedule.num_replicas,
        "slices": schedule.num_slices,
        "gradient_accumulation_steps": schedule.num_rounds,
        "num_actions": timeline.num_actions,
        "step_time_s": timeline.step_time_s,
        "step_overhead_s": costs.step_overhead_s,
        "iteration_time_s": timeline.step_time_s + costs.step_overhead_s,
        "span_s": timeline.span_s,
        "bubble_ratio": timeline.bubble_ratio,
        "span_bubble_ratio": timeline.span_bubble_ratio,
        "lower_bound_s": bounds.step_s,
        "span_lower_bound_s": bounds.span_s,
        "memory_limit_bytes": memory_limit_bytes,
        "ranks": ranks,
        "critical_path": [timeline.name_of(node) for node in path.tolist() if node < timeline.num_actions],
    }


def _kept(timeline: Timeline, limit_bytes: float | None) -> float | None:
    return limit_bytes if is_within(float(timeline.memory.peak_bytes.max()), limit_bytes) else None


def gap_of(value: float, bound: float) -> float:
    """Return the relative distance of a time from its lower bound; rounding errors below 0 become 0.

    >>> gap_of(1.5, 1.0), gap_of(1.0, 1.0 + 1e-15), gap_of(1.0, 0.0)
    (0.5, 0.0, 0.0)
    """
    return max(value / bound - 1, 0.0) if bound > 0 else 0.0
