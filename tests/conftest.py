"""Nothing is tested by wall-clock limits, so hypothesis has no deadline either."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.processes import end_all
from tests.runtime.forked import fork_rank

settings.register_profile("ppsim", deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("ppsim"), max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ppsim"))


@pytest.fixture(autouse=True)
def _processes_end_with_their_test() -> Iterator[None]:
    """A pipe that is closed by the garbage collector would fail another test."""
    yield
    end_all()


@pytest.fixture(autouse=True, scope="session")
def _ranks_are_forked() -> Iterator[None]:
    """Runs of a test's own process do not import torch for every rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ppsim.runtime.launch.start_rank", fork_rank)
        yield


@pytest.fixture
def without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """`project` does not look for changes that gain time, which takes most of the time of a command."""
    monkeypatch.setattr("ppsim.projection.summary.advise", lambda *_: [])
