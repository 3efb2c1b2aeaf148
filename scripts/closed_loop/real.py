"""Real compute: run the commands of docs/howto/own_model.md (profile, project, train, compare) in empty folders.

Errors are given as measured, and at equal speed: corrected for the machine's speed during training relative to its
speed during profiling. Both speeds come from the time of the same reference work.
"""

import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from summary import row, summed_up

from ppsim.base.units import percent, seconds, signed_percent

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "own_model.md"
LOOP = ("profile", "project", "train", "compare")
NUM_LOOPS = 5
SHOWN = ("loop", "measured (min–max)", "projected (90 %)", "inside", "error", "at equal speed")
"""Columns of the file that the page shows."""


@dataclass(frozen=True)
class Loop:
    """One run of the commands: JSON of the last command, measured steps, load average, and seconds per command."""

    compared: dict[str, Any]
    steps_s: list[float]
    load: float
    taken_s: list[float]

    @property
    def errors(self) -> dict[str, float]:
        """Projected / measured − 1 as measured and at equal speed, and the error of a replay."""
        names = {"error": "step_error", "at equal speed": "error_at_pace", "replay": "replay_error"}
        return {title: self.compared[name] for title, name in names.items()}

    @property
    def measured_s(self) -> float:
        """The median step."""
        return float(self.compared["measured_step_time_s"])

    @property
    def cells(self) -> dict[str, str]:
        """The row of the file, by column."""
        low, high = map(seconds, self.compared["projected_interval_s"])
        least, most = seconds(min(self.steps_s)), seconds(max(self.steps_s))
        return {
            "measured (min–max)": f"{seconds(self.measured_s)} ({least}–{most})",
            "half of the steps within": percent(self.spread),
            "projected (90 %)": f"{seconds(self.compared['projected_step_time_s'])} ({low}–{high})",
            "inside": "yes" if self.compared["inside_interval"] else "no",
            "pace": f"{self.compared['pace']:.2f}",
            **{title: signed_percent(error) for title, error in self.errors.items()},
            "load": f"{self.load:.1f}",
            "the commands took": ", ".join(f"{taken_s:.0f}" for taken_s in self.taken_s) + " s",
        }

    @property
    def spread(self) -> float:
        """Interquartile range of the steps, relative to the median."""
        low, _, high = statistics.quantiles(self.steps_s, n=4)
        return (high - low) / self.measured_s


def section() -> tuple[str, list[dict[str, str]]]:
    """Return a table with a row per loop and a summary of the errors, and all columns of each row."""
    commands = commands_of(PAGE.read_text(encoding="utf-8"))
    loops, rows = [], []
    for number in range(1, NUM_LOOPS + 1):
        loops.append(one := run(commands))
        rows.append({"loop": str(number), **one.cells})
        told = ", ".join(f"{title} {cell}" for title, cell in one.cells.items())
        print(f"loop {number} of {NUM_LOOPS}: {told}", file=sys.stderr)
    lines = [row(list(SHOWN)), f"|{'--:|' * len(SHOWN)}"]
    lines += [row([cells[title] for title in SHOWN]) for cells in rows]
    steps = [loop.measured_s for loop in loops]
    own = (max(steps) - min(steps)) / statistics.median(steps)
    lines += [
        f"\nErrors{where}: {summed_up([loop.errors[column] for loop in loops])}."
        for where, column in (("", "error"), (" at equal speed", "at equal speed"))
    ]
    num_inside = sum(loop.compared["inside_interval"] for loop in loops)
    lines.append(
        f"\nInside the 90 % interval: {num_inside} of {len(loops)}. "
        f"The median step of the {len(loops)} loops varies by {percent(own)}."
    )
    return "\n".join(lines), rows


def commands_of(page: str) -> list[str]:
    """Return the commands of the loop in a page, without the comments after them.

    >>> commands_of("ppsim train\\nppsim profile -o c.json   # y\\nppsim project\\nppsim train\\nppsim compare\\n")
    ['ppsim profile -o c.json', 'ppsim project', 'ppsim train', 'ppsim compare']
    """
    pattern = r"\n".join(rf"(ppsim {name}\b[^#\n]*)[^\n]*" for name in LOOP)
    if not (found := re.search(pattern, page)):
        raise SystemExit(f"no page has {', '.join(LOOP)} in a row")
    return [command.strip() for command in found.groups()]


def run(commands: list[str]) -> Loop:
    """Run the loop once. The commands write measured.json, and the last command also its result as compare.json."""
    taken_s = []
    with tempfile.TemporaryDirectory() as folder:
        for command in [*commands[:-1], f"{commands[-1]} -o compare.json"]:
            words, begin = [sys.executable, "-m", *shlex.split(command)], time.monotonic()
            subprocess.run(words, cwd=folder, check=True, capture_output=True)
            taken_s.append(time.monotonic() - begin)
        compared, measured = (
            json.loads(Path(folder, name).read_text()) for name in ("compare.json", "measured.json")
        )
    return Loop(compared, measured["run"]["step_times_s"], os.getloadavg()[0], taken_s)
