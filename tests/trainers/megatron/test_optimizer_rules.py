"""Rules of Megatron-LM, Megatron-Bridge and DeepSpeed for gradients and the optimizer."""

import json
from pathlib import Path
from typing import Any

import pytest

from ppsim.trainers.read_config import read_run_config

AWARE = "--use-precision-aware-optimizer"
WORDS = ("grad_reduce_in_bf16", "use_precision_aware_optimizer", "exp_avg_dtype")


def options_of(path: Path) -> dict[str, Any]:
    config = read_run_config(path)
    assert not [one.name for one in config.ignored if "dtype" in one.name or "bf16" in one.name]
    return {name: config.options[name] for name in WORDS if name in config.options}


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("", {}),
        ("--grad-reduce-in-bf16", {"grad_reduce_in_bf16": True}),
        (AWARE, {"use_precision_aware_optimizer": True}),
        (f"{AWARE} --main-grads-dtype bf16", {"use_precision_aware_optimizer": True, "grad_reduce_in_bf16": True}),
        ("--main-grads-dtype bf16", {}),
        (f"{AWARE} --fp8-format hybrid", {"use_precision_aware_optimizer": True}),
        (f"{AWARE} --fp8-format hybrid --fp8-recipe tensorwise", {}),
        (
            f"{AWARE} --fp8-format e4m3 --fp8-recipe mxfp8 --main-params-dtype fp16",
            {"use_precision_aware_optimizer": True},
        ),
        (
            f"{AWARE} --fp8-recipe blockwise --fp8-format e4m3 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            {"exp_avg_dtype": "bfloat16"},
        ),
        ("--use-megatron-fsdp", {"grad_reduce_in_bf16": True}),
        ("--use-megatron-fsdp --megatron-fsdp-main-grads-dtype fp32", {"grad_reduce_in_bf16": False}),
    ],
)
def test_a_script_says_how_gradients_and_main_weights_are_held(
    tmp_path: Path, flags: str, found: dict[str, Any]
) -> None:
    path = tmp_path / "train.sh"
    path.write_text(f"pretrain_gpt.py --num-layers 2 --bf16 --use-distributed-optimizer {flags}")
    assert options_of(path) == found


@pytest.mark.parametrize(("recipe", "is_on"), [("", False), ("  fp8_recipe: delayed", True)])
def test_the_precision_aware_optimizer_of_bridge_is_off_unless_a_recipe_is_given(
    tmp_path: Path, recipe: str, is_on: bool
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        f"model:\n  num_layers: 2\noptimizer:\n  use_precision_aware_optimizer: true\n{recipe}\n"
        "mixed_precision:\n  bf16: true\n  grad_reduce_in_fp32: true\n"
    )
    found = {"grad_reduce_in_bf16": False} | ({"use_precision_aware_optimizer": True} if is_on else {})
    assert options_of(path) == found


def test_deepspeed_may_have_main_weights_gradients_and_moments_in_bf16(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    switches = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    path.write_text(
        json.dumps({"train_micro_batch_size_per_gpu": 1, "bf16": switches, "zero_optimization": {"stage": 1}})
    )
    config = read_run_config(path)
    assert config.options["bf16_master_weights_and_grads"] is True
    assert config.options["exp_avg_dtype"] == "bfloat16"
    assert not config.ignored
