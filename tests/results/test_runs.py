"""Terminal output for comparisons of measured and projected steps, and for fitted overheads."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim import StageCosts, build, explain, simulate
from ppsim.results import runs
from ppsim.results.runs import print_calibration, print_comparison, print_explanation, print_measured, print_totals
from ppsim.runs.calibrate import FittedConstant, FittedOverheads, Residual, TransferTime
from ppsim.runs.compare import Comparison, compare
from ppsim.runs.loss_report import reasons
from ppsim.runs.peaks import PeakError
from ppsim.runs.spreads import TimeSpreads
from ppsim.simulation.report import report_of


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    """Of a measured step of 16 s and a projected step of 12 s, on 2 stages."""
    costs = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    table = build("1f1b", pp=2, microbatches=3)
    return compare(simulate(table, costs.replace(forward_s=2.0)), simulate(table, costs))


def rows_of(text: str) -> dict[str, list[str]]:
    """Return the cells of each line by the first cell; cells are apart by two blanks at least."""
    lines = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]
    return {cells[0]: cells[1:] for cells in lines if cells}


def printed(found: Comparison, capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    print_comparison(found, **options)
    return capsys.readouterr().out


def test_steps_are_compared_and_what_is_not_known_is_left_out(
    comparison: Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(printed(comparison, capsys))
    step = [f"{comparison.measured.step_time_s:.1f} s", f"{comparison.projected.step_time_s:.1f} s", "-25.00 %"]
    assert rows["step time"] == step
    assert rows["replay"][1:] == [f"{comparison.replay_s:.1f} s", "+0.00 %"]
    assert "at equal speed" not in rows
    assert "step to next step" not in rows


def test_speeds_and_times_between_steps_are_lines_of_their_own(
    comparison: Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(printed(replace(comparison, pace=0.9, between_s=(4.0, 3.0)), capsys))
    measured_s, projected_s = comparison.measured.step_time_s, comparison.projected.step_time_s
    assert list(rows).index("at equal speed") == list(rows).index("step time") + 1
    assert rows["at equal speed"][0] == f"{0.9 * measured_s:.1f} s"
    busy = list(rows_of(printed(replace(comparison, pace=0.8), capsys)))
    assert busy.index("at equal speed") == busy.index("step time") - 1, "the machine was 20 % slower"
    error = 100 * ((projected_s + 3) / (measured_s + 4) - 1)
    assert rows["step to next step"] == [f"{measured_s + 4:.1f} s", f"{projected_s + 3:.1f} s", f"{error:.2f} %"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "and host gaps of the actions; its error"),
        ({"replay_gap_s": 0.5}, "500 ms before each action"),
        ({"replay_hop_s": 0.25}, "250 ms per P2P transfer"),
        ({"replay_hop_s": 0.01}, "and host gaps of the actions; its error"),
    ],
)
def test_a_replay_names_the_times_that_it_takes_from_the_run(
    comparison: Comparison, capsys: pytest.CaptureFixture[str], fields: dict[str, float], words: str
) -> None:
    assert words in " ".join(printed(replace(comparison, **{"replay_gap_s": None, **fields}), capsys).split())


def test_few_stages_are_shown_unless_all_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    costs = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    table = build("1f1b", pp=32, microbatches=2)
    slow = simulate(table, costs.replace(forward_s=[1.0] * 20 + [2.0] + [1.0] * 11))
    found = compare(slow, simulate(table, costs))
    few, all_rows = printed(found, capsys), printed(found, capsys, with_rows=True)
    assert "of 32 stages; stage 20 has the largest error" in few
    assert "has the largest error" not in all_rows
    assert len(all_rows.splitlines()) > len(few.splitlines())


def test_fitted_overheads_have_deviations_quartiles_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    fit = FittedConstant(0.002, (0.001, 0.004), 12, 0.0005)
    found = FittedOverheads(
        action=fit, hop=fit, slowdown=FittedConstant(0.125, (0.1, 0.2), 3, 0.01), step=None, hops=[TransferTime(None, fit)],
        latency_s=None, bandwidth_bytes_per_s=None, spreads=TimeSpreads(action=0.01, action_deviation=0.001),
        not_fitted={"step_overhead_s": "one step"}, residuals=[Residual("run.json", 2.0, 1.5, -0.25, -0.5, ("rank 0 to 1",))],
    )  # fmt: skip
    print_calibration(found)
    text = capsys.readouterr().out
    rows = rows_of(text)
    assert rows["host time per action"] == ["2.00 ms", "500 µs", "1.00 ms … 4.00 ms", "12"]
    assert rows["compute slowdown during P2P"][:2] == ["+12.50 %", "1.00 %"]
    assert "fixed overhead per P2P transfer" in rows
    assert "time between steps" not in rows
    assert "spread between actions of a kind: 1.00 % ± 0.10 %" in text
    assert "spread between ranks: not measurable in this run" in text
    assert "P2P transfer of unknown size: 2.00 ms (12 samples)" in text
    assert "step_overhead_s: one step" in text
    assert rows["run.json"] == ["2.00 s", "1.50 s", "-25.00 %", "-50.00 %"]
    assert "slow link of run.json, left out of the constants: rank 0 to 1" in text
    print_calibration(replace(found, communication="megatron"))
    assert "time per blocking call" in rows_of(capsys.readouterr().out)


def test_a_full_explanation_numbers_its_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    found = explain(Path(__file__).parents[1] / "runs" / "data" / "primus_pp8_1f1b")
    print_explanation(found, full=True)
    lines = capsys.readouterr().out.splitlines()
    numbers = [line.partition(". ")[0] for line in lines if re.match(r"\d+\. ", line)]
    assert numbers == [str(number) for number in range(1, len(reasons(found)) + 1)]


def measured_texts(costs: StageCosts, facts: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines between the step time and the lower bound, each on one line."""
    timeline = simulate(build("1f1b", pp=2, microbatches=3), costs)
    run = SimpleNamespace(facts=facts, timeline=timeline, report=lambda: report_of(timeline, costs))
    print_measured(run)
    lines = capsys.readouterr().out.splitlines()
    return re.sub(r"\n {15}", " ", "\n".join(lines[2:-6])).splitlines()


