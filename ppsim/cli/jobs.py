"""Options that describe a training job on a cluster; `ppsim.api.jobs` makes one of them."""

from typing import Any

import click

_OPTIONS = (
    click.option(
        "--model", metavar="NAME|config.json", help="A model of `ppsim models`, or a Hugging Face config.json."
    ),
    click.option(
        "--cluster", metavar="NAME|FILE",
        help="A cluster of `ppsim clusters`, or one's own file, on which costs are estimated. Default: dgx-h100.",
    ),
    click.option(
        "--gpus", type=int, help="Devices in all, of which dp is what remains. Default: tp · cp · dp · pp."
    ),
    click.option("--order", metavar="tp-cp-ep-dp-pp", help="How ranks are numbered, the nearest first."),
    click.option(
        "--global-batch", type=int, help="Sequences a step, of all replicas. Default: 4 · pp microbatches each."
    ),
    click.option(
        "--dtype", type=click.Choice(["bfloat16", "float16", "float8", "float32"]),
        help="Of the matrix products. Default: bfloat16.",
    ),
    click.option(
        "--sequence-parallel/--no-sequence-parallel", default=None,
        help="Norms and residuals divided by tp too. Default: where tp > 1.",
    ),
    click.option(
        "--zero", type=click.IntRange(0, 3),
        help="ZeRO stage; 1 is Megatron-LM's distributed optimizer. Default: 1.",
    ),
    click.option(
        "--optimizer", type=click.Choice(["adam", "muon"]), help="Whose state and step are counted. Default: adam."
    ),
    click.option(
        "--layer-wise/--no-layer-wise", default=None,
        help="Whether replicas share the update by whole layers, as Muon's users do. Default: evenly.",
    ),
    click.option(
        "--update", type=click.Choice(["synchronised", "post-validated"]),
        help="Whether ranks wait for each other's gradients before the optimizer. Default: synchronised.",
    ),
    click.option(
        "--overlap-dp/--no-overlap-dp", default=None,
        help="Gradients reduced and parameters gathered beside compute, or not. Default: beside.",
    ),
)  # fmt: skip

_OFFLOAD = click.option(
    "--offload", type=float, metavar="PART",
    help="Part of the activations that waits for its backward on the host, 0 to 1. Default: 0.",
)  # fmt: skip

_DP = click.option("--dp", type=int, help="Data-parallel replicas. Default: what --gpus leaves, else 1.")


def job_options(command: Any) -> Any:
    """Add the options of a job."""
    return study_options(_DP(_OFFLOAD(command)))


def study_options(command: Any) -> Any:
    """Add the options of a job whose layout is not decided."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
