"""Costs to and from JSON without pydantic, for the machine with the accelerator, which may not have it."""

import dataclasses
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_json
from ppsim.simulation.stage_costs import StageCosts


def costs_to_json(costs: StageCosts) -> dict[str, Any]:
    """Return the JSON object of these costs, the inverse of `ppsim.simulation.cost_schema.costs_from`."""

    def plain(value: Any) -> Any:
        if value is None or isinstance(value, str):
            return value
        array = np.atleast_1d(np.asarray(value, dtype=np.float64))
        return float(array.flat[0]) if array.size == 1 else array.tolist()

    return {field.name: plain(getattr(costs, field.name)) for field in dataclasses.fields(costs)}


def read_costs(path: str | Path) -> StageCosts:
    """Read a `--costs` file; raises `ConfigError` naming the file and what is wrong in it.

    Where pydantic is installed, all that is wrong at once (`ppsim.simulation.cost_schema`); elsewhere what
    `StageCosts` itself refuses.
    """
    if find_spec("pydantic") is not None:
        from ppsim.simulation import cost_schema as files

        return files.read_costs(path)
    data = read_json(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path} is wrong: the whole must be a JSON object")
    try:
        return StageCosts(**data)
    except (TypeError, ConfigError) as error:
        raise ConfigError(f"{path} is wrong: {str(error).removeprefix('StageCosts.__init__() ')}") from None


def message_bytes_in(path: str | Path) -> float | None:
    """Return the bytes of a message where a `--costs` file spells its link out, or None."""
    link = read_json(path).get("transfer_s")
    return float(link["bytes"]) if isinstance(link, dict) else None
