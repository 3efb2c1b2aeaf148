"""Fill colours of a timeline."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ppsim.plot import palette
from ppsim.plot.lanes import Lane, has_transfers
from ppsim.schedule.table import Op
from ppsim.simulation.timeline import Timeline

_LIGHTER = "lighter: every other chunk"
_HATCHED = "(lighter, and hatched where wide enough: every other chunk)"
KINDS = (Op.F, Op.B, Op.I, Op.W)
_PARTS = (
    [palette.fill_of(op, chunk=chunk) for op in KINDS for chunk in range(2)],
    [palette.COLOURS[Op.SEND_F], palette.BLANK, palette.COLOURS[Op.IDLE]],
    palette.CAUSE_COLOURS.values(),
    palette.BESIDE_COLOURS.values(),
    palette.MICROBATCHES,
    palette.ERRORS,
)
_BEGINS = tuple(accumulate(map(len, _PARTS), initial=0))


@dataclass(frozen=True)
class ActionColours:
    """The fills of all cells of a picture whose ranks have up to `num_chunks` stages.

    `colours` begins with two fills per kind of action. The other class variables are the indices at which
    the next groups begin. The two fills after `transfer` are blank and idle.
    """

    num_chunks: int
    colours: ClassVar[Sequence[str]] = tuple(chain(*_PARTS))
    transfer: ClassVar[int] = _BEGINS[1]
    causes: ClassVar[int] = _BEGINS[2]
    beside: ClassVar[int] = _BEGINS[3]
    microbatches: ClassVar[int] = _BEGINS[4]
    errors: ClassVar[int] = _BEGINS[5]

    def index_of(self, lane: Lane) -> NDArray[np.int16]:
        assert KINDS == (0, 1, 2, 3)  # the index below relies on this order
        if lane.is_transfers:
            return np.where(lane.is_idle, self.transfer + 1, self.transfer).astype(np.int16)
        index = 2 * lane.kind.astype(np.int16) + lane.chunk % 2
        return np.where(lane.is_idle, self.transfer + 2, index).astype(np.int16)

    def legend(self, timelines: Sequence[Timeline]) -> list[tuple[str, str]]:
        """Chunks share one entry."""
        entries = [(name, colours[0]) for name, colours in self._kinds(timelines)]
        if self.num_chunks > 1:
            entries.append((_LIGHTER, palette.fill_of(Op.F, chunk=1)))
        if any(has_transfers(timeline) for timeline in timelines):
            entries.append((palette.TITLES[Op.SEND_F], palette.COLOURS[Op.SEND_F]))
        return [*entries, (palette.TITLES[Op.IDLE], palette.COLOURS[Op.IDLE])]

    def swatches(self, timelines: Sequence[Timeline]) -> list[tuple[str, list[str]]]:
        """Return the page's legend entries: for a kind, the fills of even and of odd chunks."""
        kinds = self._kinds(timelines)
        others = [(name, [colour]) for name, colour in self.legend(timelines)[len(kinds) :] if name != _LIGHTER]
        others[-1] = (palette.TITLES[Op.IDLE], ["var(--idle)"])
        return [*kinds, *others, *([(_HATCHED, list[str]())] if self.num_chunks > 1 else [])]

    def _kinds(self, timelines: Sequence[Timeline]) -> list[tuple[str, list[str]]]:
        used = [op for op in KINDS if any(np.any(timeline.schedule.op == op) for timeline in timelines)]
        chunks = range(min(self.num_chunks, 2))
        return [(palette.TITLES[op], [palette.fill_of(op, chunk=chunk) for chunk in chunks]) for op in used]


def fills_of(timelines: Sequence[Timeline]) -> ActionColours:
    """Return common fills for timelines in one picture, so that each chunk has one look."""
    return ActionColours(max(timeline.schedule.vpp for timeline in timelines))
