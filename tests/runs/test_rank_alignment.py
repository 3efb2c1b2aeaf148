"""Whether the clocks of ranks agree."""

from dataclasses import replace

import numpy as np
import pytest

from ppsim.runs.rank_alignment import _is_ordered
from tests.runs.test_calibrate import run_of


@pytest.mark.parametrize(
    ("late_s", "is_ordered"),
    [(0.0, True), (0.9e-3, True), (1.1e-3, False), (15e-3, False), (30e-3, False), (-30e-3, False)],
)
def test_clocks_differ_if_an_input_is_made_long_after_its_action_begins(late_s: float, is_ordered: bool) -> None:
    """Transfers take no time, so that some actions of the second rank begin when its input is made."""
    run = run_of("1f1b", pp=2, vpp=1, size=0.0)
    of_first = np.zeros(run.start.shape[1])
    of_first[: run.graph.num_actions][run.graph.schedule.rank == 0] = late_s
    assert _is_ordered(replace(run, start=run.start + of_first, end=run.end + of_first)) is is_ordered
