"""What a terminal and docs/accuracy.md show of validation."""

from collections.abc import Sequence

from ppsim.base.units import percent, seconds, signed_percent, size
from ppsim.printing.page import Columns, Page, facts
from ppsim.validation.fit import fit_machine, fit_rows
from ppsim.validation.machines import machine_of
from ppsim.validation.score import Row, Score, Validation, score_of

_HEADER = ["set", "rows", "mean", "absolute", "worst", "constant MFU", "others", "order"]
_ROW_HEADER = ["use", "measured", "ppsim", "error", "constant MFU", "other", "what ran"]


def print_validations(found: Sequence[Validation], *, with_rows: bool) -> None:
    """Print a line a set and, if asked, every row with what is said of the set."""
    out = Page()
    if with_rows:
        for one in found:
            _print_rows(out, one)
            out.add()
    out.add(Columns(_HEADER, [_summary(one) for one in found], spare=["others", "order"]))
    out.add()
    out.add(
        "Errors of the rows that were not fitted (*: all were): predicted / measured - 1 of time or bytes, "
        "negative is optimistic; absolute: mean of their sizes, given for a constant MFU and others too."
    )
    out.add("order: rank correlation of schedules, mean of the groups; groups with every pair in the right order.")


def print_fits(names: Sequence[str]) -> None:
    """Print constants found again beside those in use."""
    out = Page()
    for name in names:
        machine = machine_of(name)
        assert machine is not None
        out.add(f"[bold]{name}[/bold]   {machine.title}")
        out.add(
            Columns(
                ["constant", "found", "in use"],
                [[key, f"{value:g}", f"{machine.constant(key):g}"] for key, value in fit_machine(name).items()],
            )
        )
        out.add(f"{len(fit_rows(name))} rows; {machine.source}", markup=False)
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
    lines += _markdown_table(_HEADER, [_summary(one) for one in found])
    for one in found:
        lines += ["", f"**{one.name}**: {one.told.title} ({one.told.source}). {_capital(one.told.notes)}.", ""]
        lines += _markdown_table(_row_header(one), [_cells(one, row) for row in one.rows])
    return "\n".join(lines) + "\n"


def _print_rows(out: Page, one: Validation) -> None:
    out.add(f"[bold]{one.name}[/bold]   {one.told.title}")
    out.add(Columns(_row_header(one), [_cells(one, row) for row in one.rows], wraps=True, spare=["constant MFU"]))
    told = [("source", one.told.source), ("notes", one.told.notes)]
    if one.mfu_basis:
        told.append(("constant MFU", one.mfu_basis))
    if one.fitted:
        told.append(("fit rows", _score(score_of([row.error for row in one.fitted]))))
    out.add(facts(told), markup=False)


def _score(score: Score) -> str:
    return f"{score.num_rows} rows, mean {signed_percent(score.mean)}, mean absolute {percent(score.mean_absolute)}"


def _summary(one: Validation) -> list[str]:
    order = ""
    if one.ranks:
        mean = sum(one.ranks.values()) / len(one.ranks)
        order = f"{mean:.2f}, {one.right}/{len(one.ranks)}"
    all_fitted = "*" if len(one.fitted) == len(one.rows) else ""
    if one.told.order_only:
        return [one.name, str(len(one.judged)), "–", "–", "–", "–", "–", order]
    score, constant, other = one.score, one.constant_mfu, one.other
    others = [f"{one.told.other_tool} {percent(other.mean_absolute)}"] if other else []
    return [
        one.name,
        f"{score.num_rows}{all_fitted}",
        signed_percent(score.mean),
        percent(score.mean_absolute),
        signed_percent(score.worst),
        percent(constant.mean_absolute) if constant else "–",
        ", ".join([*others, *([one.told.others] if one.told.others else [])]) or "–",
        order or "–",
    ]


def _has_others(one: Validation) -> bool:
    return any(row.case.other is not None for row in one.rows)


def _cells(one: Validation, row: Row) -> list[str]:
    case = row.case
    amount = size if case.is_memory else seconds
    constant, other = row.constant_mfu_error, row.other_error
    cells = [case.use, amount(case.measured), amount(row.predicted)]
    cells += ["–" if one.told.order_only else signed_percent(row.error)]
    cells += ["–" if constant is None or one.told.order_only else signed_percent(constant)]
    if _has_others(one):
        cells.append("–" if other is None else signed_percent(other))
    return [*cells, what_ran(row)]


def _row_header(one: Validation) -> list[str]:
    return [
        name if name != "other" else one.told.other_tool
        for name in _ROW_HEADER
        if name != "other" or _has_others(one)
    ]


def what_ran(row: Row) -> str:
    """Return model, devices, layout, schedule and batch of a row in short.

    "b 512/2" is a global batch of 512 in microbatches of 2 sequences, "8k" the tokens of one.
    """
    case = row.case
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
    parts += ["fp8"] if case.dtype == "float8" else []
    parts += [case.recompute] if case.recompute != "none" else []
    return ", ".join(part for part in parts if part)


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = "|".join(["---"] + ["--:"] * (len(header) - 2) + ["---"])
    return [f"| {' | '.join(header)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
