"""The constants of a class of machines from the rows marked fit, and from no other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.errors import ConfigError
from ppsim.validation.cases import Case, cases_of
from ppsim.validation.machines import Machine, machine_of
from ppsim.validation.predict import predict

_START = {"compute_share": 1.0, "kernel_s": 10e-6, "launch_s": 1e-3, "rest_s": 0.1}
_OUTLIER = 0.02
"""A relative error beyond which a row counts by its distance, no longer by its square (Huber 1964)."""


@dataclass(frozen=True)
class FittedMachine:
    """A class of machines, the constants that its rows give, to three digits, and how many rows there are."""

    name: str
    machine: Machine
    found: dict[str, float]
    num_rows: int

    @property
    def in_use(self) -> dict[str, float]:
        """The constants that projections take, under the same names."""
        return {name: self.machine.constant(name) for name in self.found}


def fit_machine(name: str, *, rounds: int = 30) -> FittedMachine:
    """Return the constants of a class again: those with the least errors on its fit rows.

    Gauss-Newton steps on relative errors of time from fixed starting values, rows beyond `_OUTLIER` weighted down.
    Raises `ConfigError` for an unknown class.
    """
    machine = machine_of(name)
    cases = [case for one in (machine.fitted_on if machine else []) for case in cases_of(one) if case.use == "fit"]
    if machine is None or not cases:
        raise ConfigError(f"no row marked fit has the class of machines '{name}'")
    names = machine.fitted
    values = np.array([_START[constant.partition(".")[0]] for constant in names])
    for _ in range(rounds):
        now = _errors(cases, machine, dict(zip(names, values, strict=True)))
        slopes = np.empty((len(cases), len(names)))
        for index, value in enumerate(values):
            moved = values.copy()
            moved[index] += (by := 1e-3 * max(value, 1e-6))
            slopes[:, index] = (_errors(cases, machine, dict(zip(names, moved, strict=True))) - now) / by
        weights = np.sqrt(np.minimum(1.0, _OUTLIER / np.maximum(np.abs(now), 1e-12)))
        step = np.linalg.lstsq(slopes * weights[:, None], -now * weights, rcond=None)[0]
        values = np.maximum(values + step, 0.0)
        if np.all(np.abs(step) <= 1e-4 * np.maximum(values, 1e-7)):
            break
    found = {constant: float(f"{value:.3g}") for constant, value in zip(names, values, strict=True)}
    return FittedMachine(name, machine, found, len(cases))


def _errors(cases: Sequence[Case], machine: Machine, constants: dict[str, float]) -> Floats:
    tried = machine.with_constants(constants)
    return np.array([predict(case, tried) / case.measured - 1 for case in cases])
