"""LoRA sections of Megatron-Bridge and Primus are read as `--lora`."""

from pathlib import Path

import pytest

from ppsim.errors import ConfigError
from ppsim.trainers import lora_config as lora_module
from ppsim.trainers.read_config import read_run_config
from tests.trainers.test_read_config import EXPERIMENT, primus

BRIDGE = (
    "model:\n  num_layers: 4\n  hidden_size: 64\n  num_attention_heads: 4\n  vocab_size: 128\n  seq_length: 64\n"
)
PEFT = """peft:
  _target_: megatron.bridge.peft.lora.LoRA
  dim: 16
  alpha: 32
  dropout: 0.1
  target_modules: [linear_qkv, linear_fc2]
  share_expert_adapters: true
"""


def test_the_section_of_megatron_bridge_is_a_rank_and_modules(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(BRIDGE + PEFT)
    found = read_run_config(tmp_path / "run.yaml")
    assert found.options["lora"] == "16:linear_qkv+linear_fc2"
    assert ("peft.dim", "lora") in found.read_options
    assert [one.name for one in found.ignored if one.name.startswith("peft")] == ["peft.dropout"]


def test_modules_that_are_not_named_are_the_default_of_the_trainer(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(BRIDGE + "peft:\n  dim: 8\n  alpha: 16\n")
    assert read_run_config(tmp_path / "run.yaml").options["lora"] == "8"


def test_the_section_of_primus_is_read(tmp_path: Path) -> None:
    lora = "lora: {enabled: true, dim: 16, alpha: 32, target_modules: [linear_qkv]}"
    path = primus(tmp_path, EXPERIMENT)
    text = path.read_text()
    at = text.index("overrides:") + len("overrides:\n")
    indent = len(text[at:]) - len(text[at:].lstrip(" "))
    path.write_text(text[:at] + " " * indent + lora + "\n" + text[at:])
    assert read_run_config(path).options["lora"] == "16:linear_qkv"


def test_patterns_of_modules_are_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(BRIDGE + 'peft:\n  dim: 8\n  target_modules: ["*.layers.0.*.linear_qkv"]\n')
    with pytest.raises(ConfigError, match=r"run.yaml: peft.target_modules: modules of --lora must be"):
        read_run_config(tmp_path / "run.yaml")


def test_settings_of_adapters_that_change_nothing() -> None:
    usual = {
        "a2a_experimental": False, "normalize_moe_lora": False, "share_expert_adapters": True,
        "experts_shared_outer_loras": False, "sequence_parallel_input_regather": False, "dropout": 0.0,
    }  # fmt: skip
    assert usual | {"exclude_modules": None} == lora_module._DEFAULTS
    assert lora_module._USUAL_RANK == {"peftconfig": 8}
