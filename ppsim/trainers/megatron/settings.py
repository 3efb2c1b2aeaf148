"""Megatron-LM's arguments for a plan: one table that serves reading and writing.

Arguments of the model are in `read_model` and `write_model`, combinations that Megatron-LM refuses in `rules`.
"""

import re
from collections.abc import Mapping
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.user_defaults import FLEX
from ppsim.model.architecture import Model
from ppsim.model.cuda_graphs import MODULES as CAPTURED
from ppsim.model.cuda_graphs import cuda_graphs_of
from ppsim.model.offloading import MODULES as OFFLOADED
from ppsim.model.recompute import BLOCK, MODULES, UNIFORM, layer_ids, recompute_of
from ppsim.trainers.arguments import Arguments
from ppsim.trainers.megatron.hybrid_layers import hybrid_pattern, layout_of
from ppsim.trainers.same_settings import COUNTED_IN_SPLIT, MEGATRON_SPLIT
from ppsim.trainers.setting import Options, Setting, Test, count, named, read_rows, write_rows, written_as

_Cases = Mapping[Any, dict[str, Any]]


def _flag(option: str, name: str, off: str = "", *, when: Test = bool, of_experts: bool = False) -> Setting:
    """An option that is None or differs from Megatron-LM's default; `off` ends a default that is on."""
    usual = bool(off)

    def read(arguments: Arguments, _: Options) -> Options:
        is_on = arguments.flag(name, default=usual, word=option)
        return {option: None if is_on == usual else is_on}

    def write(options: Options) -> dict[str, Any]:
        is_changed = options.get(option, usual) != usual and when(options)
        return named(off or name, True, is_changed)

    return Setting((option,), read, write, of_experts)


def _cases(
    option: str,
    written: _Cases,
    read_only: _Cases | None = None,
    usual: Any = None,  # of a complete file
) -> Setting:
    """The last case holds whose arguments have these values."""
    cases = [*(read_only or {}).items(), *written.items()]
    names = {name: isinstance(value, bool) for _, case in cases for name, value in case.items()}

    def read(arguments: Arguments, _: Options) -> Options:
        given = {name: arguments.get(name, word=option) for name in names}
        given |= {
            name: arguments.flag(name, word=option)
            for name, is_flag in names.items()
            if is_flag and given[name] is not None
        }
        held = [ours for ours, case in cases if all(given[name] == value for name, value in case.items())]
        return {option: held[-1] if held else None if arguments.is_partial else usual}

    return Setting((option,), read, lambda options: written.get(options.get(option), {}))


def _has_pipeline(options: Options) -> bool:
    return bool(options.get("pp", 1) > 1)


def _read_batch(arguments: Arguments, _: Options) -> Options:
    batch = arguments.count("global_batch_size", word="global_batch")
    if batch is None:
        arguments.assumed.append("no global_batch_size: one microbatch a replica, as Megatron-LM takes it")
    return {"global_batch": batch, "microbatches": 1 if batch is None else None}


def _read_gpus(arguments: Arguments, _: Options) -> Options:
    return {"gpus": arguments.count("world_size", word="gpus") or arguments.launched_gpus()}


def _read_expert_tp(arguments: Arguments, options: Options) -> Options:
    name = "expert_tensor_parallel_size"
    size = arguments.count(name, word="etp")
    is_default = size == (options["tp"] or 1) and not arguments.asks(name)
    return {"etp": None if is_default else size}


def _read_stages(arguments: Arguments, options: Options) -> Options:
    model, pp, vpp = options["model"], options["pp"], None
    layout = arguments.get("pipeline_model_parallel_layout", word="split")
    for name in ("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"):
        vpp = arguments.count(name, word="vpp") or vpp
    each = arguments.count("num_layers_per_virtual_pipeline_stage", word="vpp")
    pattern = hybrid_pattern(arguments, len(model.layers)) if model is not None else None
    if layout is not None:
        is_list = isinstance(layout, list)
        layout = "|".join("".join(map(str, part)) for part in layout) if is_list else str(layout)
    elif pattern and (layout := layout_of(pattern, len(model.mtp))):
        vpp = (layout.count("|") + 1) // pp
    elif each and model is not None:
        counted = sum(arguments.flag(name, word=name) for name in COUNTED_IN_SPLIT)
        vpp = (len(model.layers) + counted) // pp // each
    return {"split": layout, "vpp": vpp or None}


def _write_stages(options: Options) -> dict[str, Any]:
    split, vpp = options.get("split"), options.get("vpp", 1)
    if not _has_pipeline(options):
        return {}
    has_rule = any(options.get(name) is not None and options[name] is not False for name in MEGATRON_SPLIT)
    if isinstance(split, str) and not has_rule:
        return {"pipeline_model_parallel_layout": split}
    return named("num_virtual_stages_per_pipeline_rank", vpp, vpp > 1)


_ALGORITHMS = {
    "zero-bubble": "zb-h1", "zero-bubble-heuristic": "zb-auto", "zbv-formatted": "zbv", "v-half": "v-half",
    "v-min": "v-min",
}  # fmt: skip


