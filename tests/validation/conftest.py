"""All sets compared once."""

import pytest

import ppsim
from ppsim.validation.error_summary import SetValidation


@pytest.fixture(scope="session")
def validations() -> dict[str, SetValidation]:
    return {one.name: one for one in ppsim.validate().sets}
