"""Settings that a release sets for a model: of its recipe for the model, or shared by its MoE recipes.

A recipe counts if it is for the device and the number format of the job.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import flag_of
from ppsim.model.registry import find_model, known_name
from ppsim.trainers.bridge.rules import RULES, OptionRule
from ppsim.trainers.recipe_table import Recipe, recipes
from ppsim.trainers.same_settings import is_among

SETTINGS = (
    "overlap_grad_reduce", "overlap_param_gather", "overlap_ep", "attention", "moe_permute_fusion",
    "moe_expert_capacity_factor", "moe_dispatcher", "moe_flex_dispatcher_num_sms", "fused_experts",
    "moe_expert_rank_capacity_factor", "moe_paged_stash", "cuda_graphs",
)  # fmt: skip
"""Settings that change the time. A setting comes after the ones that it requires. Not among them: sizes, batch,
number format and recomputation, which the user decides."""

_DTYPES = {
    "bfloat16": "bf16", "float8": "fp8", "float8-block": "fp8-block", "mxfp8": "mxfp8", "nvfp4": "nvfp4",
}  # fmt: skip

_CANCELLED: dict[str, dict[str, tuple[str, ...]]] = {
    "overlap_ep": {"schedule": (), "profile": ()},
    "cuda_graphs": {"recompute": ("full", "moe", "selective-op"), "offload": ()},
    "moe_paged_stash": {"offload": (), "offload_modules": ()},
}
"""Options, with values (empty: any value), that exclude a setting; keyed by setting."""

_REQUIRED: dict[str, dict[str, tuple[Any, ...]]] = {
    "moe_flex_dispatcher_num_sms": {"moe_dispatcher": ("hybridep",)},
    "moe_expert_rank_capacity_factor": {"fused_experts": (True,), "moe_dispatcher": ("hybridep",)},
    "moe_paged_stash": {"moe_expert_rank_capacity_factor": ()},
}
"""Options, with values (empty: any value), that a setting requires; keyed by setting."""

_FIXED_SIZES = ("moe_expert_rank_capacity_factor", "moe_expert_capacity_factor")
"""Options with which token counts are known before the run: a graph of the whole iteration needs one of them."""


def releases_of(trainer: str) -> list[str]:
    return list(dict.fromkeys(recipe.release for recipe in recipes() if recipe.trainer == trainer))


def release_named(trainer: str, release: str) -> str:
    """Return the newest release for ""; raises `ConfigError` for an unknown release or a trainer without any."""
    releases = releases_of(trainer)
    if not release and releases:
        return releases[-1]
    if release not in releases:
        there = f"there are {', '.join(releases)}" if releases else f"no recipes of {trainer} are packaged"
        raise ConfigError(f"unknown release '{release}' of {trainer}: {there}")
    return release


def _recipes_for(trainer: str, release: str, device: str, dtype: str) -> list[Recipe]:
    """A recipe is for a device if its device type is a word of the device's name."""
    words, precision = device.lower().split(), _DTYPES.get(dtype)
    wanted = trainer, release, precision
    return [
        recipe for recipe in recipes()
        if (recipe.trainer, recipe.release, recipe.precision) == wanted and recipe.device in words
    ]  # fmt: skip


def moe_recipes(trainer: str, release: str, device: str, dtype: str) -> list[Recipe]:
    recipes_for = _recipes_for(trainer, release, device, dtype)
    return [recipe for recipe in recipes_for if _is_moe_text_model(recipe.model)]


def recipe_of(
    trainer: str, release: str, device: str, dtype: str, model: str | None, gpus: int | None
) -> Recipe | None:
    """Return the recipe for a model with the nearest number of GPUs, of equally near ones without a variant.

    Variants named dev, of branches in development, come last.
    """
    return min(
        (recipe for recipe in _recipes_for(trainer, release, device, dtype) if recipe.model == model),
        key=lambda recipe: (
            recipe.base.endswith("dev"),
            abs(math.log((gpus or 1) / (recipe.gpus or 1))),
            recipe.base.count("/"),
        ),
        default=None,
    )


