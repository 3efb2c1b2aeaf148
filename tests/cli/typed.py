"""Command lines that type every option of every command at least once, each small and fast.

`CASES` has, per base command line, the options typed after it. An option text is typed in the form that its help
shows. The output must differ from the output of the base, unless the text is marked: `same` (accepted, and this small
case has nothing that it changes, for example because it is the default), `infeasible` (exit 1 is the point).
"""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from ppsim import StageCosts, build, simulate
from ppsim.costs.profile import packaged_profiles
from ppsim.schedule.grammar import format_table
from ppsim.schedule.table import Op
from tests.cli.conftest import ANSWER, COSTS, RUNS
from tests.cli.running import ppsim


@dataclass(frozen=True)
class Typed:
    """A command line: the base's words and an option's; what is expected of it."""

    base: str
    option: str
    changes: bool = True
    code: int = 0

    @property
    def words(self) -> list[str]:
        """What is typed behind `ppsim`."""
        return shlex.split(f"{self.base} {self.option}")


def same(option: str) -> tuple[str, bool, int]:
    """An option that changes nothing in its case."""
    return option, False, 0


def infeasible(option: str) -> tuple[str, bool, int]:
    """An option with which the command ends with exit 1."""
    return option, True, 1


JOB = (
    "project --model gpt --layers 4 --hidden 256 --heads 4 --gpus 8 --tp 2 --pp 2 --global-batch-size 8 --seq-len 256 "
    "--micro-batch-size 2 --stack plain --json"
)
EXPERTS = (
    "project --model qwen3-30b-a3b --layers 4 --gpus 8 --pp 2 --ep 2 --global-batch-size 8 --seq-len 256 --json"
)
GRAPHS = f"{EXPERTS} --cuda-graphs layer --moe-expert-capacity-factor 1"
PADDED = f"{EXPERTS} --moe-dispatcher hybridep --fused-experts"
STASHED = f"{PADDED} --moe-expert-rank-capacity-factor 1.5"
PREDICTING = (
    "project --model deepseek-v3 --layers 4 --gpus 4 --pp 2 --ep 2 --global-batch-size 4 --seq-len 256 --json"
)
PLANNED = "project --pp 2 --num-microbatches 8 --json"
MEASURED = f"{PLANNED} --forward-ms 10 --backward-input-ms 10 --backward-weight-ms 8"
MEGATRON = f"{JOB} --runtime megatron"

OF_JOBS = [  # those that `project` and `tune` share
    "--price 2",
    "--rank-order tp-pp-cp-ep-dp", "--dtype float8", "--dtype fp16", "--optimizer muon", "--zero 3", "--zero 0",
    "--bucket-size 1000", "--document-length 64",
    "--wgrad-deferral-limit 2", "--num-distributed-optimizer-instances 2", "--fully-shard", same("--no-fully-shard"), "--no-gradient-accumulation-fusion",
    same("--gradient-accumulation-fusion"), "--grad-reduce-in-bf16", same("--no-grad-reduce-in-bf16"),
    same("--no-layer-wise"), "--exp-avg-dtype bfloat16",
    "--optimizer-offload-fraction 0.5", "--optimizer-offload-fraction 1 --overlap-cpu-optimizer-d2h-h2d",
    same("--no-overlap-cpu-optimizer-d2h-h2d"),
    "--stack megatron-bridge", "--stack torchtitan", "--vocab 1000", "--kv-heads 2", same("--tied-embeddings"),
    "--no-tied-embeddings", "--attention unfused", "--dropout", same("--no-dropout"), same("--cross-entropy fused"),
    "--cross-entropy unfused", "--cross-entropy compiled", "--cross-entropy unfused --deterministic-mode", same("--no-deterministic-mode"),
    "--lora 4", "--lora 4:linear_qkv+linear_fc2", "--freeze norms+mixer", "--freeze embedding+layers@0-1",
    "--compile", "--no-compile", "--overlap-tp 0.5", "--overlap-tp 0.9,0.5", "--no-sequence-parallel --scatter-gather",
    same("--no-scatter-gather"), "--compute-scale 0.9", "--compute-scale bfloat16:0.8,float8:0.9",
    "--cuda-graphs layer", "--cuda-graphs attn+mlp", "--launch-ms 0.1", "--extra-step-time 0.01", "--optimizer-sync post-validated",
    same("--overlap-dp"), "--no-overlap-dp", same("--overlap-grad-reduce"), same("--overlap-param-gather"),
    "--no-overlap-grad-reduce", "--no-overlap-param-gather", "--cluster dgx-a100", "--cluster mine.toml",
    same("--sequence-parallel"), "--no-sequence-parallel", "--layers 8", "--hidden 512", "--heads 8",
    "--seq-len 512", "--global-batch-size 16", "--runtime ideal",
    "--use-precision-aware-optimizer", same("--no-use-precision-aware-optimizer"),
    "--bf16-master-weights-and-grads", same("--no-bf16-master-weights-and-grads"),
    "--optimizer muon --layer-wise --no-use-layer-wise-param-layout", same("--use-layer-wise-param-layout"),
    "--zero 3 --num-distributed-optimizer-instances 2 --outer-dp-sharding-strategy optim",
]  # fmt: skip
OF_NARROW_WEIGHTS = [
    "--fp8-param-gather",
    same("--no-fp8-param-gather"),
    "--weight-cache rowwise",
    "--num-layers-at-start-in-bf16 1",
    "--num-layers-at-end-in-bf16 1",
]
OF_NARROW_ACTIVATIONS = ["--activation-func-fp8-input-store", same("--no-activation-func-fp8-input-store")]
OF_EXPERTS = [
    "--moe-dispatcher alltoall", "--moe-dispatcher allgather", "--moe-flex-dispatcher-num-sms 32 --overlap-ep 0.5", "--expert-imbalance 1.5",
    "--moe-expert-capacity-factor 1.2", "--fused-experts", same("--no-fused-experts"), "--overlap-ep 0.5",
    "--no-moe-permute-fusion", same("--moe-permute-fusion"),
    same("--no-moe-use-legacy-grouped-gemm"),
]  # fmt: skip
SEEING = "project --model qwen3-vl-2b --layers 4 --gpus 2 --pp 2 --global-batch-size 4 --seq-len 1024 --json"
PREDICTIONS = [same("--mtp"), "--no-mtp", "--mtp-num-layers 2", "--mtp-num-layers 2 --mtp-use-repeated-layer"]

