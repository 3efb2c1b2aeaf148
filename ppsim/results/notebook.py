"""Notebook cards of results: four numbers, a picture that fits a cell, and folded tables.

A timeline is the interactive page in a frame of its own. A card makes no request. It is shown whenever a result is
the last expression of a cell, so nothing here may take long.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ppsim.base.errors import PpsimError
from ppsim.base.units import percent, seconds, signed_percent, size
from ppsim.catalog.build import build, find
from ppsim.plot.figures.pareto import pareto_figure
from ppsim.plot.figures.style import figure_bytes
from ppsim.plot.html import timeline_html
from ppsim.plot.pareto_page import in_columns
from ppsim.plot.plot_model import TimelineView
from ppsim.projection.plan import AUTO, Plan
from ppsim.projection.projection import Projection, Projections
from ppsim.projection.quantities import texts_of
from ppsim.results.plans import projection_heading
from ppsim.runs.compare import Comparison
from ppsim.schedule.rounds import microbatches_in_words, repeat_rounds
from ppsim.schedule.table import Schedule
from ppsim.simulation.idle_causes import idle_by_cause_s
from ppsim.simulation.simulate import simulate
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline
from ppsim.simulation.verdict import MemoryVerdict
from ppsim.tuning.search import TuneResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, str]

_MOST_DRAWN = 60_000
"""Drawing more actions takes too long for a cell."""

_DPI = 130
_MOST_ROWS = 64
_UNIT = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)


def card_of_projection(projection: Projection) -> str:
    timeline = projection.timeline
    return _card(
        _projected(projection),
        texts_of(projection, "card"),
        _timelines([timeline], [projection.plan.schedule_name], limit_bytes=projection.plan.memory_bound_bytes),
        {"ranks": _table(_rank_rows(timeline)), "assumed": _list(projection.assumptions)},
        projection.verdict,
    )


def _peak_of(projection: Projection) -> dict[str, str]:
    if not projection.plan.knows_memory:
        return {}
    name = "peak of a rank" if projection.plan.has_model else "activations of a rank"
    return {name: size(float(projection.timeline.memory.peak_bytes.max()))}


_FITS = {"fits": "yes", "fits tightly": "tightly", "does not fit": "NO", "unknown": "–"}


def card_of_projections(several: Projections) -> str:
    """Return the card of the best schedule, with a list of all."""
    if not several.projections:
        return _card("no schedule is possible", {}, "", {"why": _list(_reasons(several))})
    best = several.projections[0]
    fastest = best.iteration_time_s
    rows = [
        {
            "schedule": projection.plan.schedule_name,
            "stages per rank": str(projection.plan.vpp),
            "iteration": seconds(projection.iteration_time_s),
            "vs best": signed_percent(projection.iteration_time_s / fastest - 1),
            "bubble": percent(projection.timeline.bubble_ratio),
            "peak": size(float(projection.timeline.memory.peak_bytes.max()))
            if projection.plan.knows_memory
            else "–",
            "fits": _FITS[projection.verdict.word if projection.verdict else "unknown"],
        }
        for projection in several.projections
    ]
    return _card(
        _projected(best),
        {
            "best": best.plan.schedule_name,
            "iteration": seconds(fastest),
            "bubble": percent(best.timeline.bubble_ratio),
            **_peak_of(best),
        },
        _timelines([best.timeline], [best.plan.schedule_name], limit_bytes=best.plan.memory_bound_bytes),
        {f"{len(rows)} schedules": _table(rows), "not possible": _list(_reasons(several))},
        best.verdict,
    )


def card_of_timeline(timeline: Timeline) -> str:
    peak = float(timeline.memory.peak_bytes.max())
    return _card(
        f"{_shape_of(timeline.schedule)}, {timeline.origin}",
        {
            "step": seconds(timeline.step_time_s),
            "bubble": percent(timeline.bubble_ratio),
            "longest rank": seconds(timeline.span_s),
            "peak of a rank": size(peak) if peak else "no bytes known",
        },
        _timelines([timeline], [""]),
        {"ranks": _table(_rank_rows(timeline))},
    )


def card_of_schedule(schedule: Schedule) -> str:
    picture, why = _outlined(lambda: schedule)
    rows = [
        {
            "rank": str(rank),
            "stages": ", ".join(map(str, schedule.stages_of(rank))),
            "first": " ".join(str(action) for action in list(_first_of(schedule, rank))),
        }
        for rank in range(min(schedule.num_ranks, _MOST_ROWS))
    ]
    return _card(
        _shape_of(schedule),
        {
            "ranks": str(schedule.num_ranks),
            "stages per rank": str(schedule.vpp),
            "microbatches": str(schedule.num_microbatches),
            "actions": str(schedule.num_actions),
        },
        picture,
        {"ranks": _table(rows), **({"it cannot run": _list([why])} if why else {})},
    )


def card_of_plan(plan: Plan) -> str:
    """Nothing is projected: the schedule is drawn with equally long actions."""

    def table() -> Schedule:
        if plan.schedule == AUTO:
            raise PpsimError("the table is searched for when the plan is projected")
        round_table = build(
            find(plan.schedule_name), pp=plan.pp, vpp=plan.vpp, microbatches=plan.round_microbatches,
            group_size=plan.group_size, num_slices=plan.num_slices,
        )  # fmt: skip
        return repeat_rounds(round_table, plan.gradient_accumulation_steps)

    picture, why = _outlined(table)
    set_fields = [{"field": name, "value": repr(value)} for name, value in vars(plan).items() if _is_set(value)]
    return _card(
        f"plan of {plan.source.name}",
        {
            "schedule": plan.schedule_name,
            "pipeline ranks": str(plan.pp),
            "microbatches": str(plan.num_microbatches),
            "devices": str(plan.pp * plan.source.gpus_per_rank),
        },
        picture,
        {"what is set": _table(set_fields), **({"no picture": _list([why])} if why else {})},
    )


def card_of_comparison(comparison: Comparison) -> str:
    ops = [
        {
            "pass": one.op,
            "stage": str(one.stage),
            "measured": seconds(one.measured_s),
            "projected": seconds(one.projected_s),
            "error": signed_percent(one.error),
        }
        for one in comparison.ops
    ]
    return _card(
        f"{_shape_of(comparison.measured.schedule)}, measured and projected",
        {
            "measured": seconds(comparison.measured.step_time_s),
            "projected": seconds(comparison.projected.step_time_s),
            "error": signed_percent(comparison.step_error),
            "replayed": signed_percent(comparison.replay_error),
        },
        _timelines([comparison.measured, comparison.projected], ["measured", "projected"], comparison=comparison),
        {"passes": _table(ops)},
    )


def card_of_search(tuned: TuneResult) -> str:
    job, best = tuned.question.job, tuned.best[0]
    picture = pareto_figure(tuned.configurations(), memory_limit_bytes=tuned.question.memory_bound_bytes)
    return _card(
        f"{job.model_name} on {tuned.question.num_gpus} × {job.cluster.device.name} ({job.cluster.name}), "
        f"{tuned.counts['configurations']} configurations",
        {
            "best": best.candidate.schedule,
            "iteration": seconds(best.iteration_time_s),
            "MFU": percent(tuned.utilization(best)),
            "memory": size(best.peak_bytes),
        },
        _image(picture),
        {
            "the fastest": _table([in_columns(tuned.row(one)) for one in tuned.best]),
            "Pareto set of time and memory": _table([in_columns(tuned.row(one)) for one in tuned.pareto]),
        },
    )


def _projected(projection: Projection) -> str:
    return projection_heading(projection).partition(";")[0]


def _is_set(value: Any) -> bool:
    return value is not None and value != () and value != 0.0


def _reasons(several: Projections) -> list[str]:
    return [f"{name}: {reason}" for name, reason in several.rejected.items()]


def _shape_of(schedule: Schedule) -> str:
    batch = microbatches_in_words(schedule.num_microbatches, schedule.num_rounds)
    shape = f"pp {schedule.num_ranks}, vpp {schedule.vpp}, {batch}"
    return f"{schedule.name or 'own table'}, {shape}"


_FIRST = 8


def _first_of(schedule: Schedule, rank: int) -> Sequence[str]:
    begin, end = schedule.rank_offsets[rank : rank + 2].tolist()
    return [str(schedule[entry]) for entry in range(begin, min(end, begin + _FIRST))]


def _rank_rows(timeline: Timeline) -> list[Row]:
    idle = idle_by_cause_s(timeline)
    peaks = timeline.memory.peak_bytes
    return [
        {
            "rank": str(rank),
            "busy": seconds(float(timeline.busy_s[rank])),
            **{cause.replace("_", " "): seconds(float(lost[rank])) for cause, lost in idle.items()},
            "peak": size(float(peaks[rank])) if peaks[rank] else "–",
        }
        for rank in range(min(timeline.schedule.num_ranks, _MOST_ROWS))
    ]


def _outlined(table: Callable[[], Schedule]) -> tuple[str, str]:
    """Return the picture of a schedule ("" if it is too large), and the error if the schedule is impossible."""
    try:
        frame = table()
        if len(frame) > _MOST_DRAWN:
            return "", ""
        return _timelines([simulate(frame, _UNIT)], ["with passes of one second"]), ""
    except PpsimError as error:
        return "", str(error).splitlines()[0]


def _timelines(
    timelines: Sequence[Timeline],
    titles: Sequence[str],
    *,
    limit_bytes: float | None = None,
    comparison: Comparison | None = None,
) -> str:
    if sum(timeline.num_actions for timeline in timelines) > _MOST_DRAWN:
        return ""
    views = [TimelineView(timeline, title) for timeline, title in zip(timelines, titles, strict=True)]
    height = 380 + 20 * sum(timeline.schedule.num_ranks for timeline in timelines)
    page = escape(timeline_html(views, memory_limit_bytes=limit_bytes, comparison=comparison))
    style = f"width:100%;height:{min(height, 800)}px;border:0"
    return f'<iframe title="timeline" sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def _image(figure: "Figure") -> str:
    """Return a PNG in a data URL, because the ids of an SVG could clash with another SVG on the page."""
    data = base64.b64encode(figure_bytes(figure, ".png", dpi=_DPI)).decode()
    return f'<img alt="" style="max-width:100%;width:910px;background:#fff" src="data:image/png;base64,{data}">'


_MISFIT = "color:#fff;background:#b00020;font-weight:600;padding:.3em .7em;border-radius:.3em;display:inline-block"


def _verdict(verdict: MemoryVerdict | None) -> str:
    if verdict is None:
        return ""
    style = f' style="{_MISFIT}"' if verdict.fits is False else ""
    return f"<div><span{style}>{escape('; '.join([str(verdict), *verdict.tight_notes]))}</span></div>"


def _card(
    title: str,
    numbers: Mapping[str, str],
    picture: str,
    folded: Mapping[str, str],
    verdict: MemoryVerdict | None = None,
) -> str:
    cells = "".join(
        f'<div style="min-width:8em"><div style="font-size:1.4em;font-weight:600">{escape(value)}</div>'
        f'<div style="opacity:.75">{escape(name)}</div></div>'
        for name, value in numbers.items()
    )
    tables = "".join(
        f'<details><summary style="cursor:pointer">{escape(name)}</summary>{inside}</details>'
        for name, inside in folded.items()
        if inside
    )
    return (
        '<div class="ppsim-card" style="font-family:system-ui,sans-serif;max-width:940px">'
        f"{_verdict(verdict)}<div>{escape(title)}</div>"
        f'<div style="display:flex;flex-wrap:wrap;gap:.6em 2em;margin:.5em 0">{cells}</div>{picture}{tables}</div>'
    )


def _table(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row.values()) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>" if lines else ""