def _read_schedule(arguments: Arguments, _: Options) -> Options:
    """Primus has two pipeline implementations that replace Megatron-LM's loops."""
    name = None
    if arguments.flag("patch_primus_pipeline", word="schedule"):
        name = _ALGORITHMS.get(str(arguments.get("pp_algorithm", "1f1b-interleaved", word="schedule")))
    elif arguments.flag("patch_zero_bubble", word="schedule"):
        setup = str(arguments.get("zero_bubble_v_schedule_mem_setup", "half", word="schedule"))
        name = "zb-auto" if arguments.flag("enable_zero_bubble", default=True, word="schedule") else None
        if arguments.flag("zero_bubble_v_schedule", word="schedule"):
            name = {"half": "v-half", "min": "v-min", "zb": "zbv"}.get(setup)
        elif arguments.flag("enable_1f1b_v", word="schedule"):
            name = "1f1b-v"
    return {"schedule": name, "vpp": None, "runtime": "torch", "overlap_p2p": None} if name else {}


def _write_schedule(options: Options) -> dict[str, Any]:
    algorithm = next((name for name, ours in _ALGORITHMS.items() if ours == options.get("schedule")), None)
    return {"patch_primus_pipeline": True, "pp_algorithm": algorithm} if algorithm else {}


def _read_recompute(arguments: Arguments, _: Options) -> Options:
    word = "recompute"
    how = arguments.choice("recompute_granularity", ("full", "selective"), word=word)
    if how == "full":
        layers = arguments.count("recompute_num_layers", word=word, least=0)
        method = arguments.choice("recompute_method", (BLOCK, UNIFORM), word=word)
        return {word: "full" if method is None or layers is None else recompute_of(f"{method}/{layers}")}
    if how is None:
        return {word: None}
    given = arguments.get("recompute_modules", ["core_attn"], word=word)
    return {word: _known_modules(arguments, given, MODULES, "recomputed")}


def _read_layers_by_number(arguments: Arguments, options: Options) -> Options:
    """Primus' `recompute_layer_ids` number the model's layers, followed by the MTP layers."""
    is_full = arguments.get("recompute_granularity", word="recompute") == "full"
    if not is_full or not (ids := arguments.get("recompute_layer_ids", word="recompute")):
        return {}
    given = re.findall(r"-?\w+", _text(ids))
    if not given or not all(one.isdecimal() for one in given):
        raise ConfigError(f"{arguments.source}: recompute_layer_ids are numbers of layers as 0,3,4: got {ids!r}")
    number = arguments.count("num_layers", word="layers", least=1) or 0
    if number and (further := [one for one in given if int(one) >= number]):
        arguments.assumed.append(f"layers for further tokens ({', '.join(further)}) are taken not to be recomputed")
        given = [one for one in given if one not in further]
    return {"recompute": recompute_of(f"full@{','.join(given)}" if given else "none")}


def _write_recompute(options: Options) -> dict[str, Any]:
    recompute = options.get("recompute", "none")
    method, _, layers = (f"{UNIFORM}/1" if recompute == "full" else recompute).partition("/")
    if method in (BLOCK, UNIFORM):
        how = {"recompute_granularity": "full", "recompute_method": method}
        return how | {"recompute_num_layers": int(layers)}
    if all(module in MODULES and module != "mlp_act" for module in recompute.split("+")):  # mlp_act is ppsim's
        return {"recompute_granularity": "selective", "recompute_modules": recompute.split("+")}
    return {}


def _write_layers_by_number(options: Options) -> dict[str, Any]:
    ids = ",".join(map(str, layer_ids(options.get("recompute", "none"))))
    return {"recompute_granularity": "full", "recompute_layer_ids": ids} if ids else {}


def _known_modules(arguments: Arguments, modules: Any, known: Mapping[str, str], done: str) -> str | None:
    asked = re.findall(r"\w+", _text(modules))
    if other := [module for module in asked if module not in known]:
        arguments.assumed.append(f"not {done}, since unknown: {', '.join(other)}")
    return "+".join(module for module in known if module in asked) or None


def _text(entries: Any) -> str:
    return " ".join(map(str, entries)) if isinstance(entries, list | tuple) else str(entries)


_RECIPES = {"float8-block": "blockwise", "mxfp8": "mxfp8"}
"""Number formats with a value of --fp8-recipe; delayed and tensorwise both have one scale per tensor."""
_FORMATS: dict[str, dict[str, Any]] = {
    "float16": {"bf16": False, "fp16": True},
    "float32": {"bf16": False},
    "float8": {"bf16": True, "fp8": "hybrid"},
    **{dtype: {"bf16": True, "fp8": "e4m3", "fp8_recipe": recipe} for dtype, recipe in _RECIPES.items()},
    "nvfp4": {"bf16": True, "fp4": "e2m1"},
}
_IN_16_BITS = ("bfloat16", "float16", "float32")


