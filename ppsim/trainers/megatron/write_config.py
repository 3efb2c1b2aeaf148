"""Writer of Megatron-LM's arguments: the inverse of `read_config`."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from ppsim.base.errors import CannotRun
from ppsim.base.option_declarations import given_options
from ppsim.model.architecture import Model
from ppsim.model.recompute import BLOCK, MODULES, UNIFORM
from ppsim.trainers.arguments import megatron_names
from ppsim.trainers.megatron.expert_options import arguments_of_experts
from ppsim.trainers.megatron.read_config import (
    COUNTS,
    DROPOUT,
    ENDS_IN_16_BITS,
    FP8_RECIPES,
    MOMENTS,
    OFFLOAD_RULES,
    SPLIT,
    ZERO,
)
from ppsim.trainers.megatron.rules import accepted_arguments
from ppsim.trainers.megatron.write_model import layer_patterns, model_arguments
from ppsim.trainers.same_settings import COUNTED_IN_SPLIT

_GPUS_PER_NODE = 8
FP8_RECIPES_BY_DTYPE = {dtype: recipe for recipe, dtype in FP8_RECIPES.items()}


def write_megatron(words: Mapping[str, Any], flags: Sequence[str], release: str) -> str:
    is_hybrid = any(flag.startswith(("--is-hybrid", "--hybrid")) for flag in flags)
    name = f"Megatron-LM {release}".strip()
    said = f"# {name}. Add your own data, tokenizer, learning rate and checkpoints."
    return f"{said}\n" + command(words, "pretrain_mamba.py" if is_hybrid else "pretrain_gpt.py", flags)


def megatron_arguments(
    words: Mapping[str, Any], model: Model, layout: str, release: str = "", *, may_be_refused: bool = False
) -> dict[str, Any]:
    """Return the arguments of a plan. Raises `CannotRun` for a plan that Megatron-LM cannot run."""
    if model_arguments(model, words["seq_len"]) is None:
        named = words.get("model", "this model")
        raise CannotRun(f"Megatron-LM cannot run this: it lacks layers of {named} (`ppsim models` lists others)")
    arguments = job_arguments(words, model, layout)
    arguments.pop("add_position_embedding", None)  # True is the default; the only flag is --no-position-embedding
    return accepted_arguments(arguments, release, may_be_refused=may_be_refused)


def job_arguments(words: Mapping[str, Any], model: Model, layout: str) -> dict[str, Any]:
    """A split that differs from Megatron-LM's own rule, which needs equal stages, becomes a layout."""
    sizes = model_arguments(model, words["seq_len"]) or {}
    words = dict(words)
    if "num_experts" not in sizes:
        words = {name: value for name, value in words.items() if name not in ("etp", "moe_dispatcher")}
    split = words.get("split")
    if isinstance(split, list):
        is_by_rule = len(set(split)) == 1 and words.get("runtime", "megatron") == "megatron"
        words["split"] = None if is_by_rule else layout
    # Megatron-LM refuses other arguments of stages next to a hybrid pattern.
    has_stages = words.get("pp", 1) > 1 and (words.get("split") or words.get("vpp", 1) > 1)
    if "hybrid_layer_pattern" in sizes and isinstance(split, list) and has_stages:
        _, slash, further = sizes["hybrid_layer_pattern"].partition("/")
        sizes["hybrid_layer_pattern"] = divided(layer_patterns(model), split) + slash + further
        words |= dict.fromkeys(("split", "vpp", *SPLIT, *COUNTED_IN_SPLIT))
    return sizes | arguments_of(given_options(words))


def divided(patterns: Sequence[str], split: Sequence[int]) -> str:
    """Join the letters of a hybrid's layers, with "|" between stages.

    >>> divided(["M-", "M", "*", "-"], [1, 3])
    'M-|M*-'
    """
    ends = accumulate(split)
    return "|".join("".join(patterns[end - count : end]) for end, count in zip(ends, split, strict=True))


def command(words: Mapping[str, Any], program: str, flags: Sequence[str]) -> str:
    gpus = words.get("gpus", 1)
    per_node = next(count for count in range(min(gpus, _GPUS_PER_NODE), 0, -1) if gpus % count == 0)
    first = f"torchrun --nproc-per-node {per_node} --nnodes {gpus // per_node} {program}"
    return " \\\n  ".join([first, *flags])


