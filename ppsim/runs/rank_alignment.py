"""Assemble a run on one clock from the recordings of its ranks."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppsim.base.errors import ConfigError, Deadlock
from ppsim.base.files import prefix_errors
from ppsim.runs.action_identification import identify_actions
from ppsim.runs.clocks import Alignment, align_clocks
from ppsim.runs.run import Run
from ppsim.runs.timeline_import import run_of
from ppsim.runs.traces import RunRecordings, in_rank_order, message_bytes_of, result_of, table_rows_of
from ppsim.schedule.blocking_calls import has_megatron_loop
from ppsim.schedule.check import validate
from ppsim.schedule.table import Schedule
from ppsim.simulation.stage_costs import StageCosts


@dataclass(frozen=True)
class AlignedRun:
    """A run on one clock; `alignment` is None if the ranks already shared a clock."""

    run: Run
    alignment: Alignment | None
    recordings: RunRecordings
    num_warm_up: int
    stages_by: str

    def facts(self) -> dict[str, Any]:
        run, reserved = self.run, self.recordings.reserved_bytes
        found = self.alignment
        clocks = found and {
            "num_clocks": found.num_clocks, "uncertainty_s": found.uncertainty_s, "hop_s": found.hop_s,
        }  # fmt: skip
        return {
            "source": self.recordings.source,
            "kind": self.recordings.kind,
            "emulated": run.has_own_costs,
            "num_warm_up": self.num_warm_up,
            "step_times_s": run.step_times_s.tolist(),
            "between_steps_s": list(run.gaps_s),
            "passes_by": self.recordings.passes_by,
            "stages_by": self.stages_by,
            "knows_transfers": run.knows_transfers,
            "message_bytes": run.message_bytes,
            "clocks": clocks,
            "reserved_bytes": reserved,
        }


def align_ranks(
    recordings: RunRecordings, *, table: Schedule | None, given: StageCosts | None, num_warm_up: int
) -> AlignedRun:
    """Return the steps of a run after the first `num_warm_up` steps, on one clock.

    `table` is needed if the recording does not give stages. Raises `ConfigError` or `ScheduleError` for recordings
    that do not form a run of the table.
    """
    source, stages_by = recordings.source, _stages_by(recordings, table)
    with prefix_errors(source):
        ranks = in_rank_order(identify_actions(recordings.traces, table))
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
        if recordings.clocks == "one" or (
            recordings.clocks == "host" and len(set(hosts)) == 1 and _is_ordered(run)
        ):
            return AlignedRun(run, None, recordings, num_warm_up, stages_by)
        by_step = recordings.clocks == "step"
        apart = list(range(len(ranks))) if by_step or len(set(hosts)) == 1 else [hosts.index(one) for one in hosts]
        run, alignment = align_clocks(run, apart, by_step=by_step)
    return AlignedRun(run, alignment, recordings, num_warm_up, stages_by)


def _stages_by(recordings: RunRecordings, table: Schedule | None) -> str:
    if all(trace.is_told for trace in recordings.traces):
        return "names"
    if table is not None:
        return "table"
    if all(cell.chunk is not None for trace in recordings.traces for step in trace.steps for cell in step):
        return "chunks"
    return "rank" if recordings.vpp is None else "configuration"


def _is_ordered(run: Run) -> bool:
    """Return False if an action ends before its input was made, because the ranks' clocks differ."""
    ends = run.end[:, run.graph.target] - run.end[:, run.graph.source]
    return bool(np.all(ends > 0))
