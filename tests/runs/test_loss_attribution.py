"""What a step is explained by: causes that were put in are named, and all of them sum to the step."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ppsim as public
from benchmarks.made_steps import BLOCKING, INJECTED, Made, draw, mixtures_of
from ppsim import StageCosts, build, explain, simulate
from ppsim.base.errors import ConfigError
from ppsim.cli import main
from ppsim.runs import loss_attribution as loss_attribution_module
from ppsim.runs.loss_attribution import (
    Difference,
    Explanation,
    LateRank,
    TimeLoss,
    _between,
    _by_cause,
    _loss,
    _Term,
    _terms,
    _with_paces,
    attribute_losses,
    late_ranks,
)
from ppsim.runs.loss_attribution import explain_difference as beside
from ppsim.runs.loss_causes import CAUSES, STAGES_OR_RANKS, CauseRemoval
from ppsim.runs.loss_report import ADVICE, reasons
from ppsim.runs.step_replay import MeasuredSteps, median_gap_s, replayed_step_s, steps_of
from ppsim.schedule.graph import build_graph
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.variation import with_variation
from ppsim.trainers.write_schedule import is_run_by
from tests.cli.running import ppsim, words_of
from tests.defaults import number_defaults

DUMP = Path(__file__).parent / "data" / "primus_pp8_1f1b"
TABLES = [
    build("1f1b", pp=4, microbatches=8),
    build("zb-h1", pp=4, microbatches=8),
    build("zbv", pp=4, microbatches=8),
    build("interleaved-1f1b", pp=4, microbatches=8),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def total(found: Explanation) -> float:
    return sum(loss.seconds for loss in found.losses)


@pytest.mark.parametrize("cause", INJECTED)
def test_an_injected_fault_is_first_with_its_place_and_its_size_within_20_percent(cause: str) -> None:
    """In all draws of place, size and noise; benchmarks/faults.py has more shapes."""
    for table in [table for table in TABLES if (cause,) in mixtures_of(table)]:
        for seed in range(2):
            found = draw(table, seed, [cause])
            assert found.is_larger_first or found.is_noise, (table.name, seed, found)
            assert found.are_places_named, (table.name, seed, found)
            assert all(abs(error) < 0.2 for error in found.errors.values()), (table.name, seed, found)


def test_steps_without_a_fault_have_none() -> None:
    """Noise of 1 % has gaps, messages and passes that vary; no fault costs a percent of the step."""
    for table in TABLES:
        found = attribute_losses(Made(table, 5).run())
        noise = {"gaps between passes", "waits for messages", "passes that vary", "time between steps"}
        others = [loss for loss in found.reasons if loss.cause not in noise]
        assert all(loss.gain_s < 0.01 * found.step_s for loss in others), (table.name, others)


def test_if_the_gaps_of_the_noise_cost_more_than_the_fault_they_are_first() -> None:
    """A second chunk's slow stage in interleaved 1F1B of 8 ranks: the schedule hides most of it."""
    table = build("interleaved-1f1b", pp=8, vpp=2, microbatches=16)
    draws = [draw(table, seed, ["uneven stages"]) for seed in (30014, 30015)]
    assert [one.first for one in draws] == ["gaps between passes", "uneven stages"]
    assert [one.is_noise for one in draws] == [True, False]


PAIRS = [pair for pair in mixtures_of(TABLES[0]) if len(pair) == 2]


@pytest.mark.parametrize("pair", PAIRS)
def test_of_two_faults_both_are_among_the_first_three(pair: tuple[str, str]) -> None:
    """First is the larger, or one of the two if they differ by 5 % at most; one of the four tables for each pair."""
    seed = PAIRS.index(pair)
    table = TABLES[seed % len(TABLES)] if BLOCKING not in pair else TABLES[3 * (seed % 2)]
    found = draw(table, seed, pair)
    is_close = len(found.gains) == 2 and min(found.gains.values()) > 0.95 * max(found.gains.values())
    assert found.is_larger_first or found.is_noise or (is_close and found.first in found.gains), found
    assert found.are_all_named, found


@pytest.mark.parametrize(("name", "vpp"), [("interleaved-1f1b", 2), ("interleaved-1f1b", 3), ("zbv", 2)])
def test_of_two_ranks_a_slow_one_and_a_slow_stage_are_named_or_that_nobody_can_tell(name: str, vpp: int) -> None:
    """A stage of the other rank leaves one usual stage of four: slow and fast stages explain that as well."""
    table = build(name, pp=2, vpp=vpp, microbatches=8)
    draws = [draw(table, seed, ("slow ranks", "uneven stages")) for seed in range(20)]
    assert all(one.first in one.gains and one.are_all_named for one in draws)
    assert {"slow ranks", STAGES_OR_RANKS} <= {loss.cause for one in draws for loss in one.losses[:2]}


def test_of_two_ranks_a_slow_one_is_told_where_stages_of_the_other_are_a_little_apart() -> None:
    """Two of its three are 3.4 and 5 % slower than the third, as busy hosts make them: rank 1 is slow beside each."""
    made = quiet(build("interleaved-1f1b", pp=2, vpp=3, microbatches=8))
    for stage, factor in {1: 1.6, 2: 1.034, 3: 1.6, 4: 1.05, 5: 1.6}.items():
        made.taken[:, made.table.stage == stage] *= factor
    assert attribute_losses(made.run()).reasons[0].cause == "slow ranks"


