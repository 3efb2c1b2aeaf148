"""Published runs as cases: options of `ppsim project`, the measured value, its source, and its use for fitting.

A set is a CSV file in ppsim/validation/data; `sets.toml` has the common properties of all rows.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, get_origin

from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import AboveZero, FileSchema, load_packaged, validated, with_field_types
from ppsim.base.files import data_folder, read_text, read_toml
from ppsim.base.name_lookup import NameLookup
from ppsim.base.option_declarations import (
    OptionDeclaration,
    command_arguments,
    declared_options,
    options_by_section,
)
from ppsim.model.architecture import Model
from ppsim.projection.options import GPT, PlanOptions
from ppsim.projection.plan import AUTO
from ppsim.runs.kernel_totals import KernelTotals

Counted = Literal["causal", "all scores", "all scores and recomputation", "parameters"]
"""causal
    Three times the forward GEMMs, with half of the scores: Megatron-LM's `num_floating_point_operations` since
    2025, also in Megatron-Bridge. Its published tokens/s and TFLOP/s agree with this count within 0.1 % for dense
    models and 0.6 % with experts.
all scores
    The same with all s × s scores: PaLM (Chowdhery et al. 2022, arXiv 2204.02311, appendix B), TorchTitan's
    `get_num_flop_per_token` (6 N + 12 l h q t; embedding left out), Megatron-LM until 2024 and Korthikanti et al.
    2022 (arXiv 2205.05198, appendix A).
all scores and recomputation
    Includes a second forward pass of all layers: 96 B s l h² (1 + s/(6h) + V/(16 l h)), Narayanan et al. 2021
    (arXiv 2104.04473, §5.1), also used for MT-NLG.
parameters
    6 per parameter and token, without attention.
