"""The inner loops of fitting: functions over arrays that numba can compile.

A pass of kind 0, 1, 2 (F, I, W) on stage s has the code ``kind * num_stages + s``; `order` holds the codes of
rank 0's row, then of rank 1's, … Passes of one code run in microbatch order, so that codes say everything. A node
is ``code * num_microbatches + microbatch``. `stages[firsts[r]:firsts[r + 1]]` are the stages of rank r, ascending.
`hop_s[s]` lies between stages s and s+1, 0 where they share a rank.

Every kernel begins with the nine arguments that `Target.run` hands over; `hop_s` has one entry a hop, S−1.
"""

from typing import Any


def _ready(code: Any, m: Any, num_stages: Any, hop_s: Any, end: Any, done: Any) -> Any:
    """When what the next pass of this code needs is there: −1 if not known, 0 where only its own rank matters."""
    number = done[code]
    if code < num_stages:
        if code == 0:
            return 0.0
        if done[code - 1] <= number:
            return -1.0
        return end[(code - 1) * m + number] + hop_s[code - 1]
    stage = code % num_stages
    if done[code - num_stages] <= number:  # its F, or its I
        return -1.0
    if code >= 2 * num_stages or stage == num_stages - 1:
        return 0.0
    if done[code + 1] <= number:
        return -1.0
    return end[(code + 1) * m + number] + hop_s[stage]


def timed(
    num_microbatches: Any, rank_of: Any, firsts: Any, stages: Any, forward_s: Any, input_s: Any, weight_s: Any,
    hop_s: Any, tolerance_s: Any, order: Any,
    now: Any, end: Any, done: Any,
) -> Any:  # fmt: skip
    """Fill `now` with each rank's end and `end` with that of every F and I; return whether all could run.

    `done` counts per code; it and the rest come as zeros.
    """
    m, num_stages, p = num_microbatches, len(rank_of), len(firsts) - 1
    at = [3 * m * firsts[rank] for rank in range(p)]
    num_left = 3 * m * num_stages
    moved = True
    while moved and num_left > 0:
        moved = False
        for visit in range(2 * p):  # down the ranks, then up
            rank = visit if visit < p else 2 * p - 1 - visit
            while at[rank] < 3 * m * firsts[rank + 1]:
                code = order[at[rank]]
                number = done[code]
                ready = _ready(code, m, num_stages, hop_s, end, done)
                if ready < 0:
                    break
                if code < num_stages:
                    cost = forward_s[code]
                elif code < 2 * num_stages:
                    cost = input_s[code - num_stages]
                else:
                    cost = weight_s[code - 2 * num_stages]
                now[rank] = max(now[rank], ready) + cost
                if code < 2 * num_stages:
                    end[code * m + number] = now[rank]
                done[code] += 1
                at[rank] += 1
                num_left -= 1
                moved = True
    return num_left == 0


def latest_starts(
    num_microbatches: Any, rank_of: Any, firsts: Any, stages: Any, forward_s: Any, input_s: Any, weight_s: Any,
    hop_s: Any, tolerance_s: Any, order: Any,
    now: Any, latest: Any, undone: Any,
) -> None:  # fmt: skip
    """`timed` backwards: `now` goes in as each rank's deadline, `undone` as m a code; `latest` a start a node."""
    m, num_stages, p = num_microbatches, len(rank_of), len(firsts) - 1
    at = [3 * m * firsts[rank + 1] - 1 for rank in range(p)]
    num_left = 3 * m * num_stages
    moved = True
    while moved and num_left > 0:
        moved = False
        for visit in range(2 * p):
            rank = visit if visit < p else 2 * p - 1 - visit
            while at[rank] >= 3 * m * firsts[rank]:
                code = order[at[rank]]
                number = undone[code] - 1
                end = now[rank]
                if code < num_stages:
                    stage = code
                    cost = forward_s[stage]
                    if stage < num_stages - 1:
                        if undone[stage + 1] > number:
                            break
                        end = min(end, latest[(stage + 1) * m + number] - hop_s[stage])
                elif code < 2 * num_stages:
                    stage = code - num_stages
                    cost = input_s[stage]
                    if stage > 0:
                        if undone[code - 1] > number:
                            break
                        end = min(end, latest[(code - 1) * m + number] - hop_s[stage - 1])
                else:
                    cost = weight_s[code - 2 * num_stages]
                now[rank] = end - cost
                latest[code * m + number] = now[rank]
                undone[code] -= 1
                at[rank] -= 1
                num_left -= 1
                moved = True


