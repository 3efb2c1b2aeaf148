"""Numbers of one answer agree; `scripts/check_answers.py` checks more plans."""

import pytest

from tests.projection.random_plans import contradictions, random_projections


@pytest.mark.parametrize("seed", [0, 3, 6, 9, 18])  # quick ones
def test_the_numbers_of_a_random_plan_agree(seed: int) -> None:
    for options, made in random_projections(seed, 1):
        assert contradictions(made) == [], options