def test_a_drift_over_steps_is_told_and_noise_is_none() -> None:
    """Nine steps, each 2 % slower than the one before it: the median step lacks 8 % of the pace of the first."""
    made = Made(TABLES[0], 3, num_steps=9)
    noise = attribute_losses(made.run())
    assert sum(loss.gain_s for loss in noise.losses if loss.cause == "drift") < 0.01 * noise.step_s
    made.taken *= 1 + 0.02 * np.arange(9)[:, None]
    found = attribute_losses(made.run())
    assert found.reasons[0].cause == "drift"
    lost = found.reasons[0].seconds / found.median_s
    assert lost == pytest.approx(0.08 / 1.08, rel=0.1)
    low, high = found.reasons[0].quartiles_s
    assert low == pytest.approx(found.median_s * 0.04 / 1.08, rel=0.15)
    assert high > found.reasons[0].median_s > low


def test_the_rank_that_others_wait_for_is_named_with_the_gain() -> None:
    """1F1B without noise, rank 2's third forward 30 ms late: the step gains 30 ms, the ranks behind it wait as long."""
    made = quiet(TABLES[0])
    found = attribute_losses(made.run())
    assert found.late_ranks == []
    late = int(np.flatnonzero((made.table.stage == 2) & (made.table.op == Op.F))[2])
    made.taken[:, late] += 0.03
    found = attribute_losses(made.run())
    assert [(one.rank, one.action) for one in found.late_ranks] == [(2, "2F2")]
    assert found.late_ranks[0].gain_s == pytest.approx(
        found.step_s - attribute_losses(quiet(TABLES[0]).run()).step_s
    )
    assert found.late_ranks[0].action_s == pytest.approx(0.03)
    assert found.late_ranks[0].others_wait_s > 2 * found.late_ranks[0].gain_s


def test_a_first_stage_without_an_input_to_differentiate_is_not_uneven() -> None:
    """Torch leaves all of its backward to W: no reason by itself, and none that hides a slow rank."""
    made = quiet(build("zbv", pp=2, microbatches=8))
    of_first = made.table.stage == 0
    made.taken = np.broadcast_to(np.choose(made.table.op, [0.02, 0.04, 0.02, 0.02]), made.taken.shape).copy()
    made.taken[:, of_first & (made.table.op == Op.I)] = 0.0
    made.taken[:, of_first & (made.table.op == Op.W)] = 0.04
    assert [loss.cause for loss in attribute_losses(made.run()).reasons if loss.seconds > 1e-9] == []
    made.taken[:, made.table.rank == 1] *= 1.3
    assert attribute_losses(made.run()).reasons[0].cause == "slow ranks"


def test_waits_for_launches_count_as_compute_beside_a_projection_that_has_none() -> None:
    made = quiet(build("1f1b", pp=2, microbatches=4))
    run = made.run()
    waiting = attribute_losses(replace(run, launch_wait_s=0.25 * made.taken))
    shares = {loss.cause: loss.seconds for loss in waiting.losses}
    assert shares["kernel launches"] == pytest.approx((shares["compute"] + shares["pipeline bubble"]) / 3)
    differences = beside(waiting, simulate(made.table, run.costs), source="p", call_s=None).differences
    assert "kernel launches" not in [one.cause for one in differences]
    assert next(one.measured_s for one in differences if one.cause == "compute") == pytest.approx(
        shares["kernel launches"] + shares["compute"]
    )


def quiet(table: Schedule) -> Made:
    """Without noise, gaps and hops."""
    made = Made(table, 0)
    made.taken = np.broadcast_to(np.where(table.op == Op.F, 0.02, 0.04), made.taken.shape).copy()
    made.gap[:], made.hop[:], made.between[:] = 0.0, 0.0, 0.0
    return made


def test_losses_of_a_made_step_are_what_was_put_in() -> None:
    """1F1B without noise: (m + p − 1)(F + B), and beyond it the hops, or the gaps, of the critical path."""
    made = quiet(TABLES[0])
    plain = {loss.cause: loss.seconds for loss in attribute_losses(made.run()).losses}
    assert plain["compute"] == pytest.approx(8 * 0.06)
    assert plain["pipeline bubble"] == pytest.approx(3 * 0.06)
    assert max(abs(plain[cause]) for cause in plain if cause not in ("compute", "pipeline bubble")) < 1e-12
    made.hop[:] = 0.001
    with_hops = {loss.cause: loss.seconds for loss in attribute_losses(made.run()).losses}
    assert with_hops["waits for messages"] == pytest.approx(attribute_losses(made.run()).step_s - 0.66)
    assert with_hops["gaps between passes"] == pytest.approx(0, abs=1e-12)
    made.hop[:], made.gap[:] = 0.0, 0.001
    with_gaps = {loss.cause: loss.seconds for loss in attribute_losses(made.run()).losses}
    assert with_gaps["gaps between passes"] == pytest.approx(attribute_losses(made.run()).step_s - 0.66)
    assert with_gaps["waits for messages"] == pytest.approx(0, abs=1e-12)


