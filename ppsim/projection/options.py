"""Every option of a job and of a plan, declared once.

Made from these declarations: the options of `ppsim project` and `ppsim tune` with their help
(`cli/click_options.py`), the keywords of `ppsim.job`, `ppsim.project` and `ppsim.tune` (`api/keyword_options.py`),
the fields of `Job` and `Plan` that they set, and the command that a search prints (`tuning/command_line.py`). It
imports nothing heavy, because help pages import it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from ppsim.base.option_declarations import Option
from ppsim.machine.choices import CLUSTER, Dispatcher
from ppsim.model.cuda_graphs import MEANING as CAPTURED
from ppsim.model.cuda_graphs import CudaGraphs
from ppsim.model.fine_tuning import MEANING_OF_FREEZE, MEANING_OF_LORA
from ppsim.model.losses import CrossEntropy
from ppsim.model.offloading import MEANING as OFFLOADED
from ppsim.model.recompute import MEANING, Recompute
from ppsim.schedule.choices import Channel, Receives, Update

if TYPE_CHECKING:
    from ppsim.costs.job import Job
    from ppsim.costs.profile import Profile
    from ppsim.machine.cluster import Cluster
    from ppsim.runs.calibrate import Calibration
    from ppsim.trainers.run_config import RunConfig

Runtime = Literal["torch", "megatron", "ideal"]
Stack = Literal[
    "plain", "megatron-bridge", "megatron-lm-2021", "megatron-lm-2022", "deepspeed-2021", "torchtitan", "primus"
]

GPT = "gpt"
"""The name of a model by its sizes."""

Dtype = Literal["bfloat16", "float16", "float8", "float8-row", "float8-block", "mxfp8", "nvfp4", "mxfp4", "float32"]

GROUP_SIZE = Option(
    "Microbatches that go through one chunk before the next (interleaved-1f1b only). Default: the fewest that are "
    "allowed, pp where pp divides the microbatches.",
    metavar="N", section="pipeline", after="microbatches", field="group_size",
    also=("--microbatch-group-size-per-virtual-pipeline-stage",),
)  # fmt: skip
SLICES = Option(
    "Slices of each microbatch's sequence (seq1f1b only). Default: 4.",
    metavar="N", section="pipeline", field="num_slices",
)  # fmt: skip
OVERLAP_P2P = Option(
    "Overlap P2P transfers of interleaved-1f1b in its steady state (--runtime megatron). Default: on.",
    section="runtime", field="overlap_p2p", has_no=True, flag="--overlap-p2p-communication",
)  # fmt: skip
CHANNEL = Option(
    "Which transfers queue behind each other: none, those of a directed edge, of a pair of ranks, of a "
    "direction, or all of a rank. Default: the runtime's, or the costs file's.",
    section="runtime", field="channel",
)  # fmt: skip
RECEIVES = Option(
    "Where receives are posted: early as torch does, just before use, or by the sender's order. Default: what the "
    "costs file says, else {default}.",
    section="runtime", field="receives", default="torch",
)  # fmt: skip
OVERHEADS = Option(
    "What a run adds to compute and transfers, as fitted by `ppsim calibrate`. Default: nothing.",
    metavar="FILE", section="measured",
)  # fmt: skip
RUNTIME = Option(
    "Which runtime's transfers and special cases are assumed; ideal is what papers assume. Default: {default}, or "
    "the trainer's of --run-config.",
    section="runtime", field="runtime", default="torch",
)  # fmt: skip
SEQUENCE_PARALLEL = Option(
    "Divide norms and residuals among tensor-parallel ranks too. Default: on if tp > 1.",
    section="cluster", after="order", field="job.execution.sequence_parallel", has_no=True,
)  # fmt: skip


# fmt: off
class StudyOptions(TypedDict, total=False):
    """A job whose layout is not decided; `ppsim tune --help` has each word's meaning and default."""

    model: Annotated[str | Path | None, Option(
        "A model of `ppsim models`, a Hugging Face config.json, a trainer's configuration, or gpt: one of --layers "
        "of --hidden and --heads.",
        names="model", metavar="NAME|FILE", section="model",
    )]
    run_config: Annotated["str | Path | RunConfig | None", Option(
        "Trainer configuration that sets the options that are not given: Megatron-LM script, YAML or log, Primus "
        "experiment, TorchTitan TOML or flags, Megatron-Bridge, NeMo, DeepSpeed.",
        metavar="FILE", section="model",
    )]
    recipe: Annotated[str | None, Option(
        "Recipe that sets the options that are not given: model, layout, batch, precision, cluster and number of "
        "GPUs of a run as its trainer publishes it, a name of `ppsim recipes`. Default: none.",
        names="recipe", metavar="NAME[@RELEASE]", section="model",
    )]
    cluster: Annotated["str | Path | Cluster | None", Option(
        "Cluster on which costs are estimated: a name of `ppsim clusters`, or your own file. Default: {default}.",
        names="cluster", metavar="NAME|FILE", section="cluster", default=CLUSTER,
    )]
    gpus: Annotated[int | None, Option(
        "Number of GPUs; dp is what the other sizes leave. Default: tp · cp · dp · pp; `tune` needs it.",
        metavar="N", section="cluster",
    )]
    order: Annotated[str | None, Option(
        "Order of ranks: neighbours in the first dimension are nearest. Default: {default}.",
        metavar="tp-cp-ep-dp-pp", section="cluster", field="job.layout.order", default="tp-cp-ep-dp-pp",
    )]
    etp: Annotated[int | None, Option(
        "Tensor-parallel ranks of an expert; ep · etp then divides tp · cp · dp. Default: tp, and ep divides cp · "
        "dp.",
        metavar="N", section="cluster", field="job.layout.etp", also=("--expert-tensor-parallel-size",),
    )]
    global_batch: Annotated[int | None, Option(
        "Sequences per step. Default: 4 · pp microbatches per data-parallel rank; `tune` needs it.",
        metavar="N", section="model", field="job.global_batch",
    )]
    dtype: Annotated[Dtype | None, Option(
        "Number format of GEMMs. 8 bits: one scale per tensor (float8, current or delayed), per row (float8-row), "
        "per block of 128 (float8-block) or of 32 (mxfp8); 4 bits: per 16 (nvfp4) or 32 (mxfp4). "
        "Default: {default}.",
        metavar="bfloat16|float16|float32|float8|…", section="model", field="job.execution.dtype",
        default="bfloat16",
    )]
    optimizer: Annotated[Literal["adam", "muon"] | None, Option(
        "Optimizer. Default: {default}.",
        section="optimizer", field="job.optimizer.name", default="adam",
    )]
    fully_shard: Annotated[bool | None, Option(
        "Shard by torch's fully_shard (FSDP2): float32 shards of weights, gradients and moments. Default: off, "
        "Megatron-LM's distributed optimizer.",
        section="optimizer", field="job.fully_shard", default=False, has_no=True,
    )]
    gradient_accumulation_fusion: Annotated[bool | None, Option(
        "Accumulate weight gradients inside the GEMM (main_grad). Default: on.",
        section="optimizer", field="job.gradient_accumulation_fusion", default=True, has_no=True, is_hidden=True,
    )]
    wgrad_deferral_limit: Annotated[int | None, Option(
        "Microbatches whose weight gradient of the output layer waits for the end of the step (0: all), as with "
        "Megatron-LM's --defer-embedding-wgrad-compute in a pipeline: the gradients of their logits are held. "
        "Memory only, the time is as without. Default: none waits.",
        metavar="N", section="optimizer", field="job.wgrad_deferral_limit", default=None, is_hidden=True,
    )]
    grad_reduce_in_bf16: Annotated[bool | None, Option(
        "Accumulate and reduce gradients in 16 bits. Default: off (32 bits), except for float16.",
        section="optimizer", field="job.optimizer.grad_reduce_in_bf16", default=False, has_no=True,
    )]
    layer_wise: Annotated[bool | None, Option(
        "Shard the update by whole layers, as users of Muon do. Default: off (evenly).",
        section="optimizer", field="job.optimizer.layer_wise", default=False, has_no=True, is_hidden=True,
    )]
    num_distributed_optimizer_instances: Annotated[int | None, Option(
        "Groups of replicas that each share optimizer state, or with ZeRO 2 and 3 gradients and parameters, among "
        "themselves; gradients are summed among groups (HSDP). Default: {default}.",
        metavar="N", section="optimizer", field="job.optimizer.num_distributed_optimizer_instances", default=1,
    )]
    exp_avg_dtype: Annotated[Literal["float32", "bfloat16", "float16", "float8"] | None, Option(
        "Number format of both of Adam's moments (Megatron-LM's --exp-avg-dtype and --exp-avg-sq-dtype). "
        "Default: {default}.",
        metavar="float32|bfloat16|float16|float8", section="optimizer", field="job.optimizer.exp_avg_dtype",
        default="float32",
    )]
    optimizer_offload_fraction: Annotated[float | None, Option(
        "Part, 0 to 1, of the parameters whose optimizer state is in host memory and whose update runs on the host "
        "(Megatron-LM's --optimizer-cpu-offload). Default: {default}.",
        metavar="PART", section="optimizer", field="job.optimizer.offload_fraction", default=0.0,
    )]
    overlap_cpu_optimizer_d2h_h2d: Annotated[bool | None, Option(
        "Overlap the update on the host with its copies, parameter by parameter. Default: gradients go to the host "
        "before it, and weights back after it.",
        section="optimizer", field="job.optimizer.overlap_cpu_optimizer_d2h_h2d", default=False, has_no=True,
        is_hidden=True,
    )]
    stack: Annotated[Stack | None, Option(
        "Framework whose defaults apply to options that are not given: plain, megatron-bridge, torchtitan or "
        "primus. Default: {default}, or the trainer of --run-config.",
        metavar="NAME", section="cluster", field="job.stack", default="plain",
    )]
    hidden: Annotated[int | None, Option(
        "Width, of --model gpt.", metavar="N", section="model", after="model", also=("--hidden-size",),
    )]
    heads: Annotated[int | None, Option(
        "Heads, of --model gpt.", metavar="N", section="model", also=("--num-attention-heads",),
    )]
    vocab: Annotated[int | None, Option("Words it knows, of --model gpt. Default: 50257.", metavar="N",
        section="model", also=("--vocab-size",),
    )]
    kv_heads: Annotated[int | None, Option(
        "Heads of keys and values, of --model gpt. Default: as many as --heads.", metavar="N", section="model",
        also=("--num-query-groups",),
    )]
    tied_embeddings: Annotated[bool | None, Option(
        "Tie the head of --model gpt to its embedding. Default: on.", section="model", has_no=True,
    )]
    mtp: Annotated[bool | None, Option(
        "Train the multi-token prediction (MTP) of the model. Default: on if the model has one.",
        section="model", has_no=True,
    )]
    mtp_num_layers: Annotated[int | None, Option(
        "Further tokens that are predicted, each by a layer. Default: the model's.", metavar="N", section="model",
        least=0,
    )]
    mtp_use_repeated_layer: Annotated[bool | None, Option(
        "Use one MTP layer for all further tokens. Default: off, a layer for each.", section="model",
        is_hidden=True,
    )]
    lora: Annotated[str | int | None, Option(
        MEANING_OF_LORA + " Default: none; modules linear_qkv+linear_proj+linear_fc1+linear_fc2.",
        metavar="RANK[:MODULE+MODULE…]", section="model", field="job.lora", default="",
    )]
    freeze: Annotated[str | None, Option(
        MEANING_OF_FREEZE + " Default: none.",
        metavar="MODULE+MODULE…", section="model", field="job.freeze", default="",
    )]
    attention: Annotated[Literal["fused", "unfused"] | None, Option(
        "Attention kernel: fused (FlashAttention) or unfused (score matrix in memory). Default: {default}.",
        section="model", after="recompute", field="job.execution.attention", default="fused",
    )]
    dropout: Annotated[bool | None, Option(
        "Apply dropout after attention, the token mixer and the channel mixer. Default: off.",
        section="model", field="job.execution.dropout", default=False, has_no=True,
    )]
    cross_entropy: Annotated[CrossEntropy | None, Option(
        "How the loss is computed: fused, one kernel that keeps no copy of the logits (TransformerEngine); "
        "compiled, by torch.compile (Megatron-LM's native fusion); or unfused. The last two keep a float32 copy. "
        "Default: {default}.",
        section="model", field="job.execution.cross_entropy", default="fused",
    )]
    deterministic_mode: Annotated[bool | None, Option(
        "Run deterministic kernels only (torch and TransformerEngine), and fill allocated memory. Default: off.",
        section="model", field="job.execution.deterministic_mode", default=False, has_no=True,
    )]
    compile: Annotated[bool | None, Option(
        "Fuse the operators between GEMMs with torch.compile, as TorchTitan does, or run them one by one. Default: "
        "by --stack; else the fused kernels of Megatron-LM and TransformerEngine.",
        section="model", field="job.execution.compile", default=None, has_no=True,
    )]
    context: Annotated[Literal["ring", "all-to-all", "all-gather"] | None, Option(
        "Exchange of keys and values among cp ranks: ring, all-to-all of heads, or all-gather. Default: {default}.",
        section="cluster", field="job.execution.context", default="ring",
    )]
    overlap_tp: Annotated[str | float | None, Option(
        "Hidden part of tensor-parallel communication, 0 to 1: one number, or forward and backward. n pieces of "
        "userbuffers hide 1 - 1/n. Default: {default}.",
        metavar="PART|PART,PART", section="cluster", default="0",
    )]
    overlap_ep: Annotated[str | float | None, Option(
        "Overlap of expert-parallel communication with the compute of another microbatch: the order of operations "
        "in a pair of a forward and a backward (megatron, megatron-delay-wgrad, dualpipe or best), or the hidden "
        "part, 0 to 1. Default: {default}.",
        metavar="ORDER|PART", section="cluster", field="job.execution.overlap_ep", default=0.0,
    )]
    overlap_cp: Annotated[float | None, Option(
        "Hidden part of the context-parallel communication that attention does not hide, 0 to 1. Default: "
        "{default}.",
        metavar="PART", section="cluster", field="job.execution.hidden_cp", default=0.0,
    )]
    scatter_gather: Annotated[bool | None, Option(
        "Send 1/tp of each P2P message per tp rank, and all-gather it after the transfer. Default: off.",
        section="cluster", field="job.scatter_gather", default=False, has_no=True, is_hidden=True,
    )]
    compute_share: Annotated[str | float | None, Option(
        "Multiplier on GEMM and attention throughput, relative to the calibrated value of the GPU type: a number, "
        "or one per dtype. Default: the cluster's constants, else 1.",
        metavar="NUMBER|DTYPE:NUMBER,…", section="cluster", field="job.execution.compute_share",
    )]
    cuda_graphs: Annotated[CudaGraphs | None, Option(
        CAPTURED + " Default: {default}.",
        metavar="none|layer|full|MODULE+MODULE…", section="model", field="job.execution.cuda_graphs",
        default="none",
    )]
    cuda_graph_reuse: Annotated[bool | None, Option(
        "Share inputs and outputs among graphs of microbatches that are not in flight together (TransformerEngine "
        "2.7 or newer). Default: on.",
        section="model", field="job.cuda_graph_reuse", default=True, has_no=True, is_hidden=True,
    )]
    launch_ms: Annotated[float | None, Option(
        "Host time of a launch by the schedule, one an action and two a message. Default: the cluster's, else 0.",
        metavar="MS", section="cluster",
    )]
    rest: Annotated[float | None, Option(
        "Extra fixed time per step. Default: {default}.",
        metavar="SECONDS", section="model", field="job.rest_s", default=0.0,
    )]
    update: Annotated[Update | None, Option(
        "Pipeline ranks before the optimizer: synchronised (wait for all gradients) or post-validated. "
        "Default: {default}.",
        section="optimizer", field="job.update", default="synchronised",
    )]
    moe_dispatcher: Annotated[Dispatcher | None, Option(
        "How tokens go to their experts: deepep or hybridep (once to each node and rank that has one), alltoall "
        "(once for each expert), allgather (to all ranks). Default: {default}.",
        section="cluster", field="job.execution.moe_dispatcher", default="deepep",
    )]
    expert_imbalance: Annotated[float | None, Option(
        "Tokens that the busiest rank's experts get, of the mean; 1 is even. Default: {default}.",
        metavar="FACTOR", section="model", field="job.execution.expert_imbalance", default=1.0,
    )]
    moe_expert_capacity_factor: Annotated[float | None, Option(
        "Tokens that each expert is padded or cut to, of the mean. Default: as many as come.",
        metavar="FACTOR", section="model", field="job.execution.expert_capacity",
    )]
    fused_experts: Annotated[bool | None, Option(
        "Run the experts of a rank as one grouped GEMM with activation and cast (TransformerEngine's op fuser). "
        "Default: off.",
        section="model", field="job.execution.fused_experts", default=False, has_no=True,
    )]
    moe_expert_rank_capacity_factor: Annotated[float | None, Option(
        "Tokens that a rank's experts have room for, of the mean, so that no counts are waited for and a graph can "
        "hold a dropless exchange; hybridep and fused experts only. Default: as many as come.",
        metavar="FACTOR", section="model", field="job.execution.expert_rank_capacity", is_hidden=True,
    )]
    moe_paged_stash: Annotated[float | None, Option(
        "Room for what experts keep for the backward, of the mean, in pages (Megatron-LM's buffer size factor), "
        "beside a rank capacity. Default: none, all the room there is.",
        metavar="FACTOR", section="model", field="job.execution.paged_stash", is_hidden=True,
    )]
    overlap_dp: Annotated[bool | None, Option(
        "Overlap gradient reduce-scatter and parameter all-gather with compute. Default: on.",
        section="optimizer", field="job.overlap", default=True, has_no=True,
    )]


