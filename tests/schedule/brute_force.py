"""The best table by trying all of them: every order on every rank, every backward split or full."""

from itertools import product

import numpy as np

INFINITE = float("inf")


def best_s(problem, criterion, *, full_backwards, microbatch_order):
    """The smallest step time or span; `microbatch_order` tries only rows with each kind in that order."""
    rows = [list(_rows_of(problem, rank, full_backwards, microbatch_order)) for rank in range(problem.num_ranks)]
    best = INFINITE
    for table in product(*rows):
        best = min(best, _time(problem, table, criterion))
    return best - problem.overhead_s


def _rows_of(problem, rank, full_backwards, microbatch_order):
    pairs = list(product(problem.stages_of[rank], range(problem.num_microbatches)))
    for splits in product(*([(True, False)] if full_backwards else [(True,)]) * len(pairs)):
        actions = []
        for (stage, microbatch), split in zip(pairs, splits, strict=True):
            actions += [(op, stage, microbatch) for op in ("FIW" if split else "FB")]
        yield from _orders(problem, rank, actions, microbatch_order)


def _orders(problem, rank, actions, microbatch_order):
    """Every order that the dependencies on the rank and its memory allow."""
    stages = problem.stages_of[rank]
    needed = {action: _needs(action, actions, stages, microbatch_order) for action in actions}
    cap = problem.cap[rank]

    def extend(done, held):
        if len(done) == len(actions):
            yield tuple(done)
        for action in actions:
            if action not in done and all(before in done for before in needed[action]):
                op, stage, _ = action
                whole, kept = problem.activation[stage], problem.kept[stage]
                if op == "F" and held + whole > cap:
                    continue
                change = {"F": whole, "I": kept - whole, "W": -kept, "B": -whole}[op]
                yield from extend([*done, action], held + change)

    yield from extend([], 0.0)


def _needs(action, actions, stages, microbatch_order):
    op, stage, microbatch = action
    before = []
    for other in actions:
        other_op, other_stage, other_microbatch = other
        if other_microbatch == microbatch:
            same_stage = other_stage == stage
            if op == "F" and other_op == "F" and other_stage < stage:
                before.append(other)
            if op in "IB" and ((same_stage and other_op == "F") or (other_op in "IB" and other_stage > stage)):
                before.append(other)
            if op == "W" and same_stage and other_op == "I":
                before.append(other)
        elif microbatch_order and (other_op, other_stage) == (op, stage) and other_microbatch < microbatch:
            before.append(other)
    return before


def _time(problem, table, criterion):
    """Step time or span of rows of actions with the host time before the first start; infinite for a deadlock."""
    seconds = {"F": problem.forward_s, "I": problem.input_s, "W": problem.weight_s, "B": problem.backward_s}
    end, first, last = {}, [0.0] * len(table), [0.0] * len(table)
    position, moved = [0] * len(table), True
    while moved:
        moved = False
        for rank, row in enumerate(table):
            while position[rank] < len(row):
                op, stage, microbatch = row[position[rank]]
                begin = last[rank]
                if op == "F" and stage > 0:
                    ready = end.get(("F", stage - 1, microbatch))
                    begin = None if ready is None else max(begin, ready + problem.hop_s[stage - 1])
                elif op in "IB" and stage < problem.num_stages - 1:
                    ready = end.get(("back", stage + 1, microbatch))
                    begin = None if ready is None else max(begin, ready + problem.hop_s[stage])
                if begin is None:
                    break
                if position[rank] == 0:
                    first[rank] = begin
                last[rank] = begin + seconds[op][stage]
                end["back" if op in "IB" else op, stage, microbatch] = last[rank]
                position[rank] += 1
                moved = True
    if any(place < len(row) for place, row in zip(position, table, strict=True)):
        return INFINITE
    spans = np.array(last) - np.array(first)
    return max(last) if criterion == "step" else float(spans.max())
