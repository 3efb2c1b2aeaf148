"""Costs of stages: scaled, listed by rank, and divided into slices."""

from dataclasses import fields

import numpy as np
import pytest

from ppsim import build
from ppsim.base.errors import ConfigError
from ppsim.costs.stage_cost_set import (
    LayerCosts,
    StageCostSet,
    short_counts,
    slice_costs,
    stages_of_ranks,
    values_of_ranks,
)
from ppsim.costs.time_breakdown import CostEstimate, TimeBreakdown
from ppsim.parallel.sequence_slices import equal_time_slices
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.step import StepCosts
from tests.defaults import field_defaults

COSTS = StageCosts(forward_s=[2.0, 3.0], backward_input_s=5.0, backward_weight_s=7.0, transfer_s=0.5)


def test_a_layer_adds_nothing_that_is_not_given() -> None:
    assert field_defaults(LayerCosts) == dict.fromkeys([one.name for one in fields(LayerCosts)][3:], 0.0)


def test_all_times_of_a_step_are_scaled_except_its_fixed_extra_time() -> None:
    part = CostEstimate(*(TimeBreakdown(memory_s=seconds) for seconds in (2.0, 5.0, 7.0)))
    costs = StageCostSet(
        COSTS, [1, 1], 11.0, step_costs=StepCosts(norm_s=0.25, rest_s=0.125), parts=[part],
        pair_host_s=np.array([[1.0, 2.0], [3.0, 4.0]]),
    )  # fmt: skip
    assert costs.scaled(1.0) is costs
    scaled = costs.scaled(3.0)
    assert list(np.asarray(scaled.costs.forward_s)) == [6.0, 9.0]
    assert (scaled.step_costs.norm_s, scaled.step_costs.rest_s) == (0.75, 0.125)
    assert [one.forward.total_s for one in scaled.parts] == [6.0]
    assert scaled.pair_host_s is not None
    assert scaled.pair_host_s.tolist() == [[3.0, 6.0], [9.0, 12.0]]
    assert (scaled.split, scaled.forward_flops) == ([1, 1], 11.0)
    assert StageCostSet(COSTS, [1, 1], 11.0).scaled(3.0).pair_host_s is None


def test_a_rank_has_its_chunks_and_both_model_replicas() -> None:
    interleaved = build("interleaved-1f1b", pp=2, vpp=2, microbatches=2)
    assert stages_of_ranks(interleaved) == [[0, 2], [1, 3]]
    assert values_of_ranks(interleaved, "abcd") == [["a", "c"], ["b", "d"]]
    assert values_of_ranks(build("dualpipe", pp=2, microbatches=4), "ab") == [["a", "b"], ["b", "a"]]


def test_slices_have_equal_times_and_their_parts_of_the_tokens() -> None:
    whole = build("1f1b", pp=2, microbatches=2)
    assert slice_costs(COSTS, whole, 100, 8, "time") == (COSTS, [])
    sliced = build("seq1f1b", pp=2, microbatches=2, num_slices=3)
    tokens = equal_time_slices(100, 3, hidden_size=8)
    costs, lines = slice_costs(COSTS, sliced, 100, 8, "time")
    assert list(costs.slice_token_shares or ()) == [count / 100 for count in tokens]
    assert lines == [
        f"slices: {short_counts(tokens)} tokens, of equal FLOPs under causal attention, each an equal share of the "
        "microbatch's time"
    ]
    with pytest.raises(ConfigError, match="2 tokens are too few for 3 slices"):
        slice_costs(COSTS, sliced, 2, 8, "time")


def test_runs_of_equal_counts_are_written_once() -> None:
    assert short_counts([2, 2, 3, 2, 2, 2]) == "2×2, 3, 3×2"
    assert short_counts([]) == ""
