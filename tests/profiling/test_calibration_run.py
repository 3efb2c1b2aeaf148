"""A run is rehearsed: what its steps tell is what was done to them, and projections take it."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.base.units import signed_percent
from ppsim.costs.profile import CalibrationRun, Profile, load_profile
from ppsim.profiling import calibration_run as rehearsal
from ppsim.profiling.calibration_run import FEW, MORE, fit_overheads
from ppsim.profiling.settings import MeasurementKey, MeasuringSettings
from ppsim.runs.run import Run, median_costs
from ppsim.runs.timeline_file import timeline_to_json
from ppsim.runs.timeline_import import ImportedRun, import_run
from ppsim.runtime.train_config import GPTShape
from ppsim.simulation.engine import evaluate
from ppsim.simulation.simulate import durations_s
from ppsim.simulation.stage_costs import StageCosts
from tests.cli.running import ppsim as command
from tests.cli.running import words_of


def slowed(profile: Profile, *, num_processes: int = 2, slowdown: float = 1.25) -> Profile:
    found = CalibrationRun(
        num_processes=num_processes, num_threads=1, slowdown=slowdown,
        action_overhead_s=4e-4, hop_overhead_s=9e-4, step_spread=0.02,
    )  # fmt: skip
    return replace(profile, rehearsal=found)


def simulated(profile: Profile, layers: int, **overheads: float) -> ImportedRun:
    """A run of so many layers per stage, each step as projected."""
    plan = ppsim.Plan(
        pp=2, schedule="1f1b", profile=slowed(profile), num_layers=2 * layers, split=[layers] * 2, **overheads
    )  # type: ignore[arg-type]
    timeline = ppsim.project(plan).timeline
    start, end = np.stack([timeline.start] * 4), np.stack([timeline.end] * 4)
    actions = timeline.graph.num_actions
    medians = median_costs(timeline.graph, (end - start)[:, :actions])
    return import_run(Run("", timeline.graph, medians, start, end, has_own_costs=False), 0)


@pytest.fixture
def published() -> Profile:
    """Of passes that take milliseconds, without its transfers."""
    return replace(load_profile("zb-a100-6.2b"), transfers=[])


def test_two_pipelines_tell_the_slow_down_from_an_action_and_both_from_a_hop(published: Profile) -> None:
    pair = [simulated(published, layers, action_overhead_s=4e-4, hop_overhead_s=9e-4) for layers in (FEW, MORE)]
    found = fit_overheads(published, published.shape_at(), pair)
    assert found["slowdown"] == pytest.approx(1.25, rel=1e-3)
    assert found["hop_overhead_s"] == pytest.approx(9e-4, rel=1e-3)
    assert found["action_overhead_s"] == pytest.approx(4e-4, rel=3e-3)
    assert found["step_spread"] == 0
    assert found["reference_s"] == []
    assert found["pass_factors"] == [1.0] * len(found["pass_factors"])


@pytest.mark.parametrize(("spread", "slowdown"), [(0.02, 1.0), (0.2, 1.5)])
def test_what_varying_passes_cost_is_no_overhead_and_comes_back_in_the_projection(
    published: Profile, spread: float, slowdown: float
) -> None:
    """Drawn steps of two sizes: passes as they are come back, and a step of a third size within 1 %."""
    pair = [drawn(published, layers, spread, slowdown) for layers in (FEW, MORE)]
    found = fit_overheads(published, published.shape_at(), pair)
    assert found["slowdown"] == pytest.approx(slowdown, rel=0.03)
    longest = pair[0].run.step_times_s.max()
    assert found["action_overhead_s"] * 16 < 0.05 * longest
    profile = replace(published, rehearsal=CalibrationRun(num_processes=2, num_threads=1, **found))
    made = ppsim.project(pp=2, schedule="1f1b", layers=4, profile=profile, split=[2, 2])
    expected = drawn(published, 2, spread, slowdown).step_times_s
    assert made.timeline.step_time_s == pytest.approx(np.mean(expected), rel=0.01)
    assert made.summary.time_breakdown_s["passes that vary"] == pytest.approx(
        made.timeline.step_time_s
        - ppsim.simulate(made.timeline.schedule, made.costs.replace(variation_s=0)).step_time_s
    )
    low, high = made.summary.iteration_time_interval_s
    assert low < made.iteration_time_s < high


def drawn(profile: Profile, layers: int, spread: float, slowdown: float, num_steps: int = 200) -> ImportedRun:
    """A run of so many layers per stage, whose passes are drawn."""
    plan = ppsim.Plan(pp=2, schedule="1f1b", profile=profile, num_layers=2 * layers, split=[layers] * 2)
    timeline = ppsim.project(plan).timeline
    graph, random = timeline.graph, np.random.default_rng(layers)
    durations = durations_s(graph, timeline.costs)
    times = [
        evaluate(graph, durations * slowdown * random.lognormal(0, spread, len(durations)), 0 * durations)
        for _ in range(num_steps)
    ]
    start, end = np.stack([one.start for one in times]), np.stack([one.end for one in times])
    medians = median_costs(graph, (end - start)[:, : graph.num_actions])
    return import_run(Run("", graph, medians, start, end, has_own_costs=False), 0)


def at_other_paces(measured: ImportedRun, factors: Sequence[float], ranks_s: Sequence[float]) -> ImportedRun:
    """The same steps on a machine that gave now more, now less."""
    run, slower = measured.run, np.array(factors)[:, None]
    taken = (slower * np.array(ranks_s)).tolist()
    return import_run(replace(run, start=slower * run.start, end=slower * run.end, reference_s=taken), 0)


@pytest.mark.slow
def test_a_machine_whose_pace_drifts_tells_the_same_of_its_passes(published: Profile) -> None:
    """Pipelines of few layers hit by other factors than those of more: all at the pace of the median window."""
    pair = [simulated(published, layers, action_overhead_s=4e-4, hop_overhead_s=9e-4) for layers in (FEW, MORE)]
    few_s, more_s = np.array([6e-3, 9e-3]), np.array([16e-3, 19e-3])  # of a layer 5, of the ends 1 and 4 ms
    paces = 0.8 * 1.25 ** np.arange(4)
    reference_times_s = [paces[0] * few_s, paces[1] * more_s, paces[2] * few_s, paces[3] * more_s]
    drifted = [
        at_other_paces(one, np.repeat(paces[index::2], 2), ranks_s)
        for index, (one, ranks_s) in enumerate(zip(pair, (few_s, more_s), strict=True))
    ]
    found, steady = fit_overheads(published, published.shape_at(), drifted, reference_times_s=reference_times_s), fit_overheads(
        published, published.shape_at(), pair
    )  # fmt: skip
    at_median = np.median(paces)
    assert found["slowdown"] == pytest.approx(at_median * steady["slowdown"], rel=1e-3)
    assert found["action_overhead_s"] == pytest.approx(at_median * steady["action_overhead_s"], rel=5e-3)
    assert found["step_spread"] == pytest.approx(0, abs=1e-9)
    rehearsal = CalibrationRun(num_processes=2, num_threads=1, **found)
    assert rehearsal.pace_s == pytest.approx(at_median * 5e-3)
    assert rehearsal.reference_ends_s == pytest.approx([at_median * 1e-3, at_median * 4e-3])
    assert rehearsal.pace_spread == pytest.approx(np.std(np.log(paces), ddof=1))


def test_passes_too_short_to_tell_a_layer_still_have_a_pace(published: Profile) -> None:
    pair = [at_other_paces(simulated(published, layers), [1.0] * 4, np.ones(2)) for layers in (FEW, MORE)]
    found = fit_overheads(published, published.shape_at(), pair, reference_times_s=[[2e-3, 2e-3], [1e-3, 1e-3]])
    assert found["reference_s"] == pytest.approx([2e-3, 2e-3])
    assert found["reference_ends_s"] == pytest.approx([0, 0])


def test_the_interval_is_as_wide_as_the_machines_own_pace(published: Profile) -> None:
    """An older profile, and one of other ranks, know no pace: theirs is that of measured costs."""
    widths = []
    for num_processes, reference_times_s in ((2, []), (2, [4e-3, 5e-3, 6e-3]), (4, [4e-3, 5e-3, 6e-3])):
        rehearsed = slowed(published, num_processes=num_processes).rehearsal
        assert rehearsed is not None
        with_pace = replace(rehearsed, reference_s=reference_times_s)
        made = ppsim.project(pp=2, schedule="1f1b", layers=8, profile=replace(published, rehearsal=with_pace))
        answer = made.summarise(with_advice=False)
        low, high = answer.iteration_time_interval_s
        widths.append(
            (
                np.log(high / low) / 2 / 1.645,
                "drift of this machine's speed" in answer.interval_basis,
                made.to_json()["reference_s"],
            )
        )
    (older, *said), (drifting, *says), (others, *silent) = widths
    assert said == [False, None]
    assert says == [True, 5e-3]
    assert silent == [False, None]
    assert older == pytest.approx(0.02, rel=0.2)
    assert others == pytest.approx(0.02, rel=0.2)
    assert drifting == pytest.approx(np.hypot(0.02, 2 * np.std(np.log([4, 5, 6]), ddof=1)), rel=0.2)


def test_a_pace_that_wanders_is_later_within_what_is_said_of_it_in_nine_of_ten_runs() -> None:
    """A random walk, seen in 16 windows, and a run of half as many right behind them."""
    walks = np.exp(0.02 * np.random.default_rng(0).standard_normal((2000, 24)).cumsum(axis=1))
    inside = []
    for walk in walks:
        seen = CalibrationRun(
            num_processes=2, num_threads=1, slowdown=1.0, action_overhead_s=0.0, hop_overhead_s=0.0,
            step_spread=0.0, reference_s=walk[:16].tolist(),
        )  # fmt: skip
        assert seen.pace_s is not None
        inside.append(abs(np.log(np.median(walk[16:]) / seen.pace_s)) < 1.645 * seen.pace_drift)
    assert np.mean(inside) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize(
    ("passes_s", "expected"),
    [
        ((3e-4, 8e-4), (4, 15, 1)),
        ((0.025, 0.07), (4, 2, 1)),
        ((0.1, 0.3), (4, 1, 1)),
        ((11.6, 15.8), (1, 1, 0)),  # a GPT-2's, whose head is most of it: less than 5 minutes
    ],
)
def test_long_passes_are_rehearsed_in_fewer_steps_turns_and_microbatches(
    passes_s: tuple[float, float], expected: tuple[int, int, int]
) -> None:
    found = rehearsal._Turns.of(passes_s, 2)
    microbatches, num_steps, num_warm_up = expected
    assert (found.microbatches, found.num_steps, found.num_warm_up) == expected
    both_s = sum(passes_s)
    turn_s = both_s * (num_steps * (2 * microbatches + 1) + num_steps + 1)
    assert found.most == min(8, max(2, int(20 / turn_s)))
    step_s = (2 * microbatches + 1) * both_s
    assert found.seconds == pytest.approx(found.most * turn_s + num_warm_up * step_s + 5)
    assert found.seconds < (300 if num_warm_up == 0 else 40)


@pytest.mark.parametrize(
    ("factor", "off"), [(1.0, 0.0), (1.25, 0.1), pytest.param(0.8, -0.1, marks=pytest.mark.slow)]
)
def test_what_the_machine_gave_is_told_from_what_the_projection_is_off_by(
    published: Profile, factor: float, off: float, tmp_path: Path
) -> None:
    """A run of passes `off` longer than profiled on a machine that takes `factor` times as long: both come back."""
    rehearsed = slowed(published).rehearsal
    assert rehearsed is not None
    pace: dict[str, Any] = {"reference_s": [5e-3] * 8, "reference_ends_s": [1e-3, 4e-3], "reference_work": "it"}
    paced = replace(published, rehearsal=replace(rehearsed, **pace))
    made = ppsim.project(pp=2, schedule="1f1b", layers=8, profile=paced, microbatches=8)
    timeline = made.timeline
    steps = [(1 + off) * np.stack([times] * 3) for times in (timeline.start, timeline.end)]
    run = Run(
        "", timeline.graph, made.costs, *steps, has_own_costs=False, reference_work="it", reference_layers=[3, 5]
    )
    measured = at_other_paces(import_run(run, 0), [factor] * 3, [16e-3, 29e-3])
    projected, path = tmp_path / "projected.json", tmp_path / "measured.json"
    ppsim.save(made, projected)
    content = timeline_to_json(measured.timeline, measured.costs, run={"emulated": False}, steps=measured.to_json())
    path.write_text(json.dumps(content))
    for expected in (projected, made):
        found = ppsim.compare(path, expected)
        assert found.step_error == pytest.approx(1 / factor / (1 + off) - 1)
        assert found.pace == pytest.approx(1 / factor)
        assert found.error_at_pace == pytest.approx(1 / (1 + off) - 1)
        assert found.inside_interval == (factor == 1.0)
        assert made.summary.iteration_time_interval_s == pytest.approx(found.iteration_time_interval_s)
    page, summary = tmp_path / "compare.html", tmp_path / "compare.json"
    words = words_of(command("compare", path, projected, "-o", page, "-o", summary).stdout)
    both = f"({signed_percent(found.step_error)}, at equal speed {signed_percent(found.error_at_pace)})"
    assert both in repr(found)
    assert json.loads(summary.read_text())["error_at_pace"] == pytest.approx(found.error_at_pace)
    for text in (words, words_of(page.read_text(encoding="utf-8"))):
        assert f"machine speed during the run: {1 / factor:.2f} × the speed during profiling" in text
        assert f"the measured step is {'inside' if factor == 1 else 'outside'} the projection" in text
        assert "at equal speed" in text
        assert signed_percent(found.error_at_pace) in text
    assert (words.index("step time") < words.index("at equal speed")) == (abs(1 / factor - 1) <= 0.1)


def test_paces_told_by_other_work_give_no_error_at_equal_pace_and_files_say_so(
    published: Profile, tmp_path: Path
) -> None:
    """Of another shape, of a version before, or of none; what is wrong in a file is named."""
    rehearsed = slowed(published).rehearsal
    assert rehearsed is not None
    pace: dict[str, Any] = {"reference_s": [5e-3] * 8, "reference_ends_s": [1e-3, 4e-3], "reference_work": "it"}
    older = pace | {"reference_ends_s": None, "reference_work": "a layer of 64"}
    projected, before = (
        ppsim.project(
            pp=2, schedule="1f1b", layers=8, microbatches=8,
            profile=replace(published, rehearsal=replace(rehearsed, **one)),
        )
        for one in (pace, older)
    )  # fmt: skip
    timeline, path = projected.timeline, tmp_path / "measured.json"
    times = [np.stack([one] * 3) for one in (timeline.start, timeline.end)]
    run = Run("", timeline.graph, projected.costs, *times, [], reference_s=[[5e-3, 5e-3]] * 3, reference_work="it")
    measured = import_run(replace(run, reference_layers=[4, 4]), 0)

    def found(expected: ppsim.Projection, **steps: Any) -> ppsim.Comparison:
        content = timeline_to_json(measured.timeline, measured.costs, steps=measured.to_json() | steps)
        path.write_text(json.dumps(content))
        return ppsim.compare(path, expected)

    assert found(projected).pace is not None
    assert "so that ppsim compare knows the machine speed" in " ".join(before.assumptions)
    assert "cannot tell" not in " ".join(projected.assumptions)
    unknown = "unknown (an older version of ppsim)"
    for expected, steps, sentence in (
        (
            projected,
            {"reference_work": "stages of 64"},
            "reference work of the profile is it, of the run stages of 64",
        ),
        (before, {}, f"reference work of the profile is {unknown}, of the run it"),
        (projected, {"reference_s": [5e-3] * 3, "reference_layers": []}, f"profile is it, of the run {unknown}"),
        (before, {"reference_s": [5e-3] * 3, "reference_layers": []}, f"{unknown}, of the run {unknown}"),
    ):
        comparison = found(expected, **steps)
        assert comparison.error_at_pace is None
        assert sentence in comparison.told[-1]
    assert found(projected, reference_s=[]).told == found(projected, reference_s=[], reference_work="").told
    for steps, sentence in (
        ({"reference_s": [[5e-3, 5e-3]]}, "steps.reference_s has 1 entries for 3 steps"),
        ({"reference_s": [[5e-3]] * 3}, "steps.reference_s"),
        ({"reference_layers": [4]}, "steps.reference_layers"),
    ):
        with pytest.raises(ConfigError, match=re.escape(sentence)):
            found(projected, **steps)


def test_passes_take_longer_only_beside_as_many_as_were_rehearsed(published: Profile) -> None:
    alone, beside, others = (
        ppsim.project(pp=2, schedule="1f1b", layers=8, profile=one, calibration=None)
        for one in (published, slowed(published), slowed(published, num_processes=4))
    )
    forward = [np.asarray(one.costs.forward_s) for one in (alone, beside, others)]
    assert forward[1] == pytest.approx(1.25 * forward[0])
    assert forward[2] == pytest.approx(forward[0])
    assert [one.costs.hop_overhead_s for one in (alone, beside, others)] == [0, 9e-4, 9e-4]
    assert (
        "calibration run with 4 processes at once, 1 thread each: not applied, because the schedule has 2 ranks"
        in (others.assumptions)
    )


@pytest.mark.torch
def test_a_profile_is_rehearsed_once_and_the_projection_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "_MOST_STEPS", 1)
    monkeypatch.setattr(rehearsal, "_TURNS", 1)
    path = tmp_path / "p.json"
    words = ["profile", "--model", "nano", "--seq-len", "16", "--repeats", "2", "--optimizer", "none", "--pp", "2"]
    said = command(*words, "-o", path).stderr
    assert "calibration run with 2 processes at once, 1 thread each: actions take" in words_of(said)
    content = path.read_bytes()
    found = json.loads(content)["rehearsal"]
    assert (found["num_processes"], found["num_threads"]) == (2, 1)
    assert found["hop_overhead_s"] >= 0  # of one step a pipeline, in which a hop may take less than nothing
    assert len(found["reference_s"]) == 2
    assert min(found["reference_s"]) > 0
    assert found["reference_work"].startswith(
        "stages of 64, 4 heads, 256 words, 2 × 16 tokens, float32, 2 ranks at"
    )
    assert len(found["reference_ends_s"]) == 2
    assert words_of(said).startswith("measuring and the calibration run will take about ")
    command(*words, "-o", path)
    assert path.read_bytes() == content
    plan = ppsim.project(pp=2, profile=path)
    assert plan.costs.hop_overhead_s == found["hop_overhead_s"]
    assert any(line.startswith("calibration run with 2 processes at once") for line in plan.assumptions)


@pytest.mark.parametrize(("slowest", "is_said"), [(1.1, False), (1.6, True)])
def test_a_machine_whose_pace_other_work_changes_is_said_to_be_busy(
    published: Profile, slowest: float, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"slowdown": 1.0, "action_overhead_s": 0.0, "hop_overhead_s": 0.0, "step_spread": 0.3}
    found["reference_s"] = [5e-3, slowest * 5e-3]  # type: ignore[assignment]
    monkeypatch.setattr(rehearsal, "launch_all", lambda configs, **how: [{}])
    monkeypatch.setattr(
        rehearsal, "run_of", lambda *arguments, source: SimpleNamespace(reference_s=[[1.0]], reference_work="")
    )
    monkeypatch.setattr(rehearsal, "join_turns", lambda turns: None)
    monkeypatch.setattr(rehearsal, "fit_overheads", lambda *arguments, **windows: found | {"pass_factors": [1.0]})
    monkeypatch.setattr(rehearsal.os, "getloadavg", lambda: (12.2, 8.0, 8.0))
    monkeypatch.setattr(rehearsal.os, "cpu_count", lambda: 2)
    key, said = (
        MeasurementKey(published.shape_at().micro_batch, published.shape_at().sequence_length, "float32"),
        [],
    )
    rehearsal.rehearsal_of(
        published,
        lambda layers: GPTShape(layers, 64, 4, key.sequence_length),
        key,
        MeasuringSettings(),
        num_processes=2,
        say=said.append,
    )
    assert ("other programs use this machine (load 12.2 on 2 cores)" in said[-1]) == is_said
    assert "the machine speed varied by " + ("33.23 %" if is_said else "6.74 %") in " ".join(said)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--pp", "0"], "--pp must be at least 1: got 0"),
        (
            ["--pp", "2", "--model", "moe-mini"],
            "--pp 2: a calibration run is not possible: the runtime trains GPTs, not moe",
        ),
        (["--pp", "2", "--recompute", "mlp"], "all of a layer or nothing, not mlp; leave out --pp"),
        (["--pp", "2", "--suite", "smoke"], "--suite says what is measured: leave out --pp"),
    ],
)
def test_what_cannot_be_rehearsed_is_said_before_anything_is_measured(
    words: list[str], sentence: str, tmp_path: Path
) -> None:
    output = tmp_path if "--suite" in words else tmp_path / "p.json"
    assert sentence in words_of(command("profile", *words, "-o", output, code=2).stderr)
    assert not list(tmp_path.iterdir())


def test_limits_of_a_calibration_run() -> None:
    assert (rehearsal.FEW, rehearsal.MORE) == (1, 3)
    assert (rehearsal._SCHEDULE, rehearsal._MICROBATCHES, rehearsal._LONG_S) == ("1f1b", 4, 20.0)
    assert (rehearsal._LEAST_TURNS, rehearsal._TURNS, rehearsal._TURN_S) == (2, 8, 2.0)
    names = ("_CALIBRATION_LIMIT_S", "_PATIENCE", "_MOST_STEPS", "_STARTED_S", "_HALVINGS", "_CALM", "_FURTHEST")
    assert [getattr(rehearsal, name) for name in names] == [20.0, 1.5, 15, 5.0, 25, 0.1, 2.0]


@pytest.mark.parametrize(
    ("passes_s", "processes", "expected"),
    [
        # 4 · 2 + 1 passes of 0.1 s: two steps in 2 s, with three reference works in 2.1 s; 8 turns at most, here 9
        ((0.04, 0.06), 2, (8, 4, 2, 1, 8 * 2.1 + 0.9 + 5)),
        # 9 passes of 2 s: 18 s, no 20 s. A step of 18 s and two works are 22 s: two turns at least
        ((0.5, 1.5), 2, (2, 4, 1, 1, 2 * 22 + 18 + 5)),
        # 9 passes of 2.5 s are too long: one microbatch per rank, 3 passes, without a step to warm up
        ((1.0, 1.5), 2, (2, 1, 1, 0, 2 * (7.5 + 5) + 5)),
        # 15 steps at most, in 1.51 s: 8 turns, of the 13 that 20 s have
        ((0.004, 0.006), 2, (8, 4, 15, 1, 8 * (15 * 0.09 + 16 * 0.01) + 0.09 + 5)),
        # 5 turns of 3.6 s in 20 s: 9 passes of 0.2 s, and two works of 0.2 s
        ((0.1, 0.1), 2, (8, 4, 1, 1, 8 * 2.2 + 1.8 + 5)),
        ((0.2, 0.2), 2, (4, 4, 1, 1, 4 * 4.4 + 3.6 + 5)),
    ],
)
def test_turns_of_a_calibration_run_by_hand(
    passes_s: tuple[float, float], processes: int, expected: tuple[Any, ...]
) -> None:
    found = rehearsal._Turns.of(passes_s, processes)
    assert (found.most, found.microbatches, found.num_steps, found.num_warm_up) == expected[:4]
    assert found.seconds == pytest.approx(expected[4])
    limits = found.turns
    assert (limits.most, limits.least) == (found.most, 2)


def test_a_root_is_halved_out_or_the_nearer_end() -> None:
    assert rehearsal._root(lambda x: x - 3.0, 1.0, 9.0) == pytest.approx(3.0)
    assert rehearsal._root(lambda x: x - 3.0, 4.0, 9.0) == 4.0
    assert rehearsal._root(lambda x: x - 3.0, 1.0, 2.0) == pytest.approx(2.0)
    assert rehearsal._root(lambda x: x - 3.0, 3.0, 9.0) == 3.0


def test_what_more_layers_add_is_the_difference_of_forwards_and_backwards() -> None:
    few, more = (
        StageCosts(forward_s=[1.0, forward], backward_s=[4.0, backward]) for forward, backward in ((2, 7), (11, 23))
    )
    assert rehearsal._grown([few, more]) == (11 + 23) - (2 + 7)


def test_the_reference_of_a_layer_is_half_of_what_two_more_take() -> None:
    """Windows alternate between one and three layers: 5 and 9 s on the first rank, 6 and 14 s on the last."""
    ranks_s, paces = rehearsal._paces(np.array([[5.0, 6.0], [9.0, 14.0], [5.0, 6.0], [9.0, 14.0]]))
    assert np.array(ranks_s) == pytest.approx(np.array([[5, 6], [9, 14]]))
    layer_s = (4 + 8) / 2 / 2
    assert paces["reference_s"] == pytest.approx([layer_s] * 4)
    assert paces["reference_ends_s"] == pytest.approx([5 - layer_s, 6 - layer_s])


def test_slower_windows_have_a_slower_pace_of_the_same_layer() -> None:
    windows = np.array([5.0, 9.0, 5.0, 9.0, 5.0, 9.0, 10.0])
    ranks_s, paces = rehearsal._paces(np.stack([windows, windows], axis=1))
    assert np.array(ranks_s) == pytest.approx(np.array([[5, 5], [9, 9]]))
    assert paces["reference_s"] == pytest.approx([2, 2, 2, 2, 2, 2, 4])
    noisy = rehearsal._paces(np.array([[6.0, 6.0], [3.0, 3.0]]))[1]  # less with more layers
    assert noisy["reference_s"] == pytest.approx([6, 6])
    assert noisy["reference_ends_s"] == pytest.approx([0, 0])


def test_the_expected_time_is_of_a_forward_and_twice_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "forward_flops", lambda model, key: (5.0, 7.0))
    monkeypatch.setattr(rehearsal, "assumed_rate", lambda device, dtype, num_threads: (100.0, ""))
    key = MeasurementKey(micro_batch=1, sequence_length=64, dtype="float32")
    found = rehearsal.expected_s(object(), key, MeasuringSettings(), 2)  # type: ignore[arg-type]
    passes_s = [3 * (5 + 7) / 100, 3 * (15 + 7) / 100]
    assert found == rehearsal._Turns.of(passes_s, 2).seconds


def test_the_table_has_so_many_microbatches_per_rank() -> None:
    table = rehearsal._table(3, 4)
    assert (table.num_ranks, table.num_microbatches, table.num_stages) == (3, 12, 3)


@pytest.mark.parametrize(
    ("there", "is_done"),
    [
        (None, True),
        ({"num_processes": 3, "num_threads": 5}, True),
        ({"num_processes": 3, "num_threads": 5, "reference_ends_s": []}, True),
        ({"num_processes": 3, "num_threads": 5, "reference_ends_s": [1.0]}, False),
        ({"num_processes": 2, "num_threads": 5, "reference_ends_s": [1.0]}, True),
        ({"num_processes": 3, "num_threads": 4, "reference_ends_s": [1.0]}, True),
    ],
)
def test_a_calibration_run_of_the_same_conditions_is_kept(
    there: Any, is_done: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"name": "n", "rehearsal": there}))
    model: Any = SimpleNamespace(layer=SimpleNamespace(hidden_size=22, num_heads=11), vocab_size=257)
    key = MeasurementKey(micro_batch=2, sequence_length=17, dtype="float32")
    monkeypatch.setattr(rehearsal, "validated", lambda kind, content, source: (kind, content, source))

    def measured(profile: Any, model_of: Any, *given: Any, **how: Any) -> dict[str, Any]:
        assert profile == (Profile, {"name": "n", "rehearsal": None}, str(path))
        assert (given[0], how["num_processes"]) == (key, 3)
        return {"model": repr(model_of(6))}

    monkeypatch.setattr(rehearsal, "rehearsal_of", measured)
    rehearsal.run_calibration(path, model, key, MeasuringSettings(num_threads=5), num_processes=3)
    new = {"model": repr(GPTShape(6, 22, 11, 17, 257))}
    assert json.loads(path.read_text()) == {"name": "n", "rehearsal": new if is_done else there}


def test_the_limit_of_turns_is_their_time_and_half_of_it_more() -> None:
    limits = rehearsal._Turns(most=1, microbatches=4, num_steps=1, num_warm_up=1, seconds=9.0).turns
    assert list(vars(limits).values()) == [1, 1, 30.0]


def test_turns_are_joined_without_the_gaps_between_their_steps(published: Profile) -> None:
    first, second = (simulated(published, layers).run for layers in (1, 1))
    turns = [replace(first, reference_s=[(1.0,), (2.0,)], gaps_s=(5.0,)), replace(second, reference_s=[(3.0,)])]
    joined = rehearsal.join_turns(turns).run
    assert joined.start.tolist() == [*first.start.tolist(), *second.start.tolist()]
    assert joined.end.tolist() == [*first.end.tolist(), *second.end.tolist()]
    assert (list(joined.reference_s), list(joined.gaps_s)) == ([(1.0,), (2.0,), (3.0,)], [])


def test_two_pipelines_run_in_turns_as_the_model_was_measured(
    published: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows 0 and 2 are of few layers, 1 and 3 of more; each has the median reference time of its steps."""
    launched: list[Any] = []
    fitted: list[Any] = []
    done: list[float] = []

    def launch_all(configs: Any, *, quiet: bool, turns: Any, watch: Any) -> list[int]:
        launched.extend(configs)
        assert (quiet, turns.least) == (True, 2)
        watch(1)
        watch(2)
        return [0, 1, 2, 3]

    def run_of(number: int, table: Any, given: None, *, source: str) -> SimpleNamespace:
        assert (table.num_ranks, table.num_microbatches, source) == (3, 4 * 3, "")
        return SimpleNamespace(
            number=number, reference_s=[[number, 9.0], [number + 2.0, 7.0]], reference_work="F and B"
        )

    def fit(profile: Any, shape: Any, pair: Any, *, reference_times_s: Any) -> dict[str, Any]:
        fitted.append((pair, reference_times_s))
        return {
            "slowdown": 1.0,
            "action_overhead_s": 0.0,
            "hop_overhead_s": 0.0,
            "step_spread": 0.3,
            "pass_factors": [1.0],
            "reference_s": [1.0],
        }

    monkeypatch.setattr(rehearsal, "launch_all", launch_all)
    monkeypatch.setattr(rehearsal, "run_of", run_of)
    monkeypatch.setattr(rehearsal, "join_turns", lambda runs: [run.number for run in runs])
    monkeypatch.setattr(rehearsal, "fit_overheads", fit)
    shape = published.shape_at()
    key = MeasurementKey(shape.micro_batch, shape.sequence_length, "bfloat16", recompute="full")
    content = rehearsal.rehearsal_of(
        published, lambda layers: GPTShape(layers, 64, 4, key.sequence_length), key, MeasuringSettings(num_threads=5),
        num_processes=3, say=lambda message: None, watch=lambda pace: done.append(pace.done_work),
    )  # fmt: skip
    assert [(config.model.num_layers, config.layers_per_stage) for config in launched] == [
        (3, [1] * 3),
        (9, [3] * 3),
    ]
    for config in launched:
        assert (config.num_ranks, config.micro_batch, config.num_threads) == (3, shape.micro_batch, 5)
        assert (config.dtype, config.recompute, config.timeout_s) == ("bfloat16", "full", 120.0)
        assert 1 <= config.num_steps <= 15
        assert config.num_warm_up == 1
    assert fitted == [([[0, 2], [1, 3]], [[1.0, 8.0], [2.0, 8.0], [3.0, 8.0], [4.0, 8.0]])]
    assert done == [1, 2]
    assert (content["num_processes"], content["num_threads"], content["reference_work"]) == (3, 5, "F and B")
