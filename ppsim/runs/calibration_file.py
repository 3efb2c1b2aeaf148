"""Calibration files: constants of a cluster (`ppsim fit`) and overheads of a runtime (`ppsim calibrate`)."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import AboveZero, Count, FileSchema, NonNegative, validated
from ppsim.base.files import read_json
from ppsim.machine.cluster_files import CALIBRATION
from ppsim.schedule.option_types import Communication
from ppsim.simulation.stage_costs import OVERHEADS


class _Samples(FileSchema):
    num: Count
    quartiles: list[float]
    deviation: NonNegative | None = None


class _Hops(_Samples):
    message_bytes: NonNegative | None
    hop_s: float


class _Residual(FileSchema):
    source: str
    measured_step_s: NonNegative
    projected_step_s: NonNegative
    error: float
    error_without: float
    slow_links: list[str] = field(default_factory=list)
    note: str = ""


class _Overheads(FileSchema):
    action_overhead_s: NonNegative | None
    hop_overhead_s: NonNegative | None
    overlap_slowdown: NonNegative | None = None
    step_overhead_s: NonNegative | None = None
    latency_s: NonNegative | None = None
    bandwidth_bytes_per_s: AboveZero | None = None
    message_overhead_s: NonNegative | None = None
    first_pass_s: NonNegative | None = None
    last_pass_s: NonNegative | None = None
    action_spread: NonNegative | None = None
    rank_spread: NonNegative | None = None
    pass_factors: list[NonNegative] | None = None
    communication: Communication = "overlap"
    not_fitted: dict[str, str] = field(default_factory=dict)
    samples: dict[str, _Samples] = field(default_factory=dict)
    hops: list[_Hops] = field(default_factory=list)
    residuals: list[_Residual] = field(default_factory=list)
    fitted_runs: list[str] = field(default_factory=list)
    fitted_on: dict[str, Any] = field(default_factory=dict)  # oldest files: only this and the first two fields


class _OldFile(_Overheads):
    format: Literal["ppsim-overheads/1"] = "ppsim-overheads/1"


class _File(FileSchema):
    format: Literal["ppsim-calibration/1"]
    name: str = ""
    base: str | None = None
    title: str = ""
    source: str = ""
    date: str = ""
    constants: dict[str, Any] = field(default_factory=dict)
    overheads: _Overheads | None = None


@dataclass(frozen=True)
class Overheads:
    """Measured overheads: `constants` are fields of `StageCosts`, `line` is latency (s) and bandwidth (bytes/s).

    Spreads are relative standard deviations. `pass_factors` are equally likely ratios of an action's time to its
    median.
    """

    constants: dict[str, float]
    line: tuple[float, float] | None = None
    action_spread: float | None = None
    rank_spread: float | None = None
    pass_factors: tuple[float, ...] | None = None
    communication: Communication = "overlap"
    fitted_runs: tuple[str, ...] = ()

    @property
    def spreads(self) -> dict[str, Any]:
        named = ("action_spread", "rank_spread", "pass_factors")
        return {name: value for name in named if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class CalibrationFile:
    """A calibration; `base` is the cluster to which its constants apply."""

    base: str | None
    overheads: Overheads | None


def read_calibration(path: str | Path) -> CalibrationFile:
    """Read a calibration, or an overheads file of ppsim 0.3.

    The constants of a cluster are not checked here, but by `ppsim.machine.cluster_files.load_cluster`.
    """
    if Path(path).suffix in (".toml", ".yaml", ".yml"):
        raise ConfigError(f"{path} is a cluster file (as of earlier versions of ppsim fit): give it with --cluster")
    data = read_json(path, made_by="ppsim calibrate and ppsim fit write a calibration with -o NAME.json")
    if isinstance(data, dict) and data.get("format") == CALIBRATION:
        content = validated(_File, data, str(path))
        return CalibrationFile(content.base, _overheads(content.overheads) if content.overheads else None)
    return CalibrationFile(None, _overheads(validated(_OldFile, data, str(path))))


def _overheads(fitted: _Overheads) -> Overheads:
    names = (*OVERHEADS, "message_overhead_s")
    factors = tuple(fitted.pass_factors) if fitted.pass_factors else None
    others = fitted.action_spread, fitted.rank_spread, factors, fitted.communication, tuple(fitted.fitted_runs)
    constants = {name: value for name in names if (value := getattr(fitted, name)) is not None}
    if fitted.latency_s is None or fitted.bandwidth_bytes_per_s is None:
        return Overheads(constants, None, *others)
    return Overheads(constants, (fitted.latency_s, fitted.bandwidth_bytes_per_s), *others)


def calibration_json(path: str | Path, part: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a calibration file: `part`, and everything else in the existing file at `path`."""
    kept: dict[str, Any] = {}
    if Path(path).exists():
        try:
            data = read_json(path)
            read_calibration(path)
            kept = data if data.get("format") == CALIBRATION else {"overheads": data}
            kept.get("overheads", {}).pop("format", None)
        except ConfigError:  # not a calibration: overwrite the file
            kept = {}
    date = datetime.now(UTC).date().isoformat()
    content: dict[str, Any] = {"format": CALIBRATION, "name": Path(path).stem}
    return content | kept | {"date": date} | part
