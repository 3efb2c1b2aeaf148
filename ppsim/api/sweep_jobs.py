"""The jobs of a sweep: a file of options, in which lists multiply."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any, get_origin

from ppsim.base.errors import ConfigError
from ppsim.base.files import CONFIG_READERS, read_text
from ppsim.base.limits import DATA_BYTES
from ppsim.base.name_lookup import NUMBER_FORMATS, NameLookup
from ppsim.base.option_declarations import OptionDeclaration, declared_options
from ppsim.projection.options import PlanOptions
from ppsim.tuning.options import TuneOptions

Job = dict[str, Any]
"""Options by their names in Python, and `tune` and `tokens`."""

TUNE, TOKENS = "tune", "tokens"
_LISTED, _SUFFIXES = "jobs", (".csv", ".jsonl", *CONFIG_READERS)
_NOT_OF_JOBS = ("resume", "jobs")


def read_jobs(path: str | Path) -> list[Job]:
    """Return the jobs in a CSV, JSON lines, TOML, YAML or JSON file, in its order.

    The last of several lists of a job varies fastest.
    A TOML, YAML or JSON file has a list `jobs` and options of all jobs, which a job replaces; without
    `jobs`, it is one job. Ranges of a search (`tune: true`) are lists and do not multiply. Raises `ConfigError` for
    unknown options and for an option that is given twice.
    """
    jobs = [
        job for number, row in enumerate(_rows(path), start=1) for job in _jobs_of(row, f"{path}, job {number}")
    ]
    if not jobs:
        raise ConfigError(f"{path} has no jobs: give one per row")
    return jobs


def _rows(path: str | Path) -> Iterator[Mapping[str, Any]]:
    suffix = Path(path).suffix
    if suffix == ".csv":
        import csv

        reader = csv.DictReader(StringIO(read_text(path, most=DATA_BYTES)), restval="")
        names = [name for name in reader.fieldnames or () if name.strip()]
        if twice := [name for name, number in Counter(names).items() if number > 1]:
            raise ConfigError(f"{path} has two columns {twice[0]}: remove one of them")
        for row in reader:
            unnamed = [row.pop("", ""), *row.pop(None, ())]
            if further := [cell for cell in unnamed if cell.strip()]:
                raise ConfigError(f"{path}: a row has more cells than the first line has names: {further}")
            yield {name: cell for name, cell in row.items() if cell.strip()}
    elif suffix == ".jsonl":
        for number, line in enumerate(read_text(path, most=DATA_BYTES).splitlines(), start=1):
            if line.strip():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise ConfigError(f"{path} is not valid JSON: line {number}: {error.msg}") from None
                yield _require_mapping(row, f"{path}, line {number}")
    elif suffix in CONFIG_READERS:
        tree = CONFIG_READERS[suffix](Path(path))
        common = {} if isinstance(tree, list) else dict(_require_mapping(tree, str(path)))
        rows = tree if isinstance(tree, list) else common.pop(_LISTED, [{}])
        if not isinstance(rows, list):
            raise ConfigError(f"{path}: {_LISTED} must be a list of jobs: got {rows!r}")
        for number, row in enumerate(rows, start=1):
            source = f"{path}, job {number}"
            yield _named(common, str(path)) | _named(_require_mapping(row, source), source)
    else:
        raise ConfigError(f"cannot tell how to read {path}: give it one of {', '.join(_SUFFIXES)}")


def _require_mapping(row: Any, source: str) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise ConfigError(f"{source} must be options with values, as model: llama3-8b: got {row!r}")
    return row


def _jobs_of(row: Mapping[str, Any], source: str) -> Iterator[Job]:
    job = {name: option for name, option in _named(row, source).items() if option is not None}
    tuned = _as_bool(job.pop(TUNE, False), source)
    declared = declared_options(TuneOptions if tuned else PlanOptions)
    if wrong := [name for name in job if name != TOKENS and (name not in declared or name in _NOT_OF_JOBS)]:
        raise ConfigError(f"{source}: {wrong[0]} is no option of {'a search' if tuned else 'a projection'}")
    lists = [
        option if isinstance(option, list) and not _is_one_value(declared.get(name), option) else [option]
        for name, option in job.items()
    ]
    if empty := [name for name, options in zip(job, lists, strict=True) if not options]:
        raise ConfigError(f"{source}: {empty[0]} is an empty list")
    for options in product(*lists):
        yield dict(zip(job, options, strict=True)) | ({TUNE: True} if tuned else {})


def _is_one_value(word: OptionDeclaration | None, option: list[Any]) -> bool:
    """Ranges of a search are lists, and numbers of layers or milliseconds of an option that takes one per stage."""
    if word is None:
        return False
    takes_numbers = any(get_origin(kind) is Sequence for kind in word.kinds)
    return word.listed is not None or (takes_numbers and all(isinstance(number, int | float) for number in option))


def _as_bool(given: Any, source: str) -> bool:
    if isinstance(given, bool):
        return given
    if (text := str(given).lower()) in _BOOLEANS:
        return _BOOLEANS[text]
    raise ConfigError(f"{source}: {TUNE} must be true or false: got {given!r}")


_BOOLEANS = {"true": True, "false": False}


@cache
def _names() -> dict[str, str]:
    """Return the name in Python for each name of an option: flag, key and Megatron-LM's name."""
    declared = declared_options(PlanOptions) | declared_options(TuneOptions)
    names = {TUNE: TUNE, TOKENS: TOKENS}
    for name, word in declared.items():
        names |= {flag.lstrip("-").replace("-", "_"): name for flag in (name, word.flag, *word.also)}
    return names


def _named(row: Mapping[str, Any], source: str) -> Job:
    job: Job = {}
    for key, option in row.items():
        name = _names().get(str(key).strip().lstrip("-").replace("-", "_"))
        if name is None:
            hint = NameLookup("option", {word for word in _names() if word not in _NOT_OF_JOBS}).hint(str(key))
            raise ConfigError(f"{source}: there is no option '{key}': {hint}")
        if name in job:
            raise ConfigError(f"{source} gives {name} twice: once as '{key}'")
        job[name] = option
    return job


def keyword_of(name: str) -> str:
    """Return the name of an option in tables: its flag with underscores."""
    word = declared_options(PlanOptions).get(name) or declared_options(TuneOptions).get(name)
    return word.keyword if word else name


def typed_options(job: Mapping[str, Any], declared: Mapping[str, OptionDeclaration]) -> dict[str, Any]:
    """Return the options with texts converted as on a command line, and single values of ranges as lists."""
    return {name: _typed(declared[name], option) for name, option in job.items() if name in declared}


def _typed(word: OptionDeclaration, given: Any) -> Any:
    if word.listed is not None:
        items = given.split(",") if isinstance(given, str) else given if isinstance(given, Sequence) else [given]
        return [_number(item, int) if word.listed is int else str(item).strip() for item in items]
    if word.is_mapping and word.separator == ":" and isinstance(given, Mapping):
        return {_number(key, int): factor for key, factor in given.items()}  # keys of JSON are texts
    if not isinstance(given, str) or (str in word.kinds and not word.choices):
        return given
    if bool in word.kinds:
        return _BOOLEANS.get(given.strip().lower(), given)
    if choices := word.choices:
        also = {short: name for short, name in NUMBER_FORMATS.items() if name in choices}
        texts = {str(choice): choice for choice in choices}
        return texts.get(NameLookup("", texts, also=also).find(given.strip()) or given, given)
    return _number(given, int if int in word.kinds else float)


def _number(given: Any, kind: type) -> Any:
    try:
        return kind(given) if isinstance(given, str) else given
    except ValueError:
        return given
