"""Verdict whether a step fits in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ppsim.base.units import size
from ppsim.simulation.bounds.problem import is_within

_MOST_NAMED = 4


@dataclass(frozen=True)
class MemoryVerdict:
    """The rank with the highest peak memory, and the usable bytes per rank (`limit_bytes`, None: unknown).

    `assumed_gpus` is the number of GPUs if it was assumed. `activations_only`: static bytes are unknown.

    >>> verdict = MemoryVerdict(rank=1, peak_bytes=77.0 * 2**30, limit_bytes=75.7 * 2**30)
    >>> verdict.fits
    False
    >>> print(verdict)
    DOES NOT FIT: rank 1 needs 77.0 GiB, 75.7 GiB usable
    """

    rank: int
    peak_bytes: float
    limit_bytes: float | None
    ignored_memory_options: Sequence[str] = ()
    assumed_gpus: int | None = None
    activations_only: bool = False

    @property
    def fits(self) -> bool | None:
        if self.limit_bytes is None:
            return None
        if not is_within(self.peak_bytes, self.limit_bytes):
            return False
        return None if self.activations_only else True

    @property
    def headroom_bytes(self) -> float | None:
        return None if self.limit_bytes is None else self.limit_bytes - self.peak_bytes

    def __str__(self) -> str:
        needs = f"rank {self.rank} needs {size(self.peak_bytes)}"
        if self.activations_only:
            needs += " for activations alone"
        if self.limit_bytes is None:
            return f"fit unknown: {needs} (--memory-limit sets the usable memory)"
        word = {True: "fits", False: "DOES NOT FIT", None: "fit unknown"}[self.fits]
        return f"{word}: {needs}, {size(self.limit_bytes)} usable"

    @property
    def notes(self) -> list[str]:
        named = ", ".join(
            [
                *self.ignored_memory_options[:_MOST_NAMED],
                *(["…"] if len(self.ignored_memory_options) > _MOST_NAMED else []),
            ]
        )
        found = [f"ignored options that change memory: {named}"] if named else []
        if self.fits is False and self.assumed_gpus is not None:
            found.append(asks_for_gpus(self.assumed_gpus))
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "ignored_memory_options": list(self.ignored_memory_options),
            "headroom_bytes": self.headroom_bytes,
        }


def asks_for_gpus(number: int) -> str:
    """Return the request to set the number of GPUs.

    >>> asks_for_gpus(1)
    '1 GPU is assumed: give --gpus'
    """
    return f"{number} GPU{' is' if number == 1 else 's are'} assumed: give --gpus"
