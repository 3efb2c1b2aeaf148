"""Verdict whether a step fits in memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ppsim.base.units import size
from ppsim.simulation.bounds.problem import is_within

Word = Literal["fits", "fits tightly", "does not fit", "unknown"]

_MOST_NAMED = 4

_MARGIN, _SAFE_MARGIN = 5 * 2**30, 8 * 2**30
"""Bytes of a GPU beyond torch's allocated bytes: fragmentation, CUDA context, NCCL buffers, other libraries.

They do not grow with the GPU's memory. `max_memory_reserved` minus `max_memory_allocated` is 3.0 GiB for Nemotron
3.5 Lightning and 6.6 GiB for Gemma 4 26B on H100 (Megatron-Bridge, examples/model_verification_cards).
"""

_SMALLEST_BYTES = 80e9
"""Memory of the smallest GPU with such measurements; the margins of smaller GPUs are in proportion."""

_FRAGMENTING_SHARE = 0.75
"""Share of the memory above which plans with experts or CUDA graphs failed without expandable segments.

Megatron-Bridge: issue 4587 (23 % of the reserved memory was inactive), pull requests 3767 and 2971.
"""

_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


def _share(part_bytes: float, whole_bytes: float) -> str:
    total = size(whole_bytes)
    return f"{size(part_bytes).removesuffix(total[-4:])} of {total}"


@dataclass(frozen=True)
class MemoryLimit:
    """Bytes that a rank may use, and bytes above which it fits tightly; `why_tight` has the reason.

    >>> limit = MemoryLimit.of_device(80 * 2**30)
    >>> [limit.word(peak * 2**30) for peak in (72, 75, 76)]
    ['fits', 'fits tightly', 'does not fit']
    """

    usable_bytes: float
    safe_bytes: float
    why_tight: str = ""

    @classmethod
    def given(cls, usable_bytes: float) -> "MemoryLimit":
        """A limit by the user is used as it is."""
        return cls(usable_bytes, usable_bytes)

    @classmethod
    def of_device(cls, memory_bytes: float, *, fragments: str = "") -> "MemoryLimit":
        """`fragments` names the parts of the plan whose memory fragments, e.g. "experts"."""
        part = min(memory_bytes / _SMALLEST_BYTES, 1.0)
        safe = memory_bytes - part * _SAFE_MARGIN
        why = f"less than {_share(part * _SAFE_MARGIN, memory_bytes)} is free"
        if fragments and _FRAGMENTING_SHARE * memory_bytes < safe:
            safe = _FRAGMENTING_SHARE * memory_bytes
            why = f"{fragments} can fragment memory, and more than {_share(safe, memory_bytes)} is in use"
        return cls(memory_bytes - part * _MARGIN, safe, why)

    def holds(self, peak_bytes: float) -> bool:
        return is_within(peak_bytes, self.usable_bytes)

    def word(self, peak_bytes: float) -> Word:
        if not self.holds(peak_bytes):
            return "does not fit"
        return "fits" if is_within(peak_bytes, self.safe_bytes) else "fits tightly"

    @property
    def tight_notes(self) -> list[str]:
        """The reason why a step fits tightly, and the remedy."""
        return [self.why_tight, f"{_EXPANDABLE} helps"]


@dataclass(frozen=True)
class MemoryVerdict:
    """The rank with the highest peak memory, and the limit per rank (None: unknown).

    - `assumed_gpus`: the number of GPUs, if it was assumed.
    - `find_gpus`: search for a larger number of GPUs that fits, if the step does not fit on the assumed number.
    - `activations_only`: static bytes are unknown.

    >>> verdict = MemoryVerdict(rank=1, peak_bytes=77.0 * 2**30, limit=MemoryLimit.given(75.7 * 2**30))
    >>> verdict.word, verdict.fits
    ('does not fit', False)
    >>> print(verdict)
    DOES NOT FIT: rank 1 needs 77.0 GiB, 75.7 GiB usable
    """

    rank: int
    peak_bytes: float
    limit: MemoryLimit | None
    ignored_memory_options: Sequence[str] = ()
    assumed_gpus: int | None = None
    find_gpus: Callable[[], int | None] = field(default=lambda: None, compare=False)
    activations_only: bool = False

    @property
    def word(self) -> Word:
        """A step that is too large for an assumed number of GPUs may fit on the real one: "unknown"."""
        if self.limit is None:
            return "unknown"
        if self.is_too_large:
            return "unknown" if self.assumed_gpus else "does not fit"
        return "unknown" if self.activations_only else self.limit.word(self.peak_bytes)

    @property
    def fits(self) -> bool | None:
        return {"fits": True, "fits tightly": True, "does not fit": False, "unknown": None}[self.word]

    @property
    def is_tight(self) -> bool:
        return self.word == "fits tightly"

    @property
    def is_too_large(self) -> bool:
        """Whether the peak exceeds the limit, also on an assumed number of GPUs."""
        return self.limit is not None and not self.limit.holds(self.peak_bytes)

    @cached_property
    def fits_on(self) -> int | None:
        """A larger number of GPUs on which the step fits; None if none was found or needed."""
        return self.find_gpus() if self.assumed_gpus and self.is_too_large else None

    @property
    def limit_bytes(self) -> float | None:
        return self.limit.usable_bytes if self.limit else None

    @property
    def headroom_bytes(self) -> float | None:
        return self.limit.usable_bytes - self.peak_bytes if self.limit else None

    @property
    def needs(self) -> str:
        """For example "45.3 of 75.7 GiB"."""
        return _share(self.peak_bytes, self.limit_bytes or 0.0)

    def __str__(self) -> str:
        needs = f"rank {self.rank} needs {size(self.peak_bytes)}"
        if self.activations_only:
            needs += " for activations alone"
        if self.limit is None:
            return f"fit unknown: {needs} (--memory-limit sets the usable memory)"
        if self.is_too_large and self.assumed_gpus:
            gpus = f"{self.assumed_gpus} GPU{'s' * (self.assumed_gpus > 1)}"
            more = (
                f"fits on {self.fits_on}: give --gpus" if self.fits_on else "give --gpus, and larger --tp or --pp"
            )
            return f"on {gpus} (assumed): needs {self.needs}; {more}"
        word = {"does not fit": "DOES NOT FIT", "unknown": "fit unknown"}.get(self.word, self.word)
        return f"{word}: {needs}, {size(self.limit.usable_bytes)} usable"

    @property
    def tight_notes(self) -> list[str]:
        """Empty for other verdicts than "fits tightly"."""
        return self.limit.tight_notes if self.limit and self.is_tight else []

    @property
    def notes(self) -> list[str]:
        named = ", ".join(
            [
                *self.ignored_memory_options[:_MOST_NAMED],
                *(["…"] if len(self.ignored_memory_options) > _MOST_NAMED else []),
            ]
        )
        return [*self.tight_notes, *([f"ignored options that change memory: {named}"] if named else [])]

    def to_json(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "peak_bytes": self.peak_bytes,
            "limit_bytes": self.limit_bytes,
            "tight_above_bytes": self.limit.safe_bytes if self.limit else None,
            "ignored_memory_options": list(self.ignored_memory_options),
            "assumed_gpus": self.assumed_gpus,
            "fits_on_gpus": self.fits_on,
            "activations_only": self.activations_only,
            "headroom_bytes": self.headroom_bytes,
        }
