"""Inner loop of the local search; codes and named tuples are explained in `ppsim.catalog.search.pipeline`."""

from typing import NamedTuple

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.catalog.search.pipeline import NOTHING, Codes, Counts, MemoryCaps, Pipeline

DEADLOCK = 1e300
"""Score of an order that cannot run."""


class AnnealParameters(NamedTuple):
    """Parameters of a search."""

    handicap_s: Floats
    """Subtracted from each rank's end; the largest result is the score."""
    bound_s: float
    """The search stops at this score."""
    heat_s: float
    """Initial temperature: by how much a move may increase the score. It falls to 0."""
    num_moves: int
    reach: int
    """Maximum distance of a move along the row."""


class Timing(NamedTuple):
    """Times of an order and their causes. A place is an index into the order."""

    done: Counts
    """Number of actions that have run, per code."""
    at: Counts
    """Place of each rank's next action."""
    now_s: Floats
    """End of each rank's last action."""
    end_s: Floats
    """End per node."""
    place_of: Counts
    """Place per node."""
    start_s: Floats
    """Start per place."""
    waits_for: Counts
    """Per place: the place of the input that arrived last; `NOTHING` if the rank itself was ready last."""
    stack: Counts
    """Ranks that may be able to continue."""
    is_stacked: Counts
    """Whether each rank is on the stack."""


class RepeatedWindow(NamedTuple):
    """The part of a row that every rank repeats: q actions of each of its codes, in one order."""

    codes: Codes
    """Rank r's codes start at ``3 * q * firsts[r]``."""
    ahead: Counts
    """Per code: microbatch of its first action in the first window, at most 0. Only microbatches 0 … m − 1 run."""


def empty_timing(pipeline: Pipeline) -> Timing:
    p, num_codes = pipeline.num_ranks, 3 * pipeline.num_stages
    num_nodes = num_codes * pipeline.num_microbatches
    a_code, a_rank, a_node = (np.zeros(number, dtype=np.int64) for number in (num_codes, p, num_nodes))
    return Timing(
        done=a_code, at=a_rank, now_s=np.zeros(p), end_s=np.zeros(num_nodes), place_of=a_node,
        start_s=np.zeros(num_nodes), waits_for=a_node.copy(), stack=a_rank.copy(), is_stacked=a_rank.copy(),
    )  # fmt: skip


class UnrolledTable(NamedTuple):
    """The table that results from repeating a window."""

    order: Codes
    origin: Counts
    """Place in the window, per place of the order."""
    timing: Timing
    path: Counts


def empty_unrolled(pipeline: Pipeline) -> UnrolledTable:
    num_places = 3 * pipeline.num_stages * pipeline.num_microbatches
    places = np.zeros((2, num_places), dtype=np.int64)
    return UnrolledTable(np.zeros(num_places, dtype=np.int32), places[0], empty_timing(pipeline), places[1])


def anneal(
    pipeline: Pipeline,
    memory: MemoryCaps,
    rules: AnnealParameters,
    dice: Counts,
    order: Codes,
    best: Codes,
    timing: Timing,
    path: Counts,
) -> float:
    """Move actions of critical paths along their rows; write the best order to `best` and return its score.

    Simulated annealing: a move that increases the score by d is accepted if d is below the temperature times the
    square of a random number. Most accepted moves are therefore nearly as good, and a few are much worse.

    `order` and `best` must both hold the initial order. `dice` is the state of the random numbers, 1 to 2**31 − 2.
    With 0 moves the function only evaluates the order.
    """
    current_s = _criterion(pipeline, rules.handicap_s, order, timing)
    best_s = current_s
    if rules.num_moves == 0:
        return best_s
    length = _critical_path(pipeline, rules.handicap_s, timing, path)
    for number in range(1, rules.num_moves + 1):
        if best_s <= rules.bound_s:
            break
        source, target = _drawn_move(pipeline, rules.reach, dice, order, path, length)
        if source < 0:
            continue
        target = _nearest_allowed(order, source, target)
        if target == source or not _fits(pipeline, memory, order, source, target):
            continue
        _move(order, source, target)
        score_s = _criterion(pipeline, rules.handicap_s, order, timing)
        heat_s = rules.heat_s - rules.heat_s * (number / rules.num_moves)
        luck = (1 + _drawn(dice, 1000000)) / 1000000
        if score_s > current_s + heat_s * luck * luck:
            _move(order, target, source)
            continue
        current_s = score_s
        length = _critical_path(pipeline, rules.handicap_s, timing, path)
        if score_s < best_s - pipeline.tolerance_s:
            best_s = score_s
            for position in range(len(order)):
                best[position] = order[position]
    return best_s


