"""Print every skipped test with its reason; fail if the number of unexpected ones is not the given number.

    python scripts/check_skips.py RESULTS.xml NUMBER

RESULTS.xml is the output of `pytest --junit-xml RESULTS.xml`. A new skip hides a claim that is no longer tested. If
there are fewer skips, lower the given number. Tests that need a checkout of a trainer are not counted.
"""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

NEEDS_A_CHECKOUT = "needs a checkout: "
"""Begins the reason of tests that need PPSIM_PRIMUS or PPSIM_MEGATRON."""


def reasons_in(results: Path) -> Counter[str]:
    """Return the reasons of the skipped tests in a JUnit XML file, with the number of tests for each."""
    skips = (skip for skip in ElementTree.parse(results).iter("skipped") if skip.get("type") == "pytest.skip")
    return Counter(skip.get("message", "") for skip in skips)


def main() -> None:
    """Compare the numbers, and exit with 1 if they differ."""
    found, expected = reasons_in(Path(sys.argv[1])), int(sys.argv[2])
    for reason, number in found.most_common():
        print(f"skipped: {number} × {reason}")
    counted = sum(number for reason, number in found.items() if NEEDS_A_CHECKOUT not in reason)
    if counted != expected:
        raise SystemExit(f"skipped tests: {counted}, expected: {expected}")


if __name__ == "__main__":
    main()
