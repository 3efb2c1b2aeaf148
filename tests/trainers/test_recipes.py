"""Recipes by name: what the packaged table holds, how a recipe is read, and which options its trainer refuses."""

from collections import Counter
from dataclasses import replace

import pytest

import ppsim
from ppsim.api.project import plan_of_keywords
from ppsim.base.errors import ConfigError
from ppsim.base.files import data_folder
from ppsim.machine.cluster_files import load_cluster
from ppsim.model.attention_and_mlp import Attention
from ppsim.model.registry import NAMES, find_model
from ppsim.projection.project import outcome_of
from ppsim.trainers.bridge.rules import RULES
from ppsim.trainers.read_recipe import CLUSTERS, read_recipe
from ppsim.trainers.recipe_table import find_recipe, matching_recipes, recipes

NEWEST = "deepseek-v3/gb200/mxfp8@26.08"


def test_the_table_is_small_and_every_recipe_has_a_name_of_its_own():
    assert (data_folder("trainers/data") / "recipes.json").stat().st_size < 180 * 2**10
    assert [name for name, number in Counter(one.name for one in recipes()).items() if number > 1] == []


def test_each_recipe_names_the_file_and_the_commit_that_has_it():
    for one in recipes():
        assert one.file
        assert one.tag
        assert len(one.commit) == 40 or one.trainer == "torchtitan"  # whose registry comes of a wheel


def test_there_are_recipes_of_every_trainer_and_release():
    found = Counter((one.trainer, one.release) for one in recipes())
    releases = ["25.09", "25.11", "26.02", "26.02.01", "26.04", "26.04.01", "26.06", "26.06.01", "26.08"]
    assert [release for trainer, release in found if trainer == "megatron-bridge"] == releases
    assert found["megatron-bridge", "26.08"] == 389
    assert [release for trainer, release in found if trainer == "primus"] == ["26.2", "26.3", "26.4", "26.5"]
    assert found["torchtitan", "0.3.0"] > 10


def test_a_recipe_is_the_complete_plan_that_its_file_has():
    """Read by hand: perf_recipes/deepseek/gb200/deepseek_v3.py of v0.6.0, deepseek_v3_pretrain_256gpu_gb200_fp8mx."""
    words = read_recipe(NEWEST).options
    expected = {
        "model": "deepseek-v3", "cluster": "gb200-nvl72", "gpus": 256, "pp": 4, "vpp": 4, "ep": 64, "etp": 1,
        "micro_batch": 1, "global_batch": 4096, "seq_len": 4096, "dtype": "mxfp8", "recompute": "mla_up_proj",
        "cuda_graphs": "full", "moe_dispatcher": "hybridep", "fused_experts": True, "overlap_ep": "megatron-delay-wgrad",
        "moe_expert_rank_capacity_factor": 1.5, "moe_paged_stash": 1.2, "stack": "megatron-bridge", "zero": 1,
        "moe_flex_dispatcher_num_sms": 32,
    }  # fmt: skip
    assert {name: words[name] for name in expected} == expected
    assert words["split"].startswith("Etttt|tttt|")
    assert words["split"].endswith("|tmL")


def test_a_recipe_of_an_older_release_has_the_settings_of_its_variant():
    """Read by hand: LLAMA3_70B_PRETRAIN_CONFIG_GB200_FP8_CS_V1 of v0.3.0: FSDP, and 40 of 80 layers offloaded."""
    words = read_recipe("llama3-70b/gb200/fp8@26.02").options
    expected = {"gpus": 64, "micro_batch": 2, "global_batch": 256, "zero": 3, "offload": 0.5, "pp": 1,
                "gradient_accumulation_fusion": False, "dtype": "float8", "cuda_graphs": "none"}  # fmt: skip
    assert {name: words[name] for name in expected} == expected


