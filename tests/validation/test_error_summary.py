"""Signed errors, coverage, order and constant MFU of rows by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.projection.plan import Plan
from ppsim.projection.project import outcome_of
from ppsim.validation import error_summary
from ppsim.validation.error_summary import (
    CaseError,
    ErrorSummary,
    SetValidation,
    _best_share,
    _constant_mfu,
    _interval_of,
    _is_in_order,
    coverage_of,
    hardware_scores,
    rank_correlation,
    score_of,
    validate_set,
)
from tests.defaults import number_defaults


def job(dtype: str = "bfloat16", peak: float = 10.0, *, has_experts: bool = False) -> Any:
    """A job of 1,000 FLOPs per token, 20 tokens and 4 GPUs."""
    device = SimpleNamespace(peak=lambda _: peak)
    model = SimpleNamespace(training_flops=lambda length, causal: 1000.0, has_experts=has_experts)
    return SimpleNamespace(
        model=model, length=5, tokens_per_step=20, layout=SimpleNamespace(num_devices=4),
        cluster=SimpleNamespace(device=device, name="own", constants=SimpleNamespace(fitted_on=("a.csv, b.csv",))),
        execution=SimpleNamespace(dtype=dtype),
    )  # fmt: skip


def row(
    measured: float, projected: float, *, use: str = "test", constant: float | None = None, memory: bool = False,
    of: Any = None, other: float | None = None, value: float = 1.0, **fields: Any,
) -> CaseError:  # fmt: skip
    case: Any = SimpleNamespace(is_memory=memory, properties=SimpleNamespace(use=use, other=other, value=value))
    plan: Any = SimpleNamespace(job=of, measured=None)
    return CaseError(case, plan, measured, projected, constant, **fields)


def validated(
    *rows: CaseError, name: str = "own", order_only: bool = False, ranks: dict[str, float] | None = None
) -> SetValidation:
    properties: Any = SimpleNamespace(order_only=order_only)
    return SetValidation(name, properties, list(rows), "", ranks or {}, 0, [])


def test_an_error_is_negative_if_the_projection_is_optimistic() -> None:
    found = row(2.0, 1.5, constant=3.0, other=0.5, value=2.0)
    assert (found.error, found.constant_mfu_error, found.other_error) == (-0.25, 0.5, -0.75)
    assert (row(2.0, 1.5).constant_mfu_error, row(2.0, 1.5).other_error) == (None, None)
    assert [row(1, 1, of=one).kind for one in (None, job(), job(has_experts=True))] == ["dense", "dense", "MoE"]


@pytest.mark.parametrize(
    ("measured", "fields", "is_inside"),
    [
        (1.0, {}, True), (1.01, {}, False), (1.17, {"spread": 0.1}, True), (1.19, {"spread": 0.1}, False),
        (0.85, {"spread": 0.1}, True), (0.84, {"spread": 0.1}, False), (1.5, {"spread": 0.1, "longest_s": 1.5}, True),
        (1.6, {"spread": 0.1, "longest_s": 1.5}, False), (1.17, {"spread": 0.1, "longest_s": 1.1}, True),
        (1.0, {"memory": True}, None),
    ],
)  # fmt: skip
def test_times_are_inside_their_interval_or_not(
    measured: float, fields: dict[str, Any], is_inside: bool | None
) -> None:
    assert row(measured, 1.0, **fields).inside_interval == is_inside


def test_an_interval_ends_at_the_time_of_a_slow_host_or_without_overlap_if_that_is_later() -> None:
    own = ppsim.job(model="llama3-8b", cluster="dgx-b200", gpus=64, cp=2, global_batch=32, cuda_graphs="layer")
    plan = Plan(pp=1, job=own)
    seconds = outcome_of(plan)[0]
    assert 1.05 * seconds < _interval_of(plan, seconds)[1] < 1.5 * seconds
    alone = Plan(pp=1, job=replace(own, overlap_grad_reduce=False, overlap_param_gather=False))
    assert _interval_of(alone, outcome_of(alone)[0])[1] == 0.0


def test_coverage_counts_times_only() -> None:
    assert coverage_of([row(1.0, 1.0), row(2.0, 1.0), row(1.0, 1.0, memory=True)]) == (1, 2)
    assert coverage_of([row(1.0, 1.0, memory=True)]) is None
    assert validated(row(1.0, 1.0)).coverage == (1, 1)
    assert validated(row(1.0, 1.0), order_only=True).coverage is None


def test_scores_are_of_the_test_rows() -> None:
    found = validated(row(1.0, 1.5, use="fit"), row(1.0, 0.8, constant=1.1), row(1.0, 1.1, constant=0.9))
    assert found.score.num_rows == 2
    assert (found.score.mean, found.score.mean_absolute, found.score.worst) == pytest.approx((-0.05, 0.15, -0.2))
    assert found.calibration_score is not None
    assert found.calibration_score.mean == pytest.approx(0.5)
    assert found.constant_mfu is not None
    assert found.constant_mfu.mean_absolute == pytest.approx(0.1)
    only_fit = validated(row(1.0, 1.5, use="fit"))
    assert only_fit.score.mean == pytest.approx(0.5)
    assert validated(row(1.0, 1.0)).calibration_score is None
    assert validated(row(1.0, 1.0), row(1.0, 1.0, constant=1.0)).constant_mfu is None, "not of all rows"
    assert validated(row(1.0, 1.0)).other is None
    assert validated(row(1.0, 1.0), row(1.0, 1.0, other=2.0)).other == score_of([1.0])
    assert score_of([]) == ErrorSummary(0, 0.0, 0.0, 0.0)
    assert validated(ranks={"a": 1.0, "b": 0.5}).mean_rank_correlation == 0.75
    assert validated().mean_rank_correlation is None


def test_clusters_fitted_on_the_rows_themselves_are_named() -> None:
    assert validated(row(1.0, 1.0, of=job()), name="runs/b.csv").clusters_fitted_on_file == ["own"]
    assert validated(row(1.0, 1.0, of=job()), row(1.0, 1.0), name="c.csv").clusters_fitted_on_file == []


def test_hardware_groups_rows_by_cluster_dtype_and_kind() -> None:
    rows = [
        row(1.0, 1.2, constant=1.0, of=job("float8")), row(1.0, 1.1, constant=1.3, of=job()),
        row(1.0, 0.9, constant=1.1, of=job()), row(1.0, 2.0, of=job()), row(1.0, 2.0, constant=1.0),
        row(1.0, 1.5, constant=1.0, of=job(has_experts=True)),
    ]  # fmt: skip
    found = hardware_scores([validated(*rows), validated(rows[0], order_only=True)])
    assert [(one.cluster, one.dtype, one.kind, one.score.num_rows) for one in found] == [
        ("own", "bfloat16", "MoE", 1), ("own", "bfloat16", "dense", 2), ("own", "float8", "dense", 1),
    ]  # fmt: skip
    assert found[1].score.mean_absolute == pytest.approx(0.1)
    assert found[1].constant_mfu.mean_absolute == pytest.approx(0.2)
    assert found[1].coverage == (0, 2)


def test_an_order_is_right_if_all_different_measurements_are() -> None:
    assert _is_in_order([1.0, 2.0, 2.0], [5.0, 7.0, 6.0])
    assert not _is_in_order([1.0, 2.0, 3.0], [5.0, 7.0, 6.0])
    assert not _is_in_order([1.0, 2.0], [5.0, 5.0])
    assert rank_correlation([1.0, 2.0, 2.0], [1.0, 2.5, 2.5]) == pytest.approx(1.0)


def constant(*rows: tuple[float, str, Any], memory: bool = False) -> tuple[list[float | None], str]:
    cases: Any = [
        (SimpleNamespace(is_memory=memory, properties=SimpleNamespace(use=use)), SimpleNamespace(job=of), seconds)
        for seconds, use, of in rows
    ]
    return _constant_mfu(cases)


def test_a_constant_mfu_is_the_mean_of_the_fit_rows_or_the_best_fit() -> None:
    # At the peak, 1000 · 20 FLOPs on 4 GPUs with 10 FLOP/s take 500 s.
    times, basis = constant((1000.0, "fit", job()), (2000.0, "fit", job()), (1.0, "test", job()))
    assert times == pytest.approx([500 / 0.375] * 3)
    assert basis == "37.5 % of bfloat16's peak, mean of the fit rows"
    times, basis = constant((1000.0, "test", job()), (2000.0, "test", job()), (1100.0, "test", job()))
    assert times == pytest.approx([1100.0] * 3), "the share of the middle row leaves the least errors"
    assert basis.endswith("% of bfloat16's peak, best fit to the rows")
    mixed, basis = constant((1000.0, "fit", job()), (250.0, "fit", job("float8", 20.0)))
    assert mixed == pytest.approx([1000.0, 250.0])
    assert (
        basis == "50.0 % of bfloat16's peak, mean of the fit rows; 100.0 % of float8's peak, mean of the fit rows"
    )
    assert constant((1000.0, "test", job())) == ([None], "")
    assert constant((1000.0, "fit", job()), memory=True) == ([None], "")
    assert constant((1000.0, "fit", None)) == ([None], "")
    assert _best_share([(10.0, 5.0), (10.0, 8.0), (10.0, 4.0)]) == 0.5


def published(
    name: str, seconds: float, *, group: str = "", unexpressed: str = "", is_memory: bool = False
) -> SimpleNamespace:
    """A row that is projected to take `seconds`, and was measured to take twice the length of its name."""
    properties = SimpleNamespace(group=group, unexpressed=unexpressed, use="test")
    return SimpleNamespace(properties=properties, options={"name": name, "seconds": seconds}, is_memory=is_memory)


@pytest.fixture
def projected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Projections of `published` rows, with a spread of a tenth and a slow host of twice the time."""
    monkeypatch.setattr(error_summary, "require_set", lambda name: f"set {name}")
    monkeypatch.setattr(error_summary, "measured_of", lambda case, plan: 2.0 * len(plan.name))
    monkeypatch.setattr(error_summary, "project_run", lambda case, plan: plan.seconds)
    monkeypatch.setattr(
        error_summary, "_constant_mfu", lambda cases: ([seconds + 1 for *_, seconds in cases], "basis")
    )
    monkeypatch.setattr(error_summary, "_interval_of", lambda plan, seconds: (seconds / 10, 2 * seconds))


