"""Marginal costs of a layer for its stage and rank: a stage with two layers minus a stage with one."""

from collections import Counter
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.costs.assemble_job import activation_bytes, estimate_of
from ppsim.costs.dp_and_optimizer import layer_reduction_s, passes_s
from ppsim.costs.job import Job, work_of
from ppsim.costs.offload import offload_of
from ppsim.costs.stage_cost_set import LayerCosts
from ppsim.model.architecture import Layer
from ppsim.model.pipeline_stages import Stage, stages_of
from ppsim.model.rank_memory import rank_memory
from ppsim.model.recompute import LayerPlan, Recompute
from ppsim.parallel.layer_partition import even_split


def layer_costs_of(job: Job) -> LayerCosts:
    num_stages = len(job.stage_plans) or job.layout.pp
    stages = stages_of(job.model, even_split(len(job.model.layers), num_stages))
    planned = job.planned(stages, [[stage] for stage in range(num_stages)])
    kinds = [
        (layer, plan.recompute, plan.joined, stage.offload_modules)
        for stage in planned
        for layers, plan in stage.planned("none")
        for layer in layers
    ]
    number = Counter(kinds)
    found = {kind: _costs_of(job, *kind) for kind in number}

    def mean(name: str) -> Any:
        return sum(number[kind] * one[name] for kind, one in found.items()) / len(kinds)

    passes, work_s = mean("passes_s"), {kind: one["passes_s"][:2].sum() for kind, one in found.items()}
    return LayerCosts(
        work_s=job.scale * np.array([work_s[kind] for kind in kinds]),
        **{name: job.scale * mean(name) for name in ("passes_s", "exposed_s", "reduce_s", "optimizer_s")},
        static_bytes=mean("static_bytes"),
        activation_bytes=mean("activation_bytes"),
        fixed=work_of(job.costs_outside_layers) / (float(passes[:2].sum()) or 1.0),
    )


def _costs_of(job: Job, layer: Layer, recompute: Recompute, joined: bool, offload: str | None) -> dict[str, Any]:
    one, two = (
        Stage((layer,) * number, plan=(LayerPlan(number, recompute, joined),), offload_modules=offload)
        for number in (1, 2)
    )
    held = [rank_memory(job.model, [stage], job.settings, in_flight=[0]).total for stage in (one, two)]
    kept = [activation_bytes(job, stage)[0] for stage in (one, two)]
    gone = [offload_of(job, stage, whole).freed for stage, whole in zip((one, two), kept, strict=True)]
    passes = _passes_s(job, two) - _passes_s(job, one)
    reduce_s, optimizer_s = layer_reduction_s(job, layer)
    return {
        "passes_s": passes, "exposed_s": _exposed_s(job, layer, passes), "reduce_s": reduce_s,
        "optimizer_s": optimizer_s, "static_bytes": held[1] - held[0],
        "activation_bytes": (kept[1] - kept[0]) - (gone[1] - gone[0]),
    }  # fmt: skip


def _passes_s(job: Job, stage: Stage) -> Floats:
    """Seconds of F, B, I and W."""
    estimate = estimate_of(job, stage)
    passes = estimate.forward, estimate.backward, estimate.backward_input, estimate.backward_weight
    return np.array([one.total_s - one.dp_s for one in passes])


def _exposed_s(job: Job, layer: Layer, compute_s: Floats) -> Floats:
    """Seconds of F, B, I and W if the data-parallel collectives of each pass take no less time than its compute."""
    if job.optimizer.zero_stage < 2:
        return compute_s
    (gather_one, reduce_one), (gather_two, reduce_two) = (
        passes_s(job, Stage((layer,) * number)) for number in (1, 2)
    )
    gather_s, reduce_s = gather_two - gather_one, reduce_two - reduce_one
    gathers, reduces = np.array([1, 1, 1, 0]), np.array([0, 1, 0, 1])
    hides = gathers * job.overlap_param_gather + reduces * job.overlap_grad_reduce > 0
    return gathers * gather_s + reduces * reduce_s + np.where(hides, 0.0, compute_s)
