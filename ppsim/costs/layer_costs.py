"""Marginal costs of a layer for its stage and rank: a stage with two layers minus a stage with one."""

from collections import Counter
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.costs.dp_and_optimizer import update_s
from ppsim.costs.job import Job
from ppsim.costs.job_plans import stages_with_plans
from ppsim.costs.ledger import Ledger, StageSums
from ppsim.costs.offload import offload_of
from ppsim.costs.replica_collectives import passes_s
from ppsim.costs.similar_jobs import scale_of
from ppsim.costs.stage_cost_set import LayerCosts
from ppsim.costs.time_breakdown import work_of
from ppsim.model.architecture import Layer
from ppsim.model.pipeline_stages import Stage, stages_of
from ppsim.model.recompute import LayerPlan, Recompute
from ppsim.parallel.layer_partition import even_split


def layer_costs_of(ledger: Ledger) -> LayerCosts:
    job = ledger.job
    num_stages = len(job.stage_plans) or job.layout.pp
    stages = stages_of(job.model, even_split(len(job.model.layers), num_stages))
    planned = stages_with_plans(job, stages, [[stage] for stage in range(num_stages)])
    kinds = [
        (layer, plan.recompute, plan.joined, stage.offload_modules)
        for stage in planned
        for layers, plan in stage.planned("none")
        for layer in layers
    ]
    number = Counter(kinds)
    costs = {kind: _costs_of(ledger, *kind) for kind in number}

    def mean(name: str) -> Any:
        return sum(number[kind] * one[name] for kind, one in costs.items()) / len(kinds)

    passes, work_s = mean("passes_s"), {kind: one["passes_s"][:2].sum() for kind, one in costs.items()}
    scale = scale_of(job)
    return LayerCosts(
        work_s=scale * np.array([work_s[kind] for kind in kinds]),
        **{name: scale * mean(name) for name in ("passes_s", "exposed_s", "reduce_s", "optimizer_s")},
        static_bytes=mean("static_bytes"),
        activation_bytes=mean("activation_bytes"),
        fixed=work_of(job.costs.outside_layers) / (float(passes[:2].sum()) or 1.0),
    )


def _costs_of(
    ledger: Ledger, layer: Layer, recompute: Recompute, joined: bool, offload: str | None
) -> dict[str, Any]:
    job = ledger.job
    stages = [
        Stage((layer,) * number, plan=(LayerPlan(number, recompute, joined),), offload_modules=offload)
        for number in (1, 2)
    ]
    sums, ranks = ledger.stages(stages), ledger.ranks([[stage] for stage in stages])
    saved = [
        of_stage.saved_bytes - offload_of(job, stage, of_stage.saved_bytes).freed
        for stage, of_stage in zip(stages, sums, strict=True)
    ]
    passes = _passes_s(sums[1]) - _passes_s(sums[0])
    return {
        "passes_s": passes,
        "exposed_s": _exposed_s(job, sums, passes),
        "reduce_s": sums[1].per_step_s[1] - sums[0].per_step_s[1],
        "optimizer_s": update_s(job, ranks[1]) - update_s(job, ranks[0]),
        "static_bytes": ranks[1].idle_bytes - ranks[0].idle_bytes,
        "activation_bytes": saved[1] - saved[0],
    }


def _passes_s(sums: StageSums) -> Floats:
    """Seconds of F, B, I and W."""
    costs = sums.costs
    passes = costs.forward, costs.backward, costs.backward_input, costs.backward_weight
    return np.array([pass_cost.total_s - pass_cost.dp_s for pass_cost in passes])


def _exposed_s(job: Job, sums: list[StageSums], compute_s: Floats) -> Floats:
    """Seconds of F, B, I and W if the data-parallel collectives of each pass take no less time than its compute."""
    if job.optimizer.zero_stage < 2:
        return compute_s
    (gather_one, reduce_one), (gather_two, reduce_two) = (passes_s(job, of_stage.held) for of_stage in sums)
    gather_s, reduce_s = gather_two - gather_one, reduce_two - reduce_one
    gathers, reduces = np.array([1, 1, 1, 0]), np.array([0, 1, 0, 1])
    hides = gathers * job.overlap_param_gather + reduces * job.overlap_grad_reduce > 0
    return gathers * gather_s + reduces * reduce_s + np.where(hides, 0.0, compute_s)
