"""What is written as a trainer's options is read back as the same words."""

from pathlib import Path
from typing import Any

import pytest

from ppsim.configs.read import read_run_config
from ppsim.configs.written import written
from ppsim.errors import ConfigError

WORDS: dict[str, Any] = {
    "tp": 4, "pp": 8, "vpp": 2, "cp": 2, "micro_batch": 2, "global_batch": 256, "seq_len": 8192,
    "recompute": "core_attn+layernorm", "zero": 3, "dtype": "float8", "sequence_parallel": True, "overlap_dp": True,
    "account_for_loss_in_pipeline_split": True, "overlap_tp": "0.5", "overlap_ep": 0.9, "dropout": False,
    "fused_cross_entropy": True, "attention": "unfused", "context": "all-to-all", "cuda_graphs": "attn+mlp",
}  # fmt: skip


def test_megatrons_arguments_are_read_back(tmp_path: Path) -> None:
    text = written(WORDS | {"group_size": 8}, "megatron")
    (tmp_path / "train.sh").write_text("torchrun pretrain_gpt.py " + " \\\n  ".join(text.splitlines()))
    words = read_run_config(tmp_path / "train.sh").words
    assert {word: words[word] for word in WORDS} == WORDS
    assert words["group_size"] == 8


def test_primus_overrides_have_the_same_names_and_its_own_schedules() -> None:
    text = written({"pp": 4, "schedule": "v-half", "split": "Et*3|t*4|t*4|t*3L", "zero": 1}, "primus")
    assert text.splitlines() == [
        "pipeline_model_parallel_size: 4",
        'pipeline_model_parallel_layout: "Et*3|t*4|t*4|t*3L"',
        "use_distributed_optimizer: true",
        "patch_primus_pipeline: true",
        "pp_algorithm: v-half",
    ]


@pytest.mark.parametrize("recompute", ["full", "selective-op"])
def test_torchtitans_options_are_read_back(tmp_path: Path, recompute: str) -> None:
    words = {"pp": 4, "schedule": "zbv-fixed", "micro_batch": 2, "global_batch": 64, "seq_len": 4096, "tp": 2,
             "recompute": recompute, "dp": 4, "zero": 1}  # fmt: skip
    (tmp_path / "run.sh").write_text(
        "torchrun -m torchtitan.train " + written(words, "torchtitan").replace("\n", " ")
    )
    read = read_run_config(tmp_path / "run.sh").words
    assert {word: read[word] for word in words} == words


def test_what_a_trainer_cannot_do_is_said() -> None:
    assert "# Megatron-LM has no schedule zbv of its own" in written({"pp": 4, "schedule": "zbv"}, "megatron")
    assert "# TorchTitan has no schedule v-min" in written({"pp": 4, "schedule": "v-min"}, "torchtitan")
    assert "# Megatron-LM recomputes modules, not by operators" in written(
        {"recompute": "selective-op"}, "megatron"
    )
    assert "# TorchTitan recomputes by operators, not mlp" in written({"recompute": "mlp"}, "torchtitan")
    with pytest.raises(ConfigError, match="unknown trainer 'nemo': there are megatron, primus, torchtitan"):
        written({}, "nemo")  # type: ignore[arg-type]


def test_what_is_off_by_default_is_read_back_where_it_is_on(tmp_path: Path) -> None:
    words = {"pp": 4, "grad_reduce_in_bf16": True, "deterministic_mode": True, "fused_cross_entropy": False}
    (tmp_path / "train.sh").write_text("torchrun pretrain_gpt.py " + written(words, "megatron").replace("\n", " "))
    read = read_run_config(tmp_path / "train.sh").words
    assert {word: read[word] for word in words} == words
    (tmp_path / "train.sh").write_text("torchrun pretrain_gpt.py --pipeline-model-parallel-size 4")
    read = read_run_config(tmp_path / "train.sh").words
    assert (read.get("grad_reduce_in_bf16"), read.get("deterministic_mode")) == (None, None)
