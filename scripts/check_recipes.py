"""Project all recipes of the newest release of each trainer, and compare the refused ones with the accepted list.

`python scripts/check_recipes.py` prints the recipes that do not fit or cannot be projected, and are not in
accepted_recipes.toml. It exits with 1 if there are any, if a listed recipe is projected and fits, or if the trainer
published a throughput or a peak of a listed recipe. `--all` prints the accepted ones too.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import ppsim
from ppsim.base.errors import PpsimError
from ppsim.base.files import read_toml
from ppsim.trainers.recipe_table import Recipe, recipes
from ppsim.trainers.shared_settings import releases_of
from ppsim.validation.published_runs import case_sets, cases_of

ACCEPTED = Path(__file__).with_name("accepted_recipes.toml")


def newest() -> list[Recipe]:
    """Return the recipes of the newest release of each trainer."""
    last = {trainer: releases_of(trainer)[-1] for trainer in {one.trainer for one in recipes()}}
    return [one for one in recipes() if one.release == last[one.trainer]]


def accepted() -> dict[str, str]:
    """Return the reasons of the accepted list, by the name of the recipe without its release."""
    groups = read_toml(ACCEPTED)["accepted"]
    return {name: str(group["reason"]) for group in groups for name in group["recipes"]}


def refusal(recipe: Recipe) -> str | None:
    """Return why a recipe does not fit or cannot be projected, None if it fits or its number of GPUs is assumed."""
    try:
        made = ppsim.project(recipe=recipe.name)
    except PpsimError as error:
        return str(error)
    return str(made.verdict) if made.fits is False else None


def published() -> set[tuple[str, int, int | None]]:
    """Return (trainer, plan, GPUs) of the recipes with a published run, as they stand."""
    named = {
        case.options["recipe"]
        for name in case_sets()
        for case in cases_of(name)
        if case.options.keys() == {"recipe"}
    }
    return {(one.trainer, one.plan, one.gpus) for one in recipes() if one.name in named}


def complaints(refused: Mapping[str, str], listed: Mapping[str, str], measured: set[str]) -> Iterator[str]:
    """Yield a sentence per difference from the list. All names are without releases."""
    for name, why in refused.items():
        if name not in listed:
            yield f"not in {ACCEPTED.name}: {name}: {why}"
    for name in listed:
        if name not in refused:
            yield f"remove from {ACCEPTED.name}: {name} is projected and fits, or is not in the newest release"
        elif name in measured:
            yield f"may not be in {ACCEPTED.name}: {name}, of which a run is published: {refused[name]}"


def main() -> None:
    """Print the differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="Print the accepted recipes too.")
    shows_all = parser.parse_args().all
    found = newest()
    refused = {one.base: why for one in found if (why := refusal(one))}
    runs = published()
    measured = {one.base for one in found if (one.trainer, one.plan, one.gpus) in runs}
    listed = accepted()
    if shows_all:
        for name in refused:
            print(f"{name}: {refused[name]} ({listed.get(name, 'not accepted')})")
    wrong = list(complaints(refused, listed, measured))
    print("\n".join(wrong))
    numbers = f"{len(refused)} refused, {len(listed)} accepted"
    print(f"{len(found)} recipes, {numbers}, {len(measured)} with a published run")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
