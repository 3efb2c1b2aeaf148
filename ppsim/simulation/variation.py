"""Passes that vary: a step whose passes are drawn takes longer than one whose passes all take their median.

A pipeline waits for the latest of what it needs, and the mean of latest ones is later than the latest of means.
What passes vary by is either a number, the standard deviation of the logarithm of a pass's time, or the times of a
typical step's passes beside their medians, as many factors as are wanted, each as likely as any other.
"""

from math import fsum

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.schedule.graph import EventGraph, build_graph
from ppsim.schedule.table import Schedule
from ppsim.simulation.engine import evaluate_many
from ppsim.simulation.run import durations_s, overheads_s, simulate_graph
from ppsim.simulation.stage_costs import StageCosts

Variation = float | tuple[float, ...]

_LOW, _HIGH = 0.25, 0.75
_NORMAL = 1.349
"""The quartiles of a normal distribution are so many standard deviations apart."""

_DRAWS = 100
_MOST_DRAWN = 2_000_000
"""Numbers drawn for one step; a step of many passes needs fewer draws, since more of them average out."""

_LEAST_DRAWS = 16
_ROUNDS = 12
_STEP = 1e-3


def relative_spread(variation: Variation) -> float:
    """Return the relative standard deviation of a pass, of factors by their quartiles.

    >>> relative_spread(0.1), round(relative_spread((0.9, 1.0, 1.1)), 3)
    (0.1, 0.074)
    """
    if isinstance(variation, float):
        return variation
    low, high = np.quantile(variation, [_LOW, _HIGH])
    return float(high - low) / _NORMAL


def varies_not(variation: Variation) -> bool:
    """Return whether all passes take their median."""
    return not variation if isinstance(variation, float) else all(factor == 1 for factor in variation)


def drawn(variation: Variation, random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Return factors of passes, log-normal ones or of those given."""
    if isinstance(variation, float):
        found: Floats = np.exp(variation * random.standard_normal(shape))
        return found
    chosen: Floats = np.asarray(variation)[random.integers(len(variation), size=shape)]
    return chosen


def drawn_steps(graph: EventGraph, variation: Variation) -> Floats:
    """Return factors for the nodes of steps, of shape [steps, nodes]; those of transfers are 1."""
    number = max(_LEAST_DRAWS, min(_DRAWS, _MOST_DRAWN // graph.num_nodes))
    factors = np.ones((number, graph.num_nodes))
    factors[:, : graph.num_actions] = drawn(variation, np.random.default_rng(0), (number, graph.num_actions))
    return factors


def with_variation(schedule: Schedule, costs: StageCosts, variation: Variation | None) -> StageCosts:
    """Return costs at which a step takes what steps of passes that vary take on average; the same where none do.

    >>> import ppsim
    >>> table = ppsim.build("1f1b", pp=4, microbatches=8)
    >>> costs = ppsim.StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    >>> round(ppsim.simulate(table, with_variation(table, costs, 0.1)).step_time_s, 2)
    34.24
    """
    if variation is None or varies_not(variation):
        return costs
    graph = build_graph(
        schedule, communication=costs.communication, channel=costs.channel, receives=costs.receives,
        pairs=costs.pairs,
    )  # fmt: skip
    durations, overheads = durations_s(graph, costs.resolved_for(schedule)), overheads_s(graph, costs)
    steps = np.concatenate([np.ones((1, graph.num_nodes)), drawn_steps(graph, variation)])
    usual, *varied = evaluate_many(graph, durations * steps, overheads).step_time_s.tolist()
    return costs.replace(variation_s=_overhead_s(graph, costs, fsum(varied) / len(varied) - usual))


def _overhead_s(graph: EventGraph, costs: StageCosts, longer_s: float) -> float:
    """What before every action makes a step that much longer; 0 where it need not.

    The step is convex in it: from the slope at 0 on, the chord through the last two is followed.
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
