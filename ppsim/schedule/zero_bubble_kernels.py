"""The inner loops of `ppsim.schedule.zero_bubble_auto`: functions over arrays that numba can compile.

Nodes are numbered F, I, W, each p·m, rank by rank; `kinds` holds a rank's word over F, I, W as 0, 1, 2.
"""

from typing import Any


def heuristic(
    num_ranks: Any,
    num_microbatches: Any,
    forward_s: Any,
    input_s: Any,
    weight_s: Any,
    hop_s: Any,
    tolerance_s: Any,
    activation: Any,
    kept: Any,
    cap: Any,
    head: Any,
    slack: Any,
    keep_first_input_on_time: Any,
    may_skip: Any,
    greedy: Any,
    kinds: Any,
    now: Any,
    end_f: Any,
    end_i: Any,
    done: Any,
    wanted: Any,
) -> None:
    """One run of the heuristic: `kinds` and `now` (each rank's end) come back, the rest is working space.

    `done` counts F, I, W per rank (3r, 3r+1, 3r+2). `head` is the idle time that each rank starts with (0 for
    equal stages, as in the paper), `slack` what the worst may have in any case (0 in the paper).
    """
    m, p = num_microbatches, num_ranks
    idle = [head[rank] + 0.0 for rank in range(p)]
    worst = [max(slack, max(idle))]  # a list, for `put` to write to

    def held(rank: Any) -> Any:
        alive, waiting = done[3 * rank] - done[3 * rank + 1], done[3 * rank + 1] - done[3 * rank + 2]
        return alive * activation[rank] + waiting * kept[rank]

    def arrival(rank: Any, kind: Any) -> Any:
        if kind == 0 and rank > 0:
            return end_f[(rank - 1) * m + done[3 * rank]] + hop_s[rank - 1]
        if kind == 1 and rank < p - 1:
            return end_i[(rank + 1) * m + done[3 * rank + 1]] + hop_s[rank]
        return 0.0

    def put(rank: Any, kind: Any, begin: Any) -> None:
        number = done[3 * rank + kind]
        kinds[3 * m * rank + done[3 * rank] + done[3 * rank + 1] + done[3 * rank + 2]] = kind
        if begin > now[rank]:
            if done[3 * rank] > 0:  # the wait for the first microbatch is no bubble
                idle[rank] += begin - now[rank]
                worst[0] = max(worst[0], idle[rank])
            now[rank] = begin
        if kind == 0:
            now[rank] += forward_s[rank]
            end_f[rank * m + number] = now[rank]
        elif kind == 1:
            now[rank] += input_s[rank]
            end_i[rank * m + number] = now[rank]
        else:
            now[rank] += weight_s[rank]
        done[3 * rank + kind] += 1

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
            wanted[rank] = 1 if done[3 * rank] < m else 0
            if may_skip and wanted[rank] == 1 and rank < p - 1 and done[3 * rank] >= done[3 * rank + 3] + 2:
                starved = now[rank + 1] + forward_s[rank + 1] + input_s[rank + 1] + hop_s[rank]
                if now[rank] >= starved - tolerance_s:
                    wanted[rank] = 0
                else:
                    until, held_then = now[rank] + forward_s[rank], held(rank) + activation[rank]
                    num_weights = done[3 * rank + 1] - done[3 * rank + 2]
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
            while done[3 * rank + 2] < done[3 * rank + 1]:
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
        for _ in range(m - done[3 * rank + 2]):
            put(rank, 2, 0.0)


def list_schedule(
    num_ranks: Any,
    num_microbatches: Any,
    forward_s: Any,
    input_s: Any,
    weight_s: Any,
    hop_s: Any,
    tolerance_s: Any,
    activation: Any,
    kept: Any,
    cap: Any,
    urgency: Any,
    in_flight: Any,
    patient: Any,
    kinds: Any,
    now: Any,
    end_f: Any,
    end_i: Any,
    done: Any,
    decide: Any,
) -> None:
    """Ranks decide in the order of time; `decide` is when each does next. Working space as in `heuristic`.

    A free rank takes the most urgent (smallest) of what is there and fits. A patient one rather waits where
    something more urgent is known to come before that would end, and would be late.
    """
    m, p = num_microbatches, num_ranks
    never = 1e300
    while True:
        rank = 0
        for other in range(1, p):
            if decide[other] < decide[rank]:
                rank = other
        time = decide[rank]
        if time >= never:
            break
        num_f, num_i, num_w = done[3 * rank], done[3 * rank + 1], done[3 * rank + 2]
        held = (num_f - num_i) * activation[rank] + (num_i - num_w) * kept[rank]

        # When the next of each kind can start, as far as is known, and how urgent it is.
        next_f = next_i = next_w = never
        urgent_f = urgent_i = urgent_w = never
        if num_f < m and num_f - num_i < in_flight[rank]:
            urgent_f = urgency[rank * m + num_f]
            if rank == 0:
                next_f = time
            elif done[3 * rank - 3] > num_f:
                next_f = max(time, end_f[(rank - 1) * m + num_f] + hop_s[rank - 1])
        if num_i < num_f:
            urgent_i = urgency[(p + rank) * m + num_i]
            if rank == p - 1:
                next_i = time
            elif done[3 * rank + 4] > num_i:
                next_i = max(time, end_i[(rank + 1) * m + num_i] + hop_s[rank])
        if num_w < num_i:
            next_w = time
            urgent_w = urgency[(2 * p + rank) * m + num_w]
        if held + activation[rank] > cap[rank]:
            if next_f <= time and next_w <= time:  # a forward is waiting for memory: so urgent is what frees it
                urgent_w = min(urgent_w, urgent_f)
            next_f = never

        kind, begin, cost, urgent = -1, time, 0.0, never
        if next_i <= time + tolerance_s:
            kind, begin, cost, urgent = 1, next_i, input_s[rank], urgent_i
        if next_f <= time + tolerance_s and urgent_f < urgent:
            kind, begin, cost, urgent = 0, next_f, forward_s[rank], urgent_f
        if next_w <= time and urgent_w < urgent:
            kind, begin, cost, urgent = 2, time, weight_s[rank], urgent_w
        if kind >= 0 and patient:
            end = time + cost - tolerance_s
            if (next_i < end and urgent_i < min(urgent, end)) or (next_f < end and urgent_f < min(urgent, end)):
                kind = -1
        if kind == -1:
            decide[rank] = never  # until a neighbour hands something over
            if next_i > time + tolerance_s:
                decide[rank] = next_i
            if next_f > time + tolerance_s:
                decide[rank] = min(decide[rank], next_f)
            continue

        kinds[3 * m * rank + num_f + num_i + num_w] = kind
        done[3 * rank + kind] += 1
        now[rank] = begin + cost
        decide[rank] = now[rank]
        if kind == 0:
            end_f[rank * m + num_f] = now[rank]
            if rank < p - 1:
                decide[rank + 1] = min(decide[rank + 1], max(now[rank + 1], time))
        elif kind == 1:
            end_i[rank * m + num_i] = now[rank]
            if rank > 0:
                decide[rank - 1] = min(decide[rank - 1], max(now[rank - 1], time))


