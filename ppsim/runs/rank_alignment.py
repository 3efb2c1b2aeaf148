"""Assemble a run on one clock from the recordings of its ranks."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from ppsim.base.errors import ConfigError, Deadlock
from ppsim.base.files import prefix_errors
from ppsim.runs.clocks import align_clocks
from ppsim.runs.run import Run
from ppsim.runs.timeline_import import run_of
from ppsim.runs.traces import (
    CellRange,
    RankTrace,
    RunRecordings,
    in_rank_order,
    message_bytes_of,
    missing_ranks_of,
    require_like_steps,
    result_of,
    split_by_names,
    table_rows_of,
    with_actions,
)
from ppsim.schedule.blocking_calls import has_megatron_loop
from ppsim.schedule.check import validate
from ppsim.schedule.table import NONE, Action, Op, Schedule, last_of_cell
from ppsim.simulation.stage_costs import StageCosts


def align_ranks(
    recordings: RunRecordings, *, table: Schedule | None, given: StageCosts | None, num_warm_up: int,
    num_ranks: int | None = None,
) -> tuple[Run, dict[str, Any]]:  # fmt: skip
    """Return the steps of a run after the first `num_warm_up` steps, on one clock, and facts for users.

    `table` is needed if the recording does not give stages. Raises `ConfigError` or `ScheduleError` for recordings
    that do not form a run of the table. If ranks may be missing, `num_ranks` is their number with the missing ones.
    """
    source, stages_by = recordings.source, _stages_by(recordings, table)
    with prefix_errors(source):
        ranks = in_rank_order(identify_actions(recordings.traces, table), num_ranks=num_ranks)
        ran = Schedule.from_rows(table_rows_of(ranks), name=source)
        if table is not None and table.num_stages == ran.num_stages:
            ran = replace(ran, num_replicas=table.num_replicas, num_slices=table.num_slices,
                          num_microbatches=table.num_microbatches)  # fmt: skip
        validate(ran)
        if table is not None and table.compute_only() != ran.compute_only():
            raise ConfigError(f"{source} was recorded with another table than --schedule {table.name}")
        result = result_of(ranks, num_warm_up=num_warm_up)
        try:
            run = run_of(result, ran, given, source=source, message_bytes=message_bytes_of(ranks))
            # Only Primus recordings are known to come from Megatron-LM's own calls.
            if recordings.kind.startswith("Primus") and has_megatron_loop(ran.compute_only()):
                run = replace(run, communication="megatron")
        except Deadlock as error:
            raise ConfigError(
                f"{source}: these ranks' passes make no one pipeline ({str(error).splitlines()[0]}): give the "
                f"recordings of one replica, and --schedule where ranks have several stages that names do not tell"
            ) from None
        hosts = [trace.host for trace in ranks]
        is_one_host, by_step = len(set(hosts)) == 1, recordings.clocks == "step"
        alignment = None
        if by_step or (recordings.clocks == "host" and not (is_one_host and _is_ordered(run))):
            apart = list(range(len(ranks))) if by_step or is_one_host else [hosts.index(host) for host in hosts]
            run, alignment = align_clocks(run, apart, by_step=by_step)
    return run, {
        "source": source, "kind": recordings.kind, "emulated": run.has_own_costs, "num_warm_up": num_warm_up,
        "step_times_s": run.step_times_s.tolist(), "between_steps_s": list(run.gaps_s),
        "passes_by": recordings.passes_by, "stages_by": stages_by, "knows_transfers": run.knows_transfers,
        "message_bytes": run.message_bytes, "clocks": alignment and asdict(alignment),
        "reserved_bytes": recordings.reserved_bytes,
        "missing_ranks": missing_ranks_of(recordings.traces, num_ranks),
        "job_ranks": min(trace.num_ranks or 0 for trace in recordings.traces) or None,
    }  # fmt: skip


def _stages_by(recordings: RunRecordings, table: Schedule | None) -> str:
    if all(trace.is_told for trace in recordings.traces):
        return "names"
    if table is not None:
        return "table"
    if all(cell.chunk is not None for trace in recordings.traces for step in trace.steps for cell in step):
        return "chunks"
    return "rank" if recordings.vpp is None else "configuration"


def _is_ordered(run: Run, early_s: float = 1e-3) -> bool:
    """Return False if the ranks' clocks differ.

    Then an action ends before its input was made, or starts more than `early_s` before that.
    """
    sent, its = run.end[:, last_of_cell(run.graph.schedule)[run.graph.source]], run.graph.target
    return bool(np.all((run.end[:, its] > sent) & (run.start[:, its] > sent - early_s)))


def identify_actions(traces: Sequence[RankTrace], table: Schedule | None = None) -> list[RankTrace]:
    """Return the traces of all pipeline ranks, divided into steps, with the stage and microbatch of every action.

    `table` is needed if a rank has several stages and the recording identifies them neither by name nor by chunk.
    Raises `ConfigError` for actions that do not form whole steps or do not match the table.
    """
    if all(trace.is_told for trace in traces):
        return list(traces)
    ranks = [trace.rank for trace in traces]
    ordered = list(traces) if None in ranks else sorted(traces, key=lambda trace: trace.rank or 0)
    if table is not None and table.num_ranks != len(ordered):
        raise ConfigError(f"there are recordings of {len(ordered)} ranks, and the table has {table.num_ranks}")
    staged = [_with_stages(trace, index, len(ordered), table) for index, trace in enumerate(ordered)]
    if all(trace.is_told for trace in staged):
        return [split_by_names(trace) for trace in staged]
    num_steps = min(_steps_closed(trace) for trace in staged)
    actions = []
    for index, trace in enumerate(staged):
        is_split = len(trace.steps) > 1
        steps = trace.steps if is_split else _by_marks(trace) if trace.marks else _by_count(trace, num_steps)
        row = None if table is None else _row(table, index)
        actions.append(require_like_steps(replace(trace, steps=[_named(step, trace, row) for step in steps])))
    return actions


def _with_stages(trace: RankTrace, index: int, num_ranks: int, table: Schedule | None) -> RankTrace:
    own = [index] if table is None else [stage for stage, rank in enumerate(table.stage_to_rank) if rank == index]

    def staged(cell: CellRange, action: Action) -> Action:
        if action.stage != NONE:
            return action
        if cell.chunk is None:
            return action._replace(stage=own[0] if len(own) == 1 else NONE)
        if table is not None and cell.chunk >= len(own):
            raise ConfigError(f"{trace.source} has a chunk {cell.chunk}, and the table has {len(own)} stages there")
        return action._replace(stage=index + cell.chunk * num_ranks if table is None else own[cell.chunk])

    return replace(trace, steps=[[with_actions(cell, staged) for cell in step] for step in trace.steps])


def _passes(trace: RankTrace) -> list[CellRange]:
    return [cell for step in trace.steps for cell in step if cell.is_compute]


def _steps_closed(trace: RankTrace) -> int:
    """Count how often no forward waits for its backward: once per step, on the last rank once per microbatch."""
    open_forwards, closed = 0, 0
    for cell in _passes(trace):
        change = sum((action.op is Op.F) - (action.op in (Op.B, Op.I)) for action in cell.members)
        open_forwards += change
        closed += change != 0 and open_forwards == 0
    if open_forwards:
        raise ConfigError(
            f"{trace.source} has {abs(open_forwards)} {'forwards' if open_forwards > 0 else 'backwards'} more than "
            f"{'backwards' if open_forwards > 0 else 'forwards'}: trace whole steps"
        )
    return closed


def _by_marks(trace: RankTrace) -> list[list[CellRange]]:
    """Assign actions to steps by time; incomplete first and last steps, or numbered steps, are dropped."""
    steps: list[list[CellRange]] = [[] for _ in trace.marks]
    for cell in _passes(trace):
        index = bisect_right(trace.marks, cell.begin) - 1
        if index >= 0:
            steps[index].append(cell)
    usual, _ = Counter(len(step) for step in steps if step).most_common(1)[0] if any(steps) else (0, 0)
    if trace.numbers:  # the other ranks' steps of these iterations are left out
        return [step for step in steps if len(step) == usual]
    while steps and len(steps[0]) != usual:
        del steps[0]
    while steps and len(steps[-1]) != usual:
        del steps[-1]
    return steps


def _by_count(trace: RankTrace, num_steps: int) -> list[list[CellRange]]:
    passes = _passes(trace)
    if len(passes) % num_steps:
        raise ConfigError(f"{trace.source} has {len(passes)} passes in {num_steps} steps: trace whole steps")
    size = len(passes) // num_steps
    return [passes[begin : begin + size] for begin in range(0, len(passes), size)]


def _row(table: Schedule, rank: int) -> list[Action]:
    begin, end = table.rank_offsets[rank : rank + 2].tolist()
    return [action for action in (table[entry] for entry in range(begin, end)) if action.op.is_compute]


def _named(step: list[CellRange], trace: RankTrace, row: list[Action] | None) -> list[CellRange]:
    """Set the stage and microbatch of a step's actions.

    The k-th action of a kind becomes the k-th action of this kind in `row`. Without `row`, it gets microbatch k.
    """
    count: Counter[tuple[Op, int]] = Counter()
    of_kind = {op: [action for action in row or () if action.op is op] for op in Op}

    def named(cell: CellRange, action: Action) -> Action:
        if NONE not in (action.stage, action.microbatch):
            return action
        key = (action.op, NONE if row is not None and action.stage == NONE else action.stage)
        count[key] += 1
        if row is None:
            return action._replace(microbatch=count[key] - 1)
        candidates = [one for one in of_kind[action.op] if action.stage in (NONE, one.stage)]
        if count[key] > len(candidates):
            raise ConfigError(
                f"{trace.source} has more passes {action.op.name} in a step than the table: {len(candidates)}"
            )
        return candidates[count[key] - 1]

    return [with_actions(cell, named) for cell in step]