def as_flags(arguments: Mapping[str, Any]) -> list[str]:
    """Return command-line flags; false values are left out.

    >>> as_flags({"bf16": True, "pipeline-model-parallel-size": 2, "pipeline-model-parallel-layout": "Et|tL"})
    ['--bf16', '--pipeline-model-parallel-size 2', "--pipeline-model-parallel-layout 'Et|tL'"]
    """
    options = {f"--{_LONG.get(name, name).replace('_', '-')}": value for name, value in arguments.items()}
    return [
        option if value is True
        else f"{option} {' '.join(value) if isinstance(value, list) else shlex.quote(str(value))}"
        for option, value in options.items() if value is not False
    ]  # fmt: skip


_LONG = {
    "microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage",
    "fp8": "fp8_format",
    "fp4": "fp4_format",
}
"""Options whose names differ from `args` (argparse_meta of TransformerConfig's fields)."""


def as_entries(arguments: Mapping[str, Any]) -> list[str]:
    """Return lines of a YAML file with Megatron-LM's names in `args`, as in Primus' files.

    >>> as_entries({"pipeline-model-parallel-layout": "Et|tL", "no-overlap-p2p-communication": True})
    ['pipeline_model_parallel_layout: "Et|tL"', 'overlap_p2p_comm: false']
    """
    return [f"{name}: {_yaml(value)}" for name, value in megatron_names(arguments).items()]


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    return f'"{value}"' if isinstance(value, str) and any(sign in value for sign in "|*,") else str(value)