def list_schedule(
    num_microbatches: Any, rank_of: Any, firsts: Any, stages: Any, forward_s: Any, input_s: Any, weight_s: Any,
    hop_s: Any, tolerance_s: Any, activation: Any, kept: Any, cap: Any, urgency: Any,
    in_flight: Any, patient: Any,
    order: Any, now: Any, end: Any, done: Any, decide: Any,
) -> None:  # fmt: skip
    """Ranks decide in the order of time; `decide` is when each does next. `urgency` has an entry a node.

    A free rank takes the most urgent (smallest) of what is there and fits. A patient one rather waits where
    something more urgent is known to come before that would end, and would be late. Behind a forward there stays
    room, beside what the rank's stages up to any one hold, for an activation of each later one: the oldest
    microbatch can then always go on, so that no order of decisions ends in a deadlock. `in_flight` is the most
    forwards of a stage whose I is to come.
    """
    m, num_stages, p = num_microbatches, len(rank_of), len(firsts) - 1
    never = 1e300
    held, room = [0.0 for k in range(num_stages)], [0.0 for k in range(num_stages)]  # as `stages` is ordered
    at = [3 * m * firsts[rank] for rank in range(p)]
    while True:
        rank = 0
        for other in range(1, p):
            if decide[other] < decide[rank]:
                rank = other
        time = decide[rank]
        if time >= never:
            break

        chosen, begin, cost, urgent = -1, time, 0.0, never
        first_to_come = never  # of what is known to come
        blocked = never  # the urgency of a forward that lacks memory
        left = cap[rank]  # beside what the stages up to one hold and an activation of each later one
        for k in range(firsts[rank], firsts[rank + 1]):
            stage = stages[k]
            num_f, num_i, num_w = done[stage], done[num_stages + stage], done[2 * num_stages + stage]
            held[k] = (num_f - num_i) * activation[stage] + (num_i - num_w) * kept[stage]
            left -= held[k]
        least_left = never
        for k in range(firsts[rank + 1] - 1, firsts[rank] - 1, -1):
            least_left = min(least_left, left)
            room[k] = least_left
            left += held[k] - activation[stages[k]]
        most_urgent_to_come, comes = never, never
        for k in range(firsts[rank], firsts[rank + 1]):
            stage = stages[k]
            num_f, num_i = done[stage], done[num_stages + stage]
            if num_i < num_f:
                arrives = _ready(num_stages + stage, m, num_stages, hop_s, end, done)
                if arrives >= 0:
                    ready = max(time, arrives)
                    wanted = urgency[(num_stages + stage) * m + num_i]
                    if ready <= time + tolerance_s:
                        if wanted < urgent:
                            chosen, begin, cost, urgent = num_stages + stage, ready, input_s[stage], wanted
                    else:
                        first_to_come = min(first_to_come, ready)
                        if wanted < most_urgent_to_come:
                            most_urgent_to_come, comes = wanted, ready
            if num_f < m and num_f - num_i < in_flight[stage]:
                arrives = _ready(stage, m, num_stages, hop_s, end, done)
                if arrives >= 0:
                    ready = max(time, arrives)
                    wanted = urgency[stage * m + num_f]
                    if activation[stage] > room[k]:
                        if ready <= time:
                            blocked = min(blocked, wanted)
                    elif ready <= time + tolerance_s:
                        if wanted < urgent:
                            chosen, begin, cost, urgent = stage, ready, forward_s[stage], wanted
                    else:
                        first_to_come = min(first_to_come, ready)
                        if wanted < most_urgent_to_come:
                            most_urgent_to_come, comes = wanted, ready
        for k in range(firsts[rank], firsts[rank + 1]):
            stage = stages[k]
            code = 2 * num_stages + stage
            if done[code] < done[code - num_stages]:
                wanted = min(urgency[code * m + done[code]], blocked)  # as urgent as what waits for its memory
                if wanted < urgent:
                    chosen, begin, cost, urgent = code, time, weight_s[stage], wanted

        if chosen >= 0 and patient:
            ends = time + cost - tolerance_s
            if comes < ends and most_urgent_to_come < min(urgent, ends):
                chosen = -1
        if chosen == -1:
            decide[rank] = first_to_come  # or until a neighbour hands something over
            continue

        number = done[chosen]
        order[at[rank]] = chosen
        at[rank] += 1
        done[chosen] += 1
        now[rank] = begin + cost
        decide[rank] = now[rank]
        if chosen < 2 * num_stages:
            end[chosen * m + number] = now[rank]
            if chosen < num_stages:
                follows = chosen + 1 if chosen < num_stages - 1 else -1
            else:
                follows = chosen - num_stages - 1
            if follows >= 0 and rank_of[follows] != rank:
                other = rank_of[follows]
                decide[other] = min(decide[other], max(now[other], time))


