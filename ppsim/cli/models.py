"""The command `models`."""

import click

from ppsim.base.errors import ConfigError
from ppsim.cli.common import check_outputs, json_option, print_json
from ppsim.cli.completion import completing


@click.command()
@click.argument("name", required=False, metavar="[NAME|config.json]", shell_complete=completing("model"))
@click.option(
    "--seq-len", type=int, metavar="TOKENS",
    help="Tokens per sequence, for the FLOPs of attention. [default: the model's]",
)  # fmt: skip
@click.option(
    "--trace",
    "config",
    metavar="config.json",
    help="Hugging Face config.json to trace with torch and transformers, instead of NAME.",
)
@click.option(
    "-o",
    "--output",
    metavar="model.json",
    help="Output file for the traced model. --model model.json then requires neither torch nor transformers.",
)
@click.option("--full", is_flag=True, help="Also print the source of each model's sizes.")
@json_option
def models(
    name: str | None, seq_len: int | None, config: str | None, output: str | None, full: bool, as_json: bool
) -> None:
    """List the models known by name, or print the parameters and training FLOPs per token of one.

    \b
      ppsim models --full
      ppsim models llama3-8b --seq-len 8192
      ppsim models --trace config.json -o model.json

    A Hugging Face config.json can be given instead of a name. If its model_type is unknown, it is traced: torch and
    transformers build the model without weights, and ppsim reads the operators of one layer of each kind.

    FLOPs are GEMM FLOPs of forward and backward pass (twice the forward), without recomputation.
    """
    from ppsim.api.catalogues import model_counts, traced_counts
    from ppsim.model.registry import NAMES, find_model
    from ppsim.results import catalogues as show_models

    if config is not None:
        if name is not None:
            raise ConfigError(f"--trace {config} is read instead of a name: leave out {name}")
        check_outputs([output] if output else [], (".json",))
        counts = traced_counts(config, output, seq_len)
        if as_json:
            print_json(counts)
        else:
            show_models.print_counts(counts)
        return
    if output is not None:
        raise ConfigError("-o is for a traced model: give --trace config.json too")
    if name is None:
        if seq_len is not None:
            raise ConfigError("--seq-len is for one model: name it")
        if as_json:
            print_json({"models": [model_counts(known) for known in NAMES]})
        else:
            show_models.print_models({known: find_model(known) for known in NAMES}, with_sources=full)
        return
    counts = model_counts(name, seq_len)
    if as_json:
        print_json(counts)
    else:
        show_models.print_counts(counts)
