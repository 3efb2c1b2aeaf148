"""Two timelines side by side: what cannot be compared is refused."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.base.errors import ConfigError
from ppsim.runs import compare as compare_module
from ppsim.runs.compare import (
    Comparison,
    OpError,
    compare,
    expected_costs,
    pace_of,
    replay_s,
    summary_of,
)
from ppsim.schedule.graph import build_graph
from ppsim.simulation.engine import evaluate
from ppsim.simulation.timeline import Timeline

UNIT = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
TABLE = build("1f1b", pp=2, microbatches=4)


def test_a_step_of_half_the_time_is_fifty_percent_too_fast():
    half = StageCosts(forward_s=0.5, backward_input_s=0.5, backward_weight_s=0.5)
    found = compare(simulate(TABLE, UNIT), simulate(TABLE, half))
    assert (found.step_error, found.span_error, found.replay_error) == (-0.5, -0.5, 0.0)
    assert {op.error for op in found.ops} == {-0.5}


def test_a_replay_takes_the_mean_of_waits_that_vary():
    """1F1B on 4 ranks, passes off by 20 % and hops exponential: within 3 %, where without hops 15 % were missing."""
    table = build("1f1b", pp=4, microbatches=16)
    graph, random = build_graph(table), np.random.default_rng(0)
    durations = np.concatenate([random.lognormal(0, 0.2, len(table)), random.exponential(0.5, graph.num_transfers)])
    times = evaluate(graph, durations, np.zeros(graph.num_nodes))
    costs = UNIT.resolved_for(table)
    measured = Timeline(graph, times.start, times.end, times.blocker, costs, origin="measured")
    found = compare(measured, simulate(table, UNIT))
    assert abs(found.replay_error) < 0.03
    assert replay_s(measured) / measured.step_time_s < 0.85
    known = replace(measured, costs=UNIT.replace(transfer_s=0.5).resolved_for(table))
    assert compare(known, simulate(table, UNIT)).replay_hop_s is None


def test_two_tables_cannot_be_compared():
    other = build("1f1b", pp=2, microbatches=5)
    with pytest.raises(ConfigError, match=r"different tables: .* 4 microbatches\) and .* 5 microbatches\)"):
        compare(simulate(TABLE, UNIT), simulate(other, UNIT))


def test_a_measured_step_that_took_no_time_cannot_be_compared_with():
    nothing = StageCosts(forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0)
    with pytest.raises(ConfigError, match="the measured step took 0 s"):
        compare(simulate(TABLE, nothing), simulate(TABLE, UNIT))


def comparison(**fields) -> Comparison:
    return replace(compare(simulate(TABLE, UNIT), simulate(TABLE, UNIT.replace(forward_s=[1.0, 2.0]))), **fields)


def test_periods_are_steps_with_the_time_between_them():
    assert comparison().periods_s is None
    measured_s, projected_s = comparison(between_s=(1.0, 2.0)).periods_s
    assert (measured_s, projected_s) == (15 + 1, comparison().projected.step_time_s + 2)


def test_a_step_is_inside_an_interval_with_its_ends():
    told = "the measured step is {} the projection's 90 % interval ({})"
    for low, high, word in (
        (15.0, 16.0, "inside"),
        (14.0, 15.0, "inside"),
        (15.1, 16.0, "outside"),
        (14.0, 14.9, "outside"),
    ):
        found = comparison(iteration_time_interval_s=(low, high))
        assert found.inside_interval == (word == "inside")
        assert found.told == [told.format(word, f"{low:.1f} s to {high:.1f} s")]
    assert (comparison().inside_interval, comparison().told) == (None, [])


def test_an_error_at_equal_speed_leaves_out_the_pace():
    found = comparison(step_error=-0.1, pace=0.75)
    assert found.error_at_pace == pytest.approx(0.2)
    assert found.told[0].startswith("machine speed during the run: 0.75 × the speed during profiling")
    assert found.one_line.startswith("measured 15.0 s, projected ")
    assert "(-10.00 %, at equal speed +20.00 %), replayed +0.00 %" in found.one_line
    assert comparison().error_at_pace is None
    works = comparison(reference_works=("", "F and B")).told
    assert works == [
        "no error at equal speed: the reference work of the profile is unknown (an older version of ppsim), of the "
        "run F and B"
    ]


def test_overheads_of_the_run_itself_are_a_warning():
    own = comparison(overheads_fitted_on_this_run=True)
    assert len(own.warnings) == 1
    assert own.one_line.endswith("overheads fitted on this run")
    assert comparison().warnings == []


def test_the_worst_stage_has_the_largest_error_of_either_sign():
    assert comparison().worst_stage == 1
    errors = [OpError("F", 0, 1.0, 0.5), OpError("F", 1, 1.0, 1.25), OpError("B", 2, 0.0, 1.0)]
    assert comparison(ops=errors).worst_stage == 0
    assert errors[2].error == 0
    assert errors[0].to_json() == {"op": "F", "stage": 0, "measured_s": 1.0, "projected_s": 0.5, "error": -0.5}


class Paced:
    """A run whose steps take 2 s, and 3 s at the expected pace."""

    reference_s, reference_work, reference_layers = [1.0], "F and B", 2
    step_times_s = np.array([2.0, 1.0, 9.0])
    graph = build_graph(TABLE)

    def at_pace(self, expected_s: object) -> "Paced":
        assert expected_s == "seconds of ranks"
        faster = Paced()
        faster.step_times_s = np.array([3.0, 1.0, 9.0])
        return faster


class Reference:
    def __init__(self, work: str) -> None:
        self.work = work

    def ranks_s(self, schedule: object, layers: int) -> str:
        assert (schedule, layers) == (TABLE, 2)
        return "seconds of ranks"


def test_the_pace_is_of_the_same_work():
    run = Paced()
    assert pace_of(run, Reference("F and B")) == {"pace": 3 / 2}
    assert pace_of(run, Reference("F")) == {"reference_works": ("F", "F and B")}
    assert pace_of(run, None) == {}
    run.reference_s = []
    assert pace_of(run, Reference("F and B")) == {}
    run.reference_s, run.reference_work = [1.0], ""
    assert pace_of(run, Reference("")) == {"reference_works": ("", "")}


def test_costs_of_a_replay_have_the_slow_down_by_transfers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_module, "unslowed_costs", lambda run, slowdown: ("unslowed", slowdown))
    monkeypatch.setattr(
        compare_module,
        "with_overheads",
        lambda costs, constants, line, message_bytes: (costs, constants, message_bytes),
    )

    def costs_of(slowdown: float, **fields: bool) -> object:
        run = SimpleNamespace(costs="costs", message_bytes=7.0, **fields)
        return expected_costs(run, {"overlap_slowdown": slowdown})  # type: ignore[arg-type]

    kept = {"overlap_slowdown": 0.25}
    assert costs_of(0.25, has_own_costs=True, knows_transfers=True) == ("costs", kept, 7.0)
    assert costs_of(0.25, has_own_costs=False, knows_transfers=True) == (("unslowed", 0.25), kept, 7.0)
    assert costs_of(0.25, has_own_costs=False, knows_transfers=False) == ("costs", {"overlap_slowdown": 0.0}, 7.0)
    assert costs_of(0.0, has_own_costs=False, knows_transfers=True) == ("costs", {"overlap_slowdown": 0.0}, 7.0)


def test_without_recorded_transfers_a_replay_has_the_median_gap_before_each_action():
    """Two ranks wait 0.25 s before each of eight actions."""
    slow = simulate(TABLE, UNIT.replace(action_overhead_s=0.25))
    actions = slow.num_actions
    start, end = slow.start.copy(), slow.end.copy()
    start[actions:] = end[actions:]
    compared = compare(replace(slow, start=start, end=end), simulate(TABLE, UNIT))
    assert (compared.replay_gap_s, compared.replay_hop_s) == (0.25, None)
    assert compared.replay_s == pytest.approx(slow.step_time_s, abs=0.25)


def test_a_summary_has_all_errors_and_the_fitted_constants():
    compared = comparison(between_s=(1.0, 2.0), pace=0.5, iteration_time_interval_s=(14.0, 16.0))
    summary = summary_of(compared, None)
    assert (summary["schedule"], summary["measured_step_time_s"]) == ("1f1b", 15.0)
    assert summary["periods_s"] == [16.0, compared.projected.step_time_s + 2]
    assert summary["projected_interval_s"] == [14.0, 16.0]
    assert (summary["reference_works"], summary["pace"], "fitted" in summary) == (None, 0.5, False)
    assert [row["error"] for row in summary["ops"]] == [0.0, 1.0, 0.0, 0.0]
    fitted = SimpleNamespace(to_json=lambda: {"action": 1.0})
    assert summary_of(comparison(), fitted)["fitted"] == {"action": 1.0}  # type: ignore[arg-type]
