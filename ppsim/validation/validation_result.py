"""Result of `ppsim validate`."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ppsim.base.display import Printable
from ppsim.validation.error_summary import SetValidation, hardware_scores, validate_set
from ppsim.validation.project_case import PlanOf
from ppsim.validation.published_runs import case_sets
from ppsim.validation.table_rows import rows_of

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
        return ", ".join(f"{one.name}: {len(one.rows)} rows" for one in self.sets)

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame, one row per published value; see `ppsim.validation.table_rows.rows_of`.

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

        rows = [{"set": one.name, **asdict(one.score)} for one in self.sets if one.rows]
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
            {"cluster": one.cluster, "dtype": one.dtype, "kind": one.kind, **asdict(one.score),
             "constant_mfu": one.constant_mfu.mean_absolute,
             "inside": one.coverage[0] if one.coverage else 0}
            for one in hardware_scores(self.sets)
        ]  # fmt: skip
        return pandas.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        return {"sets": [one.to_json() for one in self.sets]}


def validate_sets(name: str | None, plan_of: PlanOf, *, announce: Callable[[str], None]) -> ValidationReport:
    found = []
    for one in case_sets() if name is None else [name]:
        announce(one)
        found.append(validate_set(one, plan_of))
    return ValidationReport(found)
