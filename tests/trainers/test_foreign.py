"""No reader takes the file of a program that ppsim does not read."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import ppsim
from ppsim.base.errors import ConfigError

FILES: dict[str, dict[str, Any]] = {
    "nanotron": {"parallelism": {"dp": 2, "pp": 4, "tp": 2, "pp_engine": "1f1b"}, "model": {"model_config": {"hidden_size": 64}},
                 "tokens": {"micro_batch_size": 2, "sequence_length": 512}},
    "llm-foundry": {"max_seq_len": 2048, "model": {"name": "mpt_causal_lm", "d_model": 64, "n_layers": 2},
                    "global_train_batch_size": 64, "device_train_microbatch_size": 4},
    "GPT-NeoX": {"pipe-parallel-size": 4, "model-parallel-size": 2, "num-layers": 44, "train_micro_batch_size_per_gpu": 4,
                 "zero_optimization": {"stage": 1}},
    "verl": {"actor_rollout_ref": {"model": {"path": "x"}}, "trainer": {"nnodes": 1}, "data": {}},
    "NeMo-RL": {"policy": {"model_name": "x", "train_global_batch_size": 512, "megatron_cfg": {"tensor_model_parallel_size": 4}}},
    "LLaMA-Factory": {"model_name_or_path": "x", "finetuning_type": "full", "stage": "sft"},
    "axolotl": {"base_model": "x", "datasets": [], "micro_batch_size": 2},
    "MaxText": {"model_name": "llama3-8b", "per_device_batch_size": 4, "ici_fsdp_parallelism": 8},
    "torchtune": {"model": {"_component_": "torchtune.models.llama3.llama3_8b"}, "batch_size": 2},
    "Hugging Face accelerate": {"distributed_type": "FSDP", "num_processes": 8},
}  # fmt: skip


@pytest.mark.parametrize("program", FILES)
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_file_of_another_program_is_refused_by_its_name(tmp_path: Path, program: str, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_text(yaml.safe_dump(FILES[program]) if suffix == "yaml" else json.dumps(FILES[program]))
    with pytest.raises(
        ConfigError, match=f"is a configuration of {program}, which ppsim does not read: give --model"
    ):
        ppsim.read_run_config(path)


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python3 -m verl.trainer.main_ppo data.train_batch_size=1024", "verl"),
        ("megatron sft --load x --tensor_model_parallel_size 2", "ms-swift"),
        ("llamafactory-cli train x.yaml", "LLaMA-Factory"),
        ("python -m MaxText.train configs/base.yml", "MaxText"),
        ("torchrun --nproc_per_node=8 run_train.py --config-file x.yaml", "nanotron"),
    ],
)
def test_a_script_that_starts_another_program_is_refused_by_its_name(
    tmp_path: Path, command: str, program: str
) -> None:
    path = tmp_path / "x.sh"
    path.write_text(command)
    with pytest.raises(ConfigError, match=f"is a configuration of {program}, which ppsim does not read"):
        ppsim.read_run_config(path)


def test_a_parallel_size_that_is_not_read_stops_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "bridge.yaml"
    path.write_text("model:\n  num_layers: 2\n  hidden_size: 64\nlayout:\n  tensor_model_parallel_size: 4\n")
    with pytest.raises(
        ConfigError, match=r"layout.tensor_model_parallel_size 4 is a parallel size that is not read"
    ):
        ppsim.read_run_config(path)


def test_a_model_alone_is_no_training_configuration(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("model:\n  name: x\n  width: 64\n")
    with pytest.raises(ConfigError, match="is not a training configuration"):
        ppsim.read_run_config(path)
