"""Valid configurations that were refused: "auto", four bits on AMD, and experiments that extend others."""

import json
from pathlib import Path
from typing import Any

import pytest

import ppsim
from ppsim.errors import ConfigError
from ppsim.trainers.read_config import read_run_config
from tests.trainers.test_read_config import primus

AUTO = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": True}}


def deepspeed(folder: Path, content: dict[str, Any]) -> Path:
    (folder / "ds.json").write_text(json.dumps(content))
    return folder / "ds.json"


def test_auto_of_deepspeed_is_what_the_options_say(tmp_path: Path) -> None:
    words: dict[str, Any] = {"model": "gpt2", "pp": 2, "micro_batch": 1, "global_batch": 8}
    made = ppsim.project(run_config=deepspeed(tmp_path, AUTO), **words)
    written = AUTO | {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1}
    assert (
        made.iteration_time_s
        == ppsim.project(run_config=deepspeed(tmp_path, written), model="gpt2", pp=2).iteration_time_s
    )
    by_number = ppsim.project(
        run_config=deepspeed(tmp_path, AUTO), model="gpt2", pp=2, micro_batch=1, microbatches=8
    )
    assert by_number.iteration_time_s == made.iteration_time_s


@pytest.mark.parametrize(
    ("content", "typed", "asked"),
    [
        (
            AUTO,
            {},
            "train_micro_batch_size_per_gpu is .*: give --micro-batch-size; .*: give --global-batch-size$",
        ),
        (AUTO, {"micro_batch": 1}, 'ds.json: train_batch_size is "auto", .*: give --global-batch-size$'),
        (AUTO, {"global_batch": 8}, "train_micro_batch_size_per_gpu is .*: give --micro-batch-size$"),
        (
            AUTO | {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}},
            {"micro_batch": 1, "global_batch": 8},
            "bf16.enabled is .*: give --dtype$",
        ),
        (
            {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": "auto"},
            {},
            "gradient_accumulation_steps is .*: give --num-microbatches or --global-batch-size$",
        ),
    ],
)
def test_auto_without_the_option_says_which_option_to_give(
    tmp_path: Path, content: dict[str, Any], typed: dict[str, Any], asked: str
) -> None:
    with pytest.raises(ConfigError, match=asked):
        ppsim.project(run_config=deepspeed(tmp_path, content), model="gpt2", pp=2, **typed)


def test_a_variable_in_a_file_is_asked_for(tmp_path: Path) -> None:
    path = deepspeed(tmp_path, {"train_micro_batch_size_per_gpu": "$MBS", "gradient_accumulation_steps": 1})
    with pytest.raises(
        ConfigError, match=r"is \$MBS, which the file does not set: give --set MBS=VALUE or --micro"
    ):
        ppsim.project(run_config=path, model="gpt2", pp=2)


def test_auto_of_other_settings_of_deepspeed_is_its_default(tmp_path: Path) -> None:
    content = AUTO | {"zero_optimization": {"stage": 3, "overlap_comm": "auto", "reduce_bucket_size": "auto"}}
    found = read_run_config(deepspeed(tmp_path, content))
    assert (found.options["zero"], found.options["overlap_grad_reduce"], found.options["dtype"]) == (
        3,
        True,
        "bfloat16",
    )
    assert found.ignored == ()


def test_a_section_of_deepspeed_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r'ds.json: bf16 must be an object, "bf16": \{"enabled": true\}: got True$'
    ):
        read_run_config(deepspeed(tmp_path, AUTO | {"bf16": True}))


SMALL = (
    "pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --vocab-size 1024 "
    "--micro-batch-size 1 --global-batch-size 8 --bf16"
)


@pytest.mark.parametrize(
    ("flags", "dtype", "cluster"),
    [
        ("--fp4-format e2m1", "nvfp4", "dgx-b200"),
        ("--fp4-format e2m1 --fp4-recipe nvfp4", "nvfp4", "dgx-b200"),
        ("--fp4-format e2m1 --fp4-recipe mxfp4", "mxfp4", "mi355x-8"),
        ("--fp4-format mxfp4", "mxfp4", "mi355x-8"),
    ],
)
def test_the_recipe_says_which_four_bits(tmp_path: Path, flags: str, dtype: str, cluster: str) -> None:
    path = tmp_path / "train.sh"
    path.write_text(f"{SMALL} {flags}")
    made = ppsim.project(run_config=path, cluster=cluster)
    assert made.plan.job is not None
    assert made.plan.job.execution.dtype == dtype


def test_an_experiment_extends_another_and_overrides_without_modules(tmp_path: Path) -> None:
    base = primus(tmp_path)
    own = base.parent / "mine.yaml"
    for extends in ("extends: own.yaml", "extends:\n  - own.yaml"):
        own.write_text(f"{extends}\nmicro_batch_size: 4\nglobal_batch_size: 64\nexp_name: mine\n")
        found = read_run_config(own)
        assert (found.options["micro_batch"], found.options["global_batch"]) == (4, 64)
        assert found.options["pp"] == read_run_config(base).options["pp"]
        assert (
            "overrides without modules, taken for its trainer: micro_batch_size, global_batch_size" in found.notes
        )
    own.write_text("extends: own.yaml\nmodules:\n  pre_trainer:\n    overrides:\n      micro_batch_size: 4\n")
    assert read_run_config(own).options["micro_batch"] == 4
    own.write_text("extends: gone.yaml\nmicro_batch_size: 4\n")
    with pytest.raises(ConfigError, match=r"mine.yaml names gone.yaml, which is not in"):
        read_run_config(own)
    own.write_text("extends: mine.yaml\n")
    with pytest.raises(ConfigError, match=r"mine.yaml extends itself"):
        read_run_config(own)