def test_a_recipe_of_the_oldest_release_is_what_its_launcher_started():
    """Read by hand: run_script.py and deepseek_v3_llm_pretrain.yaml of v0.1.0rc4: tokens dropped except on H100."""
    dropped, dropless = (read_recipe(f"deepseek-v3/{one}/fp8@25.09").options for one in ("gb200", "h100"))
    assert (dropped["moe_dispatcher"], dropped["moe_expert_capacity_factor"]) == ("alltoall", 1.0)
    assert (dropped["pp"], dropped["vpp"], dropped["ep"], dropped["recompute"]) == (4, 4, 64, "mla_up_proj")
    assert "moe_expert_capacity_factor" not in dropless
    expected = {"tp": 2, "pp": 8, "vpp": 4, "ep": 64, "global_batch": 8192, "seq_len": 4096, "overlap_grad_reduce": False,
                "moe_dispatcher": "deepep", "recompute": "mla_up_proj+mlp", "split": "Et|(tt|)*30mL"}  # fmt: skip
    assert {name: dropless[name] for name in expected} == expected
    assert read_recipe("llama3-8b/b200/fp8@25.09").options["cuda_graphs"] == "layer"


@pytest.mark.parametrize("name", ["deepseek-v3/gb300/mxfp8@26.08", "gpt-oss-120b/gb200/mxfp8@26.06"])
def test_selective_recomputation_of_an_empty_list_of_modules_is_none(name):
    """Megatron-Core (transformer_config.py, __post_init__) recomputes core_attn only if the list is None."""
    assert read_recipe(name).options.get("recompute") is None


def test_sequence_parallelism_of_a_recipe_follows_tp_as_its_launcher_sets_it():
    name = "qwen3-235b-a22b/gb200/fp8@25.09"
    assert read_recipe(name).options["sequence_parallel"] is False
    assert plan_of_keywords({"recipe": name, "tp": 2, "ep": 8}).job.execution.sequence_parallel
    typed = {"recipe": name, "tp": 2, "ep": 8, "sequence_parallel": False}
    assert not plan_of_keywords(typed).job.execution.sequence_parallel


def test_settings_that_are_not_modelled_are_listed():
    ignored = {one.name: one for one in read_recipe("deepseek-v3/gb300/mxfp8@26.08").ignored}
    assert ignored["moe_router_fusion"].value is True
    assert not ignored.keys() & {"main_grads_dtype", "fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag"}
    assert "global_batch_size" not in ignored


CONTRADICTIONS = {
    "deepseek-v3/vr200/bf16/128gpu@26.08": "got ep 64 with dp 32",  # 128 GPUs on pp 4
    "nemotron-h-56b/b200/bf16@26.08": "1 · 128: got 192",
    "deepseek-v3/gb200/mxfp8/partial-cg-dev@26.08": "the split has 16 entries, but there are 8 stages",
    "deepseek-v3/mi355x/bf16@26.5": "the layout has 0 multi-token-prediction layers, but the model has 1",
    "gpt-oss-120b/h100/mxfp8@26.04": "NVIDIA H100 SXM has no mxfp8 in its tensor cores",
    "gpt-oss-120b/vr200/mxfp8@26.06": "a dropless router leaves open",
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_refusal_of_an_unchanged_recipe_names_the_recipe_and_its_contradiction(name):
    with pytest.raises(ConfigError) as refused:
        plan_of_keywords({"recipe": name})
    assert str(refused.value).startswith(f"recipe {name} cannot be projected as published: ")
    assert CONTRADICTIONS[name] in str(refused.value)
    with pytest.raises(ConfigError, match=r"^(?!recipe)"):
        plan_of_keywords({"recipe": name, "tp": 7})


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("nemotron-3-5-lightning/h100/bf16@26.08", "nemotron-3.5-lightning-30b-a3b"),
        ("nemotron-3-ultra/gb300/mxfp8", "nemotron-3-ultra-550b-a55b"),
        ("Llama3.1-405B/gb300/mxfp8", "llama3-405b"),
        ("llama4-17b128e/mi355x/bf16", "llama4-maverick"),
    ],
)
def test_a_recipe_is_found_by_every_name_of_its_model(name, model):
    found = read_recipe(name)
    assert found.recipe.model == found.options.get("model", model) == model
    assert {one.model for one in matching_recipes([name.split("/")[0]])} == {model}


def test_the_models_of_all_recipes_are_those_of_the_one_table_of_names():
    assert {one.model for one in recipes()} <= set(NAMES)


def test_mtp_layers_of_a_recipe_are_those_of_the_file_whether_the_model_has_any_or_not():
    """nemotronh.py of v0.6.0: two tokens by one repeated layer. qwen3_next.py: a layer like the model's last one."""
    lightning = plan_of_keywords({"recipe": "nemotron-3.5-lightning-30b-a3b/h100/bf16@26.08"}).job.model
    assert (len(lightning.mtp), lightning.repeats_mtp) == (2, True)
    next_ = plan_of_keywords({"recipe": "qwen3-next-80b-a3b/gb200/bf16@26.08"}).job.model
    assert next_.mtp == next_.layers[-1:]
    assert not find_model("qwen3-next-80b-a3b").mtp


