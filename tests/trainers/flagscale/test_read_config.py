"""FlagScale's sections are Megatron-LM's arguments."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import ppsim
from ppsim.base.errors import ConfigError

TRAINING: dict[str, Any] = {
    "system": {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1, "disable_bias_linear": True,
               "use_distributed_optimizer": True, "precision": {"bf16": True}, "logging": {"log_interval": 1}},
    "model": {"num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 2048, "swiglu": True,
              "max_position_embeddings": 2048, "multiple_of": 256, "micro_batch_size": 2, "global_batch_size": 64,
              "normalization": "RMSNorm", "untie_embeddings_and_output_weights": True,
              "use_rotary_position_embeddings": True, "optimizer": {"lr_scheduler": {"lr": 1e-5}}},
    "data": {"tokenizer": {"vocab_size": 100008}},
}  # fmt: skip
EXPERIMENT: dict[str, Any] = {
    "defaults": [{"train": "7b"}, "_self_"],
    "experiment": {"task": {"type": "train", "backend": "megatron"}, "runner": {"nnodes": 2, "nproc_per_node": 8}},
}


def written(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(content))
    return path


def test_sections_are_read_as_arguments(tmp_path: Path) -> None:
    config = ppsim.read_run_config(written(tmp_path / "7b.yaml", TRAINING))
    assert config.trainer == "FlagScale"
    picked = {name: config.options[name] for name in ("tp", "pp", "micro_batch", "global_batch", "dtype", "zero")}
    assert picked == {"tp": 2, "pp": 1, "micro_batch": 2, "global_batch": 64, "dtype": "bfloat16", "zero": 1}
    assert config.model is not None
    assert config.model.layers[0].ffn.size == 11008  # multiple_of 256 of 8/3 hidden


def test_an_experiment_names_its_training_file_and_its_gpus(tmp_path: Path) -> None:
    written(tmp_path / "train" / "7b.yaml", TRAINING)
    assert ppsim.read_run_config(written(tmp_path / "train.yaml", EXPERIMENT)).options["gpus"] == 16


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"experiment": {"task": {"type": "serve", "backend": "vllm"}}}, "task serve by vllm is not known"),
        ({"defaults": ["_self_"]}, "name no training file"),
    ],
)
def test_other_experiments_are_refused(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ppsim.read_run_config(written(tmp_path / "x.yaml", EXPERIMENT | change))


def test_heterogeneous_training_is_refused(tmp_path: Path) -> None:
    content = TRAINING | {"system": {**TRAINING["system"], "hetero": {"enable_hetero": True}}}
    with pytest.raises(ConfigError, match="heterogeneous training"):
        ppsim.read_run_config(written(tmp_path / "h.yaml", content))
