"""What a picture shows of one plan: its timeline, what is around it, and the facts beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ppsim.simulation.step import Piece
from ppsim.simulation.timeline import Timeline
from ppsim.simulation.verdict import Verdict

Fact = tuple[str, str]


@dataclass(frozen=True, eq=False)
class View:
    """A timeline with its title; `pieces` are what its ranks do beside the pipeline, in the timeline's own time.

    `about` says what it is of, names and texts for a page's header, `subject` the same in a line for its title.
    `verdict` says whether it fits in memory, None if that is not projected.
    `facts` are names and texts that stand first beside the picture, `notes` lines under a heading each: what was
    assumed, say. `budget_s` has the seconds of an iteration by what they go to
    (`ppsim.projection.budget.loss_budget`), empty where nobody knows, under `budget_title`.
    """

    timeline: Timeline
    title: str = ""
    pieces: Sequence[Piece] = ()
    budget_s: Mapping[str, float] = field(default_factory=dict)
    facts: Sequence[Fact] = ()
    budget_title: str = "Where an iteration goes"
    subject: str = ""
    about: Sequence[Fact] = ()
    verdict: Verdict | None = None
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def begin_s(self) -> float:
        """When the first thing starts, from the pipeline's first start: below 0 with parameters to gather."""
        return min([0.0, *(piece.start_s - self.timeline.begin_s for piece in self.pieces)])

    @property
    def end_s(self) -> float:
        """When all is done, from the pipeline's first start."""
        ends = (piece.end_s - self.timeline.begin_s for piece in self.pieces)
        return max([self.timeline.step_time_s, *ends])