def anneal_window(
    pipeline: Pipeline,
    memory: MemoryCaps,
    rules: AnnealParameters,
    dice: Counts,
    window: RepeatedWindow,
    best: RepeatedWindow,
    last: RepeatedWindow,
    unrolled: UnrolledTable,
) -> float:
    """Run `anneal` on a window, so that each move applies to all its repetitions.

    `window`, `best` and `last` must hold the initial window, whose table does not deadlock.
    """
    at_once = len(window.codes) // len(window.ahead)
    current_s = _unrolled_criterion(pipeline, rules.handicap_s, window, unrolled)
    best_s = current_s
    length = _critical_origins(pipeline, rules.handicap_s, unrolled)
    for number in range(1, rules.num_moves + 1):
        if best_s <= rules.bound_s:
            break
        position = unrolled.path[_drawn(dice, length)]
        rank = pipeline.rank_of[window.codes[position] % pipeline.num_stages]
        first, behind = 3 * at_once * pipeline.firsts[rank], 3 * at_once * pipeline.firsts[rank + 1]
        kind_of_move = _drawn(dice, 4)  # as in `_drawn_move`
        if kind_of_move == 0:
            position = position - 1 if position > first else behind - 1
        if kind_of_move == 3:
            position = first + _drawn(dice, behind - first)
        steps = 1 + _drawn(dice, rules.reach)
        is_earlier = kind_of_move == 1 or (kind_of_move == 3 and _drawn(dice, 2) == 0)
        heat_s = rules.heat_s - rules.heat_s * (number / rules.num_moves)
        luck = (1 + _drawn(dice, 1000000)) / 1000000
        if not _move_around(window, first, behind, position, -steps if is_earlier else steps):
            continue
        score_s = DEADLOCK
        if _window_fits(pipeline, memory, window, rank, unrolled.timing.done):
            _begin_earlier(pipeline, window, rank)
            score_s = _unrolled_criterion(pipeline, rules.handicap_s, window, unrolled)
        if score_s > current_s + heat_s * luck * luck:
            _copy_window(last, window)
            continue
        current_s = score_s
        length = _critical_origins(pipeline, rules.handicap_s, unrolled)
        _copy_window(window, last)
        if score_s < best_s - pipeline.tolerance_s:
            best_s = score_s
            _copy_window(window, best)
    return best_s


def unroll(pipeline: Pipeline, window: RepeatedWindow, unrolled: UnrolledTable) -> None:
    m, number, at_once = pipeline.num_microbatches, unrolled.timing.done, len(window.codes) // len(window.ahead)
    for code in range(len(number)):
        number[code] = window.ahead[code]
    for rank in range(pipeline.num_ranks):
        position, end_of_row = 3 * m * pipeline.firsts[rank], 3 * m * pipeline.firsts[rank + 1]
        while position < end_of_row:
            for origin in range(3 * at_once * pipeline.firsts[rank], 3 * at_once * pipeline.firsts[rank + 1]):
                code = window.codes[origin]
                if 0 <= number[code] < m:
                    unrolled.order[position] = code
                    unrolled.origin[position] = origin
                    position += 1
                number[code] += 1


def _unrolled_criterion(
    pipeline: Pipeline, handicap_s: Floats, window: RepeatedWindow, unrolled: UnrolledTable
) -> float:
    unroll(pipeline, window, unrolled)
    return _criterion(pipeline, handicap_s, unrolled.order, unrolled.timing)


def _critical_origins(pipeline: Pipeline, handicap_s: Floats, unrolled: UnrolledTable) -> int:
    length = _critical_path(pipeline, handicap_s, unrolled.timing, unrolled.path)
    for number in range(length):
        unrolled.path[number] = unrolled.origin[unrolled.path[number]]
    return length


