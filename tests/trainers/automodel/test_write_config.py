"""NeMo AutoModel's own loader accepts the recipes that ppsim writes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import ppsim
from ppsim.base.errors import CannotRun
from ppsim.trainers.automodel.write_config import write_automodel
from tests.trainers.trainer_code import checkout

PLAN: dict[str, Any] = {
    "model": "qwen3-30b-a3b", "cluster": "dgx-h100", "gpus": 16, "tp": 1, "pp": 2, "ep": 4, "micro_batch": 2, "global_batch": 64,
    "seq_len": 4096, "stack": "torchtitan", "bf16_master_weights_and_grads": True, "exp_avg_dtype": "bfloat16",
}  # fmt: skip


def written(**changes: Any) -> str:
    return ppsim.trainer_options(ppsim.project(**PLAN | changes), "automodel")


def tree(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_a_pipeline_of_experts_is_a_recipe_without_comments_on_its_sizes() -> None:
    text = written(split="24,24", vpp=1, schedule="1f1b", moe_dispatcher="deepep", recompute="full", compile=True)
    said = [line for line in text.splitlines() if line.startswith("# not expressible")]
    assert all("cluster" in line or "permute" in line for line in said), said
    found = tree(text)
    assert found["step_scheduler"] == {"global_batch_size": 64, "local_batch_size": 8}
    assert found["distributed"] == {
        "strategy": "fsdp2", "dp_size": 8, "tp_size": 1, "cp_size": 1, "pp_size": 2, "ep_size": 4,
        "activation_checkpointing": True, "sequence_parallel": False, "dp_replicate_size": 1,
        "moe": {"reshard_after_forward": False},
        "pipeline": {"pp_schedule": "1F1B", "pp_microbatch_size": 2, "layers_per_stage": 24},
    }  # fmt: skip
    assert found["model"]["backend"] == {"dispatcher": "deepep"}
    assert (found["model"]["torch_dtype"], found["optimizer"]["_target_"]) == ("bf16", "torch.optim.Adam")
    assert (found["dataset"]["seq_len"], found["compile"]) == (4096, {"enabled": True})


def test_the_stack_automodel_is_written_as_its_backend_and_read_again(tmp_path: Path) -> None:
    text = written(stack="automodel", pp=1, moe_dispatcher="deepep")
    backend = tree(text)["model"]["backend"]
    assert backend == {"linear": "te", "rms_norm": "te", "dispatcher": "deepep"}
    (tmp_path / "recipe.yaml").write_text(text)
    assert ppsim.read_run_config(tmp_path / "recipe.yaml").options["stack"] == "automodel"
    assert "stack" not in "".join(line for line in text.splitlines() if line.startswith("#"))


def test_unequal_stages_are_named_by_their_modules() -> None:
    parts = tree(written(split="23,25", vpp=1, schedule="1f1b"))["distributed"]["pipeline"][
        "module_fqns_per_model_part"
    ]
    assert [len(part) for part in parts] == [1 + 23 + 1, 25 + 2 + 1]
    assert (parts[0][:2], parts[1][-3:]) == (
        ["model.embed_tokens", "model.layers.0"], ["model.norm", "lm_head", "model.rotary_emb"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"zero": 0, "exp_avg_dtype": "float32"}, "DDP has no other parallelism: give --zero 1"),
        ({"global_batch": 16, "gradient_accumulation_steps": 1}, "a pipeline needs as many microbatches as ranks"),
    ],
)
def test_plans_that_its_recipes_refuse_are_not_written(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CannotRun, match=sentence):
        written(**changes)


def test_its_loader_accepts_the_recipes() -> None:
    package = checkout("PPSIM_AUTOMODEL", "nemo_automodel")
    changes: list[dict[str, Any]] = [
        {}, {"pp": 1, "zero": 3}, {"pp": 1, "ep": 1, "zero": 0, "exp_avg_dtype": "float32"}, {"dtype": "mxfp8", "cluster": "dgx-b200"}, {"recompute": "selective-op"},
        {"vpp": 2, "schedule": "zbv-fixed"}, {"pp": 1, "num_distributed_optimizer_instances": 2}, {"lora": "16", "stack": "plain"},
        {"tp": 2, "ep": 2, "sequence_parallel": True, "split": "23,25"}, {"moe_dispatcher": "hybridep"},
    ]  # fmt: skip
    texts = [written(**change) for change in changes]
    script = Path(__file__).parents[1] / "scripts" / "automodel_sections.py"
    child = subprocess.run(
        [sys.executable, script], input=json.dumps(texts), capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(package)},
    )  # fmt: skip
    assert json.loads(child.stdout[child.stdout.rindex("[") :]) == [""] * len(texts)


USUAL: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B", "gpus": 12, "micro_batch": 3, "global_batch": 72, "seq_len": 96, "dtype": "bfloat16", "zero": 1,
}  # fmt: skip


def section(name: str, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = tree(write_automodel(USUAL | options))[name]
    return found


SIZES = {"dp_size": 12, "tp_size": 1, "cp_size": 1, "pp_size": 1, "ep_size": 1}
FSDP = {
    "strategy": "fsdp2", **SIZES, "activation_checkpointing": False, "sequence_parallel": False, "dp_replicate_size": 1,
    "reshard_after_forward": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({}, {}),
        ({"tp": 2, "cp": 3, "sequence_parallel": True}, {"dp_size": 2, "tp_size": 2, "cp_size": 3, "sequence_parallel": True}),
        ({"zero": 3}, {"reshard_after_forward": True}),
        ({"num_distributed_optimizer_instances": 3}, {"dp_replicate_size": 3}),
        ({"num_distributed_optimizer_instances": 12}, {}),
        ({"num_distributed_optimizer_instances": 5}, {}),
        ({"recompute": "full"}, {"activation_checkpointing": True}),
    ],
)  # fmt: skip
def test_sizes_and_sharding_are_the_distributed_section(options: dict[str, Any], changes: dict[str, Any]) -> None:
    assert section("distributed", **options) == FSDP | changes


def test_experts_reshard_in_a_section_of_their_own() -> None:
    found = section("distributed", zero=3, ep=2)
    assert (found["moe"], found["ep_size"]) == ({"reshard_after_forward": True}, 2)
    assert "reshard_after_forward" not in found


def test_ddp_has_no_fields_of_fsdp() -> None:
    assert section("distributed", zero=0) == {"strategy": "ddp", **SIZES, "activation_checkpointing": False}
    with pytest.raises(CannotRun, match="DDP has no other parallelism"):
        section("distributed", zero=0, tp=2)


def test_a_pipeline_needs_a_microbatch_for_each_rank() -> None:
    """12 GPUs in 6 replicas of 2 ranks take 12 sequences each; in 4 replicas of 3 ranks, 18; in 2 of 6, 36."""
    for pp, micro in ((2, 6), (3, 6), (6, 6)):
        options = {"pp": pp, "micro_batch": micro}
        assert section("distributed", **options)["pipeline"] == {"pp_schedule": "1F1B", "pp_microbatch_size": micro}
    with pytest.raises(CannotRun, match="as many microbatches as ranks"):
        section("distributed", pp=2, micro_batch=12)


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ([4, 4], {"layers_per_stage": 4}),
        ([4, 3], {"layers_per_stage": 4}),
        ([1, 2], {"module_fqns_per_model_part": [
            ["model.embed_tokens", "model.layers.0", "model.rotary_emb"],
            ["model.layers.1", "model.layers.2", "model.norm", "lm_head", "model.rotary_emb"]]}),
        ("balanced", {}),
        ([4, 4, 4], {}),
    ],
)  # fmt: skip
def test_stages_are_a_number_of_layers_or_named_modules(split: Any, expected: dict[str, Any]) -> None:
    usual = {"pp_schedule": "1F1B", "pp_microbatch_size": 3}
    assert section("distributed", pp=2, split=split)["pipeline"] == usual | expected


@pytest.mark.parametrize(
    ("options", "adam", "dtype"),
    [
        ({}, "torch.optim.Adam", "float32"),
        (
            {"bf16_master_weights_and_grads": True},
            "transformer_engine.pytorch.optimizers.fused_adam.FusedAdam",
            "bf16",
        ),
        ({"bf16_master_weights_and_grads": True, "exp_avg_dtype": "bfloat16"}, "torch.optim.Adam", "bf16"),
    ],
)
def test_moments_have_the_format_of_the_weights_with_torchs_adam(
    options: dict[str, Any], adam: str, dtype: str
) -> None:
    assert section("optimizer", **options)["_target_"] == adam
    assert section("model", **options)["torch_dtype"] == dtype


def test_adapters_and_compilation_are_sections_if_they_are_asked_for() -> None:
    plain = tree(write_automodel(USUAL))
    assert not {"compile", "peft"} & plain.keys()
    assert list(plain)[:2] == ["recipe", "step_scheduler"]
    assert section("compile", compile=True) == {"enabled": True}
    assert section("peft", lora="16")["dim"] == 16
    assert "peft" not in tree(write_automodel(USUAL | {"lora": "16/mlp"}))


def test_the_command_starts_the_gpus_of_one_node() -> None:
    for gpus, on_node in ((4, 4), (8, 8), (16, 8)):
        assert f"--nproc-per-node {on_node}\n" in write_automodel(USUAL | {"gpus": gpus})


def test_tokens_of_experts_are_dispatched_if_ranks_share_them() -> None:
    assert section("model", ep=2, moe_dispatcher="deepep")["backend"] == {"dispatcher": "deepep"}
    assert "backend" not in section("model", ep=1, moe_dispatcher="deepep")
    assert "backend" not in section("model", ep=2, moe_dispatcher="strange")
