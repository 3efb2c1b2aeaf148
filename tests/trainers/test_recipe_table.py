"""Recipes by name, of a table with one trainer of three releases and one of one."""

from collections.abc import Iterator
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.trainers import recipe_table
from ppsim.trainers.recipe_table import find_recipe, matching_recipes, why_no_recipe

TABLE: dict[str, Any] = {
    "files": ["old.py", "new.py"],
    "settings": [["tp", 2], ["pp", 4], ["ep", 8]],
    "plans": [[0], [2, 1]],
    "trainers": {
        "megatron-bridge": {
            "repository": "bridge",
            "releases": {"26.02": ["v1", "0123456789ab"], "26.04": ["v2", ""], "26.06": ["v3", "c"]},
            "recipes": {
                "llama3-8b/h100/bf16": [[0, 0, 8, 0, 0], [1, 2, 16, 1, 1]],
                "deepseek-v3/h100/fp8/big": [[0, 1, 1024, 1, 0]],
                "deepseek-v3/h100/fp8/small": [[0, 1, 256, 1, 0]],
            },
        },
        "primus": {
            "repository": "primus",
            "releases": {"26.02": ["p1", "d"]},
            "recipes": {"llama3-8b/mi300x/fp8": [[0, 0, None, 0, 1]]},
        },
    },
}


@pytest.fixture(autouse=True)
def _table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(recipe_table, "_table", lambda: TABLE)
    recipe_table.recipes.cache_clear()
    yield
    recipe_table.recipes.cache_clear()


def test_a_row_of_the_table_is_a_recipe_of_each_release_from_its_first_to_its_last() -> None:
    ran = [(one.release, one.gpus, one.file, one.tag) for one in matching_recipes(["megatron-bridge", "llama3-8b"])]
    assert ran == [("26.02", 8, "old.py", "v1"), ("26.04", 16, "new.py", "v2"), ("26.06", 16, "new.py", "v3")]
    assert len(matching_recipes([])) == 3 + 2 + 2 + 1


def test_a_recipe_has_the_parts_of_its_name_its_settings_by_name_and_its_source() -> None:
    one = find_recipe("llama3-8b/h100/bf16@26.04")
    assert (one.model, one.device, one.precision) == ("llama3-8b", "h100", "bf16")
    assert list(one.settings.items()) == [("ep", 8), ("pp", 4)]
    assert one.source == "new.py at v2"
    assert find_recipe("llama3-8b/h100/bf16@26.02").source == "old.py at v1 (01234567)"
    written = one.to_json()
    assert written.pop("name") == "llama3-8b/h100/bf16@26.04"
    assert written == {name: getattr(one, name) for name in written}
    assert len(written) == 10


def names(*words: str, **filters: str | None) -> set[str]:
    return {one.name for one in matching_recipes(words, **filters)}


def test_every_word_and_every_filter_must_hold() -> None:
    assert names("FP8", "small") == {"deepseek-v3/h100/fp8/small@26.02", "deepseek-v3/h100/fp8/small@26.04"}
    assert names("fp8", "26.04") == {"deepseek-v3/h100/fp8/small@26.04", "deepseek-v3/h100/fp8/big@26.04"}
    assert names("fp8", trainer="primus", release=None) == {"llama3-8b/mi300x/fp8@26.02"}
    assert names("h1") == set()  # parts are whole, except those of models
    assert names("seek", release="26.02") == {f"deepseek-v3/h100/fp8/{size}@26.02" for size in ("small", "big")}
    assert names(model="llama3", device="mi300x") == {"llama3-8b/mi300x/fp8@26.02"}
    assert names(device="llama3-8b") == set()
    assert names("meta-llama/Meta-Llama-3-8B", release="26.06") == {"llama3-8b/h100/bf16@26.06"}


def test_an_empty_list_says_which_words_to_leave_out() -> None:
    assert why_no_recipe(["h10"]).startswith("no recipe has 'h10': did you mean h100")
    assert why_no_recipe([], device="b200").startswith("no recipe has '--device b200': ")
    assert why_no_recipe(["mi300x", "deepseek-v3"]) == (
        "no recipe has mi300x and deepseek-v3: without mi300x there are 2, without deepseek-v3 there are 1"
    )
    assert why_no_recipe(["mi300x", "deepseek-v3", "26.06"]).endswith(": leave out some of them")


def test_without_a_release_the_newest_is_named() -> None:
    assert find_recipe(" Llama3-8B/H100/bf16 ").release == "26.06"
    assert find_recipe("deepseek-v3/h100/fp8/big").release == "26.04"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama3-8b/h100/bf16@25.01", "is not in release 25.01: it is in 26.02, 26.04, 26.06"),
        ("deepseek-v3/h100/fp8", "has variants: give deepseek-v3/h100/fp8/big or deepseek-v3/h100/fp8/small"),
        ("llama3-8b/h200/bf16", "unknown recipe 'llama3-8b/h200/bf16': the nearest of 4 are llama3-8b/h100/bf16, "),
        ("llama3-8b/h200/bf16@26.06", "the nearest of 1 are llama3-8b/h100/bf16; `ppsim recipes` lists all"),
        ("llama3-8b/h200/bf16@25.01", "the nearest of 4 are llama3-8b/h100/bf16, "),
    ],
)
def test_a_name_without_a_recipe_is_refused_with_the_nearest(name: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        find_recipe(name)
    assert words in str(refused.value)
