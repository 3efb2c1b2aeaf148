"""Reader of Megatron-LM's arguments for parallelism, batch, schedule and execution."""

import re
from collections.abc import Mapping
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import given_options
from ppsim.model.architecture import Model
from ppsim.model.offloading import MODULES as OFFLOADED
from ppsim.model.recompute import BLOCK, MODULES, UNIFORM, recompute_of
from ppsim.trainers.arguments import Arguments
from ppsim.trainers.megatron.expert_options import cuda_graphs_in, experts_of
from ppsim.trainers.megatron.hybrid_layers import hybrid_pattern, layout_of
from ppsim.trainers.megatron.read_model import model_of
from ppsim.trainers.run_config import RunConfig
from ppsim.trainers.same_settings import COUNTED_IN_SPLIT

COUNTS = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "micro_batch_size": "micro_batch",
    "global_batch_size": "global_batch",
    "seq_length": "seq_len",
    "microbatch_group_size_per_vp_stage": "group_size",
    "world_size": "gpus",
}

SPLIT = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
ALGORITHMS = {
    "zero-bubble": "zb-h1", "zero-bubble-heuristic": "zb-auto", "zbv-formatted": "zbv", "v-half": "v-half",
    "v-min": "v-min",
}  # fmt: skip
ZERO = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def from_megatron(arguments: Arguments, trainer: str = "Megatron-LM") -> RunConfig:
    model, why_no_model = _model(arguments)
    words = _counts(arguments)
    layers_each = arguments.count("num_layers_per_virtual_pipeline_stage", word="vpp")
    words |= _pipeline(arguments, words["pp"], model, layers_each)
    words |= _step(arguments, is_partial=trainer == BRIDGE)
    words |= _optimizer(arguments) | _precision_aware(arguments, is_partial=trainer == BRIDGE)
    words |= _optimizer_offload(arguments, is_partial=trainer == BRIDGE)
    words |= _narrow_weights(arguments, words)
    words |= _kernels(arguments, is_partial=trainer == BRIDGE)
    words |= _overlapped(arguments, is_partial=trainer == BRIDGE)
    words |= experts_of(arguments, is_partial=trainer == BRIDGE) | cuda_graphs_in(arguments)
    return RunConfig(
        trainer,
        arguments.source,
        given_options(words),
        model,
        why_no_model,
        arguments.read_options,
        arguments.ignored if model is not None else arguments.ignored_that_matter,
        tuple(dict.fromkeys(arguments.assumed)),
        layers_per_virtual_stage=layers_each,
        needed=arguments.needed,
    )


def _model(arguments: Arguments) -> tuple[Model | None, str]:
    try:
        return model_of(arguments), ""
    except ConfigError as error:
        return None, str(error)


def _counts(arguments: Arguments) -> dict[str, Any]:
    words = {word: arguments.count(name, word=word) for name, word in COUNTS.items()}
    words["pp"] = words["pp"] or 1
    words["micro_batch"] = words["micro_batch"] or 1
    if words["global_batch"] is None:
        arguments.assumed.append("no global_batch_size: one microbatch a replica, as Megatron-LM takes it")
        words["microbatches"] = 1
    if words["gpus"] is None:
        words["gpus"] = arguments.launched_gpus()
    expert_tp = arguments.count("expert_tensor_parallel_size", word="etp")
    is_default = expert_tp == (words["tp"] or 1) and not arguments.asks("expert_tensor_parallel_size")
    words["etp"] = expert_tp if arguments.count("num_experts", least=0) and not is_default else None
    return words


