"""Compare the best of `ppsim tune --recipe` with the recipe's own plan, for 40 recipes drawn with a fixed seed.

    python scripts/check_tune_recipes.py [FIRST [LAST]]    the recipes to compare, from 0 to 39; default: all

The recipes are of the newest release of each trainer, for at most 512 GPUs; 12 have offloading or overlapped
experts. A search takes up to a minute. Exit code 1 if a recipe is faster than the best, and the last line of the
answer gives no reason.
"""

import random
import subprocess
import sys
from collections.abc import Iterator

from check_recipes import newest

import ppsim
from ppsim.base.errors import PpsimError
from ppsim.trainers.read_recipe import read_recipe
from ppsim.trainers.recipe_table import Recipe

_SEED, _RECIPES, _SPECIAL, _MOST_GPUS = 0x029B885E, 40, 12, 512
_SPECIAL_OPTIONS = ("offload", "offload_modules", "overlap_ep")
_ANY_CLUSTER = "dgx-b200"


def commands() -> Iterator[list[str]]:
    """Yield the options of `ppsim tune` of each recipe that fits, the same in every run."""
    generator, number = random.Random(_SEED), 0
    recipes = sorted((one for one in newest() if (one.gpus or 0) <= _MOST_GPUS), key=lambda one: one.name)
    trainers = sorted({one.trainer for one in recipes})
    groups = [[one for one in recipes if one.trainer == trainer] for trainer in trainers]
    special = [one for one in recipes if _is_special(one)]
    while number < _RECIPES:
        group = special if number < _SPECIAL else groups[number % len(groups)]
        recipe = group.pop(generator.randrange(len(group)))
        cluster = {"cluster": _ANY_CLUSTER} if recipe.device == "any" else {}
        try:
            made = ppsim.project(recipe=recipe.name, **cluster)
        except PpsimError:
            continue
        if made.fits:
            number, job = number + 1, made.plan.job
            sizes = {"gpus": job.layout.num_devices, "global-batch-size": job.global_batch}
            options = {"recipe": recipe.name, **sizes, **cluster}
            yield [text for name, value in options.items() for text in (f"--{name}", str(value))]


def _is_special(recipe: Recipe) -> bool:
    options = read_recipe(recipe.name).options
    return any(options.get(name) for name in _SPECIAL_OPTIONS)


def main(first: int = 0, last: int = _RECIPES - 1) -> None:
    """Print the last line of each answer."""
    unexplained = 0
    for number, options in list(enumerate(commands()))[first : last + 1]:
        made = subprocess.run([sys.executable, "-m", "ppsim", "tune", *options], capture_output=True, text=True)
        answer = " ".join((made.stdout or made.stderr).rpartition("\nrecipe")[2].split())
        unexplained += made.returncode != 0 or (" shorter" not in answer and ";" not in answer)
        print(f"{number}: {' '.join(options)}: {answer}", flush=True)
    print(f"{unexplained} recipes are faster than the best without a reason")
    sys.exit(unexplained > 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
