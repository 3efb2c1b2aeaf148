"""The command `tune`: the best configurations of a model on so many devices."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ppsim.cli.common import check_outputs, json_option, parse_names, parse_numbers, print_json, say
from ppsim.cli.jobs import study_options
from ppsim.cli.progress import progress
from ppsim.cli.sections import SectionedCommand

_Command = TypeVar("_Command", bound=Callable[..., Any])

_RANGES = ("tp", "cp", "ep", "dp", "pp", "vpp", "micro_batch")
_CHOICES = ("schedule", "recompute", "split")


_SECTIONS = {
    "Model and batch": ("model", "layers", "seq_len", "global_batch", "dtype"),
    "Cluster": ("cluster", "gpus", "order", "memory_limit", "memory_share", "runtime"),
    "What is tried": ("tp", "cp", "ep", "dp", "pp", "vpp", "micro_batch", "schedule", "recompute", "split"),
    "Optimizer and parallelism, the same for all": (
        "optimizer", "zero", "layer_wise", "update", "overlap_dp", "sequence_parallel",
    ),
    "Search": ("top", "jobs", "resume", "search_time", "seed"),
}  # fmt: skip


def _list_option(name: str, what: str) -> Callable[[_Command], _Command]:
    return click.option(f"--{name}", metavar="N,N,…", help=what)


@click.command(
    cls=SectionedCommand, sections=_SECTIONS,
    short_help="Find the best layout and schedule for a model on so many GPUs.",
)  # fmt: skip
@study_options
@_list_option("tp", "Tensor-parallel ranks to try. Default: what divides the model and a node.")
@_list_option("cp", "Context-parallel ranks to try. Default: 1,2,4,8 that leave 2,048 tokens or more.")
@_list_option("ep", "Expert-parallel ranks to try. Default: powers of two up to 64 that divide the experts.")
@_list_option("dp", "Data-parallel replicas to allow; they are what the others leave. Default: any.")
@_list_option("pp", "Pipeline ranks to try. Default: what divides the GPUs, up to the layers and two more.")
@_list_option("vpp", "Stages a rank to try. Default: 1,2,4,8.")
@_list_option("micro-batch", "Sequences a microbatch to try. Default: 1,2,4,8.")
@click.option(
    "--schedule", metavar="NAME,NAME,…",
    help="Schedules to try, names from `ppsim schedules`; with auto, a table is searched for on the best three. "
         "Default: 1f1b,interleaved-1f1b,zb-h1,interleaved-zb,zbv-fixed,v-half-fixed.",
)  # fmt: skip
@click.option(
    "--recompute",
    metavar="KIND,…",
    help="What of a layer is computed again in its backward, to try, as project takes it. Default: none,full.",
)
@click.option("--split", metavar="KIND,…", help="Layer splits to try: auto, even. Default: auto,even.")
@click.option("--seq-len", type=int, metavar="TOKENS", help="Tokens a sequence. Default: the model's.")
@click.option("--layers", type=int, metavar="N", help="Layers of the model. Default: its own.")
@click.option(
    "--runtime", type=click.Choice(["torch", "megatron", "ideal"]), default="torch", show_default=True,
    help="Which runtime's transfers and special cases are assumed; ideal is what papers assume.",
)  # fmt: skip
@click.option(
    "--memory-limit",
    metavar="SIZE",
    help="Memory a GPU may use, as 80GiB or 80GB. Default: --memory-share of what it has.",
)
@click.option(
    "--memory-share", type=float, metavar="PART",
    help="Part of a GPU's memory, 0 to 1, that a step may take; the rest is the allocator's. Default: 0.95.",
)  # fmt: skip
@click.option(
    "--top", type=int, metavar="N", default=10, show_default=True, help="How many of the fastest to rank."
)
@click.option(
    "--jobs", type=int, metavar="N", default=1, show_default=True,
    help="Processes to search with, -1 for one a core; more than one needs joblib. The answer is the same.",
)  # fmt: skip
@click.option(
    "--seed",
    type=int,
    metavar="N",
    default=0,
    show_default=True,
    help="With auto: seed of the search's random choices.",
)
@click.option(
    "--search-time", type=float, metavar="SECONDS", help="With auto: how long to search each. Default: 10 s."
)
@click.option(
    "--resume", metavar="FILE", help="Keep the state of the search in a file, and go on from it where there is one."
)
@json_option
@click.option(
    "-o", "--output", "outputs", multiple=True, metavar="PATH",
    help="Write a file; the suffix decides: .json answer, .csv table, .html/.svg/.pdf/.png iteration time over "
         "memory. May be repeated.",
)  # fmt: skip
def tune(outputs: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Find the best layout, schedule and batch for a model on so many GPUs.

    \b
      ppsim tune --model llama2-7b --gpus 8 --global-batch 64 --seq-len 4096
      ppsim tune --model llama2-7b --gpus 8 --global-batch 64 --pp 2 -o tune.svg
      ppsim tune --model llama2-7b --gpus 8 --global-batch 64 --resume tune.json

    Prints the fastest, and those that trade time for memory. Global batch, sequence length and dtype stay. Every
    configuration has a lower bound of its time and memory; those that could be among the fastest or in the Pareto
    set are simulated, so that the answer is that of trying all.
    """
    from ppsim.api.suffixes import SEARCH, write_search
    from ppsim.api.tuning import tune_from
    from ppsim.base.units import seconds
    from ppsim.printing import tuning as show_tune

    check_outputs(outputs, SEARCH, beside=options["resume"])
    given: dict[str, Any] = {name: parse_numbers(name, options[name]) for name in _RANGES}
    given |= {name: parse_names(name, options[name]) for name in _CHOICES}
    with progress("finding bounds", total=1, unit="configurations") as bar:

        def show(decided: int, total: int, best_s: float | None) -> None:
            bar.update("searching" if best_s is None else f"best {seconds(best_s)}", done=decided, total=total)

        found = tune_from(options | given, show)
    write_search(outputs, found, announce=say)
    if as_json:
        print_json(found.to_json())
    else:
        show_tune.print_tuned(found)
