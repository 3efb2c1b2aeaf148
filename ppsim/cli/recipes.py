"""The command `recipes`."""

import click

from ppsim.base.errors import ConfigError
from ppsim.cli.common import full_option, json_option, print_json
from ppsim.cli.completion import completing


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
    found = matching_recipes(words, **filters)
    if as_json:
        print_json({"recipes": [one.to_json() for one in found]})
    elif not found:
        raise ConfigError(why_no_recipe(words, **filters))
    else:
        show.print_recipes(found, is_filtered=bool(words or any(filters.values())), full=full)
