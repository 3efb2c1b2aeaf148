"""How far the projected time of every action is from the measured one, for a picture of both."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.units import seconds, signed_percent
from ppsim.simulation.timeline import Timeline

_LIMITS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True, eq=False)
class Errors:
    """Two timelines of one table, action by action."""

    measured: Timeline
    projected: Timeline

    @cached_property
    def of_action(self) -> Floats:
        """Projected over measured duration, minus one; negative is too fast, 0 where nothing was measured."""
        measured, projected = (_durations_s(timeline) for timeline in (self.measured, self.projected))
        error: Floats = np.divide(projected, measured, out=np.ones(len(measured)), where=measured > 0) - 1
        return error

    @property
    def limit(self) -> float:
        """Where a scale of colours ends: the first of some round numbers that three in four actions keep within."""
        most = float(np.quantile(np.abs(self.of_action), 0.75))
        return next((limit for limit in _LIMITS if most <= limit), _LIMITS[-1])

    @cached_property
    def lines(self) -> list[str]:
        """What each action says of itself."""
        measured, projected = (_durations_s(timeline).tolist() for timeline in (self.measured, self.projected))
        behind = (_ends_s(self.projected) - _ends_s(self.measured)).tolist()
        return [
            f"projected {seconds(there)}, measured {seconds(here)}: {signed_percent(error)}; "
            f"ends {seconds(abs(drift))} {'late' if drift > 0 else 'early'} in the projection"
            for here, there, error, drift in zip(measured, projected, self.of_action.tolist(), behind, strict=True)
        ]


def _durations_s(timeline: Timeline) -> Floats:
    return (timeline.end - timeline.start)[: timeline.num_actions]


def _ends_s(timeline: Timeline) -> Floats:
    """From the first start of the step."""
    return timeline.end[: timeline.num_actions] - timeline.begin_s
