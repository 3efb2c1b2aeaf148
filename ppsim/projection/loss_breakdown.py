"""Loss budget, sensitivities and interval of an iteration time."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from math import exp, hypot

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.costs.stage_cost_set import StageCostSet
from ppsim.costs.time_breakdown import TimeBreakdown
from ppsim.projection.projection import ALL_STAGES, Interval, Projection
from ppsim.schedule.graph import build_graph
from ppsim.schedule.rounds import round_starts
from ppsim.schedule.table import NONE, Op, Schedule, fused_pairs
from ppsim.simulation.engine import RankTimes, evaluate_many
from ppsim.simulation.idle_causes import gaps
from ppsim.simulation.simulate import durations_s, overheads_s, simulate_graph
from ppsim.simulation.timeline import Timeline
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
    """Return the seconds of an iteration by part; they sum to `projection.iteration_time_s`, and none is negative.

    Parts of compute are means over ranks. Each later part is a sum of times that no other part has, or the extra
    step time of a simulation in which delays and waits are added to the previous one.

    With `--optimizer-sync post-validated` ranks do not wait for each other, so all parts are means over ranks, of
    the time from a rank's start of a step to its start of the next one.

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
    stage imbalance
        Compute of the busiest rank beyond the mean of all ranks.
    pipeline bubble
        Idle time of the busiest rank on an ideal network.
    exposed P2P
        Additional step time of transfers and their queues.
    passes that vary
        Variation of action times.
    slower next to P2P
        Slowdown of compute during transfers (`overlap_slowdown`).
    slow ranks
        Extra compute of `--straggler`, mean over ranks, and the jitter of the slowest rank.
    DP stragglers
        Pipeline time · σ · E[max of n standard normals]: n data-parallel ranks on separate nodes, σ = jitter of the
        GPU type.
    deferred weight gradients
        Weight gradients after the pipeline.
    data parallelism, optimizer
        Exposed part before and after the pipeline, and forwards that wait for parameters.
    host
        Overheads per action and step, and waiting for kernel launches.
    """
    costs, step = projection.costs, projection.step
    schedule = projection.timeline.schedule
    plain = costs.replace(
        transfer_s=0.0, channel="ideal", communication="overlap", action_overhead_s=0.0, hop_overhead_s=0.0,
        message_overhead_s=0.0, overlap_slowdown=0.0, first_pass_s=0.0, last_pass_s=0.0, variation_s=0.0,
        between_rounds_s=0.0, slow_links=None,
    )  # fmt: skip
    alone = simulate_graph(build_graph(schedule, pairs=costs.pairs), plain)
    is_synchronised = projection.stage_cost_set.step_costs.update == "synchronised"
    exposed = step.exposed_s
    parts = _added(
        _compute(projection, float(alone.busy_s.mean())),
        (_of_step_time if is_synchronised else _of_rank_periods)(projection, alone),
        {
            "DP stragglers": exposed["stragglers"],
            "slow ranks": exposed["slow rank"],
            "host": exposed["rest"] + costs.step_overhead_s,
        },
    )
    ideal_s = projection.stage_cost_set.step_costs.deferred_ideal_s
    in_deferred_s = min(ideal_s, parts["deferred weight gradients"])  # the rest is hidden in the idle time of ranks
    deferred = {"deferred weight gradients": -in_deferred_s, "pipeline bubble": in_deferred_s - ideal_s}
    if ideal_s:
        parts = _added(parts, {IDEAL: ideal_s}, deferred)
    parts["host"] = parts.pop("host")  # last
    least = _ROUNDING * projection.iteration_time_s
    return {name: float(value) for name, value in parts.items() if abs(value) > least or name == IDEAL}


def _added(*lists: Mapping[str, float]) -> dict[str, float]:
    total: dict[str, float] = {}
    for parts in lists:
        for name, seconds in parts.items():
            total[name] = total.get(name, 0.0) + seconds
    return total


def _of_step_time(projection: Projection, alone: Timeline) -> dict[str, float]:
    """Return the parts if the optimizer waits for all ranks, without compute.

    `alone` has only compute, on an ideal network. Every following simulation only adds durations, overheads and
    dependencies, so that no difference is negative. The slowdown comes last because it depends on all start times.
    """
    timeline, costs, busy_s = projection.timeline, projection.costs, alone.busy_s
    added = {
        "exposed P2P": ("transfer_s", "channel", "communication"),
        "host": ("action_overhead_s", "hop_overhead_s", "message_overhead_s", "first_pass_s", "last_pass_s"),
        VARIATION: ("variation_s",),
        "data parallelism": ("between_rounds_s",),
    }
    parts = {
        "stage imbalance": float(busy_s.max() - busy_s.mean()),
        "pipeline bubble": alone.step_time_s - float(busy_s.max()),
    }
    left_out = {name: 0.0 for names in list(added.values())[1:] for name in names}
    before_s = alone.step_time_s
    for part, names in added.items():
        left_out = {name: value for name, value in left_out.items() if name not in names}
        ready_s = None if left_out else timeline.ready_s  # at last, forwards wait for their parameters
        with_part = costs.replace(overlap_slowdown=0.0, **left_out)
        step_time_s = simulate_graph(timeline.graph, with_part, ready_s=ready_s).step_time_s
        parts[part], before_s = step_time_s - before_s, step_time_s
    parts["slower next to P2P"] = timeline.step_time_s - before_s
    exposed = projection.step.exposed_s
    around = {name: sum(exposed.get(kind, 0.0) for kind in kinds) for name, kinds in _OF_STEP.items()}
    return _added(parts, around)


def _of_rank_periods(projection: Projection, alone: Timeline) -> dict[str, float]:
    """Return the parts if no rank waits for the optimizer of others, without compute; all are means over ranks.

    The idle time within a rank's span is divided by the last event that an action waited for. A rank that needs
    less time per step than the slowest one waits for the difference.
    """
    timeline, costs, step = projection.timeline, projection.costs, projection.step
    schedule, waits = timeline.schedule, gaps(timeline)
    within = np.ones(timeline.num_actions)
    within[schedule.rank_offsets[:-1]] = 0.0
    for_parameters = timeline.blocker[: timeline.num_actions] == NONE
    if costs.between_rounds_s:
        for_parameters[round_starts(schedule)] = True
    overheads = overheads_s(timeline.graph, costs)[: timeline.num_actions]
    varies = np.divide(costs.variation_s, overheads, out=np.zeros(len(overheads)), where=overheads > 0)

    def mean_s(seconds: Floats) -> float:
        return float(np.sum(seconds * within)) / schedule.num_ranks

    extra_passes_s = costs.first_pass_s + costs.last_pass_s / schedule.num_ranks
    exposed = step.exposed_by_rank_s
    periods_s = timeline.rank_end_s - timeline.rank_begin_s + sum(exposed.values())
    return _added(
        {
            "stage imbalance": float(periods_s.max() - periods_s.mean()),
            "pipeline bubble": mean_s(waits.compute_s),
            "exposed P2P": mean_s(waits.communication_s * ~for_parameters),
            "data parallelism": mean_s(waits.communication_s * for_parameters),
            "host": mean_s(waits.overhead_s * (1 - varies)) + extra_passes_s,
            VARIATION: mean_s(waits.overhead_s * varies),
            "slower next to P2P": float((timeline.busy_s - alone.busy_s).mean()) - extra_passes_s,
        },
        {name: float(sum(exposed[kind].mean() for kind in kinds)) for name, kinds in _OF_STEP.items()},
    )


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
        for op, pass_cost in zip((Op.F, Op.B, Op.I, Op.W), passes, strict=True):
            times = np.count_nonzero((table.op == op) & (table.model_stage[table.stage] == stage))
            total += pass_cost * (times / (table.num_slices * table.num_ranks))
    total += _of_pairs(table, assembled)
    terms = {part.name: getattr(total, part.name) for part in fields(total)}
    budget = {IDEAL: terms.pop("ideal_s")}
    host = terms.pop("host_s")
    budget |= {_OF_PARTS[name]: value for name, value in terms.items()}
    return budget | {"host": host, "slow ranks": busy - total.total_s}


def _of_pairs(table: Schedule, assembled: StageCostSet) -> TimeBreakdown:
    """Return the change of exposed messages and host waits because forwards run together with backwards.

    A pair takes the compute of its two passes, the part of its messages that this compute does not hide, and the
    part of the kernel launches that takes longer than both.
    """
    if assembled.pair_host_s is None:
        return TimeBreakdown()
    forward, backward = (table.model_stage[table.stage[entries]] for entries in fused_pairs(table))
    parts, pairs_s = assembled.parts, np.asarray(assembled.costs.fused_s)
    change = TimeBreakdown()
    for (one, other), times in Counter(zip(forward.tolist(), backward.tolist(), strict=True)).items():
        apart, host_s = parts[one].forward + parts[other].backward, assembled.pair_host_s[one][other]
        compute_s = apart.total_s - apart.ep_s - apart.host_s
        exposed_s = float(pairs_s[one, other]) - compute_s - host_s
        change += TimeBreakdown(ep_s=exposed_s - apart.ep_s, host_s=host_s - apart.host_s) * times
    return change * (1 / table.num_ranks)


_FASTER = 0.01


def sensitivities(projection: Projection) -> dict[str, float]:
    """Return the fraction of the iteration time that is saved if one cost is 1 % lower, largest first."""
    timeline, costs = projection.timeline, projection.costs
    graph, schedule = timeline.graph, timeline.schedule
    durations = durations_s(graph, costs.resolved_for(schedule))
    is_transfer = np.arange(graph.num_nodes) >= graph.num_actions
    masks: dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {ALL_STAGES: ~is_transfer}
    for stage in range(schedule.num_stages):
        mask = np.zeros(graph.num_nodes, dtype=bool)
        mask[: graph.num_actions] = schedule.stage == stage
        masks[f"compute of stage {stage}"] = mask
    if graph.num_transfers:
        masks["transfers"] = is_transfer
    sets = np.stack([durations, *(np.where(mask, (1 - _FASTER) * durations, durations) for mask in masks.values())])
    times = _pipeline_s(projection, evaluate_many(graph, sets, overheads_s(graph, costs)))
    changes = {
        name: float((times[0] - time) / projection.iteration_time_s)
        for name, time in zip(masks, times[1:], strict=True)
    }
    exposed = projection.step.exposed_s
    for name, kinds in _OF_STEP.items():
        if all(kind in exposed for kind in kinds):
            changes[name] = _FASTER * sum(exposed[kind] for kind in kinds) / projection.iteration_time_s
    if costs.between_rounds_s:
        shorter = overheads_s(graph, costs.replace(between_rounds_s=(1 - _FASTER) * costs.between_rounds_s))
        time = _pipeline_s(projection, evaluate_many(graph, durations, shorter))[0]
        changes["data parallelism"] += float((times[0] - time) / projection.iteration_time_s)
    return dict(sorted(changes.items(), key=lambda item: -item[1]))


def _pipeline_s(projection: Projection, times: RankTimes) -> Floats:
    """Return the pipeline's part of the iteration time: without synchronisation, a rank's span."""
    return times.span_s if projection.plan.criterion == "span" else times.step_time_s


def interval(
    projection: Projection, *, spread: float, jitter: Variation, rank_spread: float = 0.0, seed: int = 0
) -> Interval:
    """Return the 90 % interval of the iteration time in seconds.

    All three variations are relative standard deviations of log-normal distributions: `spread` is common to all
    costs, `jitter` is per action (or its own distribution), and `rank_spread` per rank. The effect of the last two
    on a step is sampled; steps with many actions need fewer samples, because their variations average out.
    """
    timeline, costs = projection.timeline, projection.costs.replace(variation_s=0.0)
    graph = timeline.graph
    num_samples = max(_LEAST_SAMPLES, min(_MOST_SAMPLES, _MOST_DRAWN // graph.num_nodes))
    random = np.random.default_rng(seed)
    durations = durations_s(graph, costs.resolved_for(timeline.schedule))
    noise = draw_factors(jitter, random, (num_samples, graph.num_nodes))
    if rank_spread:
        of_ranks = np.exp(rank_spread * random.standard_normal((num_samples, timeline.schedule.num_ranks)))
        noise[:, : graph.num_actions] *= of_ranks[:, timeline.schedule.rank]
    sets = np.concatenate([durations[None], durations * noise])
    times = _pipeline_s(projection, evaluate_many(graph, sets, overheads_s(graph, costs)))
    around, steps = projection.iteration_time_s - times[0], times[1:]
    if projection.costs.variation_s:  # the draws already contain this variation
        around -= timeline.step_time_s - simulate_graph(graph, costs, ready_s=timeline.ready_s).step_time_s
    mean_s = float(steps.mean() + around)
    return interval_by_spread(mean_s, hypot(spread, float(steps.std()) / mean_s))


_LEAST_SAMPLES, _MOST_SAMPLES = 16, 100
_MOST_DRAWN = 200_000
"""Maximum number of random numbers, but for the least number of samples."""


def interval_by_spread(seconds: float, spread: float) -> Interval:
    """Return the 90 % interval of a log-normal distribution around `seconds`."""
    return seconds * exp(-_TIMES_OF_90 * spread), seconds * exp(_TIMES_OF_90 * spread)


_TIMES_OF_90 = 1.6448536269514722
"""95 % quantile of the standard normal distribution."""
