"""Text of simulated steps."""

from types import SimpleNamespace
from typing import Any

import pytest

import ppsim
from ppsim.results import steps
from ppsim.results.steps import _bounds, print_report, print_run, print_several, print_simulated, print_trained
from ppsim.simulation.report import report_of

ONE_SECOND = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)


def test_span_and_step_are_each_compared_with_their_own_bound() -> None:
    costs = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    report = report_of(ppsim.simulate(ppsim.build("1f1b-v", pp=4, microbatches=8), costs), costs)
    told = _bounds(
        report | {"step_time_s": 30.0, "lower_bound_s": 25.0, "span_s": 22.0, "span_lower_bound_s": 20.0}
    )
    assert "(20.00 % above it)" in told.split(";")[0]
    assert "(10.00 % above it)" in told.split(";")[1]


def test_a_simulated_step_is_printed_with_every_number_of_each_rank_and_a_drawing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    costs = ONE_SECOND.replace(forward_s=[1.0, 2.0, 1.0, 2.0], transfer_s=0.25, activation_bytes=2**30)
    print_simulated(ppsim.simulate(ppsim.build("interleaved-1f1b", pp=2, microbatches=4), costs), costs=costs)
    expected = """\
interleaved-1f1b   pp 2   vpp 2   4 microbatches
step time      36.0 s (bubble 22.22 %)
lower bound    33.2 s for any schedule on this placement (8.27 % above it)
critical path  0F0 → 1F0 → 1F1 → 3F0 → … → 3B3 → 2B3 → 1B3 → 0B3 (18 actions)

rank    busy    idle  warm-up  cool-down  waiting    comm      peak   at
0     24.0 s  12.0 s   3.75 s     4.50 s   1.50 s  2.25 s  5.00 GiB  0F2
1     32.0 s  4.00 s   1.00 s     2.50 s      0 s  500 ms  3.00 GiB  3F0

rank  0 s to 36.0 s
   0  F0fF1....F0f..F1fF2f.....B0bbbF3f..B1bbbF2f...B0bbbF3f..B1bbb......B2bbb.....B3bbbB2bbb..B3bbb
   1  ...F0fffF1ffffF0fffB0bbbF1fffB1bbbbF2fffB0bbbF3fffB1bbbF2ffffB2bbbF3fffB3bbbB2bbbb.B3bbb......
one column is 383 ms; F forward, B backward, and the microbatch; dots are idle
"""
    assert capsys.readouterr().out == expected


def test_of_many_ranks_every_second_and_the_extremes_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    costs = ONE_SECOND.replace(forward_s=[1.0] * 9 + [1.5] + [1.0] * 10)
    timeline = ppsim.simulate(ppsim.build("1f1b", pp=20, microbatches=20), costs)
    print_simulated(timeline, costs=costs)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[6:18]] == [
        "0",
        "2",
        "4",
        "6",
        "8",
        "9",
        "10",
        "12",
        "14",
        "16",
        "18",
        "19",
    ]
    assert " ".join(lines[18:]) == (
        "12 of 20 ranks: rank 9 computes longest, rank 0 idles longest, rank 0 has the highest peak. "
        "--rows prints all"
    )
    print_simulated(timeline, costs=costs, with_rows=True)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[6:]] == [*map(str, range(20))]


def test_a_path_of_nine_actions_is_printed_in_full_and_a_longer_one_by_its_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = ["0F0", "1F0", "1B0", "1F1", "1B1", "1F2", "1B2", "0B2"]
    report = report_of(ppsim.simulate(ppsim.build("1f1b", pp=2, microbatches=3), ONE_SECOND), ONE_SECOND)
    for actions, text in (
        ([*path, "x"], " → ".join([*path, "x"])),
        ([*path, "x", "y"], "0F0 → 1F0 → 1B0 → 1F1 → … → 1B2 → 0B2 → x → y (10 actions)"),
    ):
        print_report(report | {"critical_path": actions})
        assert f"critical path  {text}\n" in capsys.readouterr().out


