"""Terminal output for `ppsim tune`."""

from collections.abc import Sequence

from ppsim.base.units import size
from ppsim.plot.pareto_page import TEXTS, in_columns
from ppsim.projection.scaling import GATHERED, gathers_experts
from ppsim.results.plans import MOST_LISTED, with_others
from ppsim.results.text_layout import Page, TableLines, bold, facts
from ppsim.trainers import title_of
from ppsim.trainers.write_schedule import RUNS_IN, runs_in
from ppsim.tuning.command_line import command_of
from ppsim.tuning.search import FoundConfiguration, TuneResult

MOST_OF_FRONT = 12
_MOST_ELSEWHERE = 3


def print_tuned(tuned: TuneResult, *, full: bool = False) -> None:
    out, job = Page(), tuned.question.job
    title = bold(f"{job.model_name} on {tuned.question.num_gpus} × {job.cluster.device.name}")
    out.add(*_if_only_elsewhere(tuned))
    out.add(f"{title} ({job.cluster.name}), {job.global_batch} sequences of {job.length} tokens per step", "")
    _add_found(out, tuned, _listed(tuned, full=full))
    if (others := tuned.elsewhere) and tuned.question.names_trainer:
        change = others[0].iteration_time_s / tuned.best[0].iteration_time_s - 1
        out.add(with_others(others[0].candidate.schedule, change))
    if not full and (more := len(tuned.best) - MOST_LISTED) > 0:
        out.add(f"{more} more: --full")
    if full:
        _add_search(out, tuned)
    cost = tuned.cost(tuned.best[0])
    priced = [] if cost.price_per_gpu_hour is None else [("cost", cost.text)]
    out.add("", facts([("best", command_of(tuned.question, tuned.best[0].candidate)), *priced]))
    if not full:
        out.add(facts([("more", "--full (Pareto set, search statistics) · -o tune.html · --to-config megatron")]))


def _if_only_elsewhere(tuned: TuneResult) -> list[str]:
    question, nearest = tuned.question, tuned.best[0].candidate
    if not question.is_elsewhere(nearest):
        return []
    runtimes = " or ".join(runs_in(nearest.schedule))
    return [bold(f"no schedule of {title_of(question.trainer)} fits: {nearest.schedule} does, with {runtimes}")]


def _listed(tuned: TuneResult, *, full: bool) -> list[FoundConfiguration]:
    """The best, the fastest if it fits tightly, and faster configurations of other trainers."""
    best, question = tuned.best, tuned.question
    is_elsewhere = question.is_elsewhere(best[0].candidate)
    own = [one for one in tuned.simulated if question.is_elsewhere(one.candidate) == is_elsewhere]
    fastest = min(own, key=lambda one: (one.iteration_time_s, one.peak_bytes))
    others = [] if question.names_trainer else tuned.elsewhere[:_MOST_ELSEWHERE]
    return list(dict.fromkeys([*(best if full else [*best[:MOST_LISTED], fastest]), *others]))


def _add_search(out: Page, tuned: TuneResult) -> None:
    question, counts = tuned.question, tuned.counts
    job = question.job
    front = tuned.pareto[:MOST_OF_FRONT]
    if len(front) > 1:
        more = len(tuned.pareto) - len(front)
        out.add("\nPareto set of time and memory" + (f"; {more} more configurations with --json" if more else ""))
        _add_found(out, tuned, front)
    too_large = counts["too_large_without_a_table"] + counts["too_large_by_their_table"]
    at_least = "at least " if counts["left_out_by_bounds"] else ""  # excluded before their exact memory was known
    not_run = f", {counts['cannot_run']} cannot run on these channels" if counts["cannot_run"] else ""
    limit = size(question.memory_bound_bytes)
    searched = (
        f"{counts['configurations']} configurations: {at_least}{too_large} do not fit {limit} per GPU, "
        f"{counts['simulated']} simulated, {counts['left_out_by_bounds']} skipped because of their bounds{not_run}"
    )
    stages = sorted({one.candidate.zero for one in tuned.simulated})
    costs = (
        f"estimated from specifications, {job.execution.dtype}, {question.runtime} network; {job.optimizer.name}, "
        f"ZeRO stage {' and '.join(map(str, stages))}"
    )
    rows = [("searched", searched), ("costs", costs)]
    out.add("", facts(rows))


def _add_found(out: Page, tuned: TuneResult, configurations: Sequence[FoundConfiguration]) -> None:
    rows = [_columns(tuned, configuration) for configuration in configurations]
    alike = {name: rows[0][name] for name in rows[0] if len({row[name] for row in rows}) == 1 and len(rows) > 1}
    shown = [{name: text for name, text in row.items() if name not in alike} for row in rows]
    left = sum(name in shown[0] for name in TEXTS) or 1
    out.add(TableLines.of(shown, left=left, spare=["tokens/s", "MFU"]))
    if said := [f"{name} {text}" for name, text in alike.items() if text]:
        out.add(f"all: {' · '.join(said)}")
    if any(gathers_experts(tuned.question.job_of(one.candidate)) for one in configurations):
        out.add(f"{GATHERED}: rows with ep 1 and ZeRO 3.")
    if any(one.verdict == "fits tightly" for one in configurations):
        out.add(f"~ fits tightly: {'; '.join(tuned.question.memory_limit.tight_notes)}.")


def _columns(tuned: TuneResult, configuration: FoundConfiguration) -> dict[str, str]:
    """Other trainers are named only if the trainer of the search does not run the schedule."""
    trainer, columns = tuned.question.trainer, in_columns(tuned.row(configuration))
    is_own = trainer and not tuned.question.is_elsewhere(configuration.candidate)
    return columns | {RUNS_IN: trainer} if is_own else columns
