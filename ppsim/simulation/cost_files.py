"""Files of costs: JSON in SI units, converted to and from `StageCosts`."""

from dataclasses import MISSING, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ppsim.base.arrays import Numbers
from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import (
    AboveZero,
    FileSchema,
    Matrix,
    NonNegative,
    OneOrMany,
    validated,
    with_field_types,
)
from ppsim.base.files import prefix_errors, read_json
from ppsim.simulation.stage_costs import MATRICES, PAIRS, StageCosts


class _Link(FileSchema):
    latency_s: NonNegative = 0.0
    bytes: NonNegative
    bandwidth_bytes_per_s: AboveZero

    @property
    def seconds(self) -> float:
        return self.latency_s + self.bytes / self.bandwidth_bytes_per_s


_TYPES: dict[Any, Any] = {Numbers: OneOrMany, Numbers | None: OneOrMany | None, float: NonNegative}
"""Type in the file, by the type in `StageCosts`."""

_PARTS = {"backward_input_s", "backward_weight_s"}
_Costs = with_field_types(
    FileSchema,
    {field.name: _TYPES.get(field.type, field.type) for field in fields(StageCosts)},
    {one.name: one.default for one in fields(StageCosts) if one.default is not MISSING and one.name not in _PARTS},
)


def _model_of(data: Any) -> type[FileSchema]:
    """Return the schema for `data`: matrices for lists of lists, a link if `transfer_s` is an object."""
    if not isinstance(data, dict):
        return _Costs
    others: dict[str, Any] = {
        name: Matrix for name in (*MATRICES, *PAIRS, "slow_links")
        if isinstance(value := data.get(name), list) and any(isinstance(one, list) for one in value)
    }  # fmt: skip
    if isinstance(data.get("transfer_s"), dict):
        others["transfer_s"] = _Link  # link instead of seconds
    return with_field_types(_Costs, others) if others else _Costs


def costs_from(data: Any, source: str = "costs") -> StageCosts:
    if isinstance(data, dict) and data.get("backward_s") is not None and not data.keys() & _PARTS:
        data = data | dict.fromkeys(_PARTS)  # for tables without split backwards
    given = dict(vars(validated(_model_of(data), data, source)))
    if isinstance(link := given["transfer_s"], _Link):
        given["transfer_s"] = link.seconds
    with prefix_errors(source):
        return StageCosts(**given)


def costs_to_json(costs: StageCosts) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        array = np.atleast_1d(np.asarray(value, dtype=np.float64))
        return float(array.flat[0]) if array.size == 1 else array.tolist()

    return {one.name: plain(getattr(costs, one.name)) for one in fields(StageCosts)}


def read_costs(path: str | Path) -> StageCosts:
    """Read a `--costs` file; without pydantic, only the checks of `StageCosts` apply."""
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
    link = read_json(path).get("transfer_s")
    return float(link["bytes"]) if isinstance(link, dict) else None
