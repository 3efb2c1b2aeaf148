"""P2P time per directed pair of ranks: time in transit, and time for which a send blocks its rank."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppsim.base.arrays import Floats, Ints64
from ppsim.base.units import seconds
from ppsim.schedule.dependencies import dependencies
from ppsim.schedule.graph import EventGraph, previous_on_rank
from ppsim.schedule.table import NONE, last_of_cell

_LEAST_MESSAGES = 4
"""With fewer messages of a pair, the lower median of the other pairs is used."""
_LEAST_STEPS = 0.5
"""The same applies if a smaller fraction of the steps has such messages: a slow step is not a slow link."""

_SLOW = 0.5
"""A pair is slow if its excess is above this fraction of the usual pair's time, and above `_OF_A_PASS` times the
time of an action."""
_OF_A_PASS = 0.1
_CANDIDATES = np.linspace(0, 1, 17)
"""Quantiles that are tried as the time of a message on a link."""
_CLEARLY = 0.7
"""A link is a queue if the error of its messages' arrivals in both directions is at most this fraction of the one
without a queue; it is not slow if its receivers' waits vary by at most this fraction of the messages' times."""
_CERTAINTY = 3
"""Weight of a message that arrived too soon for a fit: much makes a message late, but nothing makes it early."""
_OVERLAPS = 0.1
"""If messages overlap by less than this fraction of their time, the link is assumed to be a queue."""


@dataclass(frozen=True)
class RankPairs:
    """The pair of ranks of each action's messages, as `from · ranks + to`; NONE for an action without a message.

    `taken` is the pair of the action's input. `sent` is the pair to which the rank's previous action sent its
    result.
    """

    num_ranks: int
    taken: Ints64
    sent: Ints64

    def name(self, pair: int) -> str:
        return f"rank {pair // self.num_ranks} → {pair % self.num_ranks}"


def pairs_of(graph: EventGraph) -> RankPairs:
    schedule = graph.schedule
    rank, needs = schedule.rank.astype(np.int64), dependencies(schedule).neighbour
    crosses = (needs != NONE) & (rank[needs] != rank)
    taken = np.where(crosses, rank[needs] * schedule.num_ranks + rank, NONE)
    result = np.full(len(schedule), NONE, dtype=np.int64)
    result[needs[crosses]] = taken[crosses]
    previous = previous_on_rank(schedule)
    return RankPairs(schedule.num_ranks, taken, np.where(previous == NONE, NONE, result[previous]))


@dataclass(frozen=True)
class LinkTimes:
    """Usual transit time of each pair's messages, and usual gap of a rank after a send, which may block it.

    `transits` and `gaps` are quartiles in seconds, shape [3, actions]. `queue_s` is how long each action's input
    waited for earlier messages of its pair, shape [steps, actions]; `queues` are the pairs that send one message
    after the other, also if no message had to wait.
    """

    pairs: RankPairs
    transits: Floats
    gaps: Floats
    queue_s: Floats
    queues: frozenset[int] = frozenset()

    @property
    def transit_s(self) -> Floats:
        return np.asarray(self.transits[1])

    @property
    def gap_s(self) -> Floats:
        return np.asarray(self.gaps[1])

    @property
    def spread_s(self) -> Floats:
        """Distance of the quartiles of a message's time and of the gap before its action."""
        return np.asarray(sum(times[2] - times[0] for times in (self.transits, self.gaps)))

    def parts_of(self, start: Floats, before: Floats, produced_s: Floats) -> tuple[Floats, Floats, Any]:
        """Return per action its rank's gap, the transit time of its input, and whether it waited for the input.

        `before` is the end of the rank's previous action, `made` the end of the action that computed the input.
        """
        crosses = self.pairs.taken != NONE
        wait = np.maximum(start - np.maximum(before, produced_s), 0.0)
        is_needed = crosses & (produced_s + self.queue_s - before > -self.transit_s)
        own = np.where(is_needed, np.minimum(wait, self.gap_s), wait)
        return own, np.where(crosses, np.maximum(start - own - produced_s, 0.0), 0.0), wait > own


