"""The schedules that are laid out for the costs at hand: ZB-1p, ZB-2p, ZB-V, V-Half, V-Min, and to a memory limit.

Each is a placement and a cap; `ppsim.catalog.search` finds the table. Where a published pattern goes by the same
name, it is one of the candidates, so that the table is never slower than it on an ideal network. Without costs
F, I and W take one unit each; without bytes an activation counts as one until its W.
"""

from functools import partial
from typing import Any, TypeGuard

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.errors import DoesNotFit
from ppsim.base.units import size
from ppsim.catalog.published.controllable_memory import v_half_fixed, v_min_fixed
from ppsim.catalog.published.v_shape import zbv_fixed
from ppsim.catalog.search.fitted import Judge, fitted
from ppsim.schedule.placement import loop, v_shape
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.bounds.problem import CAP_ROUNDING, Problem
from ppsim.simulation.stage_costs import CostArrays


def _problem(
    stage_to_rank: list[int], num_microbatches: int, costs: CostArrays | None, cap: Floats | float
) -> Problem:
    """The problem of these costs, arrays of one entry a stage (`StageCosts.resolved`), or of one unit each."""
    if costs is None:
        return Problem.of(
            stage_to_rank=stage_to_rank, num_microbatches=num_microbatches, forward_s=1.0, backward_input_s=1.0,
            backward_weight_s=1.0, cap=cap,
        )  # fmt: skip
    counts_activations = not _knows_bytes(costs)
    return Problem.of_costs(
        stage_to_rank, num_microbatches, costs, cap=cap, counts_activations=counts_activations
    ).always_split()


def _knows_bytes(costs: CostArrays | None) -> TypeGuard[CostArrays]:
    return costs is not None and bool((costs.activation_bytes > 0).all())


def _activations(num_stages: int, costs: CostArrays | None) -> Floats:
    return costs.activation_bytes if _knows_bytes(costs) else np.ones(num_stages)


def _one_chunk(
    name: str,
    per_rank: int,
    *,
    num_ranks: int,
    num_microbatches: int,
    costs: CostArrays | None = None,
    judge: Judge | None = None,
) -> Schedule:
    """Return the best table found in which every rank holds at most `per_rank`·p activations of its stage."""
    cap = per_rank * num_ranks * _activations(num_ranks, costs)
    return fitted(_problem(loop(num_ranks, num_ranks), num_microbatches, costs, cap), judge=judge).named(name)


def _in_a_v(
    name: str,
    published: Any,
    *,
    num_ranks: int,
    num_microbatches: int,
    costs: CostArrays | None = None,
    judge: Judge | None = None,
) -> Schedule:
    """Return the best table found in which every rank holds at most what it does in the published one.

    The most of all ranks there, in microbatches, is the cap for all; a rank on which the published pattern takes
    more, since its stages differ in size, may have that.
    """
    table = published(num_ranks=num_ranks, num_microbatches=num_microbatches)
    activation = _activations(2 * num_ranks, costs)
    changes = np.where(table.op == Op.F, 1.0, np.where(table.op == Op.W, -1.0, 0.0))

    def peaks(sizes: Floats) -> Floats:
        held = np.split(changes * sizes[table.stage], table.rank_offsets[1:-1])
        return np.array([np.cumsum(row).max() for row in held])

    whole = np.bincount(table.stage_to_rank, weights=activation)
    cap = np.maximum(peaks(np.full(2 * num_ranks, 0.5)).max() * whole, peaks(activation))
    problem = _problem(v_shape(num_ranks, 2 * num_ranks), num_microbatches, costs, cap)
    return fitted(problem, judge=judge).named(name)


def _to_limit(
    name: str,
    placement: Any,
    stages_per_rank: int,
    *,
    num_ranks: int,
    num_microbatches: int,
    costs: CostArrays | None = None,
    judge: Judge | None = None,
    memory_limit_bytes: float | None = None,
) -> Schedule:
    """Return the best table found in which no rank holds more than the limit, static bytes included.

    Without a limit, or without bytes, memory is no matter. Raises `DoesNotFit` naming the rank whose limit is
    below its static bytes and one activation of each of its stages.
    """
    stage_to_rank = placement(num_ranks, stages_per_rank * num_ranks)
    cap = np.full(num_ranks, np.inf)
    if memory_limit_bytes is not None and _knows_bytes(costs):
        cap = memory_cap(memory_limit_bytes, stage_to_rank, costs)
    return fitted(_problem(stage_to_rank, num_microbatches, costs, cap), judge=judge).named(name)


def memory_cap(memory_limit_bytes: float, stage_to_rank: list[int], costs: CostArrays) -> Floats:
    """Return what a limit in bytes leaves for activations, an entry a rank; raises `DoesNotFit` if too little."""
    cap: Floats = memory_limit_bytes - costs.static_bytes
    least = np.bincount(stage_to_rank, weights=costs.activation_bytes, minlength=len(cap))
    short = np.flatnonzero(cap * CAP_ROUNDING < least)
    if len(short):
        rank = int(short[0])
        needed = float(costs.static_bytes[rank] + least[rank])
        raise DoesNotFit(
            f"rank {rank} needs {size(needed)} for one microbatch > {size(memory_limit_bytes)}: no order of "
            f"actions fits"
        )
    return cap


zb_1p = partial(_one_chunk, "zb-1p", 1)
zb_2p = partial(_one_chunk, "zb-2p", 2)
zb_auto = partial(_to_limit, "zb-auto", loop, 1)
zbv = partial(_in_a_v, "zbv", zbv_fixed)
v_half = partial(_in_a_v, "v-half", v_half_fixed)
v_min = partial(_in_a_v, "v-min", v_min_fixed)
v_flex = partial(_to_limit, "v-flex", v_shape, 2)
