"""Output of validation for the terminal, docs/accuracy.md and docs/results/."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import get_args

from ppsim.base.units import percent, seconds, signed_percent, size
from ppsim.machine.cluster import Constant
from ppsim.projection.options import GPT
from ppsim.results.text_layout import Page, TableLines, bold, facts
from ppsim.validation.bayesian_fit import REST, ConstantEstimate
from ppsim.validation.error_summary import (
    CaseError,
    ErrorSummary,
    SetValidation,
    coverage_of,
    hardware_scores,
    score_of,
)
from ppsim.validation.fit_result import AfterFit, AfterFits, FitResult, FittedCluster
from ppsim.validation.published_runs import PublishedRun, Section
from ppsim.validation.source_errors import SourceErrors
from ppsim.validation.validation_result import ValidationReport


def print_validations(report: ValidationReport, *, full: bool = False, with_rows: bool | None = None) -> None:
    """Print rows for one set or with `with_rows`, every set with `full`, else a line per section."""
    out = Page()
    if len(report.sets) > 1 and not full and not with_rows:
        _print_sections(out, report.sets)
        return
    if len(report.sets) == 1 if with_rows is None else with_rows:
        for run_set in report.sets:
            _print_rows(out, run_set)
            out.add("")
    for section, sets in _sections(report.sets):
        if len(report.sets) > 1:
            out.add(bold(section))
        out.add(TableLines.of([_summary(run_set) for run_set in sets], spare=["others", "order"]), "")
    if len(report.sets) > 1:
        hardware = TableLines.of(_hardware_rows(report.sets), left=3)
        out.add(bold("times of all sets, by hardware"), hardware, "")
        out.add(_fitted_constants(report.sets), "")
        out.add(coverage_line(report.sets), "")
        worst = TableLines.of(largest_errors(report.sets), wraps=True)
        out.add(bold("the ten largest errors of times"), worst, "")
        out.add(TableLines.of(_listed_rows(report.sets), wraps=True), "")
    out.add(
        "Errors are projected / measured - 1 of test rows (* marks sets with fitted rows only): positive means "
        "that the projection is slower or larger. MAPE: mean absolute error; constant MFU and others: the MAPE of "
        "other methods on the same rows. skipped: rows whose source does not state a needed setting.",
        "in 90 %: measurements inside the projection's 90 % interval.",
        "order: mean rank correlation of schedules; groups in which each pair has the measured order.",
    )


_MOST_WORST = 5

_USES = {"test": "test", "fit": "fitted"}


def _print_sections(out: Page, sets: Sequence[SetValidation]) -> None:
    out.add(TableLines.of(section_rows(sets), spare=["fitted", "skipped"]), "", coverage_line(sets), "")
    out.add(bold("largest errors"), TableLines.of(largest_errors(sets, _MOST_WORST), wraps=True), "")
    out.add(
        "Errors are projected / measured - 1: positive means that the projection is slower. MAPE: mean absolute "
        "error."
    )
    out.add("fitted: rows that constants were fitted on, in no error. skipped: rows that cannot be projected.")
    out.add("more: --full (every set, by hardware) · ppsim validate SET (its rows)")


def print_source_errors(classes: Sequence[SourceErrors]) -> None:
    """Print the errors of sources that were left out, per class of jobs."""
    out = Page()
    out.add(TableLines.of(source_rows(classes)), "")
    out.add(
        "Each source of published runs is projected without the constants that were fitted to it, and with the "
        "spread of the other sources of its class. within, between: standard deviation of log(projected / "
        "measured) within sources, and of their means around 0. in 90 %: coverage, mean over sources. ±: "
        "half-width of the 90 % interval of a new source."
    )
    out.add("Not left out: constants that all GPU types share (host_s, kernel_s, routing_host_s, jitter).")


def source_rows(classes: Sequence[SourceErrors]) -> list[dict[str, str]]:
    return [
        {
            "jobs": each.name,
            "rows": str(each.num_rows),
            "sources": str(each.num_sources),
            "MAPE": percent(each.mean_absolute),
            "within": "–" if each.within is None else percent(each.within),
            "between": "–" if each.between is None else percent(each.between),
            "±": "–" if each.half_width is None else percent(each.half_width),
            "in 90 %": percent(each.coverage),
        }
        for each in classes
    ]


def print_fits(fits: Sequence[FittedCluster]) -> None:
    out = Page()
    for fit in fits:
        out.add(f"{bold(fit.cluster.name)}   {fit.cluster.title}")
        rows = [
            {"constant": name, "found": f"{value:g}", "in use": f"{fit.in_use[name]:g}"}
            for name, value in fit.found.items()
        ]
        out.add(TableLines.of(rows))
        out.add(f"{fit.num_rows} rows, of {', '.join(fit.cluster.constants.fitted_on)}", "")


def markdown(run_sets: Sequence[SetValidation]) -> str:
    """Return the tables of docs/results/published_runs.md."""
    lines = []
    for section, sets in _sections(run_sets):
        lines += _titled_table(f"{_capital(section)}:", [_summary(run_set) for run_set in sets])
    lines += _titled_table(
        "Times of all sets, by hardware (a model is dense or has experts):", _hardware_rows(run_sets)
    )
    return "\n".join(lines).rstrip("\n") + "\n"


def section_rows(sets: Sequence[SetValidation]) -> list[dict[str, str]]:
    """Return a row for each section, without sets that compare the order of schedules only."""
    times = [run_set for run_set in sets if not run_set.properties.order_only]
    return [_section_row(name, some) for name, some in _sections(times)]


def _section_row(name: str, sets: Sequence[SetValidation]) -> dict[str, str]:
    tested = [row for run_set in sets for row in _unseen(run_set)]
    constant = [row.constant_mfu_error for row in tested if row.constant_mfu_error is not None]
    score = score_of([row.error for row in tested])
    return {
        "published runs": _capital(name),
        "rows": str(len(tested)),
        "fitted": str(sum(len(run_set.calibration_rows) for run_set in sets)),
        "skipped": str(sum(len(run_set.skipped) for run_set in sets)),
        **errors_of(score),
        "constant MFU": percent(score_of(constant).mean_absolute) if constant else "–",
        "in 90 %": _inside(coverage_of(tested)),
    }


def _unseen(run_set: SetValidation) -> list[CaseError]:
    return [row for row in run_set.rows if row.case.properties.use == "test"]


def _print_rows(out: Page, run_set: SetValidation) -> None:
    out.add(f"{bold(run_set.name)}   {run_set.properties.title}")
    if run_set.rows:
        out.add(
            TableLines.of([cells_of_row(run_set, row) for row in run_set.rows], wraps=True, spare=["constant MFU"])
        )
    if run_set.skipped:
        out.add("skipped:")
        out.add(
            TableLines.of([cells_of_skipped(case, reason) for case, reason in run_set.skipped], left=3, wraps=True)
        )
    facts_shown: list[tuple[str, str | list[str]]] = [
        ("source", run_set.properties.source),
        ("notes", run_set.properties.notes),
    ]
    if clusters := run_set.clusters_fitted_on_file:
        what = (
            f"the constants of {', '.join(clusters)} were fitted on rows of a file named {Path(run_set.name).name}"
        )
        facts_shown.append(("fitted", f"{what}: errors of these rows are not a test of the projection"))
    if run_set.mfu_basis:
        facts_shown.append(("constant MFU", run_set.mfu_basis))
    if score := run_set.calibration_score:
        mean, absolute = signed_percent(score.mean), percent(score.mean_absolute)
        facts_shown.append(("fit rows", f"{score.num_rows} rows, mean {mean}, mean absolute {absolute}"))
    out.add(facts(facts_shown))


def _summary(run_set: SetValidation) -> dict[str, str]:
    score, constant, other = run_set.score, run_set.constant_mfu, run_set.other
    others = [f"{run_set.properties.other_tool} {percent(other.mean_absolute)}"] if other else []
    others += [run_set.properties.others] if run_set.properties.others else []
    errors = {
        **errors_of(score),
        "constant MFU": percent(constant.mean_absolute) if constant else "–",
        "others": ", ".join(others) or "–",
        "in 90 %": _inside(run_set.coverage),
    }
    if run_set.properties.order_only or not run_set.rows:
        errors = dict.fromkeys(errors, "–")
    mean = run_set.mean_rank_correlation
    is_all_fitted = run_set.rows and len(run_set.calibration_rows) == len(run_set.rows)
    return {
        "set": run_set.name,
        "rows": f"{len(run_set.test_rows)}{'*' if is_all_fitted else ''}",
        "skipped": str(len(run_set.skipped) or "–"),
        **errors,
        "order": "–" if mean is None else f"{mean:.2f}, {run_set.groups_in_order}/{len(run_set.rank_correlations)}",
    }


def errors_of(score: ErrorSummary) -> dict[str, str]:
    mean, absolute, worst = signed_percent(score.mean), percent(score.mean_absolute), signed_percent(score.worst)
    return {"mean error": mean, "MAPE": absolute, "worst": worst}


def _sections(sets: Sequence[SetValidation]) -> list[tuple[str, list[SetValidation]]]:
    return [
        (section, here)
        for section in get_args(Section)
        if (here := [run_set for run_set in sets if run_set.properties.section == section])
    ]


def _hardware_rows(sets: Sequence[SetValidation]) -> list[dict[str, str]]:
    return [
        {
            "cluster": score.cluster,
            "dtype": score.dtype,
            "models": score.kind,
            "rows": str(score.score.num_rows),
            **errors_of(score.score),
            "constant MFU": percent(score.constant_mfu.mean_absolute),
            "in 90 %": _inside(score.coverage),
        }
        for score in hardware_scores(sets)
    ]


def _fitted_constants(sets: Sequence[SetValidation]) -> str:
    types = {
        row.plan.job.cluster.device.efficiency_class: row.plan.job.cluster.device.efficiency.fitted
        for run_set in sets for row in run_set.test_rows if row.plan.job
    }  # fmt: skip
    counts = [f"{name} {len(names)} ({', '.join(names)})" for name, names in sorted(types.items()) if names]
    return f"Constants fitted to training runs, per GPU type: {'; '.join(counts)}; others 0."


def _inside(coverage: tuple[int, int] | None) -> str:
    return "–" if coverage is None else f"{coverage[0]}/{coverage[1]}"


def coverage_line(sets: Sequence[SetValidation]) -> str:
    rows = [row for run_set in sets if not run_set.properties.order_only for row in _unseen(run_set)]
    named = {"of all test times": rows} | {
        f"of {kind} models": [row for row in rows if row.plan.job and row.kind == kind] for kind in ("dense", "MoE")
    }
    parts = [
        f"{percent(coverage[0] / coverage[1])} {what} ({_inside(coverage)})"
        for what, here in named.items()
        if (coverage := coverage_of(here))
    ]
    return f"Inside the projection's 90 % interval: {', '.join(parts)}."


def largest_errors(sets: Sequence[SetValidation], count: int = 10) -> list[dict[str, str]]:
    rows = [
        (run_set, row)
        for run_set in sets
        if not run_set.properties.order_only
        for row in run_set.test_rows
        if not row.case.is_memory
    ]
    rows.sort(key=lambda errors: -abs(errors[1].error))
    return [
        {"set": one.name, "error": signed_percent(row.error), "run": _with_remarks(row.case, describe_run(row))}
        for one, row in rows[:count]
    ]


def _listed_rows(sets: Sequence[SetValidation]) -> list[dict[str, str]]:
    counts = Counter((run_set.name, _in_short(reason)) for run_set in sets for _, reason in run_set.skipped)
    return [{"set": name, "rows": str(count), "why": reason} for (name, reason), count in counts.items()]


def cells_of_skipped(case: PublishedRun, reason: str) -> dict[str, str]:
    properties, settings = case.properties, case.settings
    sizes = [f"{name}{settings[name]}" for name in ("tp", "cp", "ep", "pp", "vpp") if settings.get(name, 1) != 1]
    what = ", ".join(
        part for part in (properties.title, f"{settings.get('gpus', '?')} GPUs", " ".join(sizes)) if part
    )
    return {
        "use": _USES[properties.use],
        "published": f"{properties.value:g} {properties.metric.replace('_', ' ')}",
        "run": _with_remarks(case, what),
        "why": _in_short(reason),
    }


def _in_short(reason: str) -> str:
    return reason.partition(": did you mean")[0].partition(": there are")[0]


def cells_of_row(run_set: SetValidation, row: CaseError) -> dict[str, str]:
    """Another tool has a column if any row of the set has its result."""
    case, constant = row.case, row.constant_mfu_error
    amount = size if case.is_memory else seconds
    cells = {
        "use": _USES[case.properties.use],
        "measured": amount(row.measured),
        "ppsim": amount(row.projected),
        "error": "–" if run_set.properties.order_only else signed_percent(row.error),
        "constant MFU": "–" if constant is None or run_set.properties.order_only else signed_percent(constant),
    }
    if any(row.case.properties.other is not None for row in run_set.rows):
        cells[run_set.properties.other_tool] = "–" if row.other_error is None else signed_percent(row.other_error)
    return cells | {"run": _with_remarks(row.case, describe_run(row))}


def _with_remarks(case: PublishedRun, what: str) -> str:
    return f"{what} ({case.properties.remarks})" if case.properties.remarks else what


def describe_run(row: CaseError) -> str:
    """In "b 512/2", 512 sequences are a global batch in microbatches of 2; "8k" are the tokens per sequence."""
    plan, settings, job = row.plan, row.case.settings, row.plan.job
    dtype = job.execution.dtype if job else ""
    schedule = [plan.schedule_name] if plan.pp > 1 else []
    if job is None:
        return ", ".join([row.case.properties.title or plan.source.name, *schedule])
    title = row.case.properties.title or job.model_name
    layers = [f"{settings['layers']} layers"] if "layers" in settings and job.model_name != GPT else []
    sizes = {name: getattr(job.layout, name) for name in ("tp", "cp", "ep", "pp")} | {"vpp": plan.vpp or 1}
    cuts = " ".join(f"{name}{size}" for name, size in sizes.items() if size > 1)
    cuts += f" etp{job.layout.etp}" if job.layout.etp not in (None, job.layout.tp) else ""
    length = f"{job.length // 1024}k" if job.length >= 1024 else str(job.length)
    parts = [
        title,
        *layers,
        f"{job.layout.num_devices} GPUs",
        cuts,
        f"b {job.global_batch}/{job.micro_batch}",
        length,
        *schedule,
    ]
    parts += [] if dtype.endswith(("16", "32")) else [dtype.replace("float8", "fp8")]
    parts += [str(settings["recompute"])] if settings.get("recompute", "none") != "none" else []
    return ", ".join(part for part in parts if part)


def _titled_table(title: str, rows: Sequence[Mapping[str, str]]) -> list[str]:
    return [title, "", *markdown_table(rows), ""] if rows else []


def markdown_table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Columns are right-aligned except the first and last."""
    if not rows:
        return []
    rule = ["---", *["--:"] * (len(rows[0]) - 2), "---"]
    cells = [f"| {' | '.join(row.values())} |" for row in rows]
    return [f"| {' | '.join(rows[0])} |", f"|{'|'.join(rule)}|", *cells]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def print_fitted(fitted: FitResult) -> None:
    posterior, out = fitted.posterior, Page()
    num_rows = len(posterior.rows)
    out.add(f"{bold(posterior.cluster.name)}   fitted to {_steps(num_rows)} of {fitted.source}")
    machine = [_as_row(one.prior.name, one) for one in posterior.found if one not in fitted.rests.values()]
    if machine or posterior.operators:
        out.add(TableLines.of([*starmap(_as_measured, posterior.operators.items()), *machine], wraps=True))
    else:
        out.add("no cluster constant: the rows do not determine any of them")
    for name, rest in fitted.rests.items():
        spread = seconds(rest.value * rest.spread)
        out.add(f"job {name}: add --extra-step-time {rest.value:.4g} (± {spread}) for this job only")
    rows = zip(posterior.rows, posterior.before, posterior.after, posterior.runs[-num_rows:], strict=True)
    out.add("", TableLines.of([
        _changed(row.name, row.measured_s, *errors) | {"job factor": f"{run.times:.4g} ± {percent(run.sigma)}"}
        for row, *errors, run in rows
    ]))  # fmt: skip
    names = ("extra step time" if one.prior.name.startswith(REST) else one.prior.name for one in posterior.left)
    left = ", ".join(dict.fromkeys(names))
    lines: list[tuple[str, str]] = [
        (
            "job factor",
            "measured time / time projected with these constants: applied to this job, and partly to similar jobs",
        ),
        *[("far off", str(outlier)) for outlier in posterior.outliers],
        *([("at their priors", f"{left}: the rows do not determine them")] if left else []),
    ]
    if num_rows < len(fitted.estimates):
        counts = f"{_steps(num_rows)} for {len(fitted.estimates)} constants"
        lines.append(("priors", f"{counts}: the priors decide what the rows do not determine"))
    lines += [("skipped", f"{case.number or case.properties.title}: {reason}") for case, reason in fitted.skipped]
    out.add(facts(lines))