def _pipeline(arguments: Arguments, pp: int, model: Model | None, layers_each: int | None) -> dict[str, Any]:
    words: dict[str, Any] = {"runtime": "megatron"}
    layout = arguments.get("pipeline_model_parallel_layout", word="split")
    vpp = arguments.count("num_virtual_stages_per_pipeline_rank", word="vpp") or arguments.count(
        "virtual_pipeline_model_parallel_size", word="vpp"
    )
    if layout is not None:
        words["split"] = layout if isinstance(layout, str) else "|".join("".join(map(str, part)) for part in layout)
    elif model is not None and (stages := _stages_of_pattern(arguments, model)):
        words["split"], vpp = stages, (stages.count("|") + 1) // pp
    elif layers_each and model is not None:
        counted = sum(arguments.flag(name, word=name) for name in COUNTED_IN_SPLIT)
        vpp = (len(model.layers) + counted) // pp // layers_each
    words["vpp"] = vpp or None
    overlaps = arguments.flag("overlap_p2p_comm", default=True, word="overlap_p2p")
    words["overlap_p2p"] = None if overlaps else False
    for name in SPLIT:
        words[name] = arguments.count(name, word=name, least=0)
    for name in COUNTED_IN_SPLIT:
        words[name] = arguments.flag(name, word=name) or None
    return words | _primus_schedule(arguments)


def _stages_of_pattern(arguments: Arguments, model: Model) -> str | None:
    pattern = hybrid_pattern(arguments, len(model.layers))
    return layout_of(pattern, len(model.mtp)) if pattern else None


def _primus_schedule(arguments: Arguments) -> dict[str, Any]:
    """Primus has two pipeline implementations that replace Megatron-LM's loops."""
    if arguments.flag("patch_primus_pipeline", word="schedule"):
        name = ALGORITHMS.get(str(arguments.get("pp_algorithm", "1f1b-interleaved", word="schedule")))
    elif arguments.flag("patch_zero_bubble", word="schedule"):
        setup = str(arguments.get("zero_bubble_v_schedule_mem_setup", "half", word="schedule"))
        name = "zb-auto" if arguments.flag("enable_zero_bubble", default=True, word="schedule") else None
        if arguments.flag("zero_bubble_v_schedule", word="schedule"):
            name = {"half": "v-half", "min": "v-min", "zb": "zbv"}.get(setup)
        elif arguments.flag("enable_1f1b_v", word="schedule"):
            name = "1f1b-v"
    else:
        name = None
    return {"schedule": name, "vpp": None, "runtime": "torch", "overlap_p2p": None} if name else {}


FP8_RECIPES = {"blockwise": "float8-block", "mxfp8": "mxfp8"}
"""Values of --fp8-recipe with their own number format; delayed and tensorwise both have one scale per tensor."""


def _step(arguments: Arguments, *, is_partial: bool) -> dict[str, Any]:
    dtypes = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8", "fp4": "nvfp4"}
    given = {name: arguments.get(name, word="dtype") for name in dtypes}
    dtype = None if is_partial and set(given.values()) == {None} else "float32"
    if dtype is None:
        arguments.assumed.append("no number format is given: bfloat16")
    for name, value in given.items():
        dtype = dtypes[name] if value else dtype
    if dtype == "nvfp4" and "mxfp4" in (value, arguments.get("fp4_recipe", word="dtype")):
        dtype = "mxfp4"
    if dtype == "float8":
        dtype = FP8_RECIPES.get(str(arguments.get("fp8_recipe", word="dtype")), dtype)
    parallel = arguments.flag("sequence_parallel", word="sequence_parallel")
    return {
        "dtype": dtype,
        "sequence_parallel": parallel,
        "recompute": _recompute(arguments),
        **_offload(arguments, is_partial=is_partial),
    }


