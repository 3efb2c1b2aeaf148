"""Errors of each stack on measured runs, projected from the options that a user of no stack gives.

The calibration rows decide on the stack of a job that names none (`ppsim.trainers.stacks.stack_errors`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ppsim.base.errors import PpsimError
from ppsim.machine.files import cluster_of
from ppsim.projection.project import outcome_of
from ppsim.trainers.stacks import stacks
from ppsim.validation.error_summary import score_of
from ppsim.validation.project_case import PlanOf, measured_of
from ppsim.validation.published_runs import WORDS, Case, case_sets, cases_of

OPTIONS = (
    "model", "layers", "hidden", "heads", "kv_heads", "vocab", "tied_embeddings", "mtp", "mtp_num_layers",
    "mtp_use_repeated_layer", "expert_imbalance", "deterministic_mode", "cluster", "gpus", "dp", "tp", "pp", "vpp",
    "cp", "ep", "etp", "seq_len", "micro_batch", "global_batch", "dtype", "schedule", "split", "recompute",
    "offload", "offload_modules", "optimizer", "zero", "memory_limit",
    *(name for name, word in WORDS.items() if (word.option.field or "").startswith("split.")),
)  # fmt: skip
"""Options of a row that are projected: model, layout, batch, precision, schedule, recomputation and sharding."""

USE = Literal["fit", "judge"]


@dataclass(frozen=True)
class Run:
    """A measured run: where it belongs, and the signed error of each stack (None: without --stack)."""

    set: str
    number: int
    generation: str
    kind: str
    errors: Mapping[str | None, float]


def candidates(generation: str) -> list[str]:
    """Return the stacks that a job on a generation of GPUs may get if it names none."""
    return [
        name for name, one in stacks().items()
        if not one.ended and (one.generations is None or generation in one.generations)
    ]  # fmt: skip


def options_of(case: Case) -> dict[str, Any]:
    """Return the options of a user who gives no stack; a fitted cluster is replaced by the one that it extends."""
    found = {name: case.words[name] for name in OPTIONS if name in case.words}
    cluster = cluster_of(found.get("cluster"))
    return found | {"cluster": cluster.base or cluster.name}
