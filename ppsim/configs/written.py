"""Words of `ppsim project` written as a trainer's own options: the way back of what `read` reads."""

import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, get_args

from ppsim.base.errors import ConfigError
from ppsim.base.words import given_of
from ppsim.configs.megatron import arguments_of, primus_pipeline_of
from ppsim.configs.torchtitan import options_of
from ppsim.schedule.choices import Trainer

_NATIVE = MappingProxyType({"megatron": ("1f1b", "interleaved-1f1b"), "primus": ("1f1b", "interleaved-1f1b")})


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
        mode = {"none": "none", "full": "full"}.get(given.get("recompute", ""))
        lines += [f"activation-checkpoint:{mode}"] if mode else []
        return "\n".join([*(f"# {sentence}" for sentence in left), *lines])
    if trainer not in _NATIVE:
        raise ConfigError(f"unknown trainer '{trainer}': there are {', '.join(get_args(Trainer))}")
    arguments, left = arguments_of(given)
    schedule = given.get("schedule")
    if schedule is not None and schedule not in _NATIVE[trainer]:
        pipeline = primus_pipeline_of(schedule) if trainer == "primus" else {}
        arguments |= pipeline
        if not pipeline:
            name = "Primus" if trainer == "primus" else "Megatron-LM"
            left.append(f"{name} has no schedule {schedule} of its own: `ppsim export` writes its table")
    comments = [f"# {sentence}" for sentence in left]
    if trainer == "primus":
        return "\n".join([*comments, *(f"{name}: {_yaml(value)}" for name, value in arguments.items())])
    return "\n".join([*comments, *(_flag(name, value) for name, value in arguments.items() if value is not False)])


def _flag(name: str, value: Any) -> str:
    option = f"--{_LONG.get(name, name).replace('_', '-')}"
    if value is True:
        return option
    return f"{option} {' '.join(value) if isinstance(value, list) else shlex.quote(str(value))}"


_LONG = {"microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage"}


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(value)}]"
    return f'"{value}"' if isinstance(value, str) and any(sign in value for sign in "|*,") else str(value)