def test_a_measured_run_has_its_steps_clocks_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    facts = {
        "schedule": {"sentence": "1f1b, as its order shows"}, "stages_by": "rank", "kind": "torch profiler",
        "passes_by": "their names", "step_times_s": [12.5, 12.0, 13.0], "num_warm_up": 2, "between_steps_s": [0.25, 0.35],
        "clocks": {"num_clocks": 2, "uncertainty_s": 1e-6, "hop_s": 5e-6}, "reserved_bytes": [2**30, 2**31],
        "knows_transfers": False,
    }  # fmt: skip
    costs = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    assert measured_texts(costs, facts, capsys) == [
        "run            torch profiler by their names; 3 steps after 2 of warm-up took 12.0 s … 13.0 s; the median one "
        "is shown",
        "order          1f1b, as its order shows",
        "stages         assumed: one per rank, in rank order; the names contain none (if several: --schedule T.csv)",
        "next step      starts 300 ms after the last action (mean), so 12.3 s per step",
        "clocks         2, aligned by their messages to ± 1.00 µs; a P2P transfer takes at least 5.00 µs",
        "memory         2.00 GiB reserved on the rank with most, 1.00 GiB with least",
        "not recorded   transfer times: the wait for a transfer counts as overhead of the action that needs it",
    ]


