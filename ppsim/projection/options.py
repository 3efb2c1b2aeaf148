"""Every option of a job and of a plan, declared once for the command line, the Python functions, `Job` and `Plan`.

Help pages import this module, so it imports nothing heavy.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from ppsim.base.option_declarations import Option
from ppsim.base.user_defaults import CLUSTER, Dispatcher
from ppsim.model.cuda_graphs import MEANING as CAPTURED
from ppsim.model.cuda_graphs import CudaGraphs
from ppsim.model.encoder import MEANING_OF_IMAGES
from ppsim.model.execution import CrossEntropy
from ppsim.model.fine_tuning import MEANING_OF_FREEZE, MEANING_OF_LORA
from ppsim.model.narrow_weights import WeightCache
from ppsim.model.offloading import MEANING as OFFLOADED
from ppsim.model.optimizer import OuterSharding
from ppsim.model.recompute import MEANING, Recompute
from ppsim.schedule.option_types import Channel, Receives, Update

if TYPE_CHECKING:
    from ppsim.costs.job import Job
    from ppsim.costs.profile import Profile
    from ppsim.machine.cluster import Cluster
    from ppsim.runs.calibrate import FittedOverheads
    from ppsim.trainers.run_config import RunConfig

Runtime = Literal["torch", "megatron", "ideal"]

ANY = "any"
"""Value of --schedule for a ranking by time alone, whichever trainer runs a schedule."""

GPT = "gpt"
"""The name of a model that is described by its sizes (`--layers`, `--hidden`, …)."""

Dtype = Literal["bfloat16", "float16", "float8", "float8-row", "float8-block", "mxfp8", "nvfp4", "mxfp4", "float32"]

GROUP_SIZE = Option(
    "Microbatches that a rank runs on one model chunk before it switches to the next (interleaved-1f1b only). "
    "[default: the smallest allowed, which is pp if pp divides the number of microbatches]",
    metavar="N", section="pipeline", after="microbatches", field="group_size",
    also=("--microbatch-group-size-per-virtual-pipeline-stage",),
)  # fmt: skip
SLICES = Option(
    "Slices per microbatch, along the sequence (seq1f1b only). [default: 4]",
    metavar="N", section="pipeline", field="num_slices",
)  # fmt: skip
OVERLAP_P2P = Option(
    "Overlap P2P transfers with compute in the steady state of interleaved-1f1b (--runtime megatron only). "
    "[default: on]",
    section="runtime", field="overlap_p2p", has_no=True,
)  # fmt: skip
CHANNEL = Option(
    "P2P serialization. Transfers that run one after another: none (ideal), from one rank to another (edge), "
    "between two ranks (pair), of a rank in one direction (direction), or all of a rank (rank). [default: the "
    "runtime's, or the costs file's]",
    section="runtime", field="channel",
)  # fmt: skip
RECEIVES = Option(
    "When receives are posted: as early as torch does (torch), just before use (deferred), or in the order of the "
    "sender (ordered). [default: the costs file's, else {default}]",
    section="runtime", field="receives", default="torch",
)  # fmt: skip
TOKENS = Option(
    "Number of training tokens (15e12), for the days, GPU hours and cost of the training.",
    metavar="N", section="model", after="global_batch",
)  # fmt: skip
CALIBRATION = Option(
    "Calibration file: constants of a cluster (`ppsim fit`), overheads of a runtime (`ppsim calibrate`), or both. "
    "[default: the constants of the GPU type, no overheads]",
    metavar="FILE", section="measured", also=("--overheads",),
)  # fmt: skip
RUNTIME = Option(
    "Pipeline runtime to simulate, with its P2P transfers and special cases: torch, megatron, or ideal (latency "
    "only, as in papers). [default: {default}, or the trainer of --run-config]",
    section="runtime", field="runtime", default="torch",
)  # fmt: skip
SEQUENCE_PARALLEL = Option(
    "Sequence parallelism: shard norms and residuals over the tensor-parallel ranks. [default: on if tp > 1]",
    section="cluster", after="order", field="job.execution.sequence_parallel", has_no=True,
)  # fmt: skip


# fmt: off
class SearchBaseOptions(TypedDict, total=False):
    """A job whose layout is not decided; `ppsim tune --help` has each option's meaning and default."""

    model: Annotated[str | Path | None, Option(
        "Model to train, by name (`ppsim models`) or file (Hugging Face config.json, trainer configuration); or "
        "gpt, sized by --layers, --hidden and --heads.",
        names="model", metavar="NAME|FILE", section="model",
    )]
    run_config: Annotated["str | Path | RunConfig | None", Option(
        "Trainer configuration that sets all options not given: Megatron-LM script, YAML or log, Primus "
        "experiment, TorchTitan TOML or flags, Megatron-Bridge, NeMo, DeepSpeed.",
        metavar="FILE", section="model",
    )]
    set: Annotated[Mapping[str, str] | None, Option(
        "Value of a variable that the launch script of --run-config leaves to its user; 1=8B sets its first "
        "argument. May be repeated. [default: not set]",
        metavar="NAME=VALUE", section="model",
    )]
    ignore: Annotated[Sequence[str] | None, Option(
        "Arguments of a fork of Megatron-LM to read past in the launch script of --run-config, although they may "
        "change layers or schedule. [default: none]",
        metavar="NAME,…", section="model",
    )]
    launch: Annotated[int | None, Option(
        "Number of the training command, for a launch script of --run-config with several. [default: the only one]",
        metavar="N", section="model",
    )]
    recipe: Annotated[str | None, Option(
        "Published recipe of a trainer (`ppsim recipes`) that sets all options not given: model, layout, batch, "
        "precision, cluster and number of GPUs. [default: none]",
        names="recipe", metavar="NAME[@RELEASE]", section="model",
    )]
    cluster: Annotated["str | Path | Cluster | None", Option(
        "Cluster that runs the model, by name (`ppsim clusters`) or file. Costs are estimated for it. [default: "
        "{default}]",
        names="cluster", metavar="NAME|FILE", section="cluster", default=CLUSTER,
    )]
    price: Annotated[float | None, Option(
        "Price of a GPU hour, for the cost of a step and, with --tokens, of a run; the currency is yours. "
        "[default: price_per_gpu_hour of the cluster file, else none]",
        metavar="PRICE", section="cluster", field="job.cluster.price_per_gpu_hour",
    )]
    gpus: Annotated[int | None, Option(
        "Number of GPUs. The data-parallel size follows from it. `tune` requires it. [default: tp · cp · dp · pp]",
        metavar="N", section="cluster",
    )]
    order: Annotated[str | None, Option(
        "Order of the parallel dimensions. Ranks that differ only in the first one are closest to each other. "
        "[default: {default}]",
        metavar="tp-cp-ep-dp-pp", section="cluster", field="job.layout.order", default="tp-cp-ep-dp-pp",
    )]
    global_batch: Annotated[int | None, Option(
        "Sequences per step. `tune` requires it. [default: 4 · pp microbatches per data-parallel rank]",
        metavar="N", section="model", field="job.global_batch",
    )]
    dtype: Annotated[Dtype | None, Option(
        "Number format of GEMMs. 8 bits, one scale per tensor (float8, current or delayed scaling), row "
        "(float8-row), block of 128 (float8-block) or block of 32 (mxfp8); 4 bits, one scale per block of 16 "
        "(nvfp4) or 32 (mxfp4). [default: {default}]",
        metavar="bfloat16|float16|float32|float8|…", section="model", field="job.execution.dtype",
        default="bfloat16",
    )]
    optimizer: Annotated[Literal["adam", "muon"] | None, Option(
        "Optimizer. [default: {default}]",
        section="optimizer", field="job.optimizer.name", default="adam",
    )]
    fully_shard: Annotated[bool | None, Option(
        "Shard with torch's fully_shard (FSDP2): float32 shards of weights, gradients and moments. [default: off, "
        "Megatron-LM's distributed optimizer]",
        section="optimizer", field="job.fully_shard", default=False, has_no=True,
    )]
    gradient_accumulation_fusion: Annotated[bool | None, Option(
        "Gradient accumulation fusion: add weight gradients to main_grad inside the GEMM. [default: on]",
        section="optimizer", field="job.gradient_accumulation_fusion", default=True, has_no=True, is_hidden=True,
    )]
    wgrad_deferral_limit: Annotated[int | None, Option(
        "Number of microbatches whose output-layer weight gradient is deferred to the end of the step (0: all), as "
        "with Megatron-LM's --defer-embedding-wgrad-compute in a pipeline. The gradients of their logits stay in "
        "memory. [default: none deferred]",
        metavar="N", section="optimizer", field="job.wgrad_deferral_limit", default=None, is_hidden=True,
    )]
    grad_reduce_in_bf16: Annotated[bool | None, Option(
        "Accumulate and reduce gradients in 16 bits. [default: off (32 bits), except with float16]",
        section="optimizer", field="job.optimizer.grad_reduce_in_bf16", default=None, has_no=True,
    )]
    fp8_param_gather: Annotated[bool | None, Option(
        "Primary weights in 8 or 4 bits, if GEMMs are (Megatron-LM's --fp8-param-gather and --fp4-param-gather): "
        "weights of these GEMMs have no 16-bit copy and are gathered in 8 or 4 bits. With --fully-shard, only "
        "gather them so (TorchTitan's enable_fsdp_float8_all_gather). [default: off]",
        section="optimizer", field="job.optimizer.fp8_param_gather", default=False, has_no=True,
        also=("--fp4-param-gather",),
    )]
    weight_cache: Annotated[WeightCache | None, Option(
        "8- or 4-bit copies of each 16-bit weight that stay between microbatches: none (Megatron-LM's "
        "disable_parameter_transpose_cache), rowwise (Primus' no_fp8_weight_transpose_cache) or all. [default: "
        "all, with --zero 3 none]",
        section="optimizer", field="job.weight_cache", default=None, is_hidden=True,
    )]
    num_layers_at_start_in_bf16: Annotated[int | None, Option(
        "Number of first layers with 16-bit GEMMs, if the other layers have 8 or 4 bits (Megatron-LM's "
        "first_last_layers_bf16). [default: {default}]",
        metavar="N", section="optimizer", field="job.num_layers_at_start_in_bf16", default=0, least=0,
        is_hidden=True,
    )]
    num_layers_at_end_in_bf16: Annotated[int | None, Option(
        "Number of last layers with 16-bit GEMMs, if the other layers have 8 or 4 bits. [default: {default}]",
        metavar="N", section="optimizer", field="job.num_layers_at_end_in_bf16", default=0, least=0,
        is_hidden=True,
    )]
    layer_wise: Annotated[bool | None, Option(
        "Shard the optimizer step by whole layers, as is common with Muon. [default: off, sharded evenly]",
        section="optimizer", field="job.optimizer.layer_wise", default=False, has_no=True, is_hidden=True,
    )]
    use_layer_wise_param_layout: Annotated[bool | None, Option(
        "With --layer-wise, divide the optimizer state evenly. Off: ranks own whole tensors, dealt out by size. "
        "[default: on]",
        section="optimizer", field="job.optimizer.use_layer_wise_param_layout", default=True, has_no=True,
        is_hidden=True,
    )]
    num_distributed_optimizer_instances: Annotated[int | None, Option(
        "Number of data-parallel groups that each shard optimizer state (with ZeRO 2 and 3 also gradients and "
        "parameters) among their own ranks. Gradients are all-reduced across groups (HSDP). [default: {default}]",
        metavar="N", section="optimizer", field="job.optimizer.num_distributed_optimizer_instances", default=1,
    )]
    outer_dp_sharding_strategy: Annotated[OuterSharding | None, Option(
        "Sharding across the groups of --num-distributed-optimizer-instances: no_shard, or optim (Megatron-FSDP "
        "shards the optimizer state over all data-parallel ranks). [default: {default}]",
        section="optimizer", field="job.optimizer.outer_dp_sharding_strategy", default="no_shard", is_hidden=True,
    )]
    exp_avg_dtype: Annotated[Literal["float32", "bfloat16", "float16", "float8"] | None, Option(
        "Number format of both Adam moments (Megatron-LM's --exp-avg-dtype and --exp-avg-sq-dtype). [default: "
        "{default}]",
        metavar="float32|bfloat16|float16|float8", section="optimizer", field="job.optimizer.exp_avg_dtype",
        default="float32",
    )]
    use_precision_aware_optimizer: Annotated[bool | None, Option(
        "Megatron-LM's precision-aware optimizer with decoupled gradients: no float32 copy of 16-bit gradients, "
        "and 2 instead of 4 bytes per main weight. [default: off]",
        section="optimizer", field="job.optimizer.is_precision_aware", default=False, has_no=True,
    )]
    bf16_master_weights_and_grads: Annotated[bool | None, Option(
        "Main weights and gradients in bfloat16, without float32 copies (DeepSpeed). [default: off]",
        section="optimizer", field="job.optimizer.master_weights_in_bf16", default=False, has_no=True,
        is_hidden=True,
    )]
    optimizer_offload_fraction: Annotated[float | None, Option(
        "Fraction, 0 to 1, of the parameters whose optimizer state is in host memory and whose optimizer step runs "
        "on the CPU (Megatron-LM's --optimizer-cpu-offload). [default: {default}]",
        metavar="PART", section="optimizer", field="job.optimizer.offload_fraction", default=0.0,
    )]
    overlap_cpu_optimizer_d2h_h2d: Annotated[bool | None, Option(
        "Overlap the optimizer step on the CPU with its copies, parameter by parameter. [default: off, all "
        "gradients are copied before the step and all weights after it]",
        section="optimizer", field="job.optimizer.overlap_cpu_optimizer_d2h_h2d", default=False, has_no=True,
        is_hidden=True,
    )]
    stack: Annotated[str | None, Option(
        "Framework whose defaults apply to options not given: plain (a generic trainer), megatron-bridge, "
        "torchtitan or primus. For MoE models, megatron-bridge includes the settings of the newest release's "
        "recipe for the model, device and dtype, or those that its MoE recipes share; megatron-bridge@RELEASE of "
        "another release, megatron-bridge@none neither. "
        "[default: the trainer of --run-config, otherwise the framework with the smallest error on measured runs "
        "of this GPU generation and kind of model]",
        metavar="NAME[@RELEASE]", section="cluster", field="job.stack",
    )]
    hidden: Annotated[int | None, Option(
        "Hidden size of --model gpt.", metavar="N", section="model", after="model", also=("--hidden-size",),
    )]
    heads: Annotated[int | None, Option(
        "Number of attention heads of --model gpt.", metavar="N", section="model", also=("--num-attention-heads",),
    )]
    vocab: Annotated[int | None, Option("Vocabulary size of --model gpt. [default: 50257]", metavar="N",
        section="model", also=("--vocab-size",),
    )]
    kv_heads: Annotated[int | None, Option(
        "Number of key-value heads of --model gpt. [default: the value of --heads]", metavar="N", section="model",
        also=("--num-query-groups",),
    )]
    tied_embeddings: Annotated[bool | None, Option(
        "Tie the output layer of --model gpt to its embedding. [default: on]", section="model", has_no=True,
    )]
    mtp: Annotated[bool | None, Option(
        "Train the multi-token prediction (MTP) layers of the model. [default: on if the model has any]",
        section="model", has_no=True,
    )]
    mtp_num_layers: Annotated[int | None, Option(
        "Number of MTP layers. Each predicts one further token. [default: the model's]",
        metavar="N", section="model",
        least=0,
    )]
    mtp_use_repeated_layer: Annotated[bool | None, Option(
        "Use one MTP layer for all further tokens. [default: off, one layer per token]", section="model",
        is_hidden=True,
    )]
    lora: Annotated[str | int | None, Option(
        MEANING_OF_LORA + " [default: none; of the modules: linear_qkv+linear_proj+linear_fc1+linear_fc2]",
        metavar="RANK[:MODULE+MODULE…]", section="model", field="job.lora", default="",
    )]
    freeze: Annotated[str | None, Option(
        MEANING_OF_FREEZE + " [default: none]",
        metavar="MODULE+MODULE…", section="model", field="job.freeze", default="",
    )]
    image_tokens: Annotated[str | int | None, Option(
        MEANING_OF_IMAGES,
        metavar="N|IMAGESxTOKENS", section="model", field="job.image_tokens", default="",
    )]
    text_only: Annotated[bool | None, Option(
        "Leave out image and audio encoders of the model. [default: off]",
        section="model", field="job.text_only", default=False, has_no=True,
    )]
    attention: Annotated[Literal["fused", "fused-fp8", "unfused"] | None, Option(
        "Attention kernel: fused (FlashAttention), fused-fp8 (fused, with its GEMMs in 8 bits) or unfused (score "
        "matrix in memory). [default: {default}]",
        section="model", after="recompute", field="job.execution.attention", default="fused",
    )]
    dropout: Annotated[bool | None, Option(
        "Apply dropout after attention, the token mixer and the channel mixer. [default: off]",
        section="model", field="job.execution.dropout", default=False, has_no=True,
    )]
    cross_entropy: Annotated[CrossEntropy | None, Option(
        "Loss kernel: fused (TransformerEngine, no copy of the logits), compiled (torch.compile, Megatron-LM's "
        "native fusion), unfused, or chunked (TorchTitan from 0.3: an eighth of the tokens at a time). All but "
        "fused make a float32 copy of the logits. [default: {default}]",
        section="model", field="job.execution.cross_entropy", default="fused",
    )]
    deterministic_mode: Annotated[bool | None, Option(
        "Use deterministic kernels only (torch and TransformerEngine), and fill allocated memory. [default: off]",
        section="model", field="job.execution.deterministic_mode", default=False, has_no=True,
    )]
    compile: Annotated[bool | None, Option(
        "Assume that torch.compile fuses the operators between GEMMs, as in TorchTitan. With --no-compile, they "
        "run one by one. [default: by --stack, else the fused kernels of Megatron-LM and TransformerEngine]",
        section="model", field="job.execution.compile", default=None, has_no=True,
    )]
    context: Annotated[Literal["ring", "all-to-all", "all-gather"] | None, Option(
        "Exchange of keys and values between context-parallel ranks: ring, all-to-all of heads, or all-gather. "
        "[default: {default}]",
        section="cluster", field="job.execution.context", default="ring",
    )]
    overlap_tp: Annotated[str | float | None, Option(
        "Hidden fraction of tensor-parallel communication, 0 to 1: one number, or FORWARD,BACKWARD. Userbuffers "
        "with n chunks hide 1 - 1/n. [default: {default}]",
        metavar="PART|PART,PART", section="cluster", default="0",
    )]
    overlap_ep: Annotated[str | float | None, Option(
        "Overlap of expert-parallel communication with the compute of another microbatch: the order of operations "
        "in a pair of forward and backward passes (megatron, megatron-delay-wgrad, dualpipe or best), or the "
        "hidden fraction, 0 to 1. [default: {default}]",
        metavar="ORDER|PART", section="cluster", field="job.execution.overlap_ep", default=0.0,
    )]
    overlap_cp: Annotated[float | None, Option(
        "Hidden fraction, 0 to 1, of the context-parallel communication that is not overlapped with attention. "
        "[default: {default}]",
        metavar="PART", section="cluster", field="job.execution.hidden_cp", default=0.0,
    )]
    scatter_gather: Annotated[bool | None, Option(
        "Send 1/tp of each P2P message from each tensor-parallel rank, and all-gather it after the transfer. "
        "[default: off]",
        section="cluster", field="job.scatter_gather", default=False, has_no=True, is_hidden=True,
    )]
    compute_share: Annotated[str | float | None, Option(
        "Multiplier on GEMM and attention throughput, relative to the calibrated value of the GPU type: one "
        "number, or one per dtype. [default: the cluster's constants, else 1]",
        metavar="NUMBER|DTYPE:NUMBER,…", section="cluster", field="job.execution.compute_share",
    )]
    cuda_graphs: Annotated[CudaGraphs | None, Option(
        CAPTURED + " [default: {default}]",
        metavar="none|layer|full|MODULE+MODULE…", section="model", field="job.execution.cuda_graphs",
        default="none",
    )]
    cuda_graph_reuse: Annotated[bool | None, Option(
        "Share input and output buffers between graphs of microbatches that are not in flight together "
        "(TransformerEngine 2.7 or newer). [default: on]",
        section="model", field="job.cuda_graph_reuse", default=True, has_no=True, is_hidden=True,
    )]
    launch_ms: Annotated[float | None, Option(
        "Host time per launch of the schedule (one launch per action, two per P2P message). [default: the "
        "cluster's, else 0]",
        metavar="MS", section="cluster",
    )]
    rest: Annotated[float | None, Option(
        "Extra fixed time per step. [default: {default}]",
        metavar="SECONDS", section="model", field="job.rest_s", default=0.0,
    )]
    update: Annotated[Update | None, Option(
        "Pipeline ranks before the optimizer: synchronised (wait for the gradient norm of all ranks) or "
        "post-validated (update at once, check the norm later). [default: {default}]",
        section="optimizer", field="job.update", default="synchronised",
    )]
    moe_dispatcher: Annotated[Dispatcher | None, Option(
        "Token dispatcher: deepep or hybridep (a token is sent once to each node and rank with one of its "
        "experts), alltoall (once per expert), allgather (to all ranks). [default: {default}]",
        section="cluster", field="job.execution.moe_dispatcher", default="deepep",
    )]
    moe_flex_dispatcher_num_sms: Annotated[int | None, Option(
        "SMs that exchange tokens. Overlapped compute is slower by their share of the GPU. Requires "
        "--moe-dispatcher deepep or hybridep. [default: Megatron-LM's, 20 for deepep, 16 for hybridep]",
        metavar="N", section="cluster", field="job.execution.dispatcher_sms", is_hidden=True,
    )]
    expert_imbalance: Annotated[float | None, Option(
        "Tokens of the busiest expert-parallel rank, relative to the mean (1 is balanced). [default: {default}]",
        metavar="FACTOR", section="model", field="job.execution.expert_imbalance", default=1.0,
    )]
    moe_expert_capacity_factor: Annotated[float | None, Option(
        "Token capacity of each expert, relative to the mean. Experts are padded or drop tokens to reach it. "
        "[default: no limit, dropless routing]",
        metavar="FACTOR", section="model", field="job.execution.expert_capacity",
    )]
    fused_experts: Annotated[bool | None, Option(
        "TransformerEngine's op fuser: run the experts of a rank as one grouped GEMM with activation and cast, and "
        "cast to 8 bits in the activation of a dense MLP. [default: off]",
        section="model", field="job.execution.fused_experts", default=False, has_no=True,
    )]
    activation_func_fp8_input_store: Annotated[bool | None, Option(
        "Save the inputs of gated activations (SwiGLU) for the backward pass in 8 bits (Megatron-Core's "
        "activation_func_fp8_input_store). [default: off]",
        section="model", field="job.execution.activation_func_fp8_input_store", default=False, has_no=True,
        is_hidden=True,
    )]
    moe_use_legacy_grouped_gemm: Annotated[bool | None, Option(
        "Experts' GEMMs: the grouped_gemm package (on), on AMD GPUs one hipBLAS call per expert, or "
        "TransformerEngine (off). [default: off]",
        section="model", field="job.execution.legacy_grouped_gemm", default=False, has_no=True, is_hidden=True,
    )]
    moe_permute_fusion: Annotated[bool | None, Option(
        "Token permutation of experts: TransformerEngine's fused kernels (on), or torch's gather and scatter-add "
        "(off). [default: on]",
        section="model", field="job.execution.moe_permute_fusion", default=True, has_no=True, is_hidden=True,
    )]
    moe_expert_rank_capacity_factor: Annotated[float | None, Option(
        "Token capacity of a rank's experts, relative to the mean. The host then does not wait for token counts, "
        "and CUDA graphs can contain a dropless all-to-all. Requires --moe-dispatcher hybridep and "
        "--fused-experts. [default: no limit]",
        metavar="FACTOR", section="model", field="job.execution.expert_rank_capacity", is_hidden=True,
    )]
    moe_paged_stash: Annotated[float | None, Option(
        "Size of the paged buffer for activations that experts save for the backward pass, relative to the mean "
        "(Megatron-LM's buffer size factor). Requires --moe-expert-rank-capacity-factor. [default: no buffer, "
        "activations use the full capacity]",
        metavar="FACTOR", section="model", field="job.execution.paged_stash", is_hidden=True,
    )]
    overlap_dp: Annotated[bool | None, Option(
        "Overlap data-parallel communication with compute: --overlap-grad-reduce and --overlap-param-gather. "
        "[default: on]",
        section="optimizer", has_no=True,
    )]
    overlap_grad_reduce: Annotated[bool | None, Option(
        "Overlap the reduction of gradients (reduce-scatter or all-reduce) with the backward pass. [default: on]",
        section="optimizer", field="job.overlap_grad_reduce", default=True, has_no=True, is_hidden=True,
    )]
    overlap_param_gather: Annotated[bool | None, Option(
        "Overlap the all-gather of parameters with the forward pass, and in ZeRO 3 with both passes. [default: on]",
        section="optimizer", field="job.overlap_param_gather", default=True, has_no=True, is_hidden=True,
    )]
    document_length: Annotated[int | None, Option(
        "Mean tokens of the documents packed in a sequence, if attention stays inside each of them. "
        "[default: one document per sequence]",
        metavar="TOKENS", section="model", field="job.document_length", default=None, least=1, is_hidden=True,
    )]
    bucket_size: Annotated[int | None, Option(
        "Gradients per bucket of overlapped data-parallel communication (Megatron-LM's --ddp-bucket-size). "
        "[default: 40 million, or 1 million × dp × cp if that is more]",
        metavar="N", section="optimizer", field="job.bucket_size", default=None, least=1, is_hidden=True,
    )]


