"""Slices of a sequence under causal attention."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim import StageCosts, build, simulate
from ppsim.base.errors import ConfigError
from ppsim.parallel.sequence_slices import equal_time_slices, time_shares, why_no_slices

SIZES = {
    "num_tokens": st.integers(64, 100_000),
    "num_slices": st.integers(1, 16),
    "hidden_size": st.integers(1, 9000),
}


def flops(begin, end, h):
    """Token by token: 24·h² in matrix products, 4·h for each token attended to."""
    return sum(24 * h * h + 4 * h * place for place in range(begin + 1, end + 1))


@given(**SIZES)
def test_slices_of_equal_time_have_all_tokens_and_get_no_longer(num_tokens, num_slices, hidden_size):
    if why_no_slices(num_tokens, num_slices, hidden_size=hidden_size):
        return
    lengths = equal_time_slices(num_tokens, num_slices, hidden_size=hidden_size)
    assert sum(lengths) == num_tokens
    assert len(lengths) == num_slices
    assert min(lengths) >= 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(lengths))


@pytest.mark.parametrize(("s", "k", "h"), [(4096, 4, 512), (1000, 7, 16), (512, 2, 4096)])
def test_slices_of_equal_time_differ_by_the_flops_of_a_token_at_most(s, k, h):
    ends = np.concatenate(([0], np.cumsum(equal_time_slices(s, k, hidden_size=h))))
    taken = [flops(begin, end, h) for begin, end in itertools.pairwise(ends)]
    assert max(abs(one - flops(0, s, h) / k) for one in taken) <= flops(s - 1, s, h)


@pytest.mark.parametrize("lengths", [[8, 8], [1, 2, 3], [500, 300, 224]])
def test_shares_of_given_slices_are_those_of_their_flops(lengths):
    ends = np.concatenate(([0], np.cumsum(lengths)))
    taken = np.array([flops(begin, end, 48) for begin, end in itertools.pairwise(ends)])
    assert time_shares(lengths, hidden_size=48) == pytest.approx(taken / taken.sum())


def test_too_few_tokens_are_refused():
    with pytest.raises(ConfigError, match="3 tokens are too few for 4 slices of equal time"):
        equal_time_slices(3, 4, hidden_size=64)
    with pytest.raises(ConfigError, match="slices and hidden size must be at least 1: got 0 and 64"):
        equal_time_slices(3, 0, hidden_size=64)


def test_a_slice_takes_its_shares_of_time_activations_and_transfers():
    table = build("seq1f1b", pp=2, microbatches=1, num_slices=2)
    costs = StageCosts(
        forward_s=10, backward_input_s=10, backward_weight_s=10, activation_bytes=100, transfer_s=1,
        slice_time_shares=[0.4, 0.6], slice_token_shares=[0.7, 0.3],
    )  # fmt: skip
    timeline = simulate(table, costs)
    taken = {timeline.name_of(n): timeline.end[n] - timeline.start[n] for n in range(timeline.graph.num_nodes)}
    assert (taken["0F0"], taken["1B1"]) == pytest.approx((4.0, 12.0))
    assert (taken["0SEND_F0"], taken["1SEND_B1"]) == pytest.approx((0.7, 0.3))
    assert timeline.memory.peak_activation_bytes.tolist() == pytest.approx([100, 100])
    assert timeline.memory.during[0] == pytest.approx(70)
    assert timeline.busy_s == pytest.approx([30, 30])  # the shares of a microbatch sum to its costs


def test_even_slices_of_a_long_sequence_idle_longer_than_slices_of_equal_time():
    """Why Seq1F1B cuts by computation: the longest slice sets the pace."""
    table = build("seq1f1b", pp=8, microbatches=16, num_slices=4)
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    even = time_shares([8192] * 4, hidden_size=1024)
    assert simulate(table, costs.replace(slice_time_shares=even)).step_time_s > simulate(table, costs).step_time_s


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([0.5, 0.6], r"slice_time_shares sum to 1.1; the shares of a microbatch's slices sum to 1"),
        ([1.5, -0.5], "slice_time_shares holds -0.5"),
        ([0.5, 0.25, 0.25], "slice_time_shares has 3 entries, but the schedule has 2 per microbatch"),
    ],
)
def test_shares_that_are_no_whole_or_of_another_number_of_slices_are_refused(shares, words):
    with pytest.raises(ConfigError, match=words):
        simulate(
            build("seq1f1b", pp=2, microbatches=2, num_slices=2),
            StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, slice_time_shares=shares),
        )


def test_costs_of_the_stages_of_the_model_are_taken_for_every_replica():
    table = build("chimera", pp=4, microbatches=4)
    costs = StageCosts(forward_s=[1, 2, 3, 4], backward_input_s=1, backward_weight_s=[1] * 8)
    resolved = costs.resolved_for(table)
    assert resolved.forward_s.tolist() == [1, 2, 3, 4, 1, 2, 3, 4]
    with pytest.raises(
        ConfigError,
        match=r"forward_s has 2 entries, but the schedule has 8 stages \(give one number, or one per stage or one each of the model's 4\)",
    ):
        costs.replace(forward_s=[1, 2]).resolved_for(table)
    moved = costs.with_torch_first_stage(num_stages=8, num_ranks=4, num_replicas=2)
    assert moved.backward_input_s.tolist() == [0, 1, 1, 1, 0, 1, 1, 1]


def test_a_slice_may_have_a_single_token() -> None:
    """With wide layers, tokens take equal times."""
    assert equal_time_slices(4, 4, hidden_size=10_000) == [1, 1, 1, 1]
    assert why_no_slices(4, 4, hidden_size=10_000) is None
