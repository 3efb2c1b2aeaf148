"""Trainers' configurations: the words and the model that each says, and what it is refused for."""

import json
from pathlib import Path
from typing import Any

import pytest

import ppsim
from ppsim.errors import ConfigError
from ppsim.model.attention_and_mlp import MixtureOfExperts
from ppsim.model.registry import find_model
from ppsim.trainers.arguments import Arguments, megatron_names
from ppsim.trainers.megatron.read_model import model_of
from ppsim.trainers.megatron.write_model import model_arguments
from ppsim.trainers.read_config import read_run_config
from ppsim.trainers.run_config import IgnoredOption, RunConfig

SCRIPT = """#!/bin/bash
# a comment with --num-layers 99
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-4}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TP=8
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES   # nodes
)
GPT_MODEL_ARGS=(
    --num-layers 80 --hidden-size 8192
    --ffn-hidden-size 28672
    --num-attention-heads 64
    --group-query-attention
    --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --swiglu
    --disable-bias-linear
    --normalization RMSNorm
    --untie-embeddings-and-output-weights
    --vocab-size 128256
)
TRAINING_ARGS="--micro-batch-size 1 --global-batch-size=128
    --bf16 --lr 6.0e-5 \\
    --recompute-granularity selective --recompute-modules core_attn layernorm"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} $TRAINING_ARGS \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 4 \\
    --num-layers-per-virtual-pipeline-stage 5 --sequence-parallel \\
    --use-distributed-optimizer --overlap-grad-reduce --tp-comm-overlap --save $CHECKPOINTS
"""

LLAMA3_70B_WORDS = {
    "tp": 8, "pp": 4, "micro_batch": 1, "global_batch": 128, "seq_len": 8192, "gpus": 32, "vpp": 4,
    "runtime": "megatron", "dtype": "bfloat16", "sequence_parallel": True, "recompute": "core_attn+layernorm",
    "optimizer": "adam", "zero": 1, "overlap_grad_reduce": True, "overlap_param_gather": False, "overlap_tp": "0.5", "dropout": True,
    "cross_entropy": "unfused",
}  # fmt: skip


def read(folder: Path, name: str, text: str) -> RunConfig:
    (folder / name).write_text(text)
    return read_run_config(folder / name)


def test_a_script_says_what_its_variables_arrays_and_arithmetic_make(tmp_path: Path) -> None:
    found = read(tmp_path, "train.sh", SCRIPT)
    assert found.trainer == "Megatron-LM"
    assert found.options == LLAMA3_70B_WORDS
    assert found.model is not None
    assert found.model.parameters == find_model("llama3-70b").parameters
    assert found.ignored == ()
    assert ("tensor_model_parallel_size", "tp") in found.read_options
    assert ("tp_comm_overlap", "overlap_tp") in found.read_options
    assert "attention_dropout or hidden_dropout is not given: 0.1, Megatron-LM's default" in found.assumed


def test_the_same_arguments_say_the_same_as_yaml_and_in_a_log(tmp_path: Path) -> None:
    script = read(tmp_path, "train.sh", SCRIPT)
    yaml = "MODEL_ARGS:\n" + "".join(
        f"  --{name.replace('_', '-')}: {value}\n" for name, value in ARGUMENTS.items() if value is not False
    )
    dots = "".join(f" 0:   {name} {'.' * (48 - len(name))} {value}\n" for name, value in ARGUMENTS.items())
    log = f"using world size: 32\n------------------------ arguments ------------------------\n{dots}"
    for name, text in (("model_config.yaml", yaml), ("log.txt", log), ("train.log", dots.replace(" 0:  ", ""))):
        found = read(tmp_path, name, text)
        assert found.options == script.options, name
        assert found.model is not None
        assert found.model.layers == script.model.layers  # type: ignore[union-attr]


ARGUMENTS = {
    "num_layers": 80, "hidden_size": 8192, "ffn_hidden_size": 28672, "num_attention_heads": 64,
    "group_query_attention": True, "num_query_groups": 8, "seq_length": 8192, "max_position_embeddings": 8192,
    "position_embedding_type": "rope", "swiglu": True, "add_bias_linear": "False", "normalization": "RMSNorm",
    "untie_embeddings_and_output_weights": True, "vocab_size": 128256, "micro_batch_size": 1, "global_batch_size": 128,
    "bf16": True, "recompute_granularity": "selective", "recompute_modules": "core_attn layernorm",
    "tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 4, "num_virtual_stages_per_pipeline_rank": 4,
    "sequence_parallel": True, "use_distributed_optimizer": True, "overlap_grad_reduce": True, "world_size": 32,
    "fp16": False, "lr": 6e-05, "tp_comm_overlap": True,
}  # fmt: skip

EXPERIMENT = """
work_group: ${TEAM:amd}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${PRIMUS_MODEL:mixtral}.yaml
    overrides:
      micro_batch_size: 2
      global_batch_size: ${GLOBAL_BATCH:256}
      pipeline_model_parallel_size: 4
      expert_model_parallel_size: 8
      moe_use_new_router: 3
      lr: 1.0e-5
      patch_primus_pipeline: true
      pp_algorithm: zbv-formatted
"""


