"""Numbers of the report of a simulated step: 1F1B on two ranks with three microbatches, F 1 s, I 1 s, W 2 s."""

import pytest

from ppsim import StageCosts, build, simulate
from ppsim.simulation.bounds.for_table import bounds_of
from ppsim.simulation.idle_causes import CAUSES
from ppsim.simulation.report import gap_of, report_of

COSTS = StageCosts(
    forward_s=1,
    backward_input_s=1,
    backward_weight_s=2,
    activation_bytes=8,
    static_bytes=[5, 7],
    step_overhead_s=0.5,
)
TABLE = build("1f1b", pp=2, microbatches=3)


def test_a_rank_is_busy_or_idle_for_a_cause_and_has_its_peaks() -> None:
    timeline = simulate(TABLE, COSTS)
    first, second = report_of(timeline, COSTS)["ranks"]
    assert (first["rank"], first["busy_s"], first["idle_s"]) == (0, 12, 4)
    assert (second["rank"], second["busy_s"], second["idle_s"]) == (1, 12, 4)
    for rank in (first, second):
        assert [*rank["idle_by_cause_s"]] == list(CAUSES)
        assert sum(rank["idle_by_cause_s"].values()) == pytest.approx(rank["idle_s"])
    assert (first["peak_activation_bytes"], first["peak_bytes"], first["peak_at"]) == (16, 21, "0F1")
    assert (second["peak_activation_bytes"], second["peak_bytes"], second["peak_at"]) == (8, 15, "1F0")


def test_a_step_has_its_ratios_bounds_and_the_time_between_steps() -> None:
    timeline = simulate(TABLE, COSTS)
    report = report_of(timeline, COSTS, memory_limit_bytes=30)
    assert (report["schedule"], report["pp"], report["vpp"], report["microbatches"]) == ("1f1b", 2, 1, 3)
    assert (report["step_time_s"], report["span_s"], report["bubble_ratio"]) == (16, 16, 0.25)
    assert (report["step_overhead_s"], report["iteration_time_s"]) == (0.5, 16.5)
    bounds = bounds_of(TABLE, COSTS, memory_limit_bytes=30)
    assert (report["lower_bound_s"], report["span_lower_bound_s"]) == (bounds.step_s, bounds.span_s)
    assert report["memory_limit_bytes"] == 30
    assert report["critical_path"][0] == "0F0"
    assert report["critical_path"][-1] == "0B2"


def test_a_gap_is_relative_to_the_bound_and_never_negative() -> None:
    assert (gap_of(5.0, 4.0), gap_of(3.0, 4.0), gap_of(3.0, 0.0)) == (0.25, 0.0, 0.0)


@pytest.mark.parametrize(("limit", "bounded"), [(21, 21), (20, None), (None, None)])
def test_bounds_keep_a_limit_that_the_step_keeps(limit: float | None, bounded: float | None) -> None:
    """Rank 0 needs 21 bytes. The limit itself is reported in any case."""
    report = report_of(simulate(TABLE, COSTS), COSTS, memory_limit_bytes=limit)
    assert report["lower_bound_s"] == bounds_of(TABLE, COSTS, memory_limit_bytes=bounded).step_s
    assert report["memory_limit_bytes"] == limit
