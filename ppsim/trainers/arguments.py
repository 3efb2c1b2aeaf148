"""Megatron-LM's arguments by their names in `args`, with a record of the ones that were read."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import data_folder, read_toml
from ppsim.base.limits import LARGEST, count_from
from ppsim.base.option_declarations import flag_of, given_options
from ppsim.model.architecture import Model
from ppsim.trainers.option_relevance import defaults, effect_of, require_full_training
from ppsim.trainers.run_config import IgnoredOption, RunConfig


@cache
def megatron_names_of(group: str) -> dict[str, Any]:
    """Return a group of names in data/megatron_names.toml."""
    names: dict[str, Any] = read_toml(data_folder("trainers/data") / "megatron_names.toml")[group]
    return names


_NONE_IS_A_VALUE = ("position_embedding_type", "activation_checkpoint.mode")
"""Options for which "none" is a value of its own, not the default."""


def megatron_names(given: Mapping[str, Any]) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    flags, spelled = megatron_names_of("flags"), megatron_names_of("spelled")
    for option, value in given.items():
        name = option.lstrip("-").replace("-", "_")
        value = _plain(value)
        if name in flags and value is not False:
            name, value = flags[name]
        elif name == "share_embeddings_and_output_weights":
            name, value = "untie_embeddings_and_output_weights", not value
        elif name.startswith("no_") and value is True:
            name, value = name[3:], False
        arguments[spelled.get(name, name)] = "none" if value is None and name in _NONE_IS_A_VALUE else value
    return arguments


def _plain(value: Any) -> Any:
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
"""Values that change nothing about a step, for every option."""


class Arguments:
    """Arguments of a run.

    `asked` are the arguments that the user wrote, if the file also contains defaults. `is_complete` marks a file
    that contains all arguments, and `is_partial` one without Megatron-LM's defaults (Megatron-Bridge, NeMo). The
    parameter `word` of a method is the option of ppsim for which an argument is read.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        source: str,
        asked: Iterable[str] | None = None,
        *,
        is_complete: bool = False,
        is_partial: bool = False,
    ) -> None:
        require_full_training(values, source)
        self._values, self.source, self._is_complete, self.is_partial = values, source, is_complete, is_partial
        self._asked = set(values if asked is None else asked)
        self._read: dict[str, str] = {}
        self.assumed: list[str] = []
        self.needed: dict[str, tuple[str, str]] = {}

    def config(
        self, trainer: str, options: Mapping[str, Any], model: Model | None, why_no_model: str, **further: Any
    ) -> RunConfig:
        """Return the configuration of a run with options that were read from the arguments."""
        of_arguments: dict[str, Any] = {
            "read_options": self.read_options, "ignored": self.ignored, "needed": self.needed,
            "notes": tuple(dict.fromkeys(self.assumed)),
        }  # fmt: skip
        return RunConfig(
            trainer, self.source, given_options(options), model, why_no_model, **of_arguments | further
        )

    def get(self, name: str, default: Any = None, *, word: str = "model") -> Any:
        self._read[name] = word
        value = self._values.get(name)
        return default if value is None else value

    def flag(self, name: str, *, default: bool = False, word: str = "model") -> bool:
        value = self.get(name, default, word=word)
        if isinstance(value, str) and value.startswith("$"):  # a flag, followed by a variable with further options
            return True
        if not isinstance(value, bool | int):
            raise ConfigError(f"{self.source}: {name} must be true or false: got {value!r}")
        return bool(value)

    def count(self, name: str, default: int | None = None, *, word: str = "model", least: int = 1) -> int | None:
        value = self.get(name, default, word=word)
        if value is None:
            return None
        if value is True:
            raise ConfigError(f"{self.source}: {name} has no value: give a whole number of {least} or more")
        if isinstance(value, str) and "$" in value:
            self._open(name, value, word)
            return None
        return count_from(value, f"{self.source}: {name}", least=least)

    def _open(self, name: str, value: str, word: str) -> None:
        """Note an argument that the launch sets. Raises `ConfigError` if no option of ppsim sets it instead."""
        reason = f"{name} is {value}, which the file does not set"
        variable = re.search(r"\$(\w+)", value)
        sets = f"--set {variable[1]}=VALUE" if variable else ""
        if word == "model" or "${" in value:
            raise ConfigError(f"{self.source}: {reason}{sets and f': give {sets}'}")
        self.needed[word] = (reason, " or ".join(filter(None, (sets, flag_of(word)))))

    def launched_gpus(self) -> int | None:
        """Return the ranks that torchrun starts, by default on one node.

        None if the file leaves them to the machine: `auto`, `gpu`, an elastic 2:4, a variable that it does not set.
        """
        product = 1
        for name, default in (("nproc_per_node", None), ("nnodes", 1)):
            value = self.get(name, default, word="gpus")
            if isinstance(value, str) or value is True:
                given = "without a value" if value is True else value
                self.assumed.append(f"{name} {given} is no number: the file leaves the number of GPUs open")
                return None
            if value is None:
                return None
            product *= count_from(value, f"{self.source}: {name}", least=1)
        return product

    def choice(self, name: str, known: Sequence[str], default: str | None = None, *, word: str) -> str | None:
        value = self.get(name, default, word=word)
        if value is not None and str(value) not in known:
            *others, last = known
            raise ConfigError(f"{self.source}: {name} must be {', '.join(others)} or {last}: got {value!r}")
        return None if value is None else str(value)

    def part(self, name: str, default: float, *, word: str) -> float:
        value = self.get(name, default, word=word)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ConfigError(f"{self.source}: {name} must be a number from 0 to 1: got {value!r}")
        return float(value)

    def number(self, name: str, default: int, *, least: int = 1) -> int:
        value = self.count(name, least=least)
        return default if value is None else value

    def need(self, name: str, *others: str) -> int:
        for spelling in (name, *others):
            value = self.count(spelling)
            if value is not None:
                return value
        raise ConfigError(f"{self.source}: {name} is missing")

    def has(self, name: str) -> bool:
        """An argument counts as read only if it is set and neither false nor 0."""
        return bool(self._values.get(name)) and bool(self.get(name))

    def asks(self, name: str) -> bool:
        """Return whether the user set an argument; False for a complete file, in which this is unknown."""
        return not self._is_complete and name in self._asked and bool(self._values.get(name))

    @property
    def ignored_that_matter(self) -> tuple[IgnoredOption, ...]:
        return tuple(ignored for ignored in self.ignored if ignored.effect != "unknown")

    @property
    def read_options(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, word) for name, word in self.read if name in self._asked)

    @property
    def read(self) -> tuple[tuple[str, str], ...]:
        """Arguments that were read, each with the option of ppsim; includes defaults of the file."""
        return tuple((name, word) for name, word in self._read.items() if self._values.get(name) is not None)

    @property
    def unread(self) -> list[tuple[str, Any]]:
        return [
            (name, value)
            for name, value in self._values.items()
            if name in self._asked
            and name not in self._read
            and value
            and value not in (*_UNCHANGED, defaults().get(name))
        ]

    @property
    def ignored(self) -> tuple[IgnoredOption, ...]:
        """Unread arguments of the user that may change time or memory."""
        options = [
            IgnoredOption(name, value, matters) for name, value in self.unread if (matters := effect_of(name))
        ]
        return tuple(one for one in options if one.effect != "unknown" or not self._is_complete)


