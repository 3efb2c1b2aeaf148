"""`ppsim recipes` lists and filters recipes; `project` and `tune` take one by name."""

import json
import re

import pytest

from ppsim.trainers.recipe_table import recipes
from tests.cli.running import ppsim, words_of
from tests.cli.test_start import loaded_after

DENSE = "llama3-8b/h100/bf16@26.06"
PUBLISHED = "llama3-70b/gb300/mxfp8@26.02.01"  # a row of ppsim/validation/data/bridge-gb300.csv


def test_the_list_has_a_line_for_each_model_and_json_every_recipe():
    text, listed = ppsim("recipes").stdout, json.loads(ppsim("recipes", "--json").stdout)["recipes"]
    assert len(listed) == len(recipes())
    assert {one["model"] for one in listed if len(one["model"]) < 20} <= {*text.split()}
    assert max(map(len, text.splitlines())) <= 100


def test_words_and_options_filter_by_model_device_precision_trainer_and_release():
    by_words = json.loads(ppsim("recipes", "deepseek-v3", "gb200", "mxfp8", "26.08", "--json").stdout)
    line = "recipes --model deepseek-v3 --device gb200 --precision mxfp8 --release 26.08 --trainer megatron-bridge --json"
    assert by_words == json.loads(ppsim(*line.split()).stdout)
    assert {one["name"] for one in by_words["recipes"]} == {
        "deepseek-v3/gb200/mxfp8@26.08", "deepseek-v3/gb200/mxfp8/large-scale@26.08",
        "deepseek-v3/gb200/mxfp8/partial-cg-dev@26.08",
    }  # fmt: skip


def test_one_recipe_comes_with_its_source_its_settings_and_what_is_not_followed():
    text = words_of(ppsim("recipes", "deepseek-v3/gb300/mxfp8@26.08").stdout)
    for part in ("perf_recipes/deepseek/gb300/deepseek_v3.py at v0.6.0", "expert_model_parallel_size 32", "ep 32",
                 "moe_router_fusion on", "ppsim project --recipe deepseek-v3/gb300/mxfp8@26.08"):  # fmt: skip
        assert part in text
    assert text.count("deepseek_v3.py at v0.6.0") == 1
    found = json.loads(ppsim("recipes", "deepseek-v3/gb300/mxfp8@26.08", "--json").stdout)
    assert found["settings"]["global_batch_size"] == 4096


def test_the_list_loads_neither_data_frames_nor_projections():
    loaded = loaded_after(["recipes", "deepseek-v3"])
    assert (
        loaded & {"pandas", "torch", "matplotlib", "ppsim.projection.project", "ppsim.validation.published_runs"}
        == set()
    )


def test_mistakes_get_a_sentence():
    assert "no recipe has 'nothing': the nearest of " in ppsim("recipes", "nothing", code=2).stderr
    assert "no recipe has 'gb20': did you mean gb200" in ppsim("recipes", "llama3-8b", "gb20", code=2).stderr
    assert "no recipe has '--release 27.01': " in ppsim("recipes", "--release", "27.01", code=2).stderr
    both = ppsim("recipes", "deepseek-v3", "--device", "r100", code=2).stderr
    assert "no recipe has deepseek-v3 and --device r100: without deepseek-v3 there are 4, without" in both
    assert "the nearest of" in ppsim("project", "--recipe", "llama9/h100/bf16", code=2).stderr
    assert "it is in 25.09" in ppsim("project", "--recipe", "llama3-8b/h100/bf16@26.08", code=2).stderr
    refused = ppsim("project", "--recipe", DENSE, "--schedule", "zbv", "--pp", "2", code=2).stderr
    assert "Megatron-Bridge refuses --schedule zbv" in refused
    assert "Traceback" not in refused


def test_a_recipe_is_projected_with_its_source_and_what_is_assumed():
    done = ppsim("project", "--recipe", DENSE)
    assert "llama3-8b on 8 × NVIDIA H100 SXM (dgx-h100), 128 × 8192 tokens" in done.stdout
    assert f"{DENSE}: Megatron-Bridge 26.06" in done.stderr
    found = json.loads(ppsim("project", "--recipe", DENSE, "--json").stdout)
    assert found["run_config"]["recipe"]["tag"] == "v0.5.0"


