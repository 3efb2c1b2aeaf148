"""What a trainer has options for is written as these, and needs no comment."""

from typing import Any

import pytest

import ppsim
from ppsim.errors import ConfigError

RUN: dict[str, Any] = {
    "model": "llama3-8b",
    "gpus": 32,
    "tp": 2,
    "pp": 4,
    "global_batch": 64,
    "micro_batch": 1,
    "stack": "plain",
}


def written(trainer: Any, **words: Any) -> list[str]:
    """Return the lines of a trainer's configuration, without the signs that a line goes on."""
    made = ppsim.project(**(RUN | words))
    return [line.removesuffix("\\").strip() for line in ppsim.trainer_options(made, trainer).splitlines()]


def comments(lines: list[str]) -> list[str]:
    return [line.removeprefix("# not expressible: ") for line in lines if line.startswith("# not expressible")]


def test_megatron_has_an_argument_for_each_of_these_options() -> None:
    lines = written(
        "megatron", runtime="megatron", vpp=2, group_size=8, cp=2, recompute="core_attn+layernorm", zero=3,
        dtype="mxfp8", cluster="dgx-b200", attention="unfused", dropout=True, cross_entropy="unfused",
        deterministic_mode=True, context="all-to-all", overlap_tp=0.5, overlap_p2p=False, optimizer="muon",
        order="tp-cp-ep-pp-dp", exp_avg_dtype="bfloat16", grad_reduce_in_bf16=True, cuda_graphs="attn+mlp",
        decoder_first_pipeline_num_layers=6, decoder_last_pipeline_num_layers=6,
    )  # fmt: skip
    assert comments(lines) == ["--cluster dgx-b200"]
    for line in (
        "torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py", "--num-layers 32", "--optimizer muon",
        "--no-overlap-p2p-communication", "--use-tp-pp-dp-mapping", "--decoder-first-pipeline-num-layers 6",
        "--microbatch-group-size-per-virtual-pipeline-stage 8", "--recompute-modules core_attn layernorm",
        "--num-virtual-stages-per-pipeline-rank 2", "--fp8-format e4m3", "--fp8-recipe mxfp8", "--cp-comm-type a2a",
    ):  # fmt: skip
        assert line in lines


def test_megatron_is_given_no_option_that_it_does_not_have() -> None:
    lines = written("megatron", runtime="megatron", model="gpt2", tp=1, pp=2, recompute="core_attn+mlp_act")
    assert comments(lines) == ["--recompute core_attn+mlp_act"]
    assert "--position-embedding-type learned_absolute" in lines
    assert not [line for line in lines if line.startswith(("--recompute", "--add-position"))]


def test_primus_runs_its_own_schedules_and_names_no_gpus() -> None:
    lines = written("primus", schedule="v-half", stack="primus", runtime="torch")
    assert comments(lines) == ["--gpus 32"]
    assert {"patch_primus_pipeline: true", "pp_algorithm: v-half", "hidden_size: 4096"} <= set(lines)
    assert comments(written("megatron", schedule="zb-h1", runtime="megatron")) == ["--schedule zb-h1"]


@pytest.mark.parametrize(
    ("trainer", "dtype", "loss"), [("torchtitan", "bfloat16", None), ("torchtitan@0.2", "float8-row", "compiled")]
)
def test_torchtitan_has_a_setting_for_each_of_its_defaults(trainer: str, dtype: str, loss: str | None) -> None:
    lines = written(
        trainer, stack="torchtitan", cross_entropy=loss, schedule="zbv-fixed", recompute="full", overlap_tp=0.5, compile=True,
        dtype=dtype, gradient_accumulation_steps=2, split=[3, 4, 4, 4, 4, 5, 4, 4],
    )  # fmt: skip
    assert comments(lines) == []
    assert any(line.replace('"', "").replace(" =", "").endswith("local_batch_size 8") for line in lines)
    assert any("layers.2" in line and "layers.31" in line for line in lines)


def test_float8_of_torchtitan_is_a_comment_where_only_its_registry_says_it() -> None:
    lines = written("torchtitan", stack="torchtitan", dtype="float8", compile=True)
    assert comments(lines) == ["--dtype float8"]
    assert lines[1].startswith("# TorchTitan 0.3.")


def test_a_model_that_a_trainer_does_not_have_is_a_comment() -> None:
    assert "--model llama2-7b" in comments(written("torchtitan", model="llama2-7b", stack="torchtitan"))
    assert "--model llama4-scout" in comments(written("megatron", model="llama4-scout", runtime="megatron"))