def _kernels(arguments: Arguments, *, is_partial: bool) -> dict[str, Any]:
    """Return the kernel options; a partial file (Megatron-Bridge, NeMo) does not get Megatron-LM's defaults."""
    words: dict[str, Any] = {"attention": None, "dropout": None, "cross_entropy": None}
    backend = arguments.get("attention_backend", word="attention")
    is_local = arguments.get("transformer_impl", word="attention") == "local"
    if backend is not None or is_local:
        name = str(backend or "local").rpartition(".")[2]
        words["attention"] = "unfused" if name in ("unfused", "local") else "fused"
    if arguments.flag("fp8_dot_product_attention", word="attention") and words["attention"] != "unfused":
        words["attention"] = "fused-fp8"
    parts = [arguments.get(f"{name}_dropout", word="dropout") for name in ("attention", "hidden")]
    if not is_partial or parts != [None, None]:
        words["dropout"] = any(part is None or _is_above_zero(part) for part in parts)
        if None in parts and words["dropout"]:
            arguments.assumed.append(
                f"attention_dropout or hidden_dropout is not given: {DROPOUT}, Megatron-LM's default"
            )
    fuses = arguments.get("cross_entropy_loss_fusion", word="cross_entropy")
    if fuses is not None or not is_partial:
        by = arguments.get("cross_entropy_fusion_impl", word="cross_entropy")
        words["cross_entropy"] = "unfused" if not fuses else "fused" if by == "te" else "compiled"
    store = "activation_func_fp8_input_store"
    if arguments.flag(store, word=store):
        words[store] = _fuses_activation(arguments) or None
    words["deterministic_mode"] = arguments.flag("deterministic_mode", word="deterministic_mode") or None
    how = arguments.get("cp_comm_type", word="context")
    kinds = {kind for one in (how if isinstance(how, list) else [how or ""]) for kind in str(one).split()}
    if kinds == {"a2a"}:
        words["context"] = "all-to-all"
    elif kinds - {"p2p"}:
        arguments.assumed.append(f"cp_comm_type {'+'.join(sorted(kinds))} is not known: taken as p2p, the ring")
    return words


def _fuses_activation(arguments: Arguments) -> bool:
    """Only a fused activation saves its input in 8 bits (Megatron-LM at d98e8a64, core/transformer/mlp.py)."""
    names = ("bias_swiglu_fusion", "bias_activation_fusion")
    by_te = arguments.flag("use_te_activation_func", word="activation_func_fp8_input_store")
    return by_te or all(arguments.flag(one, default=True, word="activation_func_fp8_input_store") for one in names)


def _is_above_zero(value: Any) -> bool:
    """A variable that the file does not set counts as above 0."""
    return not isinstance(value, int | float) or value > 0


DROPOUT = 0.1
"""Default of attention_dropout and hidden_dropout (megatron/training/arguments.py)."""


def _overlapped(arguments: Arguments, *, is_partial: bool) -> dict[str, Any]:
    """Without userbuffers, the trainer of a partial file (Megatron-Bridge) uses TransformerEngine's own overlap."""
    words: dict[str, Any] = {}
    for name, word in (("tp_comm_overlap", "overlap_tp"), ("overlap_moe_expert_parallel_comm", "overlap_ep")):
        if arguments.get(name, word=word) is None:
            continue
        is_on = arguments.flag(name, word=word)
        off: Any = (WITHOUT_USERBUFFERS if is_partial else "0") if word == "overlap_tp" else 0.0
        words[word] = HIDDEN_BY[name] if is_on else off
        if is_on and word == "overlap_ep" and arguments.flag("delay_wgrad_compute", word=word):
            words[word] = "megatron-delay-wgrad"
        if is_on and word == "overlap_tp":
            arguments.assumed.append(f"{name}: {100 * float(words[word]):g} % of TP communication is hidden")
    if arguments.get("scatter_gather_tensors_in_pipeline", word="scatter_gather") is False:
        words["scatter_gather"] = False
    return words


HIDDEN_BY: dict[str, Any] = {"tp_comm_overlap": "0.5", "overlap_moe_expert_parallel_comm": "megatron"}
"""`tp_comm_overlap`: hidden fraction of tensor-parallel communication, from the calibration runs of
Megatron-Bridge. `overlap_moe_expert_parallel_comm`: order of operations of combined 1F1B.
"""

WITHOUT_USERBUFFERS = "0,0.67"
"""Hidden fraction of tensor-parallel communication (forward, backward) by TransformerEngine without userbuffers.

This is the 4-bit value of data/stacks.toml. In the backward pass, TransformerEngine gathers the input during the
input-gradient GEMM and scatters that gradient during the weight-gradient GEMM: two of three collectives.
"""

BRIDGE = "Megatron-Bridge or NeMo"


