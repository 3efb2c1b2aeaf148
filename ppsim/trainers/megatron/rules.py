"""Megatron-LM's rules for combinations of its arguments (`validate_args` and `TransformerConfig`).

An adjustment adds arguments that others require, or leaves out arguments that others exclude. A refusal says why
Megatron-LM cannot run a plan. Read at d98e8a64, which has the arguments of 0.19, and at core_v0.16.1.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ppsim.base.errors import CannotRun
from ppsim.trainers.arguments import is_argument

OLD = "0.16"
"""Release for which `accepted_arguments` uses older names and leaves out arguments that came later."""


class _Given(dict[str, Any]):
    """Arguments by name; None for those that are not given."""

    def __missing__(self, name: str) -> None:
        return None

    def size(self, name: str) -> int:
        return self[name] or 1

    def has(self, name: str, *modules: str) -> bool:
        return not set(modules).isdisjoint(self[name] or ())


_Changes = Mapping[str, Any]
_off = dict.fromkeys


def _without(name: str, *modules: str) -> Callable[[_Given], _Changes]:
    return lambda a: {name: [module for module in a[name] if module not in modules]}


ADJUSTMENTS: tuple[tuple[Callable[[_Given], Any], _Changes | Callable[[_Given], _Changes]], ...] = (
    (lambda a: a["use_megatron_fsdp"], {"ckpt_format": "fsdp_dtensor"}),
    (lambda a: a["use_torch_fsdp2"], _off(("use_distributed_optimizer", "overlap_param_gather"))),
    (lambda a: a["use_torch_fsdp2"], {"no_gradient_accumulation_fusion": True}),
    (lambda a: a["moe_router_enable_expert_bias"], {"moe_router_score_function": "sigmoid"}),
    (lambda a: a["moe_router_topk"] == 1 and not a["moe_router_score_function"], {"moe_router_pre_softmax": True}),
    (lambda a: a["moe_flex_dispatcher_backend"] == "deepep", {"moe_pad_expert_input_to_capacity": None}),
    (lambda a: not a["num_experts"], lambda a: _off(name for name in a if name.startswith(("expert_", "moe_")))),
    (lambda a: a["cuda_graph_impl"] == "full_iteration", {"no_check_for_nan_in_loss_and_grad": True}),
    (lambda a: a["cross_entropy_fusion_impl"] == "te" and not a["is_old"], {"cross_entropy_fusion_impl": "native"}),
    (lambda a: a.size("pipeline_model_parallel_size") == 1 or a["no_gradient_accumulation_fusion"],
     _off(("defer_embedding_wgrad_compute", "wgrad_deferral_limit"))),
    (lambda a: a["fp8"] and not a["fp8_recipe"]
     and (a["first_last_layers_bf16"] or a.has("recompute_modules", "layernorm", "moe_act")),
     {"fp8_recipe": "tensorwise"}),
    (lambda a: (a["mtp_num_layers"] or a["is_old"]) and a["position_embedding_type"] == "yarn",
     {"position_embedding_type": "rope", "rotary_scaling_factor": None}),
    (lambda a: a["experimental_attention_variant"] == "dsa" and a.size("context_parallel_size") > 1,
     {"cp_comm_type": "allgather"}),
    (lambda a: not a["multi_latent_attention"] and a["recompute_modules"],
     _without("recompute_modules", "mla_up_proj")),
    (lambda a: not a["moe_grouped_gemm"] and a["recompute_modules"], _without("recompute_modules", "moe_act")),
    (lambda a: not a["num_experts"] and a["cuda_graph_modules"],
     _without("cuda_graph_modules", "moe", "moe_router", "moe_preprocess")),
    (lambda a: a["num_experts"] and not a["moe_layer_freq"] and a["cuda_graph_modules"],
     _without("cuda_graph_modules", "mlp")),
    (lambda a: a["cuda_graph_modules"] == [], _off(("cuda_graph_impl", "cuda_graph_modules"))),
    (lambda a: a["recompute_modules"] == [], _off(("recompute_granularity", "recompute_modules"))),
    (lambda a: a["optimizer"] == "muon" and a["is_old"], _off(("overlap_grad_reduce", "overlap_param_gather"))),
    (lambda a: a["optimizer"] == "muon" and a["is_old"] and a["use_distributed_optimizer"],
     {"optimizer": "dist_muon", "use_distributed_optimizer": None}),
    (lambda a: a["is_old"] and a["cuda_graph_impl"] == "full_iteration",
     {"cuda_graph_impl": "local", "cuda_graph_modules": ["full_iteration"]}),
    (lambda a: a["cuda_graph_impl"] == "local" and a.size("expert_model_parallel_size") > 1,
     {"moe_pad_experts_for_cuda_graph_inference": True}),
    (lambda a: a["is_old"] and a["hybrid_layer_pattern"]
     and not a["num_layers"] % a.size("pipeline_model_parallel_size"),
     lambda a: {"hybrid_layer_pattern": a["hybrid_layer_pattern"].replace("|", "")}),
)  # fmt: skip
"""Arguments to set if a condition holds, None to leave one out. Later rows see the changes of earlier ones."""

REFUSALS: tuple[tuple[Callable[[_Given], Any], str], ...] = (
    (lambda a: a["tp_comm_overlap"] and not a["sequence_parallel"],
     "overlap of TP communication needs sequence parallelism: give --sequence-parallel or --overlap-tp 0"),
    (lambda a: a["tp_comm_overlap"] and a["deterministic_mode"],
     "deterministic mode excludes overlap of TP communication: give --overlap-tp 0"),
    (lambda a: "muon" in (a["optimizer"] or "") and (a["use_megatron_fsdp"] or a["use_torch_fsdp2"]),
     "FSDP has no Muon: give --zero 1 or --optimizer adam"),
    (lambda a: a["use_torch_fsdp2"] and a.size("expert_model_parallel_size") > 1,
     "torch's FSDP2 has no expert parallelism: give --ep 1 or --no-fully-shard"),
    (lambda a: a["use_torch_fsdp2"] and not a["untie_embeddings_and_output_weights"],
     "torch's FSDP2 needs an output layer of its own: give --no-fully-shard"),
    (lambda a: a["use_torch_fsdp2"] and a["fp16"], "torch's FSDP2 has no float16: give --dtype bfloat16"),
    (lambda a: a["num_experts"] and not a["disable_bias_linear"]
     and (a["expert_tensor_parallel_size"] or a.size("tensor_model_parallel_size")) > 1,
     "experts with biases are not divided by tensor parallelism: give --etp 1"),
    (lambda a: a.size("num_attention_heads") % a.size("tensor_model_parallel_size"),
     "--tp must divide the number of attention heads"),
    (lambda a: a["optimizer_cpu_offload"] and a["fp8_param_gather"] and a["fp8_recipe"] is not None,
     "an optimizer on the CPU has 8-bit weights only with one scale per tensor: give --no-fp8-param-gather"),
    (lambda a: a["fp8_param_gather"]
     and not (a["use_distributed_optimizer"] or a["use_torch_fsdp2"] or a["use_megatron_fsdp"]),
     "8-bit weights need a sharded optimizer: give --zero 1 or --no-fp8-param-gather"),
    (lambda a: a["cuda_graph_impl"] == "transformer_engine" and a["recompute_granularity"] == "full",
     "full recomputation needs CUDA graphs of the whole iteration: give --cuda-graphs full or none"),
    (lambda a: a.has("cuda_graph_modules", "moe_router") and a.has("recompute_modules", "moe"),
     "CUDA graphs of the router exclude recomputation of the experts: leave out moe_router or moe"),
    (lambda a: a["cuda_graph_impl"] == "full_iteration" and a["offload_modules"]
     and a["fine_grained_offloading_max_inflight_offloads"] is None,
     "a CUDA graph of the whole iteration needs a limit of offloads in flight: give --max-inflight-offloads"),
    (lambda a: a["no_overlap_p2p_communication"] and a["pipeline_model_parallel_size"] == 2,
     "virtual stages without overlapped P2P need --pp above 2: leave out --no-overlap-p2p-communication"),
    (lambda a: a["is_old"] and "|" in (a["hybrid_layer_pattern"] or ""),
     "release 0.16 divides the layers of a hybrid evenly: give a --pp that divides their number"),
    (lambda a: a["is_old"] and a["overlap_moe_expert_parallel_comm"] and a["mtp_num_layers"]
     and a.size("pipeline_model_parallel_size") == 1,
     "release 0.16 overlaps expert communication of MTP layers only in a pipeline: give --mtp-num-layers 0"),
    (lambda a: a["is_old"] and a["overlap_moe_expert_parallel_comm"] and a["hybrid_layer_pattern"]
     and a.size("pipeline_model_parallel_size") > 1,
     "release 0.16 overlaps expert communication of hybrids only without a pipeline: give --overlap-ep 0"),
)  # fmt: skip
"""Combinations that Megatron-LM refuses, with its reason and the nearest fix."""

_OLD_NAMES = {"hybrid_layer_pattern": "hybrid_override_pattern", "cuda_graph_modules": "cuda_graph_scope"}


def accepted_arguments(
    arguments: Mapping[str, Any], release: str = "", *, may_be_refused: bool = False
) -> dict[str, Any]:
    """Return arguments that Megatron-LM accepts.

    Raises `CannotRun` for a combination that it cannot run, unless `may_be_refused`.
    """
    given = _Given(arguments, is_old=release == OLD)
    for holds, changes in ADJUSTMENTS:
        if holds(given):
            given |= changes(given) if callable(changes) else changes
    for holds, why in REFUSALS:
        if not may_be_refused and holds(given):
            raise CannotRun(f"Megatron-LM cannot run this: {why}")
    names = {_OLD_NAMES.get(name, name) if given["is_old"] else name: setting for name, setting in given.items()}
    return {name: setting for name, setting in names.items() if setting is not None and is_argument(name, release)}