def _read_dtype(arguments: Arguments, _: Options) -> Options:
    bf16, fp16, fp8, fp4 = (arguments.get(name, word="dtype") for name in ("bf16", "fp16", "fp8", "fp4"))
    recipe, recipe_of_fp4 = (arguments.get(name, word="dtype") for name in ("fp8_recipe", "fp4_recipe"))
    if fp4:
        dtype = "mxfp4" if "mxfp4" in (fp4, recipe_of_fp4) else "nvfp4"
    elif fp8:
        dtype = next((name for name, theirs in _RECIPES.items() if theirs == recipe), "float8")
    elif {bf16, fp16, fp8, fp4} == {None} and arguments.is_partial:
        arguments.assumed.append("no number format is given: bfloat16")
        return {"dtype": None}
    else:
        dtype = "float16" if fp16 else "bfloat16" if bf16 else "float32"
    if (fp8 or fp4) and not (bf16 or fp16 or arguments.is_partial):
        arguments.assumed.append(f"{dtype} without bf16: what Megatron-LM has in float32 is taken as bfloat16")
    return {"dtype": dtype}


def _read_sharding(arguments: Arguments, _: Options) -> Options:
    name = str(arguments.get("optimizer", "adam", word="optimizer"))
    if name not in ("adam", "muon", "dist_muon"):
        arguments.assumed.append(f"optimizer {name} is not known: taken as adam")
    zero = int(arguments.flag("use_distributed_optimizer", word="zero") or name == "dist_muon")
    if arguments.flag("use_megatron_fsdp", word="zero") or arguments.flag("use_custom_fsdp", word="zero"):
        zero = _ZERO.get(str(arguments.get("data_parallel_sharding_strategy", "no_shard", word="zero")), zero)
    if is_fsdp2 := arguments.flag("use_torch_fsdp2", word="fully_shard"):
        zero = 3
    is_layer_wise = zero == 1 and "muon" in name  # arguments.py at d98e8a64: validate_args
    return {
        "zero": zero, "fully_shard": is_fsdp2 or None, "optimizer": "muon" if "muon" in name else "adam",
        "layer_wise": is_layer_wise or None,
    }  # fmt: skip


def _write_sharding(options: Options) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    if (zero := options.get("zero")) is not None:
        arguments["use_distributed_optimizer"] = zero >= 1
        if options.get("fully_shard"):
            arguments |= {"use_torch_fsdp2": zero == 3, "no_gradient_accumulation_fusion": True}
        elif zero >= 2:
            strategy = next(name for name, stage in _ZERO.items() if stage == zero)
            arguments |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": strategy}
    return arguments | named("optimizer", "muon", options.get("optimizer") == "muon")


_ZERO = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def _read_layer_wise(arguments: Arguments, options: Options) -> Options:
    word = "use_layer_wise_param_layout"
    has_layout = options["optimizer"] != "muon" or arguments.flag(word, default=True, word=word)
    return {word: None if has_layout or not options["layer_wise"] else False}


def _write_layer_wise(options: Options) -> dict[str, Any]:
    is_off = options.get("optimizer") == "muon" and options.get("use_layer_wise_param_layout") is False
    return named("no_use_layer_wise_param_layout", True, is_off)


_INSTANCES, _OUTER = "num_distributed_optimizer_instances", "outer_dp_sharding_strategy"


def _read_instances(arguments: Arguments, options: Options) -> Options:
    count = arguments.count(_INSTANCES, word=_INSTANCES)
    strategy = arguments.get(_OUTER, word=_OUTER) if options["zero"] == 3 else None
    return {_INSTANCES: count if options["zero"] and (count or 1) > 1 else None, _OUTER: strategy}


def _write_instances(options: Options) -> dict[str, Any]:
    instances, strategy = options.get(_INSTANCES, 1), options.get(_OUTER, "no_shard")
    return named(_INSTANCES, instances, instances > 1) | named(_OUTER, strategy, strategy != "no_shard")


def _read_overlap_dp(arguments: Arguments, options: Options) -> Options:
    names, zero = ("overlap_grad_reduce", "overlap_param_gather"), options["zero"]
    reduces, gathers = (arguments.flag(name, word=name) for name in names)
    return {names[0]: reduces or zero >= 2, names[1]: gathers or zero == 3 if zero else None}


def _write_overlap_dp(options: Options) -> dict[str, Any]:
    if (reduces := options.get("overlap_grad_reduce")) is None:
        return {}
    gathers = reduces and options.get("zero", 0) > 0 and options.get("overlap_param_gather", False)
    return {"overlap_grad_reduce": reduces, "overlap_param_gather": gathers}


_MOMENTS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}
"""`--exp-avg-dtype` as values of ppsim; Megatron-Bridge writes torch's names."""
_AWARE = "use_precision_aware_optimizer"


def _read_moments(arguments: Arguments, _: Options) -> Options:
    """Only a precision-aware optimizer can change the number format of the moments."""
    given = [arguments.get(name, word="exp_avg_dtype") for name in ("exp_avg_dtype", "exp_avg_sq_dtype")]
    if not arguments.flag(_AWARE, word="exp_avg_dtype") or given[0] is None:
        return {"exp_avg_dtype": None}
    first, second = (str(one or "fp32").removeprefix("torch.") for one in given)
    if first != second:
        arguments.assumed.append(f"both moments are taken as {first}, of which one is {second}")
    dtype = _MOMENTS.get(first, first)
    if dtype not in _MOMENTS.values():
        raise ConfigError(f"{arguments.source}: exp_avg_dtype must be {', '.join(_MOMENTS)}: got {first}")
    return {"exp_avg_dtype": dtype}