def test_a_span_and_a_time_between_steps_have_lines(capsys: pytest.CaptureFixture[str]) -> None:
    costs = ONE_SECOND.replace(step_overhead_s=0.5)
    report = report_of(ppsim.simulate(ppsim.build("1f1b-v", pp=2, microbatches=3), costs), costs)
    report |= {"step_time_s": 20.0, "span_s": 19.0, "span_bubble_ratio": 0.25, "iteration_time_s": 20.5}
    report |= {"lower_bound_s": 16.0, "span_lower_bound_s": 10.0, "memory_limit_bytes": 2.0**30}
    print_report(report)
    lines = " ".join(capsys.readouterr().out.split())
    assert (
        "iteration 20.5 s, with 500 ms between steps per-rank span 19.0 s (bubble 25.00 %): step time if" in lines
    )
    assert (
        "lower bound 16.0 s for any schedule on this placement within 1.00 GiB (25.00 % above it); "
        "per-rank span 10.0 s (90.00 % above it)"
    ) in lines


def test_a_trained_step_has_its_losses_differences_and_measured_peaks(capsys: pytest.CaptureFixture[str]) -> None:
    costs = ONE_SECOND
    report = report_of(ppsim.simulate(ppsim.build("1f1b", pp=2, microbatches=4), costs), costs)
    ranks = [
        {"rank": 0, "peak_activation_bytes": 2**20, "peak_at": "0F1", "peak_allocated_bytes": 2**21},
        {"rank": 1, "peak_activation_bytes": 2**19, "peak_at": "1F0", "peak_allocated_bytes": None},
    ]
    run = {
        "emulated": False, "device": "cpu", "torch": "2.9", "step_times_s": [18.0, 18.5], "losses": [4.25, 3.125],
        "differences": {"num_parameters": 12, "gradient": 1.5e-6, "loss": 2e-7}, "memory": {"ranks": ranks},
    }  # fmt: skip
    print_run(report, run)
    expected = """\
1f1b   pp 2   vpp 1   4 microbatches
step time            15.0 s (bubble 20.00 %)
run                  trained on cpu with torch 2.9; steps took 18.0 s, 18.5 s; the median one is
                     shown
loss                 4.250 → 3.125
against one process  loss 2.0e-07, gradients of 12 parameters at most 1.5e-06 apart (relative)
peak activations     measured: rank 0 1.00 MiB at 0F1 (2.00 MiB allocated), rank 1 512 KiB at 1F0
lower bound          13.0 s for any schedule on this placement (15.38 % above it)
critical path        0F0 → 1F0 → 1B0 → 1F1 → … → 1B2 → 1F3 → 1B3 → 0B3 (10 actions)

rank    busy    idle  warm-up  cool-down  waiting  comm  peak   at
0     12.0 s  3.00 s   2.00 s     1.00 s      0 s   0 s     –  0F0
1     12.0 s  3.00 s   1.00 s     2.00 s      0 s   0 s     –  1F0
"""
    assert capsys.readouterr().out == expected
    print_run(report, run | {"emulated": True, "differences": None, "memory": None})
    text = capsys.readouterr().out
    assert "emulated on cpu with torch 2.9" in text
    assert not any(line.startswith(("loss", "against", "peak act")) for line in text.splitlines())


def test_several_tables_are_compared_with_the_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    reports = {
        name: {"step_time_s": step_s, "bubble_ratio": bubble, "ranks": [{"peak_activation_bytes": peak} for peak in peaks]}
        for name, step_s, bubble, peaks in (("a", 5.0, 0.25, (2**30, 2**31)), ("b", 4.0, 0.125, (2**30, 2**29)))
    }  # fmt: skip
    print_several(reports)
    expected = """\
table  step time   vs best   bubble  peak activations
a         5.00 s  +25.00 %  25.00 %          2.00 GiB
b         4.00 s   +0.00 %  12.50 %          1.00 GiB
"""
    assert capsys.readouterr().out == expected


def test_a_result_of_training_is_its_run_and_its_timeline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = ppsim.simulate(ppsim.build("1f1b", pp=2, microbatches=4), ONE_SECOND)
    printed: list[Any] = []
    monkeypatch.setattr(steps, "print_run", lambda *run, with_rows: printed.append((*run, with_rows)))
    trained = SimpleNamespace(report=lambda: "report", facts="facts", timeline=timeline)
    print_trained(trained)
    assert (printed, capsys.readouterr().out.splitlines()[1]) == (
        [("report", "facts", False)],
        "rank  0 s to 15.0 s",
    )
    print_trained(trained, with_rows=True, with_timeline=False)
    assert (printed[1:], capsys.readouterr().out) == ([("report", "facts", True)], "")
