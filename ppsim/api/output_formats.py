"""Formats of `-o` and `ppsim.save` by file suffix."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from ppsim.base.display import load_function
from ppsim.base.errors import ConfigError
from ppsim.base.files import csv_text, markdown_table, to_json
from ppsim.base.option_declarations import flag_of
from ppsim.base.units import count, percent, seconds, size
from ppsim.base.write_outputs import Formats

if TYPE_CHECKING:  # `ppsim train` also works without pydantic, which a search needs
    from matplotlib.figure import Figure

    from ppsim.plot.plot_model import TimelineView
    from ppsim.projection.difference import PlanDifference
    from ppsim.projection.scaling import Scaling
    from ppsim.runs.compare import Comparison
    from ppsim.runs.loss_attribution import Explanation
    from ppsim.schedule.table import Schedule
    from ppsim.tuning.search import TuneResult


@dataclass(frozen=True)
class TimelineFileContent:
    """Content of timeline files; `command` is the command line that made them, shown on the page.

    `comparison` compares the two `views`, measured and projected. `explanation` explains the first view.
    """

    views: "Sequence[TimelineView]"
    report: Callable[[], dict[str, Any]]
    memory_limit_bytes: float | None = None
    comparison: "Comparison | None" = None
    explanation: "Explanation | None" = None
    command: str = ""

    @property
    def titles(self) -> list[str]:
        return [view.title for view in self.views]


@dataclass(frozen=True)
class SearchFileContent:
    """Content of search files; `command` is the command line that made them."""

    found: "TuneResult"
    command: str = ""


def _figures(name: str, figure_of: "Callable[[Any], Figure]") -> dict[str, tuple[str, Callable[[Any], bytes]]]:
    def made(suffix: str, what: Any) -> bytes:
        from ppsim.plot.figures.style import figure_bytes

        return figure_bytes(figure_of(what), suffix)

    return {suffix: (name, partial(made, suffix)) for suffix in (".svg", ".pdf", ".png")}


def _timeline_page(drawn: TimelineFileContent) -> str:
    from ppsim.plot.html import timeline_html

    return timeline_html(
        drawn.views, memory_limit_bytes=drawn.memory_limit_bytes, comparison=drawn.comparison,
        command=drawn.command, date=_today(),
    )  # fmt: skip


def _today() -> str:
    """SOURCE_DATE_EPOCH sets the date for reproducible builds."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.fromtimestamp(int(epoch), UTC) if epoch.isdigit() else datetime.now(UTC)
    return now.strftime("%Y-%m-%d")


def _timeline_figure(drawn: TimelineFileContent) -> "Figure":
    from ppsim.plot.figures.timeline import timeline_figure

    timelines = [view.timeline for view in drawn.views]
    return timeline_figure(timelines, titles=drawn.titles, memory_limit_bytes=drawn.memory_limit_bytes)


def _trace(drawn: TimelineFileContent) -> bytes:
    import gzip

    from ppsim.plot.trace import chrome_trace

    trace = chrome_trace([view.timeline for view in drawn.views], drawn.titles)
    return gzip.compress(json.dumps(trace).encode(), mtime=0)


def _search_page(searched: SearchFileContent) -> str:
    from ppsim.api.views import search_view
    from ppsim.plot.pareto_page import pareto_html

    return pareto_html(search_view(searched.found), command=searched.command, date=_today())


def _search_figure(searched: SearchFileContent) -> "Figure":
    from ppsim.plot.figures.pareto import pareto_figure

    tuned = searched.found
    return pareto_figure(tuned.configurations(), memory_limit_bytes=tuned.question.memory_bound_bytes)


def _search_csv(searched: SearchFileContent) -> str:
    return csv_text([row | {"pareto": int(row["pareto"])} for row in searched.found.rows()])


def _one_round(table: "Schedule") -> "Schedule":
    """Return the schedule of one accumulation round, which a runtime repeats for each round."""
    schedule_of_round: Schedule = load_function("ppsim.schedule.rounds:one_round")(table)
    return schedule_of_round


def _csv_of(table: "Schedule") -> str:
    return str(load_function("ppsim.schedule.grammar:format_table")(table))


def _report_markdown(report: dict[str, Any]) -> str:
    """The single numbers and texts of a report, then each of its groups of numbers, largest first."""
    single = [
        {"": name, "value": _in_unit(name, number)}
        for name, number in report.items()
        if isinstance(number, str | int | float) and number != "" and name not in ("format", "origin")
    ]
    tables = [markdown_table(single)]
    for name, group in report.items():
        if isinstance(group, dict) and all(isinstance(part, int | float) for part in group.values()):
            parts = sorted((part for part in group.items() if part[1]), key=lambda part: -part[1])
            rows = [{name: part, "value": _in_unit(name, number)} for part, number in parts]
            tables += [markdown_table(rows)] if rows else []
    return "\n".join(tables)


