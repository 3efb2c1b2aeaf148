"""The list of recipes that may not fit (scripts/check_recipes.py, which projects all of them)."""

import importlib.util
from pathlib import Path

import pytest

import ppsim
from ppsim.trainers.recipe_table import find_recipe

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_recipes.py"
SPEC = importlib.util.spec_from_file_location("check_recipes", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
CHECK = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(CHECK)

PUBLISHED = (
    "llama3-70b/gb300/mxfp8",
    "llama3-405b/gb300/nvfp4/256gpu",
    "deepseek-v3/gb200/mxfp8",
    "qwen3-30b-a3b/h100/bf16",
)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_whose_throughput_is_published_fits(name: str) -> None:
    assert ppsim.project(recipe=name).fits


def test_no_accepted_recipe_has_a_published_run() -> None:
    runs = CHECK.published()
    listed = [find_recipe(name) for name in CHECK.accepted()]
    assert [one.name for one in listed if (one.trainer, one.plan, one.gpus) in runs] == []


@pytest.mark.parametrize(
    "name", ["llama3-405b/b200/bf16", "deepseek-v3/vr200/bf16/128gpu", "qwen3.5-vl-35b-a3b/gb300/bf16"]
)
def test_accepted_recipes_are_refused(name: str) -> None:
    assert name in CHECK.accepted()
    assert CHECK.refusal(find_recipe(name))


def test_each_difference_from_the_list_is_a_sentence() -> None:
    refused = {"a": "DOES NOT FIT", "b": "DOES NOT FIT", "c": "DOES NOT FIT"}
    found = list(CHECK.complaints(refused, {"b": "reason", "c": "reason", "d": "reason"}, {"c"}))
    assert [sentence.split(":")[0] for sentence in found] == [
        "not in accepted_recipes.toml", "may not be in accepted_recipes.toml", "remove from accepted_recipes.toml",
    ]  # fmt: skip
