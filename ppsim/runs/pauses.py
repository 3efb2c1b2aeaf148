"""Pauses: single actions, and single waits before actions, that take far longer than usual."""

from collections.abc import Mapping

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.units import seconds
from ppsim.runs.links import LinkTimes
from ppsim.runs.step_replay import MeasuredSteps
from ppsim.runs.traces import RECEIVE
from ppsim.schedule.dependencies import dependencies
from ppsim.schedule.table import NONE, Schedule

LONG = 1.5
"""Minimum ratio of a pause to the usual time; the excess must also be `PART_OF_STEP` times the step time."""
PART_OF_STEP = 0.02

_CERTAIN = 1.5
"""Two starts are in order if they differ by more than this multiple of the usual spread of gaps and messages."""
_AS_GOOD = 0.9
"""A rank may have paused if it explains at least this fraction of the most late time that a rank explains."""

MOST_PLACES = 4
"""Maximum number of places listed per cause, the largest first."""


def pauses_beyond(durations: Floats, expected: Floats, step_s: float) -> Floats:
    is_pause = (durations > LONG * expected) & (durations > expected + PART_OF_STEP * step_s)
    return np.where(is_pause, durations - expected, 0.0)


def pauses_between(steps: MeasuredSteps, usual: LinkTimes, step_s: float) -> MeasuredSteps:
    def beyond(waits: Floats, usual_s: Floats) -> Floats:
        in_most_steps = np.quantile(waits, 0.5, axis=0, method="lower") if len(waits) > 1 else usual_s
        return pauses_beyond(waits, np.maximum(usual_s, in_most_steps), step_s)

    own, hop = beyond(steps.after_own, usual.gap_s), beyond(steps.hop, usual.queue_s + usual.transit_s)
    return MeasuredSteps(np.zeros_like(steps.taken), hop, own)


def join_places(places: list[str], num: int) -> str:
    more = f"; {num - len(places)} more" if num > len(places) else ""
    return "; ".join(places) + more


def spread_in_words(places: list[tuple[int, int]]) -> str:
    """Describe how pauses, given as (step, rank), are spread over ranks.

    >>> spread_in_words([(3, 0), (5, 1), (7, 2)])
    'one rank after the other, each in another step: '
    >>> spread_in_words([(3, 0), (3, 1)]), spread_in_words([(3, 1), (5, 1)])
    ('several ranks in the same step: ', 'always on rank 1: ')
    """
    steps, ranks = {step for step, _ in places}, {rank for _, rank in places}
    if len(places) < 2:
        return ""
    if len(ranks) == 1:
        return f"always on rank {min(ranks)}: "
    if len(steps) == len(places):
        return "one rank after the other, each in another step: "
    return "several ranks in the same step: "


def passes_in_words(schedule: Schedule, pauses: Floats, durations: Floats, first_step: int) -> str:
    paused = np.argwhere(pauses > 0)
    order = np.argsort([-pauses[step, entry] for step, entry in paused], kind="stable")[:MOST_PLACES]
    places = []
    for step, entry in sorted(paused[order].tolist()):
        whole, usual = float(durations[step, entry]), float(durations[step, entry] - pauses[step, entry])
        action = f"rank {schedule.rank[entry]}, {schedule[entry]}"
        places.append(f"step {first_step + step}: {action}, {seconds(whole)} instead of {seconds(usual)}")
    spread = spread_in_words([(step, int(schedule.rank[entry])) for step, entry in paused.tolist()])
    return spread + join_places(places, len(paused))


def waits_in_words(
    schedule: Schedule, pauses: MeasuredSteps, usual: LinkTimes, start: Floats, first_step: int,
    work_s: Mapping[str, Floats] = {},
) -> str:  # fmt: skip
    """Describe the longest pauses between actions; `start` has shape [steps, actions], `work_s` as in `Run`.

    A rank that pauses sends late, so that other ranks wait too. The text names the ranks that may have paused.
    """
    longest = np.maximum(pauses.after_own, pauses.hop)
    places = [
        (float(longest[step, late].max()), step, *_culprits(schedule, usual, late, step, longest, start, work_s))
        for step in np.flatnonzero(longest.any(axis=1)).tolist()
        for late in _at_the_same_time(longest[step], start[step])
    ]
    largest = sorted(places, key=lambda place: -place[0])[:MOST_PLACES]
    sentences = [
        f"step {first_step + step}: rank {' or '.join(map(str, ranks))}, {seconds(pause)} {when}"
        for pause, step, ranks, when in sorted(largest, key=lambda place: place[1])
    ]
    return spread_in_words([(step, ranks[0]) for _, step, ranks, _ in places]) + join_places(sentences, len(places))


def _at_the_same_time(pauses: Floats, start: Floats) -> list[list[int]]:
    groups: list[list[int]] = []
    until = -np.inf
    entries = np.flatnonzero(pauses)
    for entry in entries[np.argsort((start - pauses)[entries], kind="stable")].tolist():
        if start[entry] - pauses[entry] >= until:
            groups.append([])
        groups[-1].append(entry)
        until = max(until, start[entry])
    return groups


def _culprits(
    schedule: Schedule, usual: LinkTimes, late: list[int], step: int, pauses: Floats, starts: Floats,
    work_s: Mapping[str, Floats],
) -> tuple[list[int], str]:  # fmt: skip
    """Return the ranks that may have paused, and between which of their actions.

    A rank that pauses begins its own next action late. If it had not yet sent its previous result, the receiver is
    late too, but later than the rank by the time of a message. The rank with the most of the late time paused. If a
    rank is known to have waited in a receive, its sender is more likely.
    """
    needs, num = dependencies(schedule).neighbour, len(schedule)
    pause, start = pauses[step], starts[step]
    explained = np.zeros(schedule.num_ranks)
    when = [""] * schedule.num_ranks
    for entry in sorted(late, key=lambda entry: -start[entry]):
        rank, sent = int(schedule.rank[entry]), int(needs[entry])
        work = [name for name, spent_s in work_s.items() if spent_s[step, entry] > pause[entry] / 2]
        explained[rank] += pause[entry] / (2 if RECEIVE in work else 1)
        when[rank] = f"before {schedule[entry]}" + f" ({', '.join(work)})" * bool(work)
        if sent == NONE or schedule.rank[sent] == rank:
            continue
        sender, following = int(schedule.rank[sent]), sent + 1
        transit, spread = usual.transit_s[entry], _CERTAIN * usual.spread_s[entry]
        has_next = following < num and schedule.rank[following] == sender
        sooner = start[entry] - start[following] if has_next else 0.0
        if sooner <= transit + spread and (following not in late or sooner >= min(transit - spread, 0.0)):
            explained[sender] += pause[entry]
            when[sender] = when[sender] or f"after {schedule[sent]}"
    likely = [
        rank for rank in np.argsort(-explained, kind="stable") if explained[rank] > _AS_GOOD * explained.max()
    ]
    return sorted(map(int, likely)), " or ".join(when[rank] for rank in sorted(likely)).replace("or before", "or")
