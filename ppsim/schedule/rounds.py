"""Accumulation rounds: one pipeline schedule, run several times per optimizer step.

TorchTitan calls `schedule.step()` once per gradient accumulation step (trainer.py). A rank starts its next round
when it has finished its own row of the previous round; it does not wait for the slowest rank.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from ppsim.base.arrays import Ints64
from ppsim.base.errors import ScheduleError
from ppsim.schedule.table import NONE, Schedule


def repeat_rounds(schedule: Schedule, num_rounds: int) -> Schedule:
    """Raises `ScheduleError` if the model replicas cannot share the microbatches of a round equally.

    >>> import ppsim
    >>> step = repeat_rounds(ppsim.build("1f1b", pp=2, microbatches=2), 2)
    >>> [str(action) for action in step][:8]
    ['0F0', '0F1', '0B0', '0B1', '0F2', '0F3', '0B2', '0B3']
    """
    if num_rounds == 1:
        return schedule
    count, replicas = schedule.num_microbatches, schedule.num_replicas
    if count % replicas:
        raise ScheduleError(
            f"{schedule.name}: {replicas} model replicas cannot share the {count} microbatches of a round equally"
        )
    units_of_chain = schedule.num_units // replicas
    chain, unit = np.divmod(schedule.microbatch, units_of_chain)
    rounds = np.arange(num_rounds, dtype=np.int32)[:, None]
    microbatch = np.where(schedule.microbatch == NONE, NONE, (chain * num_rounds + rounds) * units_of_chain + unit)
    cells = schedule.fused.max(initial=NONE) + 1
    fused = np.where(schedule.fused == NONE, NONE, schedule.fused + rounds * cells)
    entries, of_round, offsets = _by_rank(schedule.rank_offsets, num_rounds)
    return replace(
        schedule,
        op=schedule.op[entries],
        stage=schedule.stage[entries],
        microbatch=microbatch[of_round, entries].astype(np.int32),
        fused=fused[of_round, entries].astype(np.int32),
        rank_offsets=offsets,
        num_microbatches=num_rounds * count,
        num_rounds=num_rounds,
    )


def _by_rank(rank_offsets: Ints64, num_rounds: int) -> tuple[Ints64, Ints64, Ints64]:
    rows = [np.arange(begin, end, dtype=np.int64) for begin, end in pairwise(rank_offsets.tolist())]
    entries = np.concatenate([np.tile(row, num_rounds) for row in rows])
    of_round = np.concatenate([np.repeat(np.arange(num_rounds, dtype=np.int64), len(row)) for row in rows])
    return entries, of_round, rank_offsets * num_rounds


def one_round(schedule: Schedule) -> Schedule:
    """The inverse of `repeat_rounds`.

    >>> import ppsim
    >>> table = ppsim.build("zbv", pp=2, microbatches=4)
    >>> one_round(repeat_rounds(table, 3)) == table
    True
    """
    if schedule.num_rounds == 1:
        return schedule
    has_none = schedule.microbatch == NONE
    is_first = has_none | (schedule.round_of_unit[np.where(has_none, 0, schedule.microbatch)] == 0)
    first = schedule.select(is_first)
    units_of_chain = schedule.num_units // schedule.num_replicas
    chain, unit = np.divmod(first.microbatch, units_of_chain)
    microbatch = np.where(first.microbatch == NONE, NONE, chain * (units_of_chain // schedule.num_rounds) + unit)
    return replace(
        first,
        microbatch=microbatch.astype(np.int32),
        num_microbatches=schedule.num_microbatches // schedule.num_rounds,
        num_rounds=1,
    )


def round_starts(schedule: Schedule) -> Ints64:
    """Return the first entry of each round but the first, on the ranks that start with the first stage of a chain.

    These entries wait for no message.
    """
    of_entry, starts = schedule.round_of_unit[schedule.microbatch], []
    for begin, end in pairwise(schedule.rank_offsets.tolist()):
        if begin < end and schedule.model_stage[schedule.stage[begin]] == 0:
            starts.append(begin + 1 + np.flatnonzero(np.diff(of_entry[begin:end]) > 0))
    return np.concatenate(starts) if starts else np.zeros(0, dtype=np.int64)


def microbatches_in_words(microbatches: int, num_rounds: int) -> str:
    """Describe the number of microbatches per step, by rounds if there are several.

    >>> microbatches_in_words(64, 1), microbatches_in_words(64, 8)
    ('64 microbatches', '8 rounds of 8 microbatches')
    """
    of_round = microbatches // num_rounds
    text = f"{of_round} microbatch{'es' * (of_round > 1)}"
    return f"{num_rounds} rounds of {text}" if num_rounds > 1 else text
