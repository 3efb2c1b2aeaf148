"""Settings of a release: of its recipe for a model, or shared by its MoE recipes."""

from collections import Counter
from typing import Any

import pytest

import ppsim
from ppsim.errors import ConfigError
from ppsim.machine.cluster_files import load_cluster
from ppsim.trainers.read_recipe import read_recipe
from ppsim.trainers.shared_settings import (
    SETTINGS,
    _captured,
    applicable_settings,
    moe_recipes,
    recipe_of,
    release_named,
    release_settings,
)
from ppsim.trainers.stacks import stack_of

GB200 = load_cluster("gb200-nvl72").device.name
B200 = load_cluster("dgx-b200").device.name
H100 = load_cluster("dgx-h100").device.name


def shared(release: str, device: str, dtype: str) -> dict[str, object]:
    found = release_settings("megatron-bridge", release, device, dtype, None, None, True)
    return dict(found.settings) if found else {}


@pytest.mark.parametrize(("release", "dtype"), [("26.06.01", "mxfp8"), ("26.08", "mxfp8"), ("26.08", "bfloat16")])
def test_a_setting_is_shared_if_more_than_half_of_the_recipes_have_it(release: str, dtype: str) -> None:
    words = [read_recipe(one.name).options for one in moe_recipes("megatron-bridge", release, GB200, dtype)]
    assert len(words) > 10
    found = shared(release, GB200, dtype)
    for name in ("moe_dispatcher", "fused_experts"):
        (value, count), *_ = Counter(one.get(name) for one in words).most_common()
        assert found.get(name) == (value if 2 * count > len(words) else None), name
    is_full = 2 * sum(one["cuda_graphs"] == "full" for one in words) > len(words)
    assert (found["cuda_graphs"] == "full") is is_full
    assert ("moe_paged_stash" in found) is ("moe_expert_rank_capacity_factor" in found) is is_full


def test_recipes_of_2026_on_gb200_have_fused_experts_whole_graphs_and_paged_stashing() -> None:
    for release in ("26.06", "26.06.01", "26.08"):
        assert shared(release, GB200, "mxfp8") == {
            "overlap_grad_reduce": True, "overlap_param_gather": True, "moe_dispatcher": "hybridep", "moe_flex_dispatcher_num_sms": 32, "fused_experts": True, "moe_expert_rank_capacity_factor": 1.5,
            "moe_paged_stash": 1.2, "cuda_graphs": "full",
        }  # fmt: skip
    assert "fused_experts" not in shared("26.02", GB200, "mxfp8")
    assert shared("26.08", H100, "mxfp8") == {}  # H100 has no recipes in this format


def test_graphs_are_shared_by_module_if_no_scope_is() -> None:
    """26.08, GB300, fp8: 2 of 6 recipes capture none, 2 with and 2 without attention."""
    gb300 = load_cluster("gb300-nvl72").device.name
    assert shared("26.08", gb300, "float8")["cuda_graphs"] == "moe_router+moe_preprocess"


def test_given_options_replace_shared_settings_and_those_that_require_them() -> None:
    whole = shared("26.08", GB200, "mxfp8")
    assert applicable_settings(whole, {}) == whole
    plain = applicable_settings(whole, {"fused_experts": False})
    assert set(whole) - set(plain) == {
        "fused_experts", "moe_expert_rank_capacity_factor", "moe_paged_stash", "cuda_graphs",
    }  # fmt: skip
    assert "moe_flex_dispatcher_num_sms" not in applicable_settings(whole, {"moe_dispatcher": "deepep"})
    assert applicable_settings(whole, {"cuda_graphs": "none"}) == {
        name: value for name, value in whole.items() if name != "cuda_graphs"
    }
    assert set(applicable_settings(whole, {"offload": 0.5})) == set(whole) - {"cuda_graphs", "moe_paged_stash"}
    assert "cuda_graphs" not in applicable_settings(whole, {"recompute": "full"})
    modules = {"cuda_graphs": "moe_router+moe_preprocess"}
    for recompute in ("block/2", "full/2", "mlp+moe", "selective-op"):
        assert not applicable_settings(modules, {"recompute": recompute}), recompute
    assert applicable_settings(modules, {"recompute": "mlp"}) == modules
    assert "cuda_graphs" in applicable_settings(whole, {"recompute": "block/2"})


def test_a_stack_has_the_newest_release_unless_it_is_given() -> None:
    stack = stack_of("megatron-bridge", {"dtype": "mxfp8"}, device=GB200, has_experts=True)
    assert stack.name == f"megatron-bridge@{release_named('megatron-bridge', '')}"
    assert stack.options["fused_experts"] is True
    assert "--fused-experts" in stack.sentences[0]
    older = stack_of("megatron-bridge@26.02", {"dtype": "mxfp8"}, device=GB200, has_experts=True)
    assert older.name == "megatron-bridge@26.02"
    assert "fused_experts" not in older.options
    none = stack_of("megatron-bridge@none", {"dtype": "mxfp8"}, device=GB200, has_experts=True)
    assert (none.name, none.sentences) == ("megatron-bridge@none", ())
    dense = stack_of("megatron-bridge@26.08", {"dtype": "mxfp8"}, device=GB200, has_experts=False)
    assert dense.name == "megatron-bridge"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("megatron-bridge@26.03", "unknown release '26.03' of megatron-bridge: there are 25.09, 25.11"),
        ("plain@26.08", "stack plain has no releases: leave out @26.08"),
        ("nemo", "unknown stack 'nemo': there are plain, megatron-bridge"),
    ],
)
def test_unknown_names_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        stack_of(name, {}, device=GB200, has_experts=False)
    assert sentence in str(refused.value)


