"""The commands `schedules`, `models`, `clusters` and `recipes`."""

import click

from ppsim.base.errors import ConfigError
from ppsim.cli.common import check_outputs, full_option, json_option, print_json
from ppsim.cli.completion import completing


@click.command()
@click.argument("name", required=False, shell_complete=completing("schedule"))
@json_option
def schedules(name: str | None, as_json: bool) -> None:
    """List the schedules, or print one with its constraints, closed-form formulas, source and supported runtimes.

    \b
      ppsim schedules
      ppsim schedules zbv
      ppsim schedules --json
    """
    from dataclasses import asdict

    from ppsim.catalog.build import every_schedule, find
    from ppsim.results import schedules as show
    from ppsim.trainers.write_schedule import refusals, runtime_facts

    entries = [find(name)] if name else list(every_schedule().values())
    if as_json:
        objects = [
            {key: value for key, value in asdict(entry).items() if key != "build"}
            | {"options": entry.options, "refused_by": {k: v for k, v in refusals(entry).items() if v is not None}}
            for entry in entries
        ]
        print_json(objects[0] if name else {"schedules": objects})
    elif name:
        show.print_entry(entries[0], runtime_facts(entries[0]))
    else:
        show.print_catalog(entries)


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


@click.command()
@click.argument("name", required=False, metavar="[NAME|FILE]", shell_complete=completing("cluster"))
@json_option
def clusters(name: str | None, as_json: bool) -> None:
    """List the packaged clusters, or print one (packaged or from a file) with units and sources.

    \b
      ppsim clusters
      ppsim clusters dgx-h100
      ppsim clusters gb200-nvl72 --json

    A .toml, .yaml or .json file describes your own cluster (docs/clusters.md). Throughput is the dense peak of the
    data sheet. Bandwidth is the line rate of one device in one direction. The calibration constants of the GPU type
    give the fraction that runs achieve.
    """
    from dataclasses import asdict

    from ppsim.machine.cluster_files import load_cluster, packaged_clusters
    from ppsim.results import catalogues as show_clusters

    loaded = [load_cluster(one) for one in ([name] if name else packaged_clusters())]
    if as_json:
        objects = [asdict(cluster) for cluster in loaded]
        print_json(objects[0] if name else {"clusters": objects})
    elif name:
        show_clusters.print_cluster(loaded[0])
    else:
        show_clusters.print_clusters(loaded)


@click.command()
@click.argument("words", nargs=-1, metavar="[NAME|WORD]...", shell_complete=completing("recipe"))
@click.option("--model", metavar="NAME", help="Only recipes for this model (name or a part of it).")
@click.option("--device", metavar="NAME", help="Only recipes for this GPU type, for example gb200.")
@click.option("--precision", metavar="NAME", help="Only recipes with this number format, for example mxfp8.")
@click.option("--trainer", metavar="NAME", help="Only recipes of this trainer, for example megatron-bridge.")
@click.option("--release", metavar="NAME", help="Only recipes of this trainer release, for example 26.08.")
@full_option
@json_option
def recipes(words: tuple[str, ...], as_json: bool, full: bool, **filters: str | None) -> None:
    """List the published recipes of trainers, or print one with its settings.

    \b
      ppsim recipes
      ppsim recipes deepseek-v3 gb200
      ppsim recipes deepseek-v3/gb200/mxfp8@26.08

    A recipe is the complete plan of a run: model, layout, batch, precision, cluster and number of GPUs. A WORD is a
    model (any name that `ppsim models` accepts, or a part of one), a GPU type, a number format, a variant, a
    trainer or a release; recipes that match all words are listed. NAME is the full name of a recipe, of the newest
    release unless it ends in @RELEASE.
    """
    from ppsim.model.registry import is_id_of_model
    from ppsim.results import catalogues as show
    from ppsim.trainers.recipe_table import find_recipe, matching_recipes, why_no_recipe

    if len(words) == 1 and "/" in words[0] and not is_id_of_model(words[0]):
        recipe = find_recipe(words[0])
        if as_json:
            print_json(recipe.to_json() | {"settings": recipe.settings})
        else:
            show.print_recipe(recipe)
        return
    matching = matching_recipes(words, **filters)
    if as_json:
        print_json({"recipes": [one.to_json() for one in matching]})
    elif not matching:
        raise ConfigError(why_no_recipe(words, **filters))
    else:
        show.print_recipes(matching, is_filtered=bool(words or any(filters.values())), full=full)
