"""Expected effect of varying action times: a pipeline waits for the latest input, so variation lengthens a step.

The variation is the standard deviation of the logarithm of an action's time, or a tuple of equally likely factors.
"""

from math import fsum

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.schedule.graph import EventGraph
from ppsim.schedule.table import Schedule
from ppsim.simulation.engine import evaluate_many
from ppsim.simulation.simulate import durations_s, overheads_s, simulate_graph
from ppsim.simulation.stage_costs import StageCosts

Variation = float | tuple[float, ...]

_LOW, _HIGH = 0.25, 0.75
_NORMAL = 1.349
"""Interquartile range of a normal distribution in standard deviations."""

_DRAWS = 100
_MOST_DRAWN = 2_000_000
"""Maximum number of random numbers. Steps with many actions need fewer draws: their variations average out."""

_LEAST_DRAWS = 16
_ROUNDS = 12
_STEP = 1e-3


def relative_spread(variation: Variation) -> float:
    """Return the relative standard deviation of action times; for factors it is estimated from the quartiles.

    >>> relative_spread(0.1), round(relative_spread((0.9, 1.0, 1.1)), 3)
    (0.1, 0.074)
    """
    if isinstance(variation, float):
        return variation
    low, high = np.quantile(variation, [_LOW, _HIGH])
    return float(high - low) / _NORMAL


def is_constant(variation: Variation) -> bool:
    return not variation if isinstance(variation, float) else all(factor == 1 for factor in variation)


def draw_factors(variation: Variation, random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    if isinstance(variation, float):
        factors: Floats = np.exp(variation * random.standard_normal(shape))
        return factors
    chosen: Floats = np.asarray(variation)[random.integers(len(variation), size=shape)]
    return chosen


def simulate_samples(graph: EventGraph, variation: Variation) -> Floats:
    """Return random factors with shape [steps, nodes]; factors of transfers are 1."""
    number = max(_LEAST_DRAWS, min(_DRAWS, _MOST_DRAWN // graph.num_nodes))
    factors = np.ones((number, graph.num_nodes))
    factors[:, : graph.num_actions] = draw_factors(variation, np.random.default_rng(0), (number, graph.num_actions))
    return factors


def with_variation(schedule: Schedule, costs: StageCosts, variation: Variation | None) -> StageCosts:
    """Return costs with which a step takes the expected time of a step with varying action times.

    >>> import ppsim
    >>> table = ppsim.build("1f1b", pp=4, microbatches=8)
    >>> costs = ppsim.StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    >>> round(ppsim.simulate(table, with_variation(table, costs, 0.1)).step_time_s, 2)
    34.24
    """
    if variation is None or is_constant(variation):
        return costs
    graph = costs.graph(schedule)
    durations, overheads = durations_s(graph, costs.resolved_for(schedule)), overheads_s(graph, costs)
    steps = np.concatenate([np.ones((1, graph.num_nodes)), simulate_samples(graph, variation)])
    usual, *varied = evaluate_many(graph, durations * steps, overheads).step_time_s.tolist()
    return costs.replace(variation_s=_overhead_s(graph, costs, fsum(varied) / len(varied) - usual))


def _overhead_s(graph: EventGraph, costs: StageCosts, longer_s: float) -> float:
    """Return the overhead per action that makes a step `longer_s` longer; 0 if that is not positive.

    The step time is convex in the overhead, so the search follows secants.
    """
    if longer_s <= 0:
        return 0.0

    def step_s(overhead_s: float) -> float:
        return simulate_graph(graph, costs.replace(variation_s=overhead_s)).step_time_s

    least = step_s(0.0)
    before, beyond_before = 0.0, -longer_s
    now = _STEP * longer_s
    for _ in range(_ROUNDS):
        beyond = step_s(now) - least - longer_s
        if abs(beyond) <= 1e-9 * least or beyond == beyond_before:
            break
        following = now - beyond * (now - before) / (beyond - beyond_before)
        before, beyond_before, now = now, beyond, max(following, 0.0)
    return now