def plan_of(options: Any) -> Any:
    if options["seconds"] < 0:
        raise ConfigError("is negative\nand more")
    return SimpleNamespace(**options)


@pytest.mark.usefixtures("projected")
def test_rows_that_cannot_be_projected_are_listed_and_the_others_compared() -> None:
    cases: Any = [
        published("ab", 5.0), published("abc", 7.0, unexpressed="no schedule"), published("a", -1.0),
        published("abcd", 9.0, is_memory=True),
    ]  # fmt: skip
    compared = validate_set("own", plan_of, cases)
    assert (compared.name, compared.properties, compared.mfu_basis) == ("own", "set own", "basis")
    assert [(error.measured, error.projected, error.constant_mfu, error.spread, error.longest_s) for error in compared.rows] == [
        (4.0, 5.0, 5.0, 0.5, 10.0), (8.0, 9.0, 9.0, 0.0, 0.0),
    ]  # fmt: skip
    assert [(case.options["name"], reason) for case, reason in compared.skipped] == [
        ("abc", "no schedule"), ("a", "is negative"),
    ]  # fmt: skip


@pytest.mark.usefixtures("projected")
def test_groups_of_two_rows_or_more_have_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Any = [
        published("a", 1.0, group="right"), published("ab", 3.0, group="right"), published("abc", 1.0, group="wrong"),
        published("abcd", 3.0, group="wrong"), published("abcde", 2.0, group="wrong"),
        published("a", 1.0, group="single"), published("ab", 1.0),
    ]  # fmt: skip
    monkeypatch.setattr(error_summary, "cases_of", {"own": rows}.__getitem__)
    compared = validate_set("own", plan_of)
    assert compared.rank_correlations == {"right": pytest.approx(1.0), "wrong": pytest.approx(0.5)}
    assert compared.groups_in_order == 1
    assert len(compared.rows) == 7


