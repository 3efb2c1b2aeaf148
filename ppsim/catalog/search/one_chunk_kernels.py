"""The inner loop of the zero-bubble heuristic, one stage a rank: a function over arrays that numba can compile.

Codes and leading arguments as in `ppsim.catalog.search.kernels`; with one stage a rank, stage r is rank r's.
"""

from typing import Any


def heuristic(
    num_microbatches: Any, rank_of: Any, firsts: Any, stages: Any, forward_s: Any, input_s: Any, weight_s: Any,
    hop_s: Any, tolerance_s: Any, activation: Any, kept: Any, cap: Any, head: Any, slack: Any,
    keep_first_input_on_time: Any, may_skip: Any, greedy: Any,
    order: Any, now: Any, end: Any, done: Any, wanted: Any,
) -> None:  # fmt: skip
    """One run of the heuristic: `order` and `now` (each rank's end) come back, the rest is working space.

    `done` counts per code. `head` is the idle time that each rank starts with (0 for
    equal stages, as in the paper), `slack` what the worst may have in any case (0 in the paper).
    """
    m, p = num_microbatches, len(rank_of)
    idle = [head[rank] + 0.0 for rank in range(p)]
    worst = [max(slack, max(idle))]  # a list, for `put` to write to

    def held(rank: Any) -> Any:
        alive, waiting = done[rank] - done[p + rank], done[p + rank] - done[2 * p + rank]
        return alive * activation[rank] + waiting * kept[rank]

    def arrival(rank: Any, kind: Any) -> Any:
        if kind == 0 and rank > 0:
            return end[(rank - 1) * m + done[rank]] + hop_s[rank - 1]
        if kind == 1 and rank < p - 1:
            return end[(p + rank + 1) * m + done[p + rank]] + hop_s[rank]
        return 0.0

    def put(rank: Any, kind: Any, begin: Any) -> None:
        code = kind * p + rank
        order[3 * m * rank + done[rank] + done[p + rank] + done[2 * p + rank]] = code
        if begin > now[rank]:
            if done[rank] > 0:  # the wait for the first microbatch is no bubble
                idle[rank] += begin - now[rank]
                worst[0] = max(worst[0], idle[rank])
            now[rank] = begin
        if kind == 0:
            now[rank] += forward_s[rank]
        elif kind == 1:
            now[rank] += input_s[rank]
        else:
            now[rank] += weight_s[rank]
        if kind < 2:
            end[code * m + done[code]] = now[rank]
        done[code] += 1

    # Warm-up: the first microbatch down the ranks, then as many more as fit before its gradient comes back.
    for rank in range(p):
        put(rank, 0, arrival(rank, 0))
    returned = now[p - 1] + input_s[p - 1]
    for rank in range(p - 2, -1, -1):
        returned += hop_s[rank]
        until = now[rank]
        while 1 + wanted[rank] < m and (2 + wanted[rank]) * activation[rank] <= cap[rank]:
            if keep_first_input_on_time:
                if until + forward_s[rank] > returned + tolerance_s:
                    break
            elif until >= returned - tolerance_s:
                break
            until += forward_s[rank]
            wanted[rank] += 1
        returned = max(until, returned) + input_s[rank]
    for rank in range(1, p):  # each rank at least one ahead of the next, until all are through
        while wanted[rank] > wanted[rank - 1] or 0 < wanted[rank] == wanted[rank - 1] < m - 1:
            wanted[rank] -= 1
    for rank in range(p):
        for _ in range(wanted[rank]):
            put(rank, 0, arrival(rank, 0))
    for rank in range(p - 1, -1, -1):
        put(rank, 1, arrival(rank, 1))

    for _ in range(1, m):
        # Which ranks take a forward in this round: all that have one left, unless the next is two behind anyway.
        for rank in range(p):
            wanted[rank] = 1 if done[rank] < m else 0
            if may_skip and wanted[rank] == 1 and rank < p - 1 and done[rank] >= done[rank + 1] + 2:
                starved = now[rank + 1] + forward_s[rank + 1] + input_s[rank + 1] + hop_s[rank]
                if now[rank] >= starved - tolerance_s:
                    wanted[rank] = 0
                else:
                    until, held_then = now[rank] + forward_s[rank], held(rank) + activation[rank]
                    num_weights = done[p + rank] - done[2 * p + rank]
                    while held_then > cap[rank] and num_weights > 0:
                        until += weight_s[rank]
                        held_then -= kept[rank]
                        num_weights -= 1
                    if until > starved + tolerance_s and starved - now[rank] <= worst[0] - idle[rank] + tolerance_s:
                        wanted[rank] = 0
        for rank in range(p - 2, -1, -1):
            wanted[rank] = min(wanted[rank], wanted[rank + 1])

        # The round: forwards down the ranks, then one input gradient up; weight gradients in between where a
        # rank lacks memory, where a whole one fits, or where the gap would make this rank the worst.
        for visit in range(2 * p):
            kind = 0 if visit < p else 1
            rank = visit if visit < p else 2 * p - 1 - visit
            if kind == 0 and wanted[rank] == 0:
                continue
            begin = arrival(rank, kind)
            flush = kind == 1 and rank == 0 and done[0] == m
            while done[2 * p + rank] < done[p + rank]:
                gap = begin - now[rank]
                if not (
                    flush
                    or (kind == 0 and held(rank) + activation[rank] > cap[rank])
                    or weight_s[rank] <= gap + tolerance_s
                    or (gap > tolerance_s and (greedy or gap > worst[0] - idle[rank] + tolerance_s))
                ):
                    break
                put(rank, 2, 0.0)
            put(rank, kind, begin)

    for rank in range(p):
        for _ in range(m - done[2 * p + rank]):
            put(rank, 2, 0.0)