def test_a_real_step_is_explained_to_the_last() -> None:
    """MI300X: stage 7 with the head, blocking calls, four pauses, a slow last backward of rank 0."""
    found = public.explain(DUMP)
    assert total(found) == pytest.approx(found.step_s, rel=1e-9)
    by_cause = {loss.cause: loss for loss in found.losses}
    missing = {"slow ranks", "uneven stages", "waits for messages", "time between steps"}  # and factors of 1
    missing |= {"straggling steps", "drift", "uneven microbatches", "kernel launches"}
    assert list(by_cause) == [cause for cause in CAUSES if cause not in missing]
    assert abs(by_cause["rest"].seconds) < 0.005 * found.step_s
    assert found.reasons[0].cause == STAGES_OR_RANKS
    assert "stage 7 on rank 7" in found.reasons[0].detail
    assert "0B15 on rank 0" in by_cause["passes that vary"].detail
    assert by_cause["pauses"].detail == (
        "one rank after the other, each in another step: step 11: rank 0, 0F7, 340 ms instead of 57.8 ms; step 15: rank 1, 1F4, 301 ms instead of 58.4 ms; "
        "step 16: rank 2, 2F8, 317 ms instead of 58.4 ms; step 18: rank 3, 3F10, 342 ms instead of 61.2 ms"
    )
    assert by_cause["pipeline bubble"].seconds == pytest.approx(7 / 16 * by_cause["compute"].seconds, rel=1e-6)
    assert [late.rank for late in found.late_ranks][:2] == [7, 0]
    assert found.late_ranks[1].action == "0B15"


def test_the_calls_of_megatron_replay_a_real_run_within_half_a_percent() -> None:
    """What passes took, and 0.65 ms per message in blocking calls: the median of 19 steps 0.43 % short, without 1.0 %."""
    run = public.read(DUMP).measured.run
    calls, actions = build_graph(run.graph.schedule, communication="megatron"), run.graph.num_actions
    steps = steps_of(calls, run.start[:, :actions], run.end[:, :actions])
    errors = replayed_step_s(calls, steps, hop_s=0.65e-3) / run.step_times_s - 1
    assert np.median(errors) == pytest.approx(-0.0043, abs=0.0003)
    assert np.median(replayed_step_s(calls, steps, hop_s=0.0) / run.step_times_s - 1) == pytest.approx(
        -0.0101, abs=0.0003
    )
    blocking = {loss.cause: loss.seconds for loss in public.explain(DUMP).losses}["blocking sends and receives"]
    assert blocking == pytest.approx(18e-3, rel=0.02)


def test_one_gap_before_every_pass_replays_each_step_of_a_real_run() -> None:
    """What passes took, and the median gap in place of all waits: every one of 19 steps within 0.2 %."""
    run = public.read(DUMP).measured.run
    graph, actions = build_graph(run.graph.schedule), run.graph.num_actions
    steps = steps_of(graph, run.start[:, :actions], run.end[:, :actions])
    gaps = [median_gap_s(steps[number]) for number in range(len(run.start))]
    assert gaps == pytest.approx([0.8e-3] * len(gaps), rel=0.1)
    alone = MeasuredSteps(
        steps.taken, np.zeros_like(steps.taken), np.broadcast_to(np.array(gaps)[:, None], steps.taken.shape)
    )
    assert replayed_step_s(graph, alone) == pytest.approx(run.step_times_s, rel=0.002)


def test_a_projection_is_set_beside_cause_by_cause() -> None:
    """A projection at other costs, and one of another plan: the differences sum to that of the two steps."""
    costs = StageCosts(forward_s=0.058, backward_input_s=0.034, backward_weight_s=0.034, transfer_s=0.0005)
    other = public.simulate(build("interleaved-1f1b", pp=8, microbatches=16), costs)
    for projected in (costs, other):
        found = public.explain(DUMP, against=projected)
        assert found.comparison is not None
        apart = sum(one.seconds for one in found.comparison.differences)
        assert apart == pytest.approx(found.step_s - found.comparison.step_s)
        assert ("another table" in found.comparison.note) == (projected is other)
    by_cause = {one.cause: one for one in public.explain(DUMP, against=costs).comparison.differences}  # type: ignore[union-attr]
    assert by_cause["sends and receives"].projected_s == pytest.approx(0.02, rel=0.01)
    assert by_cause[STAGES_OR_RANKS].projected_s == pytest.approx(0, abs=1e-9)
    assert "F 59.9 ms, projected 58.0 ms" in by_cause["compute"].detail


@pytest.mark.parametrize(("pp", "microbatches"), [(4, 16), (8, 24)])
def test_a_projection_of_other_ranks_or_microbatches_is_refused(pp: int, microbatches: int) -> None:
    costs = StageCosts(forward_s=0.058, backward_input_s=0.034, backward_weight_s=0.034)
    other = public.simulate(build("1f1b", pp=pp, microbatches=microbatches), costs)
    sentence = f"the projection has {pp} ranks and {microbatches} microbatches, and the run 8 ranks and 16"
    with pytest.raises(ConfigError, match=sentence):
        public.explain(DUMP, against=other)


