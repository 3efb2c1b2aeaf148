"""Constants of a cluster that are fitted to steps of a formula are those of the formula."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.validation import fit_result
from ppsim.validation.fit_result import FittedCluster, fit_cluster

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