"""


def flops_a_token(model: Model, sequence_length: int, counted: Counted) -> float:
    if counted == "parameters":
        return 6.0 * model.active_parameters
    flops = model.training_flops(sequence_length, causal=counted == "causal")
    if counted != "all scores and recomputation":
        return flops
    head = 3 * model.head_forward_flops()
    return (flops - head) * 4 / 3 + head


Metric = Literal[
    "iteration_s", "samples_per_s_per_gpu", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_percent", "peak_gib",
    "peak_gb",
]  # fmt: skip

Section = Literal[
    "measured costs", "dense on A100", "dense on Hopper", "dense on Blackwell", "dense on AMD", "MoE on Hopper",
    "MoE on Blackwell", "MoE on AMD", "fine-tuning", "functional runs", "memory", "order of schedules",
    "runs of one's own",
]  # fmt: skip

FOLDER = data_folder("validation/data")
WORDS = declared_options(PlanOptions)


class RowProperties(FileSchema, strict=False):  # CSV cells are texts: "8", "0.5", "yes"
    """Columns of a row in addition to options of `ppsim project`.

    - `other`: another tool's prediction.
    - `group`: rows of a group differ only in their schedule.
    - `counted`: the FLOPs that the publication counts for FLOP/s or MFU.
    - `tflops`: TFLOP/s that the publication gives for the same run, in addition to `value`.
    - `bytes_are`: memory of tensors (torch's `max_memory_allocated`) or of the allocator (`max_memory_reserved`).
    - `rank`: the pipeline rank of a measured peak memory.
    - `unexpressed`: why no projection is possible, e.g. a missing setting.
    """

    use: Literal["fit", "test"] = "test"
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
class RecordedTimes:
    """Times of a recorded step: `kernels` per process, or `passes_s`, the seconds of all F and B per pipeline rank.

    A single value of `passes_s` belongs to the rank with the longest passes.
    """

    source: str
    kernels: Sequence[KernelTotals] = ()
    passes_s: Sequence[float] = ()


@dataclass(frozen=True)
class PublishedRun:
    """`number` is the row number in the file. `options` includes a recipe's name, and `settings` its options."""

    properties: RowProperties
    options: Mapping[str, Any]
    number: int = 0
    recorded: RecordedTimes | None = None

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """`options`, completed by the options of the recipe that the row names."""
        if "recipe" not in self.options:
            return self.options
        from ppsim.trainers.read_recipe import read_recipe  # heavy import

        own = {name: value for name, value in self.options.items() if name != "recipe"}
        recipe = read_recipe(self.options["recipe"])
        left = {*WORDS} - recipe.replaced_by(own)
        return {name: value for name, value in recipe.options.items() if name in left} | own

    @property
    def is_memory(self) -> bool:
        return self.properties.metric in ("peak_gib", "peak_gb")

    @property
    def command(self) -> str:
        names = [name for names in options_by_section(WORDS.values()).values() for name in names]
        texts = [text for name in names for text in command_arguments(WORDS[name], self.options.get(name))]
        return " ".join(["ppsim project", *texts])

    def measured(self, *, num_gpus: int, sequences: int, tokens: int, flops: float, peak: float) -> float:
        """Return the measured seconds per step, or bytes per device.

        `sequences`, `tokens` and `flops` are per step; `peak` is in FLOP/s per device.
        """
        value, per_s = self.properties.value, num_gpus * self.properties.value
        return {
            "iteration_s": value,
            "samples_per_s_per_gpu": sequences / per_s,
            "tokens_per_s_per_gpu": tokens / per_s,
            "tflops_per_gpu": flops / (per_s * 1e12),
            "mfu_percent": flops / (per_s / 100 * peak) if peak else 0.0,
            "peak_gib": value * 2**30,
            "peak_gb": value * 1e9,
        }[self.properties.metric]


class CaseSet(FileSchema):
    """Rows of one publication.

    - `others`: errors of other tools on these rows; `other_tool`: the tool of the column `other`.
    - `order_only`: only the order of schedules is compared, because the publication omits something that times or
      memory depend on.
    - `fitted`: options in `defaults` that were fitted to the set's fit rows, together with the cluster's constants.
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
    return {name: load_packaged(CaseSet, data) for name, data in read_toml(FOLDER / "sets.toml").items()}


def require_set(name: str) -> CaseSet:
    """Return a set by name or for a user's CSV file; raises `ConfigError` with close matches."""
    case_sets_by_name = case_sets()
    if name in case_sets_by_name:
        return case_sets_by_name[name]
    if Path(name).suffix.lower() == ".csv":
        return CaseSet(
            section="runs of one's own",
            title="Runs of one's own",
            source=name,
            notes="rows marked fit are not test rows",
        )
    unknown = NameLookup("set", case_sets_by_name, listed_by="`ppsim validate`").unknown(name)
    raise ConfigError(f"{unknown} (or give the path of a .csv file)")


def cases_of(name: str) -> list[PublishedRun]:
    run_set = require_set(name)
    path = FOLDER / f"{name}.csv" if name in case_sets() else Path(name)
    return read_cases(path, run_set.defaults)


def read_cases(path: Path, defaults: Mapping[str, Any]) -> list[PublishedRun]:
    """Empty cells take the default, or in a row that names a recipe, the recipe's option.

    Names of columns have dashes or underscores.
    A `run_config` is a path relative to the file. Raises `ConfigError` with the errors of all rows.
    """
    lines = read_text(path).splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    cases: list[PublishedRun] = []
    wrong: dict[str, list[int]] = {}  # rows by their errors
    number = 0
    try:
        for number, row in enumerate(rows, start=1):
            source = f"{path.name}, row {number}"
            try:
                case = _case_of(row, defaults, source, number)
            except ConfigError as error:
                names = _unknown_names(row) if len(wrong) < _MOST_WRONG else []
                wrong.setdefault("\n  ".join([str(error).removeprefix(source), *names]), []).append(number)
                continue
            if config := case.options.get("run_config"):
                case = replace(case, options={**case.options, "run_config": str(path.parent / config)})
            cases.append(case)
    except csv.Error as error:
        raise ConfigError(f"{path.name}, row {number + 1} cannot be read as CSV: {error}") from None
    if wrong:
        raise ConfigError("\n".join(_described(path.name, wrong)))
    if not cases:
        raise ConfigError(f"{path.name} has no row below its header")
    return cases


_MOST_WRONG = 20


def _described(name: str, wrong: Mapping[str, Sequence[int]]) -> list[str]:
    """Rows with the same errors are described once."""
    lines: list[str] = []
    for errors, (first, *others) in list(wrong.items())[:_MOST_WRONG]:
        lines.append(f"{name}, row {first}{errors}")
        if others:
            lines.append(f"  {len(others)} more {'row has' if len(others) == 1 else 'rows have'} the same errors")
    left = sum(len(numbers) for numbers in list(wrong.values())[_MOST_WRONG:])
    return [*lines, f"… and {left} more rows"] if left else lines


def _case_of(row: Mapping[Any, Any], defaults: Mapping[str, Any], source: str, number: int) -> PublishedRun:
    if None in row or None in row.values():
        raise ConfigError(f"{source}: not as many cells as the header has")
    given = _given(row)
    read = validated(_Row, given if "recipe" in given else dict(defaults) | given, source)
    told = RowProperties(**{one.name: getattr(read, one.name) for one in fields(RowProperties)})
    return PublishedRun(told, {name: value for name in WORDS if (value := getattr(read, name)) is not None}, number)


def _given(row: Mapping[Any, Any]) -> dict[str, str]:
    given = {column.strip().replace("-", "_"): cell.strip() for column, cell in row.items() if cell.strip()}
    return given | {"use": "test"} if given.get("use") == "judge" else given  # 0.3.0.dev0 wrote "judge"


def _unknown_names(row: Mapping[Any, Any]) -> list[str]:
    from ppsim.catalog.build import find
    from ppsim.machine.cluster_files import load_cluster
    from ppsim.trainers.read_config import model_named  # heavy import

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


def _type_of(word: OptionDeclaration) -> Any:
    if word.is_mapping:
        return dict[int, float]
    choices = word.choices
    if choices and isinstance(choices[0], int):
        return int
    for kind in (bool, int, float):
        if kind in word.kinds and str not in word.kinds:
            return kind
    return next((kind for kind in word.kinds if get_origin(kind) is Literal), str)


_Row = with_field_types(
    RowProperties, {name: _type_of(word) | None for name, word in WORDS.items()}, dict.fromkeys(WORDS)
)
