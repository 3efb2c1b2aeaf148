"""Nothing is tested by wall-clock limits, so hypothesis has no deadline either."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.processes import end_all

settings.register_profile("ppsim", deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("ppsim"), max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ppsim"))


@pytest.fixture(autouse=True)
def _processes_end_with_their_test() -> Iterator[None]:
    """A pipe that is closed by the garbage collector would fail another test."""
    yield
    end_all()


@pytest.fixture
def without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """`project` does not look for changes that gain time, which takes most of the time of a command."""
    monkeypatch.setattr("ppsim.projection.summary.advise", lambda *_: [])


PLAIN_FOLDERS = ("cli",)
"""Folders whose tests were written for the stack `plain`. Others test jobs without `--stack` as users run them."""

OF_DEFAULT = ("test_first_screen", "test_help", "test_recipes", "test_typed")
"""Modules in these folders that test the default of `--stack` too."""


@pytest.fixture(scope="module", autouse=True)
def plain_by_default(request: pytest.FixtureRequest) -> Iterator[None]:
    """In some folders, jobs without `--stack` have the stack `plain`."""
    path = request.path
    with pytest.MonkeyPatch.context() as patch:
        if path.parent.name in PLAIN_FOLDERS and path.stem not in OF_DEFAULT:
            patch.setattr("ppsim.trainers.stacks.default_stack", lambda generation, **facts: ("plain", ""))
        yield
