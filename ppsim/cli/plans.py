"""The command `project`: from a profile or a model on a cluster."""

from typing import Any

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
from ppsim.cli.jobs import job_options


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
    from ppsim.api.outputs import write_projections
    from ppsim.api.plans import plan_from
    from ppsim.outputs import check_paths
    from ppsim.projection import project as planning
    from ppsim.projection.answer import answer_of
    from ppsim.projection.plan import AUTO

    check_paths(outputs)
    is_all = options["schedule"] == "all"
    stragglers = dict(map(_straggler, options["stragglers"]))
    plan = plan_from(options | {"stragglers": stragglers, "schedule": None if is_all else options["schedule"]})
    comparison = answer = None
    if is_all:
        with busy("projecting") as update:
            comparison = planning.project_all(plan, announce=lambda name: update(f"projecting {name}"))
        shown = comparison.projections
        found = {
            "projections": [projection.to_json() for projection in shown],
            "not_possible": comparison.reasons,
        }
    else:
        with busy("searching" if plan.schedule == AUTO else "projecting"):
            shown = [planning.project(plan)]
            answer = answer_of(shown[0], tokens=options["tokens"])
        found = shown[0].to_json() | answer.to_json()
    write_projections(outputs, shown[:2], answer, announce=say)
    if as_json:
        print_json(found)
    elif comparison:
        show.print_plans(comparison)
    elif answer:
        show_answer.print_answer(shown[0], answer)
    if not shown:
        raise click.exceptions.Exit(1)


def _straggler(text: str) -> tuple[int, float]:
    """Rank and factor of 3:1.2."""
    from ppsim.errors import ConfigError

    rank, _, factor = text.partition(":")
    try:
        return int(rank), float(factor)
    except ValueError:
        raise ConfigError(f"--straggler is '{text}': write it as RANK:FACTOR, as 3:1.2") from None
