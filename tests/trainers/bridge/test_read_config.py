"""Files of Megatron-Bridge and NeMo: references, models that are no decoders, and changes of a recipe."""

from pathlib import Path

import pytest

import ppsim
from ppsim.errors import ConfigError


def test_references_without_effect_do_not_stop_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "exp_manager:\n  checkpoint_callback_params:\n    model_parallel_size: ${multiply:${model.num_layers}, 2}\n    tp_size: 8\n"
        "model:\n  num_layers: 4\n  hidden_size: 64\n  num_attention_heads: 4\n  encoder_seq_length: 128\n"
        "  micro_batch_size: 8\n  cpu_offloading: false\n  cpu_offloading_num_layers: ${sum:${.num_layers},-1}\n"
    )
    config = ppsim.read_run_config(path)
    assert (config.options["micro_batch"], config.options["seq_len"]) == (8, 128)


def test_functions_of_nemos_launcher_are_computed(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        "model:\n  num_layers: ${sum:${.pipeline_model_parallel_size},2}\n  hidden_size: 64\n  num_attention_heads: 4\n"
        "  ffn_hidden_size: ${multiply:3, ${.hidden_size}}\n  pipeline_model_parallel_size: 2\n"
        "  micro_batch_size: ${divide_ceil:7, 2}\n  global_batch_size: ${divide_floor:${multiply:5, 10}, 3}\n"
    )
    config = ppsim.read_run_config(path)
    assert config.model is not None
    assert [layer.ffn.size for layer in config.model.layers] == [192] * 4
    assert (config.options["micro_batch"], config.options["global_batch"]) == (4, 16)


@pytest.mark.parametrize(
    ("lines", "rows"),
    [("  override_vocab_size: 152064\n", 152064), ("  tokenizer:\n    type: GPT2BPETokenizer\n", 50257)],
)
def test_nemo_gives_the_vocabulary_or_its_tokenizer(tmp_path: Path, lines: str, rows: int) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("model:\n  num_layers: 4\n  hidden_size: 64\n  num_attention_heads: 4\n" + lines)
    model = ppsim.read_run_config(path).model
    assert model is not None
    assert model.vocab_size == rows


@pytest.mark.parametrize("name", ["megatron_bert", "megatron_t5", "megatron_griffin", "megatron_gpt_hyena"])
def test_other_models_of_nemo_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"name: {name}\nmodel:\n  num_layers: 4\n  hidden_size: 64\n  num_attention_heads: 4\n")
    with pytest.raises(ConfigError, match=f"a model {name} is not known, only decoders as GPT"):
        ppsim.read_run_config(path)


def test_a_change_of_a_recipe_leaves_parallel_sizes_to_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "override.yaml"
    path.write_text("model:\n  seq_length: 128\n  tensor_model_parallel_size: 2\ntrain:\n  global_batch_size: 8\n")
    with pytest.raises(
        ConfigError, match=r"the recipe or the checkpoint decides pipeline_model_parallel_size: give --pp"
    ):
        ppsim.project(run_config=path, model="llama3-8b", gpus=8)
    assert ppsim.project(run_config=path, model="llama3-8b", gpus=8, pp=2).plan.pp == 2