def test_what_a_projection_waits_because_passes_vary_is_no_gap() -> None:
    """Its term is what the step of passes that vary takes beyond one of medians; gaps are the host's time alone."""
    table = TABLES[0]
    costs = StageCosts(
        forward_s=0.02, backward_input_s=0.02, backward_weight_s=0.02, action_overhead_s=0.001, transfer_s=0.002
    )
    varied = with_variation(table, costs, 0.2)
    expected = public.simulate(table, varied)
    found = beside(attribute_losses(Made(table, 0).run()), expected, source="made", call_s=None)
    projected = {one.cause: one.projected_s for one in found.differences}
    of_medians = public.simulate(table, costs.replace(transfer_s=0.0)).step_time_s
    without_transfers = public.simulate(table, varied.replace(transfer_s=0.0)).step_time_s
    assert projected["passes that vary"] == pytest.approx(without_transfers - of_medians, rel=1e-6)
    assert projected["passes that vary"] > 0.02
    assert projected["gaps between passes"] == pytest.approx(of_medians - 11 * 0.06)
    assert sum(projected.values()) == pytest.approx(expected.step_time_s, rel=0.005)


def test_a_message_that_nobody_waits_for_counts_once_the_slow_rank_is_mended() -> None:
    """1F1B with hops of 5 ms: mending a rank that is 30 % slower gains what two steps with hops differ by."""
    made = quiet(TABLES[0])
    made.hop[:] = 0.005
    mended = float(made.run().step_times_s.mean())
    made.taken[:, made.table.rank == 1] *= 1.3
    found = attribute_losses(made.run())
    by_cause = {loss.cause: loss for loss in found.losses}
    assert by_cause[STAGES_OR_RANKS].gain_s == pytest.approx(found.step_s - mended, rel=1e-6)
    made.hop[:] = 0.0
    assert by_cause["waits for messages"].gain_s == pytest.approx(
        found.step_s - float(made.run().step_times_s.mean()), rel=1e-6
    )


def test_a_drift_is_as_large_as_it_was_made() -> None:
    """Passes 30 % slower at the end of each rank's row: what the step gains without that, within 5 %."""
    made = Made(TABLES[0], 1)
    without = float(made.run().step_times_s.mean())
    made.put("drift over the step")
    found = attribute_losses(made.run())
    drift = next(loss for loss in found.losses if loss.cause == "drift")
    assert drift.gain_s == pytest.approx(found.step_s - without, rel=0.05)


def test_first_passes_and_drift_are_no_part_of_what_varying_passes_would_gain() -> None:
    """First passes twice as long, none that varies: without variation the step is as long as before."""
    made = quiet(TABLES[0])
    made.taken[:, made.table.rank_offsets[:-1]] *= 2
    by_cause = {loss.cause: loss for loss in attribute_losses(made.run()).losses}
    assert by_cause["slow first passes"].gain_s == pytest.approx(4 * 0.02, rel=1e-6)
    assert by_cause["passes that vary"].gain_s == pytest.approx(0, abs=1e-9)


def test_the_same_steps_have_nothing_to_tell_apart() -> None:
    found = public.explain(DUMP, against=public.read(DUMP).timeline)
    assert found.comparison is not None
    apart = {one.cause: one.seconds for one in found.comparison.differences}
    assert apart["pipeline bubble"] == pytest.approx(0, abs=0.01 * found.step_s)
    assert sum(apart.values()) == pytest.approx(found.step_s - found.median_s, abs=1e-9)


def test_the_command_says_the_reasons_first(folder: Path) -> None:
    shown = ppsim("explain", DUMP).stdout.splitlines()
    assert len(shown) <= 20
    assert max(map(len, shown)) <= 100
    assert shown[0] == "mean step time 3.27 s (19 steps, median 3.24 s)"
    assert shown[2].startswith("1. pipeline bubble   908 ms per step")
    assert shown[3] == "   evidence  idle time of the schedule with 8 ranks, 8 stages and 16 microbatches"
    assert shown[4].startswith("   remedy    another schedule: ppsim project --run RUN --schedule ")
    second = next(number for number, line in enumerate(shown) if line.startswith("2. "))
    assert shown[second].startswith("2. uneven stages or slow ranks   160 ms per step")
    assert shown[second + 1].startswith("   evidence  stage 7 on rank 7")
    full = ppsim("explain", DUMP, "--full").stdout
    assert re.search(r"^2\. .*uneven stages", full, re.MULTILINE)
    text = words_of(full)
    assert text.index("1. ") < text.index("uneven stages") < text.index("gain if removed")
    assert text.index("ranks that others wait for rank 7:") > text.index("gain if removed")
    report: dict[str, Any] = json.loads(ppsim("explain", DUMP, "--json").stdout)
    assert sum(loss["seconds"] for loss in report["losses"]) == pytest.approx(report["step_s"])
    assert report["reasons"][0] == STAGES_OR_RANKS
    Path("train.log").write_text(" iteration 1/ 1 | elapsed time per iteration (ms): 1.0 |\n" * 2)
    assert "no timeline" in words_of(ppsim("explain", "train.log", code=2).output)


