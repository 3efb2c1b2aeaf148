"""TorchTitan's settings for a plan: one table that serves reading and writing.

`release` of the options to write is 0.2, 0.3 or main; `entry` has the settings of the registry entry.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Model
from ppsim.model.recompute import BY_OPERATORS, recompute_of
from ppsim.trainers.arguments import Arguments
from ppsim.trainers.local_batch import LocalBatch
from ppsim.trainers.setting import Options, Setting, count, named

AFTER_0_3 = (
    "training.max_context_length", "training.num_tokens_per_train_step",
    "training.num_tokens_per_microbatch_per_dp_rank", "parallelism.num_pp_microbatches",
)  # fmt: skip


def _is_piped(options: Options) -> bool:
    return bool(options.get("pp", 1) > 1)


def _read_length(arguments: Arguments, _: Options) -> Options:
    length = arguments.count("training.seq_len", word="seq_len")
    return {"seq_len": length or arguments.count("training.max_context_length", 2048, word="seq_len")}


def _write_length(options: Options) -> dict[str, Any]:
    name = "max_context_length" if options["release"] == "main" else "seq_len"
    return named(f"training.{name}", options.get("seq_len"))


_EXPERT_TP = "parallelism.expert_tensor_parallel_degree"


def _read_expert_tp(arguments: Arguments, options: Options) -> Options:
    """Return etp if it differs from tp; without the option (0.2), TorchTitan does not split experts over tp."""
    expert_tp = arguments.count(_EXPERT_TP, 1, word="etp")
    return {"etp": expert_tp if (options["ep"] or 1) > 1 and expert_tp != (options["tp"] or 1) else None}


_SEQUENCE_PARALLEL = "parallelism.enable_sequence_parallel"


def _read_sequence_parallel(arguments: Arguments, _: Options) -> Options:
    is_on = arguments.flag(_SEQUENCE_PARALLEL, default=True, word="sequence_parallel")
    return {"sequence_parallel": None if is_on else False}


def _write_sequence_parallel(options: Options) -> dict[str, Any]:
    """Releases up to 0.2 always have it (aa68af18)."""
    is_off = options.get("sequence_parallel") is False and options["release"] != "0.2"
    return named(_SEQUENCE_PARALLEL, not is_off, is_off or _SEQUENCE_PARALLEL in options["entry"])


def _write_expert_tp(options: Options) -> dict[str, Any]:
    return named(_EXPERT_TP, options.get("etp"), options["release"] == "0.2" and options.get("ep", 1) > 1)


_RESHARDS = "parallelism.fsdp_reshard_after_forward"
_SHARDS, _COPIES = (f"parallelism.data_parallel_{kind}_degree" for kind in ("shard", "replicate"))
_INSTANCES = "num_distributed_optimizer_instances"


def _read_sharding(arguments: Arguments, options: Options) -> Options:
    """Without resharding after each forward, weights stay whole: by default in a pipeline."""
    shard, copies = (arguments.count(name, word="dp", least=-1) for name in (_SHARDS, _COPIES))
    unsharded = 1 if options["pp"] > 1 else 2
    stages = {"always": 3, "never": unsharded, "default": 1 if options["pp"] > 1 else 3}
    found: dict[str, Any] = {"zero": 0, "dp": None, "gpus": None}
    if shard != 1:
        found["zero"] = stages.get(str(arguments.get(_RESHARDS, "default", word="zero")), stages["default"])
        found[_INSTANCES] = copies if (copies or 1) > 1 else None
    launched = arguments.launched_gpus()
    if shard and shard > 0:
        return found | {"dp": shard * (copies or 1)}
    return found | {"gpus": launched or None}


def replicas(options: Options) -> int:
    others = int(options.get("tp", 1) * options.get("cp", 1) * options.get("pp", 1))
    return max(1, int(options["gpus"]) // others)


def _write_sharding(options: Options) -> dict[str, Any]:
    """With a pipeline, TorchTitan keeps weights gathered, as in ZeRO 1."""
    zero, dp = options.get("zero", 1), replicas(options)
    is_sharded = zero >= (1 if _is_piped(options) else 2)
    copies = options.get(_INSTANCES, 1) if is_sharded else dp
    shard = -1 if dp == 1 and is_sharded else dp // copies
    reshards = {(2, False): "never", (3, True): "always"}.get((zero, _is_piped(options)))
    return {_SHARDS: shard, _COPIES: copies} | named(_RESHARDS, reshards)


SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS",
    "interleaved-zb": "InterleavedZeroBubble",
    "zbv-fixed": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
_SCHEDULE = "parallelism.pipeline_parallel_schedule"


def schedule_named(name: str) -> str | None:
    """Return ppsim's name of a schedule of torch.distributed.pipelining, None for an unknown one."""
    plain = name.lower().removeprefix("schedule").replace("_", "")
    return next((ours for ours, theirs in SCHEDULES.items() if theirs.lower() == plain), None)


