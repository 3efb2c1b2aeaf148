"""Saved bytes of one stage, for tests."""

from ppsim.model.architecture import Model
from ppsim.model.memory_ledger import MemoryLedger
from ppsim.model.memory_settings import MemorySettings
from ppsim.model.pipeline_stages import Stage


def stage_activations(model: Model, stage: Stage, settings: MemorySettings) -> dict[str, int]:
    """Saved bytes per microbatch, without the stage's head, by component."""
    ledger = MemoryLedger(model, settings)
    saved = ledger.saved(ledger.contents([stage]))[0]
    return {name: int(size) for name, size in zip(ledger.columns.components, saved, strict=True) if size}
