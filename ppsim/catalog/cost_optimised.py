"""Schedules optimised for given costs: each is a placement and a memory cap for `ppsim.catalog.search`.

Without costs, F, I and W take one unit each. Without bytes, each activation counts as one unit from F to W.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.errors import DoesNotFit
from ppsim.base.units import size
from ppsim.catalog.published.controllable_memory import v_half_fixed, v_min_fixed, zbv_fixed
from ppsim.schedule.placement import loop, v_shape
from ppsim.schedule.table import Schedule
from ppsim.simulation.bounds.problem import CAP_ROUNDING, Criterion, Problem
from ppsim.simulation.cost_arrays import CostArrays
from ppsim.simulation.memory_per_action import memory_per_action
from ppsim.simulation.stage_costs import StageCosts

if TYPE_CHECKING:
    from ppsim.catalog.search.best_table import TableEvaluator

CapOf: TypeAlias = Callable[[list[int], int, CostArrays], Floats]
"""Memory cap per rank, in the unit of `_activations`, from placement, number of microbatches and costs."""


def _fitted(
    name: str,
    placement: Callable[[int], list[int]],
    cap_of: CapOf,
    *,
    num_ranks: int,
    num_microbatches: int,
    costs: CostArrays | None = None,
    evaluator: "TableEvaluator | Criterion" = "step",
    is_thorough: bool = False,
) -> Schedule:
    stage_to_rank = placement(num_ranks)
    if costs is None:
        costs = _UNIT.resolved(num_stages=len(stage_to_rank), num_ranks=num_ranks)
    cap = cap_of(stage_to_rank, num_microbatches, costs)
    problem = Problem.of_costs(
        stage_to_rank, num_microbatches, costs, cap=cap, counts_activations=not _knows_bytes(costs)
    )
    from ppsim.catalog.search.best_table import best_table  # deferred: loads the search kernels

    criterion, there = (evaluator, None) if isinstance(evaluator, str) else (evaluator.criterion, evaluator)
    fitted = best_table(problem.always_split(), criterion=criterion, evaluator=there, is_thorough=is_thorough)
    return fitted.named(name)


_UNIT = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)


def _knows_bytes(costs: CostArrays) -> bool:
    return bool((costs.activation_bytes > 0).all())


def _activations(costs: CostArrays) -> Floats:
    return costs.activation_bytes if _knows_bytes(costs) else np.ones(len(costs.activation_bytes))


def _times_p(per_rank: int, stage_to_rank: list[int], num_microbatches: int, costs: CostArrays) -> Floats:
    return per_rank * len(stage_to_rank) * _activations(costs)


def _as_in(
    published: Callable[..., Schedule], stage_to_rank: list[int], num_microbatches: int, costs: CostArrays
) -> Floats:
    """In units of microbatches, the highest peak of the published table is the cap for every rank.

    With stages of different size, a rank's own peak in that table can be higher; then that peak is its cap.
    """
    table = published(num_ranks=max(stage_to_rank) + 1, num_microbatches=num_microbatches)
    activation = _activations(costs)

    def peaks(sizes: Floats) -> Floats:
        _, after = memory_per_action(table, sizes, sizes)
        return np.maximum.reduceat(after, table.rank_offsets[:-1])

    of_ranks = np.bincount(stage_to_rank, weights=activation)
    cap: Floats = np.maximum(peaks(np.full(len(activation), 0.5)).max() * of_ranks, peaks(activation))
    return cap


def _to_limit(
    name: str,
    placement: Callable[[int], list[int]],
    *,
    num_ranks: int,
    num_microbatches: int,
    costs: CostArrays | None = None,
    evaluator: "TableEvaluator | Criterion" = "step",
    is_thorough: bool = False,
    memory_limit_bytes: float | None = None,
) -> Schedule:
    """Return a schedule within `memory_limit_bytes`; ignores the limit if `costs` have no activation bytes."""

    def cap_of(stage_to_rank: list[int], num_microbatches: int, costs: CostArrays) -> Floats:
        if memory_limit_bytes is None or not _knows_bytes(costs):
            return np.full(num_ranks, np.inf)
        return memory_cap(memory_limit_bytes, stage_to_rank, costs)

    return _fitted(
        name, placement, cap_of,
        num_ranks=num_ranks, num_microbatches=num_microbatches, costs=costs, evaluator=evaluator,
        is_thorough=is_thorough,
    )  # fmt: skip


def memory_cap(memory_limit_bytes: float, stage_to_rank: list[int], costs: CostArrays) -> Floats:
    """Return the bytes per rank that a limit leaves for activations.

    Raises `DoesNotFit` if a rank has no room for one activation per stage.
    """
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


def _one_a_rank(num_ranks: int) -> list[int]:
    return loop(num_ranks, num_ranks)


def _in_a_v(num_ranks: int) -> list[int]:
    return v_shape(num_ranks, 2 * num_ranks)


zb_1p = partial(_fitted, "zb-1p", _one_a_rank, partial(_times_p, 1))
zb_2p = partial(_fitted, "zb-2p", _one_a_rank, partial(_times_p, 2))
zb_auto = partial(_to_limit, "zb-auto", _one_a_rank)
zbv = partial(_fitted, "zbv", _in_a_v, partial(_as_in, zbv_fixed))
v_half = partial(_fitted, "v-half", _in_a_v, partial(_as_in, v_half_fixed))
v_min = partial(_fitted, "v-min", _in_a_v, partial(_as_in, v_min_fixed))
v_flex = partial(_to_limit, "v-flex", _in_a_v)
