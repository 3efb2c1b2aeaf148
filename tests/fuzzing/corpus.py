"""Small valid files of every format that ppsim reads."""

import json
import os
import tomllib
from importlib import resources
from pathlib import Path

import yaml

import ppsim
from ppsim.base.files import data_folder
from ppsim.schedule.grammar import format_table
from ppsim.trainers.table_json import table_to_json
from tests.cli.conftest import ANSWER, COSTS, RUNS
from tests.runs.test_readers import LOG, csv_of, dump_of, export_of, timeline_of
from tests.runtime.traces import traces_of
from tests.trainers.megatron.test_read_trace import as_console, as_otlp, resource_of, spans_of

LLAMA = {
    "model_type": "llama", "hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 1000,
    "intermediate_size": 256, "num_hidden_layers": 4, "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 128, "num_attention_heads": 2, "vocab_size": 1000, "intermediate_size": 256,
    "num_hidden_layers": 4, "max_position_embeddings": 128, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
}  # fmt: skip
OVERHEADS = {
    "format": "ppsim-overheads/1", "action_overhead_s": 0.001, "hop_overhead_s": 0.001, "overlap_slowdown": 0.1,
    "latency_s": 0.001, "bandwidth_bytes_per_s": 1e9, "not_fitted": {"step_overhead_s": "one step"},
    "samples": {"action_overhead_s": {"num": 3, "quartiles": [0.1, 0.2, 0.3]}}, "hops": [], "residuals": [],
    "fitted_runs": ["d54ed47bbf1f2aa7f7f3ca2b0d36a16c3c3b0e4ae4dc0ed3f7f2f8c6d2f2a3b1"],
}  # fmt: skip
MEGATRON = {
    "--num-layers": 4, "--hidden-size": 256, "--num-attention-heads": 4, "--seq-length": 128, "--vocab-size": 1000,
    "--max-position-embeddings": 128, "--micro-batch-size": 1, "--global-batch-size": 8, "--bf16": True,
    "--tensor-model-parallel-size": 1, "--pipeline-model-parallel-size": 2, "--use-distributed-optimizer": True,
    "--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": 1,
}  # fmt: skip
EXPERTS = MEGATRON | {
    "--num-experts": 8, "--moe-router-topk": 2, "--moe-ffn-hidden-size": 128, "--moe-layer-freq": "([0]*1+[1]*3)",
    "--expert-model-parallel-size": 2, "--moe-shared-expert-intermediate-size": 128, "--swiglu": True,
}  # fmt: skip
HYBRID = MEGATRON | {"--hybrid-layer-pattern": "M*-M", "--window-size": "(128,0)", "--is-hybrid-model": True}
SCRIPT = """#!/bin/bash
# A run that "we" don't start
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=${GPUS:-8}; NODES=1
N=$(( 2 * ${LAYERS:-2} ))
NOTE="bob's run"
MODEL_ARGS=(
    --num-layers $N   # layers
    --hidden-size 256
    --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128
)
MODEL_ARGS+=(--vocab-size 1000)
TRAIN="--micro-batch-size 1 --global-batch-size 8 --bf16"
torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py ${MODEL_ARGS[@]} $TRAIN \\
    --pipeline-model-parallel-size 2 "--wandb-exp-name=$NOTE" --recompute-modules core_attn layernorm 2>&1 | tee log
"""
TITAN_FLAGS = (
    "CONFIG_FILE=${CONFIG_FILE:-llama3_8b.toml}\ntorchrun --nproc_per_node=8 -m torchtitan.train --model.name llama3 --model.flavor 8B "
    "--parallelism.pipeline_parallel_degree 4 --parallelism.pipeline_parallel_schedule 1F1B --training.local_batch_size 8 "
    "--training.seq_len 128 --parallelism.data_parallel_shard_degree 2\n"
)
TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
seq_len = 128
mixed_precision_param = "bfloat16"
[parallelism]
pipeline_parallel_degree = 2
data_parallel_shard_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
"""
EXPERIMENT = """
work_group: ${TEAM:amd}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: small.yaml
    overrides:
      micro_batch_size: 2
      global_batch_size: ${GLOBAL_BATCH:16}
      pipeline_model_parallel_size: 2
