"""Print every skipped test with its reason; fail if their number is not the expected one.

    python scripts/check_skips.py RESULTS.xml NUMBER

RESULTS.xml is the output of `pytest --junit-xml RESULTS.xml`. A new skip hides a claim that is no longer tested. If
there are fewer skips, lower the expected number.
"""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def reasons_in(results: Path) -> Counter[str]:
    """Return the reasons of the skipped tests in a JUnit XML file, with the number of tests for each."""
    skips = (skip for skip in ElementTree.parse(results).iter("skipped") if skip.get("type") == "pytest.skip")
    return Counter(skip.get("message", "") for skip in skips)


def main() -> None:
    """Compare the numbers, and exit with 1 if they differ."""
    found, expected = reasons_in(Path(sys.argv[1])), int(sys.argv[2])
    for reason, number in found.most_common():
        print(f"skipped: {number} × {reason}")
    if found.total() != expected:
        raise SystemExit(f"skipped tests: {found.total()}, expected: {expected}")


if __name__ == "__main__":
    main()
