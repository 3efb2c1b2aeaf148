"""Each set compared once."""

from collections.abc import Callable
from functools import cache

import pytest

import ppsim
from ppsim.validation.error_summary import SetValidation
from ppsim.validation.published_runs import case_sets


@pytest.fixture(scope="session")
def validation_of() -> Callable[[str], SetValidation]:
    """The comparison of a set by its name."""
    return cache(lambda name: ppsim.validate(name).sets[0])


@pytest.fixture(scope="session")
def validations(validation_of: Callable[[str], SetValidation]) -> dict[str, SetValidation]:
    """All sets: some 30 CPU seconds, so that the tests are marked `slow`."""
    return {name: validation_of(name) for name in case_sets()}
