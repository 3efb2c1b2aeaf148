"""A plan in a report: its options, and a row per stage."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ppsim.base.option_declarations import declared_options, option_values
from ppsim.costs.cost_sources import RunCosts
from ppsim.model.recompute import Recompute, plan_of_stage, text_of
from ppsim.parallel.layer_partition import MegatronSplit
from ppsim.projection.options import GPT, PlanOptions
from ppsim.projection.plan import Plan
from ppsim.schedule.table import Schedule
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.timeline import Timeline

if TYPE_CHECKING:
    from ppsim.costs.job import Job


def options_of(plan: Plan, table: Schedule, num_gpus: int) -> dict[str, Any]:
    """Return the options of a plan with their defaults, by their names in Python.

    `slow` are the slow ranks and links of a recorded run, without those that `--without` removes.
    """
    job = plan.job
    settings = option_values(declared_options(PlanOptions), plan) | {
        "schedule": plan.schedule_name, "vpp": table.vpp, "microbatches": table.num_microbatches,
        "slices": table.num_slices,
        "split": "megatron" if plan.layer_split_rule == MegatronSplit() else plan.layer_split_rule,
    }  # fmt: skip
    if job is not None:
        settings |= {
            "model": job.model_name, "cluster": job.cluster.name, "gpus": num_gpus, "seq_len": job.length,
            "stack": job.stack_name, "overlap_tp": job.execution.overlap_tp,
        }  # fmt: skip
    if isinstance(plan.measured, RunCosts):
        settings |= {"run": plan.measured.source, "slow": ", ".join(plan.measured.faults)}
    return {
        name: setting if isinstance(setting, str | int | float) else str(setting)
        for name, setting in settings.items()
        if setting not in (None, "", ())
    }


def sizes_of(job: "Job") -> dict[str, Any]:
    """Return sizes in which the model differs from the known model of its name."""
    from ppsim.trainers.read_config import model_named  # heavy import: models

    model, layers = job.model, job.model.layers
    if job.model_name != GPT:
        named = model_named(job.model_name)
        return {
            "layers": len(layers) if len(layers) != len(named.layers) else None,
            "mtp": False if named.mtp and not model.mtp else None,
            "mtp_num_layers": len(model.mtp) if model.mtp and len(named.mtp) != len(model.mtp) else None,
            "mtp_use_repeated_layer": True if model.repeats_mtp and not named.repeats_mtp else None,
        }
    heads, kv_heads = (getattr(layers[0].attention, name, None) for name in ("num_heads", "num_kv_heads"))
    return {
        "layers": len(layers), "hidden": model.hidden_size, "heads": heads, "vocab": model.vocab_size,
        "kv_heads": None if kv_heads == heads else kv_heads,
        "tied_embeddings": None if model.tied_embeddings else False,
    }  # fmt: skip


_NEAR = 0.95
"""A rank is limited by memory or compute above this fraction of its memory, or of the busiest rank's time."""


def stage_rows(plan: Plan, timeline: Timeline, costs: StageCosts, layers: Sequence[int]) -> list[dict[str, Any]]:
    """Times and activation bytes are per microbatch; recompute and offload_modules are as in `--plan`."""
    job, schedule = plan.job, timeline.schedule
    if job is None:
        return []
    from ppsim.costs.job_plans import plans_of  # heavy import: models

    resolved = costs.resolved_for(schedule)
    limits = [" and ".join(_limits(plan, timeline, rank)) for rank in range(schedule.num_ranks)]
    return [
        {
            "stage": stage,
            "rank": (rank := int(schedule.stage_to_rank[stage])),
            "layers": number,
            "recompute": _of_stage(one.recompute, layers, stage),
            "offload_modules": one.offload_modules,
            "forward_s": float(resolved.forward_s[stage]),
            "backward_s": float(resolved.backward_s[stage]),
            "activation_bytes": float(resolved.activation_bytes[stage]),
            "limited_by": limits[rank],
        }
        for stage, (number, one) in enumerate(zip(layers, plans_of(job, len(layers)), strict=True))
    ]


def _of_stage(recompute: Recompute, layers: Sequence[int], stage: int) -> Recompute:
    if "@" not in recompute:
        return recompute
    return text_of(plan_of_stage(recompute, layers[stage], first=sum(layers[:stage])))


def _limits(plan: Plan, timeline: Timeline, rank: int) -> list[str]:
    busy_s, peaks, limit = timeline.busy_s, timeline.memory.peak_bytes, plan.memory_bound_bytes
    limits = ["compute"] if busy_s[rank] >= _NEAR * busy_s.max() else []
    return limits + (["memory"] if limit is not None and peaks[rank] >= _NEAR * limit else [])
