"""Real compute: the loop of docs/howto/torch.md, its commands typed as they stand, in empty folders."""

import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from summary import row, summed_up

import ppsim
from ppsim.base.units import percent, seconds, signed_percent

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "torch.md"
LOOP = ("profile", "project", "train", "compare")
NUM_LOOPS = 5


@dataclass(frozen=True)
class Loop:
    """One: projected step, the measured run's steps, each in seconds, and the processes that waited for a core."""

    projected_s: float
    replay_error: float
    measured_s: float
    steps_s: list[float]
    load: float

    @property
    def error(self) -> float:
        """Projected / measured - 1."""
        return self.projected_s / self.measured_s - 1

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
        errors = f"{signed_percent(one.error)}, replay {signed_percent(one.replay_error)}"
        told = f"{errors}, half of the steps within {percent(one.spread)}, load {one.load:.1f}"
        print(f"loop {number + 1} of {NUM_LOOPS}: {told}", file=sys.stderr)
    lines = [
        "<!-- not run: docs/howto/torch.md runs them -->\n```sh",
        *commands,
        "```\n",
        row(["loop", "measured (min–max)", "half of the steps within", "projected", "error", "replay", "load"]),
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for number, loop in enumerate(loops, start=1):
        between = f"{seconds(min(loop.steps_s))}–{seconds(max(loop.steps_s))}"
        lines.append(
            row([
                str(number), f"{seconds(loop.measured_s)} ({between})", percent(loop.spread),
                seconds(loop.projected_s), signed_percent(loop.error), signed_percent(loop.replay_error),
                f"{loop.load:.1f}",
            ])
        )  # fmt: skip
    steps = [loop.measured_s for loop in loops]
    own = (max(steps) - min(steps)) / statistics.median(steps)
    lines.append(f"\nProjected: {summed_up([loop.error for loop in loops])}.")
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
    """Run the loop once; the commands write projected.json and measured.json."""
    with tempfile.TemporaryDirectory() as folder:
        for command in commands:
            words = [sys.executable, "-m", *shlex.split(command)]
            subprocess.run(words, cwd=folder, check=True, capture_output=True)
        load = os.getloadavg()[0]
        projected, measured = (
            json.loads(Path(folder, name).read_text()) for name in ("projected.json", "measured.json")
        )
        comparison = ppsim.compare(Path(folder, "measured.json"))
    return Loop(
        projected["step_time_s"],
        comparison.replay_error,
        measured["step_time_s"],
        measured["run"]["step_times_s"],
        load,
    )
