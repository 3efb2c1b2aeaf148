"""Options of `ppsim project` written as a trainer's configuration: the inverse of `read`."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, get_args

from ppsim.base.errors import ConfigError
from ppsim.base.words import given_of
from ppsim.model.architecture import Model
from ppsim.model.recompute import layer_ids
from ppsim.parallel.layer_partition import MegatronSplit
from ppsim.trainers import ConfigTarget
from ppsim.trainers.arguments import normalised
from ppsim.trainers.megatron.read_config import arguments_of, primus_pipeline_of
from ppsim.trainers.megatron.write_model import model_arguments
from ppsim.trainers.torchtitan.write_config import models_of, settings_of

_NATIVE = ("1f1b", "interleaved-1f1b")
_GPUS_PER_NODE = 8


def files_of(words: Mapping[str, Any], model: Model, trainer: ConfigTarget, layout: str) -> Iterator[str]:
    """Yield the configurations that come nearest to the options of a run of a model, in a trainer's format.

    Megatron-LM's and TorchTitan's are a command, Primus' is an experiment, that of TorchTitan 0.2 is TOML. Options
    that the trainer does not have are left out, and a model that it does not have too. `layout` is the split as
    Megatron-LM's layout string. Raises `ConfigError` for an unknown trainer.

    >>> from ppsim.model.names import find_model
    >>> words = {"tp": 2, "pp": 4, "gpus": 8, "seq_len": 8192}
    >>> [text] = files_of(words, find_model("llama3-8b"), "megatron", "Et*8|t*8|t*8|t*8L")
    >>> print(*text.splitlines()[:4], sep="\\n")
    # Megatron-LM. Add your own data, tokenizer, learning rate and checkpoints.
    torchrun --nproc-per-node 8 --nnodes 1 pretrain_gpt.py \\
      --num-layers 32 \\
      --hidden-size 4096 \\
    """
    if trainer not in get_args(ConfigTarget):
        raise ConfigError(f"unknown trainer '{trainer}': there are {', '.join(get_args(ConfigTarget))}")
    given = given_of(words)
    if trainer == "megatron":
        yield _megatron(given, model, layout)
    elif trainer == "primus":
        yield _primus(given, model, layout)
    else:
        version = trainer.partition("@")[2] or "0.3"
        for choice in models_of(model, version):
            yield _torchtitan(given, choice, version)


def _megatron(words: Mapping[str, Any], model: Model, layout: str) -> str:
    arguments = _arguments(words, model, layout)
    arguments.pop("add_position_embedding", None)  # its default; there is only --no-position-embedding
    script = "pretrain_mamba.py" if arguments.get("is_hybrid_model") else "pretrain_gpt.py"
    said = "# Megatron-LM. Add your own data, tokenizer, learning rate and checkpoints."
    return f"{said}\n" + _command(words, script, as_flags(arguments))


def _primus(words: Mapping[str, Any], model: Model, layout: str) -> str:
    arguments, schedule = _arguments(words, model, layout), words.get("schedule")
    if schedule is not None and schedule not in _NATIVE:
        arguments |= primus_pipeline_of(schedule)
    if ids := layer_ids(words.get("recompute", "none")):
        arguments |= {"recompute_granularity": "full", "recompute_layer_ids": ",".join(map(str, ids))}
    return "\n".join([*_EXPERIMENT, *(f"      {line}" for line in as_entries(arguments))])


_EXPERIMENT = (
    "# Primus, Megatron-LM. Save it in a checkout of Primus, and add your own data, tokenizer and learning rate.",
    "work_group: ${PRIMUS_TEAM:amd}",
    "user_name: ${PRIMUS_USER:root}",
    "exp_name: ${PRIMUS_EXP_NAME:pretrain}",
    "workspace: ${PRIMUS_WORKSPACE:./output}",
    "modules:",
    "  pre_trainer:",
    "    framework: megatron",
    "    config: pre_trainer.yaml",
    "    model: language_model.yaml",
    "    overrides:",
)


def _arguments(words: Mapping[str, Any], model: Model, layout: str) -> dict[str, Any]:
    """Megatron-LM's arguments of model and run; layers that its own rule divides otherwise are a layout."""
    sizes = model_arguments(model, words["seq_len"]) or {}
    words = dict(words)
    if "num_experts" not in sizes:
        words = {name: value for name, value in words.items() if name not in ("etp", "moe_dispatcher")}
    split = words.get("split")
    if isinstance(split, list):
        even = MegatronSplit().layers_per_stage(sum(split), pp=len(split), vpp=1)
        is_by_rule = split == even and words.get("runtime", "megatron") == "megatron"
        words["split"] = None if is_by_rule else layout
    if sizes.get("hybrid_layer_pattern") and isinstance(split, list) and words["split"]:
        sizes["hybrid_layer_pattern"] = _divided(sizes["hybrid_layer_pattern"], split)
        words["split"] = words["vpp"] = None
    return sizes | arguments_of(given_of(words))


def _divided(pattern: str, split: Sequence[int]) -> str:
    """A hybrid's pattern with a "|" where a stage ends.

    >>> _divided("M-M*-/*-", [2, 3])
    'M-|M*-/*-'
    """
    main, slash, further = pattern.partition("/")
    ends = list(accumulate(split))
    return "|".join(main[end - count : end] for end, count in zip(ends, split, strict=True)) + slash + further


def _torchtitan(words: Mapping[str, Any], choice: Mapping[str, Any], version: str) -> str:
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
    return f"{said}\n" + _command(words, "-m torchtitan.train", [*flags, f"activation-checkpoint:{mode}"])


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        section, _, field = name.rpartition(".")
        return f"--{name}" if value else f"--{section}.no-{field}"
    parts = value if isinstance(value, list) else [value]
    return f"--{name} {' '.join(','.join(part) if isinstance(part, list) else str(part) for part in parts)}"


def _command(words: Mapping[str, Any], program: str, flags: Sequence[str]) -> str:
    """A command for a shell, on all GPUs of a run."""
    gpus = words.get("gpus", 1)
    per_node = next(count for count in range(min(gpus, _GPUS_PER_NODE), 0, -1) if gpus % count == 0)
    first = f"torchrun --nproc-per-node {per_node} --nnodes {gpus // per_node} {program}"
    return " \\\n  ".join([first, *flags])


def as_flags(arguments: Mapping[str, Any]) -> list[str]:
    """Return Megatron-LM's arguments, by their names or as flags, as words of a command; false ones are left out.

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
"""Options that are not called as their names in `args` (argparse_meta of TransformerConfig's fields)."""


def as_entries(arguments: Mapping[str, Any]) -> list[str]:
    """Return the same as lines of a YAML file that has the names of Megatron-LM's `args`, as Primus' have.

    >>> as_entries({"pipeline-model-parallel-layout": "Et|tL", "no-overlap-p2p-communication": True})
    ['pipeline_model_parallel_layout: "Et|tL"', 'overlap_p2p_comm: false']
    """
    return [f"{name}: {_yaml(value)}" for name, value in normalised(arguments).items()]


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    return f'"{value}"' if isinstance(value, str) and any(sign in value for sign in "|*,") else str(value)
