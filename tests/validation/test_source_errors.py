"""Sources of published runs that are left out."""

from dataclasses import replace
from math import exp, log
from types import SimpleNamespace

import pytest

from ppsim.api.project import plan_of_keywords
from ppsim.machine.cluster_files import load_cluster
from ppsim.projection.error_classes import error_classes
from ppsim.validation import source_errors
from ppsim.validation import source_errors as errors_module
from ppsim.validation.source_errors import (
    EXPERTS_PRIOR,
    IN_SITU_PRIOR,
    SourceErrors,
    _unfitted,
    leave_source_out,
    source_of,
    spreads_of,
    unfitted,
)


def test_spreads_are_those_within_sources_and_of_their_means() -> None:
    within, between = spreads_of([[0.11, 0.09], [-0.11, -0.09], [0.01, -0.01]])
    assert within == pytest.approx((6 * 0.01**2 / 3) ** 0.5)
    assert between == pytest.approx((0.02 / 3 - within**2 / 2) ** 0.5)


def test_fitted_constants_return_to_their_priors() -> None:
    cluster = load_cluster("dgx-h100")
    before, after = cluster.device.efficiency, unfitted(cluster).device.efficiency
    assert before.in_situ is not None
    assert after.in_situ is not None
    assert before.in_situ.factors["bfloat16"] != after.in_situ.factors["bfloat16"] == IN_SITU_PRIOR
    assert load_cluster("vtrain-a100").base == unfitted(load_cluster("vtrain-a100")).name


def test_only_what_was_fitted_returns_to_its_prior() -> None:
    base = load_cluster("dgx-h100").device.efficiency
    assert base.in_situ is not None
    fitted = replace(
        base, fitted=("in_situ bfloat16",), experts=2.0,
        in_situ=replace(base.in_situ, factors={"bfloat16": 1.3, "float8": 1.2}),
    )  # fmt: skip
    found = _unfitted(fitted, "h100")
    assert (found.in_situ.factors, found.experts) == ({"bfloat16": IN_SITU_PRIOR, "float8": 1.2}, 2.0)
    found = _unfitted(replace(fitted, fitted=("experts",)), "h100")
    assert (found.in_situ.factors, found.experts) == ({"bfloat16": 1.3, "float8": 1.2}, EXPERTS_PRIOR)
    assert found.matmul == fitted.matmul
    assert _unfitted(fitted, "b200").matmul["float8"] == 0.52
    assert _unfitted(replace(fitted, in_situ=None), "h100").in_situ is None


def row_of(
    log_error: float, use: str = "test", *, kind: str = "A", longest_s: float = 0.0, gpu: str = "h100", **case
) -> SimpleNamespace:
    cluster = SimpleNamespace(name="c", device=SimpleNamespace(efficiency_class=gpu))
    return SimpleNamespace(
        case=SimpleNamespace(properties=SimpleNamespace(use=use, table=""), is_memory=False, **case),
        plan=SimpleNamespace(job=SimpleNamespace(cluster=cluster, kind=kind)),
        measured=10.0, error=exp(log_error) - 1, longest_s=longest_s,
    )  # fmt: skip


def set_of(name: str, *rows: SimpleNamespace, section: str = "", order_only: bool = False) -> SimpleNamespace:
    return SimpleNamespace(name=name, rows=rows, properties=SimpleNamespace(order_only=order_only, section=section))


