"""Measuring collects garbage before it begins; what tests have imported by then is no garbage of theirs."""

import gc

import pytest


@pytest.fixture(autouse=True)
def frozen() -> None:
    """Else each collection looks through all of torch and what it imports later, which takes most of a second."""
    gc.freeze()
