"""The parts of a timeline file that pydantic checks."""

from dataclasses import field
from typing import Annotated, Any, Literal

from ppsim.base.boundary import AboveZero, NonNegative, Positive, Strict, Within
from ppsim.schedule.choices import Communication


class NodeTimes(Strict):
    """One entry a node: seconds, and the node waited for last."""

    start_s: list[float]
    end_s: list[float]
    blocker: list[int]


class Steps(Strict):
    """Every recorded step, one entry a node, and what else is known of the run."""

    between_steps_s: list[float]
    message_bytes: NonNegative | None
    knows_transfers: bool
    communication: Communication = "overlap"
    reference_s: list[AboveZero] = field(default_factory=list)
    start_s: list[list[float]]
    end_s: list[list[float]]


class File(Strict, extra="ignore"):
    """What it takes to load a timeline; the report beside it is for people. A CSV says no replicas and slices.

    Of a projection, also between what nine of ten iterations are expected, and at which pace (`Run.reference_s`).
    """

    origin: Literal["measured", "simulated"]
    schedule: str = ""
    replicas: Positive = 1
    slices: Positive = 1
    table: list[str]
    costs: dict[str, Any]
    timeline: NodeTimes
    steps: Steps | None = None
    run: dict[str, Any] = field(default_factory=dict)
    iteration_time_s: NonNegative | None = None
    iteration_time_interval_s: Annotated[list[float], Within(min_length=2, max_length=2)] | None = None
    reference_s: AboveZero | None = None
