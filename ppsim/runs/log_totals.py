"""Times of a run that has a training log but no timeline."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from ppsim.base.display import Printable
from ppsim.base.errors import ConfigError
from ppsim.base.units import seconds

FORMAT = "ppsim-totals/1"


@dataclass(frozen=True, repr=False)
class LogTotals(Printable):
    """Iteration times and timers of a training log, in seconds.

    `timers_s` has the minimum (None: not logged) and the maximum over the ranks, as medians over the log.
    `memory_bytes` has the values of the allocator's log line, as maxima over the ranks. `num_garbled` counts the
    lines with a number that could not be parsed. After `num_restarts` restarts, only the last run counts.

    >>> LogTotals("log", [2.0, 2.1, 2.0], {"forward-backward": (1.8, 1.9)}).iteration_time_s
    2.0
    """

    source: str
    iterations_s: Sequence[float]
    timers_s: Mapping[str, tuple[float | None, float]] = field(default_factory=dict)
    memory_bytes: Mapping[str, float] = field(default_factory=dict)
    num_warm_up: int = 0
    num_garbled: int = 0
    num_restarts: int = 0

    @property
    def one_line(self) -> str:
        return f"{len(self.iterations_s)} iterations of {seconds(self.iteration_time_s)}"

    def __post_init__(self) -> None:
        if not self.iterations_s:
            raise ConfigError(f"{self.source} has no iteration left after {self.num_warm_up} of warm-up")

    @property
    def iteration_time_s(self) -> float:
        """Median iteration time."""
        return median(self.iterations_s)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "iteration_time_s": self.iteration_time_s, **asdict(self)}
