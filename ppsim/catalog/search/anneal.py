"""The inner loop of the local search: a function over arrays that numba can compile.

Codes and leading arguments as in `ppsim.catalog.search.kernels`.
"""

from typing import Any


def anneal(
    num_microbatches: Any, rank_of: Any, firsts: Any, stages: Any, forward_s: Any, input_s: Any, weight_s: Any,
    hop_s: Any, tolerance_s: Any, changes: Any, cap: Any, handicap_s: Any, bound_s: Any, heat_from_s: Any,
    heat_to_s: Any, num_moves: Any, reach: Any,
    order: Any, best: Any, state: Any, scores: Any, done: Any, ends: Any, place: Any, starts: Any,
    input_at: Any, path: Any,
) -> None:  # fmt: skip
    """Move passes of critical paths along their rows, `num_moves` times, and keep the best order found.

    A move that makes the criterion worse by d is kept where d is less than the heat times the square of a random
    number; the heat falls from `heat_from_s` to `heat_to_s`. `changes` has what a pass of each code adds to its
    rank's memory; `handicap_s` is taken off each rank's end before the largest counts; the search stops at
    `bound_s`. A pass moves by up to `reach` places.

    `order` and `best` go in as the current and the best order, `scores` as their two criteria (or infinity) and
    come back changed, so that the search can go on; `state` holds the random number (1 to 2**31 − 2) and, on
    return, the moves made. The rest is working space: `done` a code, `ends` an end a node, `place`, `starts`,
    `input_at` and `path` a number a node.
    """
    m, num_stages, p = num_microbatches, len(rank_of), len(firsts) - 1
    num_nodes = 3 * m * num_stages
    at = [0 for rank in range(p)]
    now = [0.0 for rank in range(p)]
    stack = [0 for rank in range(p)]
    on_stack = [False for rank in range(p)]

    def score_of() -> Any:
        """Time `order`: fills `ends`, `place` (of a node), `starts` and `input_at` (of a place)."""
        for code in range(3 * num_stages):
            done[code] = 0
        for rank in range(p):
            at[rank] = 3 * m * firsts[rank]
            now[rank] = 0.0
            stack[p - 1 - rank] = rank
            on_stack[rank] = True
        depth = p
        num_left = num_nodes
        while depth > 0:
            depth -= 1
            rank = stack[depth]
            on_stack[rank] = False
            here, last, time = at[rank], 3 * m * firsts[rank + 1], now[rank]
            while here < last:
                code = order[here]
                number = done[code]
                cause = -1  # the place of the pass of another stage that this one waits for
                begin = time
                follows = -1
                if code < num_stages:
                    cost = forward_s[code]
                    if code > 0:
                        if done[code - 1] <= number:
                            break
                        ready = ends[(code - 1) * m + number] + hop_s[code - 1]
                        if ready > begin:
                            begin = ready
                            cause = place[(code - 1) * m + number]
                    if code < num_stages - 1:
                        follows = code + 1
                elif code < 2 * num_stages:
                    stage = code - num_stages
                    cost = input_s[stage]
                    if done[stage] <= number:
                        break
                    if stage < num_stages - 1:
                        if done[code + 1] <= number:
                            break
                        ready = ends[(code + 1) * m + number] + hop_s[stage]
                        if ready > begin:
                            begin = ready
                            cause = place[(code + 1) * m + number]
                    if stage > 0:
                        follows = stage - 1
                else:
                    cost = weight_s[code - 2 * num_stages]
                    if done[code - num_stages] <= number:
                        break
                time = begin + cost
                node = code * m + number
                ends[node] = time
                place[node] = here
                starts[here] = begin
                input_at[here] = cause
                done[code] += 1
                num_left -= 1
                here += 1
                if follows >= 0:
                    other = rank_of[follows]
                    if other != rank and not on_stack[other]:
                        stack[depth] = other
                        depth += 1
                        on_stack[other] = True
            at[rank] = here
            now[rank] = time
        if num_left > 0:
            return 1e300
        worst = now[0] - handicap_s[0]
        for rank in range(1, p):
            worst = max(worst, now[rank] - handicap_s[rank])
        return worst

    def critical() -> Any:
        """Fill `path` with the places of a longest path, the last first; return how many."""
        worst = 0
        for rank in range(1, p):
            if now[rank] - handicap_s[rank] > now[worst] - handicap_s[worst]:
                worst = rank
        here = 3 * m * firsts[worst + 1] - 1
        length = 0
        while here >= 0:
            path[length] = here
            length += 1
            if input_at[here] >= 0:
                here = input_at[here]
            elif starts[here] > tolerance_s:
                here -= 1
            else:
                here = -1
        return length

    def random_below(limit: Any) -> Any:
        state[0] = state[0] * 48271 % 2147483647
        return state[0] % limit

    def moved(source: Any, target: Any) -> None:
        code = order[source]
        step = 1 if target > source else -1
        for k in range(source, target, step):
            order[k] = order[k + step]
        order[target] = code

    current = score_of()
    scores[0] = current
    if current < scores[1]:
        scores[1] = current
        for k in range(num_nodes):
            best[k] = order[k]
    length = critical()
    made = 0
    while made < num_moves and scores[1] > bound_s:
        made += 1
        heat = heat_from_s + (heat_to_s - heat_from_s) * (made / num_moves)
        source = path[random_below(length)]
        rank = rank_of[order[source] % num_stages]
        low, high = 3 * m * firsts[rank], 3 * m * firsts[rank + 1]
        way = random_below(4)
        if way == 0:  # what comes before the critical pass, behind it or later
            source -= 1
        if way == 3:  # any pass of the rank, either way
            source = low + random_below(high - low)
        target = source + 1 + random_below(reach)
        if way == 1 or (way == 3 and random_below(2) == 0):
            target = source - 1 - random_below(reach)
        if source < low or target < low or target >= high:
            continue
        # Not past a pass of its own code, and within memory all the way.
        code = order[source]
        step = 1 if target > source else -1
        k = source
        while k != target and order[k + step] != code:
            k += step
        target = k
        if target == source:
            continue
        if (step == 1 and changes[code] < 0) or (step == -1 and changes[code] > 0):
            held = 0.0
            for k in range(low, min(source, target)):
                held += changes[order[k]]
            fits = True
            if step == -1:
                held += changes[code]
                fits = held <= cap[rank]
                for k in range(target, source):
                    held += changes[order[k]]
                    if held > cap[rank]:
                        fits = False
                        break
            else:
                for k in range(source + 1, target + 1):
                    held += changes[order[k]]
                    if held > cap[rank]:
                        fits = False
                        break
            if not fits:
                continue
        moved(source, target)
        score = score_of()
        dice = (1 + random_below(1000000)) / 1000000
        if score <= current + heat * dice * dice:
            current = score
            length = critical()
            if score < scores[1] - tolerance_s:
                scores[1] = score
                for k in range(num_nodes):
                    best[k] = order[k]
        else:
            moved(target, source)
    scores[0] = current
    state[1] = made
