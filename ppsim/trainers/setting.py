"""Rows of a trainer's table: options of ppsim with the settings of the trainer that express them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ppsim.trainers.arguments import Arguments

Options = Mapping[str, Any]
Test = Callable[[Options], Any]


@dataclass(frozen=True)
class Setting:
    """One row, which serves reading and writing.

    `read` sees the options of earlier rows and what else the table's reader knows, and returns options, None for
    those that the file does not set. `write` sees the options that a plan sets, and returns the trainer's settings.
    Megatron-LM: rows `of_experts` are for models with experts, rows `of_primus` are written for Primus only.
    """

    options: tuple[str, ...]
    read: Callable[[Arguments, Options], Options]
    write: Callable[[Options], dict[str, Any]]
    of_experts: bool = False
    of_primus: bool = False


def read_rows(rows: Iterable[Setting], arguments: Arguments, known: Options) -> dict[str, Any]:
    options = dict(known)
    for row in rows:
        options |= row.read(arguments, options)
    return options


def write_rows(rows: Iterable[Setting], options: Options) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for row in rows:
        settings |= row.write(options)
    return settings


def named(name: str, value: Any, is_written: Any = True) -> dict[str, Any]:
    return {} if value is None or not is_written else {name: value}


def written_as(option: str, name: str, when: Test = bool) -> Callable[[Options], dict[str, Any]]:
    return lambda options: named(name, options.get(option), when(options))


def count(option: str, name: str, usual: int | None = None, *, least: int = 1, when: Test = bool) -> Setting:
    def read(arguments: Arguments, _: Options) -> Options:
        number = arguments.count(name, word=option, least=least)
        return {option: usual if number is None else number}

    return Setting((option,), read, written_as(option, name, when))
