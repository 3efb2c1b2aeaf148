"""The command `simulate`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import click

from ppsim.api.output_formats import TIMELINE, TimelineFileContent
from ppsim.base.errors import ConfigError, CostsError, ScheduleError
from ppsim.base.files import prefix_errors
from ppsim.base.option_declarations import Option
from ppsim.base.write_outputs import write
from ppsim.cli.click_options import command_with
from ppsim.cli.common import (
    ReadOptions,
    check_outputs,
    drawing_options,
    print_json,
    print_message,
    print_result,
    read_table,
    step_options,
    with_command_line,
)  # fmt: skip
from ppsim.projection.options import CALIBRATION, CHANNEL, RECEIVES
from ppsim.results.progress import progress
from ppsim.schedule.option_types import Channel, Communication, Receives

if TYPE_CHECKING:
    from ppsim.plot.plot_model import TimelineView
    from ppsim.simulation.stage_costs import StageCosts
    from ppsim.simulation.timeline import Timeline

_COSTS = '{"forward_s": 0.01, "backward_input_s": 0.01, "backward_weight_s": 0.01}'


class CostsOptions(TypedDict, total=False):
    """Costs of the simulation."""

    costs: Annotated[
        str,
        Option(
            "Costs file with the seconds and bytes of each stage's passes, for example "
            + _COSTS
            + " (docs/formats.md). Required.",
            metavar="C.json",
            section="input",
        ),
    ]


class SimulateOptions(CostsOptions, ReadOptions, total=False):
    """The options of `simulate`."""

    communication: Annotated[
        Communication | None,
        Option(
            "P2P transfers and compute: overlap, or blocking (compute waits for them). megatron and "
            "megatron-no-overlap: the calls of Megatron-LM's loops (1f1b and interleaved-1f1b only). [default: the "
            "costs file's, else overlap]",
            section="network",
        ),
    ]
    channel: Annotated[Channel | None, replace(CHANNEL, section="network")]
    receives: Annotated[Receives | None, replace(RECEIVES, section="network")]
    calibration: Annotated[str | None, replace(CALIBRATION, section="network")]


@command_with(
    SimulateOptions,
    {"input": "Input", "network": "Network and runtime"},
    removed={"--relaxed-wraparound": "no runtime can execute what it evaluated"},
)
@click.argument("tables", metavar="T.csv...", nargs=-1, required=True)
@step_options
def simulate(tables: tuple[str, ...], as_json: bool, outputs: tuple[str, ...], **options: Any) -> None:
    """Simulate schedule tables with the times in a costs file: step time, bubble, idle time by cause, memory.

    \b
      ppsim simulate T.csv --costs C.json
      ppsim simulate T.csv --costs C.json --channel rank -o timeline.html
      ppsim simulate T.csv --costs C.json --json

    T.csv is a table of `ppsim build`. Several tables are compared: one line each, and all timelines on one page.
    Options for network and runtime override the costs file.
    """
    from ppsim.api.calibration import overheads_of
    from ppsim.runs.timeline_file import timeline_to_json

    check_outputs(outputs, TIMELINE)
    if options["costs"] is None:
        raise ConfigError(f"--costs must be given, a file with the duration of each action: {_COSTS}")
    if len(tables) > 1 and (wrong := [path for path in outputs if path.endswith(_OF_ONE)]):
        raise ConfigError(f"{wrong[0]} is for one table: got {len(tables)}")
    overheads = options["calibration"] and overheads_of(options["calibration"])
    constants = overheads.constants if overheads else {}
    simulated = [_simulated(table, options, constants) for table in tables]
    timeline, stage_costs, report, _ = simulated[0]
    fitted_runs = list(overheads.fitted_runs) if overheads else []
    runs: dict[str, Any] = {"overheads_fitted_runs": fitted_runs} if fitted_runs else {}
    views = [view for *_, view in simulated]
    drawn = TimelineFileContent(views, lambda: timeline_to_json(timeline, stage_costs, **runs))
    write(outputs, TIMELINE, with_command_line(drawn), announce=print_message)
    look = drawing_options(options)
    if len(tables) == 1:
        print_result(timeline, as_json, content=lambda: report, report=report, **look)
    elif as_json:
        print_json({table: report for table, (_, _, report, _) in zip(tables, simulated, strict=True)})
    else:
        from ppsim.results.steps import print_several

        print_several(dict(zip(tables, (report for _, _, report, _ in simulated), strict=True)))


_OF_ONE = (".json", ".csv", ".md", ".toml")


def _simulated(
    table: str, options: Mapping[str, Any], constants: Mapping[str, Any]
) -> "tuple[Timeline, StageCosts, dict[str, Any], TimelineView]":
    from ppsim.api.views import bound_of
    from ppsim.plot.plot_model import TimelineView
    from ppsim.simulation.cost_files import read_costs
    from ppsim.simulation.report import report_of
    from ppsim.simulation.simulate import simulate as run

    schedule = read_table(table, replicas=options["replicas"], slices=options["slices"])
    if schedule.has_communication and options["receives"]:
        raise ConfigError(f"{table} spells out its receives; --receives is for a table without communication")
    network = {name: options[name] for name in ("communication", "channel", "receives") if options[name]}
    stage_costs = read_costs(options["costs"]).replace(**network, **constants)
    with (
        progress(f"simulating {table}"),
        prefix_errors(table, ScheduleError),
        prefix_errors(options["costs"], CostsError),
    ):
        timeline = run(schedule, stage_costs)
        report = report_of(timeline, stage_costs)
    shape = f"pp {schedule.num_ranks}, vpp {schedule.vpp}, {schedule.num_microbatches} microbatches"
    return timeline, stage_costs, report, TimelineView(timeline, f"{table}: {shape}", facts=[bound_of(report)])