@dataclass(frozen=True)
class SlowPairs:
    """Excess seconds of slow pairs over the usual pair, in transit and on the sending rank.

    `transit_s` has shape [steps, actions] and includes the wait for earlier messages, `block_s` [actions]. `named`
    has both times per slow pair, and the longest wait for earlier messages.
    """

    transit_s: Floats
    block_s: Floats
    named: dict[str, tuple[float, float, float]]

    @property
    def told(self) -> list[str]:
        sentences = []
        for pair, (transit, block, queue) in self.named.items():
            told = [f"a message takes {seconds(transit)} longer than between other ranks"] if transit else []
            told += [f"waits up to {seconds(queue)} for earlier messages"] if queue > _OVERLAPS * transit else []
            told += [f"sending blocks the rank for {seconds(block)}"] if block else []
            sentences.append(f"{pair}: {' and '.join(told)}")
        return sentences

    def rows(self, links: LinkTimes) -> tuple[tuple[float, ...], ...]:
        """Return sender, receiver, and extra seconds per message of each named pair: in a queue, later, blocked.

        A message that is late because its send blocks the sender is not late beyond that.
        """
        rows, pairs = [], links.pairs
        for pair in np.unique(pairs.taken[pairs.taken != NONE]).tolist():
            if (name := pairs.name(pair)) in self.named:
                transit, block, _ = self.named[name]
                transit = max(transit - block, 0.0)
                is_queue = pair in links.queues
                rows.append((*divmod(pair, pairs.num_ranks), transit * is_queue, transit * (not is_queue), block))
        return tuple(rows)


def links_of(graph: EventGraph, start: Floats, before: Floats, produced_s: Floats) -> LinkTimes:
    """Return the usual times of each pair from all steps; arrays have shape [steps, actions].

    A wait counts as transit time if the rank was idle when the input was made.
    """
    pairs = pairs_of(graph)
    wait, late = np.maximum(start - np.maximum(before, produced_s), 0.0), produced_s - before
    usual, crosses = float(np.median(wait)), pairs.taken != NONE
    transit = _by_pair(pairs.taken, wait, crosses & (late > usual))[1]
    gap = median_of_some(wait[~crosses | (late < -transit - usual)])
    # A rank that is busy whenever a pair's message is sent still waits for the message if it takes long.
    queue, queues, is_late = np.zeros_like(produced_s), set(), crosses & (wait > 2 * gap + usual)
    fits = {}
    for pair in np.unique(pairs.taken[crosses]).tolist():
        its = pairs.taken == pair
        fits[pair] = _fit_of(
            produced_s[:, its], start[:, its] - gap - produced_s[:, its], wait[:, its], is_late[:, its]
        )
    for pair, (queued_s, constant_s, errors) in fits.items():
        its, (sender, receiver) = pairs.taken == pair, divmod(pair, pairs.num_ranks)
        errors = errors + fits.get(receiver * pairs.num_ranks + sender, _UNKNOWN)[2]
        if queued_s and errors[0] <= _CLEARLY * errors[1]:
            transit[its], queue[:, its] = queued_s, queue_s(produced_s[:, its], queued_s)
            queues.add(pair)
        elif constant_s:
            transit[its] = constant_s
    times = LinkTimes(
        pairs, np.tile(transit, (3, 1)), _by_pair(pairs.sent, wait, ~crosses | (late + queue < -transit - usual)),
        queue, frozenset(queues),
    )  # fmt: skip
    _, under_way, is_waited = times.parts_of(start, before, produced_s)
    # A message takes no time if its idle receiver hardly waited. After a send that blocks, nothing is certain.
    chosen = crosses & (is_waited | (late > usual) & ~is_late) & (times.gap_s <= 2 * gap + usual)
    return replace(times, transits=_by_pair(pairs.taken, under_way - queue, chosen))


_UNKNOWN = (0.0, 0.0, np.zeros(2))


def queue_s(sent: Floats, service_s: float) -> Floats:
    """Return how long each message waits if a link takes `service_s` for each, first in, first out.

    `sent` has shape [steps, messages]. Message k begins at the maximum of sent(j) + (k − j) · service over j ≤ k.
    """
    order = np.argsort(sent, axis=1, kind="stable")
    turn = service_s * np.arange(sent.shape[1])
    begin = turn + np.maximum.accumulate(np.take_along_axis(sent, order, axis=1) - turn, axis=1)
    queue = np.empty_like(sent)
    np.put_along_axis(queue, order, begin, axis=1)
    return np.where(queue - sent > 1e-6 * service_s, queue - sent, 0.0)


