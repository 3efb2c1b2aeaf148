"""The assumptions of a projection, as sentences."""

from ppsim.base.units import percent, seconds
from ppsim.costs.stage_cost_set import StageCostSet
from ppsim.projection.plan import RUNTIMES, Plan
from ppsim.schedule.check import why_not_in_torch
from ppsim.schedule.table import NONE, Schedule
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.variation import relative_spread


def assumptions_of(plan: Plan, schedule: Schedule, assembled: StageCostSet, costs: StageCosts) -> list[str]:
    lines = list(assembled.assumptions)
    if plan.microbatches is None and plan.job is None:
        lines.append(f"microbatches: {schedule.num_microbatches} (4 per rank; --num-microbatches sets it)")
    lines.append(
        f"runtime: {plan.runtime} ({RUNTIMES[plan.runtime][1]}); channel {costs.channel}, receives {costs.receives}"
    )
    if plan.runtime != "ideal" and (reason := why_not_in_torch(schedule)):
        lines.append(
            f"{plan.runtime} cannot run this table as it stands ({reason}); P2P is simulated as if it could"
        )
    if costs.fused_s is None and (schedule.fused != NONE).any():
        lines.append("fused pairs: one part after the other, no gain; the profile has no cost of a pair")
    lines += [f"rank {rank} computes {factor:g} × as long" for rank, factor in plan.stragglers]
    if costs.variation_s and plan.variation is not None:
        spread = percent(relative_spread(plan.variation))
        lines.append(f"actions vary by {spread} (1 σ), as measured: their waits are in the step time")
    return lines + _assumed_overheads(costs, schedule.num_replicas, has_job=plan.job is not None)


def _assumed_overheads(costs: StageCosts, num_replicas: int, *, has_job: bool) -> list[str]:
    lines = []
    if costs.action_overhead_s == 0 and costs.hop_overhead_s == 0:
        lines.append("overheads: none (fit them with ppsim calibrate, give them with --calibration)")
    else:
        action, hop = seconds(costs.action_overhead_s), seconds(costs.hop_overhead_s)
        lines.append(f"overheads: {action} per action, {hop} per P2P transfer")
    ends = [("first", "of each rank", costs.first_pass_s), ("last", "of the first stage's rank", costs.last_pass_s)]
    lines += [f"the {name} action {of} takes {seconds(longer)} longer" for name, of, longer in ends if longer]
    if costs.overlap_slowdown:
        lines.append(f"compute next to a P2P transfer takes {percent(costs.overlap_slowdown)} longer")
    between = ", summing the replicas' gradients" if num_replicas > 1 else ""
    if costs.step_overhead_s:
        between_steps = seconds(costs.step_overhead_s)
        lines.append(f"between steps: {between_steps}, as calibrated; part of iteration time, throughput and MFU")
    if has_job:
        return lines
    if costs.step_overhead_s:
        lines.append(f"not in the step time: data-parallel communication{between}")
    else:
        lines.append(f"not in the step time: data-parallel communication{between}, optimizer, gradient norm")
    return lines
