"""Writer of Megatron-LM's arguments: the inverse of `read_config`."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from ppsim.base.errors import CannotRun
from ppsim.base.option_declarations import given_options
from ppsim.model.architecture import Model
from ppsim.trainers.arguments import command_name, megatron_names
from ppsim.trainers.megatron.rules import accepted_arguments
from ppsim.trainers.megatron.settings import write_settings
from ppsim.trainers.megatron.write_model import layer_patterns, model_arguments
from ppsim.trainers.same_settings import MEGATRON_SPLIT

_GPUS_PER_NODE = 8


def write_megatron(options: Mapping[str, Any], flags: Sequence[str], release: str) -> str:
    is_hybrid = any(flag.startswith(("--is-hybrid", "--hybrid")) for flag in flags)
    name = f"Megatron-LM {release}".strip()
    said = f"# {name}. Add your own data, tokenizer, learning rate and checkpoints."
    return f"{said}\n" + command(options, "pretrain_mamba.py" if is_hybrid else "pretrain_gpt.py", flags)


def megatron_arguments(
    options: Mapping[str, Any], model: Model, layout: str, release: str = "", *, may_be_refused: bool = False
) -> dict[str, Any]:
    """Return the arguments of a plan. Raises `CannotRun` for a plan that Megatron-LM cannot run."""
    if model_arguments(model, options["seq_len"]) is None:
        named = options.get("model", "this model")
        raise CannotRun(f"Megatron-LM cannot run this: it lacks layers of {named} (`ppsim models` lists others)")
    arguments = job_arguments(options, model, layout)
    arguments.pop("add_position_embedding", None)  # True is the default; the only flag is --no-position-embedding
    return accepted_arguments(arguments, release, may_be_refused=may_be_refused)


def job_arguments(
    options: Mapping[str, Any], model: Model, layout: str, *, of_primus: bool = False
) -> dict[str, Any]:
    """A split that differs from Megatron-LM's own rule, which needs equal stages, becomes a layout."""
    sizes = model_arguments(model, options["seq_len"]) or {}
    options, split = dict(options), options.get("split")
    if isinstance(split, list):
        is_by_rule = len(set(split)) == 1 and options.get("runtime", "megatron") == "megatron"
        options["split"] = None if is_by_rule else layout
    # Megatron-LM refuses other arguments of stages next to a hybrid pattern.
    has_stages = options.get("pp", 1) > 1 and (options.get("split") or options.get("vpp", 1) > 1)
    if "hybrid_layer_pattern" in sizes and isinstance(split, list) and has_stages:
        _, slash, further = sizes["hybrid_layer_pattern"].partition("/")
        sizes["hybrid_layer_pattern"] = divided(layer_patterns(model), split) + slash + further
        options |= dict.fromkeys(("split", "vpp", *MEGATRON_SPLIT))
    has_experts = "num_experts" in sizes
    return sizes | write_settings(given_options(options), has_experts=has_experts, of_primus=of_primus)


def divided(patterns: Sequence[str], split: Sequence[int]) -> str:
    """Join the letters of a hybrid's layers, with "|" between stages.

    >>> divided(["M-", "M", "*", "-"], [1, 3])
    'M-|M*-'
    """
    ends = accumulate(split)
    return "|".join("".join(patterns[end - count : end]) for end, count in zip(ends, split, strict=True))


def command(options: Mapping[str, Any], program: str, flags: Sequence[str]) -> str:
    gpus = options.get("gpus", 1)
    per_node = next(count for count in range(min(gpus, _GPUS_PER_NODE), 0, -1) if gpus % count == 0)
    first = f"torchrun --nproc-per-node {per_node} --nnodes {gpus // per_node} {program}"
    return " \\\n  ".join([first, *flags])


def as_flags(arguments: Mapping[str, Any]) -> list[str]:
    """Return command-line flags; false values are left out.

    >>> as_flags({"bf16": True, "pipeline-model-parallel-size": 2, "pipeline-model-parallel-layout": "Et|tL"})
    ['--bf16', '--pipeline-model-parallel-size 2', "--pipeline-model-parallel-layout 'Et|tL'"]
    """
    options = {f"--{command_name(name).replace('_', '-')}": value for name, value in arguments.items()}
    return [
        option if value is True
        else f"{option} {' '.join(value) if isinstance(value, list) else shlex.quote(str(value))}"
        for option, value in options.items() if value is not False
    ]  # fmt: skip


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