def test_a_plan_without_a_model_and_an_unknown_trainer_are_refused() -> None:
    with pytest.raises(ConfigError, match="a trainer's configuration has a model: give --model"):
        ppsim.trainer_options(ppsim.project(pp=2), "megatron")
    for unknown in ("nemo", "torchtitan@0.1"):
        with pytest.raises(ConfigError, match=f"unknown trainer '{unknown}': there are .*torchtitan@0.3"):
            written(unknown)


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        ({"dtype": "float8", "fp8_param_gather": True}, {"--fp8-param-gather"}),
        ({"dtype": "nvfp4", "fp8_param_gather": True}, {"--fp4-param-gather"}),
        (
            {"dtype": "mxfp8", "fp8_param_gather": True},
            {"--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag"},
        ),
        ({"dtype": "mxfp8", "fp8_param_gather": True, "zero": 3, "pp": 1}, {"--fp8-param-gather"}),
        ({"dtype": "float8", "num_layers_at_end_in_bf16": 4}, {"--first-last-layers-bf16"}),
        ({"dtype": "float8", "zero": 3, "pp": 1}, {"--disable-parameter-transpose-cache"}),
        ({"dtype": "float8", "zero": 3, "pp": 1, "weight_cache": "all"}, set()),
        ({"zero": 3, "pp": 1, "fully_shard": True, "gradient_accumulation_fusion": False}, {"--use-torch-fsdp2"}),
    ],
)
def test_megatron_has_flags_for_weights_in_8_bits_and_for_fsdp2(words: dict, flags: set[str]) -> None:
    lines = written("megatron", runtime="megatron", cluster="dgx-b200", **words)
    assert comments(lines) == ["--cluster dgx-b200"]
    named = ("gather", "cache", "param-ag", "fsdp2", "layers-bf16")
    assert {line for line in lines if line.endswith(named) and "overlap" not in line} == flags


@pytest.mark.parametrize("has_layout", [True, False])
def test_megatron_has_flags_for_a_layer_wise_optimizer(has_layout: bool) -> None:
    words = {"optimizer": "muon", "layer_wise": True, "use_layer_wise_param_layout": has_layout}
    lines = written("megatron", runtime="megatron", **words)
    assert {"--optimizer muon", "--use-distributed-optimizer"} <= set(lines)
    assert ("--no-use-layer-wise-param-layout" in lines) is not has_layout
    assert comments(lines) == []


def test_primus_has_a_setting_for_one_copy_of_the_weights() -> None:
    lines = written("primus", stack="primus", runtime="megatron", dtype="float8", weight_cache="rowwise")
    assert comments(lines) == ["--gpus 32"]
    assert "no_fp8_weight_transpose_cache: true" in lines


@pytest.mark.parametrize(
    ("words", "options", "left"),
    [
        ({}, ["--overlap-grad-reduce", "--overlap-param-gather"], []),
        ({"overlap_dp": False}, [], []),
        ({"overlap_param_gather": False}, ["--overlap-grad-reduce"], []),
        ({"overlap_grad_reduce": False}, [], ["--overlap-param-gather"]),  # refused by Megatron-LM
        ({"zero": 0}, ["--overlap-grad-reduce"], []),
    ],
)
def test_each_overlap_of_data_parallelism_is_written_by_its_name(
    words: dict[str, Any], options: list[str], left: list[str]
) -> None:
    lines = written("megatron", runtime="megatron", **words)
    assert [line for line in lines if line.startswith(("--overlap-grad", "--overlap-param"))] == options
    assert comments(lines) == left


@pytest.mark.parametrize(
    ("layers", "vpp", "is_layout"), [(32, None, False), (34, None, True), (36, 2, True), (32, 2, False)]
)
def test_stages_of_different_sizes_are_a_layout(layers: int, vpp: int | None, is_layout: bool) -> None:
    """Megatron-LM refuses layers that its pipeline stages do not divide, unless a layout is given."""
    lines = written("megatron", runtime="megatron", layers=layers, vpp=vpp)
    assert any(line.startswith("--pipeline-model-parallel-layout") for line in lines) == is_layout
    assert comments(lines) == []


@pytest.mark.parametrize(("vpp", "bars"), [(None, 0), (2, 3)])
def test_virtual_stages_of_a_hybrid_are_in_its_pattern(vpp: int | None, bars: int) -> None:
    """Megatron-LM refuses --num-virtual-stages-per-pipeline-rank next to --hybrid-layer-pattern."""
    lines = written("megatron", runtime="megatron", model="nemotron-h-8b", pp=2, vpp=vpp)
    pattern = next(line for line in lines if line.startswith("--hybrid-layer-pattern"))
    assert pattern.count("|") == bars
    assert not any(line.startswith("--num-virtual") for line in lines)
    assert comments(lines) == []
