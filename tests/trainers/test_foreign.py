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
    "OLMo": {"model": {"d_model": 64, "mlp_ratio": 8}, "global_train_batch_size": 64, "device_train_microbatch_size": 4},
    "MaxText's model": {"base_emb_dim": 64, "base_num_decoder_layers": 2, "decoder_block": "llama2"},
    "verl's data": {"train_files": "x", "train_batch_size": 1024, "max_prompt_length": 512},
    "verl's critic": {"_target_": "verl.workers.config.CriticConfig", "model": {"path": "x"}, "trainer": {"nnodes": 1}},
    "NeMo-RL's recipe": {"defaults": "../sft.yaml", "cluster": {"gpus_per_node": 8, "num_nodes": 2}},
    "GPT-NeoX's second file": {"data_impl": "mmap", "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1}},
    "ms-swift": {"rlhf_type": "gkd", "model": "x", "micro_batch_size": 1, "train": {"lora_rank": 8}},
    "LLaMA-Factory's version 1": {"model": "x", "model_class": "llm", "dist_config": {"name": "fsdp2"}},
    "Megatron-Bridge's model cards": {"title": "x", "verification_index": {}, "model": {"hf_id": "x"}, "items": {}},
    "ROLL": {"pretrain": "x", "rollout_batch_size": 64, "actor_train": {"model_args": {"dtype": "bf16"}}},
    "torchtune's PPO": {"policy_model": {"_component_": "torchtune.models.mistral.mistral_7b"}, "ppo_epochs": 2},
    "Hugging Face accelerate": {"distributed_type": "FSDP", "num_processes": 8},
}  # fmt: skip


@pytest.mark.parametrize("program", FILES)
@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_file_of_another_program_is_refused_by_its_name(tmp_path: Path, program: str, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_text(yaml.safe_dump(FILES[program]) if suffix == "yaml" else json.dumps(FILES[program]))
    name = program.partition("'s ")[0]
    with pytest.raises(ConfigError, match=f"is a configuration of {name}.*, which ppsim does not read: give --mod"):
        ppsim.read_run_config(path)


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python3 -m verl.trainer.main_ppo data.train_batch_size=1024", "verl"),
        ("megatron sft --load x --tensor_model_parallel_size 2", "ms-swift"),
        ("pip install x && megatron sft --model x --project pretrain_gpt", "ms-swift"),
        ("python ./deepy.py train.py -d configs 125M.yml", "GPT-NeoX"),
        ("composer train/train.py train/yamls/pretrain/mpt-1b.yaml", "llm-foundry"),
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


def test_a_value_that_is_called_as_a_program_names_none(tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_text("python evaluate.py --framework megatron")
    with pytest.raises(ConfigError, match=r"starts evaluate\.py, which does not train"):
        ppsim.read_run_config(path)


def test_yaml_in_braces_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "6B.yml"
    path.write_text('{\n  # parallelism\n  "pipe-parallel-size": 1,\n}\n')
    with pytest.raises(ConfigError, match="is a configuration of GPT-NeoX"):
        ppsim.read_run_config(path)


def test_dots_in_a_comment_of_yaml_are_no_log(tmp_path: Path) -> None:
    path = tmp_path / "tuning.yaml"
    path.write_text(
        "model:\n  num_layers: 2\n  tensor_model_parallel_size: 4  # resumes from step ... of another run\n"
    )
    assert ppsim.read_run_config(path).options["tp"] == 4


def test_dots_in_a_comment_of_a_script_are_no_log(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text("# resumes from step ... of another run\npretrain_gpt.py --tensor-model-parallel-size 4\n")
    assert ppsim.read_run_config(path).options["tp"] == 4


def test_a_base_model_alone_is_not_of_axolotl(tmp_path: Path) -> None:
    path = tmp_path / "nemo.yaml"
    path.write_text("base_model: x\nmodel:\n  num_layers: 2\n  tensor_model_parallel_size: 4\n")
    assert ppsim.read_run_config(path).options["tp"] == 4


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