def _move_around(window: RepeatedWindow, first: int, behind: int, position: int, steps: int) -> bool:
    """Move an action at most to the next one of the same code; return whether it moved."""
    codes, ahead, step = window.codes, window.ahead, 1 if steps > 0 else -1
    code, is_moved = codes[position], False
    for _ in range(abs(steps)):
        target = position + step
        if target == behind:
            target = first
        elif target < first:
            target = behind - 1
        other = codes[target]
        if other == code:
            break
        if abs(target - position) > 1:  # the move crosses the end of the window
            ahead[code] -= step
            ahead[other] += step
        codes[position], codes[target] = other, code
        position, is_moved = target, True
    return is_moved


def _window_fits(pipeline: Pipeline, memory: MemoryCaps, window: RepeatedWindow, rank: int, done: Counts) -> bool:
    num_stages, held, at_once = pipeline.num_stages, 0.0, len(window.codes) // len(window.ahead)
    for k in range(pipeline.firsts[rank], pipeline.firsts[rank + 1]):
        for code in range(pipeline.stages[k], 3 * num_stages, num_stages):
            done[code] = window.ahead[code]
            held += done[code] * memory.changes[code]
    for position in range(3 * at_once * pipeline.firsts[rank], 3 * at_once * pipeline.firsts[rank + 1]):
        code = window.codes[position]
        if code >= num_stages and done[code - num_stages] <= done[code]:
            return False
        held += memory.changes[code]
        if code < num_stages and held > memory.cap[rank]:
            return False
        done[code] += 1
    return True


