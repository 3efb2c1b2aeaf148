"""Constants of a cluster that are fitted to steps of a formula are those of the formula."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.machine.job_similarity import MeasuredJob
from ppsim.validation import fit_result
from ppsim.validation import fit_result as fit_module
from ppsim.validation.error_summary import CaseError
from ppsim.validation.fit_result import (
    AfterFit,
    FitResult,
    FittedCluster,
    after_fits,
    calibration_rows,
    fit_cases,
    fit_cluster,
)
from tests.defaults import parameter_defaults

KERNELS = (1e3, 2e3, 3e3, 4e3, 5e3, 6e3, 7e3, 8e3, 9e3)
"""Kernels of each case; the last is for tests."""

SHARE, KERNEL_S, REST = 1.25, 40e-6, 0.3


def seconds_of(kernels: float, share: float, kernel_s: float, rest: float) -> float:
    return kernels / 1e3 * share + kernels**1.5 * kernel_s + rest


class Constants(SimpleNamespace):
    def with_values(self, values: Mapping[str, float]) -> "Constants":
        return Constants(named={name: SimpleNamespace(value=values[name]) for name in self.named})


class Cluster(SimpleNamespace):
    def with_constants(self, constants: Constants) -> "Cluster":
        return Cluster(constants=constants)


def case(number: int) -> SimpleNamespace:
    properties = SimpleNamespace(use="test" if number == len(KERNELS) else "fit")
    return SimpleNamespace(number=number, options={"kernels": KERNELS[number - 1]}, properties=properties)


CASES = [case(number) for number in range(1, len(KERNELS) + 1)]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[float, float]:
    """Seconds that were measured, by number of kernels: those of the formula, unless a test changes them."""
    steps = {kernels: seconds_of(kernels, SHARE, KERNEL_S, REST) for kernels in KERNELS}
    constants = Constants(
        named={"compute_share": SimpleNamespace(value=1.1), "kernel_s": SimpleNamespace(value=2e-5)},
        fitted_on=["s"],
    )
    told = SimpleNamespace(fitted=["rest"], defaults={"rest": 0.2})

    def project(_: Any, plan: dict[str, Any]) -> float:
        share, kernel_s = (plan["cluster"].constants.named[name].value for name in ("compute_share", "kernel_s"))
        return seconds_of(plan["kernels"], share, kernel_s, plan["rest"])

    monkeypatch.setattr(fit_result, "load_cluster", lambda _: Cluster(constants=constants))
    monkeypatch.setattr(fit_result, "require_set", lambda _: told)
    monkeypatch.setattr(fit_result, "cases_of", lambda _: CASES)
    monkeypatch.setattr(fit_result, "measured_of", lambda case, _: steps[case.options["kernels"]])
    monkeypatch.setattr(fit_result, "project_run", project)
    return steps


def fitted() -> FittedCluster:
    return fit_cluster("c", dict)


@pytest.mark.usefixtures("measured")
def test_constants_and_options_of_exact_steps_are_recovered() -> None:
    made = fitted()
    assert made.found == {"compute_share": SHARE, "kernel_s": KERNEL_S, "rest": REST}
    assert made.in_use == {"compute_share": 1.1, "kernel_s": 2e-5, "rest": 0.2}
    assert made.num_rows == len(KERNELS) - 1


def test_one_row_that_is_half_longer_moves_constants_by_little(measured: dict[float, float]) -> None:
    measured[KERNELS[3]] *= 1.5
    found = fitted().found
    assert found["compute_share"] == pytest.approx(SHARE, rel=0.05)
    assert found["kernel_s"] == pytest.approx(KERNEL_S, rel=0.05)


def test_constants_are_not_negative(measured: dict[float, float]) -> None:
    for kernels in KERNELS:
        measured[kernels] = seconds_of(kernels, SHARE, KERNEL_S, -0.2)
    assert fitted().found["rest"] == 0.0


@pytest.mark.parametrize(("rounds", "kernel_s"), [(0, 1e-5), (1, 2.5e-5), (2, 2.05e-5), (30, 2e-5)])
def test_each_round_of_a_fit_is_a_newton_step(
    rounds: int, kernel_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of k² = 4 from k = 1, in units of the starting value: k + (4 − k²) / 2k is 2.5, then 2.05."""
    constants = Constants(named={"kernel_s": SimpleNamespace(value=3e-5)}, fitted_on=["s"])
    monkeypatch.setattr(fit_result, "load_cluster", lambda _: Cluster(constants=constants))
    monkeypatch.setattr(fit_result, "require_set", lambda _: SimpleNamespace(fitted=[]))
    monkeypatch.setattr(fit_result, "cases_of", lambda _: CASES[:1])
    monkeypatch.setattr(fit_result, "measured_of", lambda *_: 4.0)
    monkeypatch.setattr(
        fit_result, "project_run", lambda _, plan: (plan["cluster"].constants.named["kernel_s"].value / 1e-5) ** 2
    )
    assert fit_cluster("c", dict, rounds=rounds).found == {"kernel_s": pytest.approx(kernel_s)}


