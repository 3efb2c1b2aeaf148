"""Files of what was found, by their suffix, the text that the command line prints, and tables for runtimes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from ppsim.api.runs import Trained
from ppsim.api.suffixes import TIMELINE, Say, silent, write_search, write_timelines
from ppsim.api.texts import parse_split
from ppsim.api.views import view_of
from ppsim.base.errors import ConfigError
from ppsim.base.files import to_json, write_whole
from ppsim.base.outputs import suffix_of
from ppsim.base.shown import text_of
from ppsim.plot.view import View
from ppsim.projection.projection import Answer, Projection, Projections
from ppsim.runs.calibrate import Calibration, calibration_to_json
from ppsim.runs.compare import Comparison, summary_of
from ppsim.runs.timeline_file import timeline_to_json
from ppsim.schedule.check import CheckReport, validate
from ppsim.schedule.graph import build_graph
from ppsim.schedule.lowering import Receives
from ppsim.schedule.table import Schedule
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline
from ppsim.tuning.search import Tuned

Target = Literal["torch", "torch-comms", "torchtitan", "json", "primus", "megatron", "transformer-engine"]
OneOfThem: TypeAlias = Timeline | Projection | Trained


def save(
    what: OneOfThem | Sequence[OneOfThem] | Projections | Comparison | Tuned | Calibration | Schedule,
    path: str | Path,
    *,
    titles: Sequence[str] | None = None,
    costs: StageCosts | None = None,
) -> None:
    """Write a file, whole or not at all; the suffix decides, as of `-o` on the command line.

    Timelines, projections and runs, one or several beside each other (`titles` names them), and comparisons: .html
    interactive timeline, .svg/.pdf/.png figure, .json.gz Perfetto trace, .json report with the timeline, .csv
    schedule table. `costs` are those that a bare `Timeline` was simulated at, which its .json holds too. `Tuned`:
    .html/.svg/.pdf/.png iteration time over memory, .json answer, .csv table. `Calibration`: .json, for
    `overheads`. `Schedule`: .csv, or .json, which says what a CSV cannot. Raises `ConfigError` for a suffix that
    there is not, for a place that cannot be written, and for .json and .csv of several.

    >>> import ppsim
    >>> ppsim.save(ppsim.project(pp=2, microbatches=4), "timeline.html")
    >>> ppsim.save(ppsim.build("zbv", pp=2, microbatches=4), "zbv.csv")
    """
    path = str(path)
    if isinstance(what, Schedule):
        _save_table(what, path)
    elif isinstance(what, Calibration):
        _require_suffix(path, (".json",), "a calibration")
        write_whole(path, to_json(calibration_to_json(what)))
    elif isinstance(what, Tuned):
        write_search([path], what)
    elif isinstance(what, Comparison):
        write_comparison([path], what)
    elif isinstance(what, Projections):
        _save_several(what.projections, path, titles, costs)
    else:
        _save_several([what] if isinstance(what, Timeline | Projection | Trained) else what, path, titles, costs)


def _save_several(
    those: Sequence[OneOfThem], path: str, titles: Sequence[str] | None, costs: StageCosts | None
) -> None:
    if wrong := [one for one in those if not isinstance(one, Timeline | Projection | Trained)]:
        raise ConfigError(f"cannot save {type(wrong[0]).__name__}: it is no timeline, projection or run")
    if not those:
        raise ConfigError("there is nothing to save")
    if titles is not None and len(titles) != len(those):
        raise ConfigError(f"titles names {len(titles)} of {len(those)}")
    if len(those) > 1 and (suffix := suffix_of(path, TIMELINE)) in (".json", ".csv"):
        raise ConfigError(f"{suffix} holds one of them: got {len(those)}")
    first, plans = those[0], [one.plan for one in those if isinstance(one, Projection)]
    if isinstance(first, Timeline) and costs is None and suffix_of(path, TIMELINE) == ".json":
        raise ConfigError("the .json of a timeline holds its costs: give them as costs=")
    limits = {plan.memory_bound_bytes for plan in plans}
    names = [_title_of(one) for one in those] if titles is None else titles
    write_timelines(
        [path],
        views=[_view_of(one, name) for one, name in zip(those, names, strict=True)],
        report=lambda: _report_json(first, costs),
        memory_limit_bytes=limits.pop() if len(limits) == 1 else None,
    )


def _view_of(one: OneOfThem, title: str) -> View:
    if isinstance(one, Projection):
        return view_of(one, title)
    return View(one.timeline if isinstance(one, Trained) else one, title)


def _title_of(one: OneOfThem) -> str:
    if isinstance(one, Projection):
        return one.plan.schedule_name
    if isinstance(one, Trained):
        return one.title
    return one.schedule.name + (", measured" if one.origin == "measured" else "")


def _report_json(one: OneOfThem, costs: StageCosts | None) -> dict[str, Any]:
    if isinstance(one, Projection):
        return _projection_json(one, one.answer)
    if isinstance(one, Trained):
        return one.to_json()
    return timeline_to_json(one, cast(StageCosts, costs))


def _projection_json(projection: Projection, answer: Answer | None) -> dict[str, Any]:
    return timeline_to_json(
        projection.timeline,
        projection.costs,
        memory_limit_bytes=projection.plan.memory_limit_bytes,
        **projection.beside_report() | (answer.to_json() if answer else {}),
    )


def _save_table(table: Schedule, path: str) -> None:
    from ppsim.exporting.table_json import table_to_json
    from ppsim.schedule.grammar import format_table

    _require_suffix(path, (".csv", ".json"), "a table (simulate it for a timeline)")
    write_whole(path, to_json(table_to_json(table)) if path.endswith(".json") else format_table(table))


def _require_suffix(path: str, suffixes: Sequence[str], what: str) -> None:
    if suffix_of(path, TIMELINE) not in suffixes:
        raise ConfigError(f"cannot write {path}: {what} goes into {' or '.join(suffixes)}")


def write_projections(
    paths: Sequence[str], projections: Sequence[Projection], answer: Answer | None, *, announce: Say = silent
) -> None:
    """Write each path by its suffix: pictures of all, report and table of the first; nothing for no projection."""
    if not projections:
        return
    write_timelines(
        paths,
        views=[view_of(one, one.plan.schedule_name) for one in projections],
        report=lambda: _projection_json(projections[0], answer),
        memory_limit_bytes=projections[0].plan.memory_bound_bytes,
        announce=announce,
    )


def write_comparison(
    paths: Sequence[str], comparison: Comparison, fitted: Calibration | None = None, *, announce: Say = silent
) -> None:
    """Write each path by its suffix: both timelines; .json has the errors, and the projection with its costs."""

    def report() -> dict[str, Any]:
        costs, summary = comparison.projected_costs, summary_of(comparison, fitted)
        return summary | ({"projected": timeline_to_json(comparison.projected, costs)} if costs else {})

    write_timelines(
        paths,
        views=[View(comparison.measured, "measured"), View(comparison.projected, "projected")],
        comparison=comparison,
        report=report,
        announce=announce,
    )


def export(
    table: Schedule,
    *,
    to: Target,
    receives: Receives | None = None,
    torch_version: str | None = None,
    split: str | Sequence[int] | None = None,
) -> str:
    """Return a checked table as the text that a runtime reads.

    The targets are those of `ppsim export --to`: torch is the compute-only CSV, torch-comms has the communication
    for one `torch_version` (2.13) with `receives` (torch) where they are posted, torchtitan is torch for placements
    that TorchTitan builds; json is neutral, primus,
    megatron (`split` for its layout) and transformer-engine are JSON too. Raises `ScheduleError` for a table that
    does not run, and `ConfigError` where the target cannot express it.

    >>> import ppsim
    >>> print(ppsim.export(ppsim.build("1f1b", pp=2, microbatches=2), to="torch"), end="")
    0F0,0F1,0B0,0B1
    1F0,1B0,1F1,1B1
    """
    from ppsim.exporting.targets import RUNTIMES

    targets = ("torch", "torch-comms", "torchtitan", "json", *(name for name in RUNTIMES if name != "torch"))
    if to not in targets:
        raise ConfigError(f"there is no target '{to}': choose one of {', '.join(targets)}")
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
    from ppsim.exporting.torch_csv import torch_csv
    from ppsim.exporting.torchtitan import name_of_placement

    if to == "torchtitan":
        name_of_placement(table)
    return torch_csv(table, with_communication=to == "torch-comms", receives=receives, torch_version=torch_version)


def _exported(table: Schedule, target: str, split: str | Sequence[int] | None) -> Any:
    """What a target other than torch takes, as JSON; only of a table that has been checked to run."""
    from ppsim.exporting.megatron import megatron_arguments
    from ppsim.exporting.table_json import table_to_json
    from ppsim.exporting.targets import RUNTIMES

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
    what: Timeline | Comparison | Calibration | CheckReport | Projection | Projections | Trained | Tuned,
    *,
    costs: StageCosts | None = None,
) -> str:
    """Return the text that the command line prints of something: plain, 100 columns wide.

    Of a bare `Timeline`, which needs the `costs` that it was simulated at, what `ppsim simulate` prints. What
    projects, trains or tunes is printed by `str` as well.

    >>> import ppsim
    >>> table = ppsim.build("gpipe", pp=2, microbatches=2)
    >>> print(ppsim.report(ppsim.check(table)))
    the table: complete, ordered, free of circular waits
    receives  edge  pair  direction  rank  blocking
    torch     runs  runs       runs  runs      runs
    deferred  runs  runs       runs  runs      runs
    ordered   runs  runs       runs  runs      runs
    """
    return text_of(what, costs=costs) if isinstance(what, Timeline) else text_of(what)
