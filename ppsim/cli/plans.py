"""The command `project`: from a profile or a model on a cluster."""

from typing import TYPE_CHECKING, Any

import click

from ppsim.cli.common import (
    GROUP_SIZE_HELP,
    SLICES_HELP,
    busy,
    channel_option,
    json_option,
    output_option,
    overheads_option,
    print_json,
    receives_option,
    say,
)  # fmt: skip
from ppsim.cli.jobs import job_from, job_options

if TYPE_CHECKING:
    from ppsim.projection.plan import Plan


@click.command(short_help="Project a step: time, throughput, memory per rank, and why.")
@click.option("--pp", type=int, required=True, help="Pipeline ranks.")
@click.option("--vpp", type=int, help="Stages a rank. Default: the fewest that the schedule takes.")
@click.option(
    "--schedule", metavar="NAME|all|auto",
    help="A name from `ppsim schedules`, all of them, or auto: the best that a search finds. Default: 1f1b, or "
         "interleaved-1f1b for vpp > 1.",
)  # fmt: skip
@click.option("--microbatches", type=int, help="Microbatches a step. Default: 4 a rank.")
@click.option("--group-size", type=int, help=GROUP_SIZE_HELP)
@click.option("--slices", type=int, help=SLICES_HELP)
@click.option(
    "--profile",
    metavar="NAME|FILE",
    help="Measured costs. Default: zb-a100-6.2b; with --model none.",
)
@click.option(
    "--micro-batch", type=int, help="Sequences a microbatch; measured, or estimated by the profile's device facts."
)
@click.option(
    "--seq-len", type=int, help="Tokens a sequence; measured, or estimated by the profile's device facts."
)
@click.option("--tp", type=int, help="Tensor-parallel ranks; measured, or estimated by the profile's device facts.")
@click.option(
    "--cp", type=int, help="Context-parallel ranks; a profile without --model must have been measured so."
)
@click.option("--ep", type=int, help="Expert-parallel ranks; measured, or estimated by the profile's device facts.")
@click.option(
    "--recompute", type=click.Choice(["none", "selective", "full"]),
    help="What of a layer is computed again in its backward; a profile without --model must have been measured so.",
)  # fmt: skip
@click.option("--layers", type=int, help="Layers of the model. Default: the profile's, or the model's own.")
@job_options
@click.option(
    "--straggler", "stragglers", multiple=True, metavar="RANK:FACTOR",
    help="A rank whose compute takes so many times as long, as 3:1.2. May be repeated.",
)  # fmt: skip
@click.option("--tokens", type=float, help="Tokens to train on, as 15e12: how many days that takes.")
@click.option(
    "--split", default="auto", metavar="auto|even|N,N,…|LAYOUT", show_default=True,
    help="Layers per stage: balanced by F + B, even, or given: numbers, or Megatron-LM's, Et*3|(tt|)*6,t*2L.",
)  # fmt: skip
@click.option(
    "--runtime", type=click.Choice(["torch", "megatron", "ideal"]), default="torch", show_default=True,
    help="Whose network and corners are assumed; ideal is the literature's.",
)  # fmt: skip
@channel_option
@receives_option
@click.option(
    "--search-time",
    type=float,
    metavar="SECONDS",
    help="For --schedule auto: how long to search. Default: 10 s; less where the bound is met.",
)
@click.option("--seed", type=int, help="For --schedule auto: the dice of the search. Default: 0.")
@click.option("--transfer-ms", type=float, help="Milliseconds a stage-to-stage hop, instead of the profile's.")
@overheads_option
@click.option("--memory-limit", metavar="SIZE", help="Memory a rank, as 80GiB; exit 1 if the plan does not fit.")
@json_option
@output_option
def project(outputs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Project a step: time, throughput, bubble, memory per rank, and why.

    \b
      ppsim project --pp 8 --vpp 2 -o timeline.html
      ppsim project --pp 8 --schedule all --microbatches 32 --memory-limit 80GiB
      ppsim project --model llama3-405b --cluster dgx-h100 --gpus 1024 --tp 8 --pp 16 --vpp 4 --global-batch 512

    With --model, costs are estimated from the specifications of a cluster or, with --profile, measured where it has
    the layer and the shape, and the whole step is projected: data parallelism, optimizer and memory too. Without,
    they are those of a profile: one pipeline of the ranks that were measured.
    """
    from ppsim import show, show_answer
    from ppsim.exporting.timeline_json import timeline_to_json
    from ppsim.outputs import check_paths, write_outputs
    from ppsim.plot.view import view_of
    from ppsim.projection import project as planning
    from ppsim.projection.answer import answer_of
    from ppsim.projection.plan import AUTO

    check_paths(outputs)
    plan = _plan(options)
    if options["schedule"] == "all":
        with busy("projecting") as update:
            comparison = planning.project_all(plan, announce=lambda name: update(f"projecting {name}"))
        shown = comparison.projections
        found = {
            "projections": [projection.to_json() for projection in shown],
            "not_possible": comparison.reasons,
        }
    else:
        searching = "searching" if plan.schedule == AUTO else "projecting"
        with busy(searching):
            comparison, shown = None, [planning.project(plan)]
            answer = answer_of(shown[0], tokens=options["tokens"])
        found = shown[0].to_json() | answer.to_json()
    if shown:
        answered = {} if comparison else answer.to_json()
        write_outputs(
            outputs,
            views=[view_of(projection, projection.plan.schedule_name) for projection in shown[:2]],
            report=lambda: timeline_to_json(
                shown[0].timeline,
                shown[0].costs,
                memory_limit_bytes=plan.memory_limit_bytes,
                **shown[0].beside_report() | answered,
            ),
            memory_limit_bytes=plan.memory_bound_bytes,
            announce=say,
        )
    if as_json:
        print_json(found)
    elif comparison:
        show.print_plans(comparison)
    else:
        show_answer.print_answer(shown[0], answer)
    if not shown:
        raise click.exceptions.Exit(1)


def _plan(options: dict[str, Any]) -> "Plan":
    from ppsim.costs.estimate import with_estimates
    from ppsim.costs.files import read_overheads
    from ppsim.costs.profile import DEFAULT, load_profile
    from ppsim.errors import ConfigError
    from ppsim.projection.plan import Plan

    job = job_from(options)
    profile = None if job else load_profile(options["profile"] or DEFAULT)
    if options["vpp"] is not None and options["vpp"] < 1:
        raise ConfigError(f"--vpp must be at least 1: got {options['vpp']}")
    if options["transfer_ms"] is not None and options["transfer_ms"] < 0:
        raise ConfigError(f"--transfer-ms must not be negative: got {options['transfer_ms']:g}")
    if options["layers"] is not None and options["layers"] < 1:
        raise ConfigError(f"--layers must be at least 1: got {options['layers']}")
    search = {field: options[name] for name, field in _SEARCH_OPTIONS.items() if options[name] is not None}
    if search and options["schedule"] != "auto":
        raise ConfigError("--search-time and --seed are for --schedule auto")
    shape = None
    if profile is not None:
        profile, shape = with_estimates(
            profile,
            micro_batch=options["micro_batch"],
            sequence_length=options["seq_len"],
            tp=options["tp"],
            cp=options["cp"],
            ep=options["ep"],
            recompute=options["recompute"],
        )
    overheads: dict[str, Any] = {}
    if options["overheads"]:
        fitted = read_overheads(options["overheads"])
        overheads |= fitted.constants
        if fitted.line and options["transfer_ms"] is None:
            overheads["hop_overhead_s"], overheads["bandwidth_bytes_per_s"] = fitted.line
    return Plan(
        pp=options["pp"],
        vpp=options["vpp"],
        schedule=None if options["schedule"] == "all" else options["schedule"],
        microbatches=None if job else options["microbatches"],
        group_size=options["group_size"],
        num_slices=options["slices"],
        job=job,
        profile=profile,
        shape=shape,
        num_layers=None if job else options["layers"],
        stragglers=tuple(map(_straggler, options["stragglers"])),
        split=parse_split(options["split"]),
        runtime=options["runtime"],
        channel=options["channel"],
        receives=options["receives"] or "torch",
        transfer_s=None if options["transfer_ms"] is None else options["transfer_ms"] / 1e3,
        memory_limit_bytes=parse_size(options["memory_limit"]),
        **overheads,
        **search,
    )


def _straggler(text: str) -> tuple[int, float]:
    """Rank and factor of 3:1.2."""
    from ppsim.errors import ConfigError

    rank, _, factor = text.partition(":")
    try:
        return int(rank), float(factor)
    except ValueError:
        raise ConfigError(f"--straggler is '{text}': write it as RANK:FACTOR, as 3:1.2") from None


_SEARCH_OPTIONS = {"search_time": "search_s", "seed": "seed"}


def parse_split(text: str) -> Any:
    """Return "auto", "even", layers per stage or, of a layout string, what each stage holds.

    Raises `ConfigError` for anything else.
    """
    from ppsim.errors import ConfigError
    from ppsim.exporting.megatron import parse_layout

    if text in ("auto", "even"):
        return text
    if "|" in text or text.startswith("E"):
        return parse_layout(text)
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"--split is '{text}': give auto, even or layers per stage as 2,3,3,2, or a layout as Ett|tttL"
        ) from None


def parse_size(text: str | None) -> float | None:
    """Return bytes for 80GiB or 80GB; raises `ConfigError` for anything else."""
    import re

    from ppsim.errors import ConfigError

    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise ConfigError(f"cannot read the size '{text}': write it as 80GiB or 80GB")
    base = 1024 if match[3] else 1000
    return float(float(match[1]) * base ** " KMGT".index(match[2].upper() or " "))
