"""Terminal output for profiles and clusters."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppsim.machine.cluster import Constant
from ppsim.machine.cluster_files import load_cluster
from ppsim.results.catalogues import print_cluster, print_measurements, print_stage_times

STORED = json.loads((Path(__file__).parents[2] / "profiles" / "cpu-gpt-mini.json").read_text())


@pytest.fixture
def profile() -> dict[str, Any]:
    stored: dict[str, Any] = copy.deepcopy(STORED)
    return {**stored, "does_not_fit": [], "failed": []}


def rows_of(text: str) -> dict[str, list[str]]:
    """Return the cells of each line by the first cell; cells are apart by two blanks at least."""
    lines = [[cell for cell in line.split("  ") if cell] for line in text.splitlines()]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines if cells}


def test_measurements_have_times_sizes_and_percents_of_the_peak(
    profile: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    print_measurements(profile)
    rows = rows_of(capsys.readouterr().out)
    assert rows["layer"] == [
        *("11.6 ms", "24.3 ms", "15.0 ms", "10.8 ms", "1.06", "8.02 MiB", "8.02 MiB"), "77 73 64 76"
    ]  # fmt: skip
    assert rows["embedding"][-1] == "– – – –", "no model FLOPs"


def test_a_backward_pass_that_cannot_be_split_has_dashes(
    profile: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    layer = profile["measurements"][1]
    layer["backward_input_s"] = layer["backward_weight_s"] = None
    print_measurements(profile)
    row = rows_of(capsys.readouterr().out)["layer"]
    assert row[2:5] == ["–", "–", "–"]
    assert row[-1] == "77 73 – –"


def test_shapes_have_titles_if_there_are_several_and_percents_only_with_a_peak(
    profile: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    print_measurements(profile)
    alone = capsys.readouterr().out
    assert "micro-batch" not in alone
    assert "MFU, float32" in alone
    other = copy.deepcopy(profile["measurements"][1])
    other["shape"]["micro_batch"] = 4
    profile["measurements"].append(other)
    profile["device_facts"] = None
    print_measurements(profile)
    several = capsys.readouterr().out
    assert several.startswith("micro-batch 2")
    assert several.count("\n\nmicro-batch 4") == 1
    assert "MFU" not in several


def test_shapes_that_do_not_fit_or_failed_are_listed(
    profile: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    shape = profile["measurements"][0]["shape"]
    profile["does_not_fit"] = [shape | {"micro_batch": 64}]
    profile["failed"] = [{"shape": shape | {"micro_batch": 32}, "error": "out of shared memory"}]
    print_measurements(profile)
    lines = capsys.readouterr().out.splitlines()
    assert any("64" in line and line.endswith(": does not fit") for line in lines)
    assert any("32" in line and line.endswith(": out of shared memory") for line in lines)


def test_optimizer_steps_have_their_parallel_sizes_times_and_states(
    profile: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    profile["optimizer"] = [
        {"optimizer": "adam", "component": "layer", "dtype": "bfloat16", "tp": 2, "ep": 1, "step_s": {"median": 0.002},
         "gradient_norm_s": None, "state_bytes": 2**20}
    ]  # fmt: skip
    print_stage_times(profile)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("adam"))
    assert [cell.strip() for cell in line.split("  ") if cell] == [
        "adam", "layer", "bfloat16, tp 2", "2.00 ms", "–", "1.00 MiB"
    ]  # fmt: skip


def test_a_cluster_has_its_constants_with_spread_and_source_and_its_domains(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = load_cluster("dgx-h100")
    constants = replace(
        cluster.constants,
        launch_s=Constant(value=2e-6, sigma=5e-7, source="a table"),
        overlap_slowdown=Constant(value=0.25),
    )
    node, *others = cluster.tiers
    part = replace(node, num_devices=8, usable_devices=6)
    print_cluster(replace(cluster, constants=constants, tiers=(part, *others)))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "launch_s 2.00 µs ± 500 ns; a table" in lines
    assert "overlap_slowdown 0.25" in lines
    assert any("6 of 8 devices by" in line for line in lines)
    assert any("all devices by" in line for line in lines)