def test_a_recipe_that_is_for_any_device_gets_one_with_its_number_format():
    assert read_recipe("llama3-8b/any/mxfp8@0.3.0").options["cluster"] == "dgx-b200"
    assert "cluster" not in read_recipe("llama3-8b/any/bf16@0.3.0").options


def test_layers_of_primus_that_are_convolutions_are_read():
    """primus/configs/models/megatron/lfm2_8B_A1B.yaml of v26.5.1: 6 of 24 layers attend, with 32 heads of 128."""
    layers = read_recipe("lfm2-8b-a1b/mi355x/bf16@26.5").model.layers
    attends = [isinstance(layer.attention, Attention) for layer in layers]
    assert [number for number, one in enumerate(attends) if one] == [2, 6, 10, 14, 18, 21]
    assert (layers[2].attention.head_size, layers[0].attention.kernel) == (128, 3)


def test_sizes_that_primus_builds_with_its_own_code_are_the_packaged_models():
    found = read_recipe("deepseek-v4-flash/mi355x/bf16@26.5")
    assert found.model is find_model("deepseek-v4-flash")
    assert any("sizes of deepseek-v4-flash" in note for note in found.notes)


def test_paged_stashing_excludes_offloading_of_the_experts_modules_only():
    """transformer_config.py: `moe_offload_conflict`."""
    name = "deepseek-v4-pro/gb300/mxfp8@26.08"
    job = plan_of_keywords({"recipe": name}).job
    assert (job.offload_modules, job.execution.paged_stash) == ("core_attn+attn_proj", 1.2)
    with pytest.raises(ConfigError, match="leave out expert_fc1 of --offload-modules"):
        plan_of_keywords({"recipe": name, "offload_modules": "core_attn+expert_fc1"})


def test_graphs_of_te_s_older_option_keep_the_modules_that_they_capture():
    """qwen3_moe.py of v0.6.0: external_cuda_graph with attn, moe_router and moe_preprocess."""
    found = read_recipe("qwen3-30b-a3b/gb200/mxfp8/partial-cg-dev@26.08").options
    assert found["cuda_graphs"] == "attn+moe_router+moe_preprocess"


@pytest.mark.parametrize("name", ["qwen3-235b-a22b/mi355x/bf16@26.5", "llama3-70b/mi300x/fp8/torchtitan@26.5"])
def test_an_experiment_of_primus_is_read_for_its_device(name):
    found = read_recipe(name)
    assert found.options["cluster"] in ("mi300x-8", "mi355x-8")
    assert found.model is not None
    assert plan_of_keywords({"recipe": name, "gpus": 64}).job.layout.num_devices == 64


def test_an_entry_of_torchtitan_is_the_same_by_name_and_by_its_flags(tmp_path):
    (tmp_path / "run.sh").write_text(
        "torchrun train.py --module llama3 --config llama3_70b --training.seq_len 8192\n"
    )
    by_flags, by_name = ppsim.read_run_config(tmp_path / "run.sh"), read_recipe("llama3-70b/any/bf16@0.3.0")
    assert by_name.options == by_flags.options
    assert replace(by_name.model, source="") == replace(by_flags.model, source="")


def test_a_name_without_a_release_is_the_newest():
    assert find_recipe("deepseek-v3/gb200/mxfp8").name == NEWEST
    assert find_recipe("DeepSeek-V3/GB200/mxfp8@26.04").release == "26.04"