def test_a_cluster_whose_constants_are_of_no_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = Constants(named={}, fitted_on=[])
    monkeypatch.setattr(fit_result, "load_cluster", lambda _: Cluster(constants=constants))
    with pytest.raises(ConfigError, match="the constants of cluster 'c' were fitted on no set"):
        fitted()


@dataclass
class Constant:
    value: float


@pytest.mark.parametrize(
    ("base", "rows", "stack", "expected"),
    [
        ("dgx-h100", [1], None, ("dgx-h100", "H100, fitted to a measured step")),
        ("mine.toml", [1, 2], "plain", ("../mine.toml", "H100, fitted to 2 measured steps")),
    ],
)
def test_a_calibration_has_the_fitted_constants_alone(
    base: str,
    rows: list[int],
    stack: str | None,
    expected: tuple[str, str],
    tmp_path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a kind, those that were fitted; a base that is a file is named from the calibration's folder."""
    monkeypatch.chdir(tmp_path)
    constants = SimpleNamespace(
        named={
            "compute_share.bfloat16": Constant(1.0), "compute_share.fp8": Constant(2.0), "operator.mlp": Constant(3.0),
            "host_s": Constant(4.0), "kernel_s": Constant(5.0),
        },
        stack=stack, runs=(), correlation={"a b": 0.5},
    )  # fmt: skip
    posterior = SimpleNamespace(
        rows=rows, found=[SimpleNamespace(prior=SimpleNamespace(name=name)) for name in ("compute_share.fp8", "host_s")],
        operators={"operator.mlp": 3.0}, cluster=SimpleNamespace(title="H100"), constants=lambda source: constants,
    )  # fmt: skip
    (tmp_path / "folder").mkdir()
    found = FitResult(posterior, base, "runs.csv", []).to_calibration("folder/mine.json")
    assert (found["base"], found["title"]) == expected
    assert found["constants"] == {
        "compute_share": {"fp8": {"value": 2.0}}, "operator": {"mlp": {"value": 3.0}}, "host_s": {"value": 4.0},
        "fitted_on": ["runs.csv"], "runs": [], "correlation": {"a b": 0.5},
        **({"stack": "plain"} if stack else {}),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("selection", "numbers"), [("fit", [*range(1, 9)]), ("2", [2]), ("1,3-5", [1, 3, 4, 5]), ("9 , 1", [1, 9])]
)
def test_rows_are_selected_by_their_mark_or_number(selection: str, numbers: list[int]) -> None:
    assert [one.number for one in calibration_rows(CASES, selection, dict)] == numbers


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [("8-10", "no row 10: rows are 1 to 9"), ("1-x", "got '1-x'"), ("x-1", "got 'x-1'"), ("", "got ''")],
)
def test_rows_that_are_not_there_are_refused(selection: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        calibration_rows(CASES, selection, dict)


def test_a_fit_starts_from_these_values() -> None:
    starts = {
        "compute_share": 1.0, "kernel_s": 10e-6, "launch_s": 1e-3, "jitter": 0.02, "overlap_slowdown": 0.5, "rest": 0.1,
    }  # fmt: skip
    assert starts == fit_module._START
    assert fit_module._OUTLIER == 0.02
    assert parameter_defaults(fit_module.fit_cluster) == {"rounds": 30}


def run(
    number: int,
    gpus: int,
    kind: str = "c bfloat16 m",
    *,
    use: str = "test",
    unexpressed: str = "",
    is_memory: bool = False,
) -> Any:
    """A row of a cluster, a dtype and a model."""
    cluster, dtype, model = kind.split()
    job = SimpleNamespace(
        cluster=SimpleNamespace(name=cluster), execution=SimpleNamespace(dtype=dtype), model=model,
        model_name=f"{model}-7b", layout=SimpleNamespace(num_devices=gpus),
    )  # fmt: skip
    properties = SimpleNamespace(use=use, unexpressed=unexpressed, title="")
    return SimpleNamespace(
        number=number, options={"job": job}, settings={"cluster": cluster}, properties=properties,
        is_memory=is_memory, command=f"ppsim project {number}",
    )  # fmt: skip


def plan_of(options: Mapping[str, Any]) -> Any:
    if options["job"] == "wrong":
        raise ConfigError("wrong")
    return SimpleNamespace(job=options["job"])


@pytest.mark.parametrize(
    ("selection", "numbers"), [("one", [3, 6, 8]), ("one-a-model", [3, 4, 6, 8]), ("fit", [3, 9, 10])]
)
def test_the_smallest_run_of_a_kind_is_a_marked_one_if_any_is_marked(
    selection: str, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kinds are clusters and dtypes, and models; of equally small runs, the first is chosen."""
    monkeypatch.setattr(fit_result, "features_of", lambda job: job)
    runs = [
        run(1, 64),
        run(2, 16),
        run(3, 32, use="fit"),
        run(4, 8, "c bfloat16 n"),
        run(5, 40, "c fp8 m"),
        run(6, 24, "c fp8 m"),
        run(7, 24, "c fp8 m"),
        run(8, 48, "d bfloat16 m"),
        run(9, 2, use="fit", unexpressed="no schedule"),
        run(10, 2, use="fit", is_memory=True),
        SimpleNamespace(**{**vars(run(11, 2)), "options": {"job": "wrong"}}),
        SimpleNamespace(**{**vars(run(12, 2)), "options": {"job": None}}),
    ]
    assert [row.number for row in calibration_rows(runs, selection, plan_of)] == numbers


def step_of(run: Any) -> Any:
    return SimpleNamespace(
        case=run, plan=plan_of(run.options), measured_s=1.5 * run.number, name=f"s, row {run.number}"
    )


def estimate(name: str, value: float = 2.0) -> SimpleNamespace:
    prior = SimpleNamespace(name=name, median=3.0, spread=0.7, reason="guess")
    return SimpleNamespace(prior=prior, value=value, spread=0.5)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit of rows has their numbers, and an estimate for each of their clusters."""

    def fit_rows(rows: list[Any], plan_of: Any) -> SimpleNamespace:
        assert callable(plan_of)
        return SimpleNamespace(cluster=SimpleNamespace(name=rows[0].plan.job.cluster.name), rows=rows, outliers=[],
                               found=[estimate("kernel_s")])  # fmt: skip

    def rows_of(cases: list[Any], plan_of: Any, source: str) -> tuple[list[Any], list[Any]]:
        usable = [step_of(case) for case in cases if not case.properties.unexpressed]
        return usable, [(case, case.properties.unexpressed) for case in cases if case.properties.unexpressed]

    monkeypatch.setattr(fit_result, "fit_rows", fit_rows)
    monkeypatch.setattr(fit_result, "rows_of", rows_of)
    monkeypatch.setattr(fit_result, "cluster_named", lambda name: name)


@pytest.mark.usefixtures("fits")
def test_rows_of_other_clusters_than_the_named_one_are_skipped() -> None:
    runs = [run(1, 8), run(2, 8, "d bfloat16 m"), run(3, 8), run(4, 8, unexpressed="no schedule")]
    fit = fit_cases(runs, plan_of, source="runs.csv", cluster="c")
    assert ([row.case.number for row in fit.posterior.rows], fit.base, fit.source) == ([1, 3], "c", "runs.csv")
    assert [(case.number, reason) for case, reason in fit.skipped] == [(4, "no schedule"), (2, "ran on d")]


@pytest.mark.usefixtures("fits")
def test_all_rows_are_fitted_to_without_a_name_and_ran_on_dgx_h100_if_they_do_not_say() -> None:
    runs: list[Any] = [SimpleNamespace(**{**vars(run(number, 8)), "settings": {}}) for number in (1, 2)]
    fit = fit_cases(runs, plan_of, source="runs.csv")
    assert (len(fit.posterior.rows), fit.base) == (2, "dgx-h100")


@pytest.mark.usefixtures("fits")
def test_without_a_row_to_fit_on_the_reasons_are_listed() -> None:
    runs = [run(3, 8, unexpressed="no schedule"), run(0, 8, "d bfloat16 m")]
    with pytest.raises(ConfigError) as raised:
        fit_cases(runs, plan_of, source="runs.csv", cluster="c")
    assert str(raised.value) == "runs.csv has no row to fit on\n  3: no schedule\n  run: ran on d"


def test_a_fit_lists_determined_constants_first_and_the_extra_time_of_each_job() -> None:
    first, second = step_of(run(1, 8)), step_of(run(2, 8, "c bfloat16 n"))
    second.case.properties.title = "Own"
    posterior: Any = SimpleNamespace(
        found=[estimate("kernel_s"), estimate("rest.1", 0.25), estimate("rest.0", 0.5)], left=[estimate("launch_s", 3.0)],
        jobs=["m", "n"], rows=[first, second], before=[0.1, 0.2], after=[0.03, 0.04], outliers=[],
        cluster=SimpleNamespace(name="c"), constants=lambda source: SimpleNamespace(runs=[], correlation={}),
    )  # fmt: skip
    fit = FitResult(posterior, "c", "runs.csv", [(run(3, 8), "no schedule")])
    content = fit.to_json()
    assert content["extra_step_time_s"] == {"Own": 0.25, "m-7b": 0.5}
    assert [(row["constant"], row["is_determined"]) for row in content["constants"]] == [
        ("kernel_s", True), ("rest.1", True), ("rest.0", True), ("launch_s", False),
    ]  # fmt: skip
    assert content["constants"][0] == {
        "constant": "kernel_s", "is_determined": True, "value": 2.0, "relative_sigma": 0.5, "prior": 3.0,
        "prior_relative_sigma": 0.7, "prior_reason": "guess",
    }  # fmt: skip
    assert content["rows"] == [
        {"row": "s, row 1", "command": "ppsim project 1", "measured_s": 1.5, "error_before": 0.1, "error_after": 0.03},
        {"row": "s, row 2", "command": "ppsim project 2", "measured_s": 3.0, "error_before": 0.2, "error_after": 0.04},
    ]  # fmt: skip
    assert content["skipped"] == [{"command": "ppsim project 3", "reason": "no schedule"}]


def test_a_run_of_a_calibration_omits_defaults() -> None:
    fields: dict[str, Any] = {"model": "m", "dtype": "fp8", "tp": 2, "cp": 1, "ep": 1, "micro_batch": 3, "seq_len": 5, "pp": 7,
              "gpus": 14, "times": 1.1, "spread": 0.2}  # fmt: skip
    measured = MeasuredJob(**fields)
    assert fit_module._without_defaults(measured) == fields
    assert fit_module._without_defaults(MeasuredJob(**fields, recompute="full")) == {**fields, "recompute": "full"}


@pytest.fixture
def sets(monkeypatch: pytest.MonkeyPatch, fits: None) -> dict[str, list[SimpleNamespace]]:
    """Rows of each set; a validation of rows has their numbers."""
    rows = {
        "s": [run(1, 8, use="fit"), run(2, 8), run(3, 8, "d bfloat16 m", use="fit"), run(4, 8)],
        "unmarked": [run(1, 8)],
        "memory": [run(1, 8, use="fit", is_memory=True)],
        "order": [run(1, 8, use="fit")],
    }

    def validate_set(name: str, plan_of: Any, cases: list[Any]) -> SimpleNamespace:
        skipped = [(case, name) for case in cases[-1:]]
        return SimpleNamespace(rows=[(plan_of({"job": None}).job, case.number) for case in cases], skipped=skipped)

    named = {name: SimpleNamespace(order_only=name == "order") for name in rows}
    monkeypatch.setattr(fit_result, "case_sets", lambda: named)
    monkeypatch.setattr(fit_result, "cases_of", rows.__getitem__)
    monkeypatch.setattr(fit_result, "validate_set", validate_set)
    monkeypatch.setattr(fit_result, "fitted_plan_of", lambda fits, _: lambda _: SimpleNamespace(job=list(fits)))
    monkeypatch.setattr(fit_result, "features_of", lambda job: job)
    return rows


@pytest.mark.usefixtures("sets")
@pytest.mark.parametrize(
    ("selection", "fitted_on", "tested"),
    [
        ("fit", {"c": [1], "d": [3]}, [2, 4]),
        ("one", {"c": [1], "d": [3]}, [2, 4]),
        ("1-2", {"c": [1, 2]}, [3, 4]),
    ],
)
def test_rows_marked_fit_are_tested_only_if_rows_are_selected_by_number(
    selection: str, fitted_on: dict[str, list[int]], tested: list[int]
) -> None:
    said: list[str] = []
    (run_set,) = after_fits("s", selection, plan_of, announce=said.append).sets
    assert said == ["s"]
    assert {fit.cluster.name: [row.case.number for row in fit.rows] for fit in run_set.fits} == fitted_on
    assert run_set.test_rows == [((None, number), ([*fitted_on], number)) for number in tested]
    assert [(case.number, name) for case, name in run_set.skipped] == [(tested[-1], "s")]


def test_sets_of_memory_or_order_or_without_a_row_to_fit_on_are_left_out(
    sets: dict[str, list[SimpleNamespace]],
) -> None:
    said: list[str] = []
    fitted_sets = after_fits(None, "fit", plan_of, announce=said.append).sets
    assert [run_set.name for run_set in fitted_sets] == ["s"]
    assert said == ["s", "unmarked"]
    assert fit_module._after_fit("unmarked", "fit", plan_of) == AfterFit("unmarked", [], [], [])
    assert [run_set.name for run_set in after_fits("order", "fit", plan_of, announce=said.append).sets] == ["order"]
    with pytest.raises(ConfigError, match="no row of unmarked can be fitted on"):
        after_fits("unmarked", "fit", plan_of, announce=said.append)


def test_scores_are_those_of_the_rows_before_and_after_a_fit() -> None:
    def projected(seconds: float, spread: float = 0.1) -> CaseError:
        plan: Any = SimpleNamespace(job=None)
        case: Any = run(1, 8)
        return CaseError(case, plan, 10.0, seconds, None, spread)

    rows = [
        (projected(12.0), projected(11.0)),
        (projected(14.0), projected(9.5)),
        (projected(10.0), projected(16.0)),
    ]
    run_set = AfterFit("s", [], rows, [])
    before, after = run_set.scores
    assert (before.mean, after.mean) == (pytest.approx(0.2), pytest.approx((0.1 - 0.05 + 0.6) / 3))
    assert run_set.coverage == (2, 3)
