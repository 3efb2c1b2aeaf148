"""What a run adds to compute and transfers, as calibrated."""

from pathlib import Path

from ppsim.runs.calibrate import Calibration
from ppsim.simulation.cost_schema import Overheads, read_overheads


def overheads_of(given: str | Path | Calibration) -> Overheads:
    """Return the overheads of a calibration, or of the file that one was written to."""
    if not isinstance(given, Calibration):
        return read_overheads(given)
    constants = {name: fit.value for name, fit in given.fits.items() if fit is not None}
    spreads = given.spreads.action, given.spreads.rank, given.spreads.factors
    return Overheads(constants, given.line, *spreads, given.communication)
