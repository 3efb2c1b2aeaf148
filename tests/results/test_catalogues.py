"""Terminal output for profiles and clusters."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppsim.machine.cluster import Constant
from ppsim.machine.cluster_files import load_cluster
from ppsim.model.registry import find_model
from ppsim.results.catalogues import (
    print_cluster,
    print_clusters,
    print_counts,
    print_improvement,
    print_measurements,
    print_models,
    print_published,
    print_recipe,
    print_recipes,
    print_run_config,
    print_stage_times,
)
from ppsim.results.text_layout import SCREEN_LINES
from ppsim.trainers.recipe_table import Recipe, recipes
from ppsim.trainers.run_config import IgnoredOption, RunConfig
from ppsim.validation.project_case import PublishedResult

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


def recipe_of(base: str, release: str = "26.06", gpus: int | None = 8, trainer: str = "megatron-bridge") -> Recipe:
    return Recipe(trainer, release, base, gpus, 0, "recipes.py", "v1", "0123456789", "example.org/x")


LISTED = [
    recipe_of("llama3-8b/h100/bf16"), recipe_of("llama3-8b/h100/bf16", "26.08", 16),
    recipe_of("llama3-8b/gb200/mxfp8", "26.08", None), recipe_of("qwen3-8b/any/bf16", trainer="primus"),
]  # fmt: skip


def test_recipes_are_listed_by_model_or_with_a_filter_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    print_recipes(LISTED, is_filtered=False, full=False)
    expected = """\
model      trainer          devices     precisions  recipes  releases
llama3-8b  Megatron-Bridge  h100 gb200  bf16 mxfp8        2         2
qwen3-8b   Primus           any         bf16              1         1

ppsim recipes MODEL DEVICE lists the recipes; ppsim project --recipe NAME projects one.
"""
    assert capsys.readouterr().out == expected
    print_recipes(LISTED, is_filtered=True, full=False)
    expected = """\
recipe                 trainer          releases       GPUs
llama3-8b/h100/bf16    Megatron-Bridge  26.06, 26.08  8, 16
llama3-8b/gb200/mxfp8  Megatron-Bridge  26.08           any
qwen3-8b/any/bf16      Primus           26.06             8
"""
    assert capsys.readouterr().out == expected


def test_a_list_of_recipes_ends_with_the_screen_unless_it_is_full(capsys: pytest.CaptureFixture[str]) -> None:
    many = [recipe_of(f"model-{number}/h100/bf16") for number in range(SCREEN_LINES + 3)]
    print_recipes(many, is_filtered=True, full=False)
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[-1]) == (1 + SCREEN_LINES + 1, "3 more: --full")
    print_recipes(many, is_filtered=True, full=True)
    assert len(capsys.readouterr().out.splitlines()) == 1 + SCREEN_LINES + 3
    print_recipes(many[:SCREEN_LINES], is_filtered=True, full=False)
    assert len(capsys.readouterr().out.splitlines()) == 1 + SCREEN_LINES


def test_a_recipe_has_its_source_its_releases_and_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    listed = next(one for one in recipes() if one.name == "deepseek-v2-lite/any/bf16@0.3.0")
    print_recipe(listed)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:6] == [
        "deepseek-v2-lite/any/bf16@0.3.0",
        "trainer   TorchTitan 0.3.0, https://github.com/pytorch/torchtitan",
        "file      torchtitan/models/deepseek_v3/config_registry.py at 0.3.0",
        "releases  0.3.0",
        "settings  config deepseek_v3_16b, module deepseek_v3",
        "",
    ]
    assert lines[6].startswith("  read: a model of 15.7 G parameters, ")
    assert lines[-2:] == ["", "ppsim project --recipe deepseek-v2-lite/any/bf16@0.3.0"]
    listed = next(one for one in recipes() if one.name == "llama3-8b/h100/bf16@26.06")
    print_recipe(listed)
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split()[0] == "releases"
    assert "26.06" in lines[3].split(None, 1)[1].split(", ")
    assert lines[4].split() == ["GPUs", str(listed.gpus)]


@pytest.mark.parametrize(
    ("metric", "projected_s", "end"),
    [
        ("tokens_per_s_per_gpu", 5.0, "(812.5 tokens/s/GPU, table 3): the projection is 25.00 % longer"),
        ("tflops_per_gpu", 3.0, "(812.5 tflops/GPU, table 3): the projection is 25.00 % shorter"),
        ("s", 4.0, "(812.5 s, table 3): the projection is 0.00 % shorter"),
    ],
)
def test_a_published_run_is_compared_with_its_projection(
    metric: str, projected_s: float, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_published(PublishedResult(4.0, 812.5, metric, "table 3", "a source"), projected_s)
    assert capsys.readouterr().out == f"published      4.00 s {end}\n"


@pytest.mark.parametrize(
    ("best_s", "end"),
    [(5.0, "25.00 % longer; it overlaps; it rests"), (3.0, "25.00 % shorter"), (4.0, "0.00 % shorter")],
)
def test_the_best_plan_is_compared_with_the_recipe(
    best_s: float, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_improvement(LISTED[0], 4.0, best_s, ["it overlaps", "it rests"])
    assert capsys.readouterr().out == f"recipe  llama3-8b/h100/bf16@26.06 takes 4.00 s: the best is {end}\n"


def test_a_configuration_has_lines_of_what_is_read_ignored_and_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    ignored = (
        IgnoredOption("fp8_x", True, "time"), IgnoredOption("a", 3, "memory"), IgnoredOption("b", 4, "time and memory"),
        IgnoredOption("c", 5, "unknown"), IgnoredOption("an_option_of_memory", 6, "memory"),
    )  # fmt: skip
    options = {"tp": 2, "micro_batch": 4, "moe_dispatcher": "deepep"}
    config = RunConfig(
        "megatron", "run.sh", options, None, "none", ignored=ignored, notes=("one", "two"), typed={"gpus": 8}
    )
    print_run_config(config)
    expected = """\
