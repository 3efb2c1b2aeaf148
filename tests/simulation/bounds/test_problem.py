"""A scheduling problem has the costs of each stage in arrays, and names the limit that no schedule can keep."""

from typing import Any

import numpy as np
import pytest

from ppsim import StageCosts
from ppsim.base.errors import ConfigError
from ppsim.simulation.bounds.for_table import problem_of
from ppsim.simulation.bounds.problem import Problem, is_within

V = [0, 1, 1, 0]


def problem(**fields: Any) -> Problem:
    return Problem.of(
        **{
            "stage_to_rank": V, "num_microbatches": 4, "forward_s": 1.0, "backward_input_s": 2.0,
            "backward_weight_s": 0.5, "activation": [1.0, 2.0, 3.0, 4.0], **fields,
        }
    )  # fmt: skip


def test_actions_include_the_time_before_them_and_hops_are_between_ranks_only() -> None:
    found = problem(backward_s=2.25, transfer_s=[0.5, 0.25, 0.75], action_overhead_s=0.125, hop_overhead_s=0.0625)
    assert found.forward_s.tolist() == [1.125] * 4
    assert found.input_s.tolist() == [2.125] * 4
    assert found.weight_s.tolist() == [0.625] * 4
    assert found.backward_s.tolist() == [2.375] * 4
    assert found.hop_s.tolist() == [0.5625, 0.0, 0.8125]
    assert problem(transfer_s=0.5).hop_s.tolist() == [0.5, 0.0, 0.5]


def test_without_full_backwards_all_are_split_and_all_of_an_activation_waits_for_the_weights() -> None:
    found = problem()
    assert np.isinf(found.backward_s).all()
    assert np.isinf(found.cap).all()
    assert found.kept.tolist() == found.activation.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert problem(activation_kept_for_weight=[1.0, 0.5, 3.0, 0.0]).kept.tolist() == [1.0, 0.5, 3.0, 0.0]


def test_no_more_than_the_activation_can_wait_for_the_weights() -> None:
    with pytest.raises(ConfigError, match=r"is 2\.5 on stage 1, more than the 2 activation"):
        problem(activation_kept_for_weight=[1.0, 2.5, 3.0, 0.0])


def test_a_cap_holds_a_microbatch_of_all_stages_of_a_rank() -> None:
    assert problem(cap=5.0).cap == pytest.approx([5.0, 5.0])
    with pytest.raises(ConfigError, match=r"cap of 4 on rank 1 .* needs 5 there \(smallest cap for all ranks: 5\)"):
        problem(cap=[5.0, 4.0])


@pytest.mark.parametrize("placement", [[], [0, 2], [1, 1], [-1, 0]])
def test_every_rank_needs_a_stage(placement: list[int]) -> None:
    with pytest.raises(ConfigError):
        problem(stage_to_rank=placement, activation=1.0)


def test_at_least_one_microbatch_is_scheduled() -> None:
    assert problem(num_microbatches=1).num_microbatches == 1
    with pytest.raises(ConfigError):
        problem(num_microbatches=0)


def test_a_cap_tolerates_the_rounding_of_sums_only() -> None:
    assert is_within(1e12, None)
    assert is_within(1e12 + 0.5, 1e12)
    assert not is_within(1e12 + 2, 1e12)


def test_the_problem_of_costs_has_the_memory_that_static_bytes_leave() -> None:
    costs = StageCosts(
        forward_s=1.0, backward_input_s=2.0, backward_weight_s=0.5, activation_bytes=8,
        activation_bytes_kept_for_weight=3, transfer_s=0.25, static_bytes=[100, 60],
    )  # fmt: skip
    found = problem_of(V, 4, costs, memory_limit_bytes=160)
    assert (found.num_ranks, found.num_stages, found.num_microbatches) == (2, 4, 4)
    assert found.cap == pytest.approx([60, 100])
    assert found.activation.tolist() == [8] * 4
    assert found.kept.tolist() == [3] * 4
    assert np.isinf(problem_of(V, 4, costs).cap).all()


def test_transfers_and_host_times_are_nothing_if_they_are_not_given() -> None:
    ideal = problem()
    assert (ideal.hop_s.tolist(), ideal.forward_s.tolist(), ideal.overhead_s) == ([0.0] * 3, [1.0] * 4, 0.0)
    assert problem(hop_overhead_s=0.25).hop_s.tolist() == [0.25, 0.0, 0.25]
