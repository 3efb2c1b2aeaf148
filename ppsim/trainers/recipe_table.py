"""Recipes by name: the settings with which a trainer publishes the run of a model on a device.

The table (data/recipes.json) is written by scripts/extract_recipes.py. A name is MODEL/DEVICE/PRECISION@RELEASE,
with a variant in front of the @ if there are several.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ppsim.base.data import data_folder
from ppsim.base.errors import ConfigError
from ppsim.base.files import read_json

TITLES = {"megatron-bridge": "Megatron-Bridge", "primus": "Primus", "torchtitan": "TorchTitan"}
"""Trainers with recipes, and their names in prose."""


@dataclass(frozen=True)
class Recipe:
    """A recipe of a release: its name, the number of GPUs if it has one, and the file that has it.

    `plan` is the number of its settings in the table.
    """

    trainer: str
    release: str
    base: str
    gpus: int | None
    plan: int
    file: str
    tag: str
    commit: str
    repository: str

    @property
    def name(self) -> str:
        """The whole name, with the release."""
        return f"{self.base}@{self.release}"

    @property
    def model(self) -> str:
        """The model: a name of `ppsim models`, or another one."""
        return self.base.split("/")[0]

    @property
    def device(self) -> str:
        """The type of GPU; `any` if the recipe leaves it open."""
        return self.base.split("/")[1]

    @property
    def precision(self) -> str:
        """The number format of GEMMs."""
        return self.base.split("/")[2]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by the trainer's names: those that are no defaults."""
        table = _table()
        return dict(sorted(table["settings"][number] for number in table["plans"][self.plan]))

    @property
    def source(self) -> str:
        """The file, the tag of its release and the commit."""
        return f"{self.file} at {self.tag}{f' ({self.commit[:8]})' if self.commit else ''}"

    def to_json(self) -> dict[str, Any]:
        """As JSON: the parts of the name, and the source."""
        return {
            "name": self.name, "trainer": self.trainer, "release": self.release, "model": self.model,
            "device": self.device, "precision": self.precision, "gpus": self.gpus, "file": self.file,
            "tag": self.tag, "commit": self.commit, "repository": self.repository,
        }  # fmt: skip


@cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = read_json(data_folder("trainers/data") / "recipes.json")
    return found


@cache
def recipes() -> tuple[Recipe, ...]:
    """Return every recipe of every release, by trainer and name, the oldest release first."""
    table, found = _table(), []
    for trainer, one in table["trainers"].items():
        releases = [(release, *source) for release, source in one["releases"].items()]
        for base, entries in one["recipes"].items():
            for first, last, gpus, plan, file in entries:
                path, repository = table["files"][file], one["repository"]
                found += [
                    Recipe(trainer, release, base, gpus, plan, path, tag, commit, repository)
                    for release, tag, commit in releases[first : last + 1]
                ]
    return tuple(found)


def matching(words: Sequence[str], **filters: str | None) -> list[Recipe]:
    """Return the recipes that have every word: as part of the name, or as trainer or release.

    `filters` are properties of a recipe and the text that each must have; a model may be a part of its name.

    >>> {one.device for one in matching(["deepseek-v3", "mxfp8"], release="26.08")} >= {"gb200", "gb300"}
    True
    """
    found = []
    for one in recipes():
        parts = {*one.base.split("/"), one.trainer, one.release}
        if all(
            word.lower() in parts or word.lower() in one.model or word.lower() == one.name for word in words
        ) and all(
            value is None or value.lower() == getattr(one, name) or (name == "model" and value.lower() in one.model)
            for name, value in filters.items()
        ):
            found.append(one)
    return found


def find_recipe(name: str) -> Recipe:
    """Return a recipe by name, the newest release if the name has none.

    Raises `ConfigError` with the nearest names, with the releases that have the recipe, or with its variants.
    """
    base, _, release = name.strip().lower().partition("@")
    named = [one for one in recipes() if one.base == base]
    if not named:
        raise ConfigError(_why_unknown(base, release))
    if not release:
        return named[-1]
    found = [one for one in named if one.release == release]
    if not found:
        raise ConfigError(
            f"recipe {base} is not in release {release}: it is in {', '.join(one.release for one in named)}"
        )
    return found[-1]


def _why_unknown(base: str, release: str) -> str:
    """The sentence about a name that no recipe has: its variants, or else the three nearest names."""
    names = list(dict.fromkeys(one.base for one in recipes() if release in ("", one.release)))
    if variants := [one for one in names if one.startswith(f"{base}/")]:
        return f"recipe {base} has variants: give {' or '.join(variants)}"
    names = names or list(dict.fromkeys(one.base for one in recipes()))
    near = difflib.get_close_matches(base, names, n=3, cutoff=0)
    return f"unknown recipe '{base}': the nearest of {len(names)} are {', '.join(near)}; `ppsim recipes` lists all"
