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
        "--gpus", type=int, metavar="N",
        help="Devices in all; replicas (dp) are what the other dimensions leave. Default: tp · cp · dp · pp; "
             "`tune` needs it.",
    ),
    click.option(
        "--order", metavar="tp-cp-ep-dp-pp",
        help="How ranks are numbered: neighbours in the first dimension are nearest. Default: tp-cp-ep-dp-pp.",
    ),
    click.option(
        "--global-batch", type=int, metavar="N",
        help="Sequences a step, of all replicas. Default: 4 · pp microbatches a replica; `tune` needs it.",
    ),
    click.option(
        "--dtype", type=click.Choice(["bfloat16", "float16", "float8", "float32"]),
        help="Number format of the matrix products. Default: bfloat16.",
    ),
    click.option(
        "--sequence-parallel/--no-sequence-parallel", default=None,
        help="Whether norms and residuals are divided among the tensor-parallel ranks too. Default: where tp > 1.",
    ),
    click.option(
        "--zero", type=click.IntRange(0, 3), metavar="0|1|2|3",
        help="ZeRO stage: replicas share optimizer state (1, Megatron-LM's distributed optimizer), gradients too "
             "(2), parameters too (3). Default: 1.",
    ),
    click.option(
        "--optimizer", type=click.Choice(["adam", "muon"]),
        help="The optimizer, for its state and its step. Default: adam.",
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
        help="Whether gradients are reduced and parameters gathered beside compute. Default: they are.",
    ),
)  # fmt: skip

_OFFLOAD = click.option(
    "--offload", type=float, metavar="PART",
    help="Part of the activations, 0 to 1, that waits for its backward in host memory. Default: 0.",
)  # fmt: skip

_DP = click.option(
    "--dp", type=int, metavar="N", help="Data-parallel replicas. Default: what --gpus leaves, else 1."
)


def job_options(command: Any) -> Any:
    """Add the options of a job."""
    return study_options(_DP(_OFFLOAD(command)))


def study_options(command: Any) -> Any:
    """Add the options of a job whose layout is not decided."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
