"""Saving results to files, reports as text, and export of schedules to runtimes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from ppsim.api.option_values import parse_split
from ppsim.api.output_formats import (
    CALIBRATION,
    EXPLANATION,
    SEARCH,
    TABLE,
    TIMELINE,
    SearchFileContent,
    TimelineFileContent,
)
from ppsim.api.read import MeasuredRun
from ppsim.api.run_result import RunResult
from ppsim.api.train import TrainResult
from ppsim.api.views import view_of
from ppsim.base.display import text_of
from ppsim.base.errors import ConfigError, require_kind
from ppsim.base.files import to_json
from ppsim.base.units import LEAST_SHOWN
from ppsim.base.write_outputs import Formats, suffix_of, write
from ppsim.plot.plot_model import Fact, TimelineView
from ppsim.projection.projection import Projection, Projections, ProjectionSummary
from ppsim.runs import loss_report as explained_words
from ppsim.runs.calibrate import FittedOverheads
from ppsim.runs.compare import Comparison, compare, summary_of
from ppsim.runs.loss_attribution import Explanation
from ppsim.runs.timeline_file import timeline_to_json
from ppsim.schedule.check import CheckReport, validate
from ppsim.schedule.graph import build_graph
from ppsim.schedule.option_types import Receives
from ppsim.schedule.table import Schedule
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline
from ppsim.trainers import export_targets
from ppsim.trainers.megatron.write_schedule import megatron_arguments
from ppsim.trainers.table_json import table_to_json
from ppsim.trainers.torch.write_schedule import torch_csv
from ppsim.trainers.torchtitan.write_schedule import name_of_placement
from ppsim.trainers.write_schedule import RUNTIMES
from ppsim.tuning.search import TuneResult
from ppsim.validation.fit_result import FitResult

OneOfThem: TypeAlias = Timeline | Projection | TrainResult | MeasuredRun


def save(
    what: (
        OneOfThem
        | Sequence[OneOfThem]
        | Projections
        | Comparison
        | Explanation
        | TuneResult
        | FittedOverheads
        | FitResult
        | Schedule
    ),
    path: str | Path,
    *,
    titles: Sequence[str] | None = None,
    costs: StageCosts | None = None,
) -> None:
    """Write a result to a file, completely or not at all; the suffix selects the format, like `-o`.

    - Timelines, projections and runs (one or several, named by `titles`), and comparisons: .html interactive
      timeline, .svg/.pdf/.png figure, .json.gz Perfetto trace, .json report with the timeline, .csv schedule.
      `costs` are the costs of a bare `Timeline`, which its .json needs.
    - `Explanation`: .html timeline with the losses, .json, .md.
    - `TuneResult`: .html/.svg/.pdf/.png iteration time over memory, .json answer, .csv table.
    - `FittedOverheads` and `FitResult`: .json, for `calibration`.
    - `Schedule`: .csv, or .json, which also has the parts that a CSV cannot express.

    Raises `ConfigError` for an unknown suffix, for a path that cannot be written, and for .json and .csv of several
    timelines.

    >>> import ppsim
    >>> ppsim.save(ppsim.project(pp=2, microbatches=4), "timeline.html")
    >>> ppsim.save(ppsim.build("zbv", pp=2, microbatches=4), "zbv.csv")
    """
    path = str(path)
    if isinstance(what, Schedule):
        _require_suffix(path, TABLE, "a table (simulate it for a timeline)")
        write([path], TABLE, what)
    elif isinstance(what, FittedOverheads):
        _require_suffix(path, CALIBRATION, "a calibration")
        write([path], CALIBRATION, (what, path))
    elif isinstance(what, FitResult):
        write([path], CALIBRATION, (what, path))
    elif isinstance(what, TuneResult):
        write([path], SEARCH, SearchFileContent(what))
    elif isinstance(what, Comparison):
        write([path], TIMELINE, comparison_content(what))
    elif isinstance(what, Explanation):
        write([path], EXPLANATION, explanation_content(what))
    else:
        those = what.projections if isinstance(what, Projections) else what
        several = those if isinstance(those, Sequence) else [those]
        write([path], TIMELINE, _drawn(several, path, titles, costs))


def _require_suffix(path: str, formats: Formats, what: str) -> None:
    if suffix_of(path, TIMELINE) not in formats:
        raise ConfigError(f"cannot write {path}: {what} goes into {' or '.join(formats)}")


def _drawn(
    those: Sequence[OneOfThem], path: str, titles: Sequence[str] | None, costs: StageCosts | None
) -> TimelineFileContent:
    if wrong := [one for one in those if not isinstance(one, OneOfThem)]:
        raise ConfigError(f"cannot save {type(wrong[0]).__name__}: it is no timeline, projection or run")
    if not those:
        raise ConfigError("there is nothing to save")
    if titles is not None and len(titles) != len(those):
        raise ConfigError(f"titles names {len(titles)} of {len(those)}")
    if len(those) > 1 and (suffix := suffix_of(path, TIMELINE)) in (".json", ".csv"):
        raise ConfigError(f"{suffix} holds one of them: got {len(those)}")
    first = those[0]
    if isinstance(first, Timeline) and costs is None and suffix_of(path, TIMELINE) == ".json":
        raise ConfigError("the .json of a timeline holds its costs: give them as costs=")
    limits = {one.plan.memory_bound_bytes for one in those if isinstance(one, Projection)}
    is_page = suffix_of(path, TIMELINE) == ".html" and len(those) == 1
    views = [_view_of(one, is_page=is_page) for one in those]
    if titles is not None:
        views = [replace(view, title=title) for view, title in zip(views, titles, strict=True)]
    return TimelineFileContent(
        views, lambda: _report_json(first, costs), limits.pop() if len(limits) == 1 else None
    )


def _view_of(one: OneOfThem, *, is_page: bool) -> TimelineView:
    if isinstance(one, Projection):
        return view_of(one, one.plan.schedule_name, one.summary if is_page else None)
    if isinstance(one, RunResult):
        return TimelineView(one.timeline, one.title)
    return TimelineView(one, one.schedule.name + (", measured" if one.origin == "measured" else ""))


def _report_json(one: OneOfThem, costs: StageCosts | None) -> dict[str, Any]:
    if isinstance(one, Projection):
        return _projection_json(one, one.summary)
    return one.to_json() if isinstance(one, RunResult) else timeline_to_json(one, cast(StageCosts, costs))


def _projection_json(projection: Projection, answer: ProjectionSummary | None) -> dict[str, Any]:
    return projection.memory_fit_to_json() | timeline_to_json(
        projection.timeline,
        projection.costs,
        memory_limit_bytes=projection.plan.memory_limit_bytes,
        **projection.extra_report_rows() | (answer.to_json() if answer else {}),
    )


def projections_content(projections: Sequence[Projection], answer: ProjectionSummary | None) -> TimelineFileContent:
    """The report and the schedule are of the first projection."""
    first = projections[0]
    views = [view_of(projection, projection.plan.schedule_name, answer) for projection in projections]
    return TimelineFileContent(views, lambda: _projection_json(first, answer), first.plan.memory_bound_bytes)


def comparison_content(comparison: Comparison, fitted: FittedOverheads | None = None) -> TimelineFileContent:
    def report() -> dict[str, Any]:
        costs, summary = comparison.projected_costs, summary_of(comparison, fitted)
        return summary | ({"projected": timeline_to_json(comparison.projected, costs)} if costs else {})

    views = [TimelineView(comparison.measured, "measured"), TimelineView(comparison.projected, "projected")]
    return TimelineFileContent(views, report, comparison=comparison)


def explanation_content(explanation: Explanation) -> TimelineFileContent:
    words, timeline, against = explained_words, explanation.timeline, explanation.comparison
    if timeline is None:
        raise ConfigError("the explanation has no timeline to draw: ppsim.explain makes one that has")
    facts = [("mean", words.title(explanation))]
    facts += [(str(number), text) for number, text in enumerate(words.reasons(explanation), start=1)]
    facts += [("late", sentence) for sentence in words.faults(explanation)]
    views = [
        _explained_view(
            timeline, "measured, median step", facts, {loss.cause: loss.seconds for loss in explanation.losses}
        )
    ]
    comparison = None
    if against is not None and against.timeline is not None:
        lines = [("error", words.whole_difference(against, explanation.step_s)), ("note", against.note)]
        lines += [
            (str(number), text) for number, text in enumerate(words.lacks(against, explanation.step_s), start=1)
        ]
        thought = {difference.cause: difference.projected_s for difference in against.differences}
        views.append(_explained_view(against.timeline, "projected", [one for one in lines if one[1]], thought))
        if timeline.schedule == against.timeline.schedule:
            comparison = compare(timeline, against.timeline)
    return TimelineFileContent(views, explanation.to_json, comparison=comparison, explanation=explanation)


def _explained_view(timeline: Timeline, title: str, facts: list[Fact], losses: dict[str, float]) -> TimelineView:
    shown = {cause: lost for cause, lost in losses.items() if abs(lost) >= LEAST_SHOWN * timeline.step_time_s}
    return TimelineView(timeline, title, time_breakdown_s=shown, facts=facts, budget_title="Where a step goes")


def export(
    table: Schedule,
    *,
    to: str,
    receives: Receives | None = None,
    torch_version: str | None = None,
    split: str | Sequence[int] | None = None,
) -> str:
    """Check a schedule and return it as text in a runtime's format.

    `to` is a target of `ppsim export --to`. torch is the compute-only CSV. torch-comms adds the communication for
    one `torch_version` (default: 2.13), with receives posted according to `receives`. torchtitan is the format
    torch, for placements that TorchTitan builds. json is ppsim's neutral format. `split` has the layers per stage
    for the layout of megatron. Raises `ScheduleError` for a schedule that does not run, and `ConfigError` if the
    target cannot express it.

    >>> import ppsim
    >>> print(ppsim.export(ppsim.build("1f1b", pp=2, microbatches=2), to="torch"), end="")
    0F0,0F1,0B0,0B1
    1F0,1B0,1F1,1B1
    """
    require_kind("table", table, Schedule, "a ppsim.Schedule, as from ppsim.build or ppsim.read_schedule")
    if to not in export_targets():
        raise ConfigError(f"there is no target '{to}': choose one of {', '.join(export_targets())}")
    if receives and to != "torch-comms":
        raise ConfigError(f"--receives is for --to torch-comms: got --to {to}")
    if torch_version and to != "torch-comms":
        raise ConfigError(
            f"--torch-version is for --to torch-comms: got --to {to}"
            + (", which every version from 2.9 on takes" if to == "torch" else "")
        )
    if split is not None and to not in ("megatron", "torchtitan"):
        raise ConfigError(f"--split is for --to megatron: got --to {to}")
    if to not in ("torch", "torch-comms", "torchtitan"):
        return to_json(_exported(table, to, split))
    if to == "torchtitan":
        name_of_placement(table)
    return torch_csv(table, with_communication=to == "torch-comms", receives=receives, torch_version=torch_version)


def _exported(table: Schedule, target: str, split: str | Sequence[int] | None) -> Any:
    validate(table)
    build_graph(table)
    if target == "json":
        return table_to_json(table)
    if target != "megatron":
        return RUNTIMES[target](table)
    layers = None if split is None else parse_split(split)
    if isinstance(layers, str):
        raise ConfigError(f"--split is '{split}': the layout string needs layers per stage, as 7,8,8,7")
    return megatron_arguments(table, layers_per_stage=layers)


def report(
    what: Timeline
    | Comparison
    | FittedOverheads
    | CheckReport
    | Projection
    | Projections
    | TrainResult
    | TuneResult,
    *,
    costs: StageCosts | None = None,
    full: bool = False,
) -> str:
    """Return the command line's output for a result `what`: plain text, 100 columns wide.

    `full` has the effect of `--full`. A bare `Timeline` needs the `costs` of its simulation and gives the output of
    `ppsim simulate`.

    >>> import ppsim
    >>> table = ppsim.build("gpipe", pp=2, microbatches=2)
    >>> print(ppsim.report(ppsim.check(table)))
    the table: complete, ordered, free of circular waits
    receives  edge  pair  direction  rank  blocking
    torch     runs  runs       runs  runs      runs
    deferred  runs  runs       runs  runs      runs
    ordered   runs  runs       runs  runs      runs
    """
    if isinstance(what, Timeline):
        return text_of(what, costs=costs)
    return text_of(what, full=True) if full else text_of(what)
