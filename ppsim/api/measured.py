"""Comparison with a projection, explanation, and calibration of measured steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from os.path import isdir, isfile
from pathlib import Path
from typing import Any

import numpy as np

from ppsim.api.calibration import overheads_of
from ppsim.api.keyword_options import option_types
from ppsim.api.read import (
    MeasuredRun,
    file_format,
    missing_rank_question,
    missing_ranks_note,
    open_run_if_path,
    with_costs,
)
from ppsim.api.run_result import RunResult
from ppsim.api.train import TrainResult
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.files import prefix_errors, read_json
from ppsim.catalog.build import every_schedule
from ppsim.projection.difference import PlanDifference, difference_of, is_projection
from ppsim.projection.options import PlanOptions
from ppsim.projection.projection import Projection
from ppsim.runs import calibrate as fitting
from ppsim.runs import compare as comparing
from ppsim.runs import timeline_file as timeline_json
from ppsim.runs.calibrate import FittedOverheads
from ppsim.runs.calibration_file import Overheads
from ppsim.runs.compare import Comparison
from ppsim.runs.loss_attribution import Explanation, attribute_losses
from ppsim.runs.loss_attribution import explain_difference as beside
from ppsim.runs.peaks import peak_errors, peaks_in
from ppsim.runs.run import Run
from ppsim.runs.spreads import spreads_of
from ppsim.runs.timeline_file import FORMAT, timeline_from_json
from ppsim.runs.traces import shortened
from ppsim.schedule.grammar import read_schedule
from ppsim.schedule.table import Schedule
from ppsim.simulation.cost_files import costs_from
from ppsim.simulation.simulate import simulate
from ppsim.simulation.stage_costs import OVERHEADS, StageCosts
from ppsim.simulation.timeline import Timeline
from ppsim.simulation.variation import with_variation
from ppsim.trainers.write_schedule import is_run_by


def read_timeline(path: str | Path) -> Timeline:
    """Return the timeline in a file of `ppsim.save`, or of `-o NAME.json` of train, simulate and project.

    Raises `ConfigError` for other files.

    >>> import ppsim
    >>> made = ppsim.project(pp=2, microbatches=4)
    >>> ppsim.save(made, "projected.json")
    >>> ppsim.read_timeline("projected.json").step_time_s == made.timeline.step_time_s
    True
    """
    return timeline_json.read_timeline(path)[0]


def compare_plans(first: str, second: str) -> PlanDifference | None:
    """Return the difference of two projections; None unless both are files of `ppsim project`."""
    reports: list[dict[str, Any]] = []
    for path in (first, second):  # the second is not read if the first is a recording
        report: Any = read_json(path) if path.endswith(".json") and (reports or isfile(path)) else None
        if not is_projection(report):
            return None
        reports.append(report)
    short = Path(first).name, Path(second).name
    names = short if short[0] != short[1] else (first, second)
    before, after = reports
    timelines = None
    if before.get("format") == after.get("format") == FORMAT:
        timelines = timeline_from_json(before, first)[0], timeline_from_json(after, second)[0]
    return difference_of(names, (before, after), timelines)


def compare(
    measured: TrainResult | MeasuredRun | str | Path,
    projected: Projection | TrainResult | Timeline | str | Path | None = None,
    *,
    calibration: str | Path | FittedOverheads | None = None,
) -> Comparison:
    """Compare a measured step with a projected one: signed errors by step, action, stage and peak memory.

    `measured` is a run or anything that `ppsim.read` reads. `projected` is a result or a file of `ppsim.save` or
    `-o NAME.json`. If it is None, the measured run's own costs are simulated with the overheads of `calibration`.

    Errors are projected / measured − 1. If `overheads_fitted_on_this_run` is True, these errors do not test the
    projection. Raises `ConfigError` for files without a timeline, for runs that were not measured, and if the two
    schedules differ.

    >>> import ppsim
    >>> table = ppsim.build("1f1b", pp=2, microbatches=4)
    >>> costs = ppsim.StageCosts(forward_s=0.002, backward_input_s=0.002, backward_weight_s=0.002)
    >>> run = ppsim.train(table, partitions=2, emulate_costs=costs)
    >>> abs(ppsim.compare(run).step_error) < 0.5
    True
    """
    source = "the run" if isinstance(measured, RunResult) else str(measured)
    opened = open_run_if_path(measured)
    run, real = opened.measured.run, opened.timeline
    costs: StageCosts | None = None
    said = timeline_json.Expectation()
    if projected is None:
        fixed = (calibration is not None and overheads_of(calibration)) or Overheads({})
        said = timeline_json.Expectation(fitted_runs=fixed.fitted_runs)
        variation = fixed.pass_factors or (None if run.has_own_costs else spreads_of([run]).factors)
        costs = comparing.expected_costs(run, fixed.constants, fixed.line)
        if fixed.communication != "overlap":
            costs = costs.with_calls(fixed.communication)
        costs = with_variation(real.schedule, costs, variation)
        expected = simulate(real.schedule, costs)
    elif calibration is not None:
        raise ConfigError("--calibration is for comparing without a projection: give it to the projection instead")
    elif isinstance(projected, Timeline):
        expected = projected
    elif isinstance(projected, Projection | TrainResult):
        expected, costs = projected.timeline, projected.costs
        if isinstance(projected, Projection):
            said = _expectation(projected)
    else:
        expected, costs, said = timeline_json.read_expected(projected)
    peaks = peak_errors(peaks_in(opened.facts, source), expected)
    with prefix_errors(f"{source} and {projected if isinstance(projected, str | Path) else 'the projection'}"):
        compared = comparing.compare(real, expected)
    pace = comparing.pace_of(run, said.pace)
    between = (float(np.mean(run.gaps_s)), costs.step_overhead_s if costs else 0.0) if len(run.gaps_s) else None
    return replace(
        compared, peaks=peaks, between_s=between, projected_costs=costs,
        iteration_time_interval_s=said.iteration_time_interval_s,
        overheads_fitted_on_this_run=run.fingerprint in said.fitted_runs, note=missing_ranks_note(opened), **pace,
    )  # fmt: skip


def _expectation(projection: Projection) -> timeline_json.Expectation:
    expected, answer = projection.plan.rehearsal, projection.summarise(with_advice=False)
    pace = (
        timeline_json.pace_from(expected.pace_s, expected.reference_ends_s, expected.reference_work)
        if expected
        else None
    )
    said = timeline_json.Expectation(pace=pace, fitted_runs=projection.plan.fitted_runs)
    return said.within(projection.timeline, projection.iteration_time_s, answer.iteration_time_interval_s)


def explain(
    measured: TrainResult | MeasuredRun | str | Path,
    *,
    against: Projection | TrainResult | Timeline | StageCosts | str | Path | None = None,
    ranks: int | None = None,
) -> Explanation:
    """Explain a measured step: losses by cause, which sum to the step, and reasons.

    `measured` is a run or anything that `ppsim.read` reads. The simulator removes one cause after the other; each
    loss is the time by which the step gets shorter. Each reason has the time that the step would save without this
    cause alone. `against` is a projection, or costs for a simulation of the run's schedule, or a file of either;
    `.comparison` then splits the difference by cause. `ranks` is the number of pipeline ranks that ran, if some
    were not recorded; without it, `.note` asks if the last one is missing when it seems so. Raises `ConfigError`
    for files that contain no run or no projection, and for fewer `ranks` than were recorded.

    >>> import ppsim
    >>> table = ppsim.build("1f1b", pp=2, microbatches=4)
    >>> costs = ppsim.StageCosts(forward_s=[0.01, 0.02], backward_input_s=0.01, backward_weight_s=0.01)
    >>> found = ppsim.explain(ppsim.train(table, partitions=2, emulate_costs=costs), against=costs)
    >>> found.reasons[0].cause
    'uneven stages or slow ranks'
    >>> abs(sum(loss.seconds for loss in found.losses) / found.step_s - 1) < 0.05
    True
    >>> found.comparison.step_s < 1.2 * found.step_s
    True
    """
    opened = open_run_if_path(measured, num_ranks=ranks)
    real = opened.timeline
    first_step = 1 + int(opened.facts.get("num_warm_up") or 0)
    explanation = attribute_losses(
        opened.measured.run, call_s=_megatron_call_s(opened.facts), first_step=first_step
    )
    explanation = replace(
        explanation, timeline=replace(real, start=real.start - real.begin_s, end=real.end - real.begin_s),
        faster_schedule=_faster_schedule(opened), note=_missing_ranks(opened, ranks),
    )  # fmt: skip
    if against is None:
        return explanation
    projected, costs = _projected(against, real.schedule)
    source = str(against) if isinstance(against, str | Path) else "the projection"
    if (shape := _shape_of(projected.schedule)) != (own := _shape_of(real.schedule)):
        raise ConfigError(f"{source} has {shape}, and the run {own}: give a projection of the run's own plan")
    is_megatron = costs is not None and costs.communication.startswith("megatron")
    call_s = float(np.mean(projected.costs.transfer_s)) + projected.costs.hop_overhead_s if is_megatron else None
    return replace(explanation, comparison=beside(explanation, projected, source=source, call_s=call_s))


def _shape_of(table: Schedule) -> str:
    return f"{table.num_ranks} ranks and {table.num_microbatches} microbatches"


def _faster_schedule(opened: RunResult) -> tuple[str, float] | None:
    """Return the option of the trainer's fastest schedule for the recorded times, and the seconds that it saves.

    None if no schedule is faster, or if the run cannot be projected.
    """
    from ppsim.api.project import plan_of_options  # heavy import: plans and searches
    from ppsim.projection.project import project, project_all

    kind = str(opened.facts.get("kind"))
    is_megatron = kind.startswith("OpenTelemetry") or opened.facts.get("stages_by") in ("rank", "chunks")
    trainer = "primus" if kind.startswith("Primus") else "megatron" if is_megatron else "torch"
    entries = every_schedule()  # without those that search for a table
    names = [name for name, entry in entries.items() if is_run_by(trainer, name) and not entry.takes("costs")]
    try:
        plan = plan_of_options(dict.fromkeys(option_types(PlanOptions)) | {"run": opened})
        own_s = project(plan).iteration_time_s
        others = project_all(replace(plan, schedule=None, vpp=None), names).projections
    except PpsimError:  # for example, a run of sequence slices, or of an unknown schedule
        return None
    best = min(others, key=lambda projection: projection.iteration_time_s, default=None)
    if best is None or best.iteration_time_s > (1 - _WORTH_TRYING) * own_s:
        return None
    vpp = best.timeline.schedule.vpp
    return f"--schedule {best.plan.schedule_name} --vpp {vpp}", own_s - best.iteration_time_s


_WORTH_TRYING = 0.01
"""Least part of a step that another schedule must save."""


def _missing_ranks(opened: RunResult, ranks: int | None) -> str:
    """Return a sentence on ranks without a recording, "" if there seems to be none."""
    run, absent = opened.measured.run, opened.facts.get("missing_ranks")
    table = run.graph.schedule
    if ranks is None and absent:
        raise ConfigError(
            f"{run.source} lacks rank {shortened(absent)} of the job's {table.num_ranks + len(absent)}, as its "
            f"files count them: give all, --ranks {table.num_ranks + len(absent)} to explain the others alone, or "
            f"--ranks {table.num_ranks} if these are a whole pipeline"
        )
    if ranks is not None and ranks < table.num_ranks:
        raise ConfigError(f"--ranks {ranks}: there are recordings of {table.num_ranks} ranks")
    if ranks is not None and ranks > (of_job := opened.facts.get("job_ranks") or ranks):
        raise ConfigError(f"--ranks {ranks}: the job had {of_job} ranks, as its files count them")
    question = missing_rank_question(run)
    if ranks is not None:
        missing = (absent or range(table.num_ranks, ranks))[: ranks - table.num_ranks]
        is_shown = question or opened.facts.get("job_ranks") or min(missing, default=0) < table.num_ranks
        doubt = "" if is_shown else f" (the times do not show a missing rank: did {table.num_ranks} run?)"
        sentence = f"without rank {shortened(missing)}{doubt}: the time that others wait for it has another cause"
        return f"{sentence} below" if missing else ""
    return question and f"{question} If {table.num_ranks} ranks ran, give --ranks {table.num_ranks}."


def _megatron_call_s(facts: Mapping[str, Any]) -> float | None:
    """Return seconds per P2P transfer of Megatron-LM's blocking calls; None for other runs and if unknown."""
    clocks = facts.get("clocks")
    return clocks["hop_s"] if clocks and str(facts.get("kind")).startswith("Primus") else None


