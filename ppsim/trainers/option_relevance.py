"""Effects of trainers' options by name (data/option_effects.toml), and options that ppsim refuses."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import data_folder, read_toml
from ppsim.base.limits import LONGEST_NAME


@cache
def _names() -> Mapping[str, Any]:
    return read_toml(data_folder("trainers/data") / "option_effects.toml")


def defaults() -> Mapping[str, Any]:
    """Defaults of Megatron-Core, which a printed configuration states too."""
    defaults: Mapping[str, Any] = _names()["defaults"]
    return defaults


@cache
def _pattern(names: str, effect: str = "") -> re.Pattern[str]:
    return re.compile("|".join(_names()[names][effect] if effect else _names()[names]))


def effect_of(name: str) -> str:
    """Return "time", "memory", "time and memory", "unknown", or "" for none.

    >>> effect_of("optimizer_cpu_offload"), effect_of("adam_beta1"), effect_of("encoder_layers_frozen")
    ('time and memory', '', 'unknown')
    """
    if len(name) > LONGEST_NAME:
        return "unknown"
    if name in _names()["no_effect"] or _pattern("other_programs").fullmatch(name):
        return ""
    for effect in _names()["effects"]:
        if _pattern("effects", effect).fullmatch(name):
            return str(effect)
    is_inert = _pattern("usually_no_effect").fullmatch(name) and not _pattern("decisive").search(name)
    return "" if is_inert else "unknown"


_ADAPTER = re.compile(r"(?:^|_)(?:q?lora|dora|peft)(?:_|$)", re.IGNORECASE)
_FROZEN = re.compile(r"(?:^|_)(?:un)?(?:freez\w*|frozen)(?:_|$)", re.IGNORECASE)
_OTHERS = re.compile(r"(?:.*_)?(?:q|k|v|kv|o|qk|qkv)_lora(?:_.*)?|dino_.*", re.IGNORECASE)
"""Names that look like adapters or frozen weights, but are not: low-rank projections of latent attention, and
`dino_freeze_last_layer`, which is in Megatron-LM's logs by default.
"""

_SECTIONS_OF_WEIGHTS = ("model", "config", "modules", "overrides", "train", "training", "trainer", "MODEL_ARGS")
"""Sections with adapters or frozen weights. Elsewhere, the word has another meaning: `optimizer.params.freeze_step`
of 1-bit Adam, or the contents of a table.
"""

_SWITCH = re.compile(r"(?:(?:use_|enable_)?(?:lora|peft)_?)?(?:enabled?|scheme|type|method|rank|r|dim|_target_)?")
"""Switches of adapters: if one is off, the other options of the adapter have no effect."""

_OFF = ("", "none", "null", "false", "no", "off", "0", "full", "[]")


def require_full_training(options: Mapping[str, Any], source: str) -> None:
    """Raise `ConfigError` for adapters (LoRA) or frozen weights, at the top or in a section for weights.

    >>> require_full_training({"q_lora_rank": 1536, "peft": {"peft_scheme": None, "lora_tuning": {"dim": 32}}}, "F")
    >>> try:
    ...     require_full_training({"overrides": {"lora": {"enabled": True, "dim": 32}}}, "F")
    ... except ConfigError as error:
    ...     print(error)
    F: overrides.lora.enabled true trains only some of the weights, which is not read here: remove it, and give \
--lora RANK or --freeze MODULES
    """
    adapters: dict[str, list[tuple[str, Any]]] = {}
    for path, value in config_values(options):
        parts = path.split(".")
        first = _place(parts, _ADAPTER)
        if _place(parts, _FROZEN) is not None and _is_on(value):
            raise _partial(source, path, value)
        if first is not None:
            adapters.setdefault(".".join(parts[:first]), []).append((path, value))
        elif parts[-1] == "converters" and "lora" in str(value).lower():  # TorchTitan
            raise _partial(source, path, value)
    for adapter in adapters.values():
        switches = [one for one in adapter if _SWITCH.fullmatch(one[0].rpartition(".")[2])]
        on = [one for one in (*switches, *adapter) if _is_on(one[1])]
        if on and all(_is_on(value) for _, value in switches):
            raise _partial(source, *on[0])


_SIZE = re.compile(
    r"(?:.*_)?(?:tp|pp|cp|ep|dp|sp)(?:_size|_degree)?|.*parallel(?:_\w+)?_(?:size|degree)|autotp_size"
)


def require_no_sizes(unread: Mapping[str, Any], source: str) -> None:
    """Raise `ConfigError` for a parallel size above 1 among options that are not read."""
    for path, size in config_values(unread):
        is_size = isinstance(size, int) and not isinstance(size, bool) and size > 1
        if is_size and _SIZE.fullmatch(path.rpartition(".")[2]):
            raise ConfigError(
                f"{source}: {path} {size} is a parallel size that is not read here: remove it, and give --tp, "
                "--pp, --cp or --ep"
            )


def _place(parts: Sequence[str], pattern: re.Pattern[str]) -> int | None:
    """Return the index of the first part that matches, or None if its section is not one for weights."""
    positions = (at for at, part in enumerate(parts) if pattern.search(part) and not _OTHERS.fullmatch(part))
    first = next(positions, None)
    return None if first and parts[0] not in _SECTIONS_OF_WEIGHTS else first


def config_values(options: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value that is not a section, with its path through the sections.

    >>> list(config_values({"zero": {"stage": 1}, "steps": 2}))
    [('zero.stage', 1), ('steps', 2)]
    """
    for name, value in options.items():
        path = above + str(name).lstrip("-").replace("-", "_")
        if isinstance(value, dict):
            yield from config_values(value, f"{path}.")
        else:
            yield path, value


def _is_on(value: Any) -> bool:
    return value.strip().lower() not in _OFF if isinstance(value, str) else bool(value)


def _partial(source: str, path: str, value: Any) -> ConfigError:
    shown = str(value).lower() if isinstance(value, bool) else value
    return ConfigError(
        f"{source}: {path} {shown} trains only some of the weights, which is not read here: remove it, and give "
        "--lora RANK or --freeze MODULES"
    )
