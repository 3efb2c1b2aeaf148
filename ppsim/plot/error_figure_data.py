"""Error of the projected time of every action."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.simulation.timeline import Timeline

_LIMITS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True, eq=False)
class ActionErrors:
    """Two timelines of one schedule, compared by action."""

    measured: Timeline
    projected: Timeline

    @cached_property
    def of_action(self) -> Floats:
        """Projected / measured duration − 1; 0 if the measured duration is 0."""
        measured = self.measured_s
        error: Floats = np.divide(self.projected_s, measured, out=np.ones(len(measured)), where=measured > 0) - 1
        return error

    @property
    def limit(self) -> float:
        """The smallest limit that contains 75 % of the actions' errors."""
        most = float(np.quantile(np.abs(self.of_action), 0.75))
        return next((limit for limit in _LIMITS if most <= limit), _LIMITS[-1])

    @property
    def measured_s(self) -> Floats:
        return _durations_s(self.measured)

    @property
    def projected_s(self) -> Floats:
        return _durations_s(self.projected)

    @property
    def behind_s(self) -> Floats:
        return _ends_s(self.projected) - _ends_s(self.measured)


def _durations_s(timeline: Timeline) -> Floats:
    return (timeline.end - timeline.start)[: timeline.num_actions]


def _ends_s(timeline: Timeline) -> Floats:
    return timeline.end[: timeline.num_actions] - timeline.begin_s
