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

from ppsim.api.project import plan_of_keywords
from ppsim.api.validate import validate
from ppsim.base.files import csv_text, write_atomically
from ppsim.base.package_data import data_folder
from ppsim.base.units import percent, signed_percent
from ppsim.results.fits import every_set_after_fit
from ppsim.results.validation import every_row, every_set, markdown, markdown_summary, markdown_table
from ppsim.trainers.stacks import ERRORS, PLAIN, StackErrors
from ppsim.validation.error_summary import SetValidation, coverage_of, score_of
from ppsim.validation.fit_validation import AfterFit, AfterFits
from ppsim.validation.stack_errors import calibration_errors, errors_by_stack, rows_by_stack

DOCS = Path(__file__).parents[1] / "docs"
SUMMARY, PAGE = DOCS / "accuracy.md", DOCS / "results" / "published_runs.md"
ROWS, SETS, AFTER_FIT = (PAGE.with_name(f"published_{name}.csv") for name in ("rows", "sets", "after_fit"))
VALIDATE, MARKDOWN, FIT_ON_ONE, FIT_ON_ONE_A_MODEL = (
    f"ppsim validate{options}" for options in ("", " --markdown", " --fit-on one", " --fit-on one-a-model")
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
    put(PAGE, MARKDOWN, markdown(sets))
    write_atomically(ROWS, csv_text(every_row(sets)))
    write_atomically(SETS, csv_text(every_set(sets)))
    if not is_quick:
        found = validate(fit_on="one")
        put(PAGE, FIT_ON_ONE, after_one_run(found, sets))
        write_atomically(AFTER_FIT, csv_text(every_set_after_fit(found)))
        put(PAGE, FIT_ON_ONE_A_MODEL, after_one_run(validate(fit_on="one-a-model"), sets))


STACKS = "default of --stack"


def write_stacks() -> None:
    """Write the errors of each stack on the calibration rows, and a table of them with the errors of test rows."""
    calibration = calibration_errors(plan_of_keywords)
    text = json.dumps([asdict(one) for one in calibration], indent=1)
    write_atomically(data_folder("trainers/data") / ERRORS, f"{text}\n")
    test = errors_by_stack(list(rows_by_stack(plan_of_keywords, "test", lambda generation: (None, PLAIN))))
    put(PAGE, STACKS, stack_table(calibration, test))


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
            "plain, test": _absolute_and_mean(found, PLAIN),
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
