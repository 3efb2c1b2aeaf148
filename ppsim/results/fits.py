"""Terminal output for fitted constants, and for validation sets before and after a fit."""

from collections.abc import Sequence

from ppsim.base.units import percent, seconds, signed_percent
from ppsim.results.text_layout import Page, TableLines, bold, facts
from ppsim.results.validation import errors_of
from ppsim.validation.bayesian_fit import REST, ConstantEstimate
from ppsim.validation.error_summary import ErrorSummary, coverage_of, score_of
from ppsim.validation.fit_result import AfterFit, AfterFits, FitResult


def print_fitted(found: FitResult) -> None:
    posterior, out = found.posterior, Page()
    num_rows = len(posterior.rows)
    out.add(f"{bold(posterior.cluster.name)}   fitted to {_steps(num_rows)} of {found.source}")
    machine = [one for one in posterior.found if one not in found.rests.values()]
    if machine:
        out.add(TableLines.of([_as_row(one.prior.name, one) for one in machine], wraps=True))
    else:
        out.add("no cluster constant: the rows do not determine any of them")
    for name, one in found.rests.items():
        spread = seconds(one.value * one.spread)
        out.add(f"job {name}: add --extra-step-time {one.value:.4g} (± {spread}) for this job only")
    rows = zip(posterior.rows, posterior.before, posterior.after, posterior.runs[-num_rows:], strict=True)
    out.add("", TableLines.of([
        _changed(row.name, row.measured_s, *errors) | {"job factor": f"{run.times:.4g} ± {percent(run.sigma)}"}
        for row, *errors, run in rows
    ]))  # fmt: skip
    names = ("extra step time" if one.prior.name.startswith(REST) else one.prior.name for one in posterior.left)
    left = ", ".join(dict.fromkeys(names))
    told: list[tuple[str, str]] = [
        (
            "job factor",
            "measured time / time projected with these constants: applied to this job, and partly to similar jobs",
        ),
        *[("far off", str(one)) for one in posterior.outliers],
        *([("at their priors", f"{left}: the rows do not determine them")] if left else []),
    ]
    if num_rows < len(found.estimates):
        counts = f"{_steps(num_rows)} for {len(found.estimates)} constants"
        told.append(("priors", f"{counts}: the priors decide what the rows do not determine"))
    told += [("skipped", f"{case.number or case.properties.title}: {reason}") for case, reason in found.skipped]
    out.add(facts(told))


def _changed(name: str, measured_s: float, before: float, after: float) -> dict[str, str]:
    errors = {"before": signed_percent(before), "after": signed_percent(after)}
    return {"row": name, "measured": seconds(measured_s)} | errors


def _steps(number: int) -> str:
    return f"{number} measured step{'' if number == 1 else 's'}"


def _as_row(name: str, one: ConstantEstimate) -> dict[str, str]:
    shown = seconds if name.endswith("_s") else "{:.4g}".format
    return {
        "constant": name,
        "value": shown(one.value),
        "±": percent(one.spread),
        "prior": shown(one.prior.median),
        "± ": percent(one.prior.spread),
        "source of the prior": one.prior.reason,
    }


def print_after_fits(found: AfterFits) -> None:
    """Only a single set is printed with its rows."""
    out = Page()
    out.add(TableLines.of([_summary(one) for one in found.sets]))
    if len(found.sets) == 1:
        (one,) = found.sets
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


def _summary(one: AfterFit) -> dict[str, str]:
    before, after = (score_of([pair[index].error for pair in one.test_rows]) for index in (0, 1))
    inside = coverage_of([pair[1] for pair in one.test_rows])
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
