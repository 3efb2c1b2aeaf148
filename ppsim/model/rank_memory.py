"""Bytes on a rank at the peak of a step.

Activations depend on the microbatches in flight, which the schedule determines
(`ppsim.simulation.memory_per_action` has memory over time). The peak is assumed to be in the backward that needs
the most bytes (of the head or a layer), with the saved activations of all microbatches in flight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ppsim.base.errors import ConfigError
from ppsim.model.architecture import Model
from ppsim.model.memory_ledger import MemoryLedger
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.parameters import require_division
from ppsim.model.pipeline_stages import Stage


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank at its peak, by component."""

    components: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.components.values())

    @property
    def static(self) -> int:
        return sum(size for name, size in self.components.items() if name in STATIC)

    @property
    def activations(self) -> int:
        return sum(size for name, size in self.components.items() if name in ACTIVATIONS)


STATIC = (
    "parameters", "gradients", "optimizer state",
    "expert parameters", "expert gradients", "expert optimizer state",
)  # fmt: skip
ACTIVATIONS = (
    "layer input", "norms", "attention", "scores", "feed-forward", "experts", "modulation", "residual streams",
    "dropout masks",
    "embedding", "encoder", "head", "logits", "multi-token prediction",
)  # fmt: skip


def rank_memory(
    model: Model, stages: Sequence[Stage], settings: MemorySettings, *, in_flight: Sequence[float]
) -> RankMemory:
    """Peak of a rank that holds these stages.

    `in_flight`: microbatches per stage whose forward is done and whose backward is not, including the one whose
    backward starts; fractions are for averages. The head saves its part of one microbatch, because its backward
    follows its forward. Raises `ConfigError` for a model that cannot be divided.
    """
    if len(in_flight) != len(stages):
        raise ConfigError(f"in_flight has {len(in_flight)} entries, but there are {len(stages)} stages")
    if any(not number >= 0 for number in in_flight):
        raise ConfigError(f"microbatches in flight must be 0 or more: got {min(in_flight)}")
    require_division(model, settings.cut)
    ledger = MemoryLedger(model, settings)
    return RankMemory(ledger.peak(ledger.contents(stages), in_flight))
