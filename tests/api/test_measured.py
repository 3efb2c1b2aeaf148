"""Measured runs next to projections: names, costs, missing ranks and faster schedules."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ppsim
from ppsim.api import measured
from ppsim.errors import ConfigError
from ppsim.simulation.stage_costs import OVERHEADS
from tests.projection.by_hand import by_hand

COSTS = ppsim.StageCosts(
    forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, transfer_s=0.25, action_overhead_s=0.5,
    hop_overhead_s=0.125, overlap_slowdown=0.1, step_overhead_s=2.0, first_pass_s=0.75, last_pass_s=0.625,
)  # fmt: skip


def test_two_projections_are_compared_by_their_files_and_timelines(tmp_path: Path) -> None:
    first, second = by_hand(), by_hand(step_overhead_s=2.0)
    for folder, made in (("one", first), ("two", second)):
        (tmp_path / folder).mkdir()
        ppsim.save(made, tmp_path / folder / "plan.json")
        (tmp_path / f"{folder}.json").write_text((tmp_path / folder / "plan.json").read_text())
    paths = str(tmp_path / "one.json"), str(tmp_path / "two.json")
    found = measured.compare_plans(*paths)
    assert found is not None
    assert found.names == ("one.json", "two.json")
    assert found.iteration_time_s == (first.iteration_time_s, second.iteration_time_s)
    assert found.timelines is not None
    assert [one.step_time_s for one in found.timelines] == [first.timeline.step_time_s, second.timeline.step_time_s]
    same = str(tmp_path / "one" / "plan.json"), str(tmp_path / "two" / "plan.json")
    named = measured.compare_plans(*same)
    assert named is not None
    assert named.names == same
    report = json.loads(Path(paths[1]).read_text())
    Path(paths[1]).write_text(json.dumps({name: value for name, value in report.items() if name != "format"}))
    without = measured.compare_plans(*paths)
    assert without is not None
    assert without.timelines is None


def test_files_that_are_no_two_projections_are_not_compared_as_plans(tmp_path: Path) -> None:
    made = tmp_path / "plan.json"
    ppsim.save(by_hand(), made)
    other = tmp_path / "other.json"
    other.write_text('{"origin": "measured", "time_breakdown_s": {}}')
    assert measured.compare_plans(str(other), str(made)) is None
    assert measured.compare_plans(str(made), str(other)) is None
    assert measured.compare_plans(str(tmp_path), str(made)) is None
    assert measured.compare_plans("run.csv", str(made)) is None
    assert measured.compare_plans(str(tmp_path / "folder.json"), str(made)) is None
    with pytest.raises(ConfigError, match=r"no-such.json"):
        measured.compare_plans(str(made), "no-such.json")


def opened(*, ranks: int = 6, question: str = "", **facts: Any) -> Any:
    run = SimpleNamespace(source="the files", graph=SimpleNamespace(schedule=SimpleNamespace(num_ranks=ranks)))
    return SimpleNamespace(measured=SimpleNamespace(run=run), facts=facts, question=question)


@pytest.mark.parametrize(
    ("facts", "ranks", "sentence"),
    [
        ({}, None, ""),
        ({"question": "Missing?"}, None, "Missing? If 6 ranks ran, give --ranks 6."),
        ({}, 6, ""),
        (
            {},
            8,
            "without rank 6, 7 (the times do not show a missing rank: did 6 run?): the time that others wait for it "
            "has another cause below",
        ),
        ({"question": "Missing?"}, 7, "without rank 6: the time that others wait for it has another cause below"),
        ({"job_ranks": 9}, 7, "without rank 6: the time that others wait for it has another cause below"),
        (
            {"missing_ranks": [2, 5, 7]},
            8,
            "without rank 2, 5: the time that others wait for it has another cause below",
        ),
    ],
)
def test_ranks_without_a_recording_are_named_with_a_doubt(
    facts: dict[str, Any], ranks: int | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = facts.pop("question", "")
    monkeypatch.setattr(measured, "missing_rank_question", lambda run: question)
    facts.setdefault("missing_ranks", [])
    assert measured._missing_ranks(opened(**facts), ranks) == sentence


@pytest.mark.parametrize(
    ("facts", "ranks", "sentence"),
    [
        (
            {"missing_ranks": [2, 7]}, None,
            "the files lacks rank 2, 7 of the job's 8, as its files count them: give all, --ranks 8 to explain the "
            "others alone, or --ranks 6 if these are a whole pipeline",
        ),
        ({}, 5, "--ranks 5: there are recordings of 6 ranks"),
        ({"job_ranks": 8}, 9, "--ranks 9: the job had 8 ranks, as its files count them"),
    ],
)  # fmt: skip
def test_a_number_of_ranks_that_contradicts_the_files_is_refused(
    facts: dict[str, Any], ranks: int | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "missing_rank_question", lambda run: "")
    with pytest.raises(ConfigError) as error:
        measured._missing_ranks(opened(**facts), ranks)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    ("facts", "seconds"),
    [
        ({"kind": "Primus dump", "clocks": {"hop_s": 0.25}}, 0.25), ({"kind": "Primus dump"}, None),
        ({"kind": "traces of torch.profiler", "clocks": {"hop_s": 0.25}}, None), ({"clocks": {"hop_s": 0.25}}, None),
    ],
)  # fmt: skip
def test_blocking_calls_are_known_of_primus_alone(facts: dict[str, Any], seconds: float | None) -> None:
    assert measured._megatron_call_s(facts) == seconds


def test_a_projection_to_explain_against_is_a_result_costs_or_a_file_of_either(tmp_path: Path) -> None:
    made = by_hand()
    table = made.timeline.schedule
    assert measured._projected(made.timeline, table) == (made.timeline, None)
    assert measured._projected(made, table) == (made.timeline, made.costs)
    simulated = ppsim.simulate(table, COSTS)
    assert measured._projected(COSTS, table)[0].step_time_s == simulated.step_time_s
    assert measured._projected(COSTS, table)[1] is COSTS
    ppsim.save(made, tmp_path / "plan.json")
    timeline, _ = measured._projected(tmp_path / "plan.json", table)
    assert timeline.step_time_s == made.timeline.step_time_s
    (tmp_path / "costs.json").write_text(
        '{"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0, "transfer_s": 0.25}'
    )
    timeline, costs = measured._projected(tmp_path / "costs.json", table)
    assert costs is not None
    assert (costs.transfer_s, timeline.step_time_s) == ([0.25], ppsim.simulate(table, costs).step_time_s)
    (tmp_path / "report.json").write_text('{"step_time_s": 1.0}')
    with pytest.raises(ConfigError, match=r"report.json is a report without its timeline"):
        measured._projected(tmp_path / "report.json", table)
    assert measured._shape_of(table) == "2 ranks and 4 microbatches"


def test_expected_costs_have_no_overheads(tmp_path: Path) -> None:
    free = measured._costs_of(COSTS)
    assert {name: getattr(free, name) for name in OVERHEADS} == dict.fromkeys(OVERHEADS, 0.0)
    assert (free.forward_s, free.transfer_s) == (1.0, 0.25)
    (tmp_path / "costs.json").write_text(
        '{"forward_s": 3.0, "backward_input_s": 1.0, "backward_weight_s": 1.0, "action_overhead_s": 0.5}'
    )
    found = measured._costs_of(tmp_path / "costs.json")
    assert (found.forward_s, found.action_overhead_s) == ([3.0], 0.0)
    ppsim.save(by_hand(action_overhead_s=0.5), tmp_path / "plan.json")
    found = measured._costs_of(tmp_path / "plan.json")
    assert (found.hop_overhead_s, found.action_overhead_s) == (0.0, 0.0)


def test_traces_are_one_run_and_other_files_and_folders_each_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"a.json": "trace", "b.csv": "csv", "c.sqlite": "sqlite"}
    groups: list[tuple[Any, ...]] = []

    def open_run(*group: Any, **options: Any) -> Any:
        groups.append(tuple(Path(one).name for one in group))
        assert options == {"table": None, "given": COSTS, "warm_up": 3}
        return SimpleNamespace(measured=SimpleNamespace(run=f"run {len(groups)}"))

    monkeypatch.setattr(measured, "file_format", lambda path: kinds[Path(path).name])
    monkeypatch.setattr(measured, "open_run_if_path", open_run)
    monkeypatch.setattr(measured, "missing_ranks_note", lambda run: run.measured.run.replace("run", "note"))
    sources = [tmp_path / "a.json", tmp_path / "b.csv", tmp_path, tmp_path / "c.sqlite"]
    assert list(measured._runs(sources, None, COSTS, 3)) == [(f"run {n}", f"note {n}") for n in (1, 2, 3)]
    assert groups == [("b.csv",), (tmp_path.name,), ("a.json", "c.sqlite")]
    groups.clear()
    assert len(list(measured._runs(sources[1:2], None, COSTS, 3))) == 1


def test_a_calibration_needs_a_run_and_a_warm_up_that_is_not_negative() -> None:
    with pytest.raises(ConfigError, match="--warm-up must not be negative: got -1"):
        measured.calibrate("a.json", warm_up=-1)
    with pytest.raises(ConfigError, match="there must be at least one measured run"):
        measured.calibrate(warm_up=0)


@pytest.mark.parametrize(
    ("facts", "trainer"),
    [
        ({"kind": "Primus dump"}, "primus"), ({"kind": "OpenTelemetry spans"}, "megatron"),
        ({"kind": "traces", "stages_by": "rank"}, "megatron"), ({"stages_by": "chunks"}, "megatron"),
        ({"kind": "traces", "stages_by": "names"}, "torch"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("seconds", "saves_s"), [((12.0, 13.0), 4.0), ((15.84, 17.0), 0.16), ((15.85,), None), ((), None)]
)
def test_a_faster_schedule_of_the_trainer_saves_a_hundredth(
    facts: dict[str, Any],
    trainer: str,
    seconds: tuple[float, ...],
    saves_s: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str]] = []
    others = [
        SimpleNamespace(
            iteration_time_s=time, plan=SimpleNamespace(schedule_name=f"zb-{index}"),
            timeline=SimpleNamespace(schedule=SimpleNamespace(vpp=3 + index)),
        )
        for index, time in enumerate(seconds)
    ]  # fmt: skip
    own = by_hand(runtime="ideal").plan
    monkeypatch.setattr("ppsim.api.project.plan_of_options", lambda options: replace(own, vpp=1, schedule="1f1b"))
    monkeypatch.setattr("ppsim.projection.project.project", lambda plan: SimpleNamespace(iteration_time_s=16.0))

    def project_all(plan: Any, names: list[str]) -> Any:
        assert (plan.schedule, plan.vpp) == (None, None)
        assert "1f1b" in names
        assert "zb-auto" not in names, "it would be searched for"
        return SimpleNamespace(projections=others)

    monkeypatch.setattr("ppsim.projection.project.project_all", project_all)
    monkeypatch.setattr(measured, "is_run_by", lambda *of: asked.append(of) or True)
    found = measured._faster_schedule(SimpleNamespace(facts=facts))  # type: ignore[arg-type]
    assert {name for name, _ in asked} == {trainer}
    expected = None if saves_s is None else ("--schedule zb-0 --vpp 3", pytest.approx(saves_s))
    assert found == expected


@pytest.mark.parametrize("is_measured", [False, True])
def test_a_projection_to_compare_with_has_its_interval_its_speed_and_its_runs(is_measured: bool) -> None:
    """The step ends 1.5 s before the iteration, and so does its interval."""
    timeline = by_hand(runtime="ideal").timeline
    rehearsal = SimpleNamespace(pace_s=0.25, reference_ends_s=[0.5, 0.75], reference_work="work")
    asked: list[Any] = []

    def summarise(**options: Any) -> Any:
        asked.append(options)
        return SimpleNamespace(iteration_time_interval_s=(16.0, 19.0))

    projection: Any = SimpleNamespace(
        plan=SimpleNamespace(rehearsal=rehearsal if is_measured else None, fitted_runs=("one", "two")),
        timeline=timeline, iteration_time_s=timeline.step_time_s + 1.5, summarise=summarise,
    )  # fmt: skip
    expectation = measured._expectation(projection)
    assert expectation.iteration_time_interval_s == (14.5, 17.5)
    assert expectation.fitted_runs == ("one", "two")
    assert asked == [{"with_advice": False}]
    pace = expectation.pace
    assert (pace is not None) == is_measured
    if pace is not None:
        assert (pace.work, pace.layer_s, pace.ends_s) == ("work", 0.25, (0.5, 0.75))