OF_PROJECT = {
    JOB: [
        *OF_JOBS, "--optimizer muon --layer-wise", "--tp 1", "--pp 4", same("--dp 2"),
        "--micro-batch-size 1", "--recompute full", "--recompute layernorm+core_attn", "--offload 0.5", "--offload-modules core_attn+attn_proj --min-offloaded-tensor-size 0",
        "--offload-modules core_attn+attn_proj --min-offloaded-tensor-size 0 --activation-offload-fraction 0.5",
        "--offload-modules core_attn+attn_proj --min-offloaded-tensor-size 0 --max-inflight-offloads 0", "--cp 2",
        "--cp 2 --cp-comm-type all-gather", "--cp 2 --overlap-cp 0.5", "--vpp 2", "--schedule zb-h1", "--profile tiny.json",
        "--tokens 1e9", "--tokens 15e12", "--to-config megatron", "--to-config primus",
        "--to-config torchtitan", "--sequence-lengths L.txt", "--memory-limit 80GiB", infeasible("--memory-limit 1MiB"), same("--allow-oom"),
        "--plan P.toml",
        "--gpus 16",
    ],
    EXPERTS.replace("project", "project --cluster mi355x-8", 1): ["--moe-use-legacy-grouped-gemm"],
    EXPERTS: [*OF_EXPERTS, same("--etp 1"), "--ep 4"],
    SEEING: ["--image-tokens 2x64", "--image-tokens 0", "--text-only", same("--no-text-only"), "--freeze encoder+projector"],
    GRAPHS: [same("--cuda-graph-reuse"), "--no-cuda-graph-reuse"],
    f"{JOB} --dtype float8": OF_NARROW_WEIGHTS,
    f"{EXPERTS} --dtype float8": OF_NARROW_ACTIVATIONS,
    PADDED: ["--moe-expert-rank-capacity-factor 1.5"],
    STASHED: ["--moe-paged-stash 1.2"],
    PREDICTING + " --memory-limit 900GiB": PREDICTIONS,
    PLANNED: [
        "--vpp 2", "--vpp 2 --schedule interleaved-1f1b --group-size 4", "--schedule zb-h1,1f1b",
        "--schedule auto --search-time 0.2 --seed 3", "--schedule seq1f1b --slices 2", "--split even", "--split 14,16",
        same("--split auto"), "--split megatron", "--split Et*14|t*16L", "--account-for-embedding-in-pipeline-split --layers 31",
        "--account-for-loss-in-pipeline-split --layers 31 --allow-oom", "--decoder-first-pipeline-num-layers 14",
        "--decoder-last-pipeline-num-layers 14 --allow-oom", "--straggler 1:1.2", "--straggler 1:1.2 --straggler 0:1.1",
        "--sequence-lengths L.txt --allow-oom", "--sequence-lengths L.txt --seed 2 --allow-oom", "--transfer-ms 5", "--calibration overheads.json",
        "--runtime megatron", "--runtime ideal", "--channel edge", "--channel ideal --receives deferred", "--layers 20", "--run run.csv",
        "--profile tiny.json", same("--seq-len 1024"), same("--micro-batch-size 3"), same("--tp 1"), same("--recompute none"),
        "--tokens 1e9", "--memory-limit 80GiB",
    ],
    "project --pp 4 --vpp 2 --num-microbatches 8 --runtime megatron --json": [
        same("--overlap-p2p-communication"), "--no-overlap-p2p-communication",
    ],
    MEASURED: [
        "--forward-ms 10,12", "--backward-input-ms 10,12", "--backward-weight-ms 8,9,8,9", "--transfer-ms 1",
        "--transfer-ms 1,0", "--activation-memory 2GiB", "--activation-memory 2GiB,1GiB",
    ],
    "project --run slow.csv --json": ["--without 1", "--without 'slow ranks 2'"],
    "project --run-config train.sh --json": ["--tp 1"],
    "project --run-config open.sh --json": ["--set MBS=2", same("--launch 1"), same("--ignore noop-layers")],
    "project --recipe llama3-8b/h100/bf16@26.06 --json": ["--global-batch-size 256", same("--cp 2")],
    "project --pp 2 --num-microbatches 8": [
        "--gradient-accumulation-steps 2",
        "--timeline", same("--no-timeline"), "--rows", "--full", "--help-all", "--json", "-o step.json", "-o step.html",
        "-o step.svg", "-o step.csv", "-o step.json.gz", "--output step.pdf",
    ],
}  # fmt: skip

