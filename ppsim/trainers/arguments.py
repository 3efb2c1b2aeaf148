"""Megatron-LM's arguments by their names in `args`, whatever text held them, and which of them were read."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.limits import LARGEST, count_from
from ppsim.trainers.option_relevance import matters_for, require_full_training
from ppsim.trainers.run_config import Ignored

_RENAMED = {
    "disable_bias_linear": ("add_bias_linear", False),
    "recompute_activations": ("recompute_granularity", "selective"),
    "no_rope_fusion": ("apply_rope_fusion", False),
    "no_overlap_p2p_communication": ("overlap_p2p_comm", False),
    "no_position_embedding": ("add_position_embedding", False),
    "use_rotary_position_embeddings": ("position_embedding_type", "rope"),
    "use_flash_attn": ("attention_backend", "flash"),
}
"""Flags whose name in `args` is another, with the value that they set (megatron/training/arguments.py)."""

_SPELLED = {
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
    "num_moe_experts": "num_experts",
    "gated_linear_unit": "swiglu",
}
"""Other spellings of names in `args`, with a value each."""


def normalised(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by the names that Megatron-LM's `args` has for them; a flag without a value is True."""
    found: dict[str, Any] = {}
    for option, value in given.items():
        name = option.lstrip("-").replace("-", "_")
        value = _plain(value)
        if name in _RENAMED and value is not False:
            name, value = _RENAMED[name]
        elif name == "share_embeddings_and_output_weights":
            name, value = "untie_embeddings_and_output_weights", not value
        elif name.startswith("no_") and value is True:
            name, value = name[3:], False
        found[_SPELLED.get(name, name)] = value
    return found


def _plain(value: Any) -> Any:
    """A value as Python's own: numbers and words of a command line, a log or YAML."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, str):
        return value
    text = value.strip()
    words = {"true": True, "false": False, "none": None, "null": None, "": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if -LARGEST < number < LARGEST else text
    return text


_UNCHANGED = ("default", "none", "no_shard", "Adam", "AdamW", "adam", "adamw")
"""Values that leave a step as it is, whatever the option."""


class Arguments:
    """Arguments of a run, which remember those that were read.

    `source` is put in front of what is wrong. `asked` are those that the user wrote, where the file has defaults
    too; a file that has them all, and doesn't say which those are, `is_complete`.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        source: str,
        asked: Iterable[str] | None = None,
        *,
        is_complete: bool = False,
    ) -> None:
        require_full_training(values, source)
        self._values, self.source, self._is_complete = values, source, is_complete
        self._asked = set(values if asked is None else asked)
        self._read: dict[str, str] = {}
        self.assumed: list[str] = []

    def get(self, name: str, default: Any = None, *, word: str = "model") -> Any:
        """The value of an argument, or the default where it is not there or None; `word` is what it is read for."""
        self._read[name] = word
        value = self._values.get(name)
        return default if value is None else value

    def flag(self, name: str, *, default: bool = False, word: str = "model") -> bool:
        """Whether a flag is set."""
        value = self.get(name, default, word=word)
        if isinstance(value, str) and value.startswith("$"):  # a flag, and a variable with further options
            return True
        if not isinstance(value, bool | int):
            raise ConfigError(f"{self.source}: {name} must be true or false: got {value!r}")
        return bool(value)

    def count(self, name: str, default: int | None = None, *, word: str = "model", least: int = 1) -> int | None:
        """A whole number of `least` or more, or the default."""
        value = self.get(name, default, word=word)
        if value is None:
            return None
        if isinstance(value, str) and "$" in value:
            raise ConfigError(f"{self.source}: {name} is {value}, which the file does not set")
        return count_from(value, f"{self.source}: {name}", least=least)

    def part(self, name: str, default: float, *, word: str) -> float:
        """A number from 0 to 1, or the default."""
        value = self.get(name, default, word=word)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ConfigError(f"{self.source}: {name} must be a number from 0 to 1: got {value!r}")
        return float(value)

    def number(self, name: str, default: int, *, least: int = 1) -> int:
        """A whole number of `least` or more, the default where none is there."""
        value = self.count(name, least=least)
        return default if value is None else value

    def need(self, name: str, *others: str) -> int:
        """A whole number of 1 or more under any of these names; raises `ConfigError` where none is there."""
        for known in (name, *others):
            value = self.count(known)
            if value is not None:
                return value
        raise ConfigError(f"{self.source}: {name} is missing")

    def has(self, name: str) -> bool:
        """Whether an argument is there and neither false nor 0; it counts as read only if so."""
        return bool(self._values.get(name)) and bool(self.get(name))

    def asks(self, name: str) -> bool:
        """Whether the user wrote an argument, and not false; a file that has all of them does not say."""
        return not self._is_complete and name in self._asked and bool(self._values.get(name))

    @property
    def ignored_that_matter(self) -> tuple[Ignored, ...]:
        """What was not read and is known to matter."""
        return tuple(ignored for ignored in self.ignored if ignored.matters != "unknown")

    @property
    def understood(self) -> tuple[tuple[str, str], ...]:
        """What the user wrote and was read, with the word it went to."""
        return tuple((name, word) for name, word in self.read if name in self._asked)

    @property
    def read(self) -> tuple[tuple[str, str], ...]:
        """What was read and is there, the file's defaults too."""
        return tuple((name, word) for name, word in self._read.items() if self._values.get(name) is not None)

    @property
    def unread(self) -> list[tuple[str, Any]]:
        """What the user wrote, is not off, and was not read."""
        return [
            (name, value)
            for name, value in self._values.items()
            if name in self._asked and name not in self._read and value and value not in _UNCHANGED
        ]

    @property
    def ignored(self) -> tuple[Ignored, ...]:
        """What the user wrote and was not read, but for what changes nothing and what is off."""
        found = [Ignored(name, value, matters) for name, value in self.unread if (matters := matters_for(name))]
        return tuple(one for one in found if one.matters != "unknown" or not self._is_complete)