def _in_unit(name: str, number: Any) -> str:
    if isinstance(number, str | bool):
        return str(number)
    units = {"_per_s": count, "_s": seconds, "_bytes": size, "_ratio": percent, "_utilization": percent}
    text_of = next((text_of for unit, text_of in units.items() if name.endswith(unit)), None)
    return text_of(number) if text_of else f"{number:,.6g}"


FIGURE: Formats = _figures("figure", lambda figure: figure)
TIMELINE: Formats = {
    ".html": ("interactive timeline", _timeline_page),
    **_figures("figure", _timeline_figure),
    ".json": ("report with the timeline", lambda drawn: to_json(drawn.report())),
    ".csv": ("schedule table", lambda drawn: _csv_of(_one_round(drawn.views[0].timeline.schedule))),
    ".json.gz": ("trace for Perfetto", _trace),
    ".md": ("numbers of the report", lambda drawn: _report_markdown(drawn.report())),
    ".toml": ("plan of each stage", lambda drawn: load_function("ppsim.api.plan_file:stages_toml")(drawn.report())),
}
EXPLANATION: Formats = {
    ".html": ("interactive timeline with lost time by cause", _timeline_page),
    ".json": ("explanation", lambda drawn: to_json(drawn.report())),
    ".md": ("explanation", lambda drawn: load_function("ppsim.runs.loss_report:markdown")(drawn.explanation)),
}
SEARCH: Formats = {
    ".md": ("table", lambda searched: markdown_table(searched.found.rows())),
    ".json": ("results; --resume continues the search", lambda searched: to_json(searched.found.to_json())),
    ".csv": ("table", _search_csv),
    ".html": ("iteration time over memory", _search_page),
    **_figures("iteration time over memory", _search_figure),
}
VALIDATION: Formats = {
    ".json": ("validation", lambda sets: to_json({"sets": sets})),
    ".csv": (
        "rows",
        lambda sets: load_function("ppsim.validation.validation_result:rows_of")(sets).to_csv(
            index=False, lineterminator="\n"
        ),
    ),
}


def _scaling_figure(scaling: "Scaling") -> "Figure":
    from ppsim.plot.figures.scaling import scaling_figure
    from ppsim.projection.scaling import shares_in

    if not (rows := scaling.possible):
        raise ConfigError(f"no value of {flag_of(scaling.option)} is possible: there is nothing to draw")
    knee = scaling.knee if scaling.option == "gpus" else None
    return scaling_figure(scaling.option, rows, [*map(shares_in, rows)], knee=knee["num_gpus"] if knee else None)


def _side_by_side(suffix: str) -> tuple[str, Callable[[Any], str | bytes]]:
    """A format of timelines, for the two of a difference."""
    name, make = TIMELINE[suffix]

    def made(difference: "PlanDifference") -> str | bytes:
        from ppsim.api.views import difference_views

        return make(TimelineFileContent(difference_views(difference), difference.to_json))

    return name, made


def _difference_markdown(difference: "PlanDifference") -> str:
    tables = load_function("ppsim.results.difference:difference_tables")(difference)
    return "\n".join(markdown_table(table) for table in tables if table)


DIFFERENCE: Formats = {
    **{suffix: _side_by_side(suffix) for suffix in (".html", ".svg", ".pdf", ".png")},
    ".json": ("difference", lambda difference: to_json(difference.to_json())),
    ".md": ("difference", _difference_markdown),
}
SCALING: Formats = {
    ".csv": ("table", lambda scaling: csv_text(scaling.to_json()["rows"])),
    ".json": ("table", lambda scaling: to_json(scaling.to_json())),
    ".md": ("table", lambda scaling: markdown_table(load_function("ppsim.results.sweep:scaling_texts")(scaling))),
    **_figures("throughput, and where the time goes", _scaling_figure),
}
TABLE: Formats = {
    ".csv": ("", _csv_of),
    ".json": ("", lambda table: to_json(load_function("ppsim.trainers.table_json:table_to_json")(table))),
}
TOTALS: Formats = {".json": ("totals", lambda totals: to_json(totals.to_json()))}


def _calibration_json(fitted: tuple[Any, str]) -> str:
    from ppsim.runs.calibration_file import calibration_json  # heavy import: readers of recordings

    calibration, path = fitted
    part = (
        {"overheads": calibration.to_json()} if hasattr(calibration, "fits") else calibration.to_calibration(path)
    )
    return to_json(calibration_json(path, part))


CALIBRATION: Formats = {".json": ("calibration", _calibration_json)}