def primus(folder: Path, experiment: str = EXPERIMENT) -> Path:
    """A checkout of Primus with one model."""
    configs = folder / "primus" / "configs"
    for kind in ("models", "modules"):
        (configs / kind / "megatron").mkdir(parents=True)
    (configs / "modules" / "base.yaml").write_text("trainable: false\nbf16: true\nsequence_parallel: true\n")
    (configs / "modules/megatron/pre_trainer.yaml").write_text(
        "extends:\n  - ../base.yaml\nuse_distributed_optimizer: true\nmicro_batch_size: 1\nsome_default: 7\n"
    )
    (configs / "models/megatron/llama_base.yaml").write_text(
        "swiglu: true\nadd_bias_linear: false\nnormalization: RMSNorm\nposition_embedding_type: rope\n"
        "untie_embeddings_and_output_weights: true\nnum_experts: null\n"
    )
    (configs / "models/megatron/mixtral.yaml").write_text(
        "bases:\n  - llama_base.yaml\nnum_layers: 32\nhidden_size: 4096\nffn_hidden_size: 14336\n"
        "num_attention_heads: 32\ngroup_query_attention: true\nnum_query_groups: 8\nnum_experts: 8\n"
        "moe_router_topk: 2\ntokenizer_model: mistralai/Mixtral-8x7B-v0.1\nseq_length: 4096\n"
    )
    path = folder / "examples" / "own.yaml"
    path.parent.mkdir()
    path.write_text(experiment)
    return path


def test_an_experiment_of_primus_takes_the_files_it_names_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = primus(tmp_path)
    monkeypatch.setenv("GLOBAL_BATCH", "512")
    found = read_run_config(path)
    assert found.model is not None
    assert found.model.parameters == find_model("mixtral-8x7b").parameters
    words = ("pp", "ep", "micro_batch", "global_batch", "schedule", "runtime", "zero", "seq_len")
    assert [found.options[word] for word in words] == [4, 8, 2, 512, "zbv", "torch", 1, 4096]
    fewest = "the fewest for ep 8 · pp 4 in multiples of its launcher's 8"
    assert found.assumed[0] == f"no number of GPUs is given: 32 assumed, {fewest} (set --gpus)"
    assert [(ignored.name, ignored.effect) for ignored in found.ignored] == [("moe_use_new_router", "unknown")]


TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 16
seq_len = 8192
[parallelism]
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "ZBVZeroBubble"
pipeline_parallel_microbatch_size = 2
data_parallel_shard_degree = 8
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = "full"
"""


def test_torchtitan_says_the_same_by_toml_and_by_flags(tmp_path: Path) -> None:
    toml = read(tmp_path, "train.toml", TITAN)
    flags = read(
        tmp_path,
        "run.sh",
        "torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_8b "
        "--training.local-batch-size 16 --training.seq_len 8192 --parallelism.pipeline_parallel_degree 4 "
        "--parallelism.pipeline_parallel_schedule ZBVZeroBubble --parallelism.pipeline_parallel_microbatch_size=2 "
        "--parallelism.data-parallel-shard-degree 8 --parallelism.enable_async_tensor_parallel "
        "activation-checkpoint:full\n",
    )
    assert toml.options == {**flags.options, "cross_entropy": "unfused"}  # in chunks from 0.3 on, as --stack has it
    assert flags.options == {
        "pp": 4, "dp": 8, "seq_len": 8192, "micro_batch": 2, "microbatches": 8, "zero": 1, "schedule": "zbv-fixed",
        "recompute": "full", "dtype": "bfloat16", "runtime": "torch", "stack": "torchtitan", "overlap_tp": "0.5",
        "compile": True,  # which asynchronous tensor parallelism asks for
    }  # fmt: skip
    assert toml.model == find_model("llama3-8b")
    assert toml.ignored == ()


@pytest.mark.parametrize(
    ("section", "recipe", "dtype"),
    [("float8", "rowwise", "float8-row"), ("quantize.linear.float8", "rowwise", "float8-row"),
     ("float8", "tensorwise", "float8")],
)  # fmt: skip
def test_torchtitans_recipe_says_what_has_a_scale(tmp_path: Path, section: str, recipe: str, dtype: str) -> None:
    found = read(
        tmp_path,
        "run.sh",
        "torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_8b "
        f'--training.seq_len 8192 --model.converters="{section}" --{section}.recipe_name {recipe}\n',
    )
    assert found.options["dtype"] == dtype


@pytest.mark.parametrize(("option", "word"), [("op", "selective-op"), ("1", "full"), ("2", "full/2")])
def test_torchtitans_selective_checkpointing_is_by_op_or_of_every_nth_layer(
    tmp_path: Path, option: str, word: str
) -> None:
    text = TITAN.replace('mode = "full"', f'mode = "selective"\nselective_ac_option = "{option}"')
    assert read(tmp_path, "train.toml", text).options["recompute"] == word
    with pytest.raises(ConfigError, match="recompute must be full/N"):
        read(tmp_path, "other.toml", text.replace(f'"{option}"', '"x"'))


@pytest.mark.parametrize(
    "line", ["[compile]\nenable = true", "[training]\ncompile = true", "[compile]\nenable = false"]
)
def test_torchtitan_says_whether_its_blocks_are_compiled(tmp_path: Path, line: str) -> None:
    text = TITAN.replace("enable_async_tensor_parallel = true\n", "")
    text = text.replace("[training]", line) if "[training]" in line else f"{text}{line}\n"
    assert read(tmp_path, "train.toml", text).options["compile"] is ("true" in line)


def test_megatron_bridge_nemo_and_deepspeed_by_their_sections(tmp_path: Path) -> None:
    bridge = read(
        tmp_path,
        "bridge.yaml",
        "model:\n  _target_: megatron.bridge.GPTProvider\n  num_layers: 12\n  hidden_size: 768\n"
        "  num_attention_heads: 12\n  share_embeddings_and_output_weights: true\n  gated_linear_unit: false\n"
        "  pipeline_model_parallel_size: 2\n  vocab_size: 50257\n  position_embedding_type: learned_absolute\n"
        "  max_position_embeddings: 1024\ntrain:\n  micro_batch_size: 4\n  global_batch_size: 64\n"
        "dataset:\n  sequence_length: 1024\n",
    )
    assert bridge.options["stack"] == "megatron-bridge"
    assert "dropout" not in bridge.options  # its stack's
    assert (bridge.options["pp"], bridge.options["global_batch"], bridge.options["seq_len"]) == (2, 64, 1024)
    assert bridge.model is not None
    assert bridge.model.parameters == find_model("gpt2").parameters
    speed = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8, "bf16": {"enabled": True},
             "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}  # fmt: skip
    found = read(tmp_path, "ds.json", json.dumps(speed))
    assert found.options == {
        "micro_batch": 2, "microbatches": 8, "zero": 1, "dtype": "bfloat16", "overlap_grad_reduce": False,
        "overlap_param_gather": False, "grad_reduce_in_bf16": True,
    }  # fmt: skip
    assert "give --model" in found.why_no_model
    assert [ignored.effect for ignored in found.ignored] == ["time and memory"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("x.yaml", "a: 1\n", "x.yaml is not a training configuration that ppsim can read. It reads Megatron-LM arguments"),
        ("x.yaml", "- 1\n", "is not a training configuration"),
        ("x.sh", "ls --all --size 3\n", "x.sh is not a training configuration"),
        ("x.sh", "python t.py --num-layers 2 --micro-batch-size 0",
         "micro_batch_size must be a whole number of 1 or more: got 0"),
        ("x.sh", "python 't.py --num-layers 2", "x.sh is no script that bash can read: parse error at line 1"),
        ("x.toml", "[parallelism]\npipeline_parallel_degree = = 2\n", "x.toml is not valid TOML"),
        ("x.toml", "[parallelism]\npipeline_parallel_degree = 0\n", "must be a whole number of 1 or more: got 0"),
        ("x.yaml", EXPERIMENT, "no folder above it has primus/configs"),
        ("x.yaml", "modules:\n  a: {}\n", "must name a trainer with its framework"),
    ],
)  # fmt: skip
def test_what_is_none_is_refused_in_a_sentence(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, name, text)
    assert sentence in str(refused.value)


def test_a_model_of_layers_that_are_not_known_is_not_made_up(tmp_path: Path) -> None:
    base = (
        "MODEL_ARGS:\n  --num-layers: 4\n  --hidden-size: 64\n  --num-attention-heads: 4\n  --micro-batch-size: 1\n"
    )
    for line, sentence in (
        ("  --hybrid-layer-pattern: -X\n", "'X'"),
        ("  --hybrid-layer-pattern: -E\n", "pattern -E"),
        ("  --hybrid-layer-pattern: M*\n", "the Mamba heads must be a multiple of the groups: got 2 and 8"),
        ("  --is-hybrid-model: true\n  --hybrid-attention-ratio: 0.1\n", "give hybrid-layer-pattern"),
        ("  --hybrid-layer-pattern: --\n  --mtp-num-layers: 1\n", "needs their pattern, behind a / of --"),
        ("  --experimental-attention-variant: csa\n", "csa is not known, only gated_delta_net and dsa"),
        ("  --experimental-attention-variant: dsa\n", "dsa is for latent attention: give multi-latent-attention"),
        ("  --window-size: (128,64)\n", "window_size must be so many tokens before and 0 behind: got '(128,64)'"),
        ("  --window-size: all\n", "window_size must be two whole numbers: got 'all'"),
        ("  --window-size: (8,0)\n  --window-attn-skip-freq: '[1]*3'\n", "has 3 entries for 4 layers"),
        ("  --encoder-num-layers: 2\n  --decoder-num-layers: 2\n", "an encoder with a decoder (T5)"),
        ("  --num-experts: 4\n  --moe-layer-freq: ([0]*3+x)\n", "moe_layer_freq '([0]*3+x)' is no list"),
    ):
        found = read(tmp_path, "c.yaml", base + line)
        assert found.model is None
        assert sentence in found.why_no_model


@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5.2"])
def test_sparse_latent_attention_is_read_and_written(name: str) -> None:
    """GLM-5.2 has an indexer in its first three layers and in every fourth of the others."""
    model = find_model(name)
    arguments = model_arguments(model, 4096)
    assert arguments is not None
    assert arguments["experimental_attention_variant"] == "dsa"
    read = model_of(Arguments(megatron_names(arguments | {"seq_length": 4096}), "arguments"))
    assert [layer.attention for layer in read.layers] == [layer.attention for layer in model.layers]


def test_a_config_json_of_an_unknown_type_says_how_to_trace_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "glm4", "hidden_size": 64}')
    with pytest.raises(ConfigError, match=f"run `ppsim models --trace {path}`"):
        read_run_config(path)
    with pytest.raises(
        ConfigError, match=r"is a model's config.json, not a recorded run: .* `ppsim models --trace"
    ):
        ppsim.read(path)


def test_files_of_primus_that_extend_themselves_end(tmp_path: Path) -> None:
    path = primus(tmp_path)
    (tmp_path / "primus/configs/models/megatron/mixtral.yaml").write_text("extends: [mixtral.yaml]\n")
    with pytest.raises(ConfigError, match="extends itself"):
        read_run_config(path)
    (tmp_path / "primus/configs/models/megatron/mixtral.yaml").unlink()
    with pytest.raises(ConfigError, match=r"names mixtral\.yaml, which is not in"):
        read_run_config(path)


def test_experts_may_have_other_tensor_parallel_ranks(tmp_path: Path) -> None:
    base = (
        "MODEL_ARGS:\n  --num-layers: 4\n  --hidden-size: 64\n  --num-attention-heads: 4\n  --micro-batch-size: 1\n"
        "  --num-experts: 8\n  --moe-ffn-hidden-size: 64\n  --tensor-model-parallel-size: 4\n"
        "  --expert-model-parallel-size: 8\n  --expert-tensor-parallel-size: 1\n"
        "  --recompute-granularity: selective\n  --recompute-modules: [layernorm moe_act]\n"
    )
    found = read(tmp_path, "c.yaml", base)
    words = found.options
    assert (words["ep"], words["etp"], words["recompute"]) == (8, 1, "layernorm+moe_act")
    assert found.assumed[0].startswith("no number of GPUs is given: 8 assumed")
    same = read(tmp_path, "c.yaml", base.replace("tensor-parallel-size: 1", "tensor-parallel-size: 4"))
    assert same.options["etp"] == 4


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--attention-dropout 0 --hidden-dropout 0.0", {"dropout": False}),
        ("--attention-dropout 0 --hidden-dropout 0.1", {"dropout": True}),
        ("--attention-backend unfused", {"attention": "unfused"}),
        ("--transformer-impl local", {"attention": "unfused"}),
        ("--transformer-impl local --use-flash-attn", {"attention": "fused"}),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te", {"cross_entropy": "fused"}),
        ("--cross-entropy-loss-fusion --cross-entropy-fusion-impl native", {"cross_entropy": "compiled"}),
        ("--cross-entropy-loss-fusion", {"cross_entropy": "compiled"}),
        (
            "--fine-grained-activation-offloading --offload-modules core_attn attn_proj",
            {"offload_modules": "core_attn+attn_proj"},
        ),
        ("--offload-modules core_attn", {"offload_modules": None}),
        (
            "--fine-grained-activation-offloading --offload-modules core_attn --min-offloaded-tensor-size 100 "
            "--activation-offload-fraction 0.75 --fine-grained-offloading-max-inflight-offloads 0",
            {"min_offloaded_tensor_size": 100, "activation_offload_fraction": 0.75, "max_inflight_offloads": 0},
        ),
        (
            "--activation-offload-fraction 0.75 --min-offloaded-tensor-size 100",
            {"activation_offload_fraction": None, "min_offloaded_tensor_size": None},
        ),
        (
            "--optimizer-cpu-offload --use-precision-aware-optimizer --use-distributed-optimizer",
            {"optimizer_offload_fraction": 1.0, "overlap_cpu_optimizer_d2h_h2d": None},
        ),
        (
            "--optimizer-cpu-offload --optimizer-offload-fraction 0.5 --overlap-cpu-optimizer-d2h-h2d "
            "--use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
            {"optimizer_offload_fraction": 0.5, "overlap_cpu_optimizer_d2h_h2d": True, "exp_avg_dtype": None},
        ),
        ("--optimizer-offload-fraction 0.5", {"optimizer_offload_fraction": None}),
        ("--defer-embedding-wgrad-compute --wgrad-deferral-limit 22", {"wgrad_deferral_limit": 22}),
        ("--defer-embedding-wgrad-compute", {"wgrad_deferral_limit": 0}),
        ("--wgrad-deferral-limit 22", {"wgrad_deferral_limit": None}),
        ("--tp-comm-overlap --overlap-moe-expert-parallel-comm", {"overlap_tp": "0.5", "overlap_ep": "megatron"}),
        ("--overlap-moe-expert-parallel-comm --delay-wgrad-compute", {"overlap_ep": "megatron-delay-wgrad"}),
        ("--no-scatter-gather-tensors-in-pipeline", {"scatter_gather": False}),
        ("--cp-comm-type a2a", {"context": "all-to-all"}),
    ],
)
def test_how_a_stage_computes_is_understood(tmp_path: Path, flags: str, words: dict[str, object]) -> None:
    found = read(tmp_path, "x.sh", f"python t.py --num-layers 2 --tensor-model-parallel-size 2 --bf16 {flags}")
    assert {word: found.options.get(word) for word in words} == words
    assert found.ignored == ()


EXPERTS = {"num_experts": 8, "moe_router_topk": 2, "expert_model_parallel_size": 4, "moe_grouped_gemm": True}


def flags(values: dict) -> str:
    return " ".join(
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
        for name, value in values.items() if value is not False
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, {"moe_dispatcher": "allgather"}),
        ({"moe_token_dispatcher_type": "alltoall"}, {"moe_dispatcher": "alltoall"}),
        (
            {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"},
            {"moe_dispatcher": "hybridep"},
        ),
        (
            {"moe_token_dispatcher_type": "flex", "moe_deepep_num_sms": 24, "moe_hybridep_num_sms": 32},
            {"moe_dispatcher": "deepep", "moe_flex_dispatcher_num_sms": 24},
        ),
        (
            {
                "moe_token_dispatcher_type": "flex",
                "moe_flex_dispatcher_backend": "hybridep",
                "moe_deepep_num_sms": 24,
                "moe_hybridep_num_sms": 32,
            },
            {"moe_dispatcher": "hybridep", "moe_flex_dispatcher_num_sms": 32},
        ),
        (
            {
                "moe_token_dispatcher_type": "flex",
                "moe_flex_dispatcher_num_sms": 16,
                "moe_deepep_num_sms": 24,
            },
            {"moe_flex_dispatcher_num_sms": 16},
        ),
        (
            {"moe_token_dispatcher_type": "alltoall", "moe_hybridep_num_sms": 32},
            {"moe_dispatcher": "alltoall", "moe_flex_dispatcher_num_sms": None},
        ),
        (
            {"moe_expert_capacity_factor": 1.5, "moe_pad_expert_input_to_capacity": True},
            {"moe_expert_capacity_factor": 1.5},
        ),
        ({"moe_router_force_load_balancing": True}, {"expert_imbalance": 1.0}),
        ({}, {"moe_permute_fusion": False, "moe_use_legacy_grouped_gemm": None}),
        ({"moe_use_legacy_grouped_gemm": True}, {"moe_use_legacy_grouped_gemm": True}),
        ({"moe_permute_fusion": True}, {"moe_permute_fusion": None}),
        ({"turbo_sync_free_moe_stage": 1}, {"moe_permute_fusion": None}),
        ({"turbo_sync_free_moe_stage": 0}, {"moe_permute_fusion": False}),
        (
            {
                "use_transformer_engine_op_fuser": True,
                "moe_expert_rank_capacity_factor": 1.5,
                "moe_paged_stash": True,
            },
            {"fused_experts": True, "moe_expert_rank_capacity_factor": 1.5, "moe_paged_stash": 1.1},
        ),
        (
            {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"},
            {"exp_avg_dtype": "bfloat16"},
        ),
        ({"exp_avg_dtype": "bf16"}, {"exp_avg_dtype": None}),
        ({"enable_cuda_graph": True, "cuda_graph_scope": "attn moe_router"}, {"cuda_graphs": "attn+moe_router"}),
        ({"external_cuda_graph": True, "cuda_graph_scope": "full"}, {"cuda_graphs": "layer"}),
        ({"cuda_graph_impl": "local", "cuda_graph_scope": "full_iteration"}, {"cuda_graphs": "full"}),
        ({"cuda_graph_impl": "full_iteration"}, {"cuda_graphs": "full"}),
        ({"cuda_graph_impl": "none", "cuda_graph_modules": "attn"}, {"cuda_graphs": None}),
    ],
)
def test_flags_of_experts_and_of_cuda_graphs_are_read(tmp_path: Path, given: dict, words: dict) -> None:
    found = read(tmp_path, "train.sh", f"torchrun pretrain_gpt.py {flags(ARGUMENTS | EXPERTS | given)}")
    assert {word: found.options.get(word) for word in words} == words
    left = {one.name for one in found.ignored}
    assert (
        left & {name for name in given if not name.endswith("modules") or words != {"cuda_graphs": None}} == set()
    )


def test_a_flag_of_experts_that_means_nothing_is_refused(tmp_path: Path) -> None:
    for given, said in (
        ({"moe_token_dispatcher_type": "ring"}, "must be alltoall, alltoall_seq, allgather or flex: got 'ring'"),
        ({"moe_expert_capacity_factor": -1}, "must be a number above 0: got -1"),
        ({"moe_hybridep_num_sms": 0}, "moe_hybridep_num_sms must be a whole number of 1 or more: got 0"),
        (
            {"use_precision_aware_optimizer": True, "exp_avg_dtype": "int4"},
            "must be fp32, bf16, fp16, fp8: got int4",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            read(tmp_path, "train.sh", f"torchrun pretrain_gpt.py {flags(ARGUMENTS | EXPERTS | given)}")


def test_experts_without_a_fused_weighted_activation_are_understood(tmp_path: Path) -> None:
    """Megatron-LM fuses the routing weights into SwiGLU, and into the square of ReLU if it is told to."""
    line = "python t.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 --num-experts 8"
    for flags, apart in (("", True), ("--swiglu", False), ("--use-fused-weighted-squared-relu", False)):
        model = read(tmp_path, "x.sh", f"{line} {flags}").model
        assert isinstance(ffn := model.layers[0].ffn, MixtureOfExperts)
        assert ffn.expert.weighted_apart is apart
        assert ffn.grouped is False
    model = read(tmp_path, "x.sh", f"{line} --moe-grouped-gemm").model
    assert isinstance(ffn := model.layers[0].ffn, MixtureOfExperts)
    assert ffn.grouped is True


@pytest.mark.parametrize(("written", "is_learned"), [("none", False), ("rope", False), ("learned_absolute", True)])
@pytest.mark.parametrize("suffix", ["sh", "yaml", "log"])
def test_only_learned_positions_have_a_table(tmp_path: Path, suffix: str, written: str, is_learned: bool) -> None:
    """Megatron-LM, language_model_embedding.py: `position_embedding_type == 'learned_absolute'`."""
    sizes = {
        "num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1000, "micro_batch_size": 1,
        "max_position_embeddings": 2048, "position_embedding_type": written,
    }  # fmt: skip
    text = {
        "sh": "pretrain_gpt.py " + " ".join(f"--{name.replace('_', '-')} {value}" for name, value in sizes.items()),
        "yaml": "model:\n" + "".join(f"  {name}: {value}\n" for name, value in sizes.items()),
        "log": "".join(f"  {name} ........ {value}\n" for name, value in sizes.items()),
    }[suffix]
    model = read(tmp_path, f"run.{suffix}", text).model
    assert model is not None
    assert model.learned_positions == (2048 if is_learned else 0)


@pytest.mark.parametrize(
    ("zero", "given", "overlaps"),
    [
        ("--use-distributed-optimizer", "", (False, False)),
        ("--use-distributed-optimizer", "--overlap-grad-reduce", (True, False)),
        ("--use-distributed-optimizer", "--overlap-grad-reduce --overlap-param-gather", (True, True)),
        ("", "--overlap-grad-reduce", (True, None)),  # nothing is gathered
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", "", (True, False)),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "", (True, True)),
    ],
)
def test_megatron_overlaps_the_reduction_and_the_gather_by_options_of_their_own(
    tmp_path: Path, zero: str, given: str, overlaps: tuple[bool, bool | None]
) -> None:
    """Megatron-FSDP switches them on for sharded gradients and parameters (megatron_fsdp.py, `__init__`)."""
    words = read(tmp_path, "x.sh", f"pretrain_gpt.py --micro-batch-size 1 {zero} {given}\n").options
    assert (words.get("overlap_grad_reduce"), words.get("overlap_param_gather")) == overlaps


@pytest.mark.parametrize(
    ("zero", "overlaps"), [({"stage": 1, "overlap_comm": True}, (True, False)), ({"stage": 3}, (True, True)),
                           ({"stage": 2}, (False, False)), ({"stage": 3, "overlap_comm": False}, (False, False))],
)  # fmt: skip
def test_deepspeed_overlaps_gathers_in_zero_3_only(
    tmp_path: Path, zero: dict[str, object], overlaps: tuple[bool, bool]
) -> None:
    content = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero}
    words = read(tmp_path, "ds.json", json.dumps(content)).options
    assert (words["overlap_grad_reduce"], words["overlap_param_gather"]) == overlaps


BRIDGE = "model:\n  num_layers: 4\n  hidden_size: 256\n  num_attention_heads: 8\n  vocab_size: 1000\n"


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("mixed_precision: bf16_mixed", "bfloat16"),
        ("mixed_precision: bf16-mixed", "bfloat16"),
        ("mixed_precision: fp16_mixed", "float16"),
        ("mixed_precision: nanov2_bf16_with_fp8_current_scaling_mixed", "float8"),
        ("mixed_precision: bf16_with_fp8_subchannel_scaling_mixed", "float8-block"),
        ("mixed_precision: bf16_with_mxfp8_mixed", "mxfp8"),
        ("mixed_precision: bf16_with_nvfp4_mixed", "nvfp4"),
        ("mixed_precision: {bf16: true}", "bfloat16"),
        ("trainer: {precision: bf16}", "bfloat16"),
        ("trainer: {precision: 16}", "float16"),
        ("trainer: {precision: 32-true}", "float32"),
        ("trainer: {plugins: {precision: bf16-mixed, fp8: hybrid}}", "float8"),
        ("train: {micro_batch_size: 1}", None),
        ("mixed_precision: {bf16: false, fp16: false}", "float32"),
    ],
)
def test_the_number_format_of_megatron_bridge_and_nemo_by_its_name(
    tmp_path: Path, text: str, dtype: str | None
) -> None:
    found = read(tmp_path, "x.yaml", f"{BRIDGE}{text}\n")
    assert found.options.get("dtype") == dtype
    assert {one.name for one in found.ignored} <= {"first_last_layers_bf16"}


@pytest.mark.parametrize(
    ("groups", "number"), [("  num_query_groups: 2\n", 2), ("  num_query_groups: null\n", 8), ("", 8)]
)
def test_query_groups_of_megatron_bridge_need_no_flag(tmp_path: Path, groups: str, number: int) -> None:
    """`num_query_groups` of Megatron-Core's TransformerConfig; `--group-query-attention` is only a command's flag."""
    model = read(tmp_path, "x.yaml", f"{BRIDGE}{groups}").model
    assert model is not None
    assert model.layers[0].attention.num_kv_heads == number  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "text", "offload"),
    [
        ("x.sh", "pretrain_gpt.py --num-layers 8 --micro-batch-size 1 --cpu-offloading-num-layers 2\n", 0.25),
        ("x.sh", "pretrain_gpt.py --num-layers 8 --micro-batch-size 1 --cpu-offloading-num-layers 0\n", None),
        ("x.yaml", "model: {num_layers: 8, cpu_offloading: true, cpu_offloading_num_layers: 2}\n", 0.25),
        ("x.yaml", "model: {num_layers: 8, cpu_offloading: false, cpu_offloading_num_layers: 2}\n", None),
    ],
)
def test_the_number_of_layers_switches_megatrons_offload_on(
    tmp_path: Path, name: str, text: str, offload: float | None
) -> None:
    assert read(tmp_path, name, text).options.get("offload") == offload


@pytest.mark.parametrize(
    ("size", "window"), [("[-1, -1]", None), ("[-1, 0]", None), ("null", None), ("[127, 0]", 128)]
)
def test_a_window_of_minus_1_is_none(tmp_path: Path, size: str, window: int | None) -> None:
    model = read(tmp_path, "x.yaml", f"{BRIDGE}  window_size: {size}\n").model
    assert model is not None
    assert model.layers[0].attention.window == window  # type: ignore[union-attr]


@pytest.mark.parametrize(("device", "ignored"), [("none", []), (None, []), ("cpu", ["device", "pin_memory"])])
def test_deepspeed_offloads_to_a_device_or_not(tmp_path: Path, device: str | None, ignored: list[str]) -> None:
    section = {"device": device, "pin_memory": True}
    content = {"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_optimizer": section}}
    found = read(tmp_path, "ds.json", json.dumps(content)).ignored
    assert [one.name.rpartition(".")[2] for one in found] == ignored


def test_ignored_values_that_json_does_not_have_are_written_as_text(tmp_path: Path) -> None:
    (tmp_path / "bridge.yaml").write_text(
        "model: {num_layers: 4, hidden_size: 256, num_attention_heads: 4, seq_length: 128, vocab_size: 1000}\n"
        "train: {micro_batch_size: 1, global_batch_size: 8, frobnicate: .inf, others: [.nan, 2]}\n"
        "mixed_precision: {bf16: true}\n"
    )
    ignored = {one["name"]: one["value"] for one in read_run_config(tmp_path / "bridge.yaml").to_json()["ignored"]}
    assert (ignored["frobnicate"], ignored["others"]) == ("inf", "[nan, 2]")


def test_nemo_1_by_its_own_names(tmp_path: Path) -> None:
    """The names of NeMo's megatron_gpt_config.yaml: Llama 2 7B, all layers recomputed."""
    text = (
        "trainer: {devices: 8, num_nodes: 1, precision: bf16}\nmodel:\n  micro_batch_size: 1\n  global_batch_size: 8\n"
        "  tensor_model_parallel_size: 2\n  encoder_seq_length: 4096\n  max_position_embeddings: ${.encoder_seq_length}\n"
        "  num_layers: 32\n  hidden_size: 4096\n  ffn_hidden_size: 11008\n  num_attention_heads: 32\n  vocab_size: 32000\n"
        "  normalization: rmsnorm\n  activation: fast-swiglu\n  bias: false\n  position_embedding_type: rope\n"
        "  share_embeddings_and_output_weights: false\n  activations_checkpoint_granularity: full\n"
        "  activations_checkpoint_method: uniform\n  activations_checkpoint_num_layers: 1\n"
        "  data: {seq_length: '${model.encoder_seq_length}'}\n"
    )
    found = read(tmp_path, "nemo.yaml", text)
    assert found.model is not None
    assert found.model.parameters == find_model("llama2-7b").parameters
    assert (found.options["recompute"], found.options["dtype"], found.options["seq_len"]) == (
        "full",
        "bfloat16",
        4096,
    )
    assert found.ignored == ()


