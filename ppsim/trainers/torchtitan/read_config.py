"""Reader of TorchTitan's job configuration: TOML (to 0.2), flags (from 0.3), or Primus' YAML."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_toml
from ppsim.base.option_declarations import given_options
from ppsim.model.architecture import Model
from ppsim.model.recompute import BY_OPERATORS, recompute_of
from ppsim.model.registry import find_model, known_name
from ppsim.trainers.arguments import Arguments, megatron_names
from ppsim.trainers.local_batch import LocalBatch
from ppsim.trainers.run_config import RunConfig
from ppsim.trainers.torchtitan.config_registry import registered

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS",
    "interleaved-zb": "InterleavedZeroBubble",
    "zbv-fixed": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}

HIDDEN_BY_ASYNC_TP = "0.5"
"""Assumed hidden fraction of tensor-parallel communication: the value for Megatron-Core's `tp_comm_overlap`."""

_LAUNCHER_GPUS = 8
"""TorchTitan starts one node of 8 GPUs by default (run_train.sh at 0168bd51: NGPU), and so does Primus."""

COUNTS = {
    "parallelism.tensor_parallel_degree": "tp",
    "parallelism.pipeline_parallel_degree": "pp",
    "parallelism.context_parallel_degree": "cp",
    "parallelism.expert_parallel_degree": "ep",
    "training.seq_len": "seq_len",
}


def from_torchtitan(
    tree: Mapping[str, Any], path: str | Path, trainer: str = "TorchTitan", asked: Mapping[str, Any] | None = None
) -> RunConfig:
    """`asked` is the part of the tree that the user wrote, if the tree also has defaults.

    Options of the tree override options of a registry entry (0.3: `--module`, `--config`) or of a job's TOML file
    (0.2: `--job.config_file`).
    """
    source = str(path)
    options, said = _with_files(_options(tree), source)
    arguments = Arguments(options, source, None if asked is None else _flat(asked))
    get, assumed = arguments.get, arguments.assumed
    assumed += said
    words: dict[str, Any] = {word: arguments.count(name, word=word) for name, word in COUNTS.items()}
    words["seq_len"] = words["seq_len"] or arguments.count("training.max_context_length", 2048, word="seq_len")
    pp = words["pp"] = words["pp"] or 1
    words["etp"] = _expert_tp(arguments, words)
    batch = _batch(arguments, words["seq_len"])
    words |= batch.words(pp, arguments.count("training.global_batch_size", word="global_batch", least=-1))
    whole_tokens = arguments.count("training.num_tokens_per_train_step", word="global_batch", least=-1)
    if whole_tokens is not None and whole_tokens > 0:
        words |= {"global_batch": _sequences(whole_tokens, words["seq_len"], arguments), "microbatches": None}
    words |= _replicas(arguments, words)
    words["gradient_accumulation_steps"] = _rounds(batch, words)
    words["schedule"] = _schedule(arguments) if pp > 1 else None
    if words["schedule"] == "dualpipev" and (words["ep"] or 1) > 1:
        words["overlap_ep"] = "dualpipe"  # torchtitan/distributed/dual_pipe_v.py: always with expert parallelism
    if pp > 1 and (parts := get("parallelism.module_fqns_per_model_part", word="split")):
        words["split"] = layers_of_parts(parts.split() if isinstance(parts, str) else parts)
        words["vpp"] = len(words["split"]) // pp
    words["recompute"], dtype = _recompute(arguments), _dtype(arguments)
    words |= {
        "dtype": dtype,
        "fp8_param_gather": _gathers_float8(arguments, dtype),
        "runtime": "torch",
        "stack": "torchtitan",
        "compile": _compiled(arguments),
        "cross_entropy": None if "module" in options else _loss_of_0_2(arguments),
    }
    asynchronous = [
        get(f"{section}.enable_async_tensor_parallel", word="overlap_tp") for section in ("parallelism", "compile")
    ]
    if any(asynchronous):
        words["overlap_tp"] = HIDDEN_BY_ASYNC_TP
        assumed.append(
            f"asynchronous tensor parallelism: {100 * float(HIDDEN_BY_ASYNC_TP):g} % of TP communication is hidden"
        )
        if not words["compile"]:
            words["compile"] = True
            assumed.append("compile.enable: asynchronous tensor parallelism asks for it")
    model, why_no_model = _model(arguments)
    words |= stages_of(arguments, pp, words["schedule"], model)
    return RunConfig(
        trainer,
        source,
        given_options(words),
        model,
        why_no_model,
        arguments.read,
        tuple(arguments.ignored),
        tuple(assumed),
        batch,
        launcher_gpus=_LAUNCHER_GPUS,
        needed=arguments.needed,
    )