class JobOptions(SearchBaseOptions, total=False):
    """A job with its layout; `ppsim project --help` has each option's meaning and default."""

    etp: Annotated[int | None, Option(
        "Tensor-parallel size of each expert. If given, ep · etp must divide tp · cp · dp, otherwise ep must "
        "divide cp · dp. [default: tp]",
        metavar="N", section="cluster", after="order", field="job.layout.etp",
        also=("--expert-tensor-parallel-size",),
    )]
    pp: Annotated[int | None, Option(
        "Pipeline ranks. Required, unless --run-config, --recipe or --run sets it.",
        metavar="N", section="pipeline", field="job.layout.pp",
        also=("--pipeline-model-parallel-size",),
    )]
    microbatches: Annotated[int | None, Option(
        "Microbatches per step and data-parallel rank. [default: 4 · pp]",
        metavar="N", section="pipeline", field="microbatches",
    )]
    layers: Annotated[int | None, Option(
        "Number of layers of the model. [default: the model's, or the profile's]",
        metavar="N", section="model", after="model", field="num_layers", also=("--num-layers",),
    )]
    seq_len: Annotated[int | None, Option(
        "Tokens per sequence. [default: the model's, or the profile's]",
        metavar="TOKENS", section="model", field="job.sequence_length", also=("--seq-length",),
    )]
    micro_batch: Annotated[int | None, Option(
        "Sequences per microbatch. [default: 1 with --model, else the profile's]",
        metavar="N", section="model", field="job.micro_batch",
    )]
    recompute: Annotated[Recompute | None, Option(
        MEANING + " Without --model, the profile must contain the value. [default: none, or the profile's]",
        metavar="none|full|MODULE+MODULE…", section="model", after="dtype",
        field="job.execution.recompute",
    )]
    offload: Annotated[float | None, Option(
        "Fraction, 0 to 1, of the activations that is in host memory until the backward pass. [default: "
        "{default}]",
        metavar="PART", section="model", field="job.offload", default=0.0,
    )]
    offload_modules: Annotated[str | None, Option(
        OFFLOADED + " [default: none]",
        metavar="MODULE+MODULE…", section="model", field="job.offload_modules", default="",
    )]
    min_offloaded_tensor_size: Annotated[int | None, Option(
        "Smallest tensor that --offload-modules moves to the host, in elements. [default: {default}]",
        metavar="N", section="model", field="job.offload_rules.min_offloaded_tensor_size", default=2**20,
        is_hidden=True,
    )]
    activation_offload_fraction: Annotated[float | None, Option(
        "Fraction, 0 to 1, of the modules of --offload-modules that go to the host, starting with the first layers "
        "of each stage. [default: {default}]",
        metavar="PART", section="model", field="job.offload_rules.activation_offload_fraction", default=1.0,
        is_hidden=True,
    )]
    max_inflight_offloads: Annotated[int | None, Option(
        "Maximum number of copies to the host in flight per module of --offload-modules. At the limit, the forward "
        "pass waits for the oldest. [default: no limit]",
        metavar="N", section="model", field="job.offload_rules.max_inflight_offloads",
        also=("--fine-grained-offloading-max-inflight-offloads",), is_hidden=True,
    )]
    tp: Annotated[int | None, Option(
        "Tensor-parallel ranks. Without --model, a value that the profile does not contain is estimated. [default: "
        "1, or the profile's]",
        metavar="N", section="cluster", after="gpus", field="job.layout.tp",
        also=("--tensor-model-parallel-size",),
    )]
    cp: Annotated[int | None, Option(
        "Context-parallel ranks. Without --model, the profile must contain the value. [default: 1, or the "
        "profile's]",
        metavar="N", section="cluster", field="job.layout.cp", also=("--context-parallel-size",),
    )]
    ep: Annotated[int | None, Option(
        "Expert-parallel ranks. Without --model, a value that the profile does not contain is estimated. [default: "
        "1, or the profile's]",
        metavar="N", section="cluster", field="job.layout.ep", also=("--expert-model-parallel-size",),
    )]
    dp: Annotated[int | None, Option(
        "Data-parallel ranks. [default: from --gpus and the other sizes, else 1]",
        metavar="N", section="cluster", field="job.layout.dp",
    )]
    zero: Annotated[Literal[0, 1, 2, 3] | None, Option(
        "ZeRO stage: data-parallel ranks shard optimizer state (1, Megatron-LM's distributed optimizer), also "
        "gradients (2), also parameters (3). [default: {default}]",
        metavar="0|1|2|3", section="optimizer", after="optimizer",
        field="job.optimizer.zero_stage", default=1,
    )]
    sequence_parallel: Annotated[bool | None, SEQUENCE_PARALLEL]
    profile: Annotated["str | Path | Profile | None", Option(
        "Measured costs, a file of `ppsim profile` or the name of a packaged profile. [default: without --model "
        "zb-a100-6.2b, a GPT of 6.2 billion parameters on A100; with --model none, costs are estimated]",
        names="profile", metavar="NAME|FILE", section="measured", field="job.profile",
    )]