def test_an_interval_has_the_spread_of_the_fit_or_else_of_the_source_and_the_slowest_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan: Any = "plan"
    asked: list[Any] = []
    monkeypatch.setattr(error_summary, "outcome_of", lambda other: (len(other), None))
    monkeypatch.setattr(error_summary, "spread_of", lambda plan: 0.25)
    monkeypatch.setattr(
        error_summary, "fitted_spread",
        lambda plan, seconds, seconds_of, spread: asked.append((plan, seconds, seconds_of("abc"), spread)) or fitted,
    )  # fmt: skip
    monkeypatch.setattr(error_summary, "source_spread", lambda plan: 0.75)
    monkeypatch.setattr(error_summary, "slow_host_s", lambda plan, seconds, seconds_of: host_s)
    monkeypatch.setattr(error_summary, "exposed_dp_s", lambda plan, seconds, seconds_of: 3 * seconds_of(plan))
    fitted, host_s = 0.5, None
    assert _interval_of(plan, 5.0) == (0.5, 12.0)
    fitted, host_s = None, 13.0
    assert _interval_of(plan, 5.0) == (0.75, 13.0)
    assert asked == [("plan", 5.0, 3, 0.25)] * 2


def test_the_content_of_a_set_has_its_rows_scores_and_skipped_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_summary, "non_default_fields", lambda properties: {"metric": properties.use})
    monkeypatch.setattr(CaseError, "to_json", lambda row: {"error": row.error})
    case: Any = SimpleNamespace(properties=SimpleNamespace(use="test"), command="ppsim project")
    properties: Any = SimpleNamespace(
        title="Own", source="a page", notes="two nodes", order_only=False, other_tool="", section="memory"
    )
    rows = [row(1.0, 1.25, use="fit"), row(1.0, 0.5), row(1.0, 1.25, other=2.0)]
    content = SetValidation("own", properties, rows, "basis", {"g": 0.5}, 3, [(case, "no schedule")]).to_json()
    assert content["errors"] == {
        "ppsim": {"num_rows": 2, "mean": -0.125, "mean_absolute": 0.375, "worst": -0.5},
        "other": {"num_rows": 1, "mean": 1.0, "mean_absolute": 1.0, "worst": 1.0},
    }
    assert (content["num_test_rows"], content["num_calibration_rows"]) == (2, 1)
    assert content["calibration_errors"] == {"mean_absolute": 0.25}
    assert content["rows"] == [{"error": 0.25}, {"error": -0.5}, {"error": 0.25}]
    assert content["skipped"] == [{"metric": "test", "command": "ppsim project", "reason": "no schedule"}]
    empty = SetValidation("own", properties, [], "", {}, 0, []).to_json()
    assert (empty["errors"], empty["calibration_errors"]) == ({}, None)


