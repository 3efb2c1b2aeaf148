"""What the rows of many schedules are made of: forwards and backwards by turns, groups of microbatches, chunks."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ppsim.schedule.table import Action, backward, backward_input, backward_weight, forward

Visit: TypeAlias = tuple[int, int]
"""A stage and a microbatch."""


def full_row(forwards: Sequence[Visit], backwards: Sequence[Visit], *, num_warm_up: int) -> list[Action]:
    """Return a rank's row: the warm-up, then a forward and a full backward by turns, then the backwards left.

    The visits are of one length and in the rank's order; a warm-up longer than that is cut short.
    """
    return _row(
        [forward(*visit) for visit in forwards], [backward(*visit) for visit in backwards], [], num_warm_up, 0
    )


def split_row(
    forwards: Sequence[Visit], backwards: Sequence[Visit], *, num_warm_up: int, num_put_off: int = 0
) -> list[Action]:
    """Return the row of `full_row` with each backward split: W follows I, or the I that is `num_put_off` later."""
    return _row(
        [forward(*visit) for visit in forwards],
        [backward_input(*visit) for visit in backwards],
        [backward_weight(*visit) for visit in backwards],
        num_warm_up,
        num_put_off,
    )


def _row(
    forwards: list[Action], backwards: list[Action], weights: list[Action], num_warm_up: int, num_put_off: int
) -> list[Action]:
    num_warm_up = min(num_warm_up, len(forwards))
    row = forwards[:num_warm_up]
    for k, action in enumerate(backwards):
        row += forwards[num_warm_up + k : num_warm_up + k + 1]  # none is left in the cool-down
        row.append(action)
        if k >= num_put_off:
            row += weights[k - num_put_off : k - num_put_off + 1]
    num_done = max(len(backwards) - num_put_off, 0)
    return row + weights[num_done:]


def visits_of_stage(stage: int, num_microbatches: int) -> list[Visit]:
    """Return the microbatches of a stage in order, for a rank that has no other."""
    return [(stage, microbatch) for microbatch in range(num_microbatches)]


def visits_in_groups(
    num_ranks: int, vpp: int, num_microbatches: int, group_size: int
) -> Iterator[tuple[list[Visit], list[Visit]]]:
    """Yield each rank's forwards and backwards, looped and depth first: a group through all chunks, then the next.

    The last group is smaller where the size does not divide m. Backwards meet the chunks in reverse.
    """
    order = [
        (chunk, microbatch)
        for first in range(0, num_microbatches, group_size)
        for chunk in range(vpp)
        for microbatch in range(first, min(first + group_size, num_microbatches))
    ]
    for rank in range(num_ranks):
        yield (
            [(chunk * num_ranks + rank, microbatch) for chunk, microbatch in order],
            [((vpp - 1 - chunk) * num_ranks + rank, microbatch) for chunk, microbatch in order],
        )


class Chunk:
    """The actions of one stage, in microbatch order from `first` on; a backward is either full or of the inputs."""

    def __init__(self, stage: int, first: int = 0) -> None:
        self.stage = stage
        self.next_forward = self.next_backward = first

    def forward(self) -> Action:
        """Return the next forward."""
        self.next_forward += 1
        return forward(self.stage, self.next_forward - 1)

    def backward(self) -> Action:
        """Return the next backward, in full."""
        self.next_backward += 1
        return backward(self.stage, self.next_backward - 1)

    def backward_input(self) -> Action:
        """Return the next backward, for the inputs only."""
        self.next_backward += 1
        return backward_input(self.stage, self.next_backward - 1)