def fill(
    num_microbatches: Any, rank_of: Any, firsts: Any, stages: Any, forward_s: Any, input_s: Any, weight_s: Any,
    hop_s: Any, tolerance_s: Any, activation: Any, kept: Any, cap: Any, passes: Any, least_gap: Any,
    order: Any, now: Any, end: Any, done: Any, oldest: Any,
) -> Any:  # fmt: skip
    """Put weight gradients, oldest first, between the forwards and input gradients of `passes`, in their order.

    One goes where a forward lacks memory, where a whole one fits before the next pass can start, or where at
    least `least_gap` of one would be idle time. Return whether all could run. `oldest` holds, per rank, the
    stages of the input gradients as they ran: row r from ``m * firsts[r]``.
    """
    m, num_stages, p = num_microbatches, len(rank_of), len(firsts) - 1
    at = [2 * m * firsts[rank] for rank in range(p)]
    num_w = [0 for rank in range(p)]
    num_i = [0 for rank in range(p)]
    held = [0.0 for rank in range(p)]
    num_left = 2 * m * num_stages
    moved = True
    while moved and num_left > 0:
        moved = False
        for visit in range(2 * p):
            rank = visit if visit < p else 2 * p - 1 - visit
            while at[rank] < 2 * m * firsts[rank + 1]:
                code = passes[at[rank]]
                number = done[code]
                ready = _ready(code, m, num_stages, hop_s, end, done)
                if ready < 0:
                    break
                stage = code % num_stages
                cost = forward_s[stage] if code < num_stages else input_s[stage]
                while num_w[rank] < num_i[rank]:
                    late = oldest[m * firsts[rank] + num_w[rank]]
                    gap = ready - now[rank]
                    if not (
                        (code < num_stages and held[rank] + activation[stage] > cap[rank])
                        or weight_s[late] <= gap + tolerance_s
                        or (gap > tolerance_s and gap >= least_gap * weight_s[late])
                    ):
                        break
                    order[at[rank] + m * firsts[rank] + num_w[rank]] = 2 * num_stages + late
                    now[rank] += weight_s[late]
                    held[rank] -= kept[late]
                    done[2 * num_stages + late] += 1
                    num_w[rank] += 1
                if code < num_stages and held[rank] + activation[stage] > cap[rank]:
                    return False
                order[at[rank] + m * firsts[rank] + num_w[rank]] = code
                now[rank] = max(now[rank], ready) + cost
                end[code * m + number] = now[rank]
                done[code] += 1
                if code < num_stages:
                    held[rank] += activation[stage]
                else:
                    held[rank] -= activation[stage] - kept[stage]
                    oldest[m * firsts[rank] + num_i[rank]] = stage
                    num_i[rank] += 1
                at[rank] += 1
                num_left -= 1
                moved = True
    if num_left > 0:
        return False
    for rank in range(p):
        while num_w[rank] < num_i[rank]:
            late = oldest[m * firsts[rank] + num_w[rank]]
            order[at[rank] + m * firsts[rank] + num_w[rank]] = 2 * num_stages + late
            now[rank] += weight_s[late]
            num_w[rank] += 1
    return True


def merge_periodic(
    num_microbatches: Any, rank_of: Any, firsts: Any, stages: Any, forward_s: Any, input_s: Any, weight_s: Any,
    hop_s: Any, tolerance_s: Any, start: Any, codes: Any, period: Any,
    passes: Any,
) -> None:  # fmt: skip
    """Fill `passes` with each rank's codes in the order of their starts: microbatch i starts `period`·i later.

    `start` and `codes` have 2 entries a stage: rank r's from ``2 * firsts[r]``. Ties go to the one listed first.
    """
    for rank in range(len(firsts) - 1):
        low, high = 2 * firsts[rank], 2 * firsts[rank + 1]
        taken = [0 for k in range(high - low)]
        for at in range(num_microbatches * low, num_microbatches * high):
            best, least = -1, 0.0
            for k in range(high - low):
                if taken[k] < num_microbatches:
                    when = start[low + k] + taken[k] * period
                    if best == -1 or when < least:
                        best, least = k, when
            taken[best] += 1
            passes[at] = codes[low + best]
