"""Terminal output for recipes."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ppsim.base.units import percent, seconds
from ppsim.results.text_layout import SCREEN_LINES, Page, TableLines, bold, facts
from ppsim.trainers.recipe_table import TITLES, Recipe, recipes

if TYPE_CHECKING:
    from ppsim.validation.published import PublishedResult


def print_recipes(found: Sequence[Recipe], *, is_filtered: bool, full: bool) -> None:
    """Without a filter, there is one line per model."""
    out = Page()
    if not is_filtered:
        out.add(TableLines.of(_by_model(found), left=4, spare=["trainer"]))
        out.add("", "ppsim recipes MODEL DEVICE lists the recipes; ppsim project --recipe NAME projects one.")
        return
    named: dict[tuple[str, str], list[Recipe]] = {}
    for one in found:
        named.setdefault((one.trainer, one.base), []).append(one)
    rows = [
        {
            "recipe": base,
            "trainer": TITLES[trainer],
            "releases": ", ".join(one.release for one in same),
            "GPUs": ", ".join(dict.fromkeys(str(one.gpus or "any") for one in same)),
        }
        for (trainer, base), same in named.items()
    ]
    shown = rows if full else rows[:SCREEN_LINES]
    out.add(TableLines.of(shown, left=3, spare=["trainer"]))
    if len(shown) < len(rows):
        out.add(f"{len(rows) - len(shown)} more: --full")


def _by_model(found: Sequence[Recipe]) -> list[dict[str, str]]:
    models: dict[tuple[str, str], list[Recipe]] = {}
    for one in found:
        models.setdefault((one.trainer, one.model), []).append(one)
    return [
        {
            "model": model,
            "trainer": TITLES[trainer],
            "devices": _listed(one.device for one in same),
            "precisions": _listed(one.precision for one in same),
            "recipes": str(len({one.base for one in same})),
            "releases": str(len({one.release for one in same})),
        }
        for (trainer, model), same in models.items()
    ]


def _listed(names: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(names))


def print_recipe(recipe: Recipe) -> None:
    from ppsim.results.run_config import settings_lines
    from ppsim.trainers.read_recipe import read_recipe

    same = [one.release for one in recipes() if (one.trainer, one.base) == (recipe.trainer, recipe.base)]
    gpus = [] if recipe.gpus is None else [("GPUs", str(recipe.gpus))]
    settings = ", ".join(f"{name} {value}" for name, value in recipe.settings.items())
    out = Page()
    out.add(bold(recipe.name))
    out.add(
        facts(
            [
                ("trainer", f"{TITLES[recipe.trainer]} {recipe.release}, {recipe.repository}"),
                ("file", recipe.source),
                ("releases", ", ".join(same)),
                *gpus,
                ("settings", settings),
            ]
        )
    )
    out.add("", *settings_lines(read_recipe(recipe.name)), "", f"ppsim project --recipe {recipe.name}")


def print_published(published: "PublishedResult", projected_s: float) -> None:
    error = projected_s / published.seconds - 1
    unit = published.metric.replace("_per_", "/").replace("/gpu", "/GPU")
    Page().add(
        f"published      {seconds(published.seconds)} ({published.value:g} {unit}, {published.table}): the "
        f"projection is {percent(abs(error))} {'longer' if error > 0 else 'shorter'}"
    )


def print_improvement(recipe: Recipe, recipe_s: float, best_s: float) -> None:
    change = best_s / recipe_s - 1
    Page().add(
        f"recipe  {recipe.name} takes {seconds(recipe_s)}: the best is {percent(abs(change))} "
        f"{'longer' if change > 0 else 'shorter'}"
    )