def test_what_reasons_advise_to_try_are_commands_and_options_that_there_are() -> None:
    """Every cause has its advice; --overlap-p2p-communication is Megatron-LM's too."""
    assert set(ADVICE) == set(CAUSES) - {"pipeline bubble", "compute", "rest"}
    for advice in ADVICE.values():
        for command in re.findall(r"ppsim ([a-z]+)", advice):
            assert command in main.commands
        for option in re.findall(r"--[a-z0-9-]+", advice):
            assert any(option in one.opts for one in main.commands["project"].params)


def test_the_command_takes_a_plan_in_words_and_writes_pages(folder: Path) -> None:
    outputs = [text for name in ("e.html", "e.json", "e.md") for text in ("-o", name)]
    against = "--against", "--pp 8 --num-microbatches 16"
    assert ppsim("explain", DUMP, *against).stdout.startswith("projected 1.83 s, measured 3.27 s: -43.86 %\n")
    text = words_of(ppsim("explain", DUMP, *against, "--full", *outputs).stdout)
    assert "difference by cause" in text
    assert "uneven stages or slow ranks" in (folder / "e.html").read_text()
    written = json.loads((folder / "e.json").read_text())
    assert sum(one["seconds"] for one in written["comparison"]["differences"]) == pytest.approx(
        written["step_s"] - written["comparison"]["step_s"]
    )
    assert "| compute |" in (folder / "e.md").read_text()


def test_what_is_no_projection_is_refused_with_what_is(folder: Path) -> None:
    (folder / "report.json").write_text('{"step_time_s": 1.0}')
    for against, told in {
        "--pp 8 --nonsense": "is no plan of ppsim project: No such option",
        "--vpp 2": "lacks --pp",
        "--pp 'eight": "No closing quotation",
        "report.json": "a report without its timeline",
        "absent.json": "cannot read absent.json",
    }.items():
        output = words_of(ppsim("explain", DUMP, "--against", against, code=2).output)
        assert told in output
        assert "Traceback" not in output
    assert ".html" in words_of(ppsim("explain", DUMP, "-o", "e.svg", code=2).output)


def test_the_page_has_a_label_in_every_row_and_no_line_of_nothing(folder: Path) -> None:
    ppsim("explain", DUMP, "--against", "--pp 8 --num-microbatches 16", "-o", "explain.html")
    page = (folder / "explain.html").read_text()
    assert "projected too short by" in page
    assert "<td></td>" not in page
    assert not re.search(r">[+−]?0\.00 %<", page)


def test_the_bubble_names_the_schedule_of_the_recordings_trainer_that_saves_most(folder: Path) -> None:
    """A loop of one F and B per microbatch; ranks without stages in their names are Megatron-LM's."""
    table = build("1f1b", pp=4, microbatches=8)
    step = simulate(table, StageCosts(forward_s=0.01, backward_input_s=0.01, backward_weight_s=0.01))
    columns = ["rank", "kind", "stage", "microbatch", "start", "end"]
    for with_stages in (False, True):
        kept = [0, 1, 2, 3, 4, 5] if with_stages else [0, 1, 4, 5]
        rows = [",".join(columns[place] for place in kept)]
        for number in range(3):
            for entry, action in enumerate(table):
                times = [f"{0.34 * number + times[entry]!r}" for times in (step.start.tolist(), step.end.tolist())]
                row = [str(table.rank[entry]), action.op.name, str(action.stage), str(action.microbatch), *times]
                rows.append(",".join(row[place] for place in kept))
        Path("passes.csv").write_text("\n".join(rows))
        found = explain("passes.csv")
        assert found.faster_schedule is not None
        option, saved_s = found.faster_schedule
        assert is_run_by("torch" if with_stages else "megatron", option.split()[1])
        assert with_stages != (option == "--schedule interleaved-1f1b --vpp 2"), "torch runs a faster one"
        bubble = next(loss for loss in found.losses if loss.cause == "pipeline bubble")
        assert 0 < saved_s < bubble.seconds
        assert f"ppsim project --run RUN {option} saves" in reasons(found)[0]
    alone = replace(found, faster_schedule=None)
    assert "more microbatches per step make it smaller" in reasons(alone)[0].lower()


