"""What a trainer's configuration says in the words of `ppsim project`, and what of it was not understood."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ppsim.base.shown import Shown
from ppsim.model.architecture import Model
from ppsim.parallel.layout import assumed_devices
from ppsim.trainers.local_batch import LocalBatch
from ppsim.trainers.recipe_table import Recipe


def short(value: object) -> str:
    """Return a value as a line shows it: flags as on and off, and at most 40 characters."""
    text = "on" if value is True else "off" if value is False else str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


@dataclass(frozen=True)
class Ignored:
    """An option of the trainer that has no word here; `matters` says for what: "time", "memory", both, or that
    nobody looked."""

    name: str
    value: Any
    matters: str

    @property
    def in_words(self) -> str:
        """Its name and its shortened value."""
        return f"{self.name} {short(self.value)}"


@dataclass(frozen=True, repr=False)
class RunConfig(Shown):
    """A configuration as read.

    `words` are options of `ppsim.project`, by name, but for the model, which is `model` or, where there is none,
    `why_no_model`, a sentence. `understood` says which of the trainer's options made which word. `notes` are
    sentences about what the file leaves open. `local_batch` is the batch of an accumulation round, of trainers that
    have rounds. `needed` has the words that the file leaves to the program that starts the run ("auto"), each with
    the trainer's name and with the option that gives it. `layers_per_virtual_stage` is Megatron-LM's way to give
    vpp, which depends on the model and on pp. `typed` are options that the user gave next to the file. `recipe` is
    the recipe that was read in place of a file.
    """

    trainer: str
    source: str
    words: Mapping[str, Any]
    model: Model | None
    why_no_model: str
    understood: tuple[tuple[str, str], ...]
    ignored: tuple[Ignored, ...]
    notes: tuple[str, ...] = ()
    local_batch: LocalBatch | None = None
    needed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    layers_per_virtual_stage: int | None = None
    typed: Mapping[str, Any] = field(default_factory=dict)
    recipe: Recipe | None = None

    @property
    def assumed(self) -> tuple[str, ...]:
        """What is assumed, in sentences: first the number of GPUs and the parts of the model that are left out."""
        words = {name: value for name, value in {**self.words, **self.typed}.items() if isinstance(value, int)}
        sizes = {name: words.get(name) for name in ("tp", "cp", "ep", "pp", "etp")}
        gpus = [] if words.get("gpus") or words.get("dp") else [assumed_devices(**sizes)]
        left_out = [self.model.left_out] if self.model and self.model.left_out and "model" not in self.typed else []
        return (*gpus, *left_out, *self.notes)

    def beside(self, options: Mapping[str, Any]) -> "RunConfig":
        """Return the configuration with options that the user typed next to it: what is assumed depends on them."""
        return replace(self, typed={name: value for name, value in options.items() if value is not None})

    @property
    def without(self) -> tuple[str, ...]:
        """Options that ppsim ignores and that change the memory of a rank, with their values."""
        return tuple(one.in_words for one in self.ignored if "memory" in one.matters)

    def to_json(self) -> dict[str, Any]:
        """As JSON: words, what made them, and what was not followed with what it matters for."""
        return {
            "trainer": self.trainer,
            "source": self.source,
            "words": dict(self.words),
            "understood": dict(self.understood),
            "ignored": [{"name": one.name, "value": one.value, "matters": one.matters} for one in self.ignored],
            "assumed": list(self.assumed),
            **({"recipe": self.recipe.to_json()} if self.recipe else {}),
        }