def _changed(name: str, measured_s: float, before: float, after: float) -> dict[str, str]:
    errors = {"before": signed_percent(before), "after": signed_percent(after)}
    return {"row": name, "measured": seconds(measured_s)} | errors


def _steps(number: int) -> str:
    return f"{number} measured step{'' if number == 1 else 's'}"


def _as_row(name: str, estimate: ConstantEstimate) -> dict[str, str]:
    shown = seconds if name.endswith("_s") else "{:.4g}".format
    return {
        "constant": name,
        "value": shown(estimate.value),
        "±": percent(estimate.spread),
        "prior": shown(estimate.prior.median),
        "± ": percent(estimate.prior.spread),
        "source of the prior": estimate.prior.reason,
    }


def _as_measured(name: str, constant: Constant) -> dict[str, str]:
    return {
        "constant": name,
        "value": seconds(constant.value) if name.endswith("_s") else f"{constant.value:.4g}",
        "±": percent((constant.sigma or 0.0) / constant.value),
        "prior": "–",
        "± ": "–",
        "source of the prior": constant.source,
    }


def print_after_fits(fits: AfterFits) -> None:
    """Only a single set is printed with its rows."""
    out = Page()
    out.add(TableLines.of([_set_after_fit(run_set) for run_set in fits.sets]))
    if len(fits.sets) == 1:
        (one,) = fits.sets
        out.add("")
        for cluster in one.fits:
            machine = ", ".join(f"{told.prior.name} {told.value:.4g}" for told in cluster.found)
            out.add(f"{cluster.cluster.name}: {machine or 'no setting'}")
            out.add(f"  on {', '.join(row.name for row in cluster.rows)}")
            for doubt in cluster.outliers:
                out.add(f"  far off: {doubt}")
        pairs = [
            _changed(str(before.case.number), before.measured, before.error, after.error)
            for before, after in one.test_rows
        ]
        out.add("", TableLines.of(pairs))
        if listed := [(str(case.number), reason) for case, reason in one.skipped]:
            out.add("skipped:", facts(listed))
    out.add(
        "",
        "Errors are projected / measured - 1 of the rows that were not fitted: positive means that the projection "
        "is slower. fit rows: rows to which the cluster's constants were fitted. skipped: rows that cannot be "
        "projected. in 90 %: times inside the 90 % interval after the fit.",
    )


def _set_after_fit(one: AfterFit) -> dict[str, str]:
    (before, after), inside = one.scores, one.coverage
    return {
        "set": one.name,
        "rows": str(len(one.test_rows)),
        "fit rows": str(sum(len(fit.rows) for fit in one.fits)),
        "skipped": str(len(one.skipped) or "–"),
        **_scores("before", before, bool(one.test_rows)),
        **_scores("after", after, bool(one.test_rows)),
        "in 90 %": "–" if inside is None else f"{inside[0]}/{inside[1]}",
    }


def _scores(when: str, score: ErrorSummary, is_any: bool) -> dict[str, str]:
    cells: Sequence[str] = tuple(errors_of(score).values())
    names = (when, f"MAPE{' ' * (when == 'after')}", f"worst{' ' * (when == 'after')}")
    return dict(zip(names, cells if is_any else ("–",) * 3, strict=True))