def _write_moments(options: Options) -> dict[str, Any]:
    if (moments := options.get("exp_avg_dtype", "float32")) == "float32":
        return {}
    dtype = next(name for name, ours in _MOMENTS.items() if ours == moments)
    return {"exp_avg_dtype": dtype, "exp_avg_sq_dtype": dtype}


def _read_precision_aware(arguments: Arguments, _: Options) -> Options:
    """Return whether gradients are decoupled (Megatron-LM at d98e8a64, core/optimizer/optimizer_config.py).

    Megatron-LM's default of fp8_recipe is delayed. Megatron-Bridge copies tensorwise to the optimizer, also for
    bfloat16 (training/mixed_precision.py at 067f987d).
    """
    recipe = arguments.get("fp8_recipe", "tensorwise" if arguments.is_partial else "delayed", word="dtype")
    main_weights = _dtype_of(arguments, "main_params_dtype", _AWARE) or "float32"
    is_decoupled = recipe == "delayed" or main_weights not in ("float32", "fp32")
    return {_AWARE: (arguments.flag(_AWARE, word=_AWARE) and is_decoupled) or None}


def _dtype_of(arguments: Arguments, name: str, word: str) -> str:
    return str(arguments.get(name, "", word=word)).removeprefix("torch.")


def _write_precision_aware(options: Options) -> dict[str, Any]:
    """The recipe decides whether gradients are decoupled, unless main weights have 16 bits."""
    is_decoupled, has_recipe = options.get(_AWARE), options.get("dtype") in _RECIPES
    if not is_decoupled and options.get("exp_avg_dtype", "float32") == "float32":
        return {}
    arguments: dict[str, Any] = {_AWARE: True}
    if is_decoupled and has_recipe:
        arguments["main_params_dtype"] = "fp16"
    elif not is_decoupled and not has_recipe:
        arguments["fp8_recipe"] = "tensorwise"
    return arguments


_ON_HOST, _HOST_OVERLAP = "optimizer_offload_fraction", "overlap_cpu_optimizer_d2h_h2d"


def _read_optimizer_offload(arguments: Arguments, options: Options) -> Options:
    """The default fraction is 1 in Megatron-LM's arguments, but 0 in `OptimizerConfig`, used by a partial file."""
    is_on = arguments.flag("optimizer_cpu_offload", word=_ON_HOST)
    part = arguments.part(_ON_HOST, 0.0 if arguments.is_partial else 1.0, word=_ON_HOST)
    overlaps = arguments.flag(_HOST_OVERLAP, word=_HOST_OVERLAP)
    if not is_on or not part:
        return {}
    found: dict[str, Any] = {_ON_HOST: part, _HOST_OVERLAP: overlaps or None, _AWARE: None}
    if options["exp_avg_dtype"] not in (None, "float32"):
        arguments.assumed.append("both moments are float32, which the optimizer on the host has")
        found["exp_avg_dtype"] = None
    return found


def _write_optimizer_offload(options: Options) -> dict[str, Any]:
    if not (part := options.get(_ON_HOST)):
        return {}
    overlap = named(_HOST_OVERLAP, True, options.get(_HOST_OVERLAP))
    return {"optimizer_cpu_offload": True, _ON_HOST: part, _AWARE: True} | overlap


def _read_gradients(arguments: Arguments, _: Options) -> Options:
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
        return {word: of_fsdp not in ("float32", "fp32")}
    if arguments.flag(_AWARE, word=_AWARE) and of_optimizer in ("bfloat16", "bf16"):
        return {word: True}
    if arguments.get("fp16", word="dtype"):
        return {word: False if in_32_bits else None}
    if in_16_bits is None:
        return {word: None if in_32_bits is None else not in_32_bits}
    return {word: bool(in_16_bits)}


def _write_gradients(options: Options) -> dict[str, Any]:
    in_16_bits, is_fsdp = options.get("grad_reduce_in_bf16"), options.get("zero", 0) >= 2
    if options.get("dtype") == "float16":
        return {"accumulate_allreduce_grads_in_fp32": in_16_bits is False}
    if in_16_bits:
        return {"grad_reduce_in_bf16": True}
    return named("megatron_fsdp_main_grads_dtype", "fp32", is_fsdp and not options.get("fully_shard"))


def _read_wgrad_deferral(arguments: Arguments, _: Options) -> Options:
    word = "wgrad_deferral_limit"
    is_on = arguments.flag("defer_embedding_wgrad_compute", word=word)
    return {word: (arguments.count(word, word=word, least=0) or 0) if is_on else None}


def _write_wgrad_deferral(options: Options) -> dict[str, Any]:
    limit = named("wgrad_deferral_limit", options.get("wgrad_deferral_limit"))
    return {"defer_embedding_wgrad_compute": True} | limit if limit else {}


