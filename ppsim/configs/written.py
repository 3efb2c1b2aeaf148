"""Words of `ppsim project` written as a trainer's own options: the way back of what `read` reads."""

import shlex
from collections.abc import Mapping
from typing import Any, get_args

from ppsim.base.errors import ConfigError
from ppsim.base.words import given_of
from ppsim.configs.arguments import normalised
from ppsim.configs.megatron import arguments_of, primus_pipeline_of
from ppsim.configs.torchtitan import options_of
from ppsim.model.recompute import BY_OPERATORS
from ppsim.schedule.choices import Trainer

_NATIVE = ("1f1b", "interleaved-1f1b")


def written(words: Mapping[str, Any], trainer: Trainer) -> str:
    """Return words as lines of a trainer's configuration; those it has no option for are a comment each.

    Megatron-LM's and TorchTitan's are options of a command, Primus' are `overrides` of YAML. Raises `ConfigError`
    for a trainer that is not known.

    >>> print(written({"tp": 2, "pp": 4, "vpp": 2, "recompute": "full"}, "megatron"))
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 4
    --num-virtual-stages-per-pipeline-rank 2
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
    """
    given = given_of(words)
    if trainer == "torchtitan":
        options, left = options_of(given)
        lines = [f"--{name} {value}" for name, value in options.items()]
        mode = {"none": "none", "full": "full", BY_OPERATORS: "selective"}.get(given.get("recompute", ""))
        lines += [f"activation-checkpoint:{mode}"] if mode else []
        return "\n".join([*(f"# {sentence}" for sentence in left), *lines])
    if trainer not in get_args(Trainer):
        raise ConfigError(f"unknown trainer '{trainer}': there are {', '.join(get_args(Trainer))}")
    arguments, left = arguments_of(given)
    schedule = given.get("schedule")
    if schedule is not None and schedule not in _NATIVE:
        pipeline = primus_pipeline_of(schedule) if trainer == "primus" else {}
        arguments |= pipeline
        if not pipeline:
            name = "Primus" if trainer == "primus" else "Megatron-LM"
            left.append(f"{name} has no schedule {schedule} of its own: `ppsim export` writes its table")
    lines = as_entries(arguments) if trainer == "primus" else as_flags(arguments)
    return "\n".join([*(f"# {sentence}" for sentence in left), *lines])


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


_LONG = {"microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage"}


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
