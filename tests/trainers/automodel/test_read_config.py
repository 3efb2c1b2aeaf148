"""NeMo AutoModel's recipes are read as its own loader takes them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.model.registry import find_model
from ppsim.trainers.run_config import RunConfig

RECIPE: dict[str, Any] = {
    "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
    "step_scheduler": {"global_batch_size": 64, "local_batch_size": 8},
    "distributed": {"strategy": "fsdp2", "tp_size": 1, "cp_size": 1, "pp_size": 1, "dp_size": "none"},
    "model": {"_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
              "pretrained_model_name_or_path": "Qwen/Qwen3-30B-A3B"},
    "dataset": {"seq_len": 4096},
    "optimizer": {"_target_": "torch.optim.Adam", "lr": 1e-4},
}  # fmt: skip


def read(folder: Path, **sections: Any) -> RunConfig:
    content = {**RECIPE, **sections}
    for name, value in sections.items():
        if isinstance(value, dict) and isinstance(RECIPE.get(name), dict):
            content[name] = {**RECIPE[name], **value}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content))
    return ppsim.read_run_config(folder / "recipe.yaml")


def test_a_recipe_gives_model_batch_length_and_bfloat16_states(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config.trainer == "NeMo AutoModel"
    assert config.model is find_model("qwen3-30b-a3b")
    assert config.options == {
        "tp": 1, "cp": 1, "pp": 1, "seq_len": 4096, "micro_batch": 8, "global_batch": 64, "zero": 3,
        "bf16_master_weights_and_grads": True, "exp_avg_dtype": "bfloat16", "sequence_parallel": False,
        "recompute": "none", "dtype": "bfloat16", "compile": False, "runtime": "torch", "stack": "torchtitan",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("norm", "stack", "compiles"), [("te", "automodel", None), ("torch_fp32", "torchtitan", False)]
)
def test_norms_of_transformer_engine_have_the_stack_of_its_fused_kernels(
    tmp_path: Path, norm: str, stack: str, compiles: bool | None
) -> None:
    config = read(tmp_path, model={"backend": {"linear": "te", "rms_norm": norm}})
    assert (config.options["stack"], config.options.get("compile")) == (stack, compiles)
    assert any("TorchTitan" in sentence for sentence in config.assumed) is (stack == "torchtitan")


@pytest.mark.parametrize(
    ("distributed", "zero"),
    [
        ({}, 3),
        ({"reshard_after_forward": False}, 2),
        ({"pp_size": 2}, 1),
        ({"pp_size": 2, "reshard_after_forward": True}, 3),
        ({"ep_size": 8}, 2),
        ({"ep_size": 8, "moe": {"reshard_after_forward": True}}, 3),
        ({"strategy": "ddp"}, 0),
        ({"strategy": "megatron_fsdp"}, 3),
        ({"strategy": "megatron_fsdp", "zero_dp_strategy": 1}, 1),
    ],
)
def test_weights_are_sharded_as_its_parallelizer_does(
    tmp_path: Path, distributed: dict[str, Any], zero: int
) -> None:
    assert read(tmp_path, distributed=distributed).options["zero"] == zero


@pytest.mark.parametrize(
    ("pipeline", "schedule", "stages"),
    [
        ({"pp_schedule": "1f1b"}, "1f1b", 4),
        ({"pp_schedule": "interleaved1f1b", "layers_per_stage": 2}, "interleaved-1f1b", 24),
        ({"pp_schedule": "interleaved1f1b", "layers_per_stage": 5, "round_virtual_stages_to_pp_multiple": "up"},
         "interleaved-1f1b", 12),
        ({"pp_schedule": "interleaved1f1b", "layers_per_stage": 5, "round_virtual_stages_to_pp_multiple": "down"},
         "interleaved-1f1b", 8),
        ({"pp_schedule": "ZBVZeroBubble"}, "zbv-fixed", 8),
        ({"pp_schedule": "1f1b", "layers_per_stage": 100}, "1f1b", 4),
    ],
)  # fmt: skip
def test_a_pipeline_has_its_stages_and_microbatches(
    tmp_path: Path, pipeline: dict[str, Any], schedule: str, stages: int
) -> None:
    config = read(tmp_path, distributed={"pp_size": 4, "pipeline": {"pp_microbatch_size": 2, **pipeline}})
    assert config.options["schedule"] == schedule
    assert config.options["vpp"] == stages // 4
    assert sum(config.options["split"]) == 48
    assert config.options["split"] == sorted(config.options["split"], reverse=True)
    assert config.options["micro_batch"] == 2


@pytest.mark.parametrize(
    ("sections", "options"),
    [
        ({"model": {"backend": {"dispatcher": "hybridep"}}, "distributed": {"ep_size": 8}}, {"moe_dispatcher": "hybridep"}),
        ({"model": {"backend": {"te_fp8": {"recipe": "mxfp8"}}}}, {"dtype": "mxfp8"}),
        ({"model": {"torch_dtype": "float32"}}, {"bf16_master_weights_and_grads": None, "exp_avg_dtype": None}),
        ({"distributed": {"activation_checkpointing": True}}, {"recompute": "full"}),
        ({"distributed": {"activation_checkpointing": "selective"}}, {"recompute": "selective-op"}),
        ({"compile": {"enabled": True}}, {"compile": True}),
        ({"peft": {"_target_": "nemo_automodel.components._peft.lora.PeftConfig", "target_modules": "*_proj", "dim": 16}},
         {"lora": "16"}),
        ({"peft": {"_target_": "nemo_automodel.components._peft.lora.PeftConfig"}}, {"lora": "8"}),
        ({"packed_sequence": {"packed_sequence_size": 8192}}, {"seq_len": 8192}),
        ({"packed_sequence": {"packed_sequence_size": 0}}, {"seq_len": 4096}),
        ({"distributed": {"dp_size": 16}}, {"dp": 16}),
    ],
)  # fmt: skip
def test_settings_become_options(tmp_path: Path, sections: dict[str, Any], options: dict[str, Any]) -> None:
    found = read(tmp_path, **sections).options
    assert {name: found.get(name) for name in options} == options


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"teacher_model": {"x": 1}}, "knowledge distillation"),
        ({"recipe": "TrainEagle3Recipe", "recipe_args": {"x": 1}}, "recipe TrainEagle3Recipe is not known"),
        ({"flow_matching": {"x": 1}}, "only the prediction of next tokens"),
        ({"recipe": "TrainBiEncoderRecipe"}, "only the prediction of next tokens"),
        (
            {
                "peft": {
                    "_target_": "nemo_automodel.components._peft.lora.PeftConfig",
                    "target_modules": ["*.q_proj"],
                }
            },
            "remove peft, and give --lora RANK:MODULES",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read(tmp_path, **sections)


def test_an_unknown_model_is_asked_for(tmp_path: Path) -> None:
    config = read(tmp_path, model={"pretrained_model_name_or_path": "nobody/nothing-1B"})
    assert config.model is None
    assert config.why_no_model.endswith("the sizes of nobody/nothing-1B are not known: give --model")


def test_a_length_that_a_recipe_does_not_fix_is_asked_for(tmp_path: Path) -> None:
    sentence = "the sequences of the data set have no fixed length: give --seq-len"
    assert sentence in read(tmp_path, dataset={"seq_len": None}).assumed
    assert sentence not in read(tmp_path).assumed
    assert "the stack of TorchTitan, the nearest that was measured" in read(tmp_path).assumed