def latest_starts(
    num_ranks: Any,
    num_microbatches: Any,
    forward_s: Any,
    input_s: Any,
    weight_s: Any,
    hop_s: Any,
    tolerance_s: Any,
    kinds: Any,
    now: Any,
    latest: Any,
    undone: Any,
) -> None:
    """`timed` backwards: `now` goes in as each rank's deadline; `latest` has F, I, W, each p·m, starts."""
    m, p = num_microbatches, num_ranks
    num_left = 3 * m * p
    moved = True
    while moved and num_left > 0:
        moved = False
        for visit in range(2 * p):  # down the ranks for gradients, up for forwards
            rank = visit if visit < p else 2 * p - 1 - visit
            while undone[3 * rank] + undone[3 * rank + 1] + undone[3 * rank + 2] > 0:
                kind = kinds[3 * m * rank + undone[3 * rank] + undone[3 * rank + 1] + undone[3 * rank + 2] - 1]
                number = undone[3 * rank + kind] - 1
                end = now[rank]
                if kind == 0:
                    if rank < p - 1:
                        if undone[3 * rank + 3] > number:
                            break
                        end = min(end, latest[(rank + 1) * m + number] - hop_s[rank])
                    now[rank] = end - forward_s[rank]
                elif kind == 1:
                    if rank > 0:
                        if undone[3 * rank - 2] > number:
                            break
                        end = min(end, latest[(p + rank - 1) * m + number] - hop_s[rank - 1])
                    now[rank] = end - input_s[rank]
                else:
                    now[rank] = end - weight_s[rank]
                latest[(kind * p + rank) * m + number] = now[rank]
                undone[3 * rank + kind] -= 1
                num_left -= 1
                moved = True


def timed(
    num_ranks: Any,
    num_microbatches: Any,
    forward_s: Any,
    input_s: Any,
    weight_s: Any,
    hop_s: Any,
    tolerance_s: Any,
    kinds: Any,
    now: Any,
    end_f: Any,
    end_i: Any,
    done: Any,
) -> Any:
    """Fill `now` with each rank's end; return whether every action could run."""
    m, p = num_microbatches, num_ranks
    num_left = 3 * m * p
    moved = True
    while moved and num_left > 0:
        moved = False
        for visit in range(2 * p):  # down the ranks for forwards, up for gradients
            rank = visit if visit < p else 2 * p - 1 - visit
            while done[3 * rank] + done[3 * rank + 1] + done[3 * rank + 2] < 3 * m:
                kind = kinds[3 * m * rank + done[3 * rank] + done[3 * rank + 1] + done[3 * rank + 2]]
                number = done[3 * rank + kind]
                begin = now[rank]
                if kind == 0:
                    if rank > 0:
                        if done[3 * rank - 3] <= number:
                            break
                        begin = max(begin, end_f[(rank - 1) * m + number] + hop_s[rank - 1])
                    now[rank] = begin + forward_s[rank]
                    end_f[rank * m + number] = now[rank]
                elif kind == 1:
                    if done[3 * rank] <= number:
                        break
                    if rank < p - 1:
                        if done[3 * rank + 4] <= number:
                            break
                        begin = max(begin, end_i[(rank + 1) * m + number] + hop_s[rank])
                    now[rank] = begin + input_s[rank]
                    end_i[rank * m + number] = now[rank]
                else:
                    if done[3 * rank + 1] <= number:
                        break
                    now[rank] = begin + weight_s[rank]
                done[3 * rank + kind] += 1
                num_left -= 1
                moved = True
    return num_left == 0
