"""All sets compared once."""

import pytest

import ppsim
from ppsim.validation.error_summary import Validation


@pytest.fixture(scope="session")
def validations() -> dict[str, Validation]:
    return {one.name: one for one in ppsim.validate().sets}