@pytest.mark.parametrize(
    ("of_job", "size", "said"),
    [
        ((0, 1, 2, 3), 4, ""),
        ((1, 3, 5, 7), 8, ""),  # of two data-parallel ranks
        ((0, 1, 2, 3), 8, "lacks rank 4, 5, 6, 7 of the job's 8"),
        ((0, 1, 2), 4, "lacks rank 3 of the job's 4"),
        ((1, 2, 3), 4, "lacks rank 0 of the job's 4"),
        ((0,), 2, "lacks rank 1 of the job's 2"),
        ((0, 4, 12), 16, "lacks rank 8 of the job's 4"),
    ],
)
def test_ranks_that_the_job_of_a_trace_has_beyond_the_traces_are_missing(
    folder: Path, of_job: tuple[int, ...], size: int, said: str
) -> None:
    """Traces whose names tell no stage, of ranks of a job of `size`, as Kineto counts them."""
    step = simulate(build("1f1b", pp=4, microbatches=5), StageCosts(forward_s=0.01, backward_s=0.02))
    for place, rank in enumerate(of_job):
        events = []
        for number, entry in product(range(3), np.flatnonzero(step.schedule.rank == place).tolist()):
            op, _, microbatch = step.schedule[entry]
            begin, end = (1e6 * (times[entry] + 2.0 * number) for times in (step.start, step.end))
            name = f"{'Forward' if op is Op.F else 'Backward'} {microbatch}"
            events.append(
                {"ph": "X", "cat": "user_annotation", "name": name, "ts": begin, "dur": end - begin, "args": {}}
            )
        trace = {"distributedInfo": {"rank": rank, "world_size": size}, "traceEvents": events}
        Path(f"rank{rank}.json").write_text(json.dumps(trace))
    assert ("not recorded rank" in words_of(ppsim("read", ".").stdout)) == bool(said)
    if not said:
        assert ppsim("explain", ".").stdout.startswith("mean step time")
        return
    refused = words_of(ppsim("explain", ".", code=2).output)
    number = len(of_job) + len(said.split(" of ")[0].split(","))
    assert said in refused
    assert f"--ranks {number} to explain the others alone" in refused
    without = words_of(ppsim("explain", ".", "--ranks", number).stdout)
    assert without.startswith(f"without {said.split(' of ')[0].removeprefix('lacks ')}: the time that others wait")
    assert ppsim("explain", ".", "--ranks", len(of_job)).stdout.startswith("mean step time")
    too_many = words_of(ppsim("explain", ".", "--ranks", size + 1, code=2).output)
    assert f"--ranks {size + 1}: the job had {size} ranks, as its files count them" in too_many


def test_a_missing_last_rank_is_asked_for_before_the_causes(folder: Path) -> None:
    """1F1B of four ranks, recorded on the first three; complete tables of other schedules raise no question."""
    costs = StageCosts(forward_s=0.01, backward_input_s=0.01, backward_weight_s=0.01)

    def write(table: Schedule, kept: Sequence[int]) -> None:
        step, rows = simulate(table, costs), ["rank,kind,stage,microbatch,start,end"]
        for number, entry in product(range(3), np.flatnonzero(np.isin(table.rank, kept)).tolist()):
            action, times = table[entry], [times[entry] + 2.0 * number for times in (step.start, step.end)]
            rows.append(
                f"{table.rank[entry]},{action.op.name},{action.stage},{action.microbatch},{times[0]},{times[1]}"
            )
        Path("passes.csv").write_text("\n".join(rows))

    write(build("1f1b", pp=4, microbatches=8), kept=range(3))
    shown = words_of(ppsim("explain", "passes.csv").stdout)
    question = "Is a rank missing? The last stage waits between the forward and the backward of 100.00 %"
    assert shown.startswith(question)
    assert "does. If 3 ranks ran, give --ranks 3." in shown
    assert question in words_of(ppsim("read", "passes.csv").stdout)
    assert f"from the run: {question}" in words_of(
        ppsim("project", "--run", "passes.csv", "--schedule", "gpipe").stdout
    )
    assert question in words_of(ppsim("calibrate", "passes.csv").stdout)
    assert question in words_of(ppsim("compare", "passes.csv").stdout)
    stated = words_of(ppsim("explain", "passes.csv", "--ranks", 4).stdout)
    assert stated.startswith(
        "without rank 3: the time that others wait for it has another cause below mean step time"
    )
    assert words_of(ppsim("explain", "passes.csv", "--ranks", 3).stdout).startswith("mean step time")
    assert "--ranks 2: there are recordings of 3 ranks" in words_of(
        ppsim("explain", "passes.csv", "--ranks", 2, code=2).output
    )
    write(build("1f1b", pp=4, microbatches=8), kept=[0, 1, 3])
    assert "no trace of the rank with stage 2" in words_of(ppsim("explain", "passes.csv", code=2).output)
    assert words_of(ppsim("explain", "passes.csv", "--ranks", 4).stdout).startswith("without rank 2: the time")
    for name in ("1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zbv"):
        write(build(name, pp=3, microbatches=9), kept=range(3))
        assert explain("passes.csv").note == ""
        doubt = "without rank 3 (the times do not show a missing rank: did 3 run?): the time that others wait"
        assert explain("passes.csv", ranks=4).note.startswith(doubt)


SMALL = build("1f1b", pp=2, microbatches=3)


def late_step(excess_s: dict[str, float], gap_s: dict[str, float]) -> tuple[MeasuredSteps, np.ndarray]:
    """Return a step of F 1 s and B 2 s with longer actions and gaps, and the usual times."""
    even = np.where(SMALL.op == Op.F, 1.0, 2.0)
    names = [str(action) for action in SMALL]
    taken = even + np.array([excess_s.get(name, 0.0) for name in names])
    gaps = np.array([gap_s.get(name, 0.0) for name in names])
    return MeasuredSteps(taken[None], np.zeros((1, len(names))), gaps[None]), even