@pytest.mark.parametrize("is_memory", [False, True])
def test_the_content_of_a_row_has_its_gpus_and_unit(monkeypatch: pytest.MonkeyPatch, is_memory: bool) -> None:
    monkeypatch.setattr(error_summary, "non_default_fields", lambda properties: {})
    properties = SimpleNamespace(use="fit", table="3", title="Own", other=None, value=1.0)
    case: Any = SimpleNamespace(
        is_memory=is_memory, properties=properties, settings={"pp": 3}, command="ppsim project"
    )
    plan: Any = SimpleNamespace(
        job=job("float8"), pp=3, source=SimpleNamespace(gpus_per_rank=5), schedule_name="zb-h1"
    )
    content = CaseError(case, plan, 4.0, 5.0, None).to_json()
    unit = "bytes" if is_memory else "s"
    assert (content["gpus"], content["cluster"], content["dtype"]) == (15, "own", "float8")
    assert (content[f"measured_{unit}"], content[f"projected_{unit}"], content["error"]) == (4.0, 5.0, 0.25)
    plan.job = None
    assert not {"cluster", "dtype"} & CaseError(case, plan, 4.0, 5.0, None).to_json().keys()


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(error_summary) == {"CaseError": {"spread": 0.0, "longest_s": 0.0}}
