"""Waits of a measured run, by the number of Megatron-LM's blocking calls before an action."""

import numpy as np

from ppsim.base.arrays import Floats, Ints64
from ppsim.runs.links import input_times
from ppsim.runs.run import Run
from ppsim.schedule.blocking_calls import megatron_calls
from ppsim.schedule.dependencies import transfers_of
from ppsim.schedule.table import Schedule


def num_calls_before(schedule: Schedule, *, overlap: bool) -> Ints64:
    """Count the Megatron-LM calls at which a rank blocks before each action of a table.

    In 1F1B a rank blocks twice (send, then receive) between two warm-up forwards.

    >>> from ppsim import build
    >>> num_calls_before(build("1f1b", pp=3, microbatches=3), overlap=True)[:3].tolist()
    [0, 1, 1]
    """
    calls = {
        (int(after), int(turn))
        for ends in megatron_calls(schedule, *transfers_of(schedule), overlap=overlap)
        for after, turn, holds in zip(*ends.columns, strict=True)
        if holds and after >= 0
    }
    before = np.zeros(len(schedule) + 1, dtype=np.int64)
    for after, _ in calls:
        before[after + 1] += 1
    before[schedule.rank_offsets[:-1]] = 0
    return before[:-1]


def waits_by_calls(run: Run) -> dict[int, list[Floats]]:
    """Return the waits before actions whose input was ready.

    Keys are numbers of calls before an action; each list has one array per step.
    """
    schedule, actions = run.graph.schedule, run.graph.num_actions
    begin, end = run.start[:, :actions], run.end[:, :actions]
    before, made, _ = input_times(run.graph, end)
    calls = num_calls_before(schedule, overlap=run.communication == "megatron")
    is_first = np.isin(np.arange(actions), schedule.rank_offsets[:-1])
    return {
        int(number): [
            wait[(calls == number) & ~is_first & there]
            for wait, there in zip(begin - before, made <= before, strict=True)
        ]
        for number in np.unique(calls[~is_first])
    }  # fmt: skip
