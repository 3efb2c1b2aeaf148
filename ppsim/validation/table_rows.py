"""Table of the rows of validation sets, for figures and spreadsheets."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_json

if TYPE_CHECKING:
    import pandas


def rows_of(sets: Sequence[dict[str, Any]]) -> "pandas.DataFrame":
    """Sets are in the form of `ppsim.validation.error_summary.SetValidation.to_json`.

    Measured and projected are seconds or bytes, error is projected / measured − 1. constant_mfu_error and
    other_error are of a constant MFU and of another tool on the same row (NaN: none).
    """
    import pandas

    frame = pandas.DataFrame([_number_of(one, row) for one in sets for row in one["rows"]])
    return frame.astype(dict.fromkeys(("constant_mfu_error", "other_error"), "float64"))


def read_rows(path: str | Path) -> "pandas.DataFrame":
    """Raises `ConfigError` for files that `ppsim validate -o FILE.json` did not write."""
    found = read_json(path, made_by="ppsim validate writes a validation with -o NAME.json")
    try:
        rows = rows_of(found["sets"]).astype(_KINDS)
        are_above_zero = rows[["measured", "projected"]].gt(0).all(axis=None)
        if not are_above_zero or not rows[_NUMBERS].abs().lt(1e30).all(axis=None):
            raise ValueError("a time or a size is more than 0 and finite")
    except (LookupError, TypeError, ValueError, OverflowError, AttributeError):
        raise ConfigError(
            f"{path} contains no validation results: ppsim validate writes them with -o NAME.json"
        ) from None
    return rows


_NUMBERS = ["measured", "projected", "error"]
_KINDS = (
    dict.fromkeys(("set", "table", "title", "schedule", "use"), str)
    | dict.fromkeys(_NUMBERS, float)
    | {"order_only": bool}
)


def _number_of(one: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    unit, quantity = ("s", "time") if "measured_s" in row else ("bytes", "memory")
    return {
        "set": one["set"],
        "table": row["table"],
        "title": row["title"],
        "schedule": row.get("schedule", "1f1b"),
        "gpus": row["gpus"],
        "cluster": row.get("cluster", ""),
        "dtype": row.get("dtype", ""),
        "use": row["use"],
        "quantity": quantity,
        "measured": row[f"measured_{unit}"],
        "projected": row.get(f"projected_{unit}", row.get(f"predicted_{unit}")),  # 0.3.0.dev0 wrote predicted_…
        "error": row["error"],
        "constant_mfu_error": row["constant_mfu_error"],
        "other_error": row["other_error"],
        "order_only": one.get("order_only", False),
    }
