"""What a run gives away: its report, its file and its picture."""

from types import SimpleNamespace
from typing import Any

import ppsim
from ppsim.api.run_result import RunResult, run_content
from ppsim.simulation.report import report_of

COSTS = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=2.0)
TIMELINE = ppsim.simulate(ppsim.build("1f1b", pp=2, microbatches=3), COSTS)


def test_a_run_has_the_report_of_its_median_step_at_its_costs() -> None:
    run: Any = SimpleNamespace(timeline=TIMELINE, costs=COSTS, title="run", step_times_s=[1.0, 2.0, 3.0])
    assert RunResult.report(run) == report_of(TIMELINE, COSTS)
    assert RunResult.one_line.fget(run) == "run: 3 steps, the median 16.0 s"  # type: ignore[attr-defined]
    assert RunResult.to_frame(run).equals(TIMELINE.to_frame())


def test_a_run_is_drawn_as_its_timeline_with_its_title() -> None:
    run: Any = SimpleNamespace(timeline=TIMELINE, title="run", to_json=lambda: {"steps": 3})
    content = run_content(run)
    [view] = content.views
    assert (view.timeline, view.title, content.report()) == (TIMELINE, "run", {"steps": 3})