SEARCH = (
    "tune --model gpt --layers 4 --hidden 256 --heads 4 --gpus 8 --tp 2 --pp 2 --micro-batch-size 1 --stack plain --schedule 1f1b "
    "--global-batch-size 8 --seq-len 256 --json"
)
OF_TUNE = {
    SEARCH: [
        *(option for option in OF_JOBS if option != same("--sequence-parallel")), "--sequence-parallel", "--optimizer muon --layer-wise", "--tp 1,2", "--pp 1,2", "--cp 1,2", "--cp 2 --cp-comm-type all-to-all",
        "--cp 2 --overlap-cp 0.5", "--dp 2", "--dp 1,2,4 --pp 1,2,4", "--vpp 1,2", "--micro-batch-size 1,2", "--schedule 1f1b,zb-h1",
        "--recompute full", "--recompute none,core_attn+layernorm", "--split even", same("--split auto,even"), same("--plan auto"),
        "--memory-limit 40GiB", "--memory-share 0.5", "--calibration overheads.json", "--top 1", same("--jobs 1"),
        "--tokens 1e9", "--tokens 1e9 --deadline 99", "--minimise time", same("--resume kept.json"), "--schedule 1f1b,auto --search-time 0.1 --seed 4",
        "--to-config megatron", "--gpus 16", "--zero 3",
    ],
    f"{SEARCH} --dtype float8": OF_NARROW_WEIGHTS,
    EXPERTS.replace("project", "tune") + " --micro-batch-size 1 --tp 1 --schedule 1f1b --vpp 1 --dtype float8": OF_NARROW_ACTIVATIONS,
    SEEING.replace("project", "tune") + " --tp 1 --micro-batch-size 1 --schedule 1f1b --vpp 1": [
        "--image-tokens 2x64", "--text-only", same("--no-text-only"),
    ],
    EXPERTS.replace("project", "tune") + " --micro-batch-size 1 --tp 1 --schedule 1f1b --vpp 1": [
        *OF_EXPERTS, "--moe-use-legacy-grouped-gemm --cluster mi355x-8", "--etp 1", "--cuda-graphs attn --no-cuda-graph-reuse", "--cuda-graphs attn --cuda-graph-reuse",
        "--moe-dispatcher hybridep --fused-experts --moe-expert-rank-capacity-factor 1.5",
        "--moe-dispatcher hybridep --fused-experts --moe-expert-rank-capacity-factor 1.5 --moe-paged-stash 1.2",
    ],
    PREDICTING.replace("project", "tune") + " --tp 1 --micro-batch-size 1 --schedule 1f1b --vpp 1 --memory-limit 900GiB": PREDICTIONS,
    SEARCH.replace("--json", ""): ["--full", "--help-all", "--json", "-o tune.json", "-o tune.csv", "-o tune.svg"],
    "tune --run-config train.sh --tp 2 --pp 2 --schedule 1f1b --vpp 1 --json": ["--gpus 16", "--keep micro-batch-size"],
    "tune --run-config open.sh --tp 2 --pp 2 --schedule 1f1b --vpp 1 --micro-batch-size 1 --json": ["--set GBS=16", same("--launch 1"), same("--ignore noop-layers")],
    "tune --recipe llama3-8b/h100/bf16@26.06 --tp 1 --cp 2 --pp 1 --schedule 1f1b --recompute none --micro-batch-size 1 --json": [
        "--gpus 16",
    ],
}  # fmt: skip
OF_TABLES = {
    "build auto --pp 2 --num-microbatches 4 --costs C.json --time-limit 0.2": [
        "--placement v", "--criterion span", same("--max-rounds 1"), same("--seed 2"), "--vpp 2",
        same("--memory-limit 80GiB"), "-o auto.csv",
    ],
    "build interleaved-1f1b --pp 4 --num-microbatches 8": ["--vpp 4", "--group-size 8", "--pp 2", "-o T2.json"],
    "build seq1f1b --pp 2 --num-microbatches 4": ["--slices 2"],
    "build zb-auto --pp 2 --num-microbatches 4 --costs C.json": ["--memory-limit 2GiB"],
    "check T.csv": ["--json"],
    "sweep jobs.csv -o swept.csv --restart": [same("--jobs 1"), same("--backend processes")],
    "check dualpipe.csv --replicas 2": ["--json"],
    "check seq1f1b.csv --slices 4": ["--json"],
    "simulate T.csv --costs C.json": [
        "--communication blocking", "--channel rank", "--calibration overheads.json",
        same("--timeline"), "--no-timeline", same("--rows"), "--json", "-o s.json", same("--receives deferred"),
    ],
    "simulate dualpipe.csv --costs C.json --replicas 2": ["--json"],
    "simulate seq1f1b.csv --costs C.json --slices 4": ["--json"],
    "export T.csv --to torch-comms -o out.csv": ["--receives deferred", same("--torch-version 2.12")],
    "export T.csv --to torchtitan -o titan.csv": [
        "--trainer-version 0.2", "--split 1,2,2,2,2,2,2,1", "--micro-batch-size 2",
    ],
    "export T.csv --to megatron -o run.txt --split 2,2,2,2,2,2,2,2": ["--layers-by counts"],
    "export zbv.csv --to primus -o primus.json": ["--replace v-half"],
    "export dualpipe.csv --to json -o d.json --replicas 2": [],
    "export seq1f1b.csv --to json -o s.json --slices 4": [],
    "schedules": ["--json", "zbv"],
    "clusters": ["--json", "dgx-h100", "mine.toml"],
    "recipes": [
        "--json", "llama3 gb200", "llama3-8b/h100/bf16@26.06", "--model llama3-8b", "--device gb200",
        "--precision nvfp4", "--trainer primus", "--release 26.08",
    ],
    "recipes megatron-bridge": ["--full"],
    "models": ["--json", "--full", "llama3-8b"],
    "models llama3-8b": ["--seq-len 1024"],
    "warm-up v-flex": [],
}  # fmt: skip
OF_RUNS = {
    "read run.csv": [
        same("--schedule T.csv"), same("--pattern '(?P<kind>fwd|bwd)-(?P<microbatch>.+)'"), "--warm-up 0", "--timeline", same("--no-timeline"), same("--rows"), "--json", "-o run.json",
    ],
    "explain run.csv": ["--ranks 5", "--full", "--against C.json", "--against '--pp 4 --vpp 2 --num-microbatches 8'", "--json", "-o why.md"],
    "compare run.csv": ["--calibration overheads.json", "--fit fitted.json", same("--rows"), "--json", "-o both.html"],
    "calibrate run.csv": [
        same("--schedule T.csv"), "--costs C.json", "--warm-up 0", "-o overheads2.json", "--json",
    ],
    "fit runs.csv --rows one": ["-o fitted.json", "--json"],
    "fit run.json --run-config train.sh": ["--cluster dgx-a100"],
    "validate runs.csv": [
        "--json", same("--rows"), same("--full"), "--commands", "--fit-on 1", "-o validated.csv",
    ],
    "validate zero-bubble-sync": ["--markdown", ("--leave-source-out", True, 2)],
    "validate mlperf-405b": ["--fit"],
}  # fmt: skip
OF_FIGURES = {
    "figure memory simulated.json -o m.svg": ["--memory-limit 80GiB", "--title T", "--width one-column"],
    "figure pareto ANSWER.json -o p.svg": ["--title T", "--width one-column"],
    "figure timeline simulated.json -o t.svg": [
        "--title T", "--panels compute,memory", same("--critical-path"), "--no-critical-path",
        "--memory-limit 80GiB", "--width one-column",
    ],
}  # fmt: skip
CASES = OF_PROJECT | OF_TUNE | OF_TABLES | OF_RUNS | OF_FIGURES


