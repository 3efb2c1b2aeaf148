"""Recipes by name: the settings that a trainer publishes for a model on a type of GPU.

A name is MODEL/DEVICE/PRECISION@RELEASE, with /VARIANT before the @ if there are several variants.
scripts/extract_recipes.py writes data/recipes.json.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import data_folder, read_json
from ppsim.base.name_lookup import NameLookup
from ppsim.model.registry import known_name

TITLES = {"megatron-bridge": "Megatron-Bridge", "primus": "Primus", "torchtitan": "TorchTitan"}


@dataclass(frozen=True)
class Recipe:
    """A recipe of one release; `plan` is the index of its settings in the table."""

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
        return f"{self.base}@{self.release}"

    @property
    def model(self) -> str:
        return self.base.split("/")[0]

    @property
    def device(self) -> str:
        """The type of GPU, or `any` if the recipe leaves it open."""
        return self.base.split("/")[1]

    @property
    def precision(self) -> str:
        return self.base.split("/")[2]

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that equal the trainer's defaults are left out."""
        table = _table()
        return dict(sorted(table["settings"][number] for number in table["plans"][self.plan]))

    @property
    def source(self) -> str:
        return f"{self.file} at {self.tag}{f' ({self.commit[:8]})' if self.commit else ''}"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "trainer": self.trainer, "release": self.release, "model": self.model,
            "device": self.device, "precision": self.precision, "gpus": self.gpus, "file": self.file,
            "tag": self.tag, "commit": self.commit, "repository": self.repository,
        }  # fmt: skip


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = read_json(data_folder("trainers/data") / "recipes.json")
    return table


@cache
def recipes() -> tuple[Recipe, ...]:
    """The oldest release comes first."""
    table, listed = _table(), []
    for trainer, one in table["trainers"].items():
        releases = [(release, *source) for release, source in one["releases"].items()]
        for base, entries in one["recipes"].items():
            for first, last, gpus, plan, file in entries:
                path, repository = table["files"][file], one["repository"]
                listed += [
                    Recipe(trainer, release, base, gpus, plan, path, tag, commit, repository)
                    for release, tag, commit in releases[first : last + 1]
                ]
    return tuple(listed)


def matching_recipes(words: Sequence[str], **filters: str | None) -> list[Recipe]:
    """Each word must equal a part of the name, the trainer or the release, occur in the model, or name the model.

    `filters` maps properties of a recipe to the values that they must have.

    >>> {one.device for one in matching_recipes(["deepseek-v3", "mxfp8"], release="26.08")} >= {"gb200", "gb300"}
    True
    >>> {one.model for one in matching_recipes(["meta-llama/Llama-3.1-405B-Instruct"])}
    {'llama3-405b'}
    """
    return _matching(_criteria(words, filters))


def why_no_recipe(words: Sequence[str], **filters: str | None) -> str:
    """Return the message for an empty list: the value that no recipe has, or the values to leave out.

    >>> why_no_recipe(["deepseek-v3", "gb20"])
    "no recipe has 'gb20': did you mean gb200 or b200 or gb300?"
    >>> why_no_recipe(["qwen3-30b"], device="r100")
    'no recipe has qwen3-30b and --device r100: without qwen3-30b there are 4, without --device r100 there are 44'
    """
    criteria = _criteria(words, filters)
    texts = [value if name is None else f"--{name} {value}" for name, value in criteria]
    for one, text in zip(criteria, texts, strict=True):
        if not _matching([one]):
            known = dict.fromkeys(value for recipe in recipes() for value in _values(recipe, one[0]))
            return f"no recipe has '{text}': {NameLookup('word', known, listed_by='`ppsim recipes`').hint(one[1])}"
    left = (_matching(criteria[:at] + criteria[at + 1 :]) for at in range(len(criteria)))
    numbers = [len({(one.trainer, one.base) for one in found}) for found in left]
    fixes = [f"without {text} there are {number}" for text, number in zip(texts, numbers, strict=True) if number]
    return f"no recipe has {' and '.join(texts)}: {', '.join(fixes) or 'leave out some of them'}"


def _criteria(words: Sequence[str], filters: Mapping[str, str | None]) -> list[tuple[str | None, str]]:
    """Return (property or None for any, value in lower case)."""
    criteria: list[tuple[str | None, str]] = [(None, word.lower()) for word in words]
    return criteria + [(name, value.lower()) for name, value in filters.items() if value is not None]


def _matching(criteria: Sequence[tuple[str | None, str]]) -> list[Recipe]:
    matching = [
        (name, value, known_name(value) or value if name in (None, "model") else None) for name, value in criteria
    ]
    return [
        recipe
        for recipe in recipes()
        if all(
            value in _values(recipe, name)
            or (model is not None and (value in recipe.model or model == recipe.model))
            for name, value, model in matching
        )
    ]


def _values(recipe: Recipe, name: str | None) -> tuple[str, ...]:
    if name is None:
        return *recipe.base.split("/"), recipe.trainer, recipe.release, recipe.name
    return (getattr(recipe, name),)


def find_recipe(name: str) -> Recipe:
    """Without a release in the name, return the newest; raises `ConfigError` with the nearest names.

    >>> find_recipe("llama3.1-405b/gb300/bf16@26.06").name
    'llama3-405b/gb300/bf16@26.06'
    """
    base, _, release = name.strip().lower().partition("@")
    model, *others = base.split("/")
    base = "/".join([known_name(model) or model, *others])
    named = [recipe for recipe in recipes() if recipe.base == base]
    if not named:
        raise ConfigError(_why_unknown(base, release))
    if not release:
        return named[-1]
    releases = [one for one in named if one.release == release]
    if not releases:
        raise ConfigError(
            f"recipe {base} is not in release {release}: it is in {', '.join(one.release for one in named)}"
        )
    return releases[-1]


def _why_unknown(base: str, release: str) -> str:
    names = list(dict.fromkeys(recipe.base for recipe in recipes() if release in ("", recipe.release)))
    if variants := [name for name in names if name.startswith(f"{base}/")]:
        return f"recipe {base} has variants: give {' or '.join(variants)}"
    names = names or list(dict.fromkeys(one.base for one in recipes()))
    near = difflib.get_close_matches(base, names, n=3, cutoff=0)
    return f"unknown recipe '{base}': the nearest of {len(names)} are {', '.join(near)}; `ppsim recipes` lists all"