def test_a_recording_with_times_in_milliseconds_is_recognised_by_its_median_action(
    capsys: pytest.CaptureFixture[str],
) -> None:
    facts = {"schedule": {"sentence": "1f1b"}, "step_times_s": [132.0]}
    for forward_s, median_s in ((11.0, "22.0 s"), (5.0, None)):  # at 5 s, the median of F and B is 10 s: no doubt
        costs = StageCosts(forward_s=forward_s, backward_input_s=forward_s, backward_weight_s=forward_s)
        units = f"units          the median action takes {median_s}: name columns in ms start_ms and end_ms"
        assert measured_texts(costs, facts, capsys) == [
            "run            ppsim train; 1 step after 0 of warm-up took 132 s; the median one is shown",
            "order          1f1b",
            *([units] if median_s else []),
            "not recorded   memory; the time between steps",
        ]


def test_a_pause_between_steps_is_mentioned_from_a_hundredth_of_the_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    costs = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)  # a step of 12 s
    for pause_s, is_said in ((0.13, True), (0.11, False)):
        facts = {"schedule": {"sentence": "1f1b"}, "step_times_s": [12.0], "between_steps_s": [pause_s]}
        assert any(line.startswith("next step") for line in measured_texts(costs, facts, capsys)) == is_said


def test_the_totals_of_a_log_are_printed_with_each_timers_part_of_the_iteration(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_totals(
        SimpleNamespace(
            iterations_s=[2.5, 1.5, 2.0], iteration_time_s=2.0, num_warm_up=1, memory_bytes={"reserved": 2**30},
            num_garbled=3, num_restarts=0, timers_s={"forward": (0.5, 1.0), "optimizer": (None, 0.25)},
        )
    )  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "iteration      2.00 s, the median of 3 logged after 1 of warm-up (1.50 s … 2.50 s)",
        "reserved       1.00 GiB",
        "garbled lines  3 skipped",
    ]
    assert lines[-4:] == [
        "",
        "timer      least of the ranks    most  of the iteration",
        "forward                500 ms  1.00 s           50.00 %",
        "optimizer          not logged  250 ms           12.50 %",
    ]