def _recompute(arguments: Arguments) -> str | None:
    how = arguments.get("recompute_granularity", word="recompute")
    if how is None:
        return None
    if how == "full" and (ids := arguments.get("recompute_layer_ids", word="recompute")):
        return _layers_by_number(arguments, ids)
    if how == "full":
        layers = arguments.count("recompute_num_layers", word="recompute", least=0)
        method = arguments.get("recompute_method", word="recompute")
        if method not in (None, BLOCK, UNIFORM):
            raise ConfigError(f"{arguments.source}: recompute_method must be block or uniform: got {method!r}")
        return "full" if method is None or layers is None else recompute_of(f"{method}/{layers}")
    if how != "selective":
        raise ConfigError(f"{arguments.source}: recompute_granularity must be full or selective: got {how!r}")
    given = arguments.get("recompute_modules", ["core_attn"], word="recompute")
    return _known_modules(arguments, given, MODULES, "recomputed")


def _layers_by_number(arguments: Arguments, ids: Any) -> str:
    """Primus' `recompute_layer_ids` number the model's layers, followed by the MTP layers."""
    given = re.findall(r"-?\w+", ids if isinstance(ids, str) else " ".join(map(str, ids)))
    if not given or not all(one.isdecimal() for one in given):
        raise ConfigError(f"{arguments.source}: recompute_layer_ids are numbers of layers as 0,3,4: got {ids!r}")
    number = arguments.count("num_layers", word="layers", least=1) or 0
    if number and (further := [one for one in given if int(one) >= number]):
        arguments.assumed.append(f"layers for further tokens ({', '.join(further)}) are taken not to be recomputed")
        given = [one for one in given if one not in further]
    return recompute_of(f"full@{','.join(given)}" if given else "none")


OFFLOAD_RULES = {
    "min_offloaded_tensor_size": "min_offloaded_tensor_size",
    "fine_grained_offloading_max_inflight_offloads": "max_inflight_offloads",
}


def _offload(arguments: Arguments, *, is_partial: bool) -> dict[str, Any]:
    is_on = arguments.flag("fine_grained_activation_offloading", word="offload_modules")
    given = arguments.get("offload_modules", [], word="offload_modules")
    rules: dict[str, Any] = {
        word: arguments.count(name, word=word, least=0) for name, word in OFFLOAD_RULES.items()
    }
    word = "activation_offload_fraction"
    rules[word] = arguments.part(word, 1.0, word=word)
    modules = _known_modules(arguments, given, OFFLOADED, "offloaded") if is_on else None
    if modules is None:
        return dict.fromkeys(("offload_modules", *rules)) | {
            "offload": _offloaded_layers(arguments, is_partial=is_partial)
        }
    return {"offload_modules": modules, **rules, word: None if rules[word] == 1 else rules[word]}


def _offloaded_layers(arguments: Arguments, *, is_partial: bool) -> float | None:
    """Megatron-LM's `--cpu-offloading-num-layers` is not possible with pipelines.

    Megatron-LM's arguments switch the offload on by the number alone (training/arguments.py, `validate_args`).
    """
    whole = arguments.count("num_layers", word="layers")
    is_on = arguments.flag("cpu_offloading", word="offload") or not is_partial
    is_of_activations = arguments.flag("cpu_offloading_activations", default=True, word="offload")
    if not (arguments.has("cpu_offloading_num_layers") and is_on and is_of_activations and whole):
        return None
    return min(1.0, (arguments.count("cpu_offloading_num_layers", word="offload", least=0) or 0) / whole)


def _known_modules(arguments: Arguments, modules: Any, known: Mapping[str, str], done: str) -> str | None:
    asked = re.findall(r"\w+", modules if isinstance(modules, str) else " ".join(map(str, modules)))
    if other := [module for module in asked if module not in known]:
        arguments.assumed.append(f"not {done}, since unknown: {', '.join(other)}")
    return "+".join(module for module in known if module in asked) or None


_PRIMARY = ("fp8_param_gather", "fp4_param_gather", "fp8_param", "fp4_param", "fp8_params")
"""Names of one option in Megatron-LM, Megatron-Bridge and NeMo."""


