"""Loss budget, sensitivities and interval of an iteration time."""

from dataclasses import fields

import numpy as np

from ppsim.costs.time_breakdown import TimeBreakdown
from ppsim.projection.projection import Interval, Projection
from ppsim.schedule.graph import build_graph
from ppsim.schedule.pairs import fused_pairs
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.engine import evaluate_many
from ppsim.simulation.simulate import durations_s, overheads_s, simulate_graph
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.variation import Variation, draw_factors

_OF_PARTS = {
    "more_flops_s": "non-model FLOPs",
    "matmul_loss_s": "GEMMs below peak",
    "attention_loss_s": "attention below peak",
    "memory_s": "memory-bound kernels",
    "measured_loss_s": "measured kernels below peak",
    "recompute_s": "recomputation",
    "tp_s": "TP communication",
    "ep_s": "EP communication",
    "cp_s": "CP communication",
    "dp_s": "parameter all-gather",
    "offload_s": "activation offload",
}
_OF_BUBBLE = ("pipeline bubble", "stage imbalance", "microbatch imbalance", "exposed P2P")
"""Parts of the idle time. Together with host overheads and waits for parameters they sum to the idle time."""

IDEAL = "model FLOPs at peak"

VARIATION = "passes that vary"

_ROUNDING = 1e-12
"""Fraction of an iteration below which a difference is rounding."""

_OF_STEP = {
    "deferred weight gradients": ("deferred",),
    "data parallelism": ("gather", "reduce", "share"),
    "optimizer": ("norm", "optimizer"),
}


def loss_budget(projection: Projection) -> dict[str, float]:
    """Return the seconds of an iteration by part; they sum to `projection.iteration_time_s`.

    Parts of compute are means over ranks. From the pipeline bubble on, each part is the extra step time when its
    cause is added to the previous causes. A part can be negative: unequal stages can suit a table.

    model FLOPs at peak
        Lower limit of compute: MFU times the iteration.
    GEMMs below peak, attention below peak, memory-bound kernels
        Additional time of kernels.
    measured kernels below peak, compute below peak
        The same for measured costs.
    compute
        Time of all actions, if the model is unknown.
    recomputation
        Time with its communication.
    TP communication, EP communication, CP communication
        Exposed part (not overlapped with compute). HybridEP's permutation of tokens belongs to EP communication.
    non-model FLOPs
        Masked scores, padded vocabulary, replicated weights and wider number formats, at peak.
    parameter all-gather
        Exposed all-gather of ZeRO 3, and reduce-scatter from ZeRO 2 on.
    activation offload
        Exposed copies to and from the host.
    pipeline bubble
        Idle time with equal stages on an ideal network.
    stage imbalance, microbatch imbalance
        Additional idle time of the real stages (negative if they idle less), and of sequences of many lengths.
    exposed P2P
        Additional idle time of transfers and their queues.
    slower next to P2P
        Slowdown of compute during transfers (`overlap_slowdown`).
    passes that vary
        Variation of action times.
    slow ranks
        `--straggler`, and the jitter of the slowest rank.
    DP stragglers
        Pipeline time · σ · E[max of n standard normals]: n data-parallel ranks on separate nodes, σ = jitter of the
        GPU type.
    data parallelism, optimizer
        Exposed part before and after the pipeline, and forwards that wait for parameters.
    host
        Overheads per action and step, and waiting for kernel launches.
    """
    timeline, costs = projection.timeline, projection.costs
    schedule = timeline.schedule
    busy = float(timeline.busy_s.mean()) - costs.first_pass_s - costs.last_pass_s / schedule.num_ranks
    budget = _compute(projection, busy)
    without = costs.replace(
        transfer_s=0.0, channel="ideal", communication="overlap", action_overhead_s=0.0, hop_overhead_s=0.0,
        message_overhead_s=0.0, overlap_slowdown=0.0, first_pass_s=0.0, last_pass_s=0.0, variation_s=0.0,
        between_rounds_s=0.0,
    )  # fmt: skip
    network = without.replace(transfer_s=costs.transfer_s, channel=costs.channel, communication=costs.communication)
    ideal, in_one_go = build_graph(schedule, pairs=costs.pairs), costs.replace(between_rounds_s=0.0)
    is_held_back = timeline.earliest is not None or costs.between_rounds_s > 0
    steps = [
        busy,
        *(
            simulate_graph(ideal, one).step_time_s
            for one in (_balanced(without, schedule), without.with_equal_microbatches(), without)
        ),
        simulate_graph(timeline.graph, network).step_time_s,
        simulate_graph(timeline.graph, in_one_go.replace(variation_s=0.0, overlap_slowdown=0.0)).step_time_s,
        simulate_graph(timeline.graph, in_one_go.replace(variation_s=0.0)).step_time_s,
        simulate_graph(timeline.graph, in_one_go).step_time_s if is_held_back else timeline.step_time_s,
        timeline.step_time_s,
    ]
    names = (*_OF_BUBBLE, "host", "slower next to P2P", VARIATION, "data parallelism")
    for name, before, after in zip(names, steps, steps[1:], strict=False):
        budget[name] = budget.get(name, 0.0) + after - before
    exposed = projection.step.exposed_s
    for name, kinds in _OF_STEP.items():
        budget[name] = budget.get(name, 0.0) + sum(exposed.get(kind, 0.0) for kind in kinds)
    budget["host"] += exposed["rest"] + costs.step_overhead_s
    budget["DP stragglers"] = exposed["stragglers"]
    budget["slow ranks"] = budget.get("slow ranks", 0.0) + exposed["slow rank"]
    # Unsynchronised ranks shorten the iteration below the step time: the bubble is shorter by the difference.
    budget[_OF_BUBBLE[0]] += projection.iteration_time_s - sum(budget.values())
    budget["host"] = budget.pop("host")
    least = _ROUNDING * projection.iteration_time_s
    return {name: float(value) for name, value in budget.items() if abs(value) > least or name == IDEAL}


