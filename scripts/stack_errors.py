"""Errors of each software stack on measured runs, projected from the options of a user who sets no --stack."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ppsim.base.errors import PpsimError
from ppsim.machine.cluster_files import cluster_of
from ppsim.projection.project import outcome_of
from ppsim.trainers.recipe_table import find_recipe
from ppsim.trainers.stacks import PLAIN, StackErrors, base_of, current_stacks, stacks
from ppsim.validation.error_summary import score_of
from ppsim.validation.project_case import PlanOf, measured_of
from ppsim.validation.published_runs import WORDS, PublishedRun, case_sets, cases_of

OPTIONS = (
    "model", "layers", "hidden", "heads", "kv_heads", "vocab", "tied_embeddings", "mtp", "mtp_num_layers",
    "mtp_use_repeated_layer", "expert_imbalance", "deterministic_mode", "cluster", "gpus", "dp", "tp", "pp", "vpp",
    "cp", "ep", "etp", "seq_len", "micro_batch", "global_batch", "dtype", "schedule", "split", "recompute",
    "offload", "offload_modules", "optimizer", "zero", "memory_limit",
    *(name for name, word in WORDS.items() if (word.option.field or "").startswith("split.")),
)  # fmt: skip

OF_RELEASE = "megatron-bridge@RELEASE"
"""The stack with the release of a row's recipe."""


@dataclass(frozen=True)
class StackRow:
    """A measured run of current software, and the signed relative error of the projection with each stack."""

    generation: str
    kind: Literal["dense", "MoE"]
    errors: dict[str, float]


def rows_by_stack(
    plan_of: PlanOf, use: Literal["fit", "test"], stacks_of: Callable[[str], Sequence[str | None]]
) -> Iterator[StackRow]:
    """Yield the errors on runs with measured times that ppsim can project with every requested stack.

    Runs of software that is no longer current are excluded. In `stacks_of`, None stands for no --stack.
    """
    for name, told in case_sets().items():
        if told.order_only or told.section in ("measured costs", "memory"):
            continue
        for case in cases_of(name):
            is_past = stacks()[base_of(case.settings.get("stack", PLAIN))].ended
            if case.properties.use != use or case.is_memory or case.properties.unexpressed or is_past:
                continue
            if (row := _row(case, plan_of, stacks_of)) is not None:
                yield row


def options_of(case: PublishedRun) -> dict[str, Any]:
    """A fitted cluster is replaced by the one that it extends."""
    found = {name: case.settings[name] for name in OPTIONS if name in case.settings}
    cluster = cluster_of(found.get("cluster"))
    return found | {"cluster": cluster.base or cluster.name}


def _row(case: PublishedRun, plan_of: PlanOf, stacks_of: Callable[[str], Sequence[str | None]]) -> StackRow | None:
    options, errors = options_of(case), {}
    release = find_recipe(case.options["recipe"]).release if "recipe" in case.options else ""
    generation = cluster_of(options["cluster"]).device.generation
    kind: Literal["dense", "MoE"] = "dense"
    for stack in stacks_of(generation):
        try:
            name = stack if release or stack != OF_RELEASE else base_of(stack)
            plan = plan_of(options | {"stack": name and name.replace("RELEASE", release)})
            errors[stack or ""] = outcome_of(plan)[0] / measured_of(case, plan) - 1
        except PpsimError:
            return None
        if plan.job is not None and plan.job.model.has_experts:
            kind = "MoE"
    return StackRow(generation, kind, errors)


def errors_by_stack(rows: Sequence[StackRow]) -> list[StackErrors]:
    groups: dict[tuple[str, str], list[StackRow]] = {}
    for row in rows:
        groups.setdefault((row.generation, row.kind), []).append(row)
    return [
        StackErrors(
            generation=generation, kind=kind, rows=len(group),
            errors={stack: _errors([row.errors[stack] for row in group]) for stack in group[0].errors},
        )
        for (generation, kind), group in sorted(groups.items())
    ]  # fmt: skip


def _errors(errors: Sequence[float]) -> tuple[float, float]:
    score = score_of(errors)
    return round(score.mean_absolute, 4), round(score.mean, 4)


def calibration_errors(plan_of: PlanOf) -> list[StackErrors]:
    """Return the content of data/stack_errors.json."""
    return errors_by_stack(list(rows_by_stack(plan_of, "fit", current_stacks)))