def known_schedule(arguments: Arguments, name: str) -> str | None:
    """Return ppsim's name of a schedule, None with a note for an unknown one."""
    if (schedule := schedule_named(name)) is None:
        arguments.assumed.append(f"schedule {name} is not known: that of --schedule")
    return schedule


def written_schedule(options: Options) -> str:
    usual = "Interleaved1F1B" if options.get("vpp", 1) > 1 else "1F1B"
    return SCHEDULES.get(options.get("schedule", ""), usual)


def _read_schedule(arguments: Arguments, options: Options) -> Options:
    if options["pp"] == 1:
        return {"schedule": None}
    schedule = known_schedule(arguments, str(arguments.get(_SCHEDULE, "1F1B", word="schedule")))
    # torchtitan/distributed/dual_pipe_v.py: always with expert parallelism
    overlaps = schedule == "dualpipev" and (options["ep"] or 1) > 1
    return {"schedule": schedule, "overlap_ep": "dualpipe" if overlaps else None}


def _write_schedule(options: Options) -> dict[str, Any]:
    return named(_SCHEDULE, written_schedule(options), _is_piped(options))


_PARTS = "parallelism.module_fqns_per_model_part"
_ONE_STAGE = ("gpipe", "1f1b")


def _read_stages(arguments: Arguments, options: Options) -> Options:
    pp, by_rule = options["pp"], _by_rule(arguments, options["pp"], options["schedule"], options["model"])
    if pp == 1 or not (parts := arguments.get(_PARTS, word="split")):
        return by_rule
    split = layers_of_parts(parts.split() if isinstance(parts, str) else parts)
    return {"split": split, "vpp": len(split) // pp, **by_rule}


def layers_of_parts(parts: Sequence[Any]) -> list[int]:
    names = [part.split(",") if isinstance(part, str) else part for part in parts]
    return [sum(bool(re.fullmatch(r"(model\.)?layers\.\d+", str(name))) for name in part) for part in names]


def _by_rule(arguments: Arguments, pp: int, schedule: str | None, model: Model | None) -> dict[str, Any]:
    """Return `vpp` if the layers per stage are given; note the `--split` that equals TorchTitan's own split."""
    less = [
        arguments.number(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1, least=0)
        for end in ("first", "last")
    ]
    each = arguments.count("parallelism.pipeline_parallel_layers_per_stage", word="vpp")
    if pp == 1 or model is None or schedule is None:
        return {}
    num_layers = len(model.layers)
    num_stages = -(-(num_layers + sum(less)) // each) if each else pp * (1 if schedule in _ONE_STAGE else 2)
    if num_stages % pp:
        arguments.assumed.append(
            f"pipeline_parallel_layers_per_stage {each}: ignored, because {num_stages} stages are not a "
            f"multiple of pp {pp}"
        )
        return {}
    if not arguments.has(_PARTS) and (layers := layers_of_stages(num_layers, num_stages, *less)):
        split = ",".join(map(str, layers))
        arguments.assumed.append(f"layers per stage: as --split chooses; TorchTitan's own rule is --split {split}")
    return {"vpp": num_stages // pp} if each else {}


def layers_of_stages(num_layers: int, num_stages: int, first_less: int, last_less: int) -> list[int] | None:
    """Return the layers of each stage (`_generate_llm_fqn_per_model_part`), or None if TorchTitan refuses them.

    Embedding and head count as `first_less` and `last_less` layers. The first stages get the remainder.

    >>> layers_of_stages(32, 4, 1, 1)
    [8, 9, 8, 7]
    """
    each, more = divmod(num_layers + first_less + last_less, num_stages)
    if each < max(first_less, last_less, 1):
        return None
    layers = [each + (stage < more) for stage in range(num_stages)]
    layers[0] -= first_less
    layers[-1] -= last_less
    return layers


def _write_stages(options: Options) -> dict[str, Any]:
    head = "output" if options["release"] == "0.2" else "lm_head"
    return named(_PARTS, module_names(options.get("split"), options.get("pp", 1), head), _is_piped(options))


def module_names(
    split: Any, pp: int, head: str, embedding: str = "tok_embeddings", above: str = ""
) -> list[list[str]] | None:
    """Return the modules of each stage, None for a split that is no list of layers or has an empty inner stage."""
    if not isinstance(split, list) or len(split) % pp or min([1, *split[1:-1]]) < 1:
        return None
    first = [sum(split[:stage]) for stage in range(len(split))]
    parts = [[f"{above}layers.{first[stage] + k}" for k in range(count)] for stage, count in enumerate(split)]
    parts[0].insert(0, f"{above}{embedding}")
    parts[-1] += [f"{above}norm", head]
    return parts


def _read_batch(arguments: Arguments, options: Options) -> Options:
    length = options["seq_len"]
    batch = _local_batch(arguments, length)
    options_of_batch = batch.words(
        options["pp"], arguments.count("training.global_batch_size", word="global_batch", least=-1)
    )
    tokens = arguments.count("training.num_tokens_per_train_step", word="global_batch", least=-1)
    if tokens is not None and tokens > 0:
        options_of_batch |= {"global_batch": _sequences(tokens, length, arguments), "microbatches": None}
    rounds = {**options, **options_of_batch}
    if options["dp"] or options["gpus"]:
        with suppress(ConfigError):  # the user's options may correct the batch later
            batch.fill(rounds, ())
    steps = rounds.get("gradient_accumulation_steps")
    return options_of_batch | {"batch": batch, "gradient_accumulation_steps": steps if steps != 1 else None}


def _local_batch(arguments: Arguments, length: int) -> LocalBatch:
    local = arguments.count("training.local_batch_size", word="micro_batch")
    local = local or arguments.count("training.batch_size", word="micro_batch")
    if any(map(arguments.has, AFTER_0_3)):
        tokens = arguments.count("training.num_tokens_per_microbatch_per_dp_rank", word="micro_batch")
        number = arguments.count("parallelism.num_pp_microbatches", word="microbatches")
        micro = _sequences(tokens, length, arguments) if tokens else local or max(1, 16384 // length)
        return LocalBatch(micro * (number or 1), micro, micro, arguments.source)
    size = arguments.count("parallelism.pipeline_parallel_microbatch_size", word="micro_batch")
    local = local or max(8, size or 1)  # TorchTitan's default is 8
    return LocalBatch(local, size or 1, local, arguments.source)


def _sequences(tokens: int, length: int, arguments: Arguments) -> int:
    if tokens % length:
        raise ConfigError(
            f"{arguments.source}: {tokens} tokens are no multiple of max_context_length {length}: only whole "
            "sequences can be projected"
        )
    return tokens // length


def local_batch(options: Options) -> int:
    """Return the sequences of a data-parallel rank per round of a pipeline, or per microbatch without one."""
    rounds = replicas(options) * options.get("gradient_accumulation_steps", 1)
    return int(options["global_batch"] // rounds if _is_piped(options) else options["micro_batch"])


def _write_batch(options: Options) -> dict[str, Any]:
    """The main branch counts the batch in tokens, and with a pipeline in microbatches (b5bcd76c)."""
    micro, sequences, is_piped = options["micro_batch"], options["global_batch"], _is_piped(options)
    local = local_batch(options)
    if options["release"] == "main":
        return named("parallelism.num_pp_microbatches", local // micro, is_piped) | {
            "training.num_tokens_per_microbatch_per_dp_rank": micro * options["seq_len"],
            "training.num_tokens_per_train_step": sequences * options["seq_len"],
        }
    size = named("parallelism.pipeline_parallel_microbatch_size", micro, is_piped)
    return size | {"training.local_batch_size": local, "training.global_batch_size": sequences}


_MODE, _OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"


def _read_recompute(arguments: Arguments, _: Options) -> Options:
    """Selective recomputation is of every second layer by default in 0.2's TOML, and by operators from 0.3 on."""
    word = "recompute"
    mode = str(arguments.get(_MODE, "selective", word=word))
    if mode == "memory_budget":
        arguments.assumed.append(f"{_MODE} memory_budget: as none, the compiler's choice is not known")
    if mode != "selective":
        return {word: "full" if mode == "full" else "none"}
    option = str(arguments.get(_OPTION, "op", word=word))
    return {word: BY_OPERATORS if option == "op" else recompute_of(f"full/{option}")}


def _write_recompute(options: Options) -> dict[str, Any]:
    recompute, is_of_0_2 = options["recompute"], options["release"] == "0.2"
    every = "op" if recompute == BY_OPERATORS else recompute.removeprefix("full/")
    if every == "op" or (is_of_0_2 and every.isdecimal()):
        return {_MODE: "selective"} | named(_OPTION, every, is_of_0_2)
    return {_MODE: "full" if recompute == "full" else "none"}


_CONVERTERS = {"float8": "float8", "nvfp4": "nvfp4", "mx": "mxfp8"}
_FLOAT8 = ("float8.", "quantize.linear.float8.")
"""Sections of 0.1 and 0.2."""


def _read_dtype(arguments: Arguments, _: Options) -> Options:
    converters = str(arguments.get("model.converters", [], word="dtype"))
    dtype = next((dtype for sign, dtype in _CONVERTERS.items() if sign in converters), "bfloat16")
    if arguments.get("quantize.first_layers_only", word="dtype"):
        arguments.assumed.append(f"{dtype}: in all layers; the registry keeps the last 15 % in bfloat16")
    recipes = [str(arguments.get(f"{section}recipe_name", "", word="dtype")) for section in _FLOAT8]
    word, is_float8 = "fp8_param_gather", dtype == "float8"
    rows = is_float8 and any(recipe.startswith("rowwise") for recipe in recipes)
    gathers = [arguments.flag(f"{section}enable_fsdp_float8_all_gather", word=word) for section in _FLOAT8]
    return {"dtype": "float8-row" if rows else dtype, word: any(gathers) if is_float8 and not rows else None}


def _write_dtype(options: Options) -> dict[str, Any]:
    """From 0.3 on, only an entry of the registry has a converter."""
    dtype = options["dtype"]
    sign = next((sign for sign, ours in _CONVERTERS.items() if ours == dtype.removesuffix("-row")), None)
    if options["release"] != "0.2" or sign in (None, "nvfp4"):
        return {}
    rows = named(f"{_FLOAT8[1]}recipe_name", "rowwise", dtype == "float8-row")
    gathers = dtype == "float8" and options.get("fp8_param_gather")
    return {"model.converters": [sign]} | rows | named(f"{_FLOAT8[1]}enable_fsdp_float8_all_gather", True, gathers)


HIDDEN_BY_ASYNC_TP = "0.5"
"""Assumed hidden fraction of tensor-parallel communication: the value for Megatron-Core's `tp_comm_overlap`."""
_ASYNC_TP = "enable_async_tensor_parallel"


def _read_compilation(arguments: Arguments, _: Options) -> Options:
    """Before 0.3, the loss is of all tokens at once (components/loss.py of v0.2.2)."""
    enabled = [arguments.get(name, False, word="compile") for name in ("compile.enable", "training.compile")]
    components = arguments.get("compile.components", ["model", "loss"], word="compile")
    compiles = {part: any(enabled) and part in components for part in ("model", "loss")}
    options: dict[str, Any] = {"compile": compiles["model"], "cross_entropy": None}
    if arguments.get("module") is None:
        options["cross_entropy"] = "compiled" if compiles["loss"] else "unfused"
    names = [f"{section}.{_ASYNC_TP}" for section in ("parallelism", "compile")]
    switches = [arguments.get(name, word="overlap_tp") for name in names]
    if any(switches):
        options |= {"overlap_tp": HIDDEN_BY_ASYNC_TP, "compile": True}
        hidden = f"{100 * float(HIDDEN_BY_ASYNC_TP):g} % of TP communication is hidden"
        arguments.assumed.append(f"asynchronous tensor parallelism: {hidden}")
        if not compiles["model"]:
            arguments.assumed.append("compile.enable: asynchronous tensor parallelism asks for it")
    return options


def _write_compilation(options: Options) -> dict[str, Any]:
    entry: Mapping[str, Any] = options["entry"]
    is_compiled = bool(options.get("compile"))
    hidden = f"{float(HIDDEN_BY_ASYNC_TP)},{float(HIDDEN_BY_ASYNC_TP)}"
    section = "parallelism" if options["release"] == "0.2" else "compile"
    return (
        named("compile.enable", is_compiled, is_compiled or entry.get("compile.enable"))
        | named("compile.components", ["model", "loss"], is_compiled and entry.get("compile.components"))
        | named(f"{section}.{_ASYNC_TP}", True, is_compiled and options.get("overlap_tp") == hidden)
    )


SETTINGS = (
    count("tp", "parallelism.tensor_parallel_degree"),
    count("pp", "parallelism.pipeline_parallel_degree", 1),
    count("cp", "parallelism.context_parallel_degree"),
    count("ep", "parallelism.expert_parallel_degree"),
    Setting(("seq_len",), _read_length, _write_length),
    Setting(("sequence_parallel",), _read_sequence_parallel, _write_sequence_parallel),
    Setting(("etp",), _read_expert_tp, _write_expert_tp),
    Setting(("zero", "dp", "gpus", _INSTANCES), _read_sharding, _write_sharding),
    Setting(("schedule", "overlap_ep"), _read_schedule, _write_schedule),
    Setting(("split", "vpp"), _read_stages, _write_stages),
    Setting(("micro_batch", "global_batch", "gradient_accumulation_steps"), _read_batch, _write_batch),
    Setting(("compile", "cross_entropy", "overlap_tp"), _read_compilation, _write_compilation),
    Setting(("dtype", "fp8_param_gather"), _read_dtype, _write_dtype),
    Setting(("recompute",), _read_recompute, _write_recompute),
    Setting(("runtime", "stack"), lambda *_: {"runtime": "torch", "stack": "torchtitan"}, lambda _: {}),
)
"""In the order of written files; a row may read options of earlier ones."""
