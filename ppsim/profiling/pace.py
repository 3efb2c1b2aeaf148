"""How far a piece of work has come, by the clock."""

import time
from collections.abc import Callable

from ppsim.base.units import seconds


class Pace:
    """Work done of a total, in any unit that is proportional to time; `time_limit_s` from now on, None for none."""

    def __init__(self, total: float, *, time_limit_s: float | None = None) -> None:
        self.total, self.is_stopped = total, False
        self.done_work = 0.0
        self._limit, self._begin = time_limit_s, time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begin

    @property
    def left_s(self) -> float | None:
        """Seconds that the rest will take, None where nothing is done yet."""
        return self._seconds_of(self.total - self.done_work) if self.done_work else None

    @property
    def left(self) -> str:
        """What is left as the end of a line, empty where nothing is done yet."""
        return "" if self.left_s is None else f", about {seconds(self.left_s)} left"

    def done(self, work: float) -> None:
        """Count work that took its time."""
        self.done_work += work

    def dropped(self, work: float) -> None:
        """Count work that need not be done."""
        self.total -= work

    def has_time_for(self, work: float) -> bool:
        """Whether a piece of work will end before the limit, as far as one knows; once not, `is_stopped`."""
        if self._limit is not None:
            self.is_stopped = self.is_stopped or self.elapsed_s + self._seconds_of(work) > self._limit
        return not self.is_stopped

    def _seconds_of(self, work: float) -> float:
        return self.elapsed_s * work / self.done_work if self.done_work else 0.0


Watch = Callable[[Pace], None]
"""Is called with how far work is, whenever a part of it is done."""