SCRIPT = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 8192 --num-attention-heads 64 \\
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 8 --vocab-size 32000 \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1 --bf16
"""
CLUSTER = 'format = "ppsim-cluster/1"\nname = "mine"\ndevice = "h200"\n[[tiers]]\nname = "node"\nlink = "nvlink4"\n'
OVERHEADS = {
    "format": "ppsim-overheads/1", "action_overhead_s": 1e-3, "hop_overhead_s": 1e-3, "overlap_slowdown": 0.1,
    "step_overhead_s": 0.01,
}  # fmt: skip


def write_inputs(folder: Path) -> None:
    """Write the files that the cases name into a folder."""
    tables = {
        "T.csv": build("interleaved-1f1b", pp=4, vpp=2, microbatches=8),
        "zbv.csv": build("zbv-fixed", pp=4, microbatches=8),
        "dualpipe.csv": build("dualpipe", pp=4, microbatches=8),
        "seq1f1b.csv": build("seq1f1b", pp=4, microbatches=8),
    }
    texts = {name: format_table(table) for name, table in tables.items()} | {
        "C.json": json.dumps(COSTS),
        "runs.csv": RUNS,
        "jobs.csv": "model,gpus,pp\ngpt2,2,1\ngpt2,2,2\n",
        "ANSWER.json": json.dumps(ANSWER),
        "overheads.json": json.dumps(OVERHEADS),
        "L.txt": "".join(f"{tokens}\n" for tokens in range(100, 4000, 37)),
        "train.sh": SCRIPT,
        "open.sh": SCRIPT.replace("batch-size 1 ", "batch-size ${MBS:-1} ").replace(
            "batch-size 8 ", "batch-size ${GBS:-8} "
        ),
        "P.toml": '[[stages]]\nlayers = 3\nrecompute = "full*2"\n\n[[stages]]\nlayers = 1\n',
        "mine.toml": CLUSTER,
        "run.csv": passes_of_three_steps(),
        "slow.csv": passes_of_three_steps(1.5),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "tiny.json").write_text(packaged_profiles()["zb-a100-1.5b"].read_text())
    ppsim("read", folder / "run.csv", "-o", folder / "run.json")
    ppsim("simulate", folder / "T.csv", "--costs", folder / "C.json", "-o", folder / "simulated.json")


def passes_of_three_steps(slow: float = 1.0) -> str:
    """A recording as `ppsim read` takes it: three steps of T.csv; forwards of rank 2 are `slow`."""
    table = build("interleaved-1f1b", pp=4, vpp=2, microbatches=8)
    forward_s = np.where(table.stage_to_rank == 2, 0.02 * slow, 0.02)
    costs = StageCosts(forward_s=forward_s, backward_input_s=0.02, backward_weight_s=0.014, transfer_s=1e-3)
    step = simulate(table, costs)
    lines = ["rank,kind,stage,microbatch,start,end"]
    for number in range(3):
        for action in range(len(table)):
            start, end = (
                float(value[action]) + number * (step.step_time_s + 0.01) for value in (step.start, step.end)
            )
            rank, op = table.rank[action], Op(int(table.op[action])).name
            lines.append(f"{rank},{op},{table.stage[action]},{table.microbatch[action]},{start!r},{end!r}")
    return "\n".join(lines) + "\n"


def outcome_of(case: Typed) -> tuple[str, list[bytes]]:
    """What a command line of the cases prints, and the files that it writes."""
    result = ppsim(*case.words, code=case.code)
    written = [Path(path) for flag, path in pairwise(case.words) if flag in ("-o", "--output")]
    return result.stdout + result.stderr, [path.read_bytes() for path in written]


def typed() -> Iterator[Typed]:
    """Every command line of the cases, each base before its options."""
    for base, options in CASES.items():
        yield Typed(base, "", changes=False)
        for option in options:
            yield Typed(base, option) if isinstance(option, str) else Typed(base, *option)