def _fit_of(sent: Floats, since: Floats, wait: Floats, is_late: Any) -> tuple[float, float, Floats]:
    """Return the best time of a message on a queueing link, and on another link, and the errors of both.

    Arrays have shape [steps, messages]; `since` is the time until the arrival, `wait` the receiver's part of it.
    `is_late` marks messages whose receiver waited until they arrived; others arrived earlier. If the waits differ
    less than the times since the sending, the receiver was blocked, for example by its own send: then there is no
    fit. The errors are sums over messages for which the two differ.
    """
    if is_late.sum() < _LEAST_MESSAGES:
        return _UNKNOWN
    candidates = np.concatenate([
        np.quantile(since[is_late], _CANDIDATES),
        np.quantile(np.diff(np.sort((sent + since)[is_late])), _CANDIDATES),
    ])  # fmt: skip
    candidates = candidates[candidates > 0]

    def errors(expected: Floats) -> Any:
        too_late = np.where(is_late, np.maximum(since - expected, 0.0), 0.0)
        too_soon = _CERTAINTY * np.maximum(expected - since, 0.0)
        return np.minimum(too_late, candidates.max()) + np.minimum(too_soon, _CERTAINTY * candidates.max())

    queued = min(candidates, key=lambda service: errors(queue_s(sent, service) + service).mean())
    constant = min(candidates, key=lambda constant: errors(constant + np.zeros_like(sent)).mean())
    queue = queue_s(sent, queued)
    late = [times[is_late] for times in (wait, since, since - queue)]
    spreads = [float(np.abs(times - np.median(times)).mean()) for times in late]
    if spreads[0] < _CLEARLY * min(spreads[1:]):
        return _UNKNOWN
    expected = queue + queued, np.full_like(sent, constant)
    differ = np.abs(expected[0] - constant) > _OVERLAPS * constant
    return float(queued), float(constant), np.array([errors(times)[differ].sum() for times in expected])


def slow_links_of(graph: EventGraph, start: Floats, end: Floats) -> SlowPairs:
    first = start.min(axis=1, keepdims=True)
    before, produced_s, _ = input_times(graph, end - first)
    return slow_pairs_excess(links_of(graph, start - first, before, produced_s), float(np.median(end - start)))


def _by_pair(pair: Ints64, values: Floats, chosen: Any) -> Floats:
    """Quartiles of each pair's chosen values, [3, actions]; for a pair with few values, of the usual pair."""
    chosen, quartiles = np.broadcast_to(chosen, values.shape), {}
    for number in np.unique(pair).tolist():
        its = pair == number
        of_pair = values[:, its][chosen[:, its]]
        is_in_most_steps = chosen[:, its].any(axis=1).mean() >= _LEAST_STEPS
        if len(of_pair) >= _LEAST_MESSAGES and is_in_most_steps:
            quartiles[number] = _quartiles(of_pair)
    usual = np.quantile([*quartiles.values()] or [_quartiles(values[chosen])], 0.5, axis=0, method="lower")
    return np.stack([quartiles.get(number, usual) for number in pair.tolist()], axis=1)


def _quartiles(values: Floats) -> Floats:
    return np.quantile(values, [0.25, 0.5, 0.75]) if len(values) else np.zeros(3)


def slow_pairs_excess(links: LinkTimes, pass_s: float) -> SlowPairs:
    """Return the excess of slow pairs over the lower median pair; `pass_s` is the usual time of an action."""
    pairs = links.pairs
    transit, block = _beyond(pairs.taken, links.transits, pass_s), _beyond(pairs.sent, links.gaps, pass_s)
    queue = np.where(transit > 0, links.queue_s, 0.0)
    times = {
        int(pair): (
            float(transit[pairs.taken == pair].max(initial=0.0)), float(block[pairs.sent == pair].max(initial=0.0)),
            float(queue[:, pairs.taken == pair].max(initial=0.0)),
        )
        for pair in np.unique(pairs.taken[pairs.taken != NONE])
    }  # fmt: skip
    slow = [(pair, seconds) for pair, seconds in times.items() if any(seconds[:2])]
    named = sorted(slow, key=lambda pair: -sum(pair[1][:2]))
    return SlowPairs(transit + queue, block, {pairs.name(pair): seconds for pair, seconds in named})


def _beyond(pair: Ints64, times: Floats, pass_s: float) -> Floats:
    """Excess of a slow pair's median over the usual pair's, 0 for other pairs.

    A slow pair's lower quartile must also be above the usual pair's upper quartile.
    """
    ones = np.unique(pair[pair != NONE])
    if not len(ones):
        return np.zeros(len(pair))
    of_pairs = np.stack([times[:, pair == one][:, 0] for one in ones])
    _, usual, high = np.quantile(of_pairs, 0.5, axis=0, method="lower")
    low, middle, _ = times
    least = max(_SLOW * usual, _OF_A_PASS * pass_s)
    return np.where((pair != NONE) & (middle - usual > least) & (low > high), middle - usual, 0.0)


def median_of_some(values: Floats) -> float:
    return float(np.median(values)) if len(values) else 0.0


def input_times(graph: EventGraph, end: Floats) -> tuple[Floats, Floats, Any]:
    """Return, per action, when its rank became free, when its input was made, and if another rank made it."""
    schedule = graph.schedule
    previous = previous_on_rank(schedule)
    first = np.zeros((len(end), 1))
    before = np.where(previous == NONE, first, end[:, previous])
    needs = dependencies(schedule).neighbour
    produced_s = np.where(needs == NONE, first, end[:, last_of_cell(schedule)[needs]])
    return before, produced_s, (needs != NONE) & (schedule.rank[needs] != schedule.rank)