def arguments_of(words: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {name: words[word] for name, word in COUNTS.items() if word in words and word != "gpus"}
    if "etp" in words:
        arguments["expert_tensor_parallel_size"] = words["etp"]
    arguments |= _stages(words) if words.get("pp", 1) > 1 else {}
    recompute = words.get("recompute", "none")
    method, _, layers = recompute.partition("/")
    if recompute == "full" or method in (BLOCK, UNIFORM):
        if recompute == "full":
            method, layers = UNIFORM, "1"
        arguments |= {
            "recompute_granularity": "full",
            "recompute_method": method,
            "recompute_num_layers": int(layers),
        }
    elif all(module in MODULES and module != "mlp_act" for module in recompute.split("+")):  # mlp_act is ppsim's
        arguments |= {"recompute_granularity": "selective", "recompute_modules": recompute.split("+")}
    dtypes: dict[str, dict[str, Any]] = {
        "bfloat16": {"bf16": True},
        "float16": {"bf16": False, "fp16": True},
        "float32": {"bf16": False},
        "float8": {"bf16": True, "fp8": "hybrid"},
        **{
            name: {"bf16": True, "fp8": "e4m3", "fp8_recipe": recipe}
            for name, recipe in FP8_RECIPES_BY_DTYPE.items()
        },
        "nvfp4": {"bf16": True, "fp4": "e2m1"},
    }
    arguments |= dtypes.get(words.get("dtype", ""), {"bf16": True})
    return arguments | _optimizer(words) | _executed(words)


def _stages(words: Mapping[str, Any]) -> dict[str, Any]:
    split, vpp = words.get("split"), words.get("vpp", 1)
    found = {name: words[name] for name in SPLIT if words.get(name) is not None}
    found |= {name: True for name in COUNTED_IN_SPLIT if words.get(name)}
    if isinstance(split, str) and not found:
        found["pipeline_model_parallel_layout"] = split
    elif vpp > 1:
        found["num_virtual_stages_per_pipeline_rank"] = vpp
    if vpp > 1 and words.get("overlap_p2p") is False:
        found["no_overlap_p2p_communication"] = True
    return found


def _optimizer(words: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "zero" in words:
        found["use_distributed_optimizer"] = words["zero"] >= 1
        if words.get("fully_shard"):
            found["use_torch_fsdp2"] = words["zero"] == 3
        elif words["zero"] >= 2:
            strategy = next(name for name, stage in ZERO.items() if stage == words["zero"])
            found |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": strategy}
    if words.get("optimizer") == "muon":
        found["optimizer"] = "muon"
        found["no_use_layer_wise_param_layout"] = words.get("use_layer_wise_param_layout") is False
    if words.get("order") == "tp-cp-ep-pp-dp":
        found["use_tp_pp_dp_mapping"] = True
    if (moments := words.get("exp_avg_dtype", "float32")) != "float32":
        dtype = next(name for name, of in MOMENTS.items() if of == moments)
        found |= {"exp_avg_dtype": dtype, "exp_avg_sq_dtype": dtype}
    found |= _precision_aware(words)
    found |= {"sequence_parallel": words["sequence_parallel"]} if "sequence_parallel" in words else {}
    if part := words.get("optimizer_offload_fraction"):
        found |= {"optimizer_cpu_offload": True, "optimizer_offload_fraction": part}
        found |= {"use_precision_aware_optimizer": True}
        found |= {"overlap_cpu_optimizer_d2h_h2d": True} if words.get("overlap_cpu_optimizer_d2h_h2d") else {}
    if (instances := words.get("num_distributed_optimizer_instances", 1)) > 1:
        found["num_distributed_optimizer_instances"] = instances
    if (outer := words.get("outer_dp_sharding_strategy", "no_shard")) != "no_shard":
        found["outer_dp_sharding_strategy"] = outer
    if (limit := words.get("wgrad_deferral_limit")) is not None:
        found |= {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": limit}
    if words.get("gradient_accumulation_fusion") is False or words.get("fully_shard"):
        found["no_gradient_accumulation_fusion"] = True
    found |= _narrow_weights(words) | _gradients(words, is_fsdp=bool(found.get("use_megatron_fsdp")))
    if "overlap_grad_reduce" in words:
        reduces = words["overlap_grad_reduce"]
        gathers = reduces and words.get("zero", 0) > 0 and words.get("overlap_param_gather", False)
        found |= {"overlap_grad_reduce": reduces, "overlap_param_gather": gathers}
    return found


def _gradients(words: Mapping[str, Any], *, is_fsdp: bool) -> dict[str, Any]:
    in_16_bits = words.get("grad_reduce_in_bf16")
    if words.get("dtype") == "float16":
        return {"accumulate_allreduce_grads_in_fp32": in_16_bits is False}
    if in_16_bits:
        return {"grad_reduce_in_bf16": True}
    return {"megatron_fsdp_main_grads_dtype": "fp32"} if is_fsdp else {}


def _precision_aware(words: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe decides whether gradients are decoupled, unless main weights have 16 bits."""
    is_decoupled, recipe = (
        words.get("use_precision_aware_optimizer"),
        FP8_RECIPES_BY_DTYPE.get(words.get("dtype", "")),
    )
    if not is_decoupled and words.get("exp_avg_dtype", "float32") == "float32":
        return {}
    found: dict[str, Any] = {"use_precision_aware_optimizer": True}
    if is_decoupled and recipe is not None:
        found["main_params_dtype"] = "fp16"
    elif not is_decoupled and recipe is None:
        found["fp8_recipe"] = "tensorwise"
    return found


def _narrow_weights(words: Mapping[str, Any]) -> dict[str, Any]:
    dtype, zero = words.get("dtype", "bfloat16"), words.get("zero", 1)
    if dtype in _WIDE:
        return {}
    found: dict[str, Any] = {}
    if any(words.get(name) for name in ENDS_IN_16_BITS):
        found = {"first_last_layers_bf16": True} | {name: words.get(name, 0) for name in ENDS_IN_16_BITS}
    if words.get("fp8_param_gather") and not words.get("fully_shard"):
        found["fp4_param_gather" if dtype == "nvfp4" else "fp8_param_gather"] = True
        if dtype == "mxfp8" and zero < 2:
            found["reuse_grad_buf_for_mxfp8_param_ag"] = True
    elif words.get("weight_cache", "none" if zero == 3 else "all") == "none":
        found["disable_parameter_transpose_cache"] = True
    return found


_WIDE = ("bfloat16", "float16", "float32")


def _executed(words: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "attention" in words:
        found["attention_backend"] = "unfused" if words["attention"] == "unfused" else "auto"
    if words.get("attention") == "fused-fp8":
        found["fp8_dot_product_attention"] = True
    if "dropout" in words:
        found |= dict.fromkeys(("attention_dropout", "hidden_dropout"), DROPOUT if words["dropout"] else 0.0)
    if words.get("deterministic_mode"):
        found["deterministic_mode"] = True
    if (loss := words.get("cross_entropy")) == "unfused":
        found["cross_entropy_loss_fusion"] = False
    elif by := {"fused": "te", "compiled": "native"}.get(str(loss)):
        found |= {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": by}
    if modules := words.get("offload_modules"):
        found |= {"fine_grained_activation_offloading": True, "offload_modules": modules.split("+")}
        names = OFFLOAD_RULES | {"activation_offload_fraction": "activation_offload_fraction"}
        found |= {name: words[word] for name, word in names.items() if words.get(word) is not None}
    if words.get("context") == "all-to-all":
        found["cp_comm_type"] = "a2a"
    if float(str(words.get("overlap_tp", 0)).partition(",")[0]):  # only userbuffers hide communication of F
        found["tp_comm_overlap"] = True
    if str(words.get("overlap_ep")).startswith("megatron"):
        found["overlap_moe_expert_parallel_comm"] = True
        found |= {"delay_wgrad_compute": True} if words["overlap_ep"] == "megatron-delay-wgrad" else {}
    return found | arguments_of_experts(words)
