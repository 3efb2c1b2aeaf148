"""What an option matters for by its name, and configurations that train only some of the weights."""

import json
from pathlib import Path

import pytest

from ppsim.errors import ConfigError
from ppsim.trainers.option_relevance import effect_of, require_full_training
from ppsim.trainers.read_config import read_run_config

CHANGES = (
    "lora", "freeze", "adapter", "vision", "audio", "image", "encoder", "decoder", "distill", "teacher", "sparse",
    "quantization", "prune", "expert", "attention", "window", "recompute", "offload", "checkpoint_activations", "fp8",
    "fsdp", "router", "embedding", "mtp", "fused", "chunk", "head_dim", "hidden_size",
)  # fmt: skip


@pytest.mark.parametrize("word", CHANGES)
@pytest.mark.parametrize(
    "name",
    ["{}", "new_{}", "{}_data", "{}_log", "{}_seed", "adam_{}", "log_{}", "mask_{}", "{}_checkpoint", "save_{}",
     "encoder_{}", "q_{}", "training.{}_dataset", "{}_probs"],
)  # fmt: skip
def test_a_name_that_suggests_another_computation_is_never_unimportant(name: str, word: str) -> None:
    assert effect_of(name.format(word))


@pytest.mark.parametrize(
    "name",
    ["lr", "min_lr", "save_interval", "log_interval", "seed", "tokenizer_model", "adam_beta1", "moe_aux_loss_coeff",
     "wandb_project", "max_position_embeddings", "train_iters", "kv_lora_rank", "train_data_path", "ckpt_format",
     "checkpoint.interval", "metrics.log_freq", "training.steps", "optimizer.lr", "fp16.loss_scale", "split",
     "optimizer.params.freeze_step", "apply_layernorm_1p", "glu_linear_offset", "is_hybrid_model", "kv_channels"],
)  # fmt: skip
def test_what_trains_the_same_step_is_not_listed(name: str) -> None:
    assert effect_of(name) == ""


@pytest.mark.parametrize(
    "name",
    ["optimizer_cpu_offload", "use_torch_fsdp2", "fp8_param_gather",
     "zero_optimization.offload_optimizer.device", "zero_optimization.zero_hpz_partition_size",
     "training.enable_cpu_offload", "quantize.linear.float8.enable_fsdp_float8_all_gather",
     "primus_turbo.use_moe_fp8", "parallelism.fsdp_reshard_after_forward", "checkpoint_activations"],
)  # fmt: skip
def test_offload_sharding_and_eight_bits_matter_for_memory(name: str) -> None:
    assert "memory" in effect_of(name)


PARTIAL = {
    "train.sh": ("pretrain_gpt.py --num-layers 4 --micro-batch-size 1 --freeze-LM", "freeze_LM true"),
    "model_config.yaml": ("MODEL_ARGS:\n  --num-layers: 4\n  --lora-rank: 16\n  --lora-alpha: 32\n", "MODEL_ARGS.lora_rank 16"),
    "bridge.yaml": ("model:\n  num_layers: 4\npeft:\n  _target_: bridge.DoRA\n  dim: 32\n", "peft._target_ bridge.DoRA"),
    "nemo.yaml": ("model:\n  num_layers: 4\n  peft:\n    peft_scheme: lora\n", "model.peft.peft_scheme lora"),
    "frozen.yaml": ("model:\n  num_layers: 4\n  freeze_language_model: true\n", "model.freeze_language_model true"),
    "primus.yaml": ("modules:\n  t:\n    framework: megatron\n    overrides:\n      lora: {enabled: true}\n",
                    "modules.t.overrides.lora.enabled true"),
    "extends.yaml": ("extends:\n  - other.yaml\nlora:\n  enabled: true\n", "lora.enabled true"),
    "titan.toml": ('[model]\nname = "llama3"\nconverters = ["lora"]\n[training]\nseq_len = 1\n[parallelism]\n',
                   "model.converters ['lora']"),
    "titan2.toml": ('[training]\nfreeze_layers = 4\n[parallelism]\n', "training.freeze_layers 4"),
    "ds.json": (json.dumps({"train_batch_size": 1, "lora": {"rank": 8}}), "lora.rank 8"),
    "adapter_config.json": (json.dumps({"peft_type": "LORA", "r": 8}), "peft_type LORA"),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTIAL)
def test_adapters_and_frozen_weights_are_refused_with_key_and_value(tmp_path: Path, name: str) -> None:
    text, named = PARTIAL[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_run_config(tmp_path / name)
    assert f"{name}: {named} trains only some of the weights" in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"q_lora_rank": 1536, "kv_lora_rank": 512},
        {"peft": "none", "lora_dim": 32},
        {"peft": None},
        {"lora": {"enabled": False, "dim": 32, "target_modules": ["linear_qkv"]}},
        {"model": {"peft": {"peft_scheme": None, "lora_tuning": {"adapter_dim": 32}}}},
        {"freeze_all_layers": False, "dino_freeze_last_layer": 1},
        {"lora_rank": 0, "lora_alpha": 32},
        {"use_peft": False, "peft_type": "lora"},
        {"lora_rank": 0, "lora_target_modules": "[]"},
        {"optimizer": {"type": "OneBitAdam", "params": {"lr": 4e-4, "freeze_step": 400}}},
        {"optimizer.params.var_freeze_step": 400},  # ZeroOneAdam
        {"items": {"peft": {"H100": {"status": "verified"}}, "frozen": {"status": "verified"}}},
        {"enable_mla_scale_q_lora": True, "enable_mla_scale_kv_lora": True, "q_lora_layernorm": True},
    ],
)
def test_full_training_with_adapters_switched_off_is_read(options: dict[str, object]) -> None:
    require_full_training(options, "F")


def test_sections_of_bridge_that_are_not_read_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model:\n  num_layers: 4\n  vision_config: {hidden_size: 1152}\n  empty: {}\n"
        "logger: {log_interval: 10}\nprofiling: {use_pytorch_profiler: true}\n"
    )
    assert [(one.name, one.effect) for one in read_run_config(path).ignored] == [("vision_config", "unknown")]


def test_a_name_longer_than_any_option_is_unknown() -> None:
    assert effect_of("_log" * 50 + "\n") == effect_of("log_" * 10_000) == "unknown"


def test_a_default_of_megatron_that_a_file_states_is_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    stated = "model:\n  num_layers: 4\n  hidden_size: 256\n  num_attention_heads: 4\n  vocab_size: 1000\n"
    usual = "  softmax_type: vanilla\n  moe_token_drop_policy: probs\n  tp_comm_bulk_wgrad: true\n  beta_fast: 32\n"
    path.write_text(stated + usual)
    assert read_run_config(path).ignored == ()
    path.write_text(stated + usual.replace("probs", "position").replace("32", "16"))
    assert [one.name for one in read_run_config(path).ignored] == ["moe_token_drop_policy", "beta_fast"]
