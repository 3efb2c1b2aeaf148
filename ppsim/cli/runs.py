"""Commands that run for real, or look at what did: `train`, `compare`."""

from typing import TYPE_CHECKING, Any

import click

from ppsim.cli.common import json_option, output_option, overheads_option, print_json, require_device, say

if TYPE_CHECKING:
    from ppsim.costs.stages import StageCosts
    from ppsim.runtime.config import GPTShape, TrainConfig
    from ppsim.runtime.result import Measured
    from ppsim.schedule.table import Schedule


def _model_options(command: Any) -> Any:
    for option in reversed(
        (
            click.option("--model", default="nano", show_default=True, metavar="nano|mini|gpt2", help="A GPT."),
            click.option("--layers", type=int, help="Layers, instead of the model's."),
            click.option("--hidden", type=int, help="Hidden size, instead of the model's."),
            click.option("--heads", type=int, help="Attention heads, instead of the model's."),
            click.option("--seq-len", type=int, help="Tokens a sequence, instead of the model's."),
            click.option("--micro-batch", type=int, default=2, show_default=True, help="Sequences a microbatch."),
            click.option(
                "--dtype", type=click.Choice(["float32", "float64", "bfloat16", "float16"]), default="float32",
                show_default=True, help="Of weights and activations.",
            ),
            click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
                         help="Where to compute."),
            click.option("--threads", type=int, default=1, show_default=True, help="CPU threads of a process."),
        )
    ):  # fmt: skip
        command = option(command)
    return command


def _shape(options: dict[str, Any]) -> "GPTShape":
    import difflib
    from dataclasses import replace

    from ppsim.errors import ConfigError
    from ppsim.runtime.config import MODELS

    name = options["model"]
    if name not in MODELS:
        close = difflib.get_close_matches(name, MODELS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(MODELS)}"
        raise ConfigError(f"unknown model '{name}': {hint}")
    for option in ("micro_batch", "threads"):
        if options[option] < 1:
            raise ConfigError(f"--{option.replace('_', '-')} must be at least 1: got {options[option]}")
    given = {
        "num_layers": options["layers"],
        "hidden_size": options["hidden"],
        "num_heads": options["heads"],
        "sequence_length": options["seq_len"],
    }
    return replace(MODELS[name], **{key: value for key, value in given.items() if value is not None})


@click.command(short_help="Execute a table for real with torch, and measure it.")
@click.option(
    "--schedule", required=True, metavar="T.csv", help="The table to execute, with or without communication."
)
@click.option("--nproc", type=int, help="Processes to start, one a rank. Default: the table's ranks.")
@click.option(
    "--partitions",
    type=int,
    metavar="N",
    help="All N ranks in this process on one device instead: on CUDA each on its own part of the "
    "multiprocessors (with --emulate-costs: spin kernels, a stream a rank), on CPU a thread each.",
)
@_model_options
@click.option("--split", default="even", metavar="even|N,N,…", show_default=True, help="Layers per stage.")
@click.option("--steps", type=int, default=3, show_default=True, help="Recorded training steps.")
@click.option("--warm-up", type=int, default=1, show_default=True, help="Steps before them.")
@click.option("--learning-rate", type=float, default=1e-3, show_default=True, help="Of AdamW.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and batches.")
@click.option("--receives", type=click.Choice(["torch", "deferred"]), default="torch", show_default=True,
              help="Where torch posts the receives of a compute-only table.")  # fmt: skip