def _projected(
    against: Projection | TrainResult | Timeline | StageCosts | str | Path, table: Schedule
) -> tuple[Timeline, StageCosts | None]:
    if isinstance(against, Timeline):
        return against, None
    if isinstance(against, Projection | TrainResult):
        return against.timeline, against.costs
    if not isinstance(against, StageCosts):
        data = read_json(against)
        if isinstance(data, dict) and data.get("format") == FORMAT:
            return timeline_from_json(data, str(against))
        if isinstance(data, dict) and "step_time_s" in data:
            raise ConfigError(
                f"{against} is a report without its timeline: ppsim project and ppsim simulate write both with "
                f"-o NAME.json"
            )
        against = costs_from(data, str(against))
    return simulate(table, against), against


def calibrate(
    *measured: TrainResult | MeasuredRun | str | Path,
    schedule: Schedule | str | Path | None = None,
    costs: StageCosts | str | Path | None = None,
    warm_up: int = 1,
) -> FittedOverheads:
    """Fit overheads to measured runs: host time per action, P2P transfers, overlap slowdown, time between steps.

    `measured` are runs, or anything that `ppsim.read` reads. A folder is one run; all single trace files together
    are one run. The first `warm_up` steps of recordings are dropped. `schedule` is the schedule that was traced
    (None: inferred). `costs` are the expected action times (None: the emulated costs, else the run's median times).
    Constants that make the simulation of steps outside the fit worse are dropped (`.not_fitted`). Raises
    `ConfigError` for runs of another schedule or of a single step.

    >>> import ppsim
    >>> table = ppsim.build("1f1b", pp=2, microbatches=4)
    >>> costs = ppsim.StageCosts(forward_s=0.002, backward_input_s=0.002, backward_weight_s=0.002)
    >>> found = ppsim.calibrate(ppsim.train(table, partitions=2, emulate_costs=costs))
    >>> found.fits["action_overhead_s"].num_samples > 0
    True
    """
    if warm_up < 0:
        raise ConfigError(f"--warm-up must not be negative: got {warm_up}")
    if not measured:
        raise ConfigError("there must be at least one measured run")
    table = schedule if schedule is None or isinstance(schedule, Schedule) else read_schedule(schedule)
    given = None if costs is None else _costs_of(costs)
    runs, notes = zip(*_runs(measured, table, given, warm_up), strict=True)
    fitted = fitting.calibrate_tested(runs)
    noted = [replace(residual, note=note) for residual, note in zip(fitted.residuals, notes, strict=True)]
    return replace(fitted, residuals=noted)


def _costs_of(given: StageCosts | str | Path) -> StageCosts:
    """Overheads are removed, because `calibrate` fits them."""
    if isinstance(given, StageCosts):
        costs = given
    else:
        data = read_json(given)
        is_timeline = isinstance(data, dict) and data.get("format") == FORMAT
        costs = timeline_from_json(data, str(given))[1] if is_timeline else costs_from(data, str(given))
    return costs.replace(**dict.fromkeys(OVERHEADS, 0.0))


def _runs(
    measured: Sequence[RunResult | str | Path], table: Schedule | None, given: StageCosts | None, warm_up: int
) -> Iterator[tuple[Run, str]]:
    """Yield a run and a note on missing ranks per object, file or folder, and for all single trace files."""
    loose = [
        source
        for source in measured
        if not (isinstance(source, RunResult) or isdir(source)) and file_format(source) in ("trace", "sqlite")
    ]
    groups = [[source] for source in measured if source not in loose] + [loose] * bool(loose)
    for group in groups:
        opened = open_run_if_path(*group, table=table, given=given, warm_up=warm_up)
        run, is_opened = opened.measured.run, isinstance(group[0], RunResult)
        yield with_costs(run, "the run", table, given) if is_opened else run, missing_ranks_note(opened)
