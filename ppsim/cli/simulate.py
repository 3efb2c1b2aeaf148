"""The command `simulate`."""

from dataclasses import replace
from typing import Annotated, Any, TypedDict

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
    print_message,
    print_result,
    read_table,
    with_command_line,
    step_options,
)  # fmt: skip
from ppsim.cli.progress import progress
from ppsim.projection.options import CALIBRATION, CHANNEL, RECEIVES
from ppsim.schedule.option_types import Channel, Communication, Receives

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
@click.argument("table", metavar="T.csv")
@step_options
def simulate(table: str, as_json: bool, outputs: tuple[str, ...], **options: Any) -> None:
    """Simulate a schedule table with the times in a costs file: step time, bubble, idle time by cause, memory.

    \b
      ppsim simulate T.csv --costs C.json
      ppsim simulate T.csv --costs C.json --channel rank -o timeline.html
      ppsim simulate T.csv --costs C.json --json

    T.csv is a table of `ppsim build`. Options for network and runtime override the costs file.
    """
    from ppsim.api.calibration import overheads_of
    from ppsim.api.views import bound_of
    from ppsim.plot.plot_model import TimelineView
    from ppsim.runs.timeline_file import timeline_to_json
    from ppsim.simulation.cost_files import read_costs
    from ppsim.simulation.report import report_of
    from ppsim.simulation.simulate import simulate as run

    check_outputs(outputs, TIMELINE)
    if options["costs"] is None:
        raise ConfigError(f"--costs must be given, a file with the duration of each action: {_COSTS}")
    schedule = read_table(table, replicas=options["replicas"], slices=options["slices"])
    if schedule.has_communication and options["receives"]:
        raise ConfigError(f"{table} spells out its receives; --receives is for a table without communication")
    network = {name: options[name] for name in ("communication", "channel", "receives") if options[name]}
    overheads = options["calibration"] and overheads_of(options["calibration"])
    stage_costs = read_costs(options["costs"]).replace(**network, **(overheads.constants if overheads else {}))
    with (
        progress(f"simulating {table}"),
        prefix_errors(table, ScheduleError),
        prefix_errors(options["costs"], CostsError),
    ):
        timeline = run(schedule, stage_costs)
        report = report_of(timeline, stage_costs)
    shape = f"pp {schedule.num_ranks}, vpp {schedule.vpp}, {schedule.num_microbatches} microbatches"
    fitted_runs = list(overheads.fitted_runs) if overheads else []
    runs: dict[str, Any] = {"overheads_fitted_runs": fitted_runs} if fitted_runs else {}
    view = TimelineView(timeline, f"{table}: {shape}", facts=[bound_of(report)])
    drawn = TimelineFileContent([view], lambda: timeline_to_json(timeline, stage_costs, **runs))
    write(outputs, TIMELINE, with_command_line(drawn), announce=print_message)
    print_result(timeline, as_json, content=lambda: report, report=report, **drawing_options(options))
