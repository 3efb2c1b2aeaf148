"""TorchTitan's job configuration: TOML (to 0.2), flags (0.3), or the same tree as Primus' YAML has it."""

from collections.abc import Mapping
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.words import given_of
from ppsim.configs.arguments import Arguments, normalised
from ppsim.configs.run_config import Ignored, RunConfig
from ppsim.model.architecture import Model
from ppsim.model.names import NAMES, find_model
from ppsim.model.recompute import BY_OPERATORS, recompute_of

_BETWEEN = str.maketrans("", "", "._-")
_MODELS = {
    "deepseekv316b": "deepseek-v2-lite",
    "deepseekv3236b": "deepseek-v2",
    "deepseekv3671b": "deepseek-v3",
    "llama417bx16e": "llama4-scout",
    "llama417bx128e": "llama4-maverick",
} | {name.translate(_BETWEEN): name for name in NAMES}
"""TorchTitan's model names and flavors without what is between their words, as `ppsim models` has them."""

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS",
    "interleaved-zb": "InterleavedZeroBubble",
    "zbv-fixed": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
"""Schedules as TorchTitan spells them."""

HIDDEN_BY_ASYNC_TP = "0.5"
"""What part of tensor-parallel communication is taken to be hidden: as much as by Megatron-Core's pieces."""

_COUNTS = {
    "parallelism.tensor_parallel_degree": "tp",
    "parallelism.pipeline_parallel_degree": "pp",
    "parallelism.context_parallel_degree": "cp",
    "parallelism.expert_parallel_degree": "ep",
    "training.seq_len": "seq_len",
}


def from_torchtitan(
    tree: Mapping[str, Any], source: str, trainer: str = "TorchTitan", asked: Mapping[str, Any] | None = None
) -> RunConfig:
    """Return what a tree of sections says; raises `ConfigError` for a number that has no meaning.

    `asked` is what of it the user wrote, where the tree has defaults too.
    """
    options = _flat(tree)
    arguments = Arguments(options, source, None if asked is None else _flat(asked))
    get, assumed = arguments.get, arguments.assumed
    words: dict[str, Any] = {word: arguments.count(name, word=word) for name, word in _COUNTS.items()}
    pp = words["pp"] = words["pp"] or 1
    expert_tp = arguments.count("parallelism.expert_tensor_parallel_degree", word="etp")
    words["etp"] = expert_tp if (words["ep"] or 1) > 1 and expert_tp != (words["tp"] or 1) else None
    words |= _batch(arguments, pp)
    shard, copies = (
        arguments.count(f"parallelism.data_parallel_{kind}_degree", word="dp", least=-1)
        for kind in ("shard", "replicate")
    )
    if shard and shard > 0:
        words["dp"] = shard * (copies or 1)
    hybrid = []
    if (copies or 1) > 1 and shard != 1:
        hybrid.append(Ignored("parallelism.data_parallel_replicate_degree", copies, "time and memory"))
    words["zero"] = 0 if shard == 1 else 1 if pp > 1 else 3
    words["schedule"] = _schedule(arguments) if pp > 1 else None
    mode = str(get("activation_checkpoint.mode", "none", word="recompute"))
    words["recompute"] = "full" if mode == "full" else "none"
    if mode == "selective":
        option = str(get("activation_checkpoint.selective_ac_option", "op", word="recompute"))
        words["recompute"] = BY_OPERATORS if option == "op" else recompute_of(f"full/{option}")
    converters = get("model.converters", [], word="dtype")
    known = (("float8", "float8"), ("mx", "mxfp8"))
    of_converters = (dtype for sign, dtype in known if sign in str(converters))
    dtype = next(of_converters, "bfloat16")
    recipes = [str(get(f"{of}float8.recipe_name", "", word="dtype")) for of in ("", "quantize.linear.")]
    if dtype == "float8" and any(recipe.startswith("rowwise") for recipe in recipes):
        dtype = "float8-row"
    compiled = [bool(get(name, False, word="compile")) for name in ("compile.enable", "training.compile")]
    words |= {"dtype": dtype, "runtime": "torch", "stack": "torchtitan", "compile": any(compiled)}
    if get("parallelism.enable_async_tensor_parallel", word="overlap_tp"):
        words["overlap_tp"] = HIDDEN_BY_ASYNC_TP
        assumed.append(
            f"asynchronous tensor parallelism: {HIDDEN_BY_ASYNC_TP} of its communication is taken to be hidden"
        )
        if not words["compile"]:
            words["compile"] = True
            assumed.append("compile.enable: asynchronous tensor parallelism asks for it")
    name, flavor = (get(f"model.{part}") for part in ("name", "flavor"))
    if name is None and get("module"):  # 0.3: --module llama3 --config llama3_8b
        name = str(get("module"))
        flavor = str(get("config", "")).removeprefix(f"{name}_")
    model, why_no_model = _model(str(name or ""), str(flavor or ""), source)
    return RunConfig(
        trainer,
        source,
        given_of(words),
        model,
        why_no_model,
        arguments.read,
        (*hybrid, *arguments.ignored),
        tuple(assumed),
    )


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        full = f"{above}{name}"
        if isinstance(value, dict):
            found |= _flat(value, f"{full}.")
        else:
            found |= normalised({full: value})
    return found


