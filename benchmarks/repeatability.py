"""Profile twice, in separate processes, and print the differences of the medians.

    python benchmarks/repeatability.py --model llama-mini --seq-len 128

Arguments are the options of `ppsim profile` without the output. Run it on an idle machine: the load before each run
is printed.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PASSES = {"F": "forward_s", "B": "backward_s", "I": "backward_input_s", "W": "backward_weight_s"}


def profiled(path: Path, arguments: list[str]) -> dict[str, Any]:
    print(f"load {os.getloadavg()[0]:.2f}", flush=True)
    command = [sys.executable, "-m", "ppsim", "profile", *arguments, "-o", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return dict(json.loads(path.read_text()))


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, str, float, float, float]]:
    """Return component, action, median, relative interquartile range of the first, and the second's difference."""
    rows = []
    for one, other in zip(first["measurements"], second["measurements"], strict=True):
        for title, name in PASSES.items():
            if one[name] and one[name]["median"] > 1e-6:  # I of stage 0 does nothing
                median, spread = one[name]["median"], one[name]["high"] - one[name]["low"]
                change = other[name]["median"] / median - 1
                rows.append((one["component"], title, median, spread / median, change))
    for one, other in zip(first["optimizer"], second["optimizer"], strict=True):
        median, spread = one["step_s"]["median"], one["step_s"]["high"] - one["step_s"]["low"]
        title = f"{one['optimizer']} step"
        rows.append((one["component"], title, median, spread / median, other["step_s"]["median"] / median - 1))
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, second = (profiled(Path(folder) / f"{name}.json", sys.argv[1:]) for name in ("first", "second"))
    rows = differences(first, second)
    print(f"{'component':10} {'pass':10} {'median':>10} {'quartiles':>10} {'difference':>10}")
    for component, title, median, spread, change in rows:
        print(f"{component:10} {title:10} {1e3 * median:7.3f} ms {100 * spread:8.1f} % {100 * change:+8.1f} %")
    component, title, *_, change = max(rows, key=lambda row: abs(row[-1]))
    print(f"largest difference: {100 * abs(change):.1f} % ({title} of {component})")


if __name__ == "__main__":
    main()
