"""Times of messages per pair of ranks, and which pairs are slow."""

import numpy as np
import pytest

from benchmarks.made_steps import Made, made
from ppsim import StageCosts, Timeline, build, simulate
from ppsim.runs import links as links_module
from ppsim.runs.links import (
    _CANDIDATES,
    LinkTimes,
    RankPairs,
    SlowPairs,
    _beyond,
    _by_pair,
    _fit_of,
    input_times,
    links_of,
    median_of_some,
    pairs_of,
    queue_s,
    slow_links_of,
    slow_pairs_excess,
)
from ppsim.runs.loss_attribution import attribute_losses
from ppsim.runs.pauses import pauses_between
from ppsim.runs.step_replay import steps_of
from ppsim.schedule.table import NONE

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
        both = dict.fromkeys(("rank 1 → 2", "rank 2 → 1"), (middle_s - 0.1, 0.0, 0.0))
        excess = both if is_slow else {}
        assert {pair: pytest.approx(times) for pair, times in slow.named.items()} == excess
        assert not slow.block_s.any()
        assert set(slow.transit_s.round(9).ravel().tolist()) == (
            {0.0, round(middle_s - 0.1, 9)} if is_slow else {0.0}
        )


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
    named = {"rank 0 → 1": (0.5, 0.0, 0.0), "rank 1 → 2": (0.0, 0.25, 0.0), "rank 2 → 3": (0.5, 0.25, 1.5)}
    assert SlowPairs(np.zeros((1, 1)), np.zeros(1), named).told == [
        "rank 0 → 1: a message takes 500 ms longer than between other ranks",
        "rank 1 → 2: sending blocks the rank for 250 ms",
        "rank 2 → 3: a message takes 500 ms longer than between other ranks and waits up to 1.50 s for earlier messages "
        "and sending blocks the rank for 250 ms",
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


@pytest.mark.parametrize("fault", ["queueing link", "slow links"])
def test_a_wait_for_earlier_messages_is_part_of_the_slow_link(fault: str) -> None:
    """Interleaved stages send faster than such a link: without the queue, half of the time is called gaps."""
    table = build("interleaved-1f1b", pp=4, vpp=2, microbatches=8)
    steps = made(table, 100, [fault])
    cost_s = steps.period_s - made(table, 100, []).period_s
    loss = next(loss for loss in attribute_losses(steps.run()).losses if loss.cause == "slow links")
    assert loss.gain_s == pytest.approx(cost_s, rel=0.03)
    assert ("for earlier messages" in loss.detail) == (fault == "queueing link"), "only a queue has such waits"


@pytest.mark.parametrize("is_queue", [False, True])
@pytest.mark.parametrize(("name", "vpp"), [("1f1b", 1), ("interleaved-1f1b", 2), ("zbv", 2)])
def test_late_messages_that_overlap_are_no_queue(name: str, vpp: int, is_queue: bool) -> None:
    """In one direction, messages may be too far apart to show it; the other direction decides for both."""
    steps = Made(build(name, pp=4, vpp=vpp, microbatches=8), seed=3)
    steps.taken /= 2
    slow = np.isin(pairs_of(steps.graph).taken[steps.graph.target], [6, 9])  # rank 1 → 2 and back
    steps.hop[:, slow] += 0.022
    steps.queues |= slow & is_queue
    run, actions = steps.run(), len(steps.table)
    start = run.start[:, :actions]
    before, made, _ = input_times(steps.graph, run.end[:, :actions] - start.min(axis=1, keepdims=True))
    links = links_of(steps.graph, start - start.min(axis=1, keepdims=True), before, made)
    assert {6, 9} & links.queues == ({6, 9} if is_queue else set())
    assert links.transit_s[np.isin(links.pairs.taken, [6, 9])] == pytest.approx(0.022, abs=5e-4)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_blocked_rank_does_not_make_its_other_links_slow(rank: int) -> None:
    """A rank that its sends block waits before actions whose inputs arrived long ago."""
    steps = Made(build("interleaved-1f1b", pp=4, vpp=2, microbatches=8), seed=4)
    taken, block_s = steps.taken / 2, 0.0175
    slow = np.isin(pairs_of(steps.graph).taken[steps.graph.target], [5 * rank + 1, 5 * rank + 4])
    blocks = np.bincount(steps.graph.source[slow], minlength=len(steps.table)) * block_s
    steps.taken = taken + blocks
    run, actions = steps.run(), len(steps.table)
    start = run.start[:, :actions]
    found = slow_links_of(steps.graph, start, run.end[:, :actions] - blocks).named
    assert set(found) == {f"rank {rank} → {rank + 1}", f"rank {rank + 1} → {rank}"}
    for late_s, blocked_s, _ in found.values():
        assert (late_s, blocked_s) == pytest.approx((block_s, block_s), abs=5e-4), "late only by its send"


@pytest.mark.parametrize("kind", ["queue", "latency", "block"])
@pytest.mark.parametrize(("name", "vpp"), [("1f1b", 1), ("interleaved-1f1b", 2), ("zbv", 2)])
def test_links_whose_messages_nobody_waits_for_are_not_slow(name: str, vpp: int, kind: str) -> None:
    """The usual gap explains all waits of three ranks, so that only messages of the slow link are waited for."""
    steps = Made(build(name, pp=4, vpp=vpp, microbatches=8), seed=5)
    random, slow = np.random.default_rng(5), np.isin(pairs_of(steps.graph).taken[steps.graph.target], [11, 14])
    quiet = steps.table.rank != 2
    steps.taken /= 2
    steps.gap = 4e-4 + random.gamma(1.5, 2e-4, steps.gap.shape)
    steps.gap[:, quiet] = 5e-4 - 1e-4 * (random.random((10, quiet.sum())) > 0.6)
    steps.hop[:, quiet[steps.graph.target]] = 0.0
    blocks = np.bincount(steps.graph.source[slow], minlength=len(quiet)) * 0.0155 * (kind == "block")
    steps.taken = steps.taken + blocks
    steps.hop[:, slow] += {"queue": 0.04, "latency": 0.02, "block": 0.0}[kind]
    steps.queues |= slow & (kind == "queue")
    run, actions = steps.run(), len(quiet)
    found = slow_links_of(steps.graph, run.start[:, :actions], run.end[:, :actions] - blocks).named
    assert set(found) == {"rank 2 → 3", "rank 3 → 2"}


def test_times_of_a_queueing_link_are_those_of_a_message_alone() -> None:
    steps = Made(build("interleaved-1f1b", pp=4, vpp=2, microbatches=8), seed=1, num_steps=1)
    steps.gap[:], steps.hop[:] = 1e-4, 3e-4
    pairs = pairs_of(steps.graph)
    slow = pairs.taken[steps.graph.target] == 1  # rank 0 → 1
    steps.hop[:, slow] = 0.04
    steps.queues |= slow
    run, actions = steps.run(), len(steps.table)
    start, end = run.start[:, :actions], run.end[:, :actions]
    before, made, _ = input_times(steps.graph, end)
    links = links_of(steps.graph, start, before, made)
    its = pairs.taken == 1
    assert links.transit_s[its] == pytest.approx(0.04)
    assert links.queue_s[:, its].max() > 0.09
    assert not links.queue_s[:, ~its].any()
    assert links.gaps == pytest.approx(1e-4), "no wait for a message counts as a gap"
    found = steps_of(steps.graph, start, end, links)
    expected = np.minimum((links.queue_s + 0.04)[:, its], start[:, its] - 1e-4 - made[:, its])
    assert found.hop[:, its] == pytest.approx(expected)
    pauses = pauses_between(found, links, float(run.step_times_s[0]))
    assert not (pauses.hop + pauses.after_own).any(), "to wait for earlier messages is no pause"


def test_a_message_waits_for_those_that_were_sent_before() -> None:
    made = np.array([[0.0, 1.0, 2.0, 20.0], [5.0, 30.0, 4.0, 0.0]])
    assert queue_s(made, 3.0).tolist() == [[0.0, 2.0, 4.0, 0.0], [2.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("taken", "before", "made", "start", "parts"),
    [
        (NONE, 1.0, 0.0, 4.0, (3.0, 0.0, False)),
        (1, 0.0, 1.0, 4.0, (0.2, 2.8, True)),
        (1, 0.0, 1.0, 1.1, (0.1, 0.0, False)),
        (1, 2.9, 1.0, 4.0, (0.2, 2.8, True)),
        (1, 3.0, 1.0, 4.0, (1.0, 2.0, False)),
        (1, 9.0, 1.0, 8.0, (0.0, 7.0, False)),
    ],
)
def test_a_wait_is_the_gap_of_the_rank_and_then_the_transit_of_what_it_needs(
    taken, before, made, start, parts
) -> None:
    """A message usually takes 2 s, a gap 0.2 s: what was made more than 2 s before the rank was free was there."""
    quartiles = [np.array([[low], [middle], [high]]) for low, middle, high in ((1.0, 2.0, 4.0), (0.1, 0.2, 0.5))]
    links = LinkTimes(RankPairs(2, np.array([taken]), np.array([NONE])), *quartiles, queue_s=np.zeros((1, 1)))
    assert (links.transit_s, links.gap_s, links.spread_s) == (2.0, 0.2, pytest.approx(3.4))
    found = links.parts_of(*(np.array([[one]]) for one in (start, before, made)))
    assert [float(one[0, 0]) for one in found] == pytest.approx([float(one) for one in parts])


def test_waits_below_a_tenth_of_the_extra_time_are_not_said() -> None:
    for queue_time_s, is_said in ((0.05, False), (0.0625, True)):
        (sentence,) = SlowPairs(np.zeros((1, 1)), np.zeros(1), {"rank 0 → 1": (0.5, 0.0, queue_time_s)}).told
        assert ("for earlier messages" in sentence) is is_said


def links_with(
    taken: list[int],
    sent: list[int],
    transits: list[float],
    gaps: list[float],
    queue: list[list[float]],
    queues: tuple[int, ...] = (),
) -> LinkTimes:
    """Return times of pairs of three ranks that never vary."""
    pairs = RankPairs(3, np.array(taken), np.array(sent))
    return LinkTimes(
        pairs, np.array([transits] * 3), np.array([gaps] * 3), np.array(queue), queues=frozenset(queues)
    )


def test_rows_of_slow_pairs_have_extra_seconds_in_a_queue_or_later_or_blocked() -> None:
    """Pairs 1, 3, 5 and 7 are 0 → 1, 1 → 0, 1 → 2 and 2 → 1; the last one is not slow."""
    links = links_with([NONE, 5, 1, 3, 7], [NONE] * 5, [0.0] * 5, [0.0] * 5, [[0.0] * 5], queues=(5,))
    named = {"rank 0 → 1": (0.75, 0.25, 0.0), "rank 1 → 0": (0.25, 0.5, 0.0), "rank 1 → 2": (0.625, 0.125, 0.0)}
    assert SlowPairs(np.zeros((1, 5)), np.zeros(5), named).rows(links) == (
        (0, 1, 0.0, 0.5, 0.25), (1, 0, 0.0, 0.0, 0.5), (1, 2, 0.5, 0.0, 0.125),
    )  # fmt: skip


def test_the_excess_of_slow_pairs_is_above_the_faster_pair_and_the_largest_sum_is_first() -> None:
    """Messages of pair 3 take 3 s longer, and wait up to 2 s; sends of pair 1 block for 4 s more."""
    links = links_with(
        [NONE, 1, 3, 3], [NONE, 3, 1, 1], [0.0, 1.0, 4.0, 4.0], [0.0, 1.0, 5.0, 5.0],
        [[9.0, 8.0, 0.0, 2.0], [0.0, 7.0, 1.0, 0.0]],
    )  # fmt: skip
    slow = slow_pairs_excess(links, pass_s=1.0)
    assert list(slow.named.items()) == [("rank 0 → 1", (0.0, 4.0, 0.0)), ("rank 1 → 0", (3.0, 0.0, 2.0))]
    assert slow.transit_s.tolist() == [[0.0, 0.0, 3.0, 5.0], [0.0, 0.0, 4.0, 3.0]]
    assert slow.block_s.tolist() == [0.0, 0.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("slow", "pass_s", "excess"),
    [
        ((2.625, 3.125, 4.0), 0.0, 1.125),
        ((2.625, 3.0, 4.0), 0.0, 0.0),
        ((2.5, 3.125, 4.0), 0.0, 0.0),
        ((2.625, 5.0, 6.0), 29.0, 3.0),
        ((2.625, 5.0, 6.0), 30.0, 0.0),
    ],
)
def test_a_slow_pair_exceeds_half_the_usual_time_a_tenth_of_a_pass_and_the_upper_quartile(
    slow: tuple[float, float, float], pass_s: float, excess: float
) -> None:
    """Quartiles of the two usual pairs are 1, 2 and 2.5 s."""
    times = np.array([(0.0, 0.0, 0.0), (1.0, 2.0, 2.5), slow, (1.0, 2.0, 2.5), slow]).T
    assert _beyond(np.array([NONE, 1, 3, 5, 3]), times, pass_s).tolist() == [0.0, 0.0, excess, 0.0, excess]
    assert _beyond(np.array([NONE, NONE]), np.ones((3, 2)), pass_s).tolist() == [0.0, 0.0]


def test_a_pair_has_its_own_quartiles_from_four_messages_in_half_of_the_steps() -> None:
    """Pairs 1, 3 and 4 have them; the middle one of these, pair 3, is used for pair 2 with too few messages."""
    pair = np.array([1, 1, 2, 2, 2, 2, 5, 3, 4])
    values, chosen = np.full((4, 9), 7.0), np.zeros((4, 9), dtype=bool)
    values[:2, :2], chosen[:2, :2] = [[1.0, 2.0], [3.0, 4.0]], True
    chosen[0, 2:6] = True  # four messages in a quarter of the steps
    chosen[:3, 6] = True  # three messages
    values[:, 7], chosen[:, 7] = [10.0, 20.0, 30.0, 40.0], True
    values[:, 8], chosen[:, 8] = 100.0, True
    first, usual, last = [1.75, 2.5, 3.25], [17.5, 25.0, 32.5], [100.0] * 3
    quartiles = _by_pair(pair, values, chosen).T.tolist()
    assert quartiles == [first, first, *[usual] * 4, usual, usual, last]


def test_without_a_pair_of_enough_messages_all_messages_have_one_time() -> None:
    values = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert _by_pair(np.array([1, 2]), values, np.array([True, False])).T.tolist() == [[1.5, 2.0, 2.5]] * 2
    assert not _by_pair(np.array([1, 2]), values, np.zeros(2, dtype=bool)).any()


LATE = np.array([[3.0, 5.0, 7.0, 9.0]])


def test_messages_that_arrive_three_seconds_apart_are_of_a_queue() -> None:
    """Without a queue, 3 s fit best: the others are 2 + 4 + 6 s too late."""
    queued_s, constant_s, errors = _fit_of(
        np.array([[0.0, 1.0, 2.0, 3.0]]), LATE, LATE, np.ones((1, 4), dtype=bool)
    )
    assert (queued_s, constant_s, errors.tolist()) == (3.0, 3.0, [0.0, 12.0])


def test_messages_that_take_the_same_time_need_no_queue() -> None:
    sent, since = np.array([[0.0, 10.0, 20.0, 30.0]]), np.full((1, 4), 2.0)
    queued_s, constant_s, errors = _fit_of(sent, since, since, np.ones((1, 4), dtype=bool))
    assert (queued_s, constant_s, errors.tolist()) == (2.0, 2.0, [0.0, 0.0])


@pytest.mark.parametrize(("wait", "late"), [(np.full((1, 4), 2.0), [True] * 4), (LATE, [True, True, True, False])])
def test_a_blocked_receiver_or_three_late_messages_have_no_fit(wait: np.ndarray, late: list[bool]) -> None:
    queued_s, constant_s, errors = _fit_of(np.array([[0.0, 100.0, 200.0, 300.0]]), LATE, wait, np.array([late]))
    assert (queued_s, constant_s, errors.tolist()) == (0.0, 0.0, [0.0, 0.0])


def test_every_sixteenth_is_a_candidate_for_the_time_of_a_message() -> None:
    assert _CANDIDATES.tolist() == [number / 16 for number in range(17)]


def test_limits_of_links() -> None:
    names = ("_LEAST_MESSAGES", "_LEAST_STEPS", "_SLOW", "_OF_A_PASS", "_CLEARLY", "_CERTAINTY", "_OVERLAPS")
    assert [getattr(links_module, name) for name in names] == [4, 0.5, 0.5, 0.1, 0.7, 3, 0.1]
