"""Real compute: the loop of docs/howto/torch.md, its commands typed as they stand, in empty folders.

Errors are as seen, and at equal pace: as if the machine had run as fast as while it was profiled, by what the same
work took it beside both.
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

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "torch.md"
LOOP = ("profile", "project", "train", "compare")
NUM_LOOPS = 5


@dataclass(frozen=True)
class Loop:
    """One: what the last command wrote, the measured steps, the processes that waited, what each command took."""

    compared: dict[str, Any]
    steps_s: list[float]
    load: float
    taken_s: list[float]

    @property
    def errors(self) -> dict[str, float]:
        """Projected / measured - 1 as seen and at equal pace, and of a replay."""
        names = {"error": "step_error", "at equal pace": "error_at_pace", "replay": "replay_error"}
        return {title: self.compared[name] for title, name in names.items()}

    @property
    def measured_s(self) -> float:
        """The median step."""
        return float(self.compared["measured_step_time_s"])

    @property
    def cells(self) -> dict[str, str]:
        """A row of the table."""
        low, high = map(seconds, self.compared["projected_interval_s"])
        least, most = seconds(min(self.steps_s)), seconds(max(self.steps_s))
        return {
            "measured (min–max)": f"{seconds(self.measured_s)} ({least}–{most})",
            "half of the steps within": percent(self.spread),
            "projected (90 %)": f"{seconds(self.compared['projected_step_time_s'])} ({low}–{high})",
            "inside": "yes" if self.compared["is_inside"] else "no",
            "pace": f"{self.compared['pace']:.2f}",
            **{title: signed_percent(error) for title, error in self.errors.items()},
            "load": f"{self.load:.1f}",
            "the commands took": ", ".join(f"{taken_s:.0f}" for taken_s in self.taken_s) + " s",
        }

    @property
    def spread(self) -> float:
        """Within what half of the steps are of each other, as a part of the median."""
        low, _, high = statistics.quantiles(self.steps_s, n=4)
        return (high - low) / self.measured_s

    @property
    def uncertainty(self) -> float:
        """The standard deviation of the measured median, were its steps drawn alone, as a part of it."""
        return 1.25 * self.spread / 1.349 / len(self.steps_s) ** 0.5


def section() -> str:
    """Return a row for each loop, and how far off they are."""
    commands = commands_of(PAGE.read_text(encoding="utf-8"))
    loops = []
    for number in range(NUM_LOOPS):
        loops.append(one := run(commands))
        told = ", ".join(f"{title} {cell}" for title, cell in one.cells.items())
        print(f"loop {number + 1} of {NUM_LOOPS}: {told}", file=sys.stderr)
    titles = ["loop", *loops[0].cells]
    lines = [
        "<!-- not run: docs/howto/torch.md runs them -->\n```sh",
        *commands,
        "```\n",
        row(titles),
        f"|{'--:|' * len(titles)}",
        *(row([str(number), *loop.cells.values()]) for number, loop in enumerate(loops, start=1)),
    ]
    steps = [loop.measured_s for loop in loops]
    own = (max(steps) - min(steps)) / statistics.median(steps)
    lines += [
        f"\nProjected, {title}: {summed_up([loop.errors[column] for loop in loops])}."
        for title, column in (("as seen", "error"), ("at equal pace", "at equal pace"))
    ]
    num_inside = sum(loop.compared["is_inside"] for loop in loops)
    lines.append(f"\nInside of the interval of nine of ten: {num_inside} of {len(loops)}.")
    lines.append(
        f"\nThe machine's own spread, {os.cpu_count()} cores: the same step measured in {len(loops)} loops lies "
        f"within {percent(own)}; within a run half of the steps lie within "
        f"{percent(statistics.median(loop.spread for loop in loops))} of each other, so that the median of "
        f"{len(loops[0].steps_s)} is known to ± {percent(statistics.median(loop.uncertainty for loop in loops))}."
    )
    return "\n".join(lines)


def commands_of(page: str) -> list[str]:
    """Return the commands of the loop as a page has them, without what is said behind them.

    >>> commands_of("ppsim train\\nppsim profile -o c.json   # y\\nppsim project\\nppsim train\\nppsim compare\\n")
    ['ppsim profile -o c.json', 'ppsim project', 'ppsim train', 'ppsim compare']
    """
    pattern = r"\n".join(rf"(ppsim {name}\b[^#\n]*)[^\n]*" for name in LOOP)
    if not (found := re.search(pattern, page)):
        raise SystemExit(f"no page has {', '.join(LOOP)} in a row")
    return [command.strip() for command in found.groups()]


def run(commands: list[str]) -> Loop:
    """Run the loop once; the commands write measured.json, and the last one what it found, here as numbers too."""
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
