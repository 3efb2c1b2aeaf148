"""Errors of test rows with a free factor for each group of rows, fitted to the same rows.

    python benchmarks/hindsight.py "dense on A100"

This is a bound for models whose terms are equal within a group, not a result, because it uses the measurements. The
factor of each group minimises the mean absolute error.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from ppsim.api.project import plan_of_keywords
from ppsim.validation.error_summary import CaseError, validate_set
from ppsim.validation.published_runs import case_sets

GROUPS: dict[str, Callable[[str, CaseError], Hashable]] = {
    "a set": lambda name, row: name,
    "a set and model": lambda name, row: (name, row.case.properties.title),
    "a set, model and tp": lambda name, row: (name, row.case.properties.title, row.case.options.get("tp")),
    "a set, model, tp and pp": lambda name, row: (
        name,
        row.case.properties.title,
        row.case.options.get("tp"),
        row.plan.pp,
    ),
}


def least(ratios: Sequence[float]) -> float:
    """Return the minimum over f of the sum of |f · ratio - 1|, which is at an f that makes one term 0.

    >>> least([1.0, 2.0, 2.0])
    0.5
    """
    return min(sum(abs(ratio / one - 1) for ratio in ratios) for one in ratios)


def main(section: str) -> None:
    rows = [
        (name, row)
        for name, told in case_sets().items()
        if told.section == section
        for row in validate_set(name, plan_of_keywords).test_rows
        if not row.case.is_memory
    ]
    print(f"{section}: {len(rows)} test rows, {100 * sum(abs(row.error) for _, row in rows) / len(rows):.2f} %")
    for title, key in GROUPS.items():
        groups = defaultdict(list)
        for name, row in rows:
            groups[key(name, row)].append(1 + row.error)
        off = sum(map(least, groups.values())) / len(rows)
        print(f"a factor for {title}: {len(groups)} factors, {100 * off:.2f} %")


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "dense on A100")
