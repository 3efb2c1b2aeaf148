"""The stack of a job that names none: the packaged errors of the stacks, and their use."""

from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from ppsim.api.project import plan_of_keywords
from ppsim.base.files import data_folder, read_json
from ppsim.trainers.stacks import ERRORS, stack_errors, stacks
from ppsim.validation.published_runs import case_sets, cases_of


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that computes the errors of the stacks."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    return import_module("stack_errors")


@pytest.mark.slow
def test_the_packaged_errors_are_those_of_the_calibration_rows(script) -> None:
    """scripts/make_accuracy.py wrote them."""
    packaged, derived = (
        read_json(data_folder("trainers/data") / ERRORS),
        [asdict(one) for one in script.calibration_errors(plan_of_keywords)],
    )
    assert len(packaged) == len(derived)
    for one, other in zip(packaged, derived, strict=True):
        assert {name: one[name] for name in ("generation", "kind", "rows")} == {
            name: other[name] for name in ("generation", "kind", "rows")
        }
        assert {name: tuple(values) for name, values in one["errors"].items()} == {
            name: pytest.approx(values, abs=2e-4) for name, values in other["errors"].items()
        }


def test_the_nearest_stack_is_the_default_and_of_equal_errors_one_of_a_trainer() -> None:
    for one in stack_errors().values():
        smallest = min(error for error, _ in one.errors.values())
        nearest = {name for name, (error, _) in one.errors.items() if error == smallest}
        assert one.nearest in (nearest - {"plain"} or nearest)
    assert all(not stacks()[name].ended for one in stack_errors().values() for name in one.errors)


def test_every_row_names_its_stack_or_its_configuration() -> None:
    """A changed default changes no row of `ppsim validate`."""
    for name in case_sets():
        assert all("stack" in case.settings or "run_config" in case.options for case in cases_of(name)), name


def test_options_of_a_user_are_without_the_stack_and_fitted_constants(script) -> None:
    assert "stack" not in script.OPTIONS
    [case, *_] = cases_of("dgxc-405b")
    assert script.options_of(case)["cluster"] == "dgx-h100"
    assert "stack" not in script.options_of(case)
