"""DualPipeV: two stages a rank in a V, a forward of one chunk fused with a backward of the other.

DualPipe (DeepSeek-AI 2024, arXiv 2412.19437, §3.2.1; github.com/deepseek-ai/DualPipe) cut in half (Qi et al. 2025,
"DualPipe could be better without the Dual"). The eight steps are those of the authors' code. A fused cell gives
its transfers room to overlap with compute; its results leave together.
"""

from collections import deque

from ppsim.schedule.placement import v_shape
from ppsim.schedule.table import Action, Cell, Schedule, backward, backward_input, backward_weight, forward


class _Chunk:
    """The actions of one stage, handed out in microbatch order."""

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.num_forwards = self.num_backwards = 0

    def forward(self) -> Action:
        self.num_forwards += 1
        return forward(self.stage, self.num_forwards - 1)

    def backward(self) -> Action:
        self.num_backwards += 1
        return backward(self.stage, self.num_backwards - 1)

    def backward_input(self) -> Action:
        self.num_backwards += 1
        return backward_input(self.stage, self.num_backwards - 1)


def dual_pipe_v(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the DualPipeV table; needs m ≥ 2p microbatches, one for each stage."""
    rows = [_row(rank, num_ranks, num_microbatches) for rank in range(num_ranks)]
    return Schedule.from_rows(rows, stage_to_rank=v_shape(num_ranks, 2 * num_ranks), name="dualpipev")


def _row(rank: int, num_ranks: int, num_microbatches: int) -> list[Cell]:
    down, up = _Chunk(rank), _Chunk(2 * num_ranks - 1 - rank)
    put_off: deque[Action] = deque()  # weight gradients that wait
    row: list[Cell] = []
    num_below = num_ranks - 1 - rank

    def split(chunk: _Chunk) -> Action:
        action = chunk.backward_input()
        put_off.append(backward_weight(action.stage, action.microbatch))
        return action

    # Warm-up: down alone, then down and up by turns, then the first backwards, split.
    for _ in range(2 * num_below):
        row.append(down.forward())
    for _ in range(rank + 1):
        row += [down.forward(), up.forward()]
    for _ in range(num_below):
        row += [split(up), put_off.popleft(), up.forward()]

    # Steady state: pairs of a forward and a backward. The last rank would wait for nothing but itself in its first.
    for step in range(num_microbatches - 2 * num_ranks + rank + 1):
        if step == 0 and num_below == 0:
            row += [down.forward(), up.backward()]
        else:
            row.append((down.forward(), up.backward()))
        row.append((up.forward(), down.backward()))

    # Cool-down: no more forwards down, then none at all, with the backward split halfway.
    for _ in range(num_below):
        row += [up.backward(), (up.forward(), down.backward())]
    for turn in range(2 * (rank + 1)):
        chunk = down if turn % 2 else up
        row.append(split(chunk) if turn > rank else chunk.backward())
    for _ in range(num_below):
        if put_off:
            row.append(put_off.popleft())
        row.append(split(down))
    return row + list(put_off)