@dataclass(frozen=True)
class ReleaseSettings:
    """`origin`: the recipes with these settings; `remark`: a sentence for the first screen.

    Shared settings are those that more than half of the MoE recipes set, each with its most common value. A setting
    that requires other settings is counted only among the recipes with these other settings. A setting is left out
    if its two most common values are equally common. CUDA graphs get the scope that more than half of the recipes
    set, or the modules that more than half capture.
    """

    settings: Mapping[str, Any]
    origin: str
    remark: str


@cache
def release_settings(
    trainer: str, release: str, device: str, dtype: str, model: str | None, gpus: int | None, has_experts: bool
) -> ReleaseSettings | None:
    """Return None without a recipe for the model, and without MoE recipes for the device and number format."""
    from ppsim.trainers.read_recipe import read_recipe  # heavy import

    if recipe := recipe_of(trainer, release, device, dtype, model, gpus):
        options = read_recipe(recipe.name).options
        settings = {name: options[name] for name in SETTINGS if options.get(name) is not None}
        remark = f"recipe {recipe.name} is for this model: use --recipe"
        return ReleaseSettings(settings, f"its recipe {recipe.name}", remark)
    given = [read_recipe(recipe.name).options for recipe in moe_recipes(trainer, release, device, dtype)]
    if not (has_experts and given):
        return None
    differing = [flag_of(name) for name in SETTINGS if len({options.get(name) for options in given}) > 1]
    remark = f"settings of most of its {len(given)} MoE recipes, which differ in {', '.join(differing)}"
    origin = f"more than half of its {len(given)} MoE recipes for this device and dtype"
    shared = {name: value for name in SETTINGS if (value := _shared(name, given)) is not None}
    return ReleaseSettings(shared, origin, remark if differing else "")


@cache
def _is_moe_text_model(model: str) -> bool:
    """Recipes of models with encoders have other settings."""
    if known_name(model) is None:
        return False
    known_model = find_model(model)
    return not known_model.encoders and known_model.has_experts


def _shared(name: str, entries: Sequence[Mapping[str, Any]]) -> Any:
    required = _REQUIRED.get(name, {})
    among = [options for options in entries if all(options.get(word) is not None for word in required)]
    values = Counter(options[name] for options in among if options.get(name) is not None)
    if 2 * values.total() <= len(among):
        return None
    if name == "cuda_graphs":
        return _captured(values)
    (value, count), *others = values.most_common(2)
    return None if others and others[0][1] == count else value


def _captured(scopes: Counter[str]) -> str | None:
    for scope in ("full", "layer", "none"):
        if 2 * scopes[scope] > scopes.total():
            return scope
    modules: Counter[str] = Counter()
    for scope, count in scopes.items():
        if scope not in ("full", "layer", "none"):
            modules.update(dict.fromkeys(scope.split("+"), count))
    return "+".join(module for module, count in modules.items() if 2 * count > scopes.total()) or None


def applicable_settings(
    settings: Mapping[str, Any], options: Mapping[str, Any], *, has_experts: bool = True
) -> dict[str, Any]:
    """Return the settings that go with the options; a given option replaces its setting."""
    kept: dict[str, Any] = {}
    for name in SETTINGS:
        if options.get(name) is None and name in settings:
            there = {**options, **kept, name: settings[name]}
            has_open_sizes = has_experts and not any(_has(there, word, ()) for word in _FIXED_SIZES)
            if has_open_sizes and settings[name] in ("full", "layer"):
                continue  # the host would wait for token counts
            if not _is_refused(name, there):
                kept[name] = settings[name]
    return kept


def _is_refused(name: str, options: Mapping[str, Any]) -> bool:
    cancels, requires = _CANCELLED.get(name, {}), _REQUIRED.get(name, {})
    return (
        any(_has(options, word, values) for word, values in cancels.items())
        or not all(_has(options, word, values) for word, values in requires.items())
        or any(name in rule.options and _may_refuse(rule, options) for rule in RULES)
    )


def _may_refuse(rule: OptionRule, options: Mapping[str, Any]) -> bool:
    """In a search, sizes are lists."""
    return any(isinstance(options.get(word), list) for word in rule.options) or rule.refuses(options)


def _has(options: Mapping[str, Any], word: str, values: tuple[Any, ...]) -> bool:
    given = options.get(word)
    if given is None or not values:
        return given is not None
    is_exact = options.get("cuda_graphs") == "full"  # which captures layers that are recomputed in part
    return given in values if is_exact else is_among(word, given, values)
