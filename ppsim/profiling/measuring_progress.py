"""Progress of a measurement, and the time that it has left."""

import time
from collections.abc import Callable

from ppsim.base.units import seconds


class MeasuringProgress:
    """Work done of a total, in any unit proportional to time, and an optional time limit."""

    def __init__(self, total: float, *, time_limit_s: float | None = None) -> None:
        self.total, self.is_stopped = total, False
        self.done_work = 0.0
        self._limit, self._begin = time_limit_s, time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begin

    @property
    def left_s(self) -> float | None:
        return self._seconds_of(self.total - self.done_work) if self.done_work else None

    @property
    def left(self) -> str:
        return "" if self.left_s is None else f", about {seconds(self.left_s)} left"

    def done(self, work: float) -> None:
        self.done_work += work

    def dropped(self, work: float) -> None:
        self.total -= work

    def has_time_for(self, work: float) -> bool:
        """Return whether the work is expected to end within the limit; set `is_stopped` if not."""
        if self._limit is not None:
            self.is_stopped = self.is_stopped or self.elapsed_s + self._seconds_of(work) > self._limit
        return not self.is_stopped

    def _seconds_of(self, work: float) -> float:
        return self.elapsed_s * work / self.done_work if self.done_work else 0.0


Watch = Callable[[MeasuringProgress], None]
"""Called with the progress after each part of the work."""
