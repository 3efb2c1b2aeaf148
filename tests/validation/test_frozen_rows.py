"""Projections of published runs stay the same to 1e-9."""

import pytest

from ppsim.validation.error_summary import SetValidation
from tests.frozen.comparison import require_frozen
from tests.frozen.values import rows


@pytest.mark.slow
def test_projections_of_published_runs_are_the_frozen_ones(validations: dict[str, SetValidation]) -> None:
    require_frozen("rows", rows([one.to_json() for one in validations.values()]))