@pytest.mark.parametrize("reference", ["${model.b}", "${.b}", "${.missing}", "${model}", "${multiply:2}"])
def test_a_reference_to_nothing_or_to_itself_is_not_resolved(tmp_path: Path, reference: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"{BRIDGE}  b: '${{.seq_length}}'\n  seq_length: '{reference}'\n")
    with pytest.raises(ConfigError, match=r"seq_length is .*, which the file does not set"):
        ppsim.project(run_config=path, pp=1)


@pytest.mark.parametrize(
    ("optim", "words"),
    [
        ("{name: distributed_fused_adam}", (1, True, False)),
        ("{name: distributed_fused_adam, overlap_grad_sync: true, overlap_param_sync: true}", (1, True, True)),
        ("{name: mcore_distributed_optim}", (1, False, False)),
        ("{name: fused_adam, overlap_grad_sync: true}", (0, False, None)),
        ("fused", (0, False, None)),
    ],
)
def test_nemo_1_names_a_distributed_optimizer(
    tmp_path: Path, optim: str, words: tuple[int, bool, bool | None]
) -> None:
    found = read(tmp_path, "nemo.yaml", f"{BRIDGE}  optim: {optim}\n").options
    assert (found["zero"], found["overlap_grad_reduce"], found.get("overlap_param_gather")) == words


