"""Memory over time by rank: a panel below a timeline, and a separate figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppsim.base.errors import ConfigError
from ppsim.base.units import size
from ppsim.plot import palette
from ppsim.plot.figures.style import LEGEND_ROW, POINTS, Width, new_axes
from ppsim.plot.lanes import has_memory, memory_lines, shown_ranks, spread_evenly
from ppsim.plot.scale import AxisScale, bytes_scale, time_scale
from ppsim.simulation.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT = 1.75  # inches
_LIMIT_ROOM = 0.2  # × range: space above the limit for its label


@dataclass(frozen=True)
class MemoryRange:
    """Range of a memory axis and the limit to draw, in bytes."""

    low: float
    top: float
    limit: float | None

    @property
    def unit(self) -> AxisScale:
        return bytes_scale(self.top)


def memory_range_of(timelines: Sequence[Timeline], limit_bytes: float | None) -> MemoryRange:
    """The range begins just below the static memory if 0 would leave little room for the variation."""
    with_memory = [timeline for timeline in timelines if has_memory(timeline)]
    top = max([limit_bytes or 0.0, *(float(timeline.memory.peak_bytes.max()) for timeline in with_memory)])
    least = min((float(timeline.costs.static_bytes.min()) for timeline in with_memory), default=0.0)
    low = least - (top - least) / 10 if least > top / 2 else 0.0
    return MemoryRange(low, top, limit_bytes)


def memory_figure(
    timeline: Timeline, *, memory_limit_bytes: float | None = None, title: str = "", width: Width = "two-column"
) -> "Figure":
    """Return the memory of each rank over the step, static bytes included, with a dot at its first peak.

    Raises `ConfigError` for a timeline whose costs contain no memory.
    """
    if not has_memory(timeline):
        raise ConfigError("the timeline holds no bytes: its costs name neither activation_bytes nor static_bytes")
    reach, scale = memory_range_of([timeline], memory_limit_bytes), time_scale(timeline.step_time_s)
    with new_axes(width, _HEIGHT) as (figure, axes):
        draw_memory(axes, timeline, scale, reach)
        axes.set_xlim(0.0, timeline.step_time_s / scale.size or 1.0)
        axes.set_xlabel(f"time ({scale.unit})")
        if title:
            axes.set_title(title, loc="left", parse_math=False, fontweight="bold", pad=24)
        _mark_peaks(axes, timeline, scale, reach.unit)
        draw_rank_legend(axes, timeline, width)
    return figure


def draw_memory(axes: "Axes", timeline: Timeline, scale: AxisScale, reach: MemoryRange) -> None:
    num_ranks, unit = timeline.schedule.num_ranks, reach.unit
    for line in memory_lines(timeline, shown_ranks(timeline)):
        axes.plot(
            line.at_s / scale.size, line.held_bytes / unit.size, drawstyle="steps-post", linewidth=0.8,
            color=palette.rank_colour(line.rank, num_ranks),
        )  # fmt: skip
    room = 0.06 if reach.limit is None else _LIMIT_ROOM
    axes.set_ylim(reach.low / unit.size, (reach.top + room * (reach.top - reach.low)) / unit.size)
    axes.set_ylabel(f"memory ({unit.unit})")
    axes.locator_params(axis="y", nbins=5)
    axes.grid(axis="y")
    if reach.limit is not None:
        y = reach.limit / unit.size
        axes.axhline(y, color=palette.CRITICAL_PATH, linestyle="--")
        axes.annotate(
            f"limit {size(reach.limit)}", (1, y), xycoords=("axes fraction", "data"), xytext=(-2, 1.5),
            textcoords="offset points", ha="right", va="bottom", color=palette.CRITICAL_PATH,
        )  # fmt: skip


def draw_rank_legend(axes: "Axes", timeline: Timeline, width: Width) -> None:
    from matplotlib.lines import Line2D

    num_ranks, listed = timeline.schedule.num_ranks, spread_evenly(shown_ranks(timeline), 8)
    listed = listed if width == "two-column" else spread_evenly(listed, 5)
    handles = [Line2D([], [], color=palette.rank_colour(rank, num_ranks), label=str(rank)) for rank in listed]
    handles[0].set_label(f"rank {listed[0]}")
    axes.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(handles),
        borderaxespad=0.15, borderpad=0.0, handlelength=1.0, handletextpad=0.4, columnspacing=0.8,
    )  # fmt: skip


def _mark_peaks(axes: "Axes", timeline: Timeline, scale: AxisScale, unit: AxisScale) -> None:
    memory, num_ranks = timeline.memory, timeline.schedule.num_ranks
    at = (timeline.start[memory.peak_at] - timeline.begin_s) / scale.size
    held = memory.peak_bytes / unit.size
    for rank in shown_ranks(timeline):
        axes.plot(at[rank], held[rank], "o", color=palette.rank_colour(rank, num_ranks), markersize=2.5)
    rank = int(memory.peak_bytes.argmax())
    name = timeline.name_of(int(memory.peak_at[rank]))
    axes.annotate(
        f"rank {rank}: {size(float(memory.peak_bytes[rank]))} at {name}", (0, 1), xycoords="axes fraction",
        xytext=(0, 2.5 + LEGEND_ROW * POINTS), textcoords="offset points", va="bottom",
    )  # fmt: skip