def test_a_late_rank_has_its_gain_the_wait_of_others_and_its_longest_action_on_the_path() -> None:
    """With 1B1 5 s long, rank 0 waits 2 + 3 + 1 s and ends after 15 s; else it waits 2 + 1 s and ends after 12 s.

    A gap of 1 s before 0B2, which ends the step, holds up no other rank. The median gap is 0.5 s. A longer 0F2 is on
    the path only if 1B1 is not.
    """
    graph = build_graph(SMALL)
    assert late_ranks(graph, *late_step({"1B1": 3.0}, {})) == [LateRank(1, 3.0, 3.0, "1B1", 3.0)]
    assert late_ranks(graph, *late_step({}, {})) == []
    gaps = {"0B2": 1.0, "1F0": 0.5, "1F1": 0.25}
    [late] = late_ranks(graph, *late_step({}, gaps))
    assert late == LateRank(0, 0.5, 0.0, "", 0.0)
    first, second = late_ranks(graph, *late_step({"1B1": 3.0, "0B2": 0.5, "0F2": 0.25}, {}))
    assert (first, second) == (LateRank(1, 2.75, 2.75, "1B1", 3.0), LateRank(0, 0.5, 0.0, "0B2", 0.5))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "rank 1 starts a step 2.00 s after the last pass of the step before"),
        (
            {"gaps_s": [2.0, 7.0, 1.0]},
            "rank 1 starts a step 2.00 s after the last pass of the step before, 7.00 s after step 5",
        ),
        ({"gaps_s": [2.0, 3.0, 1.0]}, "rank 1 starts a step 2.00 s after the last pass of the step before"),
        (
            {
                "gaps_s": [2.0, 7.0, 1.0],
                "work_s": {"load": [9, 1, 3, 2], "log": [9, 0, 1, 0.5], "save": [9, 0, 4, 0]},
            },
            "rank 1 starts a step 2.00 s after the last pass of the step before (load 2.00 s, log 500 ms), 7.00 s after "
            "step 5 (save 4.00 s)",
        ),
        (
            {"work_s": {"load": [1, 2, 3]}},
            "rank 1 starts a step 2.00 s after the last pass of the step before",
        ),
        (
            {"to_collective_s": [[1.0, 2.0, 9.0], [1.0, 2.0, 9.5], [1.5, 2.5, 10.0]]},
            "rank 2 starts its first collective 9.50 s after its last pass, the other ranks after 1.50 s; rank 1 starts a "
            "step 2.00 s after the last pass of the step before",
        ),
        (
            {"to_collective_s": [[3.25]]},
            "rank 0 starts its first collective 3.25 s after its last pass, the other ranks after 0 s; rank 1 starts a step "
            "2.00 s after the last pass of the step before",
        ),
        ({"to_collective_s": [[2.0, 4.0]]}, "rank 1 starts a step 2.00 s after the last pass of the step before"),
    ],
)
def test_the_time_between_steps_is_of_the_first_rank_and_of_a_late_collective(
    fields: dict[str, Any], sentence: str
) -> None:
    """Collectives are late by more than 1.5 times the others and half the usual gap, 1 s."""
    work_s = {name: np.array(spent)[:, None] * [0.0, 1.0, 0.0] for name, spent in fields.pop("work_s", {}).items()}
    given = {"gaps_s": [2.0, 1.5, 2.5], "to_collective_s": (), "work_s": work_s} | fields
    graph = SimpleNamespace(num_actions=3, schedule=SimpleNamespace(rank=np.array([0, 1, 2])))
    start = np.array([[0.0, 9.0, 9.0, 0.0], [5.0, 4.0, 6.0, 0.0]])
    assert _between(SimpleNamespace(graph=graph, start=start, **given), 4) == sentence  # type: ignore[arg-type]


def test_causes_that_only_one_step_distinguishes_are_merged() -> None:
    losses = [
        TimeLoss("slow ranks", 1.0, 9.0, "rank 3"), TimeLoss("drift", 2.0, 9.0), TimeLoss("uneven stages", 0.5, 9.0, "stage 2"),
        TimeLoss(STAGES_OR_RANKS, 0.25, 9.0),
    ]  # fmt: skip
    explanation = Explanation("run", 8.0, 8.0, 3, losses)
    merged = [(STAGES_OR_RANKS, ("slow ranks", "uneven stages", STAGES_OR_RANKS))]
    assert _by_cause(explanation, merged) == {
        STAGES_OR_RANKS: TimeLoss(STAGES_OR_RANKS, 1.75, 0.0, "rank 3; stage 2"), "drift": TimeLoss("drift", 2.0, 0.0),
    }  # fmt: skip
    assert list(_by_cause(explanation, [])) == [loss.cause for loss in losses]


