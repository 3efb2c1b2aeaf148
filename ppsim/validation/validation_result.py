"""Result of `ppsim validate`."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ppsim.base.display import Printable
from ppsim.validation.error_summary import SetValidation, hardware_scores, validate_set
from ppsim.validation.project_case import PlanOf
from ppsim.validation.published_runs import case_sets

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class ValidationReport(Printable):
    """Published values compared with projections; errors are projected / measured − 1, negative is optimistic.

    >>> import ppsim
    >>> found = ppsim.validate("zero-bubble")
    >>> len(found.sets[0].rows), round(found.sets[0].score.mean_absolute, 3)
    (24, 0.008)
    """

    sets: list[SetValidation]

    @property
    def one_line(self) -> str:
        return ", ".join(f"{run_set.name}: {len(run_set.rows)} rows" for run_set in self.sets)

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame, one row per published value; see `ppsim.validation.validation_result.rows_of`.

        >>> import ppsim
        >>> ppsim.validate("zero-bubble").to_frame()[["schedule", "quantity"]].iloc[0].tolist()
        ['1f1b', 'time']
        """
        return rows_of(self.to_json()["sets"])

    def scores(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with the errors of each set's test rows, one row per set.

        >>> import ppsim
        >>> ppsim.validate("zero-bubble").scores()["num_rows"].to_dict()
        {'zero-bubble': 14}
        """
        import pandas

        rows = [{"set": run_set.name, **asdict(run_set.score)} for run_set in self.sets if run_set.rows]
        return pandas.DataFrame(rows).set_index("set")

    def by_hardware(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame of the test errors of times, one row per cluster, dtype and kind of model.

        constant_mfu is the mean absolute error of a constant MFU on the same rows; inside is the number of times in
        the 90 % interval.

        >>> import ppsim
        >>> ppsim.validate("dgxc-405b").by_hardware()[["cluster", "dtype", "num_rows"]].values.tolist()
        [['dgxc-h100', 'bfloat16', 1], ['dgxc-h100', 'float8', 1]]
        """
        import pandas

        rows = [
            {"cluster": score.cluster, "dtype": score.dtype, "kind": score.kind, **asdict(score.score),
             "constant_mfu": score.constant_mfu.mean_absolute,
             "inside": score.coverage[0] if score.coverage else 0}
            for score in hardware_scores(self.sets)
        ]  # fmt: skip
        return pandas.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        return {"sets": [run_set.to_json() for run_set in self.sets]}


def validate_sets(name: str | None, plan_of: PlanOf, *, announce: Callable[[str], None]) -> ValidationReport:
    validated = []
    for one in case_sets() if name is None else [name]:
        announce(one)
        validated.append(validate_set(one, plan_of))
    return ValidationReport(validated)


def rows_of(sets: Sequence[dict[str, Any]]) -> "pandas.DataFrame":
    """Sets are in the form of `ppsim.validation.error_summary.SetValidation.to_json`.

    Measured and projected are seconds or bytes, error is projected / measured − 1. constant_mfu_error and
    other_error are of a constant MFU and of another tool on the same row (NaN: none).
    """
    import pandas

    frame = pandas.DataFrame([_number_of(run_set, row) for run_set in sets for row in run_set["rows"]])
    return frame.astype(dict.fromkeys(("constant_mfu_error", "other_error"), "float64"))


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
