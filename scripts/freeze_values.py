"""Regenerate the frozen values of the tests, after an intended change of results.

    python scripts/freeze_values.py [TOPIC …]

`git diff --stat tests/frozen` then shows the changed topics, and `git diff` the changes. The topic `configs` needs
the archive of trainer configurations: `--configs FILE`.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from ppsim.base.files import write_atomically  # noqa: E402
from tests.frozen.values import FOLDER, TOPICS, configs  # noqa: E402


def main() -> None:
    """Write the files of the topics."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help="default: all of them")
    parser.add_argument("--configs", type=Path, metavar="FILE", help="archive of trainer configurations")
    given = parser.parse_args()
    for topic in given.topics or TOPICS:
        write(topic, TOPICS[topic]())
    if given.configs:
        write("configs", configs(given.configs))


def write(topic: str, found: dict[str, Any]) -> None:
    """Write a topic, one line per key."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
    write_atomically(FOLDER / f"{topic}.json", "{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{topic}: {len(found)} values")


if __name__ == "__main__":
    main()
