"""Options of files on weights in 8 and 4 bits, and on torch's FSDP2."""

from pathlib import Path
from typing import Any

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.trainers.read_config import read_run_config
from ppsim.trainers.stacks import stack_of

ENDS = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
WORDS = ("fp8_param_gather", "weight_cache", "zero", "fully_shard", *ENDS)
FSDP = "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params"


def read(tmp_path: Path, flags: str) -> dict[str, Any]:
    path = tmp_path / "train.sh"
    path.write_text(f"pretrain_gpt.py --num-layers 2 --bf16 {flags}")
    config = read_run_config(path)
    assert not config.ignored
    return {name: config.options[name] for name in WORDS if config.options.get(name)}


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("--fp8-format hybrid", {}),
        ("--fp8-format hybrid --fp8-param-gather", {"fp8_param_gather": True}),
        ("--fp4-format e2m1 --fp4-param-gather", {"fp8_param_gather": True}),
        ("--fp8-format hybrid --fp4-param-gather", {}),
        ("--fp8-param-gather", {}),
        ("--fp8-format hybrid --disable-parameter-transpose-cache", {"weight_cache": "none"}),
        (f"--fp8-format hybrid {FSDP}", {"zero": 3, "weight_cache": "all"}),
        (f"--fp8-format hybrid {FSDP} --fp8-param-gather", {"zero": 3, "fp8_param_gather": True}),
        ("--fp8-format hybrid --first-last-layers-bf16", {ENDS[0]: 1, ENDS[1]: 1}),
        ("--fp8-format hybrid --first-last-layers-bf16 --num-layers-at-start-in-bf16 0", {ENDS[1]: 1}),
        ("--fp8-format hybrid --num-layers-at-end-in-bf16 4", {}),
        ("--first-last-layers-bf16", {}),
        ("--fp8-format hybrid --use-torch-fsdp2 --fp8-param-gather", {"zero": 3, "fully_shard": True}),
    ],
)
def test_a_script_says_whether_weights_have_8_or_4_bits(tmp_path: Path, flags: str, found: dict[str, Any]) -> None:
    assert read(tmp_path, flags) == found


@pytest.mark.parametrize("name", ["fp8_param_gather", "fp8_param", "fp8_params"])
def test_bridge_and_nemo_have_names_of_their_own(tmp_path: Path, name: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"model:\n  num_layers: 2\nmixed_precision:\n  bf16: true\n  fp8: hybrid\n  {name}: true\n")
    assert read_run_config(path).options["fp8_param_gather"] is True


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ("", True),
        ("  bias_activation_fusion: false\n", None),
        ("  bias_activation_fusion: false\n  use_te_activation_func: true\n", True),
    ],
)
def test_only_a_fused_activation_saves_its_input_in_8_bits(
    tmp_path: Path, settings: str, found: bool | None
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(f"model:\n  num_layers: 2\n  activation_func_fp8_input_store: true\n{settings}")
    assert read_run_config(path).options.get("activation_func_fp8_input_store") is found


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ("--optimizer muon", {}),
        ("--optimizer dist_muon", {"zero": 1, "layer_wise": True}),
        ("--optimizer muon --use-distributed-optimizer", {"zero": 1, "layer_wise": True}),
        (
            "--optimizer muon --use-distributed-optimizer --no-use-layer-wise-param-layout",
            {"zero": 1, "layer_wise": True, "use_layer_wise_param_layout": False},
        ),
        ("--optimizer muon --no-use-layer-wise-param-layout", {}),
        ("--use-distributed-optimizer", {"zero": 1}),
    ],
)
def test_muon_with_a_distributed_optimizer_is_layer_wise(tmp_path: Path, flags: str, found: dict[str, Any]) -> None:
    """Megatron-LM, arguments.py at d98e8a64: `validate_args`."""
    path = tmp_path / "train.sh"
    path.write_text(f"pretrain_gpt.py --num-layers 2 --bf16 {flags}")
    config, words = read_run_config(path), ("zero", "layer_wise", "use_layer_wise_param_layout")
    assert not config.ignored
    given = {name: config.options.get(name) for name in words}
    assert given == dict.fromkeys(words) | {"zero": 0} | found


def test_an_activation_without_a_gate_cannot_save_its_input_in_8_bits() -> None:
    with pytest.raises(ConfigError, match="is for gated activations \\(SwiGLU\\): gpt2 has none"):
        ppsim.job(model="gpt2", gpus=8, activation_func_fp8_input_store=True)


def test_primary_weights_may_have_one_copy(tmp_path: Path) -> None:
    flags = "--fp8-format hybrid --fp8-param-gather --no-fp8-weight-transpose-cache"
    assert read(tmp_path, flags) == {"fp8_param_gather": True, "weight_cache": "rowwise"}


@pytest.mark.parametrize(("given", "found"), [("", False), ("enable_fsdp_float8_all_gather = true", True)])
def test_torchtitan_gathers_8_bits_if_its_file_says_so(tmp_path: Path, given: str, found: bool) -> None:
    path = tmp_path / "train.toml"
    path.write_text(
        f'[model]\nname = "llama3"\nflavor = "8B"\nconverters = ["float8"]\n[quantize.linear.float8]\n{given}\n'
        "[parallelism]\n[training]\nlocal_batch_size = 1\n"
    )
    assert read_run_config(path).options["fp8_param_gather"] is found


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("float8", True), ("mxfp8", True), ("nvfp4", True), ("float8-block", None), ("bfloat16", None)],
)
def test_megatron_bridge_has_primary_weights_in_8_and_4_bits_except_with_none(dtype: str, expected: object) -> None:
    def options(name: str, *, has_experts: bool) -> Any:
        return stack_of(name, {"dtype": dtype}, device="NVIDIA GB200", has_experts=has_experts).options

    for has_experts in (False, True):
        found = options("megatron-bridge", has_experts=has_experts)
        assert (found.get("fp8_param_gather"), found["grad_reduce_in_bf16"]) == (expected, True)
        bare = options("megatron-bridge@none", has_experts=has_experts)
        assert not bare.keys() & {"fp8_param_gather", "grad_reduce_in_bf16"}
