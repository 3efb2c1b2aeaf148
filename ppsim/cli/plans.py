"""The command `project`: from a profile or a model on a cluster."""

from typing import Annotated, Any

import click

from ppsim.base.words import Option
from ppsim.cli.common import (
    check_outputs,
    json_option,
    output_option,
    print_json,
    rows_option,
    say,
    timeline_option,
)  # fmt: skip
from ppsim.cli.progress import progress, searching
from ppsim.cli.words import command_of
from ppsim.projection.options import PlanOptions


class ProjectOptions(PlanOptions, total=False):
    """The options of `project`."""

    tokens: Annotated[
        float | None,
        Option(
            "Tokens to train on, as 15e12: says how many days that takes.",
            metavar="N", section="model", after="global_batch",
        ),
    ]  # fmt: skip


_SECTIONS = {
    "pipeline": "Pipeline",
    "model": "Model and batch",
    "cluster": "Cluster and layout (with --model)",
    "optimizer": "Optimizer and data parallelism (with --model)",
    "measured": "Measured costs",
    "runtime": "Runtime and memory",
    "search": "Search (with --schedule auto)",
}


@command_of(ProjectOptions, _SECTIONS, short_help="Project a step: time, throughput, memory per rank, and why.")
@timeline_option
@rows_option
@json_option
@output_option
def project(
    outputs: tuple[str, ...], as_json: bool, with_rows: bool, with_timeline: bool | None, **options: Any
) -> None:
    """Project a step: time, throughput, bubble, memory per rank, and why.

    \b
      ppsim project --pp 8 --vpp 2 -o timeline.html
      ppsim project --pp 8 --schedule all --microbatches 32 --memory-limit 80GiB
      ppsim project --model llama3-70b --gpus 64 --tp 8 --pp 4 --global-batch 512

    With --model, the whole training step is projected: pipeline, data parallelism, optimizer and memory. Costs are
    estimated from the specifications of a cluster or, with --profile, measured where it has layer and shape.

    Without --model, one pipeline of what a profile measured: no data parallelism, no optimizer.

    Time is in s, ms or µs and memory in GiB, as printed; --json has seconds and bytes.
    """
    from itertools import count

    from ppsim.api.outputs import projections_drawn
    from ppsim.api.plans import plan_from
    from ppsim.api.suffixes import TIMELINE
    from ppsim.base.outputs import write
    from ppsim.printing import plans as show
    from ppsim.projection import project as planning
    from ppsim.projection.plan import AUTO

    check_outputs(outputs, TIMELINE)
    names = _compared(options["schedule"])
    plan = plan_from(options | {"schedule": None if names else options["schedule"]})
    comparison = answer = None
    if names:
        with progress("projecting", total=len(names), unit="schedules") as bar:
            number = count()
            comparison = planning.project_all(
                plan, names, announce=lambda name: bar.update(f"projecting {name}", done=next(number))
            )
        shown = comparison.projections
        found = {
            "projections": [projection.to_json() for projection in shown],
            "not_possible": comparison.reasons,
        }
    else:
        with (
            progress("searching", limit_s=plan.search_s) if plan.schedule == AUTO else progress("projecting") as bar
        ):
            shown = [planning.project(plan, progress=searching(bar))]
        with progress("looking for what would gain"):
            answer = shown[0].answered(tokens=options["tokens"])
        found = shown[0].to_json() | answer.to_json()
    drawn = shown[:_DRAWN_OF_ALL] if options["schedule"] == "all" else shown
    if drawn:
        write(outputs, TIMELINE, projections_drawn(drawn, answer), announce=say)
    if as_json:
        print_json(found)
    elif comparison:
        show.print_plans(comparison, with_timeline=with_timeline)
    elif answer:
        show.print_answer(shown[0], answer, with_rows=with_rows, with_timeline=with_timeline)
    if not shown:
        raise click.exceptions.Exit(1)


_DRAWN_OF_ALL = 2  # the fastest


def _compared(schedule: str | None) -> list[str]:
    """The names of all schedules, or of those listed; none for one schedule."""
    from ppsim.catalog.build import every_schedule

    if schedule == "all":
        return list(every_schedule())
    return [name.strip() for name in schedule.split(",")] if schedule and "," in schedule else []