def _compute(projection: Projection, busy: float) -> dict[str, float]:
    table, assembled = projection.timeline.schedule, projection.stage_cost_set
    if not projection.plan.has_model:
        return {"compute": busy}
    if not assembled.parts:
        peak = projection.peak_flops_per_s
        flops = 3 * assembled.forward_flops * table.num_microbatches / table.num_ranks
        ideal = flops / peak if peak else 0.0
        return {IDEAL: ideal, "compute below peak": busy - ideal}
    total = TimeBreakdown()
    for stage, part in enumerate(assembled.parts):
        halves = part.backward_input, part.backward_weight
        if stage == 0 and projection.plan.runtime == "torch":  # torch runs the whole backward pass of stage 0 as W
            halves = TimeBreakdown(), part.backward
        passes = (part.forward, part.backward, *halves)
        for op, one in zip((Op.F, Op.B, Op.I, Op.W), passes, strict=True):
            times = np.count_nonzero((table.op == op) & (table.model_stage[table.stage] == stage))
            total += one * (times / (table.num_slices * table.num_ranks))
    terms = {part.name: getattr(total, part.name) for part in fields(total)}
    budget = {IDEAL: terms.pop("ideal_s")}
    host = terms.pop("host_s")
    budget |= {_OF_PARTS[name]: value for name, value in terms.items()}
    budget["host"] = host
    saved = _saved_by_pairs_s(projection)  # hidden messages, and host waits; negative if the host slows pairs down
    hidden = min(max(saved, 0.0), budget[_OF_PARTS["ep_s"]])
    budget[_OF_PARTS["ep_s"]] -= hidden
    budget["host"] -= saved - hidden
    budget["slow ranks"] = busy - sum(budget.values())
    return {
        name: value for name, value in budget.items() if abs(value) > _ROUNDING * busy or name in (IDEAL, "host")
    }


def _saved_by_pairs_s(projection: Projection) -> float:
    table = projection.timeline.schedule
    costs = projection.costs.with_equal_microbatches().resolved_for(table)
    if costs.fused_s is None:
        return 0.0
    forward, backward = (table.stage[entries] for entries in fused_pairs(table))
    saved_s = costs.forward_s[forward] + costs.backward_s[backward] - costs.fused_s[forward, backward]
    return float(saved_s.sum()) / table.num_ranks


def _balanced(costs: StageCosts, schedule: Schedule) -> StageCosts:
    found = costs.resolved_for(schedule)
    forward, backward = (schedule.stage[entries] for entries in fused_pairs(schedule))
    fused_s = None if found.fused_s is None or not len(forward) else found.fused_s[forward, backward].mean()
    return costs.with_equal_microbatches().replace(
        forward_s=float(found.forward_s.mean()),
        backward_s=float(found.backward_s.mean()),
        backward_input_s=float(found.backward_input_s.mean()),
        backward_weight_s=float(found.backward_weight_s.mean()),
        fused_s=fused_s,
    )


