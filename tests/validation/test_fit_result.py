"""Constants of a cluster that are fitted to steps of a formula are those of the formula."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.validation import fit_result
from ppsim.validation import fit_result as fit_module
from ppsim.validation.fit_result import FitResult, FittedCluster, calibration_rows, fit_cluster
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
