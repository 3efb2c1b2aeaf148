"""Slopes of the bounds from a simulated split."""

from types import SimpleNamespace

import numpy as np
import pytest

from ppsim.projection.split_bounds import _hidden


def hidden_s(pass_s: float, reduce_s: float, num_buckets: int) -> float:
    """Hidden seconds of a reduction in buckets: all but the last, as long as the backward lasts."""
    return (1 - 1 / num_buckets) * min(pass_s, reduce_s)


@pytest.mark.parametrize(("pass_s", "reduce_s"), [(2.0, 5.0), (5.0, 2.0)])
def test_one_more_layer_hides_as_much_as_the_shorter_of_backward_and_reduction_grows(
    pass_s: float, reduce_s: float
) -> None:
    trial = SimpleNamespace(
        stage_cost_set=SimpleNamespace(step_costs=SimpleNamespace(num_buckets=np.array([1, 4]))),
        step=SimpleNamespace(timeline=SimpleNamespace(schedule=SimpleNamespace(num_stages=2))),
    )
    grown_s = hidden_s(pass_s + 0.3, reduce_s + 0.1, 4) - hidden_s(pass_s, reduce_s, 4)
    assert _hidden(trial, 1, reduce_s, 0.1, pass_s, 0.3) == pytest.approx(grown_s)  # type: ignore[arg-type]
    assert _hidden(trial, 0, reduce_s, 0.1, pass_s, 0.3) == 0.0  # type: ignore[arg-type]
