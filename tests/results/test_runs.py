"""Terminal output for comparisons of measured and projected steps, and for fitted overheads."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppsim import StageCosts, build, explain, simulate
from ppsim.results.runs import print_calibration, print_comparison, print_explanation
from ppsim.runs.calibrate import FittedConstant, FittedOverheads, Residual, TransferTime
from ppsim.runs.compare import Comparison, compare
from ppsim.runs.loss_report import reasons
from ppsim.runs.spreads import TimeSpreads


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
