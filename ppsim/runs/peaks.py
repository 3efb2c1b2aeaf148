"""Measured and projected peak memory per rank."""

from dataclasses import asdict, dataclass
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.simulation.timeline import Timeline


@dataclass(frozen=True)
class PeakError:
    """Measured and projected peak activation bytes of a rank, and the action at each peak."""

    rank: int
    measured_bytes: int
    measured_at: str
    projected_bytes: float
    projected_at: str

    @property
    def error(self) -> float:
        """Projected / measured − 1."""
        return self.projected_bytes / self.measured_bytes - 1 if self.measured_bytes else 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"error": self.error}


def peaks_in(run: Any, source: str) -> list[dict[str, Any]]:
    """Return the memory peaks in the `run` part of a measured file; raises `ConfigError` for a malformed entry."""
    memory = run.get("memory") if isinstance(run, dict) else None
    if memory is None:
        return []
    try:
        return [
            {
                "rank": int(peak["rank"]),
                "peak_activation_bytes": int(peak["peak_activation_bytes"]),
                "peak_at": str(peak["peak_at"]),
                "peak_allocated_bytes": peak["peak_allocated_bytes"],
            }
            for peak in memory["ranks"]
        ]
    except (LookupError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"{source} is wrong: run.memory.ranks does not hold the peak of every rank") from None


def peak_errors(peaks: list[dict[str, Any]], projected: Timeline) -> list[PeakError]:
    """Compare the peaks of each rank; empty if the projection has no activation bytes.

    On CUDA, the measured peak is the allocator's. It includes temporary memory, which a projection leaves out.
    """
    memory, num_ranks = projected.memory, projected.schedule.num_ranks
    if not memory.peak_activation_bytes.any() or [peak["rank"] for peak in peaks] != list(range(num_ranks)):
        return []
    return [
        PeakError(
            rank, peak["peak_allocated_bytes"] or peak["peak_activation_bytes"], peak["peak_at"],
            float(memory.peak_activation_bytes[rank]), projected.name_of(int(memory.peak_at[rank])),
        )
        for rank, peak in enumerate(peaks)
    ]  # fmt: skip
