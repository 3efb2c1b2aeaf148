"""Times of messages per pair of ranks, and which pairs are slow."""

import numpy as np
import pytest

from ppsim import StageCosts, Timeline, build, simulate
from ppsim.runs.links import SlowPairs, input_times, links_of, median_of_some, pairs_of, slow_links_of

NUM_RANKS = 4
STARTS_S = np.array([[0.0], [50.0], [100.0]])  # of three equal steps


def timeline_of(middle_s: float, usual_s: float = 0.1) -> Timeline:
    """Return a step whose transfers take `usual_s`, except between ranks 1 and 2."""
    costs = StageCosts(
        forward_s=1, backward_input_s=1, backward_weight_s=1, transfer_s=[usual_s, middle_s, usual_s, 0.0]
    )
    return simulate(build("1f1b", pp=NUM_RANKS, microbatches=12), costs)


def test_each_pair_has_the_time_of_its_own_messages() -> None:
    timeline = timeline_of(1.0)
    start, end = (times[: timeline.num_actions] + STARTS_S for times in (timeline.start, timeline.end))
    first = start.min(axis=1, keepdims=True)
    links = links_of(timeline.graph, start - first, *input_times(timeline.graph, end - first)[:2])
    found = {
        links.pairs.name(pair): set(links.transit_s[links.pairs.taken == pair].round(9).tolist())
        for pair in np.unique(links.pairs.taken[links.pairs.taken >= 0]).tolist()
    }
    assert found == {
        "rank 0 → 1": {0.1}, "rank 1 → 0": {0.1}, "rank 1 → 2": {1.0}, "rank 2 → 1": {1.0},
        "rank 2 → 3": {0.1}, "rank 3 → 2": {0.1},
    }  # fmt: skip
    assert links.gap_s == pytest.approx(0.0), "no rank waits without need"


def test_a_pair_is_slow_if_it_takes_half_as_long_again_and_a_tenth_of_a_pass() -> None:
    for middle_s, is_slow in ((1.0, True), (0.26, True), (0.24, False), (0.1, False)):
        timeline = timeline_of(middle_s)  # the median pass takes 1.5 s: a tenth of it is 0.15 s
        start, end = (times[: timeline.num_actions] + STARTS_S for times in (timeline.start, timeline.end))
        slow = slow_links_of(timeline.graph, start, end)
        excess = {"rank 1 → 2": (middle_s - 0.1, 0.0), "rank 2 → 1": (middle_s - 0.1, 0.0)} if is_slow else {}
        assert {pair: pytest.approx(times) for pair, times in slow.named.items()} == excess
        assert not slow.block_s.any()
        assert set(slow.transit_s.round(9).tolist()) == ({0.0, round(middle_s - 0.1, 9)} if is_slow else {0.0})


def test_an_action_takes_from_the_pair_of_its_input_and_follows_the_pair_of_the_last_output() -> None:
    table = build("1f1b", pp=2, microbatches=2)
    pairs = pairs_of(simulate(table, StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)).graph)
    actions = [str(action) for action in table]
    taken, sent = (
        {name: pairs.name(pair) for name, pair in zip(actions, column.tolist(), strict=True) if pair >= 0}
        for column in (pairs.taken, pairs.sent)
    )
    assert taken == dict.fromkeys(("0B0", "0B1"), "rank 1 → 0") | dict.fromkeys(("1F0", "1F1"), "rank 0 → 1")
    assert sent == {"0F1": "rank 0 → 1", "0B0": "rank 0 → 1", "1F1": "rank 1 → 0"}


def test_a_slow_pair_has_a_sentence_with_both_of_its_times() -> None:
    named = {"rank 0 → 1": (0.5, 0.0), "rank 1 → 2": (0.0, 0.25), "rank 2 → 3": (0.5, 0.25)}
    assert SlowPairs(np.zeros(1), np.zeros(1), named).told == [
        "rank 0 → 1: a message takes 500 ms longer than between other ranks",
        "rank 1 → 2: sending blocks the rank for 250 ms",
        "rank 2 → 3: a message takes 500 ms longer than between other ranks and sending blocks the rank for 250 ms",
    ]


def test_half_of_a_usual_time_above_a_tenth_of_a_pass_decides() -> None:
    for middle_s, is_slow in ((0.78, True), (0.72, False)):  # 0.25 s more than 0.5 s is slow
        timeline = timeline_of(middle_s, usual_s=0.5)
        start, end = (times[: timeline.num_actions] + STARTS_S for times in (timeline.start, timeline.end))
        assert bool(slow_links_of(timeline.graph, start, end).named) == is_slow


def test_an_input_crosses_ranks_if_another_rank_made_it() -> None:
    timeline = timeline_of(0.1)
    end = timeline.end[None, : timeline.num_actions]
    before, made, crosses = input_times(timeline.graph, end)
    names = [str(action) for action in timeline.schedule]
    own = {name for name, is_crossing in zip(names, crosses.tolist(), strict=True) if not is_crossing}
    assert own == {name for name in names if name.startswith(("0F", "3B"))}, "inputs of the model, and its loss"
    place = names.index("1F2")
    assert before[0, place] == timeline.end[place - 1]
    assert made[0, place] == timeline.end[names.index("0F2")]


def test_the_median_of_no_values_is_0() -> None:
    assert (median_of_some(np.array([])), median_of_some(np.array([1.0, 2.0, 6.0]))) == (0.0, 2.0)
