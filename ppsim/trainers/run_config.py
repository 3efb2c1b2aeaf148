"""A trainer's configuration as options of `ppsim project`, with the options that ppsim ignores."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ppsim.base.display import Printable
from ppsim.model.architecture import Model
from ppsim.parallel.layout import assumed_devices
from ppsim.trainers.local_batch import LocalBatch
from ppsim.trainers.recipe_table import Recipe
from ppsim.trainers.same_settings import SAME_SETTING


def shorten(value: object) -> str:
    text = "on" if value is True else "off" if value is False else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


@dataclass(frozen=True)
class IgnoredOption:
    """`effect` is the quantity that the option changes: "time", "memory", "time and memory", "unknown", …"""

    name: str
    value: Any
    effect: str

    @property
    def in_words(self) -> str:
        return f"{self.name} {shorten(self.value)}"


@dataclass(frozen=True, repr=False)
class RunConfig(Printable):
    """A trainer's configuration as ppsim reads it.

    `read_options` maps options of the trainer to options of ppsim. `notes` are sentences about settings that the
    file leaves open. `needed` has the options that the file leaves to the launch ("auto", `$TP`), each with the
    reason and with what sets it instead. `layers_per_virtual_stage` is Megatron-LM's indirect way to
    set vpp. `launcher_gpus` is the number of GPUs that the trainer's launcher starts by default; 1: no default.
    `flags` are the arguments of a Megatron-LM command as written.
    """

    trainer: str
    source: str
    options: Mapping[str, Any]
    model: Model | None
    why_no_model: str
    read_options: tuple[tuple[str, str], ...] = ()
    ignored: tuple[IgnoredOption, ...] = ()
    notes: tuple[str, ...] = ()
    local_batch: LocalBatch | None = None
    needed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    layers_per_virtual_stage: int | None = None
    launcher_gpus: int = 1
    typed: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def assumed(self) -> tuple[str, ...]:
        words = {name: value for name, value in {**self.options, **self.typed}.items() if isinstance(value, int)}
        sizes = {name: words.get(name) for name in ("tp", "cp", "ep", "pp", "etp")}
        is_known = words.get("gpus") or words.get("dp")
        gpus = [] if is_known else [assumed_devices(**sizes, multiple=self.launcher_gpus)]
        of_model = []
        if self.model and "model" not in self.typed:
            has_images = "image_tokens" in words or {"image_tokens", "text_only"} & set(self.typed)
            of_model = [] if has_images else [encoder.sentence for encoder in self.model.encoders]
            of_model += [self.model.left_out] if self.model.left_out else []
        return (*gpus, *of_model, *self.notes)

    def beside(self, options: Mapping[str, Any]) -> "RunConfig":
        return replace(self, typed={name: value for name, value in options.items() if value is not None})

    def replaced_by(self, given: Collection[str]) -> set[str]:
        """Return the names of the options that given options replace.

        Next to --tp, Megatron-Bridge sets its recipes' sequence parallelism anew (scripts/performance at v0.6.0,
        utils/overrides.py: set_user_overrides).
        """
        names = {name for word in given for name in SAME_SETTING.get(word, ())} | {*given}
        is_of_bridge = self.recipe is not None and self.recipe.trainer == "megatron-bridge"
        return names | {"sequence_parallel"} if is_of_bridge and "tp" in given else names

    @property
    def ignored_memory_options(self) -> tuple[str, ...]:
        return tuple(option.in_words for option in self.ignored if "memory" in option.effect)

    def to_json(self) -> dict[str, Any]:
        return {
            "trainer": self.trainer,
            "source": self.source,
            "options": dict(self.options),
            "read_options": dict(self.read_options),
            "ignored": [
                {"name": one.name, "value": _json_value(one.value), "effect": one.effect} for one in self.ignored
            ],
            "assumed": list(self.assumed),
            **({"recipe": self.recipe.to_json()} if self.recipe else {}),
        }


def _json_value(value: Any) -> Any:
    """Return values that JSON does not have, such as YAML's .inf, as text."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return str(value)
    return value