MISTAKES = {
    "deepsek-v3/gb200/mxfp8": "unknown recipe 'deepsek-v3/gb200/mxfp8': the nearest of .* are deepseek-v3/gb200/mxfp8, "
    ".*, .*; `ppsim recipes` lists all",
    "llama3-8b/gb200/bf16@26.08": "recipe llama3-8b/gb200/bf16 is not in release 26.08: it is in 25.09, .*26.06.01",
    "gpt-oss-20b/b300@26.08": "recipe gpt-oss-20b/b300 has variants: give gpt-oss-20b/b300/",
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_name_gets_one_sentence_with_what_there_is(name):
    with pytest.raises(ConfigError, match=MISTAKES[name]):
        find_recipe(name)


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ({"schedule": "zbv"}, "refuses --schedule zbv: its pipeline has the schedules 1f1b"),
        ({"recompute": "full"}, "refuses --recompute full: the overlap of expert-parallel communication"),
        ({"vpp": 1}, "refuses --vpp 1: the overlap of expert-parallel communication in a pipeline needs --vpp 2"),
        ({"ep": 1}, "refuses --ep 1: the overlap of expert-parallel communication needs --ep 2"),
        ({"offload": 0.5}, "refuses --offload 0.5: activation offload by layers"),
        ({"moe_dispatcher": "deepep"}, "refuses --moe-dispatcher deepep: DeepEP runs on Hopper"),
    ],
)
def test_an_option_that_the_trainer_refuses_gets_the_rule(typed, sentence):
    with pytest.raises(ConfigError, match=sentence):
        plan_of_keywords({"recipe": NEWEST, **typed})


def test_a_cluster_given_as_an_object_obeys_the_rules_for_its_name():
    recipe, b200 = "deepseek-v3/b200/mxfp8@26.04", load_cluster("dgx-b200")
    words = {"recipe": recipe, "moe_dispatcher": "deepep"}
    assert plan_of_keywords({**words, "cluster": b200}).job.cluster == b200
    with pytest.raises(ConfigError, match="DeepEP runs on Hopper"):
        plan_of_keywords({**words, "cluster": load_cluster("gb200-nvl72")})


def test_no_published_recipe_breaks_a_rule_by_itself():
    for one in matching_recipes(["megatron-bridge"]):
        words = read_recipe(one.name).options if one.release in ("26.04", "26.08") else {}
        assert [rule.sentence for rule in RULES if words and rule.refuses(words)] == [], one.name


def test_an_option_replaces_its_part_of_a_recipe_and_no_other():
    plan, typed = (
        plan_of_keywords({"recipe": NEWEST, **more}) for more in ({}, {"global_batch": 2048, "gpus": 512})
    )
    assert typed.job.layout == replace(plan.job.layout, dp=2 * plan.job.layout.dp)
    assert (typed.job.global_batch, plan.job.global_batch) == (2048, 4096)
    assert typed.layer_split_rule == plan.layer_split_rule


def test_a_recipe_for_a_device_without_a_cluster_asks_for_one(monkeypatch):
    monkeypatch.delitem(CLUSTERS, "vr200")
    name = "deepseek-v3/vr200/mxfp8/256gpu@26.08"
    with pytest.raises(ConfigError, match="is for VR200, which no cluster has: give --cluster"):
        plan_of_keywords({"recipe": name})
    assert plan_of_keywords({"recipe": name, "cluster": "gb300-nvl72"}).job.cluster.name == "gb300-nvl72"


def test_every_recipe_names_a_device_with_a_cluster():
    assert {recipe.device for recipe in recipes()} <= {*CLUSTERS, "any"}
    assert plan_of_keywords({"recipe": "llama3-8b/r100/nvfp4@26.08"}).job.cluster.name == "r100-nvl8"
    assert plan_of_keywords({"recipe": "deepseek-v3/vr200/mxfp8/256gpu@26.08"}).job.cluster.name == "vr200-nvl144"


def test_attention_in_8_bits_of_a_recipe_is_followed():
    name = "qwen3-30b-a3b/gb300/mxfp8@26.08"
    seconds = [
        outcome_of(plan_of_keywords({"recipe": name, "attention": how}))[0] for how in (None, "fused-fp8", "fused")
    ]
    assert seconds[0] == seconds[1] < seconds[2]
    with pytest.raises(
        ConfigError, match="--attention fused-fp8 is for GEMMs in 8 or 4 bits: got --dtype bfloat16"
    ):
        plan_of_keywords({"recipe": name, "dtype": "bfloat16"})


def test_a_recipe_and_a_configuration_together_are_refused():
    with pytest.raises(ConfigError, match="--recipe and --run-config both name a trainer's configuration"):
        plan_of_keywords({"recipe": NEWEST, "run_config": "train.sh"})


def test_a_recipe_without_parallel_sizes_has_the_defaults_of_its_trainer() -> None:
    """Only a file without them leaves them to a checkpoint."""
    config = read_recipe("qwen3-235b-a22b/b200/fp8@25.09")
    assert not config.needed
    assert config.options.get("tp", 1) == 1
