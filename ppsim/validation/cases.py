"""Published runs as cases: what ran, what was measured, where it is published, whether constants were fitted on it.

A set is a CSV file in ppsim/validation/data with one row a number; `sets.toml` has what all rows of a set have in
common.
"""

import csv
import difflib
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from ppsim.base.boundary import AboveZero, NonNegative, Positive, Strict, validated
from ppsim.base.errors import ConfigError

Metric = Literal["iteration_s", "samples_per_s_per_gpu", "tokens_per_s_per_gpu", "peak_gib", "peak_gb"]

FOLDER = Path(str(resources.files("ppsim.validation"))) / "data"


class Case(Strict, strict=False):  # cells are texts: "8", "0.5", "yes"
    """One published number. `machine` names the constants in `machines.toml`; `other` is another tool's prediction.

    `model` is a name of `ppsim models`, or "gpt" with `layers`, `hidden`, `heads` and `vocab`. Rows with the same
    `group` differ in their schedule only. Where `forward_ms` is given, the costs of a rank were measured; else they
    are estimated for the `cluster`. `hidden_tp` is what of tensor-parallel communication runs beside compute in a
    forward, `hidden_tp_backward` in a backward.
    """

    use: Literal["fit", "judge"]
    table: str
    title: str
    metric: Metric
    value: AboveZero
    other: AboveZero | None = None
    group: str = ""
    machine: str | None = None
    model: str = "gpt"
    layers: Positive | None = None
    hidden: Positive = 1
    heads: Positive = 1
    vocab: Positive = 50257
    seq_len: Positive
    cluster: str
    gpus: Positive
    tp: Positive = 1
    cp: Positive = 1
    pp: Positive = 1
    vpp: Positive = 1
    micro_batch: Positive = 1
    global_batch: Positive
    schedule: str = "1f1b"
    split: Literal["auto", "even"] = "even"
    channel: Literal["ideal", "edge", "pair"] = "edge"
    dtype: str = "bfloat16"
    attention: Literal["fused", "unfused"] = "fused"
    recompute: Literal["none", "selective", "full"] = "none"
    sequence_parallel: bool = False
    scatter_gather: bool = False
    dropout: bool = False
    fused_cross_entropy: bool = False
    context: Literal["ring", "all-to-all"] = "ring"
    hidden_tp: NonNegative = 0.0
    hidden_tp_backward: NonNegative = 0.0
    zero_stage: int = 1
    overlap: bool = True
    update: Literal["synchronised", "post-validated"] = "synchronised"
    forward_ms: AboveZero | None = None
    backward_input_ms: AboveZero | None = None
    backward_weight_ms: AboveZero | None = None
    transfer_ms: NonNegative = 0.0

    @property
    def is_memory(self) -> bool:
        """Whether bytes were measured, not time."""
        return self.metric in ("peak_gib", "peak_gb")

    @property
    def measured(self) -> float:
        """Seconds of a step, or bytes of a device."""
        per_s = self.gpus * self.value
        return {
            "iteration_s": self.value,
            "samples_per_s_per_gpu": self.global_batch / per_s,
            "tokens_per_s_per_gpu": self.global_batch * self.seq_len / per_s,
            "peak_gib": self.value * 2**30,
            "peak_gb": self.value * 1e9,
        }[self.metric]


class CaseSet(Strict):
    """Rows of one publication. `others` is what other tools score on them, `other_tool` whose column `other` is.

    `order_only`: something that times or bytes depend on is not stated; the order of the schedules counts.
    """

    title: str
    source: str
    notes: str
    others: str = ""
    other_tool: str = ""
    order_only: bool = False
    machine: str | None = None
    defaults: dict[str, Any]


@cache
def case_sets() -> dict[str, CaseSet]:
    """Return what is said of each set, by name, in the order of sets.toml."""
    sets = tomllib.loads((FOLDER / "sets.toml").read_text(encoding="utf-8"))
    return {name: validated(CaseSet, data, f"published/sets.toml [{name}]") for name, data in sets.items()}


def require_set(name: str) -> CaseSet:
    """Return a set by name; raises `ConfigError` with the close matches."""
    known = case_sets()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=2, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
        raise ConfigError(f"unknown set '{name}': {hint}")
    return known[name]


def cases_of(name: str) -> list[Case]:
    """Return the rows of a set; raises `ConfigError` for an unknown set and for a row that does not fit."""
    told = require_set(name)
    return read_cases(FOLDER / f"{name}.csv", {"machine": told.machine, **told.defaults})


def read_cases(path: Path, defaults: dict[str, Any]) -> list[Case]:
    """Return the rows of a file; an empty cell takes the default. Raises `ConfigError` with line and column."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    found = []
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values():
            raise ConfigError(f"{path.name}, row {number}: not as many cells as the header has")
        given = {column: cell for column, cell in row.items() if cell}
        found.append(validated(Case, defaults | given, f"{path.name}, row {number}"))
    return found
