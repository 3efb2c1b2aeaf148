"""The fills of cells as one row of colours, so that a cell's colour is an index into it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ppsim.plot import palette
from ppsim.plot.lanes import Lane, has_transfers
from ppsim.schedule.table import Op
from ppsim.simulation.timeline import Timeline

KINDS = (Op.F, Op.B, Op.I, Op.W)
RAMP_LENGTH = 32
ERROR_LENGTH = 21


@dataclass(frozen=True)
class Fills:
    """The fills of all cells of a picture whose ranks have up to `num_chunks` stages."""

    num_chunks: int

    @property
    def colours(self) -> list[str]:
        """The fills: kinds, two fills each, transfers, the blank between them, idle; then those of the page.

        They are causes of idling, what is beside the pipeline, microbatches, errors: see the properties that say
        where each begins.
        """
        compute = [palette.fill_of(op, chunk=chunk) for op in KINDS for chunk in range(2)]
        return [
            *compute, palette.COLOURS[Op.SEND_F], palette.BLANK, palette.COLOURS[Op.IDLE],
            *palette.CAUSES.values(), *palette.BESIDE.values(),
            *palette.microbatch_ramp(RAMP_LENGTH), *palette.error_ramp(ERROR_LENGTH),
        ]  # fmt: skip

    @property
    def transfer(self) -> int:
        """The index of a transfer's fill; behind it that of the blank between two, then that of an idle cell."""
        return 2 * len(KINDS)

    @property
    def causes(self) -> int:
        """The index of the first cause of idling."""
        return self.transfer + 3

    @property
    def beside(self) -> int:
        """The index of the first of what is beside the pipeline."""
        return self.causes + len(palette.CAUSES)

    @property
    def microbatches(self) -> int:
        """The index of the first of the `RAMP_LENGTH` microbatch colours."""
        return self.beside + len(palette.BESIDE)

    @property
    def errors(self) -> int:
        """The index of the first of the `ERROR_LENGTH` error colours."""
        return self.microbatches + RAMP_LENGTH

    def index_of(self, lane: Lane) -> NDArray[np.int16]:
        """Return the index of the fill of every cell."""
        assert KINDS == (0, 1, 2, 3)  # the order of the fills
        if lane.is_transfers:
            return np.where(lane.is_idle, self.transfer + 1, self.transfer).astype(np.int16)
        index = 2 * lane.kind.astype(np.int16) + lane.chunk % 2
        return np.where(lane.is_idle, self.transfer + 2, index).astype(np.int16)

    def legend(self, timelines: Sequence[Timeline]) -> list[tuple[str, str]]:
        """Return name and colour of every fill that the timelines use; chunks share one entry."""
        used = [op for op in KINDS if any(np.any(timeline.schedule.op == op) for timeline in timelines)]
        entries = [(palette.TITLES[op], palette.COLOURS[op]) for op in used]
        if self.num_chunks > 1:
            entries.append(("lighter: every other chunk", palette.fill_of(Op.F, chunk=1)))
        if any(has_transfers(timeline) for timeline in timelines):
            entries.append((palette.TITLES[Op.SEND_F], palette.COLOURS[Op.SEND_F]))
        return [*entries, (palette.TITLES[Op.IDLE], palette.COLOURS[Op.IDLE])]


def fills_of(timelines: Sequence[Timeline]) -> Fills:
    """Return the fills for timelines in one picture, so that a chunk looks the same in all of them."""
    return Fills(max(timeline.schedule.vpp for timeline in timelines))
