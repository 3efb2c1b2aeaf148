"""Primus' configurations: files that extend others."""

from pathlib import Path
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.trainers.primus import read_config as primus_module
from ppsim.trainers.primus.read_config import from_arguments, from_primus
from ppsim.trainers.read_config import read_run_config
from tests.defaults import parameter_defaults

RUN = """
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: model.yaml
    overrides: {tensor_model_parallel_size: 2}
"""
MODEL = {"num_layers": 4, "hidden_size": 256, "ffn_hidden_size": 512, "num_attention_heads": 4, "vocab_size": 1000}


def write(path: Path, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}: {value}\n" for name, value in options.items()))


def test_a_later_base_file_overrides_an_earlier_one_and_the_file_itself_both(tmp_path: Path) -> None:
    configs = tmp_path / "primus" / "configs"
    modules = configs / "modules" / "megatron"
    write(configs / "models" / "megatron" / "model.yaml", **MODEL)
    write(modules / "a.yaml", seq_length=512, micro_batch_size=1, global_batch_size=8)
    write(modules / "b.yaml", seq_length=1024, micro_batch_size=2)
    write(modules / "pre_trainer.yaml", extends="[a.yaml, b.yaml]", seq_length=2048)
    (tmp_path / "run.yaml").write_text(RUN)
    read = read_run_config(tmp_path / "run.yaml")
    assert [read.options[name] for name in ("global_batch", "micro_batch", "seq_len", "tp")] == [8, 2, 2048, 2]
    assert (len(read.model.layers), read.model.hidden_size) == (4, 256)


def experiment(framework: str = "megatron", **module: object) -> dict[str, Any]:
    """An experiment of the one trainer that is known outside a checkout of Primus."""
    files = {"config": "pre_trainer.yaml", "model": "language_model.yaml"}
    return {"modules": {"pre_trainer": {"framework": framework, **files, "overrides": SIZES, **module}}}


SIZES = MODEL | {"seq_length": 512, "micro_batch_size": 3, "global_batch_size": 96}


def test_an_experiment_outside_a_checkout_has_the_defaults_of_primus(tmp_path: Path) -> None:
    """Options beside its modules are its trainer's, but not names of the experiment."""
    beside = {"tensor_model_parallel_size": 2, "exp_name": "e", "user_name": "u", "platform": {"x": 1}}
    read = from_primus(experiment() | beside, tmp_path / "run.yaml")
    assert (read.options["stack"], read.options["tp"], read.options["micro_batch"]) == ("primus", 2, 3)
    assert (read.launcher_gpus, len(read.model.layers)) == (8, 4)
    assert read.notes[0] == "overrides without modules, taken for its trainer: tensor_model_parallel_size"
    plain = from_primus(experiment(), tmp_path / "run.yaml")
    assert plain.notes == read.notes[1:]
    arguments = from_arguments(SIZES, "here")
    assert arguments.options == plain.options
    assert arguments.launcher_gpus == 8


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({}, "modules must name a trainer"),
        ({"modules": {}}, "modules must name a trainer"),
        ({"modules": {"a": 3}}, "modules must name a trainer"),
        ({"modules": {"a": {"config": "b"}}}, "modules must name a trainer"),
        (experiment(overrides=[3]), r"overrides must be a table of options: got \[3\]"),
        (experiment(config="other.yaml"), "names files of Primus: no folder above it"),
        (experiment(model="other.yaml"), "names files of Primus: no folder above it"),
        (experiment("torchtitan"), "names files of Primus: no folder above it"),
        ({"extends": 3}, "extends must be a list of files: got 3"),
        ({"bases": ["none.yaml"]}, "names none.yaml, which is not in"),
        ({"includes": "list.yaml"}, "list.yaml must be a table of options"),
        ({"extends": "loop.yaml"}, "loop.yaml extends itself"),
    ],
)
def test_an_experiment_that_cannot_be_read_is_refused(content: dict, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("[1, 2]")
    (tmp_path / "loop.yaml").write_text("extends: loop.yaml")
    with pytest.raises(ConfigError, match=sentence):
        from_primus(content, tmp_path / "run.yaml")


def test_files_extend_others_up_to_a_depth_and_read_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPSIM_TP", "4")
    texts = ["${PPSIM_TP:2}", "${PPSIM_PP:3}", "${PPSIM_EP:}", "${PPSIM_CP}", "a${PPSIM_TP}b${PPSIM_PP:5}", 7]
    resolved = primus_module._resolved({"a": texts, "b": {"c": "${PPSIM_TP}"}})
    assert resolved == {"a": ["4", "3", "", "${PPSIM_CP}", "a4b5", 7], "b": {"c": "4"}}
    below, above = (
        {"a": {"x": 1, "y": {"z": 2}}, "b": 3, "c": {"d": 4}},
        {"a": {"y": {"w": 5}}, "b": {"e": 6}, "c": 7},
    )
    assert primus_module._merged(below, above) == {"a": {"x": 1, "y": {"z": 2, "w": 5}}, "b": {"e": 6}, "c": 7}
    for number in range(18):
        (tmp_path / f"{number}.yaml").write_text(f"extends: {number + 1}.yaml\nv{number}: {number}")
    (tmp_path / "18.yaml").write_text("")
    deepest = primus_module._extended({"extends": "2.yaml"}, tmp_path / "x", tmp_path / "x", depth=-1)
    assert deepest == {f"v{number}": number for number in range(2, 18)}
    assert [parameter_defaults(one)["depth"] for one in (primus_module._file, primus_module._extended)] == [0, 0]
    with pytest.raises(ConfigError, match="extends itself"):
        primus_module._extended({"extends": "1.yaml"}, tmp_path / "x", tmp_path / "x", depth=-1)


@pytest.mark.parametrize(
    ("framework", "model", "sentence"),
    [
        ("maxtext", "m.yaml", "framework 'maxtext' is not known, only megatron and torchtitan"),
        ("megatron", "diffusion/m.yaml", "a diffusion model is not known"),
        ("megatron_bridge", "m.yaml", r"recipe of Megatron-Bridge \(llama3\), which is code"),
    ],
)
def test_trainers_and_models_that_are_not_known_are_refused(
    framework: str, model: str, sentence: str, tmp_path: Path
) -> None:
    configs = tmp_path / "primus" / "configs"
    write(configs / "models" / framework / model, recipe="llama3")
    write(configs / "modules" / framework / "pre_trainer.yaml")
    with pytest.raises(ConfigError, match=sentence):
        from_primus(experiment(framework, model=model), tmp_path / "run.yaml")


def test_a_torchtitan_experiment_is_its_module_its_model_and_its_overrides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = tmp_path / "primus" / "configs"
    write(configs / "modules" / "torchtitan" / "pre_trainer.yaml", training="{steps: 3, seq_len: 5}")
    write(configs / "models" / "torchtitan" / "m.yaml", training="{seq_len: 7, batch: 9}")
    read = from_arguments(SIZES, "here")
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(primus_module, "from_torchtitan", lambda *given: calls.append(given) or read)
    content = experiment("torchtitan", model="m.yaml", overrides={"training": {"batch": 11}})
    made = from_primus(content | {"metrics": {"on": True}}, tmp_path / "run.yaml")
    overrides = {"training": {"batch": 11}, "metrics": {"on": True}}
    tree = {"training": {"steps": 3, "seq_len": 7, "batch": 11}, "metrics": {"on": True}}
    assert calls == [(tree, str(tmp_path / "run.yaml"), "Primus, TorchTitan", overrides)]
    assert made.notes == ("overrides without modules, taken for its trainer: metrics", *read.notes)
