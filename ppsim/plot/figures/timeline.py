"""Timelines as a print figure, with the panels of the interactive page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ppsim.base.errors import ConfigError
from ppsim.base.units import percent, seconds
from ppsim.plot import palette
from ppsim.plot.action_colours import ActionColours, fills_of
from ppsim.plot.figures.cells import HATCH, HATCH_COLOUR, draw_compute, draw_transfers, is_wide
from ppsim.plot.figures.memory import draw_memory, draw_rank_legend, memory_range_of
from ppsim.plot.figures.style import (
    LEGEND_ROW,
    POINTS,
    TEXT_POINTS,
    TITLE_POINTS,
    Width,
    inches,
    legend_rows,
    new_figure,
    place_rows,
    settings,
)
from ppsim.plot.lanes import has_memory, has_transfers, memory_caption
from ppsim.plot.scale import AxisScale, heading, panel_prefixes, time_scale
from ppsim.schedule.table import Op
from ppsim.simulation.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Panel = Literal["compute", "transfers", "memory"]
PANELS: tuple[Panel, ...] = ("compute", "transfers", "memory")

_LEFT, _RIGHT, _TOP, _BOTTOM = 0.42, 0.1, 0.03, 0.34  # inches, like all sizes here
_CAPTION, _GAP, _MEMORY = 0.19, 0.04, 1.1


@dataclass(frozen=True)
class _Panel:
    kind: Panel
    timeline: Timeline
    title: str
    facts: str
    height: float
    has_rank_legend: bool = False

    @property
    def row_points(self) -> float:
        return self.height / self.timeline.schedule.num_ranks * POINTS

    @property
    def room_above(self) -> float:
        room = _CAPTION if self.title or self.facts else _GAP
        return room + LEGEND_ROW if self.has_rank_legend else room


def timeline_figure(
    timelines: Sequence[Timeline],
    *,
    titles: Sequence[str] | None = None,
    memory_limit_bytes: float | None = None,
    panels: Sequence[Panel] = PANELS,
    with_critical_path: bool = True,
    width: Width = "two-column",
) -> "Figure":
    """Return a figure with the timelines on one time axis, and transfers and memory below.

    If `titles` is None, a single timeline has no title. Of `panels`, transfers and memory are drawn only if the
    timelines have them. Raises `ConfigError` for an unknown panel or width.
    """
    if unknown := [panel for panel in panels if panel not in PANELS]:
        raise ConfigError(f"panels are {', '.join(PANELS)}: got {unknown[0]!r}")
    longest_s = max(timeline.step_time_s for timeline in timelines)
    scale, fills, across = time_scale(longest_s), fills_of(timelines), inches(width)
    points_per_s = (across - _LEFT - _RIGHT) * POINTS / (longest_s or 1.0)
    drawn = _panels(timelines, titles, panels, width)
    memory_range = memory_range_of(timelines, memory_limit_bytes)
    with settings():
        figure = new_figure(width, 1.0)
        handles = _legend_handles(timelines, fills, panels, points_per_s, with_critical_path=with_critical_path)
        legend = legend_rows(figure, handles, width=across - _LEFT - _RIGHT)
        above = _TOP + len(legend) * LEGEND_ROW
        height = above + sum(panel.room_above + panel.height for panel in drawn) + _BOTTOM
        figure.set_size_inches(across, height)
        place_rows(figure, legend, left=_LEFT, top=_TOP)
        top = height - above
        for panel in drawn:
            top -= panel.room_above + panel.height
            axes = figure.add_axes(
                (_LEFT / across, top / height, (across - _LEFT - _RIGHT) / across, panel.height / height)
            )
            axes.set_xlim(0.0, longest_s / scale.size if longest_s > 0 else 1.0)
            if panel.kind == "memory":
                draw_memory(axes, panel.timeline, scale, memory_range)
                if panel.has_rank_legend:
                    draw_rank_legend(axes, panel.timeline, width)
            else:
                _draw_ranks(axes, panel, scale, fills, points_per_s, with_critical_path=with_critical_path)
            _caption(axes, panel)
            is_last = panel is drawn[-1]
            axes.tick_params(axis="x", bottom=is_last, labelbottom=is_last)
        axes.set_xlabel(f"time ({scale.unit})")
        figure.align_ylabels()
    return figure


def draw_timelines(axes: "Axes", timelines: Sequence[Timeline], titles: Sequence[str]) -> None:
    """The size of the axes decides which labels fit."""
    longest_s = max(timeline.step_time_s for timeline in timelines)
    scale, fills, number = time_scale(longest_s), fills_of(timelines), len(timelines)
    figure = axes.get_figure(root=True)
    assert figure is not None
    box = axes.get_position()
    across, height = figure.get_size_inches() * (box.width, box.height)
    share = 1.0 if number == 1 else 0.8
    places = [axes]
    if number > 1:
        axes.set_axis_off()
        places = [axes.inset_axes((0, (number - 1 - place) / number, 1, share / number)) for place in range(number)]
    with settings():
        for one, timeline, title in zip(places, timelines, titles, strict=True):
            room = height * share / number
            panel = _Panel("compute", timeline, *_heading(timeline, title, "two-column"), room)
            one.set_xlim(0.0, longest_s / scale.size if longest_s > 0 else 1.0)
            _draw_ranks(one, panel, scale, fills, across * POINTS / (longest_s or 1.0), with_critical_path=True)
            _caption(one, panel)
            one.spines[["top", "right"]].set_visible(False)
            one.tick_params(axis="x", labelbottom=one is places[-1])
        places[-1].set_xlabel(f"time ({scale.unit})")


def _panels(
    timelines: Sequence[Timeline], titles: Sequence[str] | None, panels: Sequence[Panel], width: Width
) -> list[_Panel]:
    names = [""] * len(timelines) if titles is None else titles
    headings = [_heading(timeline, title, width) for timeline, title in zip(timelines, names, strict=True)]
    if titles is None and len(timelines) == 1:
        headings = [("", "")]
    prefixes = panel_prefixes(timelines, names)
    made: list[_Panel] = []
    if "compute" in panels:
        for timeline, texts in zip(timelines, headings, strict=True):
            made.append(_Panel("compute", timeline, *texts, _height_of_rows(timeline, 2.4, 0.012, 0.17)))
    for timeline, prefix in zip(timelines, prefixes, strict=True):
        if "transfers" in panels and has_transfers(timeline):
            height = _height_of_rows(timeline, 0.8, 0.008, 0.11)
            made.append(_Panel("transfers", timeline, "", f"{prefix}transfers, by sending rank", height))
    with_memory = [pair for pair in zip(timelines, prefixes, strict=True) if has_memory(pair[0])]
    for place, (timeline, prefix) in enumerate(with_memory if "memory" in panels else []):
        made.append(_Panel("memory", timeline, "", prefix + memory_caption(timeline), _MEMORY, place == 0))
    if not made:
        raise ConfigError(f"there is nothing to draw: the timelines have no {' and no '.join(panels)}")
    return made


def _heading(timeline: Timeline, title: str, width: Width) -> tuple[str, str]:
    name, facts = heading(timeline, title)
    if width == "one-column":
        facts = f"step {seconds(timeline.step_time_s)} · bubble {percent(timeline.bubble_ratio)}"
    return name, facts


def _legend_handles(
    timelines: Sequence[Timeline],
    fills: ActionColours,
    panels: Sequence[Panel],
    points_per_s: float,
    *,
    with_critical_path: bool,
) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor=colour, label=name)
        for name, colour in fills.legend(timelines)
        if ("transfers" if name == palette.TITLES[Op.SEND_F] else "compute") in panels
    ]
    if fills.num_chunks > 1 and any(is_wide(timeline, points_per_s) for timeline in timelines):
        for handle in handles:
            if handle.get_label() == palette.TITLES[Op.W]:
                handle.set(hatch=HATCH, edgecolor=HATCH_COLOUR, linewidth=0)
    if "compute" in panels and with_critical_path:
        handles.append(Line2D([], [], color=palette.CRITICAL_PATH, linewidth=1.4, label="critical path"))
    return handles


def _height_of_rows(timeline: Timeline, aim: float, least: float, most: float) -> float:
    """Return the height of all rows in inches: `aim`, with each row between `least` and `most`."""
    num_ranks = timeline.schedule.num_ranks
    return num_ranks * min(max(aim / num_ranks, least), most)


def _caption(axes: "Axes", panel: _Panel) -> None:
    """Write a panel's title in bold and the facts after it; dollar signs are plain text."""
    name, facts = panel.title, panel.facts
    above = 2.5 + (LEGEND_ROW * POINTS if panel.has_rank_legend else 0.0)
    title = axes.annotate(
        name, (0, 1), xycoords="axes fraction", xytext=(0, above), textcoords="offset points",
        fontweight="bold", fontsize=TITLE_POINTS, va="bottom", parse_math=False,
    )  # fmt: skip
    axes.annotate(
        facts, (1, 0) if name else (0, 0), xycoords=title, xytext=(6 if name else 0, 0),
        textcoords="offset points", color=palette.QUIET_TEXT, va="bottom", parse_math=False,
    )  # fmt: skip


def _draw_ranks(
    axes: "Axes",
    panel: _Panel,
    scale: AxisScale,
    fills: ActionColours,
    points_per_s: float,
    *,
    with_critical_path: bool,
) -> None:
    if panel.kind == "transfers":
        draw_transfers(axes, panel.timeline, scale, fills)
    else:
        draw_compute(
            axes, panel.timeline, scale, fills, points_per_s=points_per_s, row_points=panel.row_points,
            with_critical_path=with_critical_path,
        )  # fmt: skip
    num_ranks = panel.timeline.schedule.num_ranks
    step = next(step for step in (1, 2, 4, 8, 16, 32, 64) if step * panel.row_points >= 1.2 * TEXT_POINTS)
    axes.set_ylim(num_ranks - 0.5, -0.5)
    axes.set_yticks(range(0, num_ranks, step))
    axes.set_ylabel("rank")
    axes.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