@click.option(
    "--emulate-costs", metavar="C.json", help="Wait that long instead of computing; transfers take what it says."
)
@click.option("--verify", is_flag=True, help="Compare loss and gradients of the first step with one process.")
@click.option("--trace", metavar="FOLDER", help="Write torch.profiler's trace of every rank to this folder.")
@click.option("--timeout", type=float, default=120.0, show_default=True, help="Seconds a rank waits for another.")
@json_option
@output_option
def train(as_json: bool, outputs: tuple[str, ...], **options: Any) -> None:
    """Execute a table for real with torch: losses, gradients, measured timeline.

    \b
      ppsim train --schedule T.csv --verify -o measured.json -o measured.html
      ppsim train --schedule T.csv --partitions 4 --emulate-costs C.json -o measured.json
      torchrun --nproc-per-node 4 -m ppsim train --schedule T.csv -o measured.json

    Starts one local process a rank (gloo on CPU, nccl on CUDA), or joins those that torchrun started. With
    --partitions, one process and device, and an executor of ppsim's own instead of torch's runtime. The last
    warm-up step counts the activation bytes of every rank.
    """
    from importlib.metadata import version
    from pathlib import Path

    from ppsim.costs.plain import read_costs
    from ppsim.errors import ConfigError
    from ppsim.exporting.torch_csv import why_not_loaded
    from ppsim.outputs import check_paths
    from ppsim.runtime.launch import is_worker, launch, require_extra
    from ppsim.schedule.check import validate
    from ppsim.schedule.grammar import read_schedule
    from ppsim.schedule.graph import build_graph

    require_extra("ppsim train")
    check_paths(outputs)
    if options["trace"] is not None and not Path(options["trace"]).is_dir():
        raise ConfigError(f"--trace {options['trace']}: there is no such folder")
    table = read_schedule(options["schedule"])
    validate(table)
    build_graph(table)
    if options["partitions"] is not None:
        _check_partitions(table, options)
    elif reason := why_not_loaded(table, version("torch")):
        raise ConfigError(f"{options['schedule']}: {reason}")
    config = _train_config(table, options)
    costs = None
    if config.emulate_costs:
        counts = {"num_stages": table.num_stages, "num_ranks": table.num_ranks}
        if read_costs(config.emulate_costs).fused_s is not None:
            raise ConfigError(
                "fused_s cannot be emulated: torch runs the parts of a fused cell one after the other"
            )
        costs = read_costs(config.emulate_costs).with_torch_first_stage(**counts)
        build_graph(table, channel=costs.channel, receives=config.receives)
    if options["partitions"] is not None:
        from ppsim.runtime.partitions.run import run_partitions

        result = run_partitions(config)
    elif is_worker():
        from ppsim.runtime.worker import run_all

        results = run_all([config])
        if results is None:
            return
        result = results[0]
    else:
        result = launch(config)
    _report_run(config, table, costs, result, outputs, as_json=as_json)


def _check_partitions(table: "Schedule", options: dict[str, Any]) -> None:
    from ppsim.costs.plain import read_costs
    from ppsim.errors import ConfigError
    from ppsim.runtime.launch import is_worker
    from ppsim.runtime.partitions.check import check_emulated, check_partitions

    if options["nproc"] is not None or is_worker():
        raise ConfigError("--partitions runs all ranks in one process: leave out --nproc and torchrun")
    if options["trace"] is not None:
        raise ConfigError("--trace is for the ranks of torch's runtime, which --partitions does without")
    check_partitions(table, options["schedule"], options["partitions"])
    if options["emulate_costs"]:
        check_emulated(read_costs(options["emulate_costs"]), table.num_ranks, options["device"])


def _train_config(table: "Schedule", options: dict[str, Any]) -> "TrainConfig":
    from ppsim.cli.plans import parse_split
    from ppsim.costs.layout import counts_of, even_split, given_split
    from ppsim.errors import ConfigError
    from ppsim.runtime.config import TrainConfig

    nproc = table.num_ranks if options["nproc"] is None else options["nproc"]
    if nproc != table.num_ranks:
        raise ConfigError(f"{options['schedule']} has {table.num_ranks} ranks: got --nproc {nproc}")
    if options["steps"] < 1 or options["warm_up"] < 0:
        raise ConfigError(
            f"--steps must be at least 1, --warm-up not negative: got {options['steps']} and {options['warm_up']}"
        )
    if options["timeout"] <= 0:
        raise ConfigError(f"--timeout must be more than 0 seconds: got {options['timeout']:g}")
    shape, num_stages = _shape(options), table.num_stages
    split = parse_split(options["split"])
    layers = even_split(shape.num_layers, num_stages) if isinstance(split, str) else (
        given_split(counts_of(split), shape.num_layers, num_stages)
    )  # fmt: skip
    empty = [stage for stage in range(1, num_stages - 1) if layers[stage] == 0]
    if empty and not options["emulate_costs"]:
        raise ConfigError(
            f"stage {empty[0]} would hold no layer: {shape.num_layers} layers for {num_stages} stages "
            f"(--layers {num_stages} gives each one)"
        )
    require_device(options["device"])
    return TrainConfig(
        schedule=options["schedule"],
        num_ranks=table.num_ranks,
        model=shape,
        layers_per_stage=layers,
        micro_batch=options["micro_batch"],
        num_steps=options["steps"],
        num_warm_up=options["warm_up"],
        dtype=options["dtype"],
        device=options["device"],
        learning_rate=options["learning_rate"],
        seed=options["seed"],
        num_threads=options["threads"],
        receives=options["receives"],
        emulate_costs=options["emulate_costs"],
        verify=options["verify"],
        timeout_s=options["timeout"],
        trace=options["trace"],
    )