def _with_files(options: dict[str, Any], source: str) -> tuple[dict[str, Any], list[str]]:
    if "module" in options and "config" in options:
        entry, said = registered(str(options["module"]), str(options["config"]), source)
        return (_in_tokens(entry) if any(map(options.get, _AFTER_0_3)) else entry) | options, said
    named = options.get("job.config_file")
    if named is None:
        return options, []
    folder = Path(source).resolve().parent
    places = [place / str(named) for place in (folder, *folder.parents)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise ConfigError(f"{source}: job.config_file {named} is neither in {folder} nor in a folder above it")
    return _options(read_toml(path)) | options, [f"options that the command does not set are those of {named}"]


_AFTER_0_3 = (
    "training.max_context_length", "training.num_tokens_per_train_step",
    "training.num_tokens_per_microbatch_per_dp_rank", "parallelism.num_pp_microbatches",
)  # fmt: skip


def _in_tokens(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of 0.3 as later releases have it, whose batches are counted in tokens (b5bcd76c)."""
    others = dict(entry)
    length = others.pop("training.seq_len", 2048)
    tokens = length * others.pop("training.local_batch_size", 8)
    return {
        "training.max_context_length": length, "training.num_tokens_per_microbatch_per_dp_rank": tokens
    } | others  # fmt: skip


def _options(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a tree of options; a nested one comes from TorchTitan 0.2 and gets its default for recomputation."""
    found = _flat(tree)
    mode = "activation_checkpoint.mode"
    if mode in found and found[mode] is None:  # "none" is a mode here; for other options it means no value
        found[mode] = "none"
    is_of_0_2 = any(isinstance(value, dict) for value in tree.values())
    return ({"activation_checkpoint.selective_ac_option": "2"} if is_of_0_2 else {}) | found


def _expert_tp(arguments: Arguments, words: Mapping[str, Any]) -> int | None:
    """Return etp if it differs from tp; without the option (0.2), TorchTitan does not split experts over tp."""
    expert_tp = arguments.count("parallelism.expert_tensor_parallel_degree", 1, word="etp")
    return expert_tp if (words["ep"] or 1) > 1 and expert_tp != (words["tp"] or 1) else None


def _degrees(arguments: Arguments) -> tuple[int | None, int | None]:
    name = "parallelism.data_parallel_{}_degree"
    shard, copies = (arguments.count(name.format(kind), word="dp", least=-1) for kind in ("shard", "replicate"))
    return shard, copies


def _replicas(arguments: Arguments, words: Mapping[str, Any]) -> dict[str, Any]:
    shard, copies = _degrees(arguments)
    found: dict[str, Any] = {"zero": 0 if shard == 1 else _sharded_stage(arguments, words["pp"])}
    if (copies or 1) > 1 and shard != 1:
        found["num_distributed_optimizer_instances"] = copies
    launched = arguments.launched_gpus()
    if shard and shard > 0:
        found["dp"] = shard * (copies or 1)
    elif launched:
        found["gpus"] = launched
    return found


def _sharded_stage(arguments: Arguments, pp: int) -> int:
    """Without resharding after each forward, weights stay whole: by default in a pipeline."""
    reshards = str(arguments.get(RESHARDS, "default", word="zero"))
    return {"always": 3, "never": 1 if pp > 1 else 2}.get(reshards, 1 if pp > 1 else 3)


RESHARDS = "parallelism.fsdp_reshard_after_forward"


def _rounds(batch: LocalBatch, words: Mapping[str, Any]) -> int | None:
    options = dict(words)
    if not (words.get("dp") or words.get("gpus")):
        return None
    with suppress(ConfigError):  # the user's options may correct the batch later
        batch.fill(options, ())
    steps: int | None = options.get("gradient_accumulation_steps")
    return steps if steps != 1 else None


def _recompute(arguments: Arguments) -> str:
    """Selective recomputation is of every second layer by default in 0.2's TOML, and by operators from 0.3 on."""
    mode = str(arguments.get("activation_checkpoint.mode", "selective", word="recompute"))
    if mode == "memory_budget":
        arguments.assumed.append(
            "activation_checkpoint.mode memory_budget: as none, the compiler's choice is not known"
        )
    if mode != "selective":
        return "full" if mode == "full" else "none"
    option = str(arguments.get("activation_checkpoint.selective_ac_option", "op", word="recompute"))
    return BY_OPERATORS if option == "op" else recompute_of(f"full/{option}")


def _dtype(arguments: Arguments) -> str:
    get = arguments.get
    converters = str(get("model.converters", [], word="dtype"))
    if "lora" in converters:
        raise ConfigError(f"{arguments.source}: LoRA trains adapters alone, which ppsim cannot project")
    known = (("float8", "float8"), ("nvfp4", "nvfp4"), ("mx", "mxfp8"))
    dtype = next((dtype for sign, dtype in known if sign in converters), "bfloat16")
    if get("quantize.first_layers_only", word="dtype"):
        arguments.assumed.append(f"{dtype}: in all layers; the registry keeps the last 15 % in bfloat16")
    recipes = [str(get(f"{of}float8.recipe_name", "", word="dtype")) for of in _SECTIONS_OF_FLOAT8]
    return "float8-row" if dtype == "float8" and any(one.startswith("rowwise") for one in recipes) else dtype


_SECTIONS_OF_FLOAT8 = ("", "quantize.linear.")


def _gathers_float8(arguments: Arguments, dtype: str) -> bool | None:
    name, word = "float8.enable_fsdp_float8_all_gather", "fp8_param_gather"
    switches = [arguments.flag(f"{of}{name}", word=word) for of in _SECTIONS_OF_FLOAT8]
    return any(switches) if dtype == "float8" else None


def _compiled(arguments: Arguments, component: str = "model") -> bool:
    """Return whether transformer blocks are compiled, or the loss."""
    enabled = [bool(arguments.get(name, False, word="compile")) for name in ("compile.enable", "training.compile")]
    components = arguments.get("compile.components", ["model", "loss"], word="compile")
    return any(enabled) and component in components


def _loss_of_0_2(arguments: Arguments) -> str:
    """Before 0.3, the loss is of all tokens at once (components/loss.py of v0.2.2)."""
    return "compiled" if _compiled(arguments, "loss") else "unfused"


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        full = f"{above}{name}"
        if isinstance(value, dict):
            found |= _flat(value, f"{full}.")
        else:
            found |= megatron_names({full: value})
            if full.endswith("checkpoint.mode"):
                found["activation_checkpoint.mode"] = value  # "none" is a mode here
    return found


def _batch(arguments: Arguments, length: int) -> LocalBatch:
    local = arguments.count("training.local_batch_size", word="micro_batch")
    local = local or arguments.count("training.batch_size", word="micro_batch")
    if any(map(arguments.has, _AFTER_0_3)):
        tokens = arguments.count("training.num_tokens_per_microbatch_per_dp_rank", word="micro_batch")
        count = arguments.count("parallelism.num_pp_microbatches", word="microbatches")
        micro = _sequences(tokens, length, arguments) if tokens else local or max(1, 16384 // length)
        return LocalBatch(micro * (count or 1), micro, micro, arguments.source)
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


def _schedule(arguments: Arguments) -> str | None:
    name = str(arguments.get("parallelism.pipeline_parallel_schedule", "1F1B", word="schedule"))
    schedule = schedule_named(name)
    if schedule is None:
        arguments.assumed.append(f"schedule {name} is not known: that of --schedule")
    return schedule


def schedule_named(name: str) -> str | None:
    """Return ppsim's name of a schedule of torch.distributed.pipelining, None for an unknown one."""
    plain = name.lower().removeprefix("schedule").replace("_", "")
    return next((ours for ours, theirs in SCHEDULES.items() if theirs.lower() == plain), None)


def layers_of_parts(parts: Sequence[Any]) -> list[int]:
    names = [part.split(",") if isinstance(part, str) else part for part in parts]
    return [sum(bool(re.fullmatch(r"(model\.)?layers\.\d+", str(name))) for name in part) for part in names]


def _model(arguments: Arguments) -> tuple[Model | None, str]:
    name, flavor, module, _ = (arguments.get(word) for word in ("model.name", "model.flavor", "module", "config"))
    if name is None and module:
        name = str(module).removeprefix("torchtitan.models.")
    return model_of(str(name or ""), str(flavor or ""), arguments.source)


def model_of(name: str, flavor: str, source: str) -> tuple[Model | None, str]:
    known = known_name(f"{name}-{flavor}") or known_name(flavor)
    if known is None:
        return None, f"{source}: the sizes of {name or 'the model'} {flavor} are not known: give --model"
    return find_model(known), ""


_ONE_STAGE = ("gpipe", "1f1b")
_NAMED = "parallelism.module_fqns_per_model_part"


def stages_of(arguments: Arguments, pp: int, schedule: str | None, model: Model | None) -> dict[str, Any]:
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
    if not arguments.has(_NAMED) and (layers := layers_of_stages(num_layers, num_stages, *less)):
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
