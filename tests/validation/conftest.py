"""All sets compared once."""

import pytest

from ppsim.validation.cases import case_sets
from ppsim.validation.score import Validation, validate_set


@pytest.fixture(scope="session")
def validations() -> dict[str, Validation]:
    return {name: validate_set(name) for name in case_sets()}
