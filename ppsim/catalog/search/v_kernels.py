"""The inner loop of the V-shaped heuristic: a function over arrays that numba can compile.

Codes and leading arguments as in `ppsim.catalog.search.kernels`.
"""

from typing import Any


def v_heuristic(
    num_microbatches: Any, rank_of: Any, firsts: Any, stages: Any, forward_s: Any, input_s: Any, weight_s: Any,
    hop_s: Any, tolerance_s: Any, activation: Any, kept: Any, cap: Any, head: Any, approved: Any, fill_forward: Any,
    fill_backward: Any,
    order: Any, now: Any, end: Any, done: Any, oldest: Any, idle: Any,
) -> Any:  # fmt: skip
    """One run: fills `order`, `now` (each rank's end) and `idle`; returns whether the cap could be kept.

    `idle` is each rank's idle time after its first forward, and `head` what it has of it to begin with (0 for
    equal stages, as in the paper). `approved` is the idle time of an earlier run, all 0 for none: a rank may have
    as much more as it lagged behind the worst there. `oldest` is as in `fill`.
    """
    m, num_stages, p = num_microbatches, len(rank_of), len(firsts) - 1
    at = [3 * m * firsts[rank] for rank in range(p)]
    num_w = [0 for rank in range(p)]
    num_i = [0 for rank in range(p)]
    held = [0.0 for rank in range(p)]
    for rank in range(p):
        idle[rank] = head[rank]
    most_approved = max(approved)

    def worst(rank: Any) -> Any:
        return max(max(idle), most_approved - approved[rank])

    def ready(code: Any) -> Any:
        """When the input of the next pass of this code arrives; 0 where there is none, −1 if not known."""
        number = done[code]
        if code < num_stages:
            stage = code
            if stage == 0:
                return 0.0
            if done[stage - 1] <= number:
                return -1.0
            return end[(stage - 1) * m + number] + hop_s[stage - 1]
        stage = code - num_stages
        if done[stage] <= number:
            return -1.0
        if stage == num_stages - 1:
            return 0.0
        if done[code + 1] <= number:
            return -1.0
        return end[(code + 1) * m + number] + hop_s[stage]

    def put(rank: Any, code: Any) -> None:
        number = done[code]
        order[at[rank]] = code
        at[rank] += 1
        begin = now[rank]
        if code < num_stages:
            cost = forward_s[code]
            begin = max(begin, ready(code))
            held[rank] += activation[code]
        elif code < 2 * num_stages:
            stage = code - num_stages
            cost = input_s[stage]
            begin = max(begin, ready(code), end[stage * m + number])
            held[rank] -= activation[stage] - kept[stage]
            oldest[m * firsts[rank] + num_i[rank]] = stage
            num_i[rank] += 1
        else:
            cost = weight_s[code - 2 * num_stages]
            held[rank] -= kept[code - 2 * num_stages]
            num_w[rank] += 1
        if done[rank] > 0:  # the wait for the first microbatch is no bubble
            idle[rank] += begin - now[rank]
        now[rank] = begin + cost
        if code < 2 * num_stages:
            end[code * m + number] = now[rank]
        done[code] += 1

    def put_weight(rank: Any) -> None:
        put(rank, 2 * num_stages + oldest[m * firsts[rank] + num_w[rank]])

    def put_after_weights(rank: Any, code: Any, may_fill: Any) -> Any:
        """The pass, behind the weight gradients that fit before it; False where it does not fit the cap."""
        if code < num_stages:
            while held[rank] + activation[code] > cap[rank] and num_w[rank] < num_i[rank]:
                put_weight(rank)
            if held[rank] + activation[code] > cap[rank]:
                return False
        comes = ready(code)
        while num_w[rank] < num_i[rank]:
            late = oldest[m * firsts[rank] + num_w[rank]]
            if comes < now[rank] + weight_s[late] - tolerance_s:
                break
            put_weight(rank)
        gap = comes - now[rank]
        if (
            may_fill
            and num_w[rank] < num_i[rank]
            and gap > tolerance_s
            and gap > worst(rank) - idle[rank] + tolerance_s
        ):
            put_weight(rank)
        put(rank, code)
        return True

    # The first microbatch down the ranks and up again, and what more fits before it comes back to each.
    for rank in range(p):
        if held[rank] + activation[rank] > cap[rank]:
            return False
        put(rank, rank)
    for rank in range(p - 1, -1, -1):
        up = num_stages - 1 - rank
        comes = ready(up)
        while (
            rank < p - 1
            and done[rank] < m
            and now[rank] + forward_s[rank] <= comes + tolerance_s
            and held[rank] + (1 + 2 * rank) * activation[rank] + activation[up] <= cap[rank]
        ):
            fits = True
            for above in range(rank + 1):
                if held[above] + activation[above] + activation[num_stages - 1 - above] > cap[above]:
                    fits = False
            if not fits:
                break
            for above in range(rank + 1):
                put(above, above)
        if held[rank] + activation[up] > cap[rank]:
            return False
        put(rank, up)
    # Each rank as many forwards as the one above it, down and up by turns.
    goes_up = False
    for rank in range(1, p):
        up = num_stages - 1 - rank
        num_idle = 0  # turns in which no rank could take one
        while num_idle < 2 and (
            done[rank] + done[up] < done[rank - 1] + done[up + 1] or (done[up] <= done[up + 1] and done[up + 1] < m)
        ):
            num_idle += 1
            for below in range(p - 1, rank - 1, -1):
                code = num_stages - 1 - below if goes_up else below
                if done[code] < m and ready(code) >= 0 and held[below] + activation[code] <= cap[below]:
                    put(below, code)
                    num_idle = 0
            goes_up = not goes_up

    # Then an input gradient and a forward on every rank, round after round.
    takes_down = [False for rank in range(p)]
    for _ in range(2 * m):
        for rank in range(p):  # the gradient's way back down the V comes first where it can
            up = 2 * num_stages - 1 - rank
            down = num_stages + rank
            takes_down[rank] = done[down] < done[up] and (rank == p - 1 or ready(down) >= 0 or done[up] >= m)
        for visit in range(2 * p):
            rank = p - 1 - visit if visit < p else visit - p
            if takes_down[rank] != (visit < p):
                continue
            code = num_stages + rank if takes_down[rank] else 2 * num_stages - 1 - rank
            if done[code] >= m or ready(code) < 0:
                return False
            put_after_weights(rank, code, takes_down[rank] or fill_backward)
        for rank in range(p):
            up = num_stages - 1 - rank
            if done[up] >= m:
                continue
            if done[up] >= done[rank]:
                code = rank
            elif rank == p - 1 or ready(up) >= 0:
                code = up
            elif done[rank] < m:
                code = rank
            else:
                continue
            if ready(code) < 0:
                continue
            if not put_after_weights(rank, code, fill_forward):
                return False
    for rank in range(p):
        while num_w[rank] < num_i[rank]:
            put_weight(rank)
    return True
