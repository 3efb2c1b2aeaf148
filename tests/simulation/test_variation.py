"""Steps of passes that vary: as long as their mean, and the same to the bit where none does."""

from statistics import NormalDist

import numpy as np
import pytest

import ppsim
from ppsim.schedule.graph import build_graph
from ppsim.simulation import variation as variation_module
from ppsim.simulation.engine import evaluate_many
from ppsim.simulation.simulate import durations_s
from ppsim.simulation.variation import _overhead_s, relative_spread, with_variation

COSTS = ppsim.StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, transfer_s=0.1, hop_overhead_s=0.05)


@pytest.mark.parametrize("variation", [None, 0.0, (1.0,), (1.0, 1.0)])
def test_passes_that_do_not_vary_leave_costs_as_they_are(variation: float | tuple[float, ...] | None) -> None:
    table = ppsim.build("1f1b", pp=4, microbatches=8)
    assert with_variation(table, COSTS, variation) is COSTS


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "gpipe"])
@pytest.mark.parametrize("variation", [0.01, 0.1, (0.8, 1.0, 1.0, 1.5)])
def test_a_step_takes_what_drawn_steps_take_on_average(name: str, variation: float | tuple[float, ...]) -> None:
    """Beside 4,000 steps drawn elsewhere: within a tenth of what they are longer, and of their own noise."""
    table = ppsim.build(name, pp=4, microbatches=8)
    graph, random = build_graph(table), np.random.default_rng(99)
    factors = np.ones((4000, graph.num_nodes))
    shape = (4000, len(table))
    if isinstance(variation, float):
        factors[:, : len(table)] = random.lognormal(0, variation, shape)
    else:
        factors[:, : len(table)] = random.choice(variation, shape)
    overheads = np.concatenate([np.zeros(len(table)), np.full(graph.num_transfers, 0.05)])
    drawn = evaluate_many(graph, durations_s(graph, COSTS.resolved_for(table)) * factors, overheads).step_time_s
    usual, found = (
        ppsim.simulate(table, one).step_time_s for one in (COSTS, with_variation(table, COSTS, variation))
    )
    assert found > usual
    assert found - usual == pytest.approx(drawn.mean() - usual, rel=0.1, abs=3 * drawn.std() / 100**0.5)


def test_quartiles_tell_the_spread() -> None:
    factors = tuple(np.quantile(np.random.default_rng(0).normal(1, 0.1, 10_000), np.linspace(0.025, 0.975, 20)))
    assert relative_spread(factors) == pytest.approx(0.1, rel=0.05)


def test_a_normal_distribution_has_so_many_deviations_between_its_quartiles() -> None:
    assert pytest.approx(2 * NormalDist().inv_cdf(variation_module._HIGH), rel=1e-3) == variation_module._NORMAL
    assert (variation_module._LOW, variation_module._HIGH) == (0.25, 0.75)
    limits = ("_DRAWS", "_MOST_DRAWN", "_LEAST_DRAWS", "_ROUNDS", "_STEP")
    assert [getattr(variation_module, name) for name in limits] == [100, 2_000_000, 16, 12, 1e-3]


@pytest.mark.parametrize("overhead_s", [0.25, 2.0])
def test_an_overhead_makes_a_step_longer_by_as_much_as_it_varies(overhead_s: float) -> None:
    table = ppsim.build("1f1b", pp=2, microbatches=2)
    graph, costs = build_graph(table), ppsim.StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    usual, longer = (ppsim.simulate(table, costs.replace(variation_s=each)) for each in (0.0, overhead_s))
    assert _overhead_s(graph, costs, longer.step_time_s - usual.step_time_s) == pytest.approx(overhead_s)
    assert _overhead_s(graph, costs, 0.0) == _overhead_s(graph, costs, -1.0) == 0.0
