"""What a terminal shows of `ppsim tune`."""

from collections.abc import Sequence

from ppsim.base.units import size
from ppsim.plot.pareto import WITH, ZERO, in_columns
from ppsim.results.page import Columns, Page, bold, facts
from ppsim.trainers.write_schedule import not_run_by
from ppsim.tuning.command import command_of
from ppsim.tuning.search import Found, Tuned

_MOST_OF_THE_FRONT = 12


def print_tuned(tuned: Tuned) -> None:
    """Print the ranking, the Pareto set, and how to look at the first."""
    out = Page()
    question, counts = tuned.question, tuned.counts
    job = question.job
    out.add(
        f"{bold(f'{job.model_name} on {question.num_gpus} × {job.cluster.device.name}')} ({job.cluster.name}), "
        f"{job.global_batch} sequences of {job.length} tokens a step",
        "",
    )
    _add_found(out, tuned, tuned.best)
    front = tuned.pareto[:_MOST_OF_THE_FRONT]
    if len(front) > 1:
        more = len(tuned.pareto) - len(front)
        out.add("\nless memory takes more time" + (f"; {more} more with --json" if more else ""))
        _add_found(out, tuned, front)
    too_large = counts["too_large_without_a_table"] + counts["too_large_by_their_table"]
    at_least = "at least " if counts["left_out_by_bounds"] else ""  # their memory was not looked at
    not_run = f", {counts['cannot_run']} cannot run on these channels" if counts["cannot_run"] else ""
    limit = size(question.memory_limit_bytes)
    searched = (
        f"{counts['configurations']} configurations: {at_least}{too_large} do not fit {limit} per GPU, "
        f"{counts['simulated']} simulated, {counts['left_out_by_bounds']} left out by their bounds{not_run}"
    )
    stages = sorted({one.candidate.zero for one in tuned.simulated})
    costs = (
        f"estimated from specifications, {job.execution.dtype}, {question.runtime} network; {job.optimizer.name}, "
        f"ZeRO stage {' and '.join(map(str, stages))}"
    )
    rows = [("searched", searched), ("costs", costs)]
    if refused := not_run_by(question.runtime, (one.candidate.schedule for one in (*tuned.best, *front))):
        rows.append((f"not on {question.runtime}", refused))
    rows.append(("the first in full", command_of(tuned, tuned.best[0])))
    out.add("", facts(rows))


def _add_found(out: Page, tuned: Tuned, found: Sequence[Found]) -> None:
    rows = [in_columns(tuned.row(one)) for one in found]
    own = str(tuned.question.job.optimizer.zero_stage)
    usual = {WITH: {""}, ZERO: {own}}  # columns that are left out if no row has anything else
    used = [name for name in rows[0] if {row[name] for row in rows} != usual.get(name)]
    shown = [{name: row[name] for name in used} for row in rows]
    left = 2 if WITH in used else 1
    out.add(Columns.of(shown, left=left, spare=["tokens/s", "MFU", "vpp"]))
