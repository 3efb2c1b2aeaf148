"""Files of costs and of overheads: JSON in SI units, converted to and from `StageCosts`."""

from dataclasses import MISSING, dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ppsim.base.arrays import Numbers
from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import AboveZero, Count, Matrix, NonNegative, OneOrMany, Strict, retyped, validated
from ppsim.base.files import naming, read_json
from ppsim.schedule.choices import Communication
from ppsim.simulation.stage_costs import MATRICES, OVERHEADS, PAIRS, StageCosts


class _Link(Strict):
    latency_s: NonNegative = 0.0
    bytes: NonNegative
    bandwidth_bytes_per_s: AboveZero

    @property
    def seconds(self) -> float:
        return self.latency_s + self.bytes / self.bandwidth_bytes_per_s


_TYPES: dict[Any, Any] = {Numbers: OneOrMany, Numbers | None: OneOrMany | None, float: NonNegative}
"""File type of a field, by its type in `StageCosts`; choices have the same type in both."""

_PARTS = {"backward_input_s", "backward_weight_s"}
_Costs = retyped(
    Strict,
    {one.name: _TYPES.get(one.type, one.type) for one in fields(StageCosts)},
    {one.name: one.default for one in fields(StageCosts) if one.default is not MISSING and one.name not in _PARTS},
)


def _model_of(data: Any) -> type[Strict]:
    """Return the schema of a costs file: fields given as lists of lists are matrices of stages and microbatches."""
    if not isinstance(data, dict):
        return _Costs
    others: dict[str, Any] = {
        name: Matrix for name in (*MATRICES, *PAIRS)
        if isinstance(value := data.get(name), list) and any(isinstance(one, list) for one in value)
    }  # fmt: skip
    if isinstance(data.get("transfer_s"), dict):
        others["transfer_s"] = _Link  # link instead of seconds
    return retyped(_Costs, others) if others else _Costs


class _Samples(Strict):
    num: Count
    quartiles: list[float]
    deviation: NonNegative | None = None


class _Hops(_Samples):
    message_bytes: NonNegative | None
    hop_s: float


class _Residual(Strict):
    source: str
    measured_step_s: NonNegative
    projected_step_s: NonNegative
    error: float
    error_without: float
    slow_links: list[str] = field(default_factory=list)


class _Overheads(Strict):
    format: Literal["ppsim-overheads/1"] = "ppsim-overheads/1"
    action_overhead_s: NonNegative
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
    fitted_on: dict[str, Any] = field(default_factory=dict)  # early files: only this and the first two fields


@dataclass(frozen=True)
class Overheads:
    """Content of an overheads file: fields of `StageCosts`, and a link (latency in s, bandwidth in bytes/s).

    `line` is the link or None. `action_spread` and `rank_spread` are the relative standard deviations of actions
    and of ranks; `pass_factors` are the action times of a typical step relative to their medians. They are None if
    not fitted. `communication` is the trainer's way of communicating. `fitted_runs` are the fingerprints of the
    runs used for fitting (`Run.fingerprint`), empty if unknown.
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
        """The fitted variations of actions and ranks, by field name of a plan."""
        named = ("action_spread", "rank_spread", "pass_factors")
        return {name: value for name in named if (value := getattr(self, name)) is not None}


def costs_from(data: Any, source: str = "costs") -> StageCosts:
    """Return the costs in a parsed JSON object; raises `ConfigError` with every wrong key."""
    if isinstance(data, dict) and data.get("backward_s") is not None and not data.keys() & _PARTS:
        data = data | dict.fromkeys(_PARTS)  # for tables without split backwards
    given = dict(vars(validated(_model_of(data), data, source)))
    if isinstance(link := given["transfer_s"], _Link):
        given["transfer_s"] = link.seconds
    with naming(source):
        return StageCosts(**given)


def costs_to_json(costs: StageCosts) -> dict[str, Any]:
    """Return the JSON object of these costs, the inverse of `costs_from`."""

    def plain(value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        array = np.atleast_1d(np.asarray(value, dtype=np.float64))
        return float(array.flat[0]) if array.size == 1 else array.tolist()

    return {one.name: plain(getattr(costs, one.name)) for one in fields(StageCosts)}


def read_costs(path: str | Path) -> StageCosts:
    """Read a `--costs` file; raises `ConfigError` with the file name and all errors in it.

    Without pydantic, which may be missing on a machine with accelerators, only the checks of `StageCosts` apply.
    """
    data = read_json(path, made_by="a costs file has forward_s, backward_input_s and backward_weight_s")
    if find_spec("pydantic") is not None:
        return costs_from(data, str(path))
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is wrong: the whole must be a JSON object")
    try:
        return StageCosts(**data)
    except (TypeError, ConfigError) as error:
        raise ConfigError(f"{path} is wrong: {str(error).removeprefix('StageCosts.__init__() ')}") from None


def message_bytes_in(path: str | Path) -> float | None:
    """Return the message size in bytes if a `--costs` file describes its link, or None."""
    link = read_json(path).get("transfer_s")
    return float(link["bytes"]) if isinstance(link, dict) else None


_FITTED_BY = "ppsim calibrate writes overheads with -o NAME.json"


def read_overheads(path: str | Path) -> Overheads:
    """Read a file written by `ppsim calibrate`; constants that could not be fitted are omitted."""
    fitted = validated(_Overheads, read_json(path, made_by=_FITTED_BY), str(path))
    names = (*OVERHEADS, "message_overhead_s")
    factors = tuple(fitted.pass_factors) if fitted.pass_factors else None
    others = fitted.action_spread, fitted.rank_spread, factors, fitted.communication, tuple(fitted.fitted_runs)
    constants = {name: value for name in names if (value := getattr(fitted, name)) is not None}
    if fitted.latency_s is None or fitted.bandwidth_bytes_per_s is None:
        return Overheads(constants, None, *others)
    return Overheads(constants, (fitted.latency_s, fitted.bandwidth_bytes_per_s), *others)