def _batch(arguments: Arguments, pp: int) -> dict[str, int | None]:
    """A rank's batch goes through the pipeline in microbatches; without one it is one microbatch."""
    local = arguments.count("training.local_batch_size", word="micro_batch")
    local = local or arguments.count("training.batch_size", word="micro_batch")
    size = arguments.count("parallelism.pipeline_parallel_microbatch_size", word="micro_batch")
    local = local or max(8, size or 1)  # its own default is 8
    micro = (size or 1) if pp > 1 else local
    if local % micro:
        raise ConfigError(
            f"{arguments.source}: local_batch_size {local} is no multiple of the microbatch size {micro}"
        )
    whole = arguments.count("training.global_batch_size", word="global_batch", least=-1)
    if whole is not None and whole > 0:
        return {"micro_batch": micro, "global_batch": whole}
    return {"micro_batch": micro, "microbatches": local // micro}


def _schedule(arguments: Arguments) -> str | None:
    name = str(arguments.get("parallelism.pipeline_parallel_schedule", "1F1B", word="schedule"))
    plain = name.lower().removeprefix("schedule").replace("_", "")
    found = next((ours for ours, theirs in _SCHEDULES.items() if theirs.lower() == plain), None)
    if found is None:
        arguments.assumed.append(f"schedule {name} is not known: that of --schedule")
    return found


def _model(name: str, flavor: str, source: str) -> tuple[Model | None, str]:
    known = _MODELS.get(f"{name}{flavor}".lower().translate(_BETWEEN))
    if known is None:
        return None, f"{source}: the sizes of {name or 'the model'} {flavor} are not known: give --model"
    return find_model(known), ""


def options_of(words: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return TorchTitan's options for words of `ppsim project`, and sentences about those it has none for."""
    options = {name.replace("_", "-"): words[word] for name, word in _COUNTS.items() if word in words}
    left = []
    if words.get("pp", 1) > 1 and "schedule" in words:
        options |= {"parallelism.pipeline-parallel-schedule": _SCHEDULES.get(words["schedule"], "Interleaved1F1B")}
        if words["schedule"] not in _SCHEDULES:
            left.append(
                f"TorchTitan has no schedule {words['schedule']}: `ppsim export --to torch` writes its table"
            )
    if "micro_batch" in words and words.get("pp", 1) > 1:
        options["parallelism.pipeline-parallel-microbatch-size"] = words["micro_batch"]
    if "micro_batch" in words and "microbatches" in words:
        options["training.local-batch-size"] = words["micro_batch"] * words["microbatches"]
    if "global_batch" in words:
        options["training.global-batch-size"] = words["global_batch"]
    if "dp" in words:
        # with a pipeline it keeps weights gathered and gradients whole for the step, as ZeRO 1
        sharded = words.get("zero", 1) >= (1 if words.get("pp", 1) > 1 else 2)
        options[f"parallelism.data-parallel-{'shard' if sharded else 'replicate'}-degree"] = words["dp"]
    if "compile" in words:
        options["compile.enable"] = words["compile"]
    recompute = words.get("recompute", "none")
    if recompute not in ("none", "full", BY_OPERATORS):
        left.append(f"TorchTitan recomputes by operators, not {recompute}")
    return options, left