_PRIMARY = ("fp8_param_gather", "fp4_param_gather", "fp8_param", "fp4_param", "fp8_params")
"""Names of one option in Megatron-LM, Megatron-Bridge and NeMo."""
_ENDS = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")


def _read_narrow_weights(arguments: Arguments, options: Options) -> Options:
    """Return options on weights in 8 or 4 bits, for GEMMs in as few.

    With torch's FSDP2, Megatron-LM gathers 16 bits (arguments.py at d98e8a64). Megatron-FSDP gathers plain tensors,
    of which TransformerEngine caches copies (module/linear.py at d0067d0d: `cache_name`).
    """
    word, bits = "fp8_param_gather", "fp4" if options["dtype"] in ("nvfp4", "mxfp4") else "fp8"
    primary = {name: arguments.flag(name, word=word) for name in _PRIMARY}
    arguments.flag("reuse_grad_buf_for_mxfp8_param_ag", word=word)
    recasts = arguments.flag("disable_parameter_transpose_cache", word="weight_cache")
    has_rows_only = not arguments.flag("fp8_weight_transpose_cache", default=True, word="weight_cache")
    # Megatron-LM's default is one layer at each end (core/transformer/transformer_config.py)
    ends = {name: arguments.count(name, 1, word=name, least=0) or None for name in _ENDS}
    has_ends = arguments.flag("first_last_layers_bf16", word=_ENDS[0])
    if options["dtype"] in _IN_16_BITS:
        return {}
    default = "none" if options["zero"] == 3 else "all"
    cache = "none" if recasts or options["fully_shard"] else "rowwise" if has_rows_only else "all"
    is_primary = any(primary[name] for name in _PRIMARY if name.startswith(bits)) and not options["fully_shard"]
    is_default = cache == default or (is_primary and cache != "rowwise")
    weights = {word: is_primary or None, "weight_cache": None if is_default else cache}
    return weights | (ends if has_ends else {})


def _write_narrow_weights(options: Options) -> dict[str, Any]:
    dtype, zero = options.get("dtype", "bfloat16"), options.get("zero", 1)
    if dtype in _IN_16_BITS:
        return {}
    arguments: dict[str, Any] = {}
    if any(map(options.get, _ENDS)):
        arguments = {"first_last_layers_bf16": True} | {name: options.get(name, 0) for name in _ENDS}
    if options.get("fp8_param_gather") and not options.get("fully_shard"):
        arguments["fp4_param_gather" if dtype == "nvfp4" else "fp8_param_gather"] = True
        if dtype == "mxfp8" and zero < 2:
            arguments["reuse_grad_buf_for_mxfp8_param_ag"] = True
    elif options.get("weight_cache", "none" if zero == 3 else "all") == "none":
        arguments["disable_parameter_transpose_cache"] = True
    return arguments


def _read_sequence_parallel(arguments: Arguments, _: Options) -> Options:
    return {"sequence_parallel": arguments.flag("sequence_parallel", word="sequence_parallel")}


def _read_attention(arguments: Arguments, _: Options) -> Options:
    backend = arguments.get("attention_backend", word="attention")
    if arguments.get("transformer_impl", word="attention") == "local":
        backend = backend or "local"
    in_8_bits = arguments.flag("fp8_dot_product_attention", word="attention")
    is_unfused = str(backend).rpartition(".")[2] in ("unfused", "local")
    kernel = None if backend is None else "unfused" if is_unfused else "fused"
    return {"attention": "fused-fp8" if in_8_bits and not is_unfused else kernel}


def _write_attention(options: Options) -> dict[str, Any]:
    if (kernel := options.get("attention")) is None:
        return {}
    arguments = {"attention_backend": "unfused" if kernel == "unfused" else "auto"}
    return arguments | named("fp8_dot_product_attention", True, kernel == "fused-fp8")


_DROPOUT = 0.1
"""Default of attention_dropout and hidden_dropout (megatron/training/arguments.py)."""
_DROPOUTS = ("attention_dropout", "hidden_dropout")


def _read_dropout(arguments: Arguments, _: Options) -> Options:
    """A variable that the file does not set counts as above 0."""
    parts = [arguments.get(name, word="dropout") for name in _DROPOUTS]
    if arguments.is_partial and parts == [None, None]:
        return {"dropout": None}
    drops = any(not isinstance(part, int | float) or part > 0 for part in parts)
    if None in parts and drops:
        arguments.assumed.append(
            f"attention_dropout or hidden_dropout is not given: {_DROPOUT}, Megatron-LM's default"
        )
    return {"dropout": drops}


def _write_dropout(options: Options) -> dict[str, Any]:
    return dict.fromkeys(_DROPOUTS, _DROPOUT * options["dropout"]) if "dropout" in options else {}


_STORE = "activation_func_fp8_input_store"


def _read_8_bit_store(arguments: Arguments, _: Options) -> Options:
    """Only a fused activation saves its input in 8 bits (Megatron-LM at d98e8a64, core/transformer/mlp.py)."""
    word = _STORE
    if not arguments.flag(word, word=word):
        return {}
    names = ("bias_swiglu_fusion", "bias_activation_fusion")
    by_te = arguments.flag("use_te_activation_func", word=word)
    return {word: by_te or all(arguments.flag(name, default=True, word=word) for name in names) or None}