def test_the_difference_of_compute_has_the_times_on_the_median_stage() -> None:
    measured, projected = (
        Explanation("run", 8.0, 8.0, 3, [], action_times_s=times)
        for times in ({"F": 1.0, "B": 2.0, "W": 3.0}, {"F": 1.5, "B": 2.5, "I": 4.0})
    )
    compute = Difference("compute", 5.0, 4.0, "mean over the ranks")
    assert _with_paces(compute, measured, projected).detail == (
        "median stage: F 1.00 s, projected 1.50 s, B 2.00 s, projected 2.50 s"
    )
    other = Difference("drift", 5.0, 4.0, "detail")
    assert _with_paces(other, measured, projected) is other


def test_a_loss_is_the_mean_of_its_steps_with_their_quartiles() -> None:
    term = _Term("drift", np.array([1.0, 2.0, 3.0, 4.0, 10.0]), np.array([0.5, 0.5, 0.5, 0.5, 3.0]), "detail")
    assert _loss(term) == TimeLoss("drift", 4.0, 1.0, "detail", 3.0, (2.0, 4.0))


def test_terms_are_removed_one_after_the_other_and_the_bubble_and_compute_are_left() -> None:
    """Steps of 15 and 16 s measured; replayed 15 s. Without the late action 12 s, of which 9 are compute."""
    step, even = late_step({"1B1": 3.0}, {})
    steps = MeasuredSteps(*(np.repeat(one, 2, axis=0) for one in (step.taken, step.hop, step.after_own)))
    usual = replace(steps, taken=np.tile(even, (2, 1)))
    half = replace(steps, taken=np.tile(even + (step.taken[0] - even) / 3, (2, 1)))
    removals = [
        CauseRemoval("pauses", lambda one: half, "a third stays", lambda one: usual),
        CauseRemoval("drift", lambda one: usual, "the rest"),
    ]
    terms = _terms(build_graph(SMALL), steps, np.array([15.0, 16.0]), removals)
    assert [(term.cause, term.seconds.tolist(), term.gain.tolist()) for term in terms] == [
        ("rest", [0.0, 1.0], [0.0, 0.0]), ("pauses", [2.0, 2.0], [3.0, 3.0]), ("drift", [1.0, 1.0], [3.0, 3.0]),
        ("pipeline bubble", [3.0, 3.0], [3.0, 3.0]), ("compute", [9.0, 9.0], [9.0, 9.0]),
    ]  # fmt: skip
    assert [term.detail for term in terms] == [
        "", "a third stays", "the rest", "idle time of the schedule with 2 ranks, 2 stages and 3 microbatches",
        "mean over the ranks",
    ]  # fmt: skip


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(loss_attribution_module) == {
        "TimeLoss": {"median_s": 0.0},
        "attribute_losses": {"variation_s": 0.0, "first_step": 1},
    }


def term_of(cause: str, seconds: float, gain: float = 0.0) -> loss_attribution_module._Term:
    return loss_attribution_module._Term(cause, np.array([seconds]), np.array([gain]), f"of {cause}")


def test_time_in_blocking_calls_is_taken_from_waits_and_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take 20 s with calls and 13 s without: of 4 + 9 s of waits and gaps, 6 s are outside the calls."""
    monkeypatch.setattr(
        loss_attribution_module, "replayed_step_s",
        lambda graph, steps, *, hop_s: np.array([{("calls", 0.5): 20.0, ("graph", 0.0): 13.0}[graph, hop_s]]),
    )  # fmt: skip
    before = [term_of("waits for messages", 4.0), term_of("compute", 50.0), term_of("gaps between passes", 9.0)]
    terms: Any = loss_attribution_module._with_calls(before, "graph", "calls", None, 0.5)  # type: ignore[arg-type]
    assert [(term.cause, *term.seconds, *term.gain, term.detail) for term in terms] == [
        ("compute", 50.0, 0.0, "of compute"),
        ("blocking sends and receives", 7.0, 7.0, "500 ms per message in Megatron-LM's own calls"),
        ("gaps between passes", 6.0, 6.0, "outside these calls; of gaps between passes"),
    ]


def test_gains_of_causes_in_actions_are_those_with_blocking_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of 20 s; pauses gain at least what they gain without the calls."""
    monkeypatch.setattr(
        loss_attribution_module, "replayed_step_s",
        lambda graph, steps, *, hop_s: np.array([{"all": 20.0, "drift": 17.0, "pauses": 15.0}[steps]]) if hop_s else None,
    )  # fmt: skip
    causes: Any = [
        SimpleNamespace(cause=cause, without_others=lambda steps, cause=cause: cause)
        for cause in ("drift", "pauses", "slow links")
    ]
    before = [
        term_of("drift", 0.0, 9.0), term_of("pauses", 0.0, 7.0), term_of("slow links", 0.0, 2.0), term_of("rest", 0.0, 1.0)
    ]  # fmt: skip
    steps: Any = "all"
    graph: Any = "calls"
    terms = loss_attribution_module._with_gains(before, causes, graph, steps, 0.5)
    assert [(term.cause, *term.gain) for term in terms] == [
        ("drift", 3.0), ("pauses", 7.0), ("slow links", 2.0), ("rest", 1.0),
    ]  # fmt: skip
    later = loss_attribution_module._with_gains([term_of("pauses", 0.0, 4.0)], causes, graph, steps, 0.5)
    assert later[0].gain.tolist() == [5.0]
