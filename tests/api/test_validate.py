"""What the functions of validation hand over."""

from typing import Any

import pytest

from ppsim.api import validate as module
from ppsim.api.project import plan_of_keywords


def test_sets_are_validated_or_fitted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "validate_sets", lambda *given, **more: ("sets", *given, more))
    monkeypatch.setattr(module, "after_fits", lambda *given, **more: ("fits", *given, more))
    announced: dict[str, Any] = {"announce": print}
    assert module.validate("runs.csv", announce=print) == ("sets", "runs.csv", plan_of_keywords, announced)  # type: ignore[comparison-overlap]
    assert module.validate(announce=print) == ("sets", None, plan_of_keywords, announced)  # type: ignore[comparison-overlap]
    fitted = module.validate("runs.csv", fit_on="one", announce=print)
    assert fitted == ("fits", "runs.csv", "one", plan_of_keywords, announced)  # type: ignore[comparison-overlap]


def test_sources_are_left_out_of_all_sets_and_a_cluster_is_fitted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Report:
        sets = ("set",)

    announced: list[Any] = []
    monkeypatch.setattr(module, "validate", lambda *, announce: announced.append(announce) or Report)
    monkeypatch.setattr(module, "leave_source_out", lambda sets, plan_of: (sets, plan_of))
    monkeypatch.setattr(module, "fit_cluster", lambda cluster, plan_of: (cluster, plan_of))
    assert module.source_errors(print) == (("set",), plan_of_keywords)  # type: ignore[comparison-overlap]
    assert announced == [print]
    assert module.refit_cluster("dgx-h100") == ("dgx-h100", plan_of_keywords)  # type: ignore[comparison-overlap]
