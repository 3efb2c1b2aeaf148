"""The command `models`: sizes, parameters and FLOPs of models by name or from a config.json."""

from typing import TYPE_CHECKING, Any

import click

from ppsim.cli.common import json_option, print_json

if TYPE_CHECKING:
    from ppsim.model.architecture import Model


@click.command(short_help="List the models, or count one's parameters and FLOPs.")
@click.argument("name", required=False, metavar="[NAME|config.json]")
@click.option(
    "--seq-len", type=int, metavar="TOKENS",
    help="Sequence length in tokens, for attention's FLOPs. Default: the model's own.",
)  # fmt: skip
@json_option
def models(name: str | None, seq_len: int | None, as_json: bool) -> None:
    """List the models known by name, or count one's parameters and the FLOPs that training takes a token.

    \b
      ppsim models
      ppsim models llama3-8b --seq-len 8192
      ppsim models deepseek-v3 --json

    A Hugging Face config.json stands for a name too. FLOPs are those of matrix products, forward and twice that
    backward, without recomputation.
    """
    from ppsim.api.catalogues import model_counts
    from ppsim.base.errors import ConfigError
    from ppsim.model.names import NAMES, find_model

    if name is None:
        if seq_len is not None:
            raise ConfigError("--seq-len is for one model: name it")
        found = {known: find_model(known) for known in NAMES}
        if as_json:
            print_json({"models": [model_counts(known) for known in NAMES]})
        else:
            _print_list(found)
        return
    counts = model_counts(name, seq_len)
    if as_json:
        print_json(counts)
    else:
        _print_one(counts)


def _print_list(found: "dict[str, Model]") -> None:
    from ppsim.base.units import count
    from ppsim.printing.page import Columns, Page

    out = Page()
    rows = [
        [
            name,
            f"{model.parameters:,}",
            count(model.active_parameters),
            str(len(model.layers)),
            str(model.hidden_size),
        ]
        for name, model in found.items()
    ]
    out.add(Columns(["model", "parameters", "active", "layers", "hidden"], rows))
    out.add("\nA Hugging Face config.json stands for a name too: ppsim models path/to/config.json")


def _print_one(counts: dict[str, Any]) -> None:
    from ppsim.base.units import count
    from ppsim.printing.page import Page, facts

    layers = f"{counts['layers']} of width {counts['hidden_size']}"
    if counts["moe_layers"]:
        layers += f", {counts['moe_layers']} with experts"
    if counts["mtp_layers"]:
        layers += f"; {counts['mtp_layers']} for multi-token prediction"
    tied = ", which are the head's too" if counts["tied_embeddings"] else ""
    rows = [
        ("layers", layers),
        ("vocabulary", f"{counts['vocab_size']:,}"),
        ("parameters", f"{counts['parameters']:,}"),
        ("active a token", f"{counts['active_parameters']:,}"),
        ("embedding", f"{counts['embedding_parameters']:,}{tied}"),
    ]
    if counts["mtp_layers"]:
        rows.append(("multi-token prediction", f"{counts['mtp_parameters']:,}, not among the parameters above"))
    length = f"{counts['sequence_length']:,} tokens"
    rows += [
        (
            "training FLOPs a token",
            f"{count(counts['training_flops_per_token'])}: matrix products, all scores of {length}",
        ),
        ("", f"{count(counts['training_flops_per_token_causal'])}: the same, causal (half the scores)"),
        ("", f"{count(counts['training_flops_per_token_6n'])}: 6 times the active parameters"),
        ("sizes from", counts["source"]),
    ]
    out = Page()
    out.add(f"[bold]{counts['name']}[/bold]")
    out.add(facts(rows))
