"""Reader of recipes, with the code that reads the trainer's files."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import flag_of
from ppsim.catalog.build import CATALOG
from ppsim.model.attention_and_mlp import MixtureOfExperts
from ppsim.model.registry import find_model, known_name
from ppsim.trainers.bridge.read_config import from_sections
from ppsim.trainers.bridge.rules import RULES
from ppsim.trainers.option_relevance import effect_of
from ppsim.trainers.primus.read_config import from_arguments
from ppsim.trainers.recipe_table import TITLES, Recipe, find_recipe
from ppsim.trainers.run_config import IgnoredOption, RunConfig
from ppsim.trainers.torchtitan.read_config import from_torchtitan
from ppsim.trainers.write_schedule import is_run_by

CLUSTERS = {
    "h100": "dgx-h100", "b200": "dgx-b200", "b300": "dgx-b300", "gb200": "gb200-nvl72", "gb300": "gb300-nvl72",
    "vr200": "vr200-nvl144", "r100": "r100-nvl8",
    "mi300x": "mi300x-8", "mi325x": "mi325x-8", "mi355x": "mi355x-8",
}  # fmt: skip

_SCALED_BY_BLOCK = ("mxfp8", "mxfp4", "nvfp4")
"""TorchTitan requires compute capability 10.0 for them (torchtitan/components/quantization/mx.py)."""


def read_recipe(name: str) -> RunConfig:
    """Raises `ConfigError` as `find_recipe` does.

    >>> found = read_recipe("deepseek-v3/gb200/mxfp8@26.08")
    >>> found.options["gpus"], found.options["pp"], found.options["dtype"], found.options["cluster"]
    (256, 4, 'mxfp8', 'gb200-nvl72')
    """
    recipe = find_recipe(name)
    config = {"megatron-bridge": _of_bridge, "primus": _of_primus, "torchtitan": _of_torchtitan}[recipe.trainer](
        recipe
    )
    options = {"cluster": CLUSTERS[recipe.device]} if recipe.device in CLUSTERS else {}
    if recipe.device == "any" and (dtype := config.options["dtype"]) in _SCALED_BY_BLOCK:
        options = {"cluster": "dgx-b200"}
        config = replace(
            config, notes=(*config.notes, f"{options['cluster']}: {dtype} needs a GPU from Blackwell on")
        )
    trainer = f"{TITLES[recipe.trainer]} {recipe.release}, {recipe.source}"
    config = replace(config, trainer=trainer, options={**options, **config.options}, recipe=recipe)
    if config.model is None:
        return replace(config, why_no_model=f"recipe {recipe.name}: {config.why_no_model}")
    return config


def _of_torchtitan(recipe: Recipe) -> RunConfig:
    return from_torchtitan(recipe.settings, recipe.name)


def _of_primus(recipe: Recipe) -> RunConfig:
    settings = recipe.settings
    if any(name.startswith("training.") for name in settings):
        return from_torchtitan(settings, recipe.name, "Primus, TorchTitan", settings)
    config, model = from_arguments(settings, recipe.name), known_name(recipe.model)
    if config.model is not None or model is None:
        return config
    said = f"sizes of {model}, the recipe's model: Primus builds it with code of its own"
    options = {"model": model, **config.options}
    return replace(config, model=find_model(model), options=options, notes=(*config.notes, said), why_no_model="")


_FROZEN = {
    "freeze_language_model": "embedding+layers+norms+head",
    "freeze_vision_model": "encoder",
    "freeze_vision_projection": "projector",
}
"""Settings of Megatron-Bridge (modelling_qwen3_vl/model.py: `freeze`), each with its value of --freeze."""

_READ_HERE = ("mtp_num_layers", "mtp_use_repeated_layer", *_FROZEN)

_TOKENS_OF_MOCK_IMAGE = 64
"""Recipes with images train on synthetic data with one image of 256 × 256 pixels per sequence (Megatron-Bridge
at 067f987d, data/builders/mock_vlm_sft.py): 16 × 16 patches of Qwen3-VL and Qwen3.5, merged 2 × 2.
"""


def _of_bridge(recipe: Recipe) -> RunConfig:
    """Options that the recipe does not set get Megatron-Bridge's defaults (models/*_provider.py)."""
    settings, ignored = recipe.settings, []
    known = known_name(recipe.model)
    model = find_model(known) if known else None
    options: dict[str, Any] = {"cuda_graphs": "none"}
    further, repeats = (settings.pop(name, None) for name in ("mtp_num_layers", "mtp_use_repeated_layer"))
    if further is not None:
        options |= {"mtp_num_layers": further} if further else {"mtp": False}
    if repeats:
        options["mtp_use_repeated_layer"] = True
    frozen = [word for name, word in _FROZEN.items() if settings.pop(name, None)]
    if model is not None:
        if model.encoders:
            options |= {"image_tokens": _TOKENS_OF_MOCK_IMAGE} | ({"freeze": "+".join(frozen)} if frozen else {})
        experts = [kind.ffn.num_experts for kind in model.kinds if isinstance(kind.ffn, MixtureOfExperts)]
        settings |= {"num_layers": len(model.layers), "num_experts": max(experts, default=None)}
    if settings.get("expert_model_parallel_size"):
        settings.setdefault("moe_token_dispatcher_type", "alltoall")
    if settings.get("tensor_model_parallel_size"):
        settings.setdefault("tp_comm_overlap", False)
    settings.setdefault("cross_entropy_loss_fusion", True)
    config = from_sections({"model": settings | {"world_size": recipe.gpus}}, recipe.name)
    read = {*dict(config.read_options), *(option.name for option in config.ignored), *_READ_HERE}
    ignored += [
        IgnoredOption(name, value, "unknown")
        for name, value in recipe.settings.items()
        if value and name not in read and effect_of(name) == "unknown"
    ]
    options |= config.options
    ignored = [*config.ignored, *ignored]
    if model is None:
        why = f"{recipe.model} is not among `ppsim models`"
        return replace(config, options=options, ignored=tuple(ignored), why_no_model=why)
    options = {"model": known, **options}
    said = ("one image of 256 × 256 pixels per sequence, as in the trainer's synthetic data",) * bool(
        model.encoders
    )
    return replace(
        config, options=options, ignored=tuple(ignored), notes=(*config.notes, *said), model=model, why_no_model=""
    )


def require_accepted(recipe: Recipe, options: Mapping[str, Any], typed: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the trainer refuses an option in `typed` (given by the user) next to all `options`."""
    if recipe.device not in (*CLUSTERS, "any") and options.get("cluster") is None:
        raise ConfigError(
            f"recipe {recipe.name} is for {recipe.device.upper()}, which no cluster has: give --cluster"
        )
    for rule in RULES if recipe.trainer == "megatron-bridge" else ():
        given = [word for word in rule.options if typed.get(word) is not None]
        if given and rule.refuses(options):
            option = f"{flag_of(given[0])} {typed[given[0]]}"
            why = rule.sentence.format(schedules=", ".join(name for name in CATALOG if is_run_by("megatron", name)))
            raise ConfigError(f"{TITLES[recipe.trainer]} refuses {option}: {why} ({rule.source})")
