"""Writer of TorchTitan's settings: the inverse of `ppsim.trainers.torchtitan.read_config`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ppsim.model.architecture import Model
from ppsim.model.recompute import BY_OPERATORS
from ppsim.trainers.megatron.write_config import command
from ppsim.trainers.megatron.write_model import without_source
from ppsim.trainers.torchtitan.config_registry import registry
from ppsim.trainers.torchtitan.read_config import COUNTS, HIDDEN_BY_ASYNC_TP, RESHARDS, SCHEDULES, model_of

_CONVERTERS = {"float8": ["float8"], "float8-row": ["float8"], "mxfp8": ["mx"]}


def write_torchtitan(words: Mapping[str, Any], choice: Mapping[str, Any], version: str) -> str:
    settings = dict(choice) | settings_of(words, choice, version)
    said = f"# TorchTitan {version}. Add your own data, tokenizer and learning rate."
    if version == "0.2":
        sections = dict.fromkeys(name.rpartition(".")[0] for name in settings)
        lines = [said]
        for section in sections:
            inside = {name.rpartition(".")[2]: value for name, value in settings.items()
                      if name.rpartition(".")[0] == section}  # fmt: skip
            lines += [f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in inside.items())]
        return "\n".join(lines)
    mode = settings.pop("activation_checkpoint.mode", None)
    named = [f"--{name} {settings.pop(name)}" for name in ("module", "config") if name in settings]
    flags = [*named, *(_flag(name, value) for name, value in settings.items())]
    return f"{said}\n" + command(words, "-m torchtitan.train", [*flags, f"activation-checkpoint:{mode}"])


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        section, _, field = name.rpartition(".")
        return f"--{name}" if value else f"--{section}.no-{field}"
    parts = value if isinstance(value, list) else [value]
    return f"--{name} {' '.join(','.join(part) if isinstance(part, list) else str(part) for part in parts)}"


def models_of(model: Model, version: str) -> Iterator[dict[str, Any]]:
    """Yield `{}` if no entry of TorchTitan's registry matches.

    >>> from ppsim.model.registry import find_model
    >>> next(models_of(find_model("llama3-70b"), "0.2"))
    {'model.name': 'llama3', 'model.flavor': '70B'}
    """
    found, flavors = False, set()
    for name, module in registry().modules.items():
        for config, entry in module.entries.items():
            flavor = str(entry.get("model.flavor", ""))
            of_entry, _ = model_of(name, flavor, name)
            if of_entry is None or without_source(of_entry) != without_source(model):
                continue
            found = True
            if version != "0.2":
                yield {"module": name, "config": config}
            elif flavor not in flavors:
                flavors.add(flavor)
                yield {"model.name": name, "model.flavor": flavor}
    if not found:
        yield {}


def settings_of(words: Mapping[str, Any], choice: Mapping[str, Any], version: str) -> dict[str, Any]:
    pp, dp = words.get("pp", 1), _replicas(words)
    settings = {name: words[word] for name, word in COUNTS.items() if word in words}
    if version == "main":
        settings["training.max_context_length"] = settings.pop("training.seq_len")
    if version == "0.2" and words.get("ep", 1) > 1 and "etp" in words:
        settings["parallelism.expert_tensor_parallel_degree"] = words["etp"]
    settings |= _replication(words, pp, dp)
    if pp > 1:
        usual = "Interleaved1F1B" if words.get("vpp", 1) > 1 else "1F1B"
        settings["parallelism.pipeline_parallel_schedule"] = SCHEDULES.get(words.get("schedule", ""), usual)
        if parts := module_names(words.get("split"), pp, "output" if version == "0.2" else "lm_head"):
            settings["parallelism.module_fqns_per_model_part"] = parts
    settings |= _batch(words, pp, dp, version)
    settings |= _compilation(words, choice, version)
    if version == "0.2" and words["dtype"] in _CONVERTERS:
        settings["model.converters"] = _CONVERTERS[words["dtype"]]
        if words["dtype"] == "float8-row":
            settings["quantize.linear.float8.recipe_name"] = "rowwise"
        if words["dtype"] == "float8" and words.get("fp8_param_gather"):
            settings["quantize.linear.float8.enable_fsdp_float8_all_gather"] = True
    return settings | _checkpointing(words["recompute"], version)


def _batch(words: Mapping[str, Any], pp: int, dp: int, version: str) -> dict[str, Any]:
    """The main branch counts the batch in tokens, and that of a pipeline in microbatches (b5bcd76c)."""
    micro, whole = words["micro_batch"], words["global_batch"]
    local = whole // (dp * words.get("gradient_accumulation_steps", 1)) if pp > 1 else micro
    if version == "main":
        counts = {"parallelism.num_pp_microbatches": local // micro} if pp > 1 else {}
        return counts | {
            "training.num_tokens_per_microbatch_per_dp_rank": micro * words["seq_len"],
            "training.num_tokens_per_train_step": whole * words["seq_len"],
        }
    counts = {"parallelism.pipeline_parallel_microbatch_size": micro} if pp > 1 else {}
    return counts | {"training.local_batch_size": local, "training.global_batch_size": whole}


def _replicas(words: Mapping[str, Any]) -> int:
    others = int(words.get("tp", 1) * words.get("cp", 1) * words.get("pp", 1))
    return max(1, int(words["gpus"]) // others)


def _replication(words: Mapping[str, Any], pp: int, dp: int) -> dict[str, Any]:
    """With a pipeline, TorchTitan keeps weights gathered, as in ZeRO 1."""
    is_sharded = words.get("zero", 1) >= (1 if pp > 1 else 2)
    copies = words.get("num_distributed_optimizer_instances", 1) if is_sharded else dp
    shard = -1 if dp == 1 and is_sharded else dp // copies
    reshards = {(2, False): "never", (3, True): "always"}.get((words.get("zero", 1), pp > 1))
    return {
        "parallelism.data_parallel_shard_degree": shard,
        "parallelism.data_parallel_replicate_degree": copies,
    } | ({RESHARDS: reshards} if reshards else {})


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


def _compilation(words: Mapping[str, Any], choice: Mapping[str, Any], version: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    entry: Mapping[str, Any] = {}
    if "config" in choice:
        entry = registry().modules[choice["module"]].entries[choice["config"]]
    is_compiled = bool(words.get("compile"))
    if is_compiled or entry.get("compile.enable"):
        found["compile.enable"] = is_compiled
    if is_compiled and entry.get("compile.components"):
        found["compile.components"] = ["model", "loss"]
    if is_compiled and words.get("overlap_tp") == f"{float(HIDDEN_BY_ASYNC_TP)},{float(HIDDEN_BY_ASYNC_TP)}":
        section = "parallelism" if version == "0.2" else "compile"
        found[f"{section}.enable_async_tensor_parallel"] = True
    return found


def _checkpointing(recompute: str, version: str) -> dict[str, Any]:
    mode, every = "activation_checkpoint.mode", recompute.removeprefix("full/")
    option = "activation_checkpoint.selective_ac_option"
    if version == "0.2" and every.isdecimal():
        return {mode: "selective", option: every}
    if recompute == BY_OPERATORS:
        return {mode: "selective"} | ({option: "op"} if version == "0.2" else {})
    return {mode: "full" if recompute == "full" else "none"}
