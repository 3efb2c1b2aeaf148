"""All sets compared once."""

import pytest

import ppsim
from ppsim.validation.score import Validation


@pytest.fixture(scope="session")
def validations() -> dict[str, Validation]:
    return {one.name: one for one in ppsim.validate().sets}
