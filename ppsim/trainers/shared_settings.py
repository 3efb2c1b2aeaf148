"""Settings of experts and CUDA graphs that the MoE recipes of a release share, for a device and a number format."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.trainers.recipe_table import Recipe, recipes

SETTINGS = (
    "moe_dispatcher", "moe_flex_dispatcher_num_sms", "fused_experts", "moe_expert_rank_capacity_factor",
    "moe_paged_stash", "cuda_graphs",
)  # fmt: skip
"""A setting comes after the ones that it requires."""

_DTYPES = {
    "bfloat16": "bf16", "float8": "fp8", "float8-block": "fp8-block", "mxfp8": "mxfp8", "nvfp4": "nvfp4",
}  # fmt: skip

_CANCELLED: dict[str, dict[str, tuple[str, ...]]] = {
    "cuda_graphs": {"recompute": ("full", "moe"), "offload": ()},
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
    return list(dict.fromkeys(one.release for one in recipes() if one.trainer == trainer))


def release_named(trainer: str, release: str) -> str:
    """Return the newest release for ""; raises `ConfigError` for an unknown release or a trainer without any."""
    known = releases_of(trainer)
    if not release and known:
        return known[-1]
    if release not in known:
        there = f"there are {', '.join(known)}" if known else f"no recipes of {trainer} are packaged"
        raise ConfigError(f"unknown release '{release}' of {trainer}: {there}")
    return release


def moe_recipes(trainer: str, release: str, device: str, dtype: str) -> list[Recipe]:
    """A recipe is for a device if its device type is a word of the device's name."""
    words, precision = device.lower().split(), _DTYPES.get(dtype)
    return [
        one for one in recipes()
        if (one.trainer, one.release, one.precision) == (trainer, release, precision) and one.device in words
        and _is_moe_text_model(one.model)
    ]  # fmt: skip


@cache
def _is_moe_text_model(model: str) -> bool:
    """Recipes of models with encoders have other settings."""
    from ppsim.model.registry import find_model, known_name

    if known_name(model) is None:
        return False
    found = find_model(model)
    return not found.encoders and found.has_experts


@cache
def shared_settings(trainer: str, release: str, device: str, dtype: str) -> Mapping[str, Any]:
    """Return the settings that more than half of the MoE recipes set, each with its most common value.

    A setting that requires other settings is counted only among the recipes with these other settings. A setting is
    left out if its two most common values are equally common. CUDA graphs get the scope that more than half of the
    recipes set, or the modules that more than half capture.
    """
    from ppsim.trainers.read_recipe import read_recipe  # heavy import

    found = [read_recipe(one.name).options for one in moe_recipes(trainer, release, device, dtype)]
    shared = {name: value for name in SETTINGS if (value := _shared(name, found)) is not None}
    return MappingProxyType(shared)


def _shared(name: str, found: Sequence[Mapping[str, Any]]) -> Any:
    required = _REQUIRED.get(name, {})
    among = [one for one in found if all(one.get(word) is not None for word in required)]
    values = Counter(one[name] for one in among if one.get(name) is not None)
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
    return "+".join(one for one, count in modules.items() if 2 * count > scopes.total()) or None


def applicable_settings(shared: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name in SETTINGS:
        if options.get(name) is not None or name not in shared:
            continue
        there = {**options, **kept}
        cancels, requires = _CANCELLED.get(name, {}), _REQUIRED.get(name, {})
        if any(_has(there, word, values) for word, values in cancels.items()):
            continue
        if shared[name] == "full" and not any(_has(there, word, ()) for word in _FIXED_SIZES):
            continue  # the host would wait for token counts
        if all(_has(there, word, values) for word, values in requires.items()):
            kept[name] = shared[name]
    return kept


def _has(options: Mapping[str, Any], word: str, values: tuple[Any, ...]) -> bool:
    given = options.get(word)
    return given is not None and (not values or given in values)