def _narrow_weights(arguments: Arguments, words: Mapping[str, Any]) -> dict[str, Any]:
    """Return options on weights in 8 or 4 bits, for GEMMs in as few.

    With torch's FSDP2, Megatron-LM gathers 16 bits (arguments.py at d98e8a64). Megatron-FSDP gathers plain tensors,
    of which TransformerEngine caches copies (module/linear.py at d0067d0d: `cache_name`).
    """
    word, bits = "fp8_param_gather", "fp4" if words["dtype"] in ("nvfp4", "mxfp4") else "fp8"
    primary = {name: arguments.flag(name, word=word) for name in _PRIMARY}
    arguments.flag("reuse_grad_buf_for_mxfp8_param_ag", word=word)
    recasts = arguments.flag("disable_parameter_transpose_cache", word="weight_cache")
    has_rows_only = not arguments.flag("fp8_weight_transpose_cache", default=True, word="weight_cache")
    wide = _layers_in_16_bits(arguments)
    if words["dtype"] in ("bfloat16", "float16", "float32"):
        return {}
    default = "none" if words["zero"] == 3 else "all"
    cache = "none" if recasts or words["fully_shard"] else "rowwise" if has_rows_only else "all"
    is_primary = any(primary[name] for name in _PRIMARY if name.startswith(bits)) and not words["fully_shard"]
    is_default = cache == default or (is_primary and cache != "rowwise")
    return {word: is_primary or None, "weight_cache": None if is_default else cache, **wide}


ENDS_IN_16_BITS = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")


def _layers_in_16_bits(arguments: Arguments) -> dict[str, int | None]:
    """Megatron-LM's default is one layer at each end (core/transformer/transformer_config.py)."""
    counts = {name: arguments.count(name, 1, word=name, least=0) or None for name in ENDS_IN_16_BITS}
    is_on = arguments.flag("first_last_layers_bf16", word=ENDS_IN_16_BITS[0])
    return counts if is_on else {}


def _optimizer(arguments: Arguments) -> dict[str, Any]:
    name = str(arguments.get("optimizer", "adam", word="optimizer"))
    if name not in ("adam", "muon", "dist_muon"):
        arguments.assumed.append(f"optimizer {name} is not known: taken as adam")
    shares = arguments.flag("use_distributed_optimizer", word="zero") or name == "dist_muon"
    zero = 1 if shares else 0
    if arguments.flag("use_megatron_fsdp", word="zero") or arguments.flag("use_custom_fsdp", word="zero"):
        zero = ZERO.get(str(arguments.get("data_parallel_sharding_strategy", "no_shard", word="zero")), zero)
    if is_fsdp2 := arguments.flag("use_torch_fsdp2", word="fully_shard"):
        zero = 3
    is_layer_wise = zero == 1 and "muon" in name  # arguments.py at d98e8a64: validate_args
    layout = "use_layer_wise_param_layout"
    has_layout = arguments.flag(layout, default=True, word=layout) if "muon" in name else True
    reduces = arguments.flag("overlap_grad_reduce", word="overlap_grad_reduce")
    gathers = arguments.flag("overlap_param_gather", word="overlap_param_gather")
    deferred = None
    if arguments.flag("defer_embedding_wgrad_compute", word="wgrad_deferral_limit"):
        deferred = arguments.count("wgrad_deferral_limit", word="wgrad_deferral_limit", least=0) or 0
    fuses = arguments.flag("gradient_accumulation_fusion", default=True, word="gradient_accumulation_fusion")
    instances = arguments.count("num_distributed_optimizer_instances", word="num_distributed_optimizer_instances")
    outer = "outer_dp_sharding_strategy"
    return {
        "outer_dp_sharding_strategy": arguments.get(outer, word=outer) if zero == 3 else None,
        "num_distributed_optimizer_instances": instances if zero and (instances or 1) > 1 else None,
        "wgrad_deferral_limit": deferred,
        "gradient_accumulation_fusion": None if fuses else False,
        "grad_reduce_in_bf16": _reduces_in_bf16(arguments),
        "optimizer": "muon" if "muon" in name else "adam",
        "layer_wise": is_layer_wise or None,
        layout: None if has_layout or not is_layer_wise else False,
        "zero": zero,
        "fully_shard": is_fsdp2 or None,
        "overlap_grad_reduce": reduces or zero >= 2,
        "overlap_param_gather": gathers or zero == 3 if zero else None,
        "exp_avg_dtype": _moments(arguments),
        "order": "tp-cp-ep-pp-dp" if arguments.flag("use_tp_pp_dp_mapping", word="order") else None,
    }


