"""The parts of a timeline file that pydantic checks."""

from ppsim.base.boundary import NonNegative, Positive, Strict


class Counts(Strict):
    """What a CSV table does not say of itself."""

    replicas: Positive = 1
    slices: Positive = 1


class Times(Strict):
    """One entry a node: seconds, and the node waited for last."""

    start_s: list[float]
    end_s: list[float]
    blocker: list[int]


class Steps(Strict):
    """Every recorded step, one entry a node, and what else is known of the run."""

    between_steps_s: list[float]
    message_bytes: NonNegative | None
    knows_transfers: bool
    start_s: list[list[float]]
    end_s: list[list[float]]