class JobOptions(StudyOptions, total=False):
    """A job with its layout; `ppsim project --help` has each word's meaning and default."""

    pp: Annotated[int | None, Option(
        "Pipeline ranks. Must be given, here or by --run-config.",
        metavar="N", section="pipeline", field="job.layout.pp",
        also=("--pipeline-model-parallel-size",),
    )]
    microbatches: Annotated[int | None, Option(
        "Microbatches per step and data-parallel rank. Default: 4 · pp.",
        metavar="N", section="pipeline", field="microbatches",
    )]
    layers: Annotated[int | None, Option(
        "Layers of the model. Default: the model's own, or the profile's.",
        metavar="N", section="model", after="model", field="num_layers", also=("--num-layers",),
    )]
    seq_len: Annotated[int | None, Option(
        "Tokens per sequence. Default: the model's, or the profile's.",
        metavar="TOKENS", section="model", field="job.sequence_length", also=("--seq-length",),
    )]
    micro_batch: Annotated[int | None, Option(
        "Sequences per microbatch. Default: 1 with --model, else the profile's.",
        metavar="N", section="model", field="job.micro_batch",
    )]
    recompute: Annotated[Recompute | None, Option(
        MEANING + " Default: none, or the profile's; without --model the profile must have it.",
        metavar="none|full|MODULE+MODULE…", section="model", after="dtype",
        field="job.execution.recompute",
    )]
    offload: Annotated[float | None, Option(
        "Part of the activations, 0 to 1, that waits for its backward in host memory. Default: {default}.",
        metavar="PART", section="model", field="job.offload", default=0.0,
    )]
    offload_modules: Annotated[str | None, Option(
        OFFLOADED + " Default: none.",
        metavar="MODULE+MODULE…", section="model", field="job.offload_modules", default="",
    )]
    min_offloaded_tensor_size: Annotated[int | None, Option(
        "Elements of the smallest tensor that --offload-modules sends to the host. Default: {default}.",
        metavar="N", section="model", field="job.offload_rules.min_offloaded_tensor_size", default=2**20,
        is_hidden=True,
    )]
    activation_offload_fraction: Annotated[float | None, Option(
        "Part, 0 to 1, of what --offload-modules names that goes to the host, by number of modules: those of a "
        "stage's first layers. Default: {default}.",
        metavar="PART", section="model", field="job.offload_rules.activation_offload_fraction", default=1.0,
        is_hidden=True,
    )]
    max_inflight_offloads: Annotated[int | None, Option(
        "Copies to the host of a module of --offload-modules that may be on their way before the forward waits "
        "for the oldest. Default: any number.",
        metavar="N", section="model", field="job.offload_rules.max_inflight_offloads",
        also=("--fine-grained-offloading-max-inflight-offloads",), is_hidden=True,
    )]
    tp: Annotated[int | None, Option(
        "Tensor-parallel ranks. Default: 1, or the profile's; without --model it is the profile's or estimated.",
        metavar="N", section="cluster", after="gpus", field="job.layout.tp",
        also=("--tensor-model-parallel-size",),
    )]
    cp: Annotated[int | None, Option(
        "Context-parallel ranks. Default: 1, or the profile's; without --model the profile must have it.",
        metavar="N", section="cluster", field="job.layout.cp", also=("--context-parallel-size",),
    )]
    ep: Annotated[int | None, Option(
        "Expert-parallel ranks. Default: 1, or the profile's; without --model it is the profile's or estimated.",
        metavar="N", section="cluster", field="job.layout.ep", also=("--expert-model-parallel-size",),
    )]
    dp: Annotated[int | None, Option(
        "Data-parallel ranks. Default: what --gpus leaves, else 1.",
        metavar="N", section="cluster", field="job.layout.dp",
    )]
    zero: Annotated[Literal[0, 1, 2, 3] | None, Option(
        "ZeRO stage: replicas share optimizer state (1, Megatron-LM's distributed optimizer), gradients too (2), "
        "parameters too (3). Default: {default}.",
        metavar="0|1|2|3", section="optimizer", after="optimizer",
        field="job.optimizer.zero_stage", default=1,
    )]
    sequence_parallel: Annotated[bool | None, SEQUENCE_PARALLEL]
    profile: Annotated["str | Path | Profile | None", Option(
        "Measured costs: a file of `ppsim profile`, or the name of a packaged profile. Default: zb-a100-6.2b "
        "without --model; with one, costs are estimated.",
        names="profile", metavar="NAME|FILE", section="measured", field="job.profile",
    )]