def test_a_source_has_the_interval_of_the_others_of_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without s1 the spread is 0.1, the interval ± 0.15: of 0.3 and 0.1 in s1 one is inside, or both with a slow host.

    Rows that were fitted, sets of order only and of bytes are left out. A class with one source has a wide interval.
    """
    names = ("s1", "s2", "alone", "order", "bytes")
    monkeypatch.setattr(source_errors, "case_sets", lambda: {name: SimpleNamespace(section="") for name in names})
    monkeypatch.setattr(source_errors, "error_class_of", lambda job: SimpleNamespace(name=job.kind))
    sets = [
        set_of("s1", row_of(0.3), row_of(0.1)), set_of("s2", row_of(-0.1), row_of(-0.1)), set_of("alone", row_of(0.3, kind="B")),
        set_of("order", row_of(9.0), order_only=True), set_of("bytes", row_of(9.0), section="memory"),
    ]  # fmt: skip
    of_class, other, every = leave_source_out(sets, dict)
    assert (of_class.name, of_class.num_rows, of_class.num_sources, of_class.coverage) == ("A", 4, 2, 0.75)
    assert of_class.mean_absolute == pytest.approx((exp(0.3) + exp(0.1) - 2 + 2 * (1 - exp(-0.1))) / 4)
    assert of_class.within == pytest.approx(0.1), "2 · 0.1² of squares for 2 degrees of freedom"
    assert (other.num_rows, other.coverage, other.within) == (1, 1.0, 0.0)
    assert (every.num_rows, every.num_sources) == (5, 3)
    assert every.coverage == pytest.approx((0.5 + 1 + 1) / 3)
    assert every.mean_absolute == pytest.approx((4 * of_class.mean_absolute + exp(0.3) - 1) / 5)
    sets[0].rows[0].longest_s = 10.0
    assert leave_source_out(sets, dict)[0].coverage == 0.75, "the interval is too high, not too low"
    slow = [set_of("s1", row_of(-0.3, longest_s=10.0)), sets[1]]
    assert leave_source_out(slow, dict)[0].coverage == 1.0


def test_a_source_without_which_its_gpu_type_has_no_runs_is_in_no_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its interval is ± 0.44. A fitted row of another source is enough for a class."""
    monkeypatch.setattr(
        source_errors, "case_sets", lambda: dict.fromkeys(("s1", "s2"), SimpleNamespace(section=""))
    )
    monkeypatch.setattr(source_errors, "error_class_of", lambda job: SimpleNamespace(name=job.kind))
    sets = [set_of("s1", row_of(0.1), row_of(0.4, gpu="gh200")), set_of("s2", row_of(0.1))]
    of_class, other, _ = leave_source_out(sets, dict)
    assert (of_class.name, of_class.num_rows, of_class.coverage) == ("A", 2, 1.0)
    assert (other.name, other.num_rows, other.coverage) == ("other trainers", 1, 1.0)
    sets[1].rows += (row_of(0.1, "fit", gpu="gh200"),)
    monkeypatch.setattr(source_errors, "log_error", lambda row, *_: log(1 + row.error))
    of_class, _ = leave_source_out(sets, dict)
    assert (of_class.num_rows, of_class.coverage) == (3, 0.75)


def test_rows_on_a_cluster_that_the_source_was_fitted_on_are_projected_without_its_constants(monkeypatch) -> None:
    monkeypatch.setattr(
        source_errors, "case_sets", lambda: {name: SimpleNamespace(section="") for name in ("s1", "s2")}
    )
    monkeypatch.setattr(source_errors, "error_class_of", lambda job: None)
    monkeypatch.setattr(source_errors, "unfitted", lambda cluster: "unfitted")
    monkeypatch.setattr(
        source_errors, "project_run", lambda case, plan: 10.0 * exp(0.2 if plan["cluster"] == "unfitted" else 9)
    )
    fitted = set_of("s1", row_of(0.0, "fit"), row_of(0.0, options={}))
    found, _ = leave_source_out([fitted, set_of("s2", row_of(0.0))], lambda options: options)
    assert (found.name, found.num_rows) == ("other trainers", 2)
    assert found.mean_absolute == pytest.approx((exp(0.2) - 1) / 2)


def test_a_new_sources_half_width_has_both_spreads() -> None:
    assert SourceErrors("A", 1, 1, 0.1, 0.03, 0.04, 0.9).half_width == pytest.approx(1.5 * 0.05)
    assert SourceErrors("A", 1, 1, 0.1, None, 0.04, 0.9).half_width is None
    case = SimpleNamespace(properties=SimpleNamespace(table="NVIDIA/1"))
    assert (source_of("mlperf-v51-llama", case), source_of("mlperf-v50", case)) == ("NVIDIA", "mlperf-v50")