def test_a_comparison_is_printed_with_every_number_of_steps_stages_and_peaks(
    comparison: Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    peaks = [PeakError(0, 2**20, "0F1", 2.0**21, "0F2"), PeakError(1, 2**20, "1F0", 2.0**19, "1F0")]
    text = printed(replace(comparison, pace=0.9, between_s=(4.0, 3.0), peaks=peaks), capsys)
    expected = """\
                   measured  projected     error
step time            16.0 s     12.0 s  -25.00 %
at equal speed       14.4 s     12.0 s  -16.67 %
span                 16.0 s     12.0 s  -25.00 %
replay               16.0 s     16.0 s   +0.00 %
step to next step    20.0 s     15.0 s  -25.00 %
machine speed during the run: 0.90 × the speed during profiling (reference work: F and B of each
rank's stages)

action  stage  measured  projected     error
F           0    2.00 s     1.00 s  -50.00 %
F           1    2.00 s     1.00 s  -50.00 %
B           0    2.00 s     2.00 s   +0.00 %
B           1    2.00 s     2.00 s   +0.00 %

error: projected / measured − 1; negative: the projection is too fast. replay: simulation with the
measured action times, and 0 s before each action (median gap; no transfer was recorded); its error
is not due to the costs.

rank  measured peak   at  projected peak   at      error
0          1.00 MiB  0F1        2.00 MiB  0F2  +100.00 %
1          1.00 MiB  1F0         512 KiB  1F0   -50.00 %
"""
    assert text == expected


def test_of_many_peaks_the_one_with_the_largest_error_is_named(
    comparison: Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    peaks = [PeakError(rank, 2**20, "F", 2.0**20, "F") for rank in range(20)]
    peaks[5] = replace(peaks[5], projected_bytes=2.0**19)
    text = printed(replace(comparison, peaks=peaks), capsys)
    assert "\n5          1.00 MiB   F         512 KiB   F  -50.00 %\n" in text
    assert text.endswith("12 of 20 ranks; rank 5 has the largest error. --rows prints all\n")


def test_a_label_has_two_lines_of_its_text_and_the_rest_is_cut() -> None:
    width = runs.WIDTH - runs._INDENT
    one, two = "a" * width, " ".join(["b" * (width - 1)] * 2)
    assert runs._labelled("evidence", one) == [f"   {'evidence':10}{one}"]
    assert runs._labelled("remedy", two) == [
        f"   {'remedy':10}{'b' * (width - 1)}",
        f"   {'':10}{'b' * (width - 1)}",
    ]
    three = " ".join(letter * (width - 1) for letter in "bcd")
    first, second = runs._labelled("remedy", three)
    assert (first, second[:13].strip()) == (f"   {'remedy':10}{'b' * (width - 1)}", "")
    assert second.endswith("…")
    assert len(second) == runs.WIDTH
    assert runs._labelled("remedy", "") == []


LOSSES: Any = [
    SimpleNamespace(cause="bubble", gain_s=0.5, detail="half of it", remedy="more microbatches"),
    SimpleNamespace(cause="host", gain_s=0.25, detail="", remedy="CUDA graphs"),
]


@pytest.fixture
def explanation(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of a period of 4 s, with the sentences and tables by hand."""
    sentences: dict[str, Any] = {
        "title": lambda of: f"title of {of.period_s:g} s", "notable_losses": lambda of: of.losses,
        "reasons": lambda of: ["first", "second"], "remedy": lambda loss, of: f"{loss.remedy} in {of.period_s:g} s",
        "table_of": lambda of: [{"cause": "bubble", "time": "500 ms"}],
        "faults": lambda of: of.late, "whole_difference": lambda against, step_s: f"{against.name} and {step_s:g} s",
        "lacks": lambda against, step_s: [f"{against.name} lacks {part} of {step_s:g} s" for part in ("a", "b")],
        "differences_of": lambda against: [{"part": "F", "error": "+1 %", "detail": "hidden"}],
    }  # fmt: skip
    for name, sentence in sentences.items():
        monkeypatch.setattr(runs.words, name, sentence)
    return SimpleNamespace(
        note="a note", step_s=3.0, period_s=4.0, num_steps=1, comparison=None, losses=LOSSES, late=[]
    )


def explained(of: Any, capsys: pytest.CaptureFixture[str], **changes: Any) -> list[str]:
    full = changes.pop("full", False)
    print_explanation(SimpleNamespace(**vars(of) | changes), full=full)
    return capsys.readouterr().out.splitlines()


AGAINST: Any = SimpleNamespace(name="plan", note="its note")
MORE = "more: --full · -o explain.html"


def test_an_explanation_has_its_largest_losses_with_evidence_and_remedy(
    explanation: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = [
        "1. bubble   500 ms per step (12.50 %)", "   evidence  half of it", "   remedy    more microbatches in 4 s",
        "2. host   250 ms per step (6.25 %)", "   remedy    CUDA graphs in 4 s",
    ]  # fmt: skip
    head = ["a note", "title of 4 s", runs.words.GAINS]
    assert explained(explanation, capsys) == [*head, *losses, MORE]
    assert explained(explanation, capsys, losses=[]) == [*head, "first", "second", MORE]
    against = ["plan and 3 s", "plan lacks a of 3 s", "plan lacks b of 3 s"]
    assert explained(explanation, capsys, comparison=AGAINST) == [*against, *head, *losses, MORE]


def test_losses_that_would_fill_the_screen_are_left_out(
    explanation: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = explained(explanation, capsys, losses=LOSSES[1:] * 99)
    shown = (runs.SCREEN_LINES - 3 - 1) // 2
    assert [line[:2] for line in lines if ". host" in line] == [f"{number}."[:2] for number in range(1, shown + 1)]
    assert runs.SCREEN_LINES - 1 <= len(lines) <= runs.SCREEN_LINES


def test_a_full_explanation_has_tables_faults_and_the_comparison(
    explanation: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = explained(explanation, capsys, full=True)
    assert lines[:9] == [
        "a note", "title of 4 s", runs.words.GAINS, "1. first", "2. second", "", "cause   time", "bubble  500 ms", "",
    ]  # fmt: skip
    text = " ".join(lines[9:])
    assert text.startswith(
        "time: time per step due to each cause. The simulator replays the steps and removes the causes"
    )
    assert "quartiles" not in text
    assert text.endswith("rest: error of the replay with all causes.")
    lines = explained(explanation, capsys, full=True, late=["rank 3"], comparison=AGAINST, num_steps=2)
    assert lines[8:19] == [
        "", "ranks that others wait for", "rank 3", "", "plan and 3 s", "its note", "1. plan lacks a of 3 s",
        "2. plan lacks b of 3 s", "", "part  error", "F      +1 %",
    ]  # fmt: skip
    assert "the step. quartiles: of the time, over all steps. gain if removed:" in " ".join(lines)
    silent = SimpleNamespace(name="plan", note="")
    assert "its note" not in explained(explanation, capsys, full=True, comparison=silent)


def test_a_log_that_restarted_says_so_and_one_without_timers_has_no_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    totals: dict[str, Any] = {
        "iterations_s": [2.0], "iteration_time_s": 2.0, "num_warm_up": 0, "memory_bytes": {}, "num_garbled": 0,
        "num_restarts": 2, "timers_s": {},
    }  # fmt: skip
    print_totals(SimpleNamespace(**totals))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "iteration     2.00 s, the median of 1 logged after 0 of warm-up (2.00 s … 2.00 s)",
        "restarts      2: the iteration number goes back; only the last run is shown",
    ]
    assert lines[2].startswith("not recorded  a timeline: a log has totals.")
    assert lines[-1].endswith("(rank, kind, stage, microbatch, start, end)")


def test_a_recording_of_some_ranks_says_which_are_missing_and_what_is_doubtful(
    capsys: pytest.CaptureFixture[str],
) -> None:
    facts = {
        "schedule": {"sentence": "1f1b"}, "step_times_s": [12.0], "missing_ranks": [2, 3], "memory": {"ranks": []} | {"a": 1},
        "between_steps_s": [0.0], "question": "is it?", "clocks": {"num_clocks": 1, "uncertainty_s": 1e-6, "hop_s": 5e-6, "drift": 2.5e-6},
    }  # fmt: skip
    lines = measured_texts(StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0), facts, capsys)
    assert lines[-3:] == [
        "drift          2.5 ppm between the fastest and the slowest clock, removed",
        f"not recorded   rank {runs.shortened([2, 3])} of the job",
        "question       is it?",
    ]


def test_a_calibration_has_the_sizes_of_its_transfers_its_line_and_its_notes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fit = FittedConstant(0.002, (0.001, 0.004), 12, 0.0005)
    residual = Residual("run.json", 2.0, 1.5, -0.25, -0.5, (), "no transfer was recorded")
    print_calibration(
        FittedOverheads(
            action=fit, hop=None, slowdown=None, step=None, hops=[TransferTime(2**20, fit)], latency_s=5e-6,
            bandwidth_bytes_per_s=25e9, spreads=TimeSpreads(rank=0.02, rank_deviation=0.004), not_fitted={}, residuals=[residual],
        )
    )  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:6] == [
        "spread between actions of a kind: not measurable in this run", "spread between ranks: 2.00 % ± 0.40 %",
        "P2P transfer of 1.00 MiB: 2.00 ms (12 samples)", "latency 5.00 µs, bandwidth 25.0 GB/s",
    ]  # fmt: skip
    assert lines[-2:] == [
        "run.json: no transfer was recorded", "errors: on the runs of the fit, so they do not test a projection",
    ]  # fmt: skip