class PlanOptions(JobOptions, total=False):
    """A plan, of a job or of a profile; `ppsim project --help` has each option's meaning and default."""

    vpp: Annotated[int | None, Option(
        "Stages (model chunks) per rank. More than one interleaves. [default: the fewest that the schedule "
        "allows]",
        metavar="N", section="pipeline", after="pp", field="vpp",
        also=("--num-virtual-stages-per-pipeline-rank",),
    )]
    schedule: Annotated[str | None, Option(
        "Schedule (`ppsim schedules`), several or all to compare them, or auto to search for the best table. all "
        "ranks the schedules of the plan's trainer first, any ranks all by time. "
        "[default: 1f1b, or interleaved-1f1b if vpp > 1]",
        names="schedule", metavar="NAME|NAME,NAME,…|all|any|auto", section="pipeline", field="schedule",
    )]
    gradient_accumulation_steps: Annotated[int | None, Option(
        "Pipeline rounds per optimizer step, as TorchTitan's gradient_accumulation_steps. Each round runs an equal "
        "part of the microbatches and drains before the next. DeepSpeed and Megatron-LM run all microbatches in "
        "one round. [default: {default}]",
        metavar="N", section="pipeline", after="microbatches", field="gradient_accumulation_steps", default=1,
    )]
    group_size: Annotated[int | None, GROUP_SIZE]
    slices: Annotated[int | None, SLICES]
    split: Annotated[str | Sequence[int] | None, Option(
        "Layers per stage: auto (shortest simulated iteration that fits), even, megatron (Megatron-LM's own rule), "
        "numbers (2,3,3,2), or a layout string of Megatron-LM (Et*3|(tt|)*6,t*2L). [default: auto, or megatron "
        "with --runtime megatron]",
        metavar="auto|even|megatron|N,N,…|LAYOUT", section="pipeline", field="split",
    )]
    stage_plan: Annotated[str | Path | None, Option(
        "Layers, recomputation and offloaded modules of each stage: a TOML, YAML or JSON file with a list `stages` "
        "of layers, recompute and offload_modules (values as for these options), or auto (shortest simulated "
        "iteration that fits). [default: --split, --recompute and --offload-modules for all stages]",
        flag="--plan", metavar="FILE|auto", section="pipeline",
    )]
    account_for_embedding_in_pipeline_split: Annotated[bool | None, Option(
        "In Megatron-LM's layer split, count the embedding as a layer of the first stage.",
        section="pipeline", field="split.counts_embedding", is_hidden=True,
    )]
    account_for_loss_in_pipeline_split: Annotated[bool | None, Option(
        "In Megatron-LM's layer split, count output layer and loss as a layer of the last stage.",
        section="pipeline", field="split.counts_loss", is_hidden=True,
    )]
    decoder_first_pipeline_num_layers: Annotated[int | None, Option(
        "In Megatron-LM's layer split, number of layers on the first rank.",
        metavar="N", section="pipeline", field="split.first", least=0, is_hidden=True,
    )]
    decoder_last_pipeline_num_layers: Annotated[int | None, Option(
        "In Megatron-LM's layer split, number of layers on the last rank.",
        metavar="N", section="pipeline", field="split.last", least=0, is_hidden=True,
    )]
    stragglers: Annotated[Mapping[int, float] | None, Option(
        "Slow rank: with 3:1.2, compute on rank 3 takes 1.2 × as long. May be repeated.",
        metavar="RANK:FACTOR", section="pipeline", field="stragglers",
    )]
    lengths: Annotated[str | Path | Sequence[int] | None, Option(
        "File of sequence lengths in tokens, one per line. Each step draws its sequences from them. [default: all "
        "sequences have --seq-len tokens]",
        metavar="FILE", section="pipeline", field="lengths",
    )]
    job: "Job | None"
    forward_ms: Annotated[float | str | Sequence[float] | None, Option(
        "Measured forward time of a microbatch: per rank (all its stages together), or per stage in order "
        "(10,12,12,14). Requires --backward-input-ms and --backward-weight-ms. Costs are then not estimated, and "
        "only the pipeline is projected, not the rest of the step.",
        metavar="MS|MS,MS,…", section="measured",
    )]
    backward_input_ms: Annotated[float | str | Sequence[float] | None, Option(
        "Measured time of the input gradients (I) of a microbatch, per rank or per stage.",
        metavar="MS|MS,MS,…", section="measured",
    )]
    backward_weight_ms: Annotated[float | str | Sequence[float] | None, Option(
        "Measured time of the weight gradients (W) of a microbatch, per rank or per stage.",
        metavar="MS|MS,MS,…", section="measured",
    )]
    transfer_ms: Annotated[float | str | Sequence[float] | None, Option(
        "P2P transfer time from a stage to the next, instead of the profile's. With --forward-ms, one number or "
        "one per stage (the transfer after it).",
        metavar="MS|MS,MS,…", section="measured", field="transfer_s",
    )]
    activation_memory: Annotated[str | float | Sequence[float] | None, Option(
        "Measured activation memory of a microbatch: per rank (2GiB, all its stages together), or per stage. "
        "Requires --forward-ms or --run. [default: the model's or the profile's]",
        metavar="SIZE|SIZE,SIZE,…", section="measured",
    )]
    run: Annotated[str | Path | None, Option(
        "Recorded run (file or folder for `ppsim read`) that provides times per stage and overheads, for another "
        "schedule, vpp, split or number of microbatches of the same job. [default of these: the run's]",
        metavar="PATH", section="measured", after="profile",
    )]
    without: Annotated[Sequence[str] | None, Option(
        "Slow ranks or links of --run to remove, by number or name in the output (slow links 1-2), or all (slow "
        "links). [default: none, all stay]",
        metavar="CAUSE,…", section="measured",
    )]
    calibration: Annotated["str | Path | FittedOverheads | None", CALIBRATION]
    runtime: Annotated[Runtime | None, RUNTIME]
    channel: Annotated[Channel | None, CHANNEL]
    receives: Annotated[Receives | None, RECEIVES]
    overlap_p2p: Annotated[bool | None, OVERLAP_P2P]
    memory_limit: Annotated[str | float | None, Option(
        "Usable memory per rank (80GiB or 80GB). The exit code is 1 if a rank needs more. [default: the "
        "device's memory minus 5 GiB]",
        metavar="SIZE", section="runtime", field="memory_limit_bytes",
    )]
    search_time: Annotated[float | None, Option(
        "Maximum duration of the search. It ends earlier if it reaches the lower bound. [default: {default}]",
        metavar="SECONDS", section="search", field="search_time_s", default=10.0,
    )]
    seed: Annotated[int | None, Option(
        "Random seed of the search, and of the lengths drawn from --sequence-lengths. [default: {default}]",
        metavar="N", section="search", field="seed", default=0,
    )]
