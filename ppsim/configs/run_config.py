"""What a trainer's configuration says in the words of `ppsim project`, and what of it was not understood."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from typing import Any

from ppsim.base.shown import Shown
from ppsim.configs.local_batch import LocalBatch
from ppsim.model.architecture import Model


@dataclass(frozen=True)
class Ignored:
    """An option of the trainer that has no word here; `matters` says for what: "time", "memory", both, or that
    nobody looked."""

    name: str
    value: Any
    matters: str


@dataclass(frozen=True, repr=False)
class RunConfig(Shown):
    """A configuration as read.

    `words` are options of `ppsim.project`, by name, but for the model, which is `model` or, where there is none,
    `why_no_model`, a sentence. `understood` says which of the trainer's options made which word. `assumed` are
    sentences about what the file leaves open. `local_batch` is the batch of an accumulation round, of trainers that
    have rounds.
    """

    trainer: str
    source: str
    words: Mapping[str, Any]
    model: Model | None
    why_no_model: str
    understood: tuple[tuple[str, str], ...]
    ignored: tuple[Ignored, ...]
    assumed: tuple[str, ...] = ()
    local_batch: LocalBatch | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON: words, what made them, and what was not followed with what it matters for."""
        return {
            "trainer": self.trainer,
            "source": self.source,
            "words": dict(self.words),
            "understood": dict(self.understood),
            "ignored": [vars(one) for one in self.ignored],
            "assumed": list(self.assumed),
        }


def replicas_for_experts(words: Mapping[str, Any], assumed: list[str]) -> int:
    """Return the fewest replicas among which experts can be divided, for a file that names no devices.

    >>> replicas_for_experts({"ep": 8, "cp": 2}, [])
    4
    >>> replicas_for_experts({"ep": 8, "tp": 4, "etp": 2}, [])
    4
    """
    ep, cp = words["ep"], words.get("cp") or 1
    ranks, parts = (cp, ep) if words.get("etp") is None else (cp * (words.get("tp") or 1), ep * words["etp"])
    replicas = lcm(ranks, parts) // ranks
    if replicas > 1:
        assumed.append(f"the file names no devices: dp {replicas}, the fewest for ep {ep} (give --gpus)")
    return replicas
