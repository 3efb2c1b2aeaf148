"""Stored timelines and measured steps are read as they were written; files that contradict themselves are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.runs import timeline_file as timeline_file_module
from ppsim.runs.timeline_file import (
    _blockers,
    pace_from,
    read_expected,
    read_timeline,
    run_from_json,
    timeline_from_json,
    timeline_to_json,
)
from ppsim.runs.timeline_import import import_run
from tests.defaults import number_defaults

COSTS = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=0.5, transfer_s=0.25)
TIMELINE = replace(simulate(build("1f1b", pp=2, microbatches=2), COSTS), origin="measured")
STEPS = {
    "between_steps_s": [0.5],
    "message_bytes": 1024,
    "knows_transfers": True,
    "start_s": [TIMELINE.start.tolist(), (TIMELINE.start + 10).tolist()],
    "end_s": [TIMELINE.end.tolist(), (TIMELINE.end + 11).tolist()],
}


def stored(**fields: Any) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(json.dumps(timeline_to_json(TIMELINE, COSTS, **fields)))
    return written


def test_a_timeline_is_read_as_it_was_written() -> None:
    timeline, costs = timeline_from_json(stored(), "a.json")
    assert costs.resolved_for(timeline.schedule).transfer_s.tolist() == TIMELINE.costs.transfer_s.tolist()
    assert timeline.schedule == TIMELINE.schedule
    for name in ("start", "end", "blocker"):
        assert getattr(timeline, name).tolist() == getattr(TIMELINE, name).tolist()


def test_measured_steps_are_read_as_they_were_written() -> None:
    speed = {"reference_s": [[0.1, 0.2], [0.3, 0.4]], "reference_work": "GEMMs", "reference_layers": [1, 2]}
    waits = np.full((2, TIMELINE.num_actions), 0.125).tolist()
    found = STEPS | speed | {"to_collective_s": [[0.0, 0.1]], "launch_wait_s": waits}
    run = run_from_json(stored(steps=found), "a.json")
    assert run.launch_wait_s is not None
    assert import_run(run, 0).to_json()["launch_wait_s"] == run.launch_wait_s.tolist() == waits
    assert run.start.tolist() == STEPS["start_s"]
    assert run.end.tolist() == STEPS["end_s"]
    assert (run.gaps_s, run.message_bytes, run.knows_transfers) == ([0.5], 1024, True)
    assert (run.reference_s, run.reference_work) == (speed["reference_s"], "GEMMs")
    assert (run.reference_layers, run.to_collective_s) == ([1, 2], [[0.0, 0.1]])


def test_files_of_older_versions_have_one_step_or_one_reference_per_step_of_unknown_work() -> None:
    alone = run_from_json(stored(), "a.json")
    assert alone.start.tolist() == [TIMELINE.start.tolist()]
    assert alone.has_own_costs
    assert not run_from_json(stored(run={"emulated": False}), "a.json").has_own_costs
    run = run_from_json(stored(steps=STEPS | {"reference_s": [0.1, 0.2], "reference_work": "sums"}), "a.json")
    assert (run.reference_s, run.reference_work) == ([[0.1, 0.1], [0.2, 0.2]], "")


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"reference_s": [[0.1, 0.1]]}, "reference_s has 1 entries for 2 steps"),
        ({"reference_s": [[0.1], [0.1]]}, "reference_s has 1 entries for 2 ranks"),
        ({"reference_layers": [1]}, "reference_layers has 1 entries for 2 stages"),
        ({"reference_layers": [1, 1, 1]}, "reference_layers has 3 entries for 2 stages"),
        ({"to_collective_s": [[0.0, 0.0]] * 2}, "to_collective_s has 2 entries for 1 gaps"),
        ({"to_collective_s": [[0.0]]}, "to_collective_s has 1 entries for 2 ranks"),
        ({"launch_wait_s": [[0.0]]}, "launch_wait_s has 1 entries for 2 steps"),
        ({"launch_wait_s": [[0.0]] * 2}, f"launch_wait_s has 1 entries for {TIMELINE.num_actions} actions"),
        ({"work_s": {"optimizer": []}}, "work_s has 0 entries for 2 steps"),
        ({"work_s": {"optimizer": [[0.0]] * 2}}, f"work_s has 1 entries for {TIMELINE.num_actions} actions"),
        ({"start_s": STEPS["start_s"][:1]}, "every step"),
        ({"start_s": [[0.0], [0.0]], "end_s": [[0.0], [0.0]]}, f"needs {TIMELINE.graph.num_nodes} entries"),
        ({"end_s": [STEPS["end_s"][0], [0.0] * TIMELINE.graph.num_nodes]}, "end_s[1][0] is before the start"),
    ],
)
def test_steps_that_contradict_the_table_are_refused(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as error:
        run_from_json(stored(steps=STEPS | fields), "a.json")
    assert place in str(error.value)


@pytest.mark.parametrize(
    ("name", "entries", "place"),
    [
        ("start_s", [0.0], "has 1 entries"),
        ("end_s", [-1.0] * TIMELINE.graph.num_nodes, "end_s[0] is before the start"),
        ("blocker", [TIMELINE.graph.num_nodes] * TIMELINE.graph.num_nodes, f"holds {TIMELINE.graph.num_nodes}"),
        ("blocker", [-2] * TIMELINE.graph.num_nodes, "holds -2"),
        ("blocker", [1, 0] + [-1] * (TIMELINE.graph.num_nodes - 2), "circle at entry"),
    ],
)
def test_a_timeline_that_contradicts_its_table_is_refused(name: str, entries: list[float], place: str) -> None:
    data = stored()
    data["timeline"][name] = entries
    with pytest.raises(ConfigError) as error:
        timeline_from_json(data, "a.json")
    assert place in str(error.value)


def test_a_simulated_timeline_is_no_run() -> None:
    simulated = stored() | {"origin": "simulated"}
    assert timeline_from_json(simulated, "a.json")[0].origin == "simulated"
    with pytest.raises(ConfigError):
        run_from_json(simulated, "a.json")


def test_the_interval_of_a_step_excludes_the_time_between_steps(tmp_path: Path) -> None:
    step_s = TIMELINE.step_time_s
    (tmp_path / "a.json").write_text(
        json.dumps(stored(iteration_time_s=step_s + 2, iteration_time_interval_s=[step_s + 1, step_s + 4]))
    )
    expected = read_expected(tmp_path / "a.json")[2]
    assert expected.iteration_time_interval_s == pytest.approx((step_s - 1, step_s + 2))
    assert expected.pace is None
    timeline, costs = read_timeline(tmp_path / "a.json")
    assert (timeline.step_time_s, costs.transfer_s) == (step_s, read_expected(tmp_path / "a.json")[1].transfer_s)


def test_a_machine_speed_without_its_ends_is_of_unknown_work() -> None:
    assert pace_from(None, None, "GEMMs") is None
    old, new = pace_from(0.1, None, "GEMMs"), pace_from(0.1, [0.2, 0.3], "GEMMs")
    assert old is not None
    assert new is not None
    assert (old.work, old.layer_s, old.ends_s) == ("", 0.1, (0.0, 0.0))
    assert (new.work, new.layer_s, new.ends_s) == ("GEMMs", 0.1, (0.2, 0.3))


def test_an_expectation_has_the_speed_the_runs_and_the_interval_of_its_file(tmp_path: Path) -> None:
    speed = {"reference_s": 0.25, "reference_ends_s": [0.5, 0.75], "reference_work": "GEMMs"}
    interval = {"iteration_time_s": TIMELINE.step_time_s + 3.0, "iteration_time_interval_s": [10.0, 20.0]}
    file = tmp_path / "a.json"

    def expected(**fields: Any) -> Any:
        file.write_text(json.dumps(stored() | {"overheads_fitted_runs": ["a", "b"]} | fields))
        return read_expected(file)[2]

    found = expected(**speed, **interval)
    assert (found.pace.work, found.pace.layer_s, found.pace.ends_s) == ("GEMMs", 0.25, (0.5, 0.75))
    assert found.fitted_runs == ("a", "b")
    assert found.iteration_time_interval_s == pytest.approx((7.0, 17.0))
    for name in interval:
        assert expected(**interval | {name: None}).iteration_time_interval_s is None
    assert expected().pace is None


def test_usual_tables_have_no_replicas_slices_or_rounds() -> None:
    content = stored()
    for name in ("replicas", "slices", "gradient_accumulation_steps"):
        content.pop(name, None)
    timeline, _ = timeline_from_json(content, "a.json")
    table = timeline.schedule
    assert (table.num_replicas, table.num_slices, table.num_rounds) == (1, 1, 1)
    assert timeline_from_json(content | {"gradient_accumulation_steps": 2}, "a.json")[0].schedule.num_rounds == 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"model_type": "llama"}, "a.json is a model's config.json, not a recorded run"),
        ({"format": "other"}, "a.json is no timeline: ppsim project, train and simulate write a timeline"),
        ([], "a.json is no timeline"),
    ],
)
def test_other_files_are_no_timelines(content: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        timeline_from_json(content, "a.json")


def test_an_action_may_take_no_time_and_a_table_must_be_complete() -> None:
    content = stored(steps=STEPS)
    content["timeline"]["end_s"][0] = content["timeline"]["start_s"][0]
    content["steps"] = json.loads(json.dumps(STEPS))
    content["steps"]["end_s"][1][0] = content["steps"]["start_s"][1][0]
    run = run_from_json(content, "a.json")
    assert run.end[1, 0] == run.start[1, 0]
    content["table"] = content["table"][:1]
    with pytest.raises(PpsimError, match=r"a\.json"):
        run_from_json(content, "a.json")


@pytest.mark.parametrize(("blocker", "entry"), [([-1, 0, 3, 2], 2), ([1, 0, 0, 2], 0), ([-1, 1], 1)])
def test_blockers_in_a_circle_are_refused_with_an_entry_of_it(blocker: list[int], entry: int) -> None:
    with pytest.raises(ConfigError, match=f"timeline.blocker goes round in a circle at entry {entry}"):
        _blockers(blocker, "a.json")
    assert _blockers([-1, 0, 1, 2], "a.json").tolist() == [-1, 0, 1, 2]
    for wrong in (4, -2):
        with pytest.raises(ConfigError, match=f"timeline.blocker holds {wrong}; there are 4 nodes"):
            _blockers([-1, wrong, 1, 2], "a.json")


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(timeline_file_module) == {
        "_File": {"replicas": 1, "slices": 1, "gradient_accumulation_steps": 1}
    }