@pytest.mark.slow
def test_nine_of_ten_times_of_a_new_source_are_inside(validations) -> None:
    """Sources count equally; the packaged spreads are those of the runs."""
    *classes, every = leave_source_out(list(validations.values()), plan_of_keywords)
    assert 0.87 <= every.coverage <= 0.93
    assert all(one.coverage >= 0.82 for one in classes if one.num_sources >= 5)
    found = {one.name: (one.within, one.between) for one in classes if one.num_sources >= 3}
    packaged = {one.name: (one.within, one.between) for one in error_classes() if one.name in found}
    assert len(packaged) == 5
    for name, spreads in packaged.items():
        assert spreads == pytest.approx(found[name], abs=0.005)


def test_the_priors_of_factors_are_a_tenth_slower() -> None:
    assert (errors_module.IN_SITU_PRIOR, errors_module.EXPERTS_PRIOR) == (1.1, 1.1)


def test_rows_are_times_of_jobs_by_their_model() -> None:
    """Sets of orders, of measured costs and of memory are left out, and so are rows without a job or of memory."""

    def of_set(name: str, *, order_only: bool = False, section: str = "runs") -> object:
        rows = [
            SimpleNamespace(
                plan=SimpleNamespace(job=job), case=SimpleNamespace(is_memory=is_memory), name=f"{name}{index}"
            )
            for index, (job, is_memory) in enumerate([(object(), False), (None, False), (object(), True)])
        ]
        properties = SimpleNamespace(order_only=order_only, section=section)
        return SimpleNamespace(name=name, properties=properties, rows=rows)

    sets = [
        of_set("a"), of_set("b", order_only=True), of_set("c", section="measured costs"), of_set("d", section="memory"),
        of_set("e", section="functional runs"),
    ]  # fmt: skip
    found = [(name, row.name) for name, row in errors_module._rows(sets)]  # type: ignore[arg-type]
    assert found == [("a", "a0"), ("e", "e0")]


@pytest.mark.parametrize(
    ("log_of", "longest_s", "is_inside"),
    [(0.0, 0.0, True), (0.1, 0.0, True), (-0.1, 0.0, True), (0.5, 0.0, False), (-0.5, 0.0, False), (-0.5, 1e9, True), (0.5, 1e9, False)],
)  # fmt: skip
def test_a_measured_time_is_inside_the_interval_around_the_projected(
    log_of: float, longest_s: float, *, is_inside: bool
) -> None:
    row = SimpleNamespace(measured=7.0, longest_s=longest_s)
    assert errors_module._is_inside(row, log_of, 0.1) is is_inside  # type: ignore[arg-type]


def test_a_cluster_without_fits_keeps_its_own_and_one_with_fits_its_bases_constants() -> None:
    usual = load_cluster("dgx-h100")
    own = replace(usual, name="own", base="dgx-a100")
    assert errors_module.unfitted(own).device.name == usual.device.name
    fitted = replace(own, constants=replace(own.constants, fitted_on=("x",)))
    assert errors_module.unfitted(fitted).device.name == load_cluster("dgx-a100").device.name
    no_base = replace(fitted, base=None)
    assert errors_module.unfitted(no_base).device.name == usual.device.name
    priors = {
        "a100": {"bfloat16": 0.72, "float16": 0.72}, "b200": {"float8": 0.52},
        "h100-500w": {"bfloat16": 0.56, "float8": 0.57, "float8-row": 0.45},
    }  # fmt: skip
    assert priors == errors_module.MATMUL_PRIORS


def test_each_submitter_of_mlperf_is_a_source() -> None:
    case = SimpleNamespace(properties=SimpleNamespace(table="dell/llama"))
    assert errors_module.source_of("mlperf-v51-llama", case) == "dell"  # type: ignore[arg-type]
    assert errors_module.source_of("mlperf-v50", case) == "mlperf-v50"  # type: ignore[arg-type]
