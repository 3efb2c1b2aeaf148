"""Lines of a sweep, and rows of several values of one option."""

from collections import Counter
from typing import Any

import pytest

from ppsim.projection.scaling import Scaling
from ppsim.results.sweep import cost_column, print_scaling, print_sweep, scaling_texts


def row(gpus: int, time_s: float, **fields: Any) -> dict[str, Any]:
    given = {
        "gpus": gpus, "num_gpus": gpus, "iteration_time_s": time_s, "iteration_time_low_s": 0.9 * time_s,
        "iteration_time_high_s": 1.1 * time_s, "tokens_per_s": 1000 / time_s, "model_flops_utilization": 0.5,
        "peak_bytes": 2.0**30, "verdict": "fits", "note": None, "stack_name": "plain", "stack_basis": None, "training_days": None,
        "gpu_hours_per_step": 0.5, "cost_per_step": None, "training_gpu_hours": None, "training_cost": None,
        "host (s)": 0.01 * gpus * time_s,
    }  # fmt: skip
    return given | fields


def printed(capsys: pytest.CaptureFixture[str], scaling: Scaling) -> list[str]:
    print_scaling(scaling)
    return capsys.readouterr().out.splitlines()


def test_a_sweep_is_a_line_and_its_most_frequent_errors(capsys: pytest.CaptureFixture[str]) -> None:
    print_sweep(Counter({"fits": 1200, "does not fit": 3}), Counter({"a": 5, "b": 4, "c": 3, "d": 2, "e": 1}))
    assert (
        capsys.readouterr().out
        == """\
1,218 jobs: 1,200 fit, 3 do not fit, 15 with an error
errors  5 × a
        4 × b
        3 × c
        2 more in the column error
"""
    )
    print_sweep(Counter({"unknown": 1}), Counter())
    assert capsys.readouterr().out == "1 job: 1 without a memory limit\n"
    print_sweep(Counter({"fits tightly": 2}), Counter({"a": 1, "b": 1, "c": 1}))
    assert capsys.readouterr().out.splitlines()[0] == "5 jobs: 2 fit tightly, 3 with an error"


def test_values_are_rows_with_a_knee_and_what_grows(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, Scaling("gpus", [row(8, 1.0), row(16, 0.8), {"gpus": 7, "error": "7 is odd"}]))
    assert lines == [
        "gpus  iteration     90 % interval  tokens/s      MFU    memory  GPU hours per step  note",
        "8        1.00 s  900 ms to 1.10 s    1.00 k  50.00 %  1.00 GiB                0.50",
        "16       800 ms  720 ms to 880 ms    1.25 k  50.00 %  1.00 GiB                0.50",
        "7             –                 –         –        –         –                   –  7 is odd",
        "",
        "knee        16 GPUs: less than 1.6 times the tokens/s of half as many",
        "what grows  host, from 8.00 % to 16.00 % of the iteration",
        "stack       plain",
    ]


def test_unknown_numbers_are_dashes_and_notes_are_joined() -> None:
    unknown = row(8, 1.0, tokens_per_s=None, model_flops_utilization=None, peak_bytes=None, verdict="unknown")
    tight = row(8, 1.0, verdict="fits tightly", note="8 GPUs assumed")
    cells = scaling_texts(Scaling("gpus", [unknown, tight]))
    assert [cells[0][name] for name in ("tokens/s", "MFU", "memory", "note")] == ["–", "–", "–", ""]
    assert cells[1]["note"] == "fits tightly, 8 GPUs assumed"


@pytest.mark.parametrize(
    ("fields", "columns"),
    [
        ({}, {"GPU hours per step": "0.50"}),
        ({"cost_per_step": 1.5}, {"cost per step": "1.50"}),
        ({"training_days": 2.0, "training_gpu_hours": 1e4}, {"days": "2.0", "GPU hours per run": "10.0 k"}),
        (
            {"training_days": 2.0, "training_gpu_hours": 1e4, "training_cost": 3e4, "cost_per_step": 1.5},
            {"days": "2.0", "cost per run": "30.0 k"},
        ),
    ],
)
def test_the_cost_is_of_a_run_if_its_tokens_are_known(fields: dict[str, Any], columns: dict[str, str]) -> None:
    assert cost_column(row(8, 1.0, **fields)) == columns


def test_a_deadline_names_the_fewest_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    run = {"training_gpu_hours": 1.0, "command": "ppsim project --gpus"}
    rows = [row(8, 1.0, training_days=20.0, **run), row(16, 0.6, training_days=12.0, **run | {"command": "c 16"})]
    lines = printed(capsys, Scaling("gpus", rows, deadline_days=15))
    assert lines[0] == "16 GPUs are the fewest that meet 15 days: 12.0 days"
    assert lines[-1] == "16 GPUs     c 16"
    late = printed(capsys, Scaling("gpus", rows, deadline_days=5))
    assert late[0] == "no number of GPUs meets 5 days: the nearest is 16 GPUs with 12.0 days"
    assert late[-1] == "16 GPUs     c 16"
    none = [one | {"verdict": "does not fit"} for one in rows]
    assert printed(capsys, Scaling("gpus", none, deadline_days=5))[0].endswith("5 days: none fits")
    assert printed(capsys, Scaling("gpus", rows))[-2:] == ["8 GPUs      ppsim project --gpus", "16 GPUs     c 16"]


def test_several_stacks_are_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(8, 1.0), row(16, 0.5, stack_name="torchtitan"), row(32, 0.25)]
    line = "stacks  plain, torchtitan differ: part of the difference in time is theirs"
    assert line in printed(capsys, Scaling("gpus", rows))
    rows[1]["stack_basis"] = "default: no calibration runs"
    assert line in printed(capsys, Scaling("gpus", rows)), "a reason is printed only if the names are the same"
    rows[1]["stack_name"] = "plain"
    line = "stacks  plain, plain (default: no calibration runs) differ: part of the difference in time is theirs"
    assert line in " ".join(printed(capsys, Scaling("gpus", rows))).replace("        ", " ")
