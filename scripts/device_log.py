"""Summarise clocks, power and temperature of a GPU during measurements of profiles, and add them to the profiles.

    python scripts/device_log.py device.csv                      the whole log
    python scripts/device_log.py device.csv profiles/*.json      for the time of each profile, into its provenance
    python scripts/device_log.py --fields                        the fields to query from nvidia-smi

The log is the output of nvidia-smi, with a line every 200 ms. `scripts/gpu_session.sh` records it:

    nvidia-smi --query-gpu=FIELDS --format=csv,noheader,nounits -lms 200

Needs neither torch nor pydantic.
"""

import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ppsim.base.files import read_json, to_json, write_atomically
from ppsim.base.units import percent
from ppsim.profiling.settings import summarise_samples

FIELDS = (
    "timestamp,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu,"
    "clocks_event_reasons.active"
)
_QUANTITIES = {"sm_clock_mhz": 2, "memory_clock_mhz": 3, "power_w": 4, "temperature_c": 5}
"""Columns of `FIELDS`."""

_UTILIZATION, _REASONS = 6, 7
_REASON_LENGTH = len("0x0000000000000004")
_BUSY_PERCENT = 50.0
_HELD_BACK = {
    0x04: "power cap", 0x08: "hardware slowdown", 0x10: "sync boost", 0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown", 0x80: "hardware power brake",
}  # fmt: skip
"""Bits of `nvmlClocksEventReasons` that reduce the clock (nvml.h)."""


def under_load(path: str | Path, spans: Sequence[Sequence[float]] | None = None) -> dict[str, Any] | None:
    """Return medians and quartiles of clocks, power and temperature under load, in the format of a profile.

    Only samples of a busy GPU count; without any, the result is None. `spans` are pairs of seconds since the epoch;
    None means the whole log. `held_back` has the fraction of samples in which each reason reduced the clock.
    Incomplete lines and lines without numbers are skipped.
    """
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    rows = [row for line in lines if (row := _sample_of(line)) is not None]
    rows = [row for row in rows if spans is None or any(begin <= row[0] <= end for begin, end in spans)]
    rows = [row for row in rows if row[_UTILIZATION] >= _BUSY_PERCENT]
    if not rows:
        return None
    found: dict[str, Any] = {"driver": rows[0][1], "num_samples": len(rows)}
    for name, column in _QUANTITIES.items():
        found[name] = summarise_samples([row[column] for row in rows])
    parts = {why: sum(bool(row[_REASONS] & bit) for row in rows) / len(rows) for bit, why in _HELD_BACK.items()}
    return found | {"held_back": {why: part for why, part in parts.items() if part}}


def _sample_of(line: str) -> list[Any] | None:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells[-1]) != _REASON_LENGTH:  # the last line may be cut off
        return None
    try:
        at = datetime.datetime.strptime(cells[0], "%Y/%m/%d %H:%M:%S.%f").timestamp()
        return [at, cells[1], *map(float, cells[2:_REASONS]), int(cells[_REASONS], 16)]
    except (ValueError, IndexError):
        return None


def in_words(found: dict[str, Any] | None) -> str:
    """Return the line to print for a summary."""
    if found is None:
        return "no sample of a busy GPU"
    clock = found["sm_clock_mhz"]
    text = f"{clock['median']:.0f} MHz ({clock['low']:.0f}–{clock['high']:.0f})"
    text += f", {found['power_w']['median']:.0f} W, {found['temperature_c']['median']:.0f} °C"
    reasons = ", ".join(f"{why} in {percent(part)}" for why, part in found["held_back"].items())
    return f"{text}, held back by {reasons or 'nothing'}; {found['num_samples']} samples"


def main(log: str, profiles: Sequence[str]) -> None:
    """Print one line per profile, or one for the whole log."""
    if not profiles:
        print(f"{log}: {in_words(under_load(log))}")
    for path in profiles:
        content = read_json(path)
        provenance = content["provenance"]
        found = under_load(log, provenance.get("measured_at", []))
        if found is not None:
            write_atomically(path, to_json(content | {"provenance": provenance | {"under_load": found}}))
        print(f"{path}: {in_words(found)}")


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("give the log, and the paths of profiles")
    if sys.argv[1] == "--fields":
        print(FIELDS)
    else:
        main(sys.argv[1], sys.argv[2:])
