"""LoRA adapters in the configurations of Megatron-Bridge and NeMo AutoModel (`peft`), and of Primus (`lora`)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.model.fine_tuning import DEFAULT_MODULES, lora_of
from ppsim.trainers.run_config import IgnoredOption, RunConfig

_DEFAULTS = {
    "a2a_experimental": False,
    "normalize_moe_lora": False,
    "share_expert_adapters": True,
    "experts_shared_outer_loras": False,
    "sequence_parallel_input_regather": False,
    "exclude_modules": None,
    "dropout": 0.0,
}
"""Fields of Megatron-Bridge's `LoRA` that change time or memory and are not read, with their defaults."""


def without_adapters(content: Mapping[str, Any], source: str) -> tuple[dict[str, Any], RunConfig | None]:
    """Split off the section of LoRA adapters: return the rest, and the contents of the section or None.

    Other adapters (DoRA, one for each of queries, keys and values) stay in the rest.
    """
    for *above, name in _places(content):
        section = _at(content, (*above, name))
        if isinstance(section, Mapping) and _is_lora(section):
            return _without(content, (*above, name)), _read(section, ".".join((*above, name)), source)
    return dict(content), None


def with_adapters(config: RunConfig, found: RunConfig | None) -> RunConfig:
    if found is None:
        return config
    return replace(
        config,
        options={**config.options, **found.options},
        read_options=(*config.read_options, *found.read_options),
        ignored=(*config.ignored, *found.ignored),
    )


def _places(content: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    yield from (("peft",), ("config", "peft"))
    if "extends" in content:
        yield ("lora",)
    if isinstance(modules := content.get("modules"), Mapping):
        yield from (("modules", str(module), "overrides", "lora") for module in modules)


def _at(content: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        content = content.get(name) if isinstance(content, Mapping) else None
    return content


def _without(content: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    first, *others = path
    below = {first: _without(content[first], tuple(others))} if others else {}
    return {name: value for name, value in content.items() if name != first} | below


def _kind(section: Mapping[str, Any]) -> str:
    return str(section.get("type") or section.get("_target_") or "LoRA").rpartition(".")[2].lower()


def _is_lora(section: Mapping[str, Any]) -> bool:
    kind = _kind(section)
    rank = section.get("dim", section.get("rank", _USUAL_RANK.get(kind)))
    is_rank = isinstance(rank, int) and not isinstance(rank, bool) and rank > 0
    return kind in ("lora", *_USUAL_RANK) and section.get("enabled") in (None, True) and is_rank


_USUAL_RANK = {"peftconfig": 8}
"""NeMo AutoModel's class of LoRA (components/_peft/lora.py), with its rank by default."""
_ALL_LINEAR = (None, "*_proj", ["*_proj"], "*", ["*"])


def _read(section: Mapping[str, Any], path: str, source: str) -> RunConfig:
    modules = section.get("target_modules")
    if modules in _ALL_LINEAR:
        modules = list(DEFAULT_MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, str) for module in modules):
        raise ConfigError(f"{source}: {path}.target_modules must be a list of modules: got {modules!r}")
    name = "rank" if "rank" in section else "dim"
    try:
        lora = lora_of(f"{section.get(name, _USUAL_RANK.get(_kind(section)))}:{'+'.join(modules)}")
    except ConfigError as error:
        fix = f"remove {path}, and give --lora RANK:MODULES"
        raise ConfigError(f"{source}: {path}.target_modules: {error}; {fix}") from None
    return RunConfig(
        "",
        source,
        {"lora": lora},
        None,
        "",
        tuple((f"{path}.{one}", "lora") for one in (name, "target_modules") if one in section),
        tuple(
            IgnoredOption(f"{path}.{one}", value, "time and memory")
            for one, usual in _DEFAULTS.items()
            if (value := section.get(one, usual)) != usual and value is not None and value != []
        ),
    )