def test_a_published_value_is_next_to_the_projection_unless_the_plan_is_changed():
    text = words_of(ppsim("project", "--recipe", PUBLISHED, "--allow-oom").stdout)
    assert "tokens/s/GPU, Megatron-Bridge 26.02.01): the projection is" in text
    found = json.loads(ppsim("project", "--recipe", PUBLISHED, "--allow-oom", "--json").stdout)
    error = found["iteration_time_s"] / found["published"]["iteration_time_s"] - 1
    assert abs(found["published"]["error"] - error) < 1e-12
    changed = ppsim("project", "--recipe", PUBLISHED, "--allow-oom", "--global-batch-size", "512", "--json")
    assert "published" not in json.loads(changed.stdout)


def test_a_recipe_as_a_configuration_is_read_back_as_the_same_step(folder):
    text = ppsim("project", "--recipe", DENSE, "--to-config", "megatron").stdout.partition("# megatron\n")[2]
    (folder / "back.sh").write_text(text)
    more = [line.removeprefix("# not expressible: ") for line in text.splitlines() if line.startswith("# not expr")]
    options = [word for line in more for word in line.split()]
    steps = [
        json.loads(ppsim("project", *words, "--json").stdout)["iteration_time_s"]
        for words in (["--recipe", DENSE], ["--run-config", "back.sh", *options])
    ]
    assert steps[0] == steps[1]


@pytest.mark.search
def test_tune_tries_only_schedules_that_the_trainer_of_the_recipe_has():
    line = f"tune --recipe {DENSE} --tp 1 --cp 1 --pp 2 --vpp 1,2 --recompute none --micro-batch-size 1"
    found = json.loads(ppsim(*line.split(), "--json").stdout)
    assert {one["schedule"] for one in found["best"]} == {"1f1b", "interleaved-1f1b"}
    refused = ppsim(*line.split(), "--schedule", "1f1b,zbv", code=2).stderr
    assert "Megatron-Bridge refuses --schedule zbv: its pipeline has the schedules 1f1b" in refused


def test_tune_starts_from_a_recipe_and_says_how_much_shorter_the_best_is():
    line = f"tune --recipe {DENSE} --tp 1 --cp 1,2 --pp 1 --schedule 1f1b --recompute none --micro-batch-size 1"
    assert f"recipe {DENSE} takes" in words_of(ppsim(*line.split()).stdout)
    found = json.loads(ppsim(*line.split(), "--json").stdout)
    of_recipe = json.loads(ppsim("project", "--recipe", DENSE, "--json").stdout)["iteration_time_s"]
    assert abs(found["recipe_iteration_time_s"] / of_recipe - 1) < 1e-9


def test_tune_names_the_options_of_a_faster_recipe_that_it_does_not_try():
    offloading = "--recipe llama3-70b/gb300/fp8/32gpu@26.08 --tp 1 --cp 1 --pp 1 --zero 1,3 --micro-batch-size 1"
    said = words_of(ppsim("tune", *offloading.split(), "--recompute", "none").stdout)
    assert re.search(r"the best is \d\S* % longer; the search does not try --micro-batch-size 2$", said)


def test_the_command_of_a_row_names_the_recipe_if_its_model_has_no_other_name():
    line = "tune --recipe qwen3-0.6b/any/bf16@0.3.0 --gpus 8 --global-batch-size 32 --cluster dgx-b200 --tp 1 --cp 1 --pp 1"
    answer = [*line.split(), "--micro-batch-size", "4", "--recompute", "none"]
    command = words_of(ppsim(*answer).stdout).partition("best ppsim ")[2].partition(" more ")[0]
    assert command.startswith("project --model qwen3-0.6b/any/bf16@0.3.0 ")
    rows = json.loads(ppsim(*answer, "--json").stdout)["best"]
    made = json.loads(ppsim(*command.split(), "--json").stdout)
    assert made["iteration_time_s"] == rows[0]["iteration_time_s"]
