"""Input of a picture of one plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ppsim.simulation.step import StepActivity
from ppsim.simulation.timeline import Timeline
from ppsim.simulation.verdict import MemoryVerdict

Fact = tuple[str, str]


@dataclass(frozen=True, eq=False)
class TimelineView:
    """A timeline with everything that is shown with it.

    - `subject`: the model and cluster in one line, for the page's title.
    - `pieces`: work of the ranks outside the pipeline, in the timeline's own time.
    - `about`: for the page's header; `facts`: above the tables next to the picture.
    - `time_breakdown_s`: from `ppsim.projection.loss_breakdown.loss_budget`.
    - `notes`: lines by heading.
    """

    timeline: Timeline
    title: str = ""
    pieces: Sequence[StepActivity] = ()
    time_breakdown_s: Mapping[str, float] = field(default_factory=dict)
    facts: Sequence[Fact] = ()
    budget_title: str = "Where an iteration goes"
    subject: str = ""
    about: Sequence[Fact] = ()
    verdict: MemoryVerdict | None = None
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def begin_s(self) -> float:
        """Seconds from the pipeline's first start; below 0 if parameters are gathered before."""
        return min([0.0, *(piece.start_s - self.timeline.begin_s for piece in self.pieces)])

    @property
    def end_s(self) -> float:
        ends = (piece.end_s - self.timeline.begin_s for piece in self.pieces)
        return max([self.timeline.step_time_s, *ends])