def _report_run(
    config: "TrainConfig",
    table: "Schedule",
    costs: "StageCosts | None",
    result: dict[str, Any],
    outputs: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    from ppsim import show
    from ppsim.exporting.timeline_json import timeline_to_json
    from ppsim.outputs import write_outputs
    from ppsim.plot.view import View
    from ppsim.runtime.result import measured_of, require_agreement
    from ppsim.simulation.report import report_of

    measured = measured_of(result, table, costs, message_bytes=_message_bytes(config))
    run = _run_facts(config, result, measured)
    report = report_of(measured.timeline, measured.costs)
    try:
        write_outputs(
            outputs,
            views=[View(measured.timeline, f"{table.name}, measured")],
            report=lambda: timeline_to_json(measured.timeline, measured.costs, run=run, steps=measured.to_json()),
            announce=say,
        )
    finally:  # a run that cannot be written is not to be lost as well
        if as_json:
            print_json(report | {"run": run})
        else:
            show.print_run(report, run)
    require_agreement(result["differences"], config.dtype)


def _message_bytes(config: "TrainConfig") -> float | None:
    """What a microbatch sends from a stage to the next; of an emulated one, what its costs file says."""
    from ppsim.costs.plain import message_bytes_in

    if config.emulate_costs is not None:
        return message_bytes_in(config.emulate_costs)
    element = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}[config.dtype]
    return config.micro_batch * config.model.sequence_length * config.model.hidden_size * element


def _run_facts(config: "TrainConfig", result: dict[str, Any], measured: "Measured") -> dict[str, Any]:
    return {
        "torch": result["torch"],
        "device": config.device,
        "emulated": config.emulate_costs is not None,
        "num_warm_up": config.num_warm_up,
        "step_times_s": measured.step_times_s,
        "between_steps_s": list(measured.run.gaps_s),
        "optimizer_s": result["optimizer_s"][config.num_warm_up :],
        "chosen_step": measured.chosen_step,
        "losses": result["losses"],
        "differences": result["differences"],
        "memory": result["memory"],
    }


@click.command(short_help="Set a measured step beside a projected one.")
@click.argument("measured", metavar="MEASURED.json")
@click.argument("projected", metavar="[PROJECTED.json]", required=False)
@overheads_option
@click.option("--fit", metavar="FILE", help="Fit overheads to the run, as `ppsim calibrate`, and write them there.")
@json_option
@output_option
def compare(
    measured: str,
    projected: str | None,
    overheads: str | None,
    fit: str | None,
    as_json: bool,
    outputs: tuple[str, ...],
) -> None:
    """Set a measured step beside a projected one: signed errors by step, pass, stage and peak memory.

    \b
      ppsim compare measured.json projected.json -o compare.html
      ppsim compare measured.json --fit overheads.json
      ppsim compare measured.json --overheads overheads.json

    Without a projection, the measured run's own costs are simulated. Errors are projected / measured − 1:
    negative is too optimistic.
    """
    from ppsim import show
    from ppsim.costs.files import Overheads, read_overheads
    from ppsim.errors import ConfigError
    from ppsim.exporting.timeline_json import read_timeline, run_from_json, timeline_from_json, timeline_to_json
    from ppsim.files import read_json, to_json, write_whole
    from ppsim.outputs import check_paths, write_outputs
    from ppsim.plot.view import View
    from ppsim.simulation import compare as comparing
    from ppsim.simulation import peaks as memory
    from ppsim.simulation.calibrate import calibrate, calibration_to_json

    check_paths([*outputs, *([fit] if fit else [])])
    data = read_json(measured)
    real, _ = timeline_from_json(data, measured)
    run = run_from_json(data, measured)
    if projected is None:
        fixed = read_overheads(overheads) if overheads else Overheads({})
        costs = comparing.expected_costs(run, fixed.constants, fixed.line)
        expected = comparing.simulate_again(real, costs)
    elif overheads:
        raise ConfigError("--overheads is for comparing without a projection; simulate the projection with them")
    else:
        expected, costs = read_timeline(projected)
    comparison = comparing.compare(real, expected)
    fitted = calibrate([run]) if fit else None
    peaks = memory.peak_errors(memory.peaks_in(data.get("run"), measured), expected)
    summary = comparing.summary_of(comparison, fitted) | {"peaks": memory.peaks_to_json(peaks)}
    if fit and fitted:
        write_whole(fit, to_json(calibration_to_json(fitted)))
        say(f"wrote {fit}")
    write_outputs(
        outputs,
        views=[View(real, "measured"), View(expected, "projected")],
        comparison=comparison,
        report=lambda: summary | {"projected": timeline_to_json(expected, costs)},
        announce=say,
    )
    if as_json:
        print_json(summary)
    else:
        show.print_compare(comparison)
        show.print_peaks(peaks)
        if fitted:
            show.print_calibration(fitted)
