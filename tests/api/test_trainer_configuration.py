"""Which settings a trainer's configuration leaves to the options, and what is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.api import trainer_configuration as module
from ppsim.api.keyword_options import option_types
from ppsim.api.trainer_configuration import (
    names_trainer,
    read_source,
    recipe_in_errors,
    require_no_job,
    with_run_config,
)
from ppsim.errors import ConfigError
from ppsim.projection.options import PlanOptions
from ppsim.trainers.run_config import RunConfig


def config_of(**fields: Any) -> Any:
    return SimpleNamespace(**{"source": "run.sh", "launcher_gpus": 1, "layers_per_virtual_stage": None, "recipe": None} | fields)  # fmt: skip


@contextmanager
def refused(sentence: str) -> Iterator[None]:
    with pytest.raises(ConfigError, match=sentence):
        yield


@pytest.mark.parametrize("name", ["stack", "run_config", "recipe", "runtime"])
def test_four_options_name_a_trainer(name: str) -> None:
    assert names_trainer({name: "x", "model": None})
    assert not names_trainer({name: None, "model": "gpt2"})


@pytest.mark.parametrize(
    ("launcher_gpus", "sizes", "launched"),
    [
        (1, {"tp": 2}, {}), (8, {}, {"gpus": 8, "gpus_assumed": 8}), (8, {"tp": 2, "pp": 2}, {"gpus": 8, "gpus_assumed": 8}),
        (8, {"tp": 2, "cp": 2, "pp": 3, "ep": None}, {"gpus": 24, "gpus_assumed": 8}), (8, {"tp": -1}, {}), (4, {"pp": 8}, {"gpus": 8, "gpus_assumed": 4}),
    ],
)  # fmt: skip
def test_a_launcher_starts_a_multiple_of_its_gpus(
    launcher_gpus: int, sizes: dict[str, Any], launched: dict[str, int]
) -> None:
    assert module._launched(config_of(launcher_gpus=launcher_gpus), sizes) == launched


def test_a_configuration_has_one_source() -> None:
    with refused(r"^--recipe and --run-config both name a trainer's configuration: give one of them$"):
        read_source({"run_config": "run.sh", "recipe": "llama"})
    for name in ("set", "launch", "ignore"):
        with refused(rf"^--{name} is for a launch script: give --run-config$"):
            read_source({name: {"A": "1"}})
    assert read_source({}) is None
    assert read_source({"set": {}, "run_config": None}) is None
    config = RunConfig("megatron", "run.sh", {}, None, "none")
    assert read_source({"run_config": config}) is config


def test_a_script_is_read_with_its_variables_and_a_recipe_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppsim.trainers.read_config.read_run_config", lambda path, **options: (path, options))
    monkeypatch.setattr("ppsim.trainers.read_recipe.read_recipe", lambda name: f"recipe {name}")
    read: Any = read_source({"run_config": "run.sh", "set": {"A": "1"}, "launch": "two", "ignore": None})
    assert read == ("run.sh", {"variables": {"A": "1"}, "launch": "two"})
    assert read_source({"run_config": "run.sh"}) == ("run.sh", {"variables": None})  # type: ignore[comparison-overlap]
    assert read_source({"recipe": "llama"}) == "recipe llama"  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("recipe", "options", "named"),
    [
        ("llama", {"recipe": "llama", "tp": None, "set": {}, "keep": ()}, True), ("llama", {"recipe": "llama", "memory_limit": "1GiB"}, True),
        ("llama", {"recipe": "llama", "tp": 2}, False), (None, {"run_config": "run.sh"}, False),
    ],
)  # fmt: skip
def test_an_error_of_an_unchanged_recipe_names_it(recipe: str | None, options: dict[str, Any], named: bool) -> None:
    config = config_of(recipe=recipe and SimpleNamespace(name=recipe))
    sentence = "^recipe llama cannot be projected as published: odd$" if named else "^odd$"
    with refused(sentence), recipe_in_errors(config, options):
        raise ConfigError("odd")
    with refused(r"^odd$"), recipe_in_errors(None, options):
        raise ConfigError("odd")


def test_settings_that_the_launch_gives_must_be_options() -> None:
    needed = {"gpus": ("its nodes are not set", "--gpus"), "tp": ("tp is auto", "--tp")}
    config = config_of(needed=needed)
    with refused(r"^run\.sh: its nodes are not set: give --gpus; tp is auto: give --tp$"):
        module._require_needed(config, {"pp"})
    with refused(r"^run\.sh: tp is auto: give --tp$"):
        module._require_needed(config, {"dp"})
    module._require_needed(config, {"gpus", "tp"})


@pytest.mark.parametrize(
    ("options", "unused"),
    [
        ({"pp": None}, module._OF_PIPELINES), ({"pp": 1, "vpp": 4}, module._OF_PIPELINES), ({"pp": 2}, ("group_size", "overlap_p2p")),
        ({"pp": 2, "vpp": 1}, ("group_size", "overlap_p2p")), ({"pp": 2, "vpp": 2}, ()), ({"pp": 2, "split": "even"}, ()),
        ({"pp": 2, "vpp": 2, "schedule": "combined-1f1b"}, ()), ({"pp": 2, "vpp": 2, "schedule": "zbv"}, ("group_size", "overlap_p2p")),
    ],
)  # fmt: skip
def test_settings_of_pipelines_and_interleaving_have_no_effect_without_them(
    options: dict[str, Any], unused: tuple[str, ...]
) -> None:
    assert module._without_effect(options) == unused
    assert {"split", "vpp", "schedule", "group_size", "overlap_p2p"} < {*module._OF_PIPELINES}


@pytest.mark.parametrize(
    ("filled", "given", "vpp"),
    [
        ({"vpp": 3, "pp": 4}, {"tp"}, 3), ({"vpp": 3, "pp": 4, "layers": 32}, {"layers"}, 4), ({"vpp": 3, "pp": 2, "layers": 32}, {"pp"}, 8),
        ({"vpp": 3, "pp": None, "layers": 6}, {"layers"}, 3), ({"vpp": 3, "pp": 2, "model": "gpt2", "layers": None}, {"model"}, 3),
        ({"vpp": 3, "pp": 2, "layers": 30, "account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}, {"pp"}, 8),
    ],
)  # fmt: skip
def test_stages_per_rank_follow_from_the_layers_of_a_virtual_stage(
    filled: dict[str, Any], given: set[str], vpp: int
) -> None:
    """Two layers each, if the model, its layers or the ranks are typed."""
    options = {"model": "gpt", "schedule": None, "layers": None} | filled
    assert module._stages_per_rank(config_of(layers_per_virtual_stage=2), options, given) == vpp
    assert module._stages_per_rank(config_of(), options, given) == 3
    with refused(
        r"^run\.sh: num_layers_per_virtual_pipeline_stage 5 does not divide 32 layers on pp 4: give --vpp$"
    ):
        module._stages_per_rank(config_of(layers_per_virtual_stage=5), options | {"layers": 32, "pp": 4, "account_for_loss_in_pipeline_split": None, "account_for_embedding_in_pipeline_split": None}, {"pp"})  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "vpp", "takes"),
    [
        ("zb-h1", 2, "1"), ("zbv", 1, "2"), ("interleaved-1f1b", 1, "2 or more"), ("hanayo", 1, "2 or more"), ("1f1b", 1, None),
        ("interleaved-1f1b", 7, None), ("auto", 5, None),
    ],
)  # fmt: skip
def test_a_typed_schedule_must_take_the_stages_per_rank_of_the_file(
    schedule: str, vpp: int, takes: str | None
) -> None:
    options = {"vpp": vpp, "pp": 4, "schedule": schedule}
    if takes is None:
        assert module._stages_per_rank(config_of(), options, {"schedule"}) == vpp
    else:
        with refused(rf"^run\.sh has vpp {vpp}, and {schedule} takes {takes}: give --vpp$"):
            module._stages_per_rank(config_of(), options, {"schedule"})
    assert module._stages_per_rank(config_of(), options, set()) == vpp, "of the file itself"
    assert module._stages_per_rank(config_of(), options | {"pp": 1}, {"schedule"}) == vpp


def test_options_of_jobs_need_a_model() -> None:
    with refused(
        r"^--gpus is for a --model on a --cluster: got --gpus 8 without --model; give --model too, a name of "
    ):
        require_no_job({"gpus": 8, "tp": 2})
    require_no_job({"tp": 2, "gpus": None, "set": {"A": "1"}})


OPTIONS: dict[str, Any] = dict.fromkeys(option_types(PlanOptions))


def test_a_file_without_a_model_needs_one_and_a_job_needs_no_file() -> None:
    config = RunConfig("megatron", "ds.json", {}, None, "ds.json has no model")
    with refused(r"^ds\.json has no model: give --model$"):
        with_run_config(OPTIONS | {"run_config": config})
    with refused(r"^give --model to it$"):
        with_run_config(OPTIONS | {"run_config": RunConfig("megatron", "ds.json", {}, None, "give --model to it")})
    with refused(r"^the job says everything itself: leave out run_config, or give it to ppsim\.job$"):
        with_run_config(OPTIONS | {"run_config": config, "job": "a job"})


def test_a_search_leaves_open_what_it_tries_and_keeps_the_rest_of_a_file() -> None:
    options = {"tp": 2, "pp": 4, "vpp": 2, "group_size": 4, "micro_batch": 8}
    config = RunConfig("megatron", "run.sh", options, None, "none")
    filled = with_run_config(
        OPTIONS | {"run_config": config, "model": "gpt2", "micro_batch": 3}, tried=("tp", "vpp")
    )
    assert [filled[name] for name in ("tp", "pp", "vpp", "group_size", "micro_batch")] == [None, 4, None, 4, 3]
    assert (filled["run_config"], filled["recipe"], filled["set"]) == (config, None, None)
    alone = with_run_config(OPTIONS | {"run_config": config, "model": "gpt2", "pp": 1})
    assert [alone[name] for name in ("tp", "pp", "vpp", "group_size")] == [2, 1, None, None]


def test_without_a_file_only_a_model_gets_the_defaults_of_a_stack() -> None:
    assert with_run_config(OPTIONS | {"pp": 2}) == {**OPTIONS, "pp": 2}
    job = OPTIONS | {"model": "gpt2", "pp": 2, "stack": "deepspeed-2021"}
    filled = with_run_config(job)
    assert (filled["stack"], filled["run_config"], filled["zero"]) == ("deepspeed-2021", None, 1)
    assert "zero" in filled["set_by_stack"]
    assert "pp" not in filled["set_by_stack"]
    typed = with_run_config(job | {"zero": 0})
    assert (typed["zero"], "zero" in typed["set_by_stack"]) == (0, False)
