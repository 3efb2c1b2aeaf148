"""Write the results of `ppsim validate` into docs/accuracy.md and docs/results/: python scripts/make_accuracy.py

The text between a mark and its end is replaced. Every row, every set, and the errors of every set after a fit on
one run are written to CSV files. The errors of each stack on the calibration rows, which decide on the
default of `--stack`, are written to ppsim/trainers/data/stack_errors.json. `--quick` skips the fits on one run of
each set and of each model, which take longest.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from stack_errors import OF_RELEASE, calibration_errors, errors_by_stack, rows_by_stack

from ppsim.api.project import plan_of_keywords
from ppsim.api.validate import validate
from ppsim.base.files import csv_text, data_folder, write_atomically
from ppsim.base.units import percent, signed_percent
from ppsim.results.validation import (
    cells_of_row,
    cells_of_skipped,
    coverage_line,
    errors_of,
    largest_errors,
    markdown,
    markdown_table,
    section_rows,
    source_rows,
)
from ppsim.trainers.stacks import ERRORS, PLAIN, StackErrors, base_of, current_stacks
from ppsim.validation.error_summary import SetValidation, coverage_of, score_of
from ppsim.validation.fit_result import AfterFit, AfterFits
from ppsim.validation.source_errors import leave_source_out

DOCS = Path(__file__).parents[1] / "docs"
SUMMARY, PAGE = DOCS / "accuracy.md", DOCS / "results" / "published_runs.md"
ROWS, SETS, AFTER_FIT = (PAGE.with_name(f"published_{name}.csv") for name in ("rows", "sets", "after_fit"))
VALIDATE, MARKDOWN, LEAVE_SOURCE_OUT, FIT_ON_ONE, FIT_ON_ONE_A_MODEL = (
    f"ppsim validate{options}"
    for options in ("", " --markdown", " --leave-source-out", " --fit-on one", " --fit-on one-a-model")
)
"""Names of the marks: the command whose results follow each mark."""


def main() -> None:
    """Write the pages and the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out the fits on one run and one a model")
    is_quick = parser.parse_args().quick
    write_stacks()
    sets = validate().sets
    put(SUMMARY, VALIDATE, markdown_summary(sets))
    put(SUMMARY, LEAVE_SOURCE_OUT, "\n".join(markdown_table(source_rows(leave_source_out(sets, plan_of_keywords)))))
    put(PAGE, MARKDOWN, markdown(sets))
    write_atomically(ROWS, csv_text(every_row(sets)))
    write_atomically(SETS, csv_text(every_set(sets)))
    if not is_quick:
        found = validate(fit_on="one")
        put(PAGE, FIT_ON_ONE, after_one_run(found, sets))
        write_atomically(AFTER_FIT, csv_text(every_set_after_fit(found)))
        put(PAGE, FIT_ON_ONE_A_MODEL, after_one_run(validate(fit_on="one-a-model"), sets))


def markdown_summary(found: Sequence[SetValidation]) -> str:
    """Return the part of docs/accuracy.md about all sets."""
    lines = [
        *markdown_table(section_rows(found)),
        "",
        coverage_line(found),
        "",
        "The ten largest errors of times:",
        "",
    ]
    return "\n".join([*lines, *markdown_table(largest_errors(found))]) + "\n"


def every_row(found: Sequence[SetValidation]) -> list[dict[str, str]]:
    """Return the rows of docs/results/published_rows.csv."""
    columns = ("set", "use", "measured", "ppsim", "error", "constant MFU", "other tool", "run", "why")
    rows = []
    for one in found:
        for row in one.rows:
            cells = cells_of_row(one, row)
            rows.append({"set": one.name, **cells, "other tool": cells.get(one.properties.other_tool, "")})
        for case, reason in one.skipped:
            listed = cells_of_skipped(case, reason)
            rows.append({"set": one.name, **listed, "use": "skipped", "measured": listed["published"]})
    return [{column: row.get(column, "") for column in columns} for row in rows]


def every_set(found: Sequence[SetValidation]) -> list[dict[str, str]]:
    """Return the rows of docs/results/published_sets.csv."""
    return [
        {
            "set": one.name,
            "section": one.properties.section,
            "title": one.properties.title,
            "source": one.properties.source,
            "notes": one.properties.notes,
        }
        for one in found
    ]


def every_set_after_fit(found: AfterFits) -> list[dict[str, str]]:
    """Return the rows of docs/results/published_after_fit.csv."""
    return [_errors_before_and_after(one) for one in found.sets if one.test_rows]


