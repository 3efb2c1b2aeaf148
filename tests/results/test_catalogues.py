"""Terminal output for profiles and clusters."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppsim.machine.cluster import Constant
from ppsim.machine.cluster_files import load_cluster
from ppsim.results.catalogues import (
    print_cluster,
    print_clusters,
    print_counts,
    print_measurements,
    print_stage_times,
)

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


def test_the_counts_of_a_model_are_printed_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {
        "name": "tiny", "layers": 4, "hidden_size": 64, "moe_layers": 2, "recurrent_layers": 1, "windowed_layers": 3,
        "mtp_layers": 1, "tied_embeddings": True, "conditioning_parameters": 5000, "vocab_size": 1024,
        "parameters": 1000000, "active_parameters": 500000, "embedding_parameters": 65536, "mtp_parameters": 7000,
        "encoder_layers": 2, "encoder_parameters": 9000, "encoder_tokens": 1600, "sequence_length": 2048,
        "training_flops_per_token": 3e6, "training_flops_per_token_causal": 2.5e6, "training_flops_per_token_6n": 2e6,
        "source": "a paper", "assumptions": ["first", "second"],
    }  # fmt: skip
    print_counts(counts)
    expected = """\
tiny
layers                    4 of width 64, 2 with experts, 1 recurrent (Mamba-2 or gated delta rule),
                          3 with sliding-window attention; 1 for multi-token prediction
output columns            1,024
parameters                1,000,000
active per token          500,000
embedding                 65,536, shared with the output head
conditioning              5,000, on every pipeline stage
multi-token prediction    7,000, not included in the parameters above
encoder                   9,000, in 2 layers, for 1,600 tokens per sequence
training FLOPs per token  3.00 M: GEMMs, all s × s attention scores, s = 2,048 tokens
                          2.50 M: GEMMs, causal half of the scores
                          2.00 M: 6 × active parameters
sizes from                a paper
assumed                   first
                          second
"""
    assert capsys.readouterr().out == expected
    parts = ["moe", "recurrent", "windowed", "mtp", "encoder"]
    zeros = dict.fromkeys(["conditioning_parameters", *(f"{part}_layers" for part in parts)], 0)
    print_counts({**counts, **zeros, "tied_embeddings": False, "assumptions": []})
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:6] == [
        "layers                    4 of width 64",
        "vocabulary                1,024",
        "parameters                1,000,000",
        "active per token          500,000",
        "embedding                 65,536",
    ]
    assert [line[:10].strip() for line in lines[6:]] == ["training F", "", "", "sizes from"]


def test_a_cluster_is_a_row_of_the_list_and_its_sections_have_its_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = load_cluster("dgx-h100")
    device = replace(
        cluster.device, name="H (SXM)", peak_flops_per_s={"bfloat16": 989e12, "float8": 1.98e15}, num_cores=132,
        memory_bytes=85e9, memory_bytes_per_s=3.35e12, source="sheet",
    )  # fmt: skip
    node, network = cluster.tiers
    link = replace(
        node.link, bytes_per_s=450e9, efficiency=0.75, reduction_gain=1.35, copy_bytes_per_s=1150e9, launch_s=15e-6,
        step_s=1.5e-6, source="least squares",
    )  # fmt: skip
    slow = replace(link, bytes_per_s=50e9, reduction_gain=1, copy_bytes_per_s=None)
    tiers = (replace(node, num_devices=8, link=link), replace(network, link=slow))
    cluster = replace(cluster, device=device, tiers=tiers, num_devices=64)
    print_clusters([cluster])
    assert capsys.readouterr().out.splitlines()[:2] == [
        "cluster   device     bfloat16    memory  bandwidth      links, GB/s",
        "dgx-h100  H       989 TFLOP/s  79.2 GiB  3350 GB/s  8: 450, all: 50",
    ]
    print_cluster(cluster)
    sections = capsys.readouterr().out.split("\n\n")
    assert sections[0].splitlines()[-1] == "devices  64"
    expected = """\
device   H (SXM)
dense peak  bfloat16 989 TFLOP/s, float8 1.98 PFLOP/s
memory      79.2 GiB at 3350 GB/s
cores       132
source      sheet"""
    assert sections[1] == expected
    expected = f"""\
node   8 devices by {link.name}
line rate   450 GB/s per device, one direction
efficiency  75.00 % of the line rate; all-reduce 1.35 × this rate (reduction in the switch)
copies      1150 GB/s
latency     15.0 µs per message, plus 1.50 µs per step of a collective
source      least squares"""
    assert sections[-2] == expected
    assert sections[-1].splitlines()[2:4] == [
        "efficiency  75.00 % of the line rate",
        "latency     15.0 µs per message, plus 1.50 µs per step of a collective",
    ]