def _begin_earlier(pipeline: Pipeline, window: RepeatedWindow, rank: int) -> None:
    """Shift a rank's window by whole windows until no `ahead` is above 0, which would omit microbatch 0."""
    most, at_once = 0, len(window.codes) // len(window.ahead)
    for k in range(pipeline.firsts[rank], pipeline.firsts[rank + 1]):
        for code in range(pipeline.stages[k], 3 * pipeline.num_stages, pipeline.num_stages):
            most = max(most, window.ahead[code])
    if most > 0:
        for k in range(pipeline.firsts[rank], pipeline.firsts[rank + 1]):
            for code in range(pipeline.stages[k], 3 * pipeline.num_stages, pipeline.num_stages):
                window.ahead[code] -= at_once * (1 + (most - 1) // at_once)


def _copy_window(source: RepeatedWindow, target: RepeatedWindow) -> None:
    for position in range(len(source.codes)):
        target.codes[position] = source.codes[position]
    for code in range(len(source.ahead)):
        target.ahead[code] = source.ahead[code]


def _drawn(dice: Counts, limit: int) -> int:
    """Draw a number below `limit` with Park and Miller's generator."""
    dice[0] = dice[0] * 48271 % 2147483647
    drawn: int = dice[0] % limit
    return drawn


def _criterion(pipeline: Pipeline, handicap_s: Floats, order: Codes, timing: Timing) -> float:
    """Compute the times of an order and return its score.

    A rank runs until it waits, and continues when another rank has run an action that it may wait for. The cost per
    action is therefore constant, even if the order deadlocks.
    """
    done, at, now_s, stack, is_stacked = timing.done, timing.at, timing.now_s, timing.stack, timing.is_stacked
    p, row_length = pipeline.num_ranks, 3 * pipeline.num_microbatches
    for code in range(3 * pipeline.num_stages):
        done[code] = 0
    for rank in range(p):
        at[rank] = row_length * pipeline.firsts[rank]
        now_s[rank] = 0.0
        stack[p - 1 - rank] = rank
        is_stacked[rank] = 1
    depth = p
    while depth > 0:
        depth -= 1
        rank = stack[depth]
        is_stacked[rank] = 0
        depth = _run_until_it_waits(pipeline, order, timing, rank, depth)
    worst_s: float = now_s[0] - handicap_s[0]
    for rank in range(p):
        if at[rank] < row_length * pipeline.firsts[rank + 1]:
            return DEADLOCK
        worst_s = max(worst_s, now_s[rank] - handicap_s[rank])
    return worst_s


def _run_until_it_waits(pipeline: Pipeline, order: Codes, timing: Timing, rank: int, depth: int) -> int:
    m, num_stages = pipeline.num_microbatches, pipeline.num_stages
    needs, hop_s, cost_s, wakes = pipeline.needs, pipeline.hop_s, pipeline.cost_s, pipeline.wakes
    done, end_s, place_of = timing.done, timing.end_s, timing.place_of
    position, end_of_row, time_s = timing.at[rank], 3 * m * pipeline.firsts[rank + 1], timing.now_s[rank]
    while position < end_of_row:
        code = order[position]
        number = done[code]
        if code >= num_stages and done[code - num_stages] <= number:
            break
        begin_s, waits_for = time_s, NOTHING
        needed = needs[code]
        if needed >= 0:
            if done[needed] <= number:
                break
            node = needed * m + number
            ready_s = end_s[node] + hop_s[code]
            if ready_s > begin_s:
                begin_s, waits_for = ready_s, place_of[node]
        time_s = begin_s + cost_s[code]
        end_s[code * m + number] = time_s
        place_of[code * m + number] = position
        timing.start_s[position] = begin_s
        timing.waits_for[position] = waits_for
        done[code] += 1
        position += 1
        woken = wakes[code]
        if woken >= 0 and timing.is_stacked[woken] == 0:
            timing.stack[depth] = woken
            timing.is_stacked[woken] = 1
            depth += 1
    timing.at[rank] = position
    timing.now_s[rank] = time_s
    return depth


def _critical_path(pipeline: Pipeline, handicap_s: Floats, timing: Timing, path: Counts) -> int:
    """Fill `path` with the places of a longest path, last first; return its length."""
    now_s = timing.now_s
    worst = 0
    for rank in range(1, pipeline.num_ranks):
        if now_s[rank] - handicap_s[rank] > now_s[worst] - handicap_s[worst]:
            worst = rank
    here = 3 * pipeline.num_microbatches * pipeline.firsts[worst + 1] - 1
    length = 0
    while here >= 0:
        path[length] = here
        length += 1
        if timing.waits_for[here] >= 0:
            here = timing.waits_for[here]
        elif timing.start_s[here] > pipeline.tolerance_s:
            here -= 1
        else:
            here = NOTHING
    return length


def _drawn_move(
    pipeline: Pipeline, reach: int, dice: Counts, order: Codes, path: Counts, length: int
) -> tuple[int, int]:
    """Draw an action and its new place in the row; `NOTHING` twice if the place is outside the row.

    Four kinds of move, with equal probability: a critical action moves later; it moves earlier; the action before
    it moves after it or later; any action of its rank moves either way, to shift memory.
    """
    source = path[_drawn(dice, length)]
    rank = pipeline.rank_of[order[source] % pipeline.num_stages]
    row_length = 3 * pipeline.num_microbatches
    first, behind = row_length * pipeline.firsts[rank], row_length * pipeline.firsts[rank + 1]
    kind_of_move = _drawn(dice, 4)
    if kind_of_move == 0:
        source -= 1
    if kind_of_move == 3:
        source = first + _drawn(dice, behind - first)
    target = source + 1 + _drawn(dice, reach)
    if kind_of_move == 1 or (kind_of_move == 3 and _drawn(dice, 2) == 0):
        target = source - 1 - _drawn(dice, reach)
    if source < first or target < first or target >= behind:
        return NOTHING, NOTHING
    return source, target


def _nearest_allowed(order: Codes, source: int, target: int) -> int:
    step = 1 if target > source else -1
    position = source
    while position != target and order[position + step] != order[source]:
        position += step
    return position


def _fits(pipeline: Pipeline, memory: MemoryCaps, order: Codes, source: int, target: int) -> bool:
    """Only allocating earlier or freeing later can exceed the cap."""
    changes, code, is_later = memory.changes, order[source], target > source
    if (is_later and changes[code] >= 0) or (not is_later and changes[code] <= 0):
        return True
    rank = pipeline.rank_of[code % pipeline.num_stages]
    cap = memory.cap[rank]
    held = 0.0
    for position in range(3 * pipeline.num_microbatches * pipeline.firsts[rank], min(source, target)):
        held += changes[order[position]]
    if not is_later:
        held += changes[code]
        if held > cap:
            return False
    first, behind = (source + 1, target + 1) if is_later else (target, source)
    for position in range(first, behind):  # actions that the move passes
        held += changes[order[position]]
        if held > cap:
            return False
    return True


def _move(order: Codes, source: int, target: int) -> None:
    code = order[source]
    step = 1 if target > source else -1
    for position in range(source, target, step):
        order[position] = order[position + step]
    order[target] = code