_OFFLOAD_RULES = {
    "min_offloaded_tensor_size": "min_offloaded_tensor_size",
    "max_inflight_offloads": "fine_grained_offloading_max_inflight_offloads",
}
_PART = "activation_offload_fraction"


def _read_offload(arguments: Arguments, _: Options) -> Options:
    """Megatron-LM's `--cpu-offloading-num-layers` is not possible with pipelines.

    Megatron-LM's arguments switch the offload on by the number alone (training/arguments.py, `validate_args`).
    """
    is_on = arguments.flag("fine_grained_activation_offloading", word="offload_modules")
    given = arguments.get("offload_modules", [], word="offload_modules")
    rules: dict[str, Any] = {
        word: arguments.count(name, word=word, least=0) for word, name in _OFFLOAD_RULES.items()
    }
    part = arguments.part(_PART, 1.0, word=_PART)
    if is_on and (modules := _known_modules(arguments, given, OFFLOADED, "offloaded")):
        return {"offload_modules": modules, **rules, _PART: None if part == 1 else part}
    whole, name = arguments.count("num_layers", word="layers"), "cpu_offloading_num_layers"
    is_on = arguments.flag("cpu_offloading", word="offload") or not arguments.is_partial
    of_activations = arguments.flag("cpu_offloading_activations", default=True, word="offload")
    if not (arguments.has(name) and is_on and of_activations and whole):
        return {}
    return {"offload": min(1.0, (arguments.count(name, word="offload", least=0) or 0) / whole)}


def _write_offload(options: Options) -> dict[str, Any]:
    if not (modules := options.get("offload_modules")):
        return {}
    names = _OFFLOAD_RULES | {_PART: _PART}
    arguments = {"fine_grained_activation_offloading": True, "offload_modules": modules.split("+")}
    return arguments | {name: options[word] for word, name in names.items() if options.get(word) is not None}


def _read_context(arguments: Arguments, _: Options) -> Options:
    kinds = set(_text(arguments.get("cp_comm_type", "", word="context")).split())
    if kinds == {"a2a"}:
        return {"context": "all-to-all"}
    if kinds - {"p2p"}:
        arguments.assumed.append(f"cp_comm_type {'+'.join(sorted(kinds))} is not known: taken as p2p, the ring")
    return {}


HIDDEN_BY_USERBUFFERS = "0.5"
"""Hidden fraction of tensor-parallel communication with `tp_comm_overlap`, from the calibration runs of
Megatron-Bridge.
"""
_WITHOUT_USERBUFFERS = "0,0.67"
"""Hidden fraction of tensor-parallel communication (forward, backward) by TransformerEngine without userbuffers,
which the trainer of a partial file (Megatron-Bridge) uses.

This is the 4-bit value of data/stacks.toml. In the backward pass, TransformerEngine gathers the input during the
input-gradient GEMM and scatters that gradient during the weight-gradient GEMM: two of three collectives.
"""


def _read_overlap_tp(arguments: Arguments, _: Options) -> Options:
    name, word = "tp_comm_overlap", "overlap_tp"
    if arguments.get(name, word=word) is None:
        return {}
    if not arguments.flag(name, word=word):
        return {word: _WITHOUT_USERBUFFERS if arguments.is_partial else "0"}
    hidden = 100 * float(HIDDEN_BY_USERBUFFERS)
    arguments.assumed.append(f"{name}: {hidden:g} % of TP communication is hidden")
    return {word: HIDDEN_BY_USERBUFFERS}


def _write_overlap_tp(options: Options) -> dict[str, Any]:
    in_forward = str(options.get("overlap_tp", 0)).partition(",")[0]  # only userbuffers hide communication of F
    return named("tp_comm_overlap", True, float(in_forward))


_DISPATCHERS = {"alltoall": "alltoall", "alltoall_seq": "alltoall", "allgather": "allgather"}
"""For flex, `--moe-flex-dispatcher-backend` selects one of `FLEX`, by default the first."""
_SMS = {"deepep": "moe_deepep_num_sms", "hybridep": "moe_hybridep_num_sms"}
_NUM_SMS = "moe_flex_dispatcher_num_sms"
"""Replaces the option of each backend in Megatron-LM 0.19."""


def _read_dispatcher(arguments: Arguments, _: Options) -> Options:
    word, kinds = "moe_dispatcher", (*_DISPATCHERS, "flex")
    usual = None if arguments.is_partial else "allgather"
    arguments.get("moe_enable_deepep", word=word)
    kind = arguments.choice("moe_token_dispatcher_type", kinds, usual, word=word)
    backend = arguments.choice("moe_flex_dispatcher_backend", FLEX, FLEX[0], word=word)
    dispatcher = backend if kind == "flex" else _DISPATCHERS.get(str(kind))
    sms = {name: arguments.count(name, word=_NUM_SMS) for name in (_NUM_SMS, *_SMS.values())}
    return {word: dispatcher, _NUM_SMS: (sms[_NUM_SMS] or sms[_SMS[dispatcher]]) if dispatcher in _SMS else None}


