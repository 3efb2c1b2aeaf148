"""Options of a plan from a calibration (`--calibration`)."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.machine.cluster import Cluster
from ppsim.machine.cluster_files import cluster_named, load_cluster
from ppsim.runs.calibrate import FittedOverheads
from ppsim.runs.calibration_file import Overheads, read_calibration


def overheads_of(given: str | Path | FittedOverheads) -> Overheads | None:
    """Return None if the calibration has only constants of a cluster."""
    if isinstance(given, FittedOverheads):
        constants = {name: fit.value for name, fit in given.fits.items() if fit is not None}
        spreads = given.spreads.action, given.spreads.rank, given.spreads.factors
        return Overheads(constants, given.line, *spreads, given.communication, given.fitted_runs)
    return read_calibration(given).overheads


def calibrated_cluster(
    given: str | Path | FittedOverheads, cluster: str | Path | Cluster | None
) -> str | Path | Cluster | None:
    """Return the calibration in place of the cluster, if the calibration has constants of a cluster.

    Raises `ConfigError` if these constants extend another cluster than `cluster`.
    """
    if isinstance(cluster, Cluster) or isinstance(given, FittedOverheads):
        return cluster
    base = read_calibration(given).base
    if base is None:
        return cluster
    if cluster is not None and load_cluster(cluster) != load_cluster(_path_of(base, given)):
        raise ConfigError(f"{given} has constants of {base}, not of {cluster}: leave out --cluster {cluster}")
    return given


def _path_of(base: str, file: str | Path) -> str:
    return base if cluster_named(base) == base and not Path(base).suffix else os.path.join(Path(file).parent, base)


def plan_fields_of(given: str | Path | FittedOverheads, options: Mapping[str, Any]) -> dict[str, Any]:
    """Raises `ConfigError` if `launch_ms` is given too, because measured actions include their launches."""
    fitted = overheads_of(given)
    if fitted is None:
        return {}
    if options["launch_ms"] is not None:
        raise ConfigError("--launch-ms and the overheads of --calibration say the same twice: give one of them")
    plan_fields: dict[str, Any] = {**fitted.constants, **fitted.spreads}
    if options["runtime"] is None and fitted.communication != "overlap":
        plan_fields["runtime"] = "megatron"
    if fitted.line and options.get("transfer_ms") is None:
        plan_fields["hop_overhead_s"], plan_fields["bandwidth_bytes_per_s"] = fitted.line
    if fitted.fitted_runs:
        plan_fields["fitted_runs"] = fitted.fitted_runs
    return plan_fields
