"""Regenerate the frozen values of the tests, after an intended change of results.

    python scripts/freeze_values.py [TOPIC …] [--why TEXT]

For each topic and measure it prints the number of changed values, the median and the largest relative change, and
for each topic the ten largest changes. Changes above 1e-6 need the reason, `--why TEXT`, which is appended to
tests/frozen/CHANGES.md with the table. The topic `configs` needs the archive of trainer configurations:
`--configs FILE`.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from ppsim.base.files import write_atomically  # noqa: E402
from tests.frozen.comparison import Change, changes, frozen_values  # noqa: E402
from tests.frozen.values import FOLDER, TOPICS, Entries, configs  # noqa: E402

NEEDS_A_REASON = 1e-6
NUM_LARGEST = 10
REASONS = FOLDER / "CHANGES.md"


def main() -> None:
    """Compare, and write the files of the topics and the reason if it is given or not needed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="default: all of them")
    parser.add_argument("--configs", type=Path, metavar="FILE", help="archive of trainer configurations")
    parser.add_argument("--why", metavar="TEXT", help="reason of changes above 1e-6")
    given = parser.parse_args()
    now = {topic: json.loads(json.dumps(TOPICS[topic]())) for topic in given.topics or TOPICS}
    if given.configs:
        now["configs"] = configs(given.configs)
    changed = {topic: list(changes(frozen_values(topic), found)) for topic, found in now.items()}
    table = [line for topic, found in changed.items() for line in summary(topic, found)]
    for topic, found in changed.items():
        print(f"{topic}: {len(found)} values changed, {len(now[topic])} entries")
        for one in largest(found):
            print(f"  {one}")
    print("\n".join(table))
    is_large = any(one.relative > NEEDS_A_REASON for found in changed.values() for one in found)
    if is_large and not given.why:
        raise SystemExit("values changed by more than 1e-6: nothing was written; give the reason with --why TEXT")
    for topic, found in now.items():
        write(topic, found)
    if is_large:
        write_reason(given.why, table)


def summary(topic: str, found: list[Change]) -> list[str]:
    """Return a row per measure: its number of changed values, median and largest relative change."""
    by_measure: dict[str, list[float]] = {}
    for one in found:
        by_measure.setdefault(one.measure, []).append(one.relative)
    return [
        f"| {topic} | {measure} | {len(sizes)} | {statistics.median(sizes):.2g} | {max(sizes):.2g} |"
        for measure, sizes in sorted(by_measure.items())
    ]


def largest(found: list[Change]) -> list[Change]:
    """Return the changes with the largest relative sizes."""
    return sorted(found, key=lambda one: -one.relative)[:NUM_LARGEST]


def write_reason(why: str, table: list[str]) -> None:
    """Append the reason and the table to CHANGES.md."""
    before = REASONS.read_text(encoding="utf-8") if REASONS.exists() else "# Changes of frozen values\n"
    head = ["| topic | measure | changed values | median relative change | largest |", "|---|---|--:|--:|--:|"]
    write_atomically(REASONS, before + "\n".join(["", why, "", *head, *table, ""]))


def write(topic: str, found: Entries) -> None:
    """Write a topic, one line per entry."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
    write_atomically(FOLDER / f"{topic}.json", "{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