def _write_dispatcher(options: Options) -> dict[str, Any]:
    dispatcher = options.get("moe_dispatcher")
    if dispatcher not in FLEX:
        return named("moe_token_dispatcher_type", dispatcher)
    arguments = {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": dispatcher}
    return arguments | named(_SMS[dispatcher], options.get(_NUM_SMS) or None)


def _read_permute_fusion(arguments: Arguments, _: Options) -> Options:
    word = "moe_permute_fusion"
    permutes = arguments.flag(word, default=arguments.is_partial, word=word)
    without_sync = arguments.get("turbo_sync_free_moe_stage", 0, word=word)  # Primus, from 1 on
    return {word: None if permutes or without_sync else False}


def _write_permute_fusion(options: Options) -> dict[str, Any]:
    return named(
        "moe_permute_fusion", True, options.get("moe_dispatcher") and options.get("moe_permute_fusion", True)
    )


def _read_capacity(arguments: Arguments, _: Options) -> Options:
    word = "moe_expert_capacity_factor"
    if (capacity := arguments.get(word, word=word)) is None:
        return {}
    if isinstance(capacity, bool) or not isinstance(capacity, int | float) or capacity <= 0:
        raise ConfigError(f"{arguments.source}: {word} must be a number above 0: got {capacity!r}")
    if not arguments.flag("moe_pad_expert_input_to_capacity", word=word):
        arguments.assumed.append("experts with fewer tokens than their capacity are taken to be padded to it")
    return {word: float(capacity)}


def _write_capacity(options: Options) -> dict[str, Any]:
    capacity = named("moe_expert_capacity_factor", options.get("moe_expert_capacity_factor"))
    return capacity | {"moe_pad_expert_input_to_capacity": True} if capacity else {}


def _read_stash(arguments: Arguments, _: Options) -> Options:
    word, room = "moe_paged_stash", "moe_expert_rank_capacity_factor"
    buffer = arguments.get("moe_paged_stash_buffer_size_factor_cuda", 1.1, word=word)
    is_on = arguments.flag(word, word=word)
    return {room: arguments.get(room, word=room), word: buffer if is_on else None}


def _write_stash(options: Options) -> dict[str, Any]:
    room, buffer = (options.get(name) for name in ("moe_expert_rank_capacity_factor", "moe_paged_stash"))
    arguments = {"moe_paged_stash": True, "moe_paged_stash_buffer_size_factor_cuda": buffer} if buffer else {}
    return named("moe_expert_rank_capacity_factor", room) | arguments


def _read_balancing(arguments: Arguments, _: Options) -> Options:
    is_forced = arguments.flag("moe_router_force_load_balancing", word="expert_imbalance")
    return {"expert_imbalance": 1.0 if is_forced else None}


def _read_graphs(arguments: Arguments, _: Options) -> Options:
    word = "cuda_graphs"
    how = arguments.get("cuda_graph_impl", word=word)
    for name, meant in (("enable_cuda_graph", "local"), ("external_cuda_graph", "transformer_engine")):
        if arguments.flag(name, word=word) and how in (None, "none"):
            how = meant
    scopes = [arguments.get(name, word=word) for name in ("cuda_graph_modules", "cuda_graph_scope")]
    if how is None or how == "none":
        return {}
    asked = re.findall(r"\w+", " ".join(_text(scope) for scope in scopes if scope is not None))
    if how == "full_iteration" or "full_iteration" in asked:
        return {word: "full"}
    modules = [module for module in asked if module not in ("full", "full_iteration_inference")]
    if other := [module for module in modules if module not in CAPTURED]:
        arguments.assumed.append(f"not captured, since unknown: {', '.join(other)}")
    captured = "+".join(module for module in modules if module in CAPTURED)
    return {word: cuda_graphs_of(captured) if captured else "layer"}


def _write_graphs(options: Options) -> dict[str, Any]:
    if (graphs := options.get("cuda_graphs", "none")) == "none":
        return {}
    if graphs == "full":
        return {"cuda_graph_impl": "full_iteration"}
    return {"cuda_graph_impl": "transformer_engine"} | named(
        "cuda_graph_modules", graphs.split("+"), graphs != "layer"
    )


SETTINGS = (
    count("tp", "tensor_model_parallel_size"),
    count("pp", "pipeline_model_parallel_size", 1),
    count("cp", "context_parallel_size"),
    count("ep", "expert_model_parallel_size"),
    count("micro_batch", "micro_batch_size", 1),
    Setting(("global_batch", "microbatches"), _read_batch, written_as("global_batch", "global_batch_size")),
    count("seq_len", "seq_length"),
    count("group_size", "microbatch_group_size_per_vp_stage"),
    Setting(("gpus",), _read_gpus, lambda _: {}),
    Setting(("runtime",), lambda *_: {"runtime": "megatron"}, lambda _: {}),
    Setting(("etp",), _read_expert_tp, written_as("etp", "expert_tensor_parallel_size"), True),
    *(count(name, name, least=0, when=_has_pipeline) for name in MEGATRON_SPLIT if name not in COUNTED_IN_SPLIT),
    *(_flag(name, name, when=_has_pipeline) for name in COUNTED_IN_SPLIT),
    Setting(("split", "vpp"), _read_stages, _write_stages),
    _flag("overlap_p2p", "overlap_p2p_comm", "no_overlap_p2p_communication",
          when=lambda options: _has_pipeline(options) and options.get("vpp", 1) > 1),
    Setting(("recompute",), _read_recompute, _write_recompute),
    Setting(("dtype",), _read_dtype, lambda options: _FORMATS.get(options.get("dtype", ""), {"bf16": True})),
    Setting(("zero", "fully_shard", "optimizer", "layer_wise"), _read_sharding, _write_sharding),
    Setting(("use_layer_wise_param_layout",), _read_layer_wise, _write_layer_wise),
    _cases("order", {"tp-cp-ep-pp-dp": {"use_tp_pp_dp_mapping": True}}),
    Setting(("exp_avg_dtype",), _read_moments, _write_moments),
    Setting((_AWARE,), _read_precision_aware, _write_precision_aware),
    Setting(("sequence_parallel",), _read_sequence_parallel, written_as("sequence_parallel", "sequence_parallel")),
    Setting((_ON_HOST, _HOST_OVERLAP), _read_optimizer_offload, _write_optimizer_offload),
    Setting((_INSTANCES, _OUTER), _read_instances, _write_instances),
    Setting(("wgrad_deferral_limit",), _read_wgrad_deferral, _write_wgrad_deferral),
    _flag("gradient_accumulation_fusion", "gradient_accumulation_fusion", "no_gradient_accumulation_fusion"),
    Setting(("fp8_param_gather", "weight_cache", *_ENDS), _read_narrow_weights, _write_narrow_weights),
    Setting(("grad_reduce_in_bf16",), _read_gradients, _write_gradients),
    Setting(("overlap_grad_reduce", "overlap_param_gather"), _read_overlap_dp, _write_overlap_dp),
    count("bucket_size", "ddp_bucket_size"),
    Setting(("attention",), _read_attention, _write_attention),
    Setting(("dropout",), _read_dropout, _write_dropout),
    _flag("deterministic_mode", "deterministic_mode"),
    _cases("cross_entropy", {
        "unfused": {"cross_entropy_loss_fusion": False},
        "compiled": {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "native"},
        "fused": {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"},
    }, {"compiled": {"cross_entropy_loss_fusion": True}}, usual="unfused"),
    Setting((_STORE,), _read_8_bit_store, written_as(_STORE, _STORE, lambda options: options.get(_STORE))),
    Setting(("offload_modules", "offload", _PART, *_OFFLOAD_RULES), _read_offload, _write_offload),
    Setting(("context",), _read_context,
            lambda options: named("cp_comm_type", "a2a", options.get("context") == "all-to-all")),
    Setting(("overlap_tp",), _read_overlap_tp, _write_overlap_tp),
    _cases("overlap_ep", {
        "megatron": {"overlap_moe_expert_parallel_comm": True},
        "megatron-delay-wgrad": {"overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True},
    }, {0.0: {"overlap_moe_expert_parallel_comm": False}}),
    _cases("scatter_gather", {}, {False: {"scatter_gather_tensors_in_pipeline": False}}),
    Setting(("moe_dispatcher", _NUM_SMS), _read_dispatcher, _write_dispatcher, True),
    Setting(("moe_permute_fusion",), _read_permute_fusion, _write_permute_fusion, True),
    Setting(("moe_expert_capacity_factor",), _read_capacity, _write_capacity, True),
    _flag("moe_use_legacy_grouped_gemm", "moe_use_legacy_grouped_gemm", of_experts=True),
    _flag("fused_experts", "use_transformer_engine_op_fuser", of_experts=True),
    Setting(("moe_expert_rank_capacity_factor", "moe_paged_stash"), _read_stash, _write_stash, True),
    Setting(("expert_imbalance",), _read_balancing, lambda _: {}, True),
    Setting(("cuda_graphs",), _read_graphs, _write_graphs),
    Setting(("schedule", "runtime"), _read_schedule, _write_schedule, of_primus=True),
    Setting(("recompute",), _read_layers_by_number, _write_layers_by_number, of_primus=True),
)  # fmt: skip
"""In the order of written files; a later row may read an option of an earlier one again."""


def read_settings(arguments: Arguments, model: Model | None) -> dict[str, Any]:
    """Return the options that the arguments set, None for others."""
    has_experts = arguments.count("num_experts", least=0)
    rows = [row for row in SETTINGS if has_experts or not row.of_experts]
    options = read_rows(rows, arguments, {"model": model})
    return {name: option for name, option in options.items() if name != "model"}


def write_settings(options: Options, *, has_experts: bool = True, of_primus: bool = False) -> dict[str, Any]:
    rows = [row for row in SETTINGS if has_experts >= row.of_experts and of_primus >= row.of_primus]
    return write_rows(rows, options)
