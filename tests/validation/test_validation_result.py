"""Tables of a comparison with published values, of rows by hand."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.validation import validation_result
from ppsim.validation.error_summary import ErrorSummary
from ppsim.validation.validation_result import ValidationReport, rows_of, validate_sets


def time_row(**fields: Any) -> dict[str, Any]:
    return {
        "table": "3", "title": "Llama", "schedule": "zb-h1", "gpus": 24, "cluster": "dgx-h100", "dtype": "float8",
        "use": "fit", "measured_s": 2.0, "projected_s": 1.5, "error": -0.25, "constant_mfu_error": 0.125,
        "other_error": None, **fields,
    }  # fmt: skip


def test_a_row_of_time_has_its_seconds() -> None:
    (number,) = rows_of([{"set": "s", "order_only": True, "rows": [time_row()]}]).to_dict("records")
    assert math.isnan(number.pop("other_error"))
    assert number == {
        "set": "s", "table": "3", "title": "Llama", "schedule": "zb-h1", "gpus": 24, "cluster": "dgx-h100",
        "dtype": "float8", "use": "fit", "quantity": "time", "measured": 2.0, "projected": 1.5, "error": -0.25,
        "constant_mfu_error": 0.125, "order_only": True,
    }  # fmt: skip


def test_a_row_of_memory_has_its_bytes_and_one_of_measured_costs_no_cluster() -> None:
    row = time_row(measured_bytes=7.0, projected_bytes=5.0)
    for name in ("measured_s", "projected_s", "schedule", "cluster", "dtype"):
        del row[name]
    (number,) = rows_of([{"set": "s", "rows": [row]}]).to_dict("records")
    names = ("quantity", "measured", "projected", "schedule", "cluster", "dtype", "order_only")
    assert [number[name] for name in names] == ["memory", 7.0, 5.0, "1f1b", "", "", False]


def test_scores_are_of_sets_with_rows() -> None:
    summaries = {"a": ErrorSummary(2, 0.1, 0.2, -0.3), "b": ErrorSummary(0, 0.0, 0.0, 0.0)}
    sets: Any = [
        SimpleNamespace(name=name, rows=[0] * summary.num_rows, score=summary)
        for name, summary in summaries.items()
    ]
    report = ValidationReport(sets)
    assert report.scores().to_dict("index") == {
        "a": {"num_rows": 2, "mean": 0.1, "mean_absolute": 0.2, "worst": -0.3}
    }
    assert report.one_line == "a: 2 rows, b: 0 rows"


def test_hardware_counts_the_times_inside_their_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    def hardware(dtype: str, coverage: tuple[int, int] | None) -> SimpleNamespace:
        return SimpleNamespace(
            cluster="c", dtype=dtype, kind="MoE", score=ErrorSummary(5, 0.1, 0.2, -0.3),
            constant_mfu=ErrorSummary(5, 0.4, 0.5, 0.6), coverage=coverage,
        )  # fmt: skip

    monkeypatch.setattr(
        validation_result, "hardware_scores", lambda sets: [hardware("a", (3, 5)), hardware("b", None)]
    )
    rows = ValidationReport([]).by_hardware().to_dict("records")
    assert rows == [
        {"cluster": "c", "dtype": dtype, "kind": "MoE", "num_rows": 5, "mean": 0.1, "mean_absolute": 0.2,
         "worst": -0.3, "constant_mfu": 0.5, "inside": inside}
        for dtype, inside in (("a", 3), ("b", 0))
    ]  # fmt: skip


def test_every_set_is_announced_and_compared_unless_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation_result, "case_sets", lambda: {"a": None, "b": None})
    monkeypatch.setattr(validation_result, "validate_set", lambda name, plan_of: (name, plan_of))
    announced: list[str] = []
    plan_of: Any = dict
    assert validate_sets(None, plan_of, announce=announced.append).sets == [("a", dict), ("b", dict)]
    assert validate_sets("b", plan_of, announce=announced.append).sets == [("b", dict)]
    assert announced == ["a", "b", "b"]
