"""Changes of a plan in a user's own Megatron-LM command: other arguments stay as they are written."""

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ppsim.trainers.arguments import megatron_names
from ppsim.trainers.megatron.write_config import as_flags

_OF_LAUNCHER = (
    "nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port", "standalone", "max_restarts", "tee",
    "redirects", "log_dir", "rdzv_id", "rdzv_backend", "rdzv_endpoint", "rdzv_conf",
)  # fmt: skip
_LIMITS = ("max_position_embeddings",)
"""Arguments for which a larger value serves as well."""


@dataclass(frozen=True)
class OwnCommand:
    """`flags` are a user's arguments as written, and `arguments` the ones that ppsim writes for the same plan.

    `read_options` maps names to the options of ppsim that they set; `changed` are the options of the new plan that
    differ from the user's plan.
    """

    flags: Mapping[str, Any]
    arguments: Mapping[str, Any]
    read_options: Mapping[str, str]
    changed: Collection[str]

    def with_changes(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the user's arguments with the differences between `arguments` and the ones of the user's plan."""
        before, after = (_by_name(one) for one in (self.arguments, arguments))
        given = {option: value for option, value in self.flags.items() if value is not False}
        own = {_name(option, value): as_written(option, value) for option, value in given.items()}
        flags = {name: text for name, text in own.items() if not self._is_left_out(name, before, after)}
        has_new_model = "model" in self.changed  # defaults depend on its sizes
        changes = {
            name: text
            for name, text in after.items()
            if before.get(name) != text or (has_new_model and name not in own)
        }
        for name in _LIMITS:
            if name in flags and name in changes and _number(flags[name]) >= _number(changes[name]):
                del changes[name]
        return list((flags | changes).values())

    def _is_left_out(self, name: str, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
        replaced = name not in before and self.read_options.get(name) in self.changed
        return name in _OF_LAUNCHER or (name not in after and (name in before or replaced))


def as_written(option: str, value: Any) -> str:
    """Return an argument as text, with quotes around an expression; `[a b]` is a list in Megatron-LM's YAML files.

    >>> as_written("--data-path", "0.5 /a 0.5 /b"), as_written("--moe-layer-freq", "[0] * 3")
    ('--data-path 0.5 /a 0.5 /b', "--moe-layer-freq '[0] * 3'")
    >>> as_written("--recompute-modules", "[mlp moe_act]")
    '--recompute-modules mlp moe_act'
    """
    if value is True:
        return option
    text = re.sub(r"^\[([\w.]+(?: [\w.]+)+)\]$", r"\1", str(value))
    is_expression = any(sign in text for sign in "[](){}")
    return f"{option} {shlex.quote(text) if is_expression else ' '.join(map(shlex.quote, text.split()))}"


def _by_name(arguments: Mapping[str, Any]) -> dict[str, str]:
    return {_name(name, value): _flag(name, value) for name, value in arguments.items() if value is not False}


def _flag(name: str, value: Any) -> str:
    return as_flags({name: value})[0]


def _name(option: str, value: Any) -> str:
    return next(iter(megatron_names({option: value})))


def _number(flag: str) -> int:
    text = flag.rpartition(" ")[2]
    return int(text) if text.isdecimal() else 0