def _errors_before_and_after(one: AfterFit) -> dict[str, str]:
    (before, after), inside = one.scores, one.coverage
    return {
        "set": one.name,
        "rows": str(len(one.test_rows)),
        "fit rows": str(sum(len(fit.rows) for fit in one.fits)),
        "skipped": str(len(one.skipped)),
        **{f"{name} before": cell for name, cell in errors_of(before).items()},
        **{f"{name} after": cell for name, cell in errors_of(after).items()},
        "in interval after": f"{inside[0]}/{inside[1]}" if inside else "",
    }


STACKS = "default of --stack"


def write_stacks() -> None:
    """Write the errors of each stack on the calibration rows, and a table of them with the errors of test rows."""
    calibration = calibration_errors(plan_of_keywords)
    text = json.dumps([asdict(one) for one in calibration], indent=1)
    write_atomically(data_folder("trainers/data") / ERRORS, f"{text}\n")
    test = errors_by_stack(list(rows_by_stack(plan_of_keywords, "test", tested_stacks)))
    put(PAGE, STACKS, stack_table(calibration, test))


def tested_stacks(generation: str) -> list[str | None]:
    has_releases = base_of(OF_RELEASE) in current_stacks(generation)
    return [None, PLAIN, *[OF_RELEASE] * has_releases]


def stack_table(calibration: Sequence[StackErrors], test: Sequence[StackErrors]) -> str:
    """Return a line per generation and kind of model: errors of each stack, the default, errors of test rows."""
    names = list(dict.fromkeys(name for one in calibration for name in one.errors))
    tested = {(one.generation, one.kind): one for one in test}
    rows = []
    for one in calibration:
        found = tested.get((one.generation, one.kind))
        rows.append({
            "models": f"{one.kind} on {one.generation}",
            "calibration rows": str(one.rows),
            **{name: _absolute_and_mean(one, name) for name in names},
            "test rows": str(found.rows) if found else "–",
            **{f"{name}, test": _absolute_and_mean(found, name) for name in (PLAIN, OF_RELEASE)},
            "default, test": _absolute_and_mean(found, ""),
            "default": one.nearest,
        })  # fmt: skip
    return "\n".join(markdown_table(rows)) + "\n"


def _absolute_and_mean(one: StackErrors | None, stack: str) -> str:
    if one is None or stack not in one.errors:
        return "–"
    absolute, mean = one.errors[stack]
    return f"{percent(absolute)} ({signed_percent(mean)})"


def marked(page: str, name: str) -> tuple[int, int]:
    """Return start and end of the text after a mark.

    >>> marked("a\\n<!-- x -->\\nold\\n<!-- end of x -->\\n", "x")
    (13, 17)
    """
    begin = page.index(f"<!-- {name} -->\n") + len(f"<!-- {name} -->\n")
    return begin, page.index(f"<!-- end of {name} -->\n", begin)


def put(path: Path, name: str, text: str) -> None:
    """Replace the text after a mark of a page."""
    page = path.read_text(encoding="utf-8")
    begin, end = marked(page, name)
    write_atomically(path, f"{page[:begin]}\n{text}\n{page[end:]}")


def after_one_run(found: AfterFits, sets: Sequence[SetValidation]) -> str:
    """Return a line for each section: errors of the rows that were not fitted, before and after."""
    sections = {one.name: one.properties.section for one in sets}
    groups: dict[str, list[AfterFit]] = {}
    for one in found.sets:
        if one.test_rows:
            groups.setdefault(sections[one.name], []).append(one)
    return "\n".join(markdown_table([_before_and_after(*group) for group in groups.items()])) + "\n"


def _before_and_after(section: str, sets: Sequence[AfterFit]) -> dict[str, str]:
    pairs = [pair for one in sets for pair in one.test_rows]
    before, after = (score_of([pair[index].error for pair in pairs]) for index in (0, 1))
    inside = coverage_of([pair[1] for pair in pairs])
    closer = [one.name for one in sets if _absolute(one, 1) < _absolute(one, 0)]
    return {
        "published runs": f"{section[:1].upper()}{section[1:]}",
        "rows": str(len(pairs)),
        "mean, before": signed_percent(before.mean),
        "after": signed_percent(after.mean),
        "absolute, before": percent(before.mean_absolute),
        "after ": percent(after.mean_absolute),
        "worst, before": signed_percent(before.worst),
        "after  ": signed_percent(after.worst),
        "inside after": f"{inside[0]}/{inside[1]}" if inside else "–",
        "sets that come closer": f"{len(closer)} of {len(sets)}",
    }


def _absolute(one: AfterFit, index: int) -> float:
    return score_of([pair[index].error for pair in one.test_rows]).mean_absolute


if __name__ == "__main__":
    main()
