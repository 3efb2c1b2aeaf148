"""Published runs as cases: words of `ppsim project`, what was measured, where it is published, what was fitted.

A set is a CSV file in ppsim/validation/data with one row a number; `sets.toml` has what all rows of a set have in
common. A file of one's own has the same columns.
"""

import csv
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_origin

from ppsim.base.boundary import AboveZero, Strict, packaged, retyped, validated
from ppsim.base.data import data_folder
from ppsim.base.errors import ConfigError
from ppsim.base.files import read_text, read_toml
from ppsim.base.words import Word, sections_of, texts_of, words_of
from ppsim.projection.options import GPT, PlanOptions
from ppsim.projection.plan import AUTO
from ppsim.validation.flops import Counted

Metric = Literal[
    "iteration_s", "samples_per_s_per_gpu", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_percent", "peak_gib",
    "peak_gb",
]  # fmt: skip

Section = Literal[
    "measured costs", "dense on A100", "dense on Hopper", "dense on Blackwell", "MoE on Hopper", "MoE on Blackwell",
    "memory", "order of schedules", "runs of one's own",
]  # fmt: skip
"""What a table of sets is divided by, in this order."""

FOLDER = data_folder("validation/data")
WORDS = words_of(PlanOptions)


class Told(Strict, strict=False):  # cells are texts: "8", "0.5", "yes"
    """What a row has beside words of `ppsim project`: one measured number, and what it is for.

    `other` is another tool's prediction. Rows with the same `group` differ in their schedule only. `counted` says
    which FLOPs a publication's FLOP/s or MFU have, and `tflops` what it says of the same run beside `value`.
    `bytes_are` says whether memory is what tensors have of the device (torch's `max_memory_allocated`) or what the
    allocator has (`max_memory_reserved`). `rank` is the pipeline rank whose peak memory was measured: the one with
    the highest peak, or the last one. `unexpressed` is why no projection can be asked for it: what is not stated,
    say. `remarks`: what else is known of the run, which no projection takes.
    """

    use: Literal["fit", "judge"] = "judge"
    table: str = ""
    title: str = ""
    metric: Metric
    value: AboveZero
    other: AboveZero | None = None
    group: str = ""
    counted: Counted = "causal"
    tflops: AboveZero | None = None
    bytes_are: Literal["allocated", "reserved"] = "allocated"
    rank: Literal["highest", "last"] = "highest"
    unexpressed: str = ""
    remarks: str = ""


@dataclass(frozen=True)
class Case:
    """One measured number, the words of `ppsim project` that describe what ran, and which row of its file it is.

    If the row names a recipe, `words` are those of the recipe, and `typed` are the words of the row.
    """

    told: Told
    words: Mapping[str, Any]
    number: int = 0
    typed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_memory(self) -> bool:
        """Whether bytes were measured, not time."""
        return self.told.metric in ("peak_gib", "peak_gb")

    @property
    def command(self) -> str:
        """The `ppsim project …` line that projects the case."""
        names = [name for names in sections_of(WORDS.values()).values() for name in names]
        words = self.typed or self.words
        texts = [text for name in names for text in texts_of(WORDS[name], words.get(name))]
        return " ".join(["ppsim project", *texts])

    def measured(self, *, num_gpus: int, sequences: int, tokens: int, flops: float, peak: float) -> float:
        """Return the seconds of a step, or the bytes of a device.

        Sequences, tokens and `flops` are those of a step, `flops` as the publication counts them; `peak` is what a
        device can do of them in a second.
        """
        value, per_s = self.told.value, num_gpus * self.told.value
        return {
            "iteration_s": value,
            "samples_per_s_per_gpu": sequences / per_s,
            "tokens_per_s_per_gpu": tokens / per_s,
            "tflops_per_gpu": flops / (per_s * 1e12),
            "mfu_percent": flops / (per_s / 100 * peak) if peak else 0.0,
            "peak_gib": value * 2**30,
            "peak_gb": value * 1e9,
        }[self.told.metric]


class CaseSet(Strict):
    """Rows of one publication. `others` is what other tools score on them, `other_tool` whose column `other` is.

    `order_only`: something that times or bytes depend on is not stated; the order of the schedules counts. `fitted`
    are words of the defaults that were fitted on the set's fit rows, together with the constants of its cluster.
    """

    section: Section
    title: str
    source: str
    notes: str
    others: str = ""
    other_tool: str = ""
    order_only: bool = False
    fitted: list[str] = field(default_factory=list)
    defaults: dict[str, Any] = field(default_factory=dict)


@cache
def case_sets() -> dict[str, CaseSet]:
    """Return what is said of each set, by name, in the order of sets.toml."""
    return {name: packaged(CaseSet, data) for name, data in read_toml(FOLDER / "sets.toml").items()}