@pytest.mark.parametrize(
    ("precision", "num_bytes"),
    [
        ("--fp16", 2),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", 4),
        ("--bf16", 4),
        ("--bf16 --grad-reduce-in-bf16", 2),
        ("--bf16 --accumulate-allreduce-grads-in-fp32", 4),
    ],
)
def test_gradients_have_the_bytes_of_megatron(tmp_path: Path, precision: str, num_bytes: int) -> None:
    flags = f"--num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1 {precision}"
    (tmp_path / "train.sh").write_text(f"pretrain_gpt.py {flags}")
    made = ppsim.project(run_config=tmp_path / "train.sh", gpus=1)
    assert made.plan.job is not None
    assert made.plan.job.optimizer.bytes_of_gradient == num_bytes
    is_wide = "--accumulate-allreduce-grads-in-fp32" in ppsim.trainer_options(made, "megatron")
    assert is_wide == (num_bytes == 4 and "--fp16" in precision)


@pytest.mark.parametrize(
    ("content", "dtype", "in_16_bits"),
    [
        ({"bf16": {"enabled": True}}, "bfloat16", True),
        ({"bfloat16": {"enabled": True}}, "bfloat16", True),
        ({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}, "bfloat16", False),
        ({"fp16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}, "float16", False),
        ({"bf16": {"enabled": False}}, "float32", None),
    ],
)
def test_deepspeed_has_gradients_in_the_dtype_of_weights(
    tmp_path: Path, content: dict[str, Any], dtype: str, in_16_bits: bool | None
) -> None:
    found = read(tmp_path, "ds.json", json.dumps({"train_micro_batch_size_per_gpu": 2, **content}))
    assert found.options["dtype"] == dtype
    assert found.options.get("grad_reduce_in_bf16") is in_16_bits
    assert not found.ignored


@pytest.mark.parametrize("launch", ["--nproc_per_node gpu", "--nproc-per-node=auto", "--nproc_per_node $N --nnodes 2",
                                    "--nproc_per_node 8 --nnodes 2:4"])  # fmt: skip
def test_a_launcher_that_counts_gpus_itself_leaves_their_number_open(tmp_path: Path, launch: str) -> None:
    flags = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1 --bf16"
    found = read(tmp_path, "train.sh", f"torchrun {launch} pretrain_gpt.py {flags}")
    assert "gpus" not in found.options
    assert any("the file leaves the number of GPUs open" in note for note in found.notes)


@pytest.mark.parametrize(("kinds", "context"), [("a2a", "all-to-all"), ("p2p", None), ("a2a p2p", None)])
def test_context_parallelism_may_differ_by_layer(tmp_path: Path, kinds: str, context: str | None) -> None:
    flags = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1 --bf16"
    found = read(tmp_path, "train.sh", f"pretrain_gpt.py {flags} --context-parallel-size 2 --cp-comm-type {kinds}")
    assert found.options.get("context") == context
    assert any("cp_comm_type a2a+p2p is not known" in note for note in found.notes) == (kinds == "a2a p2p")


@pytest.mark.parametrize(
    ("reshards", "pp", "zero"),
    [("default", 1, 3), ("never", 1, 2), ("always", 1, 3), ("default", 2, 1), ("never", 2, 1), ("always", 2, 3)],
)
def test_torchtitan_keeps_weights_whole_unless_it_reshards(
    tmp_path: Path, reshards: str, pp: int, zero: int
) -> None:
    text = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 4\nseq_len = 8192\n[parallelism]\n'
        f'pipeline_parallel_degree = {pp}\nfsdp_reshard_after_forward = "{reshards}"\n'
    )
    found = read(tmp_path, "train.toml", text)
    assert found.options["zero"] == zero
    assert not found.ignored


@pytest.mark.parametrize(
    ("name", "text", "size"),
    [
        ("t.sh", "pretrain_gpt.py --num-layers 2 --hidden-size 768 --num-attention-heads 12 --swiglu", 2048),
        ("t.sh", "pretrain_gpt.py --num-layers 2 --hidden-size 768 --num-attention-heads 12 --quick-geglu", 3072),
        ("t.sh", "pretrain_gpt.py --num-layers 2 --hidden-size 768 --num-attention-heads 12", 3072),
        ("b.yaml", "model:\n  num_layers: 2\n  hidden_size: 768\n  num_attention_heads: 12\n  vocab_size: 1000\n"
         "  gated_linear_unit: true\n  pipeline_model_parallel_size: 1\n  ffn_hidden_size: null\n", 3072),
    ],
)  # fmt: skip
def test_the_feed_forward_has_the_trainers_default_size(tmp_path: Path, name: str, text: str, size: int) -> None:
    model = read(tmp_path, name, text).model
    assert model is not None
    assert model.layers[0].ffn.size == size


def test_model_args_may_name_sections_of_megatron_bridge(tmp_path: Path) -> None:
    found = read(
        tmp_path, "bridge.yaml",
        "MODEL_ARGS:\n  trainer.num_nodes: 2\n  model.num_layers: 4\n  model.pipeline_model_parallel_size: 2\n",
    )  # fmt: skip
    assert found.source.endswith("bridge.yaml")
    assert (found.options["pp"], found.options["stack"]) == (2, "megatron-bridge")


def test_only_ignored_options_with_an_effect_on_memory_are_named_next_to_a_peak() -> None:
    ignored = (
        IgnoredOption("a", 1, "memory"), IgnoredOption("b", 2, "time"), IgnoredOption("c", 3, "time and memory"),
    )  # fmt: skip
    found = RunConfig("Megatron-LM", "x.sh", {}, None, "", (), ignored)
    assert found.ignored_memory_options == (ignored[0].in_words, ignored[2].in_words)
