"""The command `project`: from a profile or a model on a cluster."""

from typing import Any

import click

from ppsim.cli.common import (
    GROUP_SIZE_HELP,
    RECOMPUTE_HELP,
    SLICES_HELP,
    channel_option,
    check_outputs,
    json_option,
    output_option,
    overheads_option,
    print_json,
    receives_option,
    rows_option,
    say,
    timeline_option,
)  # fmt: skip
from ppsim.cli.jobs import job_options
from ppsim.cli.progress import progress, searching
from ppsim.cli.sections import SectionedCommand

_SECTIONS = {
    "Pipeline": (
        "pp", "vpp", "schedule", "microbatches", "group_size", "slices", "split",
        "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
        "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "stragglers",
    ),
    "Model and batch": (
        "model", "layers", "seq_len", "micro_batch", "global_batch", "tokens", "dtype", "recompute", "offload",
    ),
    "Cluster and layout (with --model)": ("cluster", "gpus", "tp", "cp", "ep", "dp", "order", "sequence_parallel"),
    "Optimizer and data parallelism (with --model)": ("optimizer", "zero", "layer_wise", "update", "overlap_dp"),
    "Measured costs": ("profile", "transfer_ms", "overheads"),
    "Runtime and memory": ("runtime", "channel", "receives", "memory_limit"),
    "Search (with --schedule auto)": ("search_time", "seed"),
}  # fmt: skip


@click.command(
    cls=SectionedCommand, sections=_SECTIONS,
    short_help="Project a step: time, throughput, memory per rank, and why.",
)  # fmt: skip
@click.option("--pp", type=int, metavar="N", required=True, help="Pipeline ranks.")
@click.option(
    "--vpp", type=int, metavar="N",
    help="Stages a rank holds; more than one is interleaving. Default: the fewest that the schedule takes.",
)  # fmt: skip
@click.option(
    "--schedule", metavar="NAME|NAME,NAME,…|all|auto",
    help="A name from `ppsim schedules`, several or all of them to compare, or auto: the best that a search finds. "
         "Default: 1f1b, or interleaved-1f1b for vpp > 1.",
)  # fmt: skip
@click.option(
    "--microbatches", type=int, metavar="N",
    help="Microbatches a step, of one replica. Default: 4 a pipeline rank.",
)  # fmt: skip
@click.option("--group-size", type=int, metavar="N", help=GROUP_SIZE_HELP)
@click.option("--slices", type=int, metavar="N", help=SLICES_HELP)
@click.option(
    "--profile", metavar="NAME|FILE",
    help="What `ppsim profile` measured: a file, or one that ppsim has. Default: zb-a100-6.2b without --model; "
         "with one, costs are estimated.",
)  # fmt: skip
@click.option(
    "--micro-batch", type=int, metavar="N",
    help="Sequences a microbatch. Default: 1 with --model, else what the profile was measured with.",
)  # fmt: skip
@click.option(
    "--seq-len", type=int, metavar="TOKENS",
    help="Tokens a sequence. Default: the model's own, or what the profile was measured with.",
)  # fmt: skip
@click.option(
    "--tp", type=int, metavar="N",
    help="Tensor-parallel ranks. Default: 1, or the profile's; without --model it is the profile's or estimated.",
)  # fmt: skip
@click.option(
    "--cp", type=int, metavar="N",
    help="Context-parallel ranks. Default: 1, or the profile's; without --model the profile must have it.",
)  # fmt: skip
@click.option(
    "--ep", type=int, metavar="N",
    help="Expert-parallel ranks. Default: 1, or the profile's; without --model it is the profile's or estimated.",
)  # fmt: skip
@click.option(
    "--recompute", metavar="none|full|MODULE+MODULE…",
    help=RECOMPUTE_HELP + " Default: none, or the profile's; without --model the profile must have it.",
)  # fmt: skip
@click.option(
    "--layers", type=int, metavar="N", help="Layers of the model. Default: the model's own, or the profile's."
)
@job_options
@click.option(
    "--straggler", "stragglers", multiple=True, metavar="RANK:FACTOR",
    help="A rank that computes more slowly: 3:1.2 is rank 3, taking 1.2 times as long. May be repeated.",
)  # fmt: skip
@click.option(
    "--tokens", type=float, metavar="N", help="Tokens to train on, as 15e12: says how many days that takes."
)
@click.option(
    "--split", metavar="auto|even|megatron|N,N,…|LAYOUT",
    help="Layers a stage: auto (balanced by F + B), even, megatron (Megatron-LM's own rule), numbers as 2,3,3,2, "
         "or its layout string as Et*3|(tt|)*6,t*2L. Default: auto; megatron with --runtime megatron.",
)  # fmt: skip
@click.option(
    "--account-for-embedding-in-pipeline-split", is_flag=True, default=None,
    help="Megatron-LM's rule with the embedding as a layer of the first stage.",
)  # fmt: skip
@click.option(
    "--account-for-loss-in-pipeline-split", is_flag=True, default=None,
    help="Megatron-LM's rule with head and loss as a layer of the last stage.",
)  # fmt: skip
@click.option(
    "--decoder-first-pipeline-num-layers", type=click.IntRange(0), metavar="N",
    help="Megatron-LM's rule with so many layers on the first rank.",
)  # fmt: skip
@click.option(
    "--decoder-last-pipeline-num-layers", type=click.IntRange(0), metavar="N",
    help="Megatron-LM's rule with so many layers on the last rank.",
)  # fmt: skip
@click.option(
    "--runtime", type=click.Choice(["torch", "megatron", "ideal"]), default="torch", show_default=True,
    help="Which runtime's transfers and special cases are assumed; ideal is what papers assume.",
)  # fmt: skip
@channel_option
@receives_option
@click.option(
    "--search-time",
    type=float,
    metavar="SECONDS",
    help="How long to search. Default: 10 s; less where the bound is met.",
)
@click.option("--seed", type=int, metavar="N", help="Seed of the search's random choices. Default: 0.")
@click.option(
    "--transfer-ms", type=float, metavar="MS", help="Milliseconds from a stage to the next, for the profile's."
)
@overheads_option
@click.option(
    "--memory-limit", metavar="SIZE",
    help="Memory a rank has, as 80GiB or 80GB; exit 1 if the plan does not fit. Default: with --model 95 % of the "
         "device's; nothing is refused.",
)  # fmt: skip
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

    from ppsim.api.outputs import write_projections
    from ppsim.api.plans import plan_from
    from ppsim.api.suffixes import TIMELINE
    from ppsim.printing import plans as show
    from ppsim.projection import project as planning
    from ppsim.projection.plan import AUTO

    check_outputs(outputs, TIMELINE)
    names = _compared(options["schedule"])
    stragglers = dict(map(_straggler, options["stragglers"]))
    plan = plan_from(options | {"stragglers": stragglers, "schedule": None if names else options["schedule"]})
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
    write_projections(outputs, drawn, answer, announce=say)
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


def _straggler(text: str) -> tuple[int, float]:
    """Rank and factor of 3:1.2."""
    from ppsim.base.errors import ConfigError

    rank, _, factor = text.partition(":")
    try:
        return int(rank), float(factor)
    except ValueError:
        raise ConfigError(f"--straggler is '{text}': write it as RANK:FACTOR, as 3:1.2") from None
