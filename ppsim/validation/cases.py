"""Published runs as cases: what ran, what was measured, where it is published, whether constants were fitted on it.

A set is a CSV file in ppsim/validation/data with one row a number; `sets.toml` has what all rows of a set have in
common.
"""

import csv
import difflib
import tomllib
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ppsim.base.boundary import AboveZero, NonNegative, Positive, Strict, validated
from ppsim.base.errors import ConfigError
from ppsim.machine.files import load_cluster
from ppsim.model.architecture import Attention, Model
from ppsim.model.names import find_model, gpt
from ppsim.validation.flops import Counted, flops_a_token

Metric = Literal[
    "iteration_s", "samples_per_s_per_gpu", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_percent", "peak_gib",
    "peak_gb",
]  # fmt: skip

Section = Literal[
    "measured costs", "dense on A100", "dense on Hopper", "dense on Blackwell", "MoE on Hopper", "MoE on Blackwell",
    "memory", "order of schedules",
]  # fmt: skip
"""What a table of sets is divided by, in this order."""

FOLDER = Path(str(resources.files("ppsim.validation"))) / "data"


class Case(Strict, strict=False):  # cells are texts: "8", "0.5", "yes"
    """One published number. `machine` names the constants in `machines.toml`; `other` is another tool's prediction.

    `model` is a name of `ppsim models`, or "gpt" with `layers`, `hidden`, `heads`, `kv_heads`, `vocab` and
    `tied_embeddings`; `mtp`: whether it was trained with its multi-token prediction. Rows with the same `group`
    differ in their schedule only. Where `forward_ms` is given, the costs of a rank were measured; else they are
    estimated for the `cluster`. `hidden_tp` is what of tensor-parallel communication runs beside compute in a
    forward, `hidden_tp_backward` in a backward, `hidden_ep` of the exchange of experts' tokens. `split` may be
    layers a stage, as "3,4,4,2". `counted` says which FLOPs a publication's FLOP/s or MFU have, and `tflops` what
    it says of the same run beside `value`. `unexpressed` is why no projection can be asked for it: what is not
    stated, say. `remarks`: what else is known of the run, which no projection takes.
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
    kv_heads: Positive | None = None
    vocab: Positive = 50257
    tied_embeddings: bool = True
    mtp: bool = True
    seq_len: Positive
    cluster: str
    gpus: Positive
    tp: Positive = 1
    cp: Positive = 1
    ep: Positive = 1
    etp: Positive | None = None
    pp: Positive = 1
    vpp: Positive = 1
    micro_batch: Positive = 1
    global_batch: Positive
    schedule: str = "1f1b"
    split: Annotated[str, Field(pattern=r"^(auto|even|\d+(,\d+)+)$")] = "even"
    channel: Literal["ideal", "edge", "pair"] = "edge"
    dtype: str = "bfloat16"
    attention: Literal["fused", "unfused"] = "fused"
    recompute: str = "none"
    offload: NonNegative = 0.0
    sequence_parallel: bool = False
    scatter_gather: bool = False
    dropout: bool = False
    fused_cross_entropy: bool = False
    context: Literal["ring", "all-to-all"] = "ring"
    hidden_tp: NonNegative = 0.0
    hidden_tp_backward: NonNegative = 0.0
    hidden_ep: NonNegative = 0.0
    zero_stage: int = 1
    overlap: bool = True
    update: Literal["synchronised", "post-validated"] = "synchronised"
    forward_ms: AboveZero | None = None
    backward_input_ms: AboveZero | None = None
    backward_weight_ms: AboveZero | None = None
    transfer_ms: NonNegative = 0.0
    counted: Counted = "causal"
    tflops: AboveZero | None = None
    unexpressed: str = ""
    remarks: str = ""

    @property
    def architecture(self) -> Model:
        """What was trained; raises `ConfigError` for a model that is not known."""
        if self.model != "gpt":
            model = find_model(self.model)
            model = model if self.layers is None else model.with_layers(self.layers)
            return model if self.mtp else replace(model, mtp=())
        model = gpt(self.layers or 1, self.hidden, self.heads, vocab=self.vocab, sequence_length=self.seq_len)
        attention = model.layers[0].attention
        if self.kv_heads and isinstance(attention, Attention):
            layer = replace(model.layers[0], attention=replace(attention, num_kv_heads=self.kv_heads))
            model = replace(model, layers=(layer,) * len(model.layers))
        return replace(model, tied_embeddings=self.tied_embeddings)

    @property
    def is_moe(self) -> bool:
        """Whether it has experts."""
        return any(layer.is_moe for layer in self.architecture.kinds)

    @property
    def flops(self) -> float:
        """FLOPs of a step as the publication counts them."""
        return flops_a_token(self.architecture, self.seq_len, self.counted) * self.global_batch * self.seq_len

    @property
    def peak_flops_per_s(self) -> float:
        """A device's dense peak in the dtype; in fp8's where it has none of fp8 with scales of blocks."""
        return load_cluster(self.cluster).device.peak(self.device_dtype)

    @property
    def device_dtype(self) -> str:
        """The dtype as the device knows it."""
        known = load_cluster(self.cluster).device.peak_flops_per_s
        return "float8" if self.dtype == "mxfp8" and self.dtype not in known else self.dtype

    @property
    def is_memory(self) -> bool:
        """Whether bytes were measured, not time."""
        return self.metric in ("peak_gib", "peak_gb")

    @property
    def measured(self) -> float:
        """Seconds of a step, or bytes of a device."""
        per_s = self.gpus * self.value
        if self.metric == "tflops_per_gpu":
            return self.flops / (per_s * 1e12)
        if self.metric == "mfu_percent":
            return self.flops / (per_s / 100 * self.peak_flops_per_s)
        return {
            "iteration_s": self.value,
            "samples_per_s_per_gpu": self.global_batch / per_s,
            "tokens_per_s_per_gpu": self.global_batch * self.seq_len / per_s,
            "peak_gib": self.value * 2**30,
            "peak_gb": self.value * 1e9,
        }[self.metric]


class CaseSet(Strict):
    """Rows of one publication, in the `section` of the table that they are printed in.

    `others` is what other tools score on them, `other_tool` whose column `other` is.
    `order_only`: something that times or bytes depend on is not stated; the order of the schedules counts.
    """

    section: Section
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