run.sh: megatron
  read: tp 2, micro-batch 4, moe-dispatcher deepep
  ignored (affects time and memory): b 4
  ignored (affects time): fp8_x on
  ignored (affects memory): a 3, an_option_of_memory 6
  ignored (effect unknown): c 5
  assumed: one
  assumed: two
"""
    assert capsys.readouterr().out == expected
    model = find_model("gpt2")
    print_run_config(replace(config, model=model, options={}, ignored=(), typed={"gpus": 8, "model": "gpt2"}))
    expected = "run.sh: megatron\n  read: a model of 0.124 G parameters\n  assumed: one\n  assumed: two\n"
    assert capsys.readouterr().out == expected
    print_run_config(replace(config, notes=("ab " * 40,), ignored=()))
    assert capsys.readouterr().out.splitlines()[2:] == ["  assumed:" + 30 * " ab", "    " + " ".join(["ab"] * 10)]


def test_models_are_rows_and_sources_come_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    models = {name: find_model(name) for name in ("gpt2", "mixtral-8x7b")}
    print_models(models)
    expected = """\
model             parameters  active  layers  hidden
gpt2             124,439,808   124 M      12     768
mixtral-8x7b  46,702,792,704  12.9 G      32    4096

Instead of a name, you can give a Hugging Face config.json: ppsim models path/to/config.json
"""
    assert capsys.readouterr().out == expected
    print_models({"gpt2": models["gpt2"]}, with_sources=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:6] == ["", "sources of the sizes", "", f"gpt2  {models['gpt2'].source}"]


def test_a_cluster_of_its_own_names_its_base_and_where_its_constants_come_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = load_cluster("dgx-h100")
    constants = replace(cluster.constants, launch_s=Constant(value=2e-6), fitted_on=())
    print_cluster(replace(cluster, base="dgx-a100", num_devices=None, constants=constants))
    sections = capsys.readouterr().out.split("\n\n")
    assert [line.split() for line in sections[0].splitlines()[1::2]] == [
        ["base", "dgx-a100"],
        ["devices", "unlimited"],
    ]
    assert [section.split()[0] for section in sections] == [
        "dgx-h100", "device", "calibration", "constants", *(tier.name for tier in cluster.tiers),
    ]  # fmt: skip
    assert sections[3].splitlines()[0] == "constants   given in the file"
    print_cluster(replace(cluster, constants=replace(constants, fitted_on=("a.json", "b.json"))))
    assert "\nconstants   fitted on a.json, b.json\n" in capsys.readouterr().out


def test_stage_times_are_lines_of_layers_with_launches_and_optimizer_steps(
    profile: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"forward_s": 0.001, "backward_s": 0.002, "backward_input_s": 0.003, "backward_weight_s": 0.004}
    profile["measurements"][0]["launch"] = {name: {"median": value} for name, value in times.items()}
    print_stage_times(profile)
    expected = """\

a stage of n layers takes a + n·b
                                             pass        a        b
micro-batch 2, sequence length 256, float32  F      119 µs  11.5 ms
                                             B     5.59 µs  24.3 ms
                                             I      377 µs  14.9 ms
                                             W     76.1 µs  10.8 ms

the host takes to launch a pass
component                                                     F        B        I        W
embedding  micro-batch 2, sequence length 256, float32  1.00 ms  2.00 ms  3.00 ms  4.00 ms

optimizer step of one layer, of the embedding and of the head
optimizer  component              step  gradient norm     state
adamw      embedding  float32   107 µs        81.3 µs  1.00 MiB
adamw          layer  float32   549 µs         274 µs  6.03 MiB
adamw           head  float32  80.1 µs        69.5 µs   516 KiB
"""
    assert capsys.readouterr().out == expected
