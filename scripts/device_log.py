"""Say what clocks, power and temperature a GPU had while profiles were measured, and put it into them.

    python scripts/device_log.py device.csv                      the whole log
    python scripts/device_log.py device.csv profiles/*.json      of each profile's own time, into its provenance

`scripts/gpu_session.sh` keeps the log (`ppsim.profiling.device_log`) and calls this. Needs no torch, no pydantic.
"""

import sys
from collections.abc import Sequence
from typing import Any

from ppsim.base.files import read_json, to_json, write_whole
from ppsim.base.units import percent
from ppsim.profiling.device_log import under_load


def in_words(found: dict[str, Any] | None) -> str:
    """Return the line that is printed of one time."""
    if found is None:
        return "no sample of a busy GPU"
    clock = found["sm_clock_mhz"]
    text = f"{clock['median']:.0f} MHz ({clock['low']:.0f}–{clock['high']:.0f})"
    text += f", {found['power_w']['median']:.0f} W, {found['temperature_c']['median']:.0f} °C"
    reasons = ", ".join(f"{why} in {percent(part)}" for why, part in found["held_back"].items())
    return f"{text}, held back by {reasons or 'nothing'}; {found['num_samples']} samples"


def main(log: str, profiles: Sequence[str]) -> None:
    """Print a line a profile, or one for the whole log."""
    if not profiles:
        print(f"{log}: {in_words(under_load(log))}")
    for path in profiles:
        content = read_json(path)
        provenance = content["provenance"]
        found = under_load(log, provenance.get("measured_at", []))
        if found is not None:
            write_whole(path, to_json(content | {"provenance": provenance | {"under_load": found}}))
        print(f"{path}: {in_words(found)}")


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("give the log, and the paths of profiles")
    main(sys.argv[1], sys.argv[2:])