"""
BRIDGE = {
    "model": {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "seq_length": 128, "vocab_size": 1000,
              "pipeline_model_parallel_size": 2},
    "train": {"micro_batch_size": 1, "global_batch_size": 8}, "ddp": {"overlap_grad_reduce": True},
    "mixed_precision": {"bf16": True},
}  # fmt: skip
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8, "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1, "overlap_comm": True},
}  # fmt: skip
PLAN = """
[[stages]]
layers = 5
recompute = "full*2,mlp*1"
[[stages]]
layers = 7
recompute = "block/3"
offload_modules = "core_attn"
"""
TRACE = {
    "baseTimeNanoseconds": 0,
    "distributedInfo": {"rank": 0, "world_size": 1},
    "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": f"PP:0{op}{batch}", "ts": 10 * at, "dur": 8, "pid": 1, "tid": 1, "args": {}}
        for at, (op, batch) in enumerate([("F", 0), ("F", 1), ("B", 0), ("B", 1)] * 3)
    ],
}  # fmt: skip
TUNED = {
    "model": "gpt2",
    "gpus": 2,
    "global_batch": 4,
    "cluster": "dgx-h100",
    "seq_len": 128,
    "schedule": ["1f1b", "gpipe"],
}
"""A search that `state.json` belongs to, as words of `ppsim.tune`."""


def write_corpus(folder: Path) -> None:
    """Write the valid files into a folder, which becomes the current one."""
    os.chdir(folder)
    table = ppsim.build("interleaved-1f1b", pp=2, vpp=2, microbatches=4)
    whole = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, transfer_s=0.125)
    Path("T.csv").write_text(format_table(table))
    Path("dual.csv").write_text(format_table(ppsim.build("dualpipev", pp=2, microbatches=6)))
    Path("comms.csv").write_text(ppsim.export(ppsim.build("zb-h1", pp=2, microbatches=4), to="torch-comms"))
    ppsim.save(ppsim.project(pp=2, microbatches=4), "projected.json")
    _write_json(
        {
            "t.json": table_to_json(table),
            "C.json": COSTS | {"forward_s": [1.0] * 4, "transfer_s": {"latency_s": 0.1, "bytes": 8, "bandwidth_bytes_per_s": 100}},
            "matrix.json": COSTS | {"forward_s": [[1.0, 1.5, 1.0, 1.0]] * 4},
            "overheads.json": OVERHEADS, "llama.json": LLAMA, "deepseek.json": DEEPSEEK, "deepspeed.json": DEEPSPEED,
            "bridge.json": BRIDGE, "tune.json": ANSWER, "trace.json": TRACE,
            "measured.json": _measured(ppsim.simulate(table, whole), whole),
        }
    )  # fmt: skip
    _write_configurations()
    profile = json.loads((data_folder("profiles") / "zb-a100-6.2b.json").read_text())
    cluster = (resources.files("ppsim.machine") / "data" / "clusters" / "dgx-h100.toml").read_text()
    cluster += "[constants]\ncompute_share = { bfloat16 = 0.9 }\njitter = { value = 0.01, source = 'guessed' }\n"
    _write_json({"profile.json": profile, "cluster.json": _spelled(tomllib.loads(cluster))})
    Path("cluster.toml").write_text(cluster)
    Path("cluster.yaml").write_text(yaml.safe_dump(tomllib.loads(cluster)))
    Path("runs.csv").write_text(RUNS)
    Path("plan.toml").write_text(PLAN)
    Path("lengths.txt").write_text("100\n37\n128\n64\n" * 2)
    step = timeline_of("1f1b", pp=2, microbatches=2)
    dump_of([step] * 3, folder / "dump")
    csv_of([step] * 3, folder / "passes.csv")
    export_of(traces_of([step] * 3, gap_s=0.1, cuda=True), folder / "run.sqlite")
    for name, form in (("otlp.jsonl", as_otlp), ("console.jsonl", as_console)):
        Path(name).write_text("\n".join(form(resource_of(rank, 2, 1), spans_of(step, rank)) for rank in range(2)))
    Path("train.log").write_text(LOG)
    ppsim.tune(**TUNED, resume="state.json")


def _write_json(files: dict[str, object]) -> None:
    for name, content in files.items():
        Path(name).write_text(json.dumps(content))


def _measured(timeline: ppsim.Timeline, costs: ppsim.StageCosts) -> dict[str, object]:
    ppsim.save(timeline, "measured.json", costs=costs)
    measured = json.loads(Path("measured.json").read_text())
    times = measured["timeline"]
    steps = {
        "between_steps_s": [0.1], "message_bytes": 1000.0, "knows_transfers": True,
        "start_s": [times["start_s"]] * 2, "end_s": [times["end_s"]] * 2,
    }  # fmt: skip
    return dict(measured | {"origin": "measured", "run": {"emulated": True}, "steps": steps})


def _spelled(cluster: dict[str, object]) -> dict[str, object]:
    """A cluster whose device and link are not named but written out."""
    device = {
        "name": "Own", "efficiency": "h100", "num_cores": 132, "memory_bytes": 8.5e10, "memory_bytes_per_s": 3e12,
        "peak_flops_per_s": {"bfloat16": 989e12},
    }  # fmt: skip
    tiers = [
        {"name": "node", "num_devices": 8, "link": {"bytes_per_s": 4.5e11}},
        {"name": "cluster", "link": {"bytes_per_s": 5e10, "efficiency": 0.8}},
    ]
    return {"format": "ppsim-cluster/1", "name": "own", "device": device, "tiers": tiers}


def _write_configurations() -> None:
    for name, arguments in (("megatron", MEGATRON), ("experts", EXPERTS), ("hybrid", HYBRID)):
        Path(f"{name}.yaml").write_text(yaml.safe_dump({"MODEL_ARGS": arguments}))
    lines = [f"  {name[2:].replace('-', '_')} {'.' * (40 - len(name))} {value}" for name, value in MEGATRON.items()]
    Path("arguments.log").write_text("using world size: 2\n---- arguments ----\n" + "\n".join(lines) + "\n")
    Path("train.sh").write_text(SCRIPT)
    Path("titan.sh").write_text(TITAN_FLAGS)
    Path("titan.toml").write_text(TITAN)
    Path("bridge.yaml").write_text(yaml.safe_dump(BRIDGE))
    Path("experiment.yaml").write_text(EXPERIMENT)
    for kind in ("models", "modules"):
        Path(f"primus/configs/{kind}/megatron").mkdir(parents=True)
    Path("primus/configs/modules/megatron/pre_trainer.yaml").write_text("use_distributed_optimizer: true\n")
    base = {name[2:].replace("-", "_"): value for name, value in MEGATRON.items() if name[2] in "hnmvs"}
    Path("primus/configs/models/megatron/base.yaml").write_text(yaml.safe_dump(base))
    Path("primus/configs/models/megatron/small.yaml").write_text("extends: [base.yaml]\nswiglu: true\n")
