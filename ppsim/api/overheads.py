"""Calibrated overheads of a run beyond compute and transfers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.runs.calibrate import Calibration
from ppsim.simulation.cost_files import Overheads, read_overheads


def overheads_of(given: str | Path | Calibration) -> Overheads:
    """Return the overheads of a calibration or of its file."""
    if not isinstance(given, Calibration):
        return read_overheads(given)
    constants = {name: fit.value for name, fit in given.fits.items() if fit is not None}
    spreads = given.spreads.action, given.spreads.rank, given.spreads.factors
    return Overheads(constants, given.line, *spreads, given.communication, given.fitted_runs)


def plan_fields_of(given: str | Path | Calibration, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan fields (and `runtime`) that overheads set, unless `options` set them.

    Raises `ConfigError` if `launch_ms` is given too, because measured actions include their launches.
    """
    if options["launch_ms"] is not None:
        raise ConfigError("--launch-ms and --overheads say the same twice: give one of them")
    fitted = overheads_of(given)
    found: dict[str, Any] = {**fitted.constants, **fitted.spreads}
    if options["runtime"] is None and fitted.communication != "overlap":
        found["runtime"] = "megatron"
    if fitted.line and options.get("transfer_ms") is None:
        found["hop_overhead_s"], found["bandwidth_bytes_per_s"] = fitted.line
    if fitted.fitted_runs:
        found["fitted_runs"] = fitted.fitted_runs
    return found