@cache
def _releases() -> dict[str, tuple[int, int]]:
    """First and last minor release of each argument of Megatron-LM since 0.8; its main branch is the last."""
    text = (data_folder("trainers/data") / "megatron_arguments.txt").read_text(encoding="utf-8")
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {name: (_minor(first), _minor(last)) for name, first, last in rows}


def _minor(release: str) -> int:
    return int(release.partition(".")[2] or LARGEST)


@cache
def names_of_megatron() -> frozenset[str]:
    return frozenset(_releases()) | {name.removeprefix("no_") for name in _releases()}


def command_name(name: str) -> str:
    """Return the name on the command line of an argument's name in `args`.

    >>> command_name("fp8"), command_name("num_experts")
    ('fp8_format', 'num_experts')
    """
    spelled = megatron_names_of("spelled").items()
    return next((long for long, short in spelled if short == name and long in _releases()), name)


def is_argument(name: str, release: str = "") -> bool:
    """Return whether a release of Megatron-LM, by default the newest, has an argument.

    >>> is_argument("moe_paged_stash"), is_argument("moe_paged_stash", "0.16")
    (True, False)
    """
    first, last = _releases().get(command_name(name), (1, 0))
    return first <= _minor(release) <= last


NOT_OF_MEGATRON = "unknown, not Megatron-LM's"
_DECIDES = re.compile(
    r"layer|expert|moe|dense|size|parallel|schedul|recomput|checkpoint_activ|precision|fp8|fp4|bf16|fp16|dtype|(^|_)spec$"
)


def judged(ignored: Iterable[IgnoredOption], source: str, lifted: Collection[str]) -> tuple[IgnoredOption, ...]:
    """Mark options that no release of Megatron-LM has: a fork's, whose effect is unknown.

    Raises `ConfigError` for one that speaks of layers, sizes, schedule or precision, unless it is in `lifted`.
    """
    options = []
    for option in ignored:
        name = option.name
        is_own = name in names_of_megatron() or name in lifted
        if not is_own and _DECIDES.search(name):
            raise ConfigError(
                f"{source}: {option.in_words} is no argument of Megatron-LM, and may change layers or schedule: "
                f"give the settings as options, or --ignore {name} to read the file without it"
            )
        options.append(option if is_own else replace(option, effect=NOT_OF_MEGATRON))
    return tuple(options)