def _reduces_in_bf16(arguments: Arguments) -> bool | None:
    """Return the dtype of gradients, None if the file leaves it open.

    `main_grads_dtype` belongs to the precision-aware optimizer, and `grad_reduce_in_bf16` to bfloat16; gradients of
    float16 have 16 bits without `accumulate_allreduce_grads_in_fp32` (Megatron-LM's arguments.py). Megatron-FSDP
    has gradients in the dtype of the weights, unless megatron_fsdp_main_grads_dtype is given
    (megatron_fsdp/param_and_grad_buffer.py at d98e8a64: `_resolve_group_grad_dtype`).
    """
    word = "grad_reduce_in_bf16"
    in_16_bits, in_32_bits = arguments.get(word, word=word), arguments.get("grad_reduce_in_fp32", word=word)
    if arguments.flag("accumulate_allreduce_grads_in_fp32", word=word):
        in_32_bits = True
    of_optimizer = _dtype_of(arguments, "main_grads_dtype", word)
    of_fsdp = _dtype_of(arguments, "megatron_fsdp_main_grads_dtype", word)
    if arguments.flag("use_megatron_fsdp", word="zero"):
        return of_fsdp not in ("float32", "fp32")
    if arguments.flag(_AWARE, word=_AWARE) and of_optimizer in ("bfloat16", "bf16"):
        return True
    if arguments.get("fp16", word="dtype"):
        return False if in_32_bits else None
    if in_16_bits is None:
        return None if in_32_bits is None else not in_32_bits
    return bool(in_16_bits)


_AWARE = "use_precision_aware_optimizer"


def _dtype_of(arguments: Arguments, name: str, word: str) -> str:
    return str(arguments.get(name, "", word=word)).removeprefix("torch.")


def _precision_aware(arguments: Arguments, *, is_partial: bool) -> dict[str, Any]:
    """Return whether gradients are decoupled (Megatron-LM at d98e8a64, core/optimizer/optimizer_config.py).

    Megatron-LM's default of fp8_recipe is delayed. Megatron-Bridge copies tensorwise to the optimizer, also for
    bfloat16 (training/mixed_precision.py at 067f987d).
    """
    recipe = arguments.get("fp8_recipe", "tensorwise" if is_partial else "delayed", word="dtype")
    main_weights = _dtype_of(arguments, "main_params_dtype", _AWARE) or "float32"
    is_decoupled = recipe == "delayed" or main_weights not in ("float32", "fp32")
    return {_AWARE: (arguments.flag(_AWARE, word=_AWARE) and is_decoupled) or None}


def _optimizer_offload(arguments: Arguments, *, is_partial: bool) -> dict[str, Any]:
    """The default fraction is 1 in Megatron-LM's arguments, but 0 in `OptimizerConfig`, used by a partial file."""
    word, overlap = "optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d"
    is_on = arguments.flag("optimizer_cpu_offload", word=word)
    part = arguments.part(word, 0.0 if is_partial else 1.0, word=word)
    overlaps = arguments.flag(overlap, word=overlap)
    if not is_on or not part:
        return {}
    found: dict[str, Any] = {word: part, overlap: overlaps or None, _AWARE: None}
    if _moments(arguments) not in (None, "float32"):
        arguments.assumed.append("both moments are float32, which the optimizer on the host has")
        found["exp_avg_dtype"] = None
    return found


MOMENTS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}
"""`--exp-avg-dtype` as values of ppsim; Megatron-Bridge writes torch's names."""


def _moments(arguments: Arguments) -> str | None:
    """Only a precision-aware optimizer can change the number format of the moments."""
    given = [arguments.get(name, word="exp_avg_dtype") for name in ("exp_avg_dtype", "exp_avg_sq_dtype")]
    if not arguments.flag("use_precision_aware_optimizer", word="exp_avg_dtype") or given[0] is None:
        return None
    first, second = (str(one or "fp32").removeprefix("torch.") for one in given)
    if first != second:
        arguments.assumed.append(f"both moments are taken as {first}, of which one is {second}")
    found = MOMENTS.get(first, first)
    if found not in MOMENTS.values():
        raise ConfigError(f"{arguments.source}: exp_avg_dtype must be {', '.join(MOMENTS)}: got {first}")
    return found