DEEPSEEK: dict[str, Any] = {
    "model": "deepseek-v3", "cluster": "dgx-b200", "gpus": 256, "pp": 8, "vpp": 2, "ep": 32, "dtype": "mxfp8",
    "global_batch": 4096, "recompute": "mla_up_proj+mlp", "stack": "megatron-bridge@26.04.01",
}  # fmt: skip


def test_a_release_brings_the_settings_of_its_recipe_for_the_model() -> None:
    name = "deepseek-v3/b200/mxfp8@26.04.01"
    published = read_recipe(name).options
    said = stack_of(DEEPSEEK["stack"], DEEPSEEK, device=B200, has_experts=True)
    for setting in SETTINGS:
        assert said.options.get(setting) == published.get(setting, "fused" if setting == "attention" else None)
    assert said.options["overlap_ep"] == "megatron-delay-wgrad"
    assert said.remark == f"recipe {name} is for this model: use --recipe"
    other = stack_of(DEEPSEEK["stack"], {**DEEPSEEK, "model": "moonlight-16b-a3b"}, device=B200, has_experts=True)
    assert "overlap_ep" not in other.options
    assert other.remark.startswith("settings of most of its")
    dense = {"model": "llama3-8b", "gpus": 8, "dtype": "nvfp4"}
    assert "llama3-8b/gb200/nvfp4@26.08" in stack_of(
        "megatron-bridge@26.08", dense, device=GB200, has_experts=False
    ).remark  # fmt: skip


def test_a_plan_of_a_release_takes_the_time_of_its_recipe() -> None:
    """The layers per stage of the recipe are the user's to give."""
    recipe = ppsim.project(recipe="deepseek-v3/b200/mxfp8@26.04.01")
    split = read_recipe("deepseek-v3/b200/mxfp8@26.04.01").options["split"]
    project = ppsim.project(**DEEPSEEK, split=split, expert_imbalance=1.0)
    assert project.iteration_time_s == pytest.approx(recipe.iteration_time_s, rel=0.01)


@pytest.mark.parametrize(
    "typed",
    [
        {"schedule": "1f1b"}, {"vpp": None}, {"ep": 1}, {"recompute": "full"}, {"recompute": "block/2"},
        {"ep": [8, 16], "pp": [1, 2]},
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_of_the_recipe_that_the_plan_excludes_is_left_out(typed: dict[str, Any]) -> None:
    """A search has lists of sizes."""
    said = stack_of(DEEPSEEK["stack"], DEEPSEEK | typed, device=B200, has_experts=True)
    left = "overlap_ep" if typed != {"recompute": "block/2"} else "cuda_graphs"
    assert left not in said.options
    assert f"--{left.replace('_', '-')}" in said.sentences[0].partition("exclude them")[2]


def test_a_typed_option_replaces_the_setting_of_the_recipe() -> None:
    said = stack_of(DEEPSEEK["stack"], DEEPSEEK | {"cuda_graphs": "none"}, device=B200, has_experts=True)
    assert "cuda_graphs" not in said.options
    assert "cuda-graphs" not in said.sentences[0]


def test_the_recipe_with_the_nearest_number_of_gpus_is_selected() -> None:
    gb300 = load_cluster("gb300-nvl72").device.name
    near = {
        gpus: recipe_of("megatron-bridge", "26.08", gb300, "mxfp8", "qwen3-235b-a22b", gpus)
        for gpus in (64, 90, 200, 512)
    }
    assert {gpus: one and one.gpus for gpus, one in near.items()} == {64: 64, 90: 64, 200: 256, 512: 256}
    assert recipe_of("megatron-bridge", "26.08", gb300, "float16", "qwen3-235b-a22b", 64) is None


@pytest.mark.parametrize(
    ("scopes", "captured"),
    [
        ({"full": 2, "layer": 1}, "full"),
        ({"layer": 3, "none": 2}, "layer"),
        ({"none": 3, "attn": 2}, "none"),
        ({"attn+mlp": 2, "attn": 1, "full": 2}, "attn"),  # mlp: 2 of 5
        ({"attn+mlp": 2, "mlp": 1, "none": 2}, "mlp"),
        ({"attn": 2, "none": 2}, None),  # half is not most
        ({"attn+mlp": 3, "full": 1}, "attn+mlp"),
    ],
)
def test_graphs_capture_what_more_than_half_of_the_recipes_do(scopes: dict[str, int], captured: str | None) -> None:
    assert _captured(Counter(scopes)) == captured
