"""What a terminal and docs/accuracy.md show of validation."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ppsim.base.units import percent, seconds, signed_percent, size
from ppsim.printing.page import Columns, Page, facts
from ppsim.validation.cases import Case
from ppsim.validation.fit import FittedMachine
from ppsim.validation.score import CaseError, Validation

if TYPE_CHECKING:
    from ppsim.validation.validated import Validated


def print_validations(found: "Validated", *, with_rows: bool | None = None) -> None:
    """Print a line a set and, if asked or where there is only one, every row with what is said of the set."""
    out = Page()
    if len(found.sets) == 1 if with_rows is None else with_rows:
        for one in found.sets:
            _print_rows(out, one)
            out.add()
    out.add(Columns.of([_summary(one) for one in found.sets], spare=["others", "order"]))
    out.add()
    out.add(
        "Errors of the rows that were not fitted (*: all were): predicted / measured - 1 of time or bytes, "
        "negative is optimistic; absolute: mean of their sizes, given for a constant MFU and others too."
    )
    out.add("order: rank correlation of schedules, mean of the groups; groups with every pair in the right order.")


def print_fits(fits: Sequence[FittedMachine]) -> None:
    """Print constants found again beside those in use."""
    out = Page()
    for fit in fits:
        out.add(f"[bold]{fit.name}[/bold]   {fit.machine.title}")
        in_use = fit.in_use
        out.add(
            Columns.of(
                [
                    {"constant": name, "found": f"{value:g}", "in use": f"{in_use[name]:g}"}
                    for name, value in fit.found.items()
                ]
            )
        )
        out.add(f"{fit.num_rows} rows; {fit.machine.source}", markup=False)
        out.add()


def markdown(found: Sequence[Validation]) -> str:
    """Return the section of docs/accuracy.md."""
    lines = ["`ppsim validate` (with `--rows` every row too)", ""]
    lines += [
        "Errors are predicted / measured − 1 of a step's time or of memory, of the rows that no constant was",
        "fitted on (*: all were); negative is optimistic. absolute: the mean of their sizes; the same of a",
        "constant MFU and of other tools on the same rows. order: rank correlation of schedules, mean of the",
        "groups, and how many groups have every pair of schedules in the measured order. What ran: model,",
        "devices, layout, global batch/micro-batch, tokens a sequence, schedule.",
        "",
    ]
    lines += _markdown_table([_summary(one) for one in found])
    for one in found:
        lines += ["", f"**{one.name}**: {one.told.title} ({one.told.source}). {_capital(one.told.notes)}.", ""]
        lines += _markdown_table([_as_printed(one, row) for row in one.rows])
    return "\n".join(lines) + "\n"


def _print_rows(out: Page, one: Validation) -> None:
    out.add(f"[bold]{one.name}[/bold]   {one.told.title}")
    out.add(Columns.of([_as_printed(one, row) for row in one.rows], wraps=True, spare=["constant MFU"]))
    told = [("source", one.told.source), ("notes", one.told.notes)]
    if one.mfu_basis:
        told.append(("constant MFU", one.mfu_basis))
    if score := one.fitted_score:
        mean, absolute = signed_percent(score.mean), percent(score.mean_absolute)
        told.append(("fit rows", f"{score.num_rows} rows, mean {mean}, mean absolute {absolute}"))
    out.add(facts(told), markup=False)


def _summary(one: Validation) -> dict[str, str]:
    """A set as a row of a table, by its columns."""
    score, constant, other = one.score, one.constant_mfu, one.other
    others = [f"{one.told.other_tool} {percent(other.mean_absolute)}"] if other else []
    others += [one.told.others] if one.told.others else []
    errors = {
        "mean": signed_percent(score.mean),
        "absolute": percent(score.mean_absolute),
        "worst": signed_percent(score.worst),
        "constant MFU": percent(constant.mean_absolute) if constant else "–",
        "others": ", ".join(others) or "–",
    }
    if one.told.order_only:
        errors = dict.fromkeys(errors, "–")
    mean = one.mean_rank_correlation
    return {
        "set": one.name,
        "rows": f"{len(one.judged)}{'*' if len(one.fitted) == len(one.rows) else ''}",
        **errors,
        "order": "–" if mean is None else f"{mean:.2f}, {one.right}/{len(one.ranks)}",
    }


def _as_printed(one: Validation, row: CaseError) -> dict[str, str]:
    """A case as a row of a table, by its columns; another tool has one where some row of the set knows it."""
    case, constant = row.case, row.constant_mfu_error
    amount = size if case.is_memory else seconds
    cells = {
        "use": case.use,
        "measured": amount(case.measured),
        "ppsim": amount(row.predicted),
        "error": "–" if one.told.order_only else signed_percent(row.error),
        "constant MFU": "–" if constant is None or one.told.order_only else signed_percent(constant),
    }
    if any(row.case.other is not None for row in one.rows):
        cells[one.told.other_tool] = "–" if row.other_error is None else signed_percent(row.other_error)
    return cells | {"what ran": what_ran(case)}


def what_ran(case: Case) -> str:
    """Return model, devices, layout, schedule and batch of a case in short.

    "b 512/2" is a global batch of 512 in microbatches of 2 sequences, "8k" the tokens of one.
    """
    layers = [f"{case.layers} layers"] if case.layers and case.model != "gpt" else []
    cuts = [f"{name}{getattr(case, name)}" for name in ("tp", "cp", "pp", "vpp") if getattr(case, name) > 1]
    length = f"{case.seq_len // 1024}k" if case.seq_len >= 1024 else str(case.seq_len)
    parts = [
        case.title,
        *layers,
        f"{case.gpus} GPUs",
        " ".join(cuts),
        f"b {case.global_batch}/{case.micro_batch}",
        length,
    ]
    parts += [case.schedule] if case.pp > 1 else []
    parts += [] if case.dtype.endswith(("16", "32")) else [case.dtype.replace("float8", "fp8")]
    parts += [case.recompute] if case.recompute != "none" else []
    return ", ".join(part for part in parts if part)


def _markdown_table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    rule = ["---", *["--:"] * (len(rows[0]) - 2), "---"]
    cells = [f"| {' | '.join(row.values())} |" for row in rows]
    return [f"| {' | '.join(rows[0])} |", f"|{'|'.join(rule)}|", *cells]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
