"""The command `recipes`: list recipes of trainers, or print one of them."""

import click

from ppsim.cli.common import full_option, json_option, print_json
from ppsim.cli.completion import completing


@click.command()
@click.argument("words", nargs=-1, metavar="[NAME|WORD]...", shell_complete=completing("recipe"))
@click.option("--model", metavar="NAME", help="Only recipes of a model: its name, or a part of it.")
@click.option("--device", metavar="NAME", help="Only recipes of a type of GPU, for example gb200.")
@click.option("--precision", metavar="NAME", help="Only recipes of a number format, for example mxfp8.")
@click.option("--trainer", metavar="NAME", help="Only recipes of a trainer, for example megatron-bridge.")
@click.option("--release", metavar="NAME", help="Only recipes of a release of the trainer, for example 26.08.")
@full_option
@json_option
def recipes(words: tuple[str, ...], as_json: bool, full: bool, **filters: str | None) -> None:
    """List the recipes that trainers publish, or print one with its settings.

    \b
      ppsim recipes
      ppsim recipes deepseek-v3 gb200
      ppsim recipes deepseek-v3/gb200/mxfp8@26.08

    A recipe is the complete plan of a run: model, layout, batch, precision, cluster and number of GPUs. Every WORD
    is a model or a part of its name, a device, a precision, a variant, a trainer or a release. NAME is the whole
    name of a recipe: without @RELEASE it is the recipe of the newest release.
    """
    from ppsim.results import recipes as show
    from ppsim.trainers.recipe_table import find_recipe, matching

    if len(words) == 1 and "/" in words[0]:
        recipe = find_recipe(words[0])
        if as_json:
            print_json(recipe.to_json() | {"settings": recipe.settings})
        else:
            show.print_recipe(recipe)
        return
    found = matching(words, **filters)
    if as_json:
        print_json({"recipes": [one.to_json() for one in found]})
    else:
        show.print_recipes(found, is_filtered=bool(words or any(filters.values())), full=full)