class PlanOptions(JobOptions, total=False):
    """A plan, of a job or of a profile; `ppsim project --help` has each word's meaning and default."""

    vpp: Annotated[int | None, Option(
        "Stages per rank; more than one interleaves. Default: the fewest that the schedule takes.",
        metavar="N", section="pipeline", after="pp", field="vpp",
        also=("--num-virtual-stages-per-pipeline-rank",),
    )]
    schedule: Annotated[str | None, Option(
        "A name from `ppsim schedules`, several or all of them to compare, or auto: the best that a search "
        "finds. Default: 1f1b, or interleaved-1f1b for vpp > 1.",
        names="schedule", metavar="NAME|NAME,NAME,…|all|auto", section="pipeline", field="schedule",
    )]
    gradient_accumulation_steps: Annotated[int | None, Option(
        "Pipeline rounds per optimizer step, each drained before the next, as in TorchTitan (its "
        "gradient_accumulation_steps). They share the microbatches equally. With DeepSpeed and Megatron-LM all "
        "microbatches are one round. Default: {default}.",
        metavar="N", section="pipeline", after="microbatches", field="gradient_accumulation_steps", default=1,
    )]
    group_size: Annotated[int | None, GROUP_SIZE]
    slices: Annotated[int | None, SLICES]
    split: Annotated[str | Sequence[int] | None, Option(
        "Layers per stage: auto (shortest simulated iteration that fits), even, megatron (Megatron-LM's own "
        "rule), numbers as 2,3,3,2, "
        "or its layout string as Et*3|(tt|)*6,t*2L. Default: auto; megatron with --runtime megatron.",
        metavar="auto|even|megatron|N,N,…|LAYOUT", section="pipeline", field="split",
    )]
    stage_plan: Annotated[str | Path | None, Option(
        "Layers, recomputation and offloaded modules of each stage: a TOML, YAML or JSON file with a list `stages` "
        "of layers, recompute and offload_modules, each as its option has it; or auto: those with the shortest "
        "simulated iteration that fit. Default: every stage as --split, --recompute and --offload-modules say.",
        flag="--plan", metavar="FILE|auto", section="pipeline",
    )]
    account_for_embedding_in_pipeline_split: Annotated[bool | None, Option(
        "Megatron-LM's rule with the embedding as a layer of the first stage.",
        section="pipeline", field="split.counts_embedding", is_hidden=True,
    )]
    account_for_loss_in_pipeline_split: Annotated[bool | None, Option(
        "Megatron-LM's rule with head and loss as a layer of the last stage.",
        section="pipeline", field="split.counts_loss", is_hidden=True,
    )]
    decoder_first_pipeline_num_layers: Annotated[int | None, Option(
        "Megatron-LM's rule with so many layers on the first rank.",
        metavar="N", section="pipeline", field="split.first", least=0, is_hidden=True,
    )]
    decoder_last_pipeline_num_layers: Annotated[int | None, Option(
        "Megatron-LM's rule with so many layers on the last rank.",
        metavar="N", section="pipeline", field="split.last", least=0, is_hidden=True,
    )]
    stragglers: Annotated[Mapping[int, float] | None, Option(
        "A rank that computes more slowly: 3:1.2 is rank 3, taking 1.2 times as long. May be repeated.",
        metavar="RANK:FACTOR", section="pipeline", field="stragglers", flag="--straggler",
    )]
    lengths: Annotated[str | Path | Sequence[int] | None, Option(
        "Sequence lengths in tokens, one per line, from which a step draws its own. Default: all have --seq-len.",
        metavar="FILE", section="pipeline", field="lengths",
    )]
    job: "Job | None"
    forward_ms: Annotated[float | str | Sequence[float] | None, Option(
        "Measured: a microbatch's forward on a rank, all of its stages together, or one a stage, in order, as "
        "10,12,12,14; with the two halves of the backward. No time is estimated then, and nothing is around the "
        "pipeline.",
        metavar="MS|MS,MS,…", section="measured",
    )]
    backward_input_ms: Annotated[float | str | Sequence[float] | None, Option(
        "Measured: the input gradients of a microbatch on a rank, or one a stage.",
        metavar="MS|MS,MS,…", section="measured",
    )]
    backward_weight_ms: Annotated[float | str | Sequence[float] | None, Option(
        "Measured: its weight gradients.", metavar="MS|MS,MS,…", section="measured",
    )]
    transfer_ms: Annotated[float | str | Sequence[float] | None, Option(
        "Milliseconds from a stage to the next, for the profile's; beside --forward-ms also one behind each stage.",
        metavar="MS|MS,MS,…", section="measured", field="transfer_s",
    )]
    activation_memory: Annotated[str | float | Sequence[float] | None, Option(
        "Measured: what a microbatch's forward keeps on a rank, all of its stages together, as 2GiB, or one a "
        "stage; beside --forward-ms. Default: what model or profile say.",
        metavar="SIZE|SIZE,SIZE,…", section="measured",
    )]
    run: Annotated[str | Path | None, Option(
        "Recorded run (file or folder for `ppsim read`) whose times per stage and overheads are used, for another "
        "schedule, vpp, split or number of microbatches of its job. [default of these: the run's]",
        metavar="PATH", section="measured", after="profile",
    )]
    overheads: Annotated["str | Path | Calibration | None", OVERHEADS]
    runtime: Annotated[Runtime | None, RUNTIME]
    channel: Annotated[Channel | None, CHANNEL]
    receives: Annotated[Receives | None, RECEIVES]
    overlap_p2p: Annotated[bool | None, OVERLAP_P2P]
    memory_limit: Annotated[str | float | None, Option(
        "Usable memory per rank, exit 1 if exceeded. For example 80GiB or 80GB. Default: 95 % of the device's.",
        metavar="SIZE", section="runtime", field="memory_limit_bytes",
    )]
    search_time: Annotated[float | None, Option(
        "How long to search. Default: {default} s; less where the bound is met.",
        metavar="SECONDS", section="search", field="search_s", default=10.0,
    )]
    seed: Annotated[int | None, Option(
        "Seed of the search's random choices, and of what is drawn of --sequence-lengths. Default: {default}.",
        metavar="N", section="search", field="seed", default=0,
    )]
