"""Project, run and compare on this machine: write the sections of docs/validation-results.md on step times.

    python scripts/closed_loop               all parts, into the page and CSV files: 20 minutes on two idle cores
    python scripts/closed_loop real --print  print one part

Errors are projected / measured − 1: negative errors are optimistic.
"""

import argparse
import re
import sys
from pathlib import Path

import emulated
import real

from ppsim.base.files import csv_text, write_atomically

PAGE = Path(__file__).parents[2] / "docs" / "validation-results.md"
PARTS = {
    "real": (real.section, "real_loops.csv"),
    "grid": (emulated.grid_section, "emulated_grid.csv"),
    "channels": (emulated.channel_section, "emulated_channels.csv"),
}
"""Per part, the function that runs it and the file of its rows in docs/results/."""


def main() -> None:
    """Run the requested parts, and write each into its section of the page, or print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--print", action="store_true", dest="only_print", help="leave the page as it is")
    arguments = parser.parse_args()
    for name in arguments.parts or PARTS:
        print(f"closed loop: {name}", file=sys.stderr)
        section, file_name = PARTS[name]
        text, rows = section()
        print(text)
        if arguments.only_print:
            print(csv_text(rows), end="")
        else:
            write_atomically(PAGE.parent / "results" / file_name, csv_text(rows))
            write_atomically(PAGE, replaced(PAGE.read_text(encoding="utf-8"), name, text))


def replaced(page: str, name: str, text: str) -> str:
    """Return the page with the text between the marks of a part replaced.

    >>> replaced("a\\n<!-- real -->\\nold\\n<!-- /real -->\\nb", "real", "new\\n")
    'a\\n<!-- real -->\\n\\nnew\\n\\n<!-- /real -->\\nb'
    """
    marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not marks.search(page):
        raise SystemExit(f"{PAGE.name} has no part marked {name}")
    return marks.sub(lambda found: f"{found[1]}\n{text.strip()}\n\n{found[2]}", page)


if __name__ == "__main__":
    main()