_FASTER = 0.01
_ALL_STAGES = "compute of all stages"


def sensitivities(projection: Projection) -> dict[str, float]:
    """Return the fraction of the iteration time that is saved if one cost is 1 % lower, largest first."""
    timeline, costs = projection.timeline, projection.costs
    graph, schedule = timeline.graph, timeline.schedule
    durations = durations_s(graph, costs.resolved_for(schedule))
    is_transfer = np.arange(graph.num_nodes) >= graph.num_actions
    masks: dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {_ALL_STAGES: ~is_transfer}
    for stage in range(schedule.num_stages):
        mask = np.zeros(graph.num_nodes, dtype=bool)
        mask[: graph.num_actions] = schedule.stage == stage
        masks[f"compute of stage {stage}"] = mask
    if graph.num_transfers:
        masks["transfers"] = is_transfer
    sets = np.stack([durations, *(np.where(mask, (1 - _FASTER) * durations, durations) for mask in masks.values())])
    times = evaluate_many(graph, sets, overheads_s(graph, costs)).step_time_s
    found = {
        name: float((times[0] - time) / projection.iteration_time_s)
        for name, time in zip(masks, times[1:], strict=True)
    }
    exposed = projection.step.exposed_s
    for name, kinds in _OF_STEP.items():
        if all(kind in exposed for kind in kinds):
            found[name] = _FASTER * sum(exposed[kind] for kind in kinds) / projection.iteration_time_s
    if costs.between_rounds_s:
        shorter = overheads_s(graph, costs.replace(between_rounds_s=(1 - _FASTER) * costs.between_rounds_s))
        time = evaluate_many(graph, durations, shorter).step_time_s[0]
        found["data parallelism"] += float((times[0] - time) / projection.iteration_time_s)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def largest_bottleneck(found: dict[str, float]) -> str:
    """Return the limiting resource, or the stage with the largest gain if all stages together limit the step.

    >>> largest_bottleneck({"compute of all stages": 0.9, "transfers": 0.05, "compute of stage 3": 0.02})
    'compute of stage 3'
    """
    of_one = [name for name in found if name.startswith("compute of stage ")]
    most = max((name for name in found if name not in of_one), key=lambda name: found[name])
    return max(of_one, key=lambda name: found[name]) if most == _ALL_STAGES else most


def interval(
    projection: Projection,
    *,
    spread: float,
    jitter: Variation,
    rank_spread: float = 0.0,
    num_samples: int = 100,
    seed: int = 0,
) -> Interval:
    """Return the 5th and 95th percentile of the iteration time in seconds, over sampled costs.

    All three variations are relative standard deviations of log-normal draws: `spread` is common to all costs,
    `jitter` is per action (or its own distribution), and `rank_spread` per rank.
    """
    timeline, costs = projection.timeline, projection.costs.replace(variation_s=0.0)
    graph = timeline.graph
    random = np.random.default_rng(seed)
    durations = durations_s(graph, costs.resolved_for(timeline.schedule))
    noise = draw_factors(jitter, random, (num_samples, graph.num_nodes))
    if rank_spread:
        of_ranks = np.exp(rank_spread * random.standard_normal((num_samples, timeline.schedule.num_ranks)))
        noise[:, : graph.num_actions] *= of_ranks[:, timeline.schedule.rank]
    sets = np.concatenate([durations[None], durations * noise])
    times = evaluate_many(graph, sets, overheads_s(graph, costs)).step_time_s
    around, steps = projection.iteration_time_s - times[0], times[1:]
    if projection.costs.variation_s:  # the draws already contain this variation
        around -= timeline.step_time_s - simulate_graph(graph, costs, ready_s=timeline.ready_s).step_time_s
    common = np.exp(spread * random.standard_normal(num_samples))
    ordered = np.sort((steps + around) * common).tolist()
    return _quantile(ordered, 0.05), _quantile(ordered, 0.95)


def _quantile(ordered: list[float], part: float) -> float:
    """Return exactly the value of `np.quantile`, without the import of numpy's masked arrays."""
    place = part * (len(ordered) - 1)
    below = min(int(place), len(ordered) - 2)
    before, after, beyond = ordered[below], ordered[below + 1], place - below
    if beyond < 0.5:
        return before + (after - before) * beyond
    return after - (after - before) * (1 - beyond)