def require_set(name: str) -> CaseSet:
    """Return a set by name, or that of a CSV file of one's own; raises `ConfigError` with the close matches."""
    known = case_sets()
    if name in known:
        return known[name]
    if Path(name).suffix.lower() == ".csv":
        return CaseSet(
            section="runs of one's own",
            title="Runs of one's own",
            source=name,
            notes="rows marked fit do not judge",
        )
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
    raise ConfigError(f"unknown set '{name}': {hint} (or give the path of a .csv file)")


def cases_of(name: str) -> list[Case]:
    """Return the rows of a set or file; raises `ConfigError` for an unknown set and for rows that do not fit."""
    told = require_set(name)
    path = FOLDER / f"{name}.csv" if name in case_sets() else Path(name)
    return read_cases(path, told.defaults)


def read_cases(path: Path, defaults: Mapping[str, Any]) -> list[Case]:
    """Return the rows of a file; an empty cell takes the default.

    Columns are those of `Told` and words of `ppsim project`, with dashes or underscores. A `run_config` is a path
    relative to the file. Raises `ConfigError` with
    all that is wrong, of all rows.
    """
    lines = read_text(path).splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    found: list[Case] = []
    wrong: list[str] = []
    number = 0
    try:
        for number, row in enumerate(rows, start=1):
            try:
                case = _case_of(row, defaults, f"{path.name}, row {number}", number)
            except ConfigError as error:
                names = _unknown_names(row) if len(wrong) < _MOST_WRONG else []
                wrong.append("\n  ".join([str(error), *names]))
                continue
            if config := case.words.get("run_config"):
                case = replace(case, words={**case.words, "run_config": str(path.parent / config)})
            if case.words.get("recipe"):
                case = _with_recipe(case)
            found.append(case)
    except csv.Error as error:
        raise ConfigError(f"{path.name}, row {number + 1} cannot be read as CSV: {error}") from None
    if wrong:
        rest = [f"… and {len(wrong) - _MOST_WRONG} rows more"] if len(wrong) > _MOST_WRONG else []
        raise ConfigError("\n".join([*wrong[:_MOST_WRONG], *rest]))
    if not found:
        raise ConfigError(f"{path.name} has no row below its header")
    return found


def _with_recipe(case: Case) -> Case:
    """A case with the words of its recipe, and over them those of the row."""
    from ppsim.trainers.read_recipe import read_recipe  # every trainer's format

    own = {name: value for name, value in case.words.items() if name != "recipe"}
    words = {name: value for name, value in read_recipe(case.words["recipe"]).words.items() if name in WORDS}
    return replace(case, words={**words, **own}, typed=case.words)


_MOST_WRONG = 20


def _case_of(row: Mapping[Any, Any], defaults: Mapping[str, Any], source: str, number: int) -> Case:
    """A line of a file as a case; raises `ConfigError` with all that is wrong in it."""
    if None in row or None in row.values():
        raise ConfigError(f"{source}: not as many cells as the header has")
    read = validated(_Row, dict(defaults) | _given(row), source)
    told = Told(**{one.name: getattr(read, one.name) for one in fields(Told)})
    return Case(told, {name: value for name in WORDS if (value := getattr(read, name)) is not None}, number)


def _given(row: Mapping[Any, Any]) -> dict[str, str]:
    """The cells of a row that are not empty, by their names as words of `ppsim project`."""
    return {column.strip().replace("-", "_"): cell.strip() for column, cell in row.items() if cell.strip()}


def _unknown_names(row: Mapping[Any, Any]) -> list[str]:
    """What else is wrong in a wrong row: a sentence for each name that nothing has."""
    from ppsim.catalog.build import find
    from ppsim.machine.files import load_cluster
    from ppsim.trainers.read_config import model_named  # every trainer's format

    sentences: list[str] = []
    if None in row or None in row.values():
        return sentences
    given = _given(row)
    for word, known in (("model", model_named), ("cluster", load_cluster), ("schedule", find)):
        try:
            if given.get(word, GPT) not in (GPT, AUTO):
                known(given[word])
        except ConfigError as error:
            sentences.append(str(error))
    return sentences


def _type_of(word: Word) -> Any:
    """What a cell of a word is read as."""
    if word.is_mapping:
        return dict[int, float]
    choices = word.choices
    if choices and isinstance(choices[0], int):
        return int
    for kind in (bool, int, float):
        if kind in word.kinds and str not in word.kinds:
            return kind
    return next((kind for kind in word.kinds if get_origin(kind) is Literal), str)


_Row = retyped(Told, {name: _type_of(word) | None for name, word in WORDS.items()}, dict.fromkeys(WORDS))
