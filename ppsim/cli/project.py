"""The command `project`."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

import click

from ppsim.api.output_formats import SCALING, TIMELINE
from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import Option, declared_options, flag_of
from ppsim.base.write_outputs import write
from ppsim.cli.click_options import Several, command_with, ranges_of
from ppsim.cli.common import (
    check_outputs,
    drawing_options,
    full_option,
    has_layout,
    print_message,
    print_result,
    print_trainer_lines,
    run_config_of,
    scaling_of,
    step_options,
    to_config_option,
    trainer_lines,
    with_command_line,
)  # fmt: skip
from ppsim.projection.options import ANY, GPT, TOKENS, PlanOptions
from ppsim.results.progress import progress, searching
from ppsim.trainers import ConfigTarget

if TYPE_CHECKING:
    from ppsim.projection.plan import Plan
    from ppsim.projection.projection import Projection, Projections, ProjectionSummary
    from ppsim.trainers.run_config import RunConfig
    from ppsim.validation.project_case import PublishedResult


class ProjectOptions(PlanOptions, total=False):
    """The options of `project`."""

    tokens: Annotated[float | None, TOKENS]
    allow_oom: Annotated[
        bool | None,
        Option(
            "Exit with code 0 even if the plan does not fit in memory.", section="runtime", after="memory_limit"
        ),
    ]


_SECTIONS = {
    "pipeline": "Pipeline",
    "model": "Model and batch",
    "cluster": "Cluster and layout (with --model)",
    "optimizer": "Optimizer and data parallelism (with --model)",
    "measured": "Measured costs",
    "runtime": "Runtime and memory",
    "search": "Search (with --schedule auto)",
}


_COMMON = (
    "model", "cluster", "gpus", "global_batch", "seq_len", "micro_batch", "dtype", "tp", "pp", "vpp", "cp", "ep",
    "etp", "dp", "schedule", "split", "recompute", "zero", "fully_shard", "optimizer", "stack",
    "run_config", "recipe", "to_config", "memory_limit", "stage_plan", "profile", "outputs", "as_json", "full",
)  # fmt: skip


@command_with(ProjectOptions, _SECTIONS, common=_COMMON, **ranges_of(ProjectOptions))
@to_config_option
@step_options
@full_option
def project(
    outputs: tuple[str, ...], as_json: bool, full: bool, to_config: ConfigTarget | None, **options: Any
) -> None:
    """Project one training configuration: time, throughput, bubble, memory, causes.

    \b
      ppsim project --pp 8 --vpp 2 -o timeline.html
      ppsim project --model llama3-70b --gpus 64 --tp 8 --pp 4
      ppsim project --recipe deepseek-v3/gb200/mxfp8@26.08

    With --model, the whole training step is projected: pipeline, data parallelism, optimizer and memory. Costs are
    estimated from the specifications of the cluster. With --profile, measured costs are used for the layers and
    shapes in the profile.

    Without --model, only the pipeline of a measured profile is projected, without data parallelism and optimizer.

    Megatron-LM's names of these options are accepted too, for example --tensor-model-parallel-size for --tp.

    The first line shows if the plan fits in memory. If it does not (of several schedules: if none does that the
    plan's trainer runs), the exit code is 1, or 0 with --allow-oom.
    """
    from ppsim.api.project import plan_of_options

    ranges = [name for name, given in options.items() if isinstance(given, Several)]
    check_outputs(outputs, SCALING if ranges else TIMELINE)
    look = drawing_options(options)
    names = _compared(options["schedule"])
    _require_layout(options)
    if ranges:
        _require_one_range(ranges, has_schedules=bool(names), to_config=to_config, full=full)
        _project_range(ranges[0], options, outputs, as_json=as_json)
        return
    config = options["run_config"] = run_config_of(options)
    plan = plan_of_options(options | {"schedule": None if names else options["schedule"]})
    if names:
        if options["run"] and options["vpp"] is None:
            plan = replace(plan, vpp=None)  # each schedule its own, not the run's
        several, answer = _projected(plan, names, is_all=options["schedule"] == ALL), None
        shown = several.projections
        all_of_it = [one.to_json() | several.trainers_of(one) for one in shown] if as_json else []
        best = shown[0].memory_fit_to_json() if shown else {"fits": None, "verdict": "unknown"}
        first = {name: best[name] for name in ("fits", "verdict")}
        report = {**first, "projections": all_of_it, "rejected": several.rejected}
    else:
        one, answer = _answered(plan, options["tokens"])
        shown, report = [one], one.to_json() | answer.to_json() if as_json else {}
    drawn = shown[:_DRAWN_OF_ALL] if options["schedule"] in (ALL, ANY) else shown
    if outputs and drawn:
        from ppsim.api.outputs import projections_content  # imports all drawing code

        write(outputs, TIMELINE, with_command_line(projections_content(drawn, answer)), announce=print_message)
    if config is not None:
        report["run_config"] = config.to_json()
    published = _published(config, plan, shown[0]) if shown else None
    if published is not None:
        report["published"] = published.to_json(shown[0].iteration_time_s)
    lines = trainer_lines(shown[0], to_config, options) if shown and (to_config or plan.job) else {}  # heavy import
    look = look | {"answer": answer} if answer else {"with_timeline": look["with_timeline"]}
    look["full"] = full
    print_result(one if answer else several, as_json, content=lambda: report | lines, **look)
    if published is not None and not as_json:
        from ppsim.results.catalogues import print_published

        print_published(published, shown[0].iteration_time_s)
    print_trainer_lines(lines, to_config, as_json=as_json)
    if not shown or (shown[0].fits is False and not options["allow_oom"]):
        raise click.exceptions.Exit(1)


def _require_layout(options: Mapping[str, Any]) -> None:
    """Raises errors of the model first, the most important, then a usage error without --pp."""
    if has_layout(options):
        return
    model, gpus = (
        given[0] if isinstance(given, Several) else given for given in map(options.get, ("model", "gpus"))
    )
    if model not in (None, GPT):
        from ppsim.api.model_traces import trace_if_unknown
        from ppsim.trainers.read_config import model_named

        trace_if_unknown(model)
        model_named(model)
    how = f"ppsim tune --model {model} --gpus {gpus} --global-batch-size N"
    searched = f". To find the fastest layout: {how}" if model and gpus else ""
    raise click.UsageError(f"--pp must be given: the number of pipeline ranks (1: no pipeline){searched}")


def _require_one_range(
    ranges: list[str], *, has_schedules: bool, to_config: ConfigTarget | None, full: bool
) -> None:
    first, *others = [*map(flag_of, ranges), *(["--schedule"] if has_schedules else [])]
    if to_config is not None or full:
        option = "--to-config" if to_config else "--full"
        raise ConfigError(f"{option} is for one plan: give one value of {first}")
    if others:
        raise ConfigError(
            f"{first} and {others[0]} cannot both have several values; `ppsim sweep` multiplies lists"
        )


def _project_range(name: str, options: dict[str, Any], outputs: tuple[str, ...], *, as_json: bool) -> None:
    from ppsim.api.project import plan_of_options
    from ppsim.projection.scaling import row_of_plan

    settings = list(options[name])
    if name != "recipe":
        options |= {name: settings[0]}
        options["run_config"] = run_config_of(options)

    def row_of(setting: Any) -> dict[str, Any]:
        changed = options | {name: setting}
        return row_of_plan(plan_of_options(changed), changed["tokens"])

    scaling = scaling_of(name, settings, row_of)
    print_result(scaling, as_json)
    write(outputs, SCALING, scaling, announce=print_message)
    is_too_large = all(row["verdict"] == "does not fit" for row in scaling.possible)
    if not scaling.possible or (is_too_large and not options["allow_oom"]):
        raise click.exceptions.Exit(1)


ALL = "all"
_DRAWN_OF_ALL = 2  # of `--schedule all` and any, the fastest are drawn


def _published(config: "RunConfig | None", plan: "Plan", projection: "Projection") -> "PublishedResult | None":
    """Return None if the user changed the recipe's plan."""
    if config is None or config.recipe is None:
        return None
    from ppsim.validation.project_case import published_of

    changes = (declared_options(PlanOptions).keys() & config.typed.keys()) - {"memory_limit", "search_time", "seed"}
    return None if changes else published_of(config, plan)


def _projected(plan: "Plan", names: list[str], *, is_all: bool) -> "Projections":
    from ppsim.catalog.build import find
    from ppsim.projection.project import project_all

    number = count()
    with progress("projecting", total=len(names), unit="schedules") as bar:

        def show(name: str) -> None:
            slow = ", fitting tables to the costs of every stage" if find(name).takes("costs") else ""
            bar.update(f"projecting {name}{slow}", done=next(number))

        return project_all(plan, None if is_all else names, announce=show)


def _answered(plan: "Plan", tokens: float | None) -> "tuple[Projection, ProjectionSummary]":
    from ppsim.projection import project as planning
    from ppsim.projection.plan import AUTO

    is_auto = plan.schedule == AUTO
    name = plan.schedule_name
    bars = (
        progress("searching for a table", limit_s=plan.search_time_s) if is_auto else progress(f"projecting {name}")
    )
    with bars as bar:
        projection = planning.project(plan, progress=searching(bar))
    with progress("looking for what would gain: projecting other schedules, layouts and recomputation"):
        return projection, projection.summarise(tokens=tokens)


def _compared(schedule: str | None) -> list[str]:
    from ppsim.catalog.build import every_schedule

    if schedule in (ALL, ANY):
        return list(every_schedule())
    return [name.strip() for name in schedule.split(",")] if schedule and "," in schedule else []
