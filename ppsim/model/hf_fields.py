"""The fields of a Hugging Face config.json, each read, known to be harmless, or refused."""

import difflib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, TypeVar

from ppsim.base.errors import ConfigError
from ppsim.base.files import data_folder, read_toml
from ppsim.parallel.layer_partition import require_layers

_LARGEST = 10**9
T = TypeVar("T")


class UnknownModelType(ConfigError):
    """A config.json that ppsim does not read by name, but that transformers may build."""


@cache
def _tables() -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = read_toml(data_folder("model/data") / "config_fields.toml")["fields"]
    return tables


class ConfigFields:
    """Typed access to the fields of a config.json; `seen` has the names of the fields that were read.

    `kinds` are the kinds of file in data/config_fields.toml that give defaults, and fields that are not read.

    The first of several names that has a value is read. Methods raise `ConfigError` for a missing field without
    default, or a value of the wrong type.
    """

    def __init__(self, data: dict[str, Any], where: str, *kinds: str) -> None:
        self._data, self._where = data, where
        self.seen, self.kinds = {"model_type"}, {"any", *kinds}

    def count(self, name: str, *others: str, default: int | None = None) -> int:
        """Return a whole number of 1 or more."""
        return self._whole(1, name, *others, default=default)

    def num_layers(self, name: str = "num_hidden_layers", *others: str, default: int | None = None) -> int:
        value = self.count(name, *others, default=default)
        require_layers(value, name)
        return value

    def has_any(self, *names: str) -> bool:
        return any(self._data.get(name) is not None for name in names)

    def is_word(self, name: str, word: object) -> bool:
        """Return whether the field is `word`; with None, whether it is missing or null."""
        self.seen.add(name)
        return bool(self._data.get(name) == word)

    def is_list(self, name: str) -> bool:
        self.seen.add(name)
        return isinstance(self._data.get(name), list)

    def length(self, name: str) -> int:
        self.seen.add(name)
        value = self._data.get(name)
        return len(value) if isinstance(value, list) else 0

    def optional(self, name: str) -> int | None:
        """Return a whole number of 1 or more, or None if the field is missing or null."""
        self.seen.add(name)
        return None if self._data.get(name) is None else self.count(name)

    def number(self, name: str, *others: str, default: int) -> int:
        """Return a whole number of 0 or more."""
        return self._whole(0, name, *others, default=default)

    def _whole(self, least: int, name: str, *others: str, default: int | None) -> int:
        value = self._get(name, *others, default=default)
        name = next((spelling for spelling in (name, *others) if self._data.get(spelling) is not None), name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{self._where}: {name} must be a whole number of {least} or more: got {value!r}")
        if value > _LARGEST:
            raise ConfigError(
                f"{self._where}: {name} must be at most {_LARGEST:,}: got a number of {len(str(value))} digits"
            )
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._get(name, default=default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self._where}: {name} must be true or false: got {value!r}")
        return value

    def factor(self, name: str) -> float:
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1000:
            raise ConfigError(f"{self._where}: {name} must be a number above 0, at most 1000: got {value!r}")
        return float(value)

    def layers(self, name: str) -> set[int]:
        """Layer numbers in a list, or in a text with commas; empty if the field is missing."""
        value = self._get(name, default=())
        if isinstance(value, str) and all(one.strip().isdigit() for one in value.split(",")):
            value = [int(one) for one in value.split(",")]
        if not isinstance(value, list | tuple) or not all(isinstance(layer, int) for layer in value):
            raise ConfigError(f"{self._where}: {name} must be a list of layers: got {value!r}")
        return set(value)

    def counts(self, name: str, least: int) -> list[int] | None:
        """At least `least` whole numbers of 0 or more; None if the field is missing."""
        self.seen.add(name)
        value = self._data.get(name)
        if value is None:
            return None
        are_counts = isinstance(value, list) and all(
            isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value
        )
        if not are_counts or len(value) < least:
            raise ConfigError(
                f"{self._where}: {name} must be a list of {least} whole numbers or more: got {value!r}"
            )
        return list(value)

    def objects(self, name: str) -> list[dict[str, Any]]:
        value = self._get(name)
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise ConfigError(f"{self._where}: {name} must be a list of objects")
        return value

    def sentences(self, name: str) -> list[str]:
        value = self._get(name, default=[])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ConfigError(f"{self._where}: {name} must be a list of strings")
        return value

    def nested(self, name: str) -> "ConfigFields":
        value = self._get(name, default={})
        if not isinstance(value, dict):
            raise ConfigError(f"{self._where}: {name} must be an object: got {value!r}")
        return ConfigFields(value, f"{self._where}, {name}", name)

    def words(self, name: str, allowed: Mapping[str, T], length: int) -> list[T] | None:
        """`known[word]` for each layer's word in a list; None if the list is missing or null."""
        self.seen.add(name)
        value = self._data.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length:
            raise ConfigError(
                f"{self._where}: {name} must be a list of {length} words, one per layer: got {value!r}"
            )
        for word in value:
            if word not in allowed:
                raise ConfigError(f"{self._where}: {name} must be of {', '.join(allowed)}: got {word!r}")
        return [allowed[word] for word in value]

    def text(self, *names: str) -> str | None:
        """A layer pattern; a list of layer types becomes one letter per layer."""
        self.seen.update(names)
        for name in names:
            value = self._data.get(name)
            if isinstance(value, str):
                return value
            if isinstance(value, list) and all(isinstance(word, str) for word in value):
                return "".join(self._letter(word, name) for word in value)
            if value is not None:
                raise ConfigError(f"{self._where}: {name} must be a string or a list of words: got {value!r}")
        return None

    def _letter(self, word: str, name: str) -> str:
        letters = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*"}
        letters |= {"mlp": "-", "moe": "E"}
        if word not in letters:
            raise ConfigError(f"{self._where}: {name} must be of {', '.join(letters)}: got '{word}'")
        return letters[word]

    def require_trace(self, what: str) -> None:
        """Raise `UnknownModelType`, after which the caller traces the model."""
        raise UnknownModelType(f"{self._where}: {what} is not read by name: the model must be traced")

    def refuse(self, name: str, sentence: str) -> None:
        raise ConfigError(f"{self._where}: {name} {sentence}")

    def _get(self, name: str, *others: str, default: Any = None) -> Any:
        self.seen.update((name, *others))
        for spelling in (name, *others):
            if self._data.get(spelling) is not None:
                return self._data[spelling]
        if default is None:
            default = self._usual("defaults").get(name)
        if default is None:
            near = difflib.get_close_matches(name, [key for key in self._data if key not in self.seen], n=1)
            hint = f" (is '{near[0]}' meant?)" if near else ""
            raise ConfigError(f"{self._where}: {name} is missing{hint}")
        return default

    def require_all_known(self) -> None:
        """Raise `ConfigError` for the first field that was not read, unless it has no effect on costs or memory."""
        for name in self._data:
            if name not in self.seen and not self._is_ignored(name):
                near = difflib.get_close_matches(name, sorted(self.seen), n=1)
                hint = f"is '{near[0]}' meant?" if near else "remove it if it changes no weights"
                raise ConfigError(f"{self._where}: unknown field '{name}' ({hint})")

    @property
    def _tables(self) -> list[dict[str, Any]]:
        return [table for table in _tables() if not self.kinds.isdisjoint(table["of"])]

    def _usual(self, group: str) -> dict[str, Any]:
        return {name: usual for table in self._tables for name, usual in table.get(group, {}).items()}

    def _is_ignored(self, name: str) -> bool:
        if name not in (fixed := self._usual("fixed")):
            return any(fnmatchcase(name, pattern) for table in self._tables for pattern in table.get("ignored", ()))
        usual = fixed[name]
        given = self.flag(name, default=usual) if isinstance(usual, bool) else self.number(name, default=usual)
        if given != usual:
            shown = str(usual).lower()
            self.refuse(name, f"{str(given).lower()} is not known; it is {shown} in every release")
        return True
