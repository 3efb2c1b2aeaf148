"""DualPipe and DualPipeV: two stages per rank, with a forward of one fused with a backward of the other.

DualPipe (DeepSeek-AI 2024, arXiv 2412.19437, §3.2.1; github.com/deepseek-ai/DualPipe) runs two model replicas in
opposite directions. DualPipeV (Qi et al. 2025, "DualPipe could be better without the Dual") runs one model in a V
over half the ranks. The steps per rank follow the authors' code.
"""

from collections import deque
from itertools import count

from ppsim.schedule.placement import v_shape
from ppsim.schedule.table import Action, Cell, Op, Schedule


def dual_pipe(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Chain 0 runs down the ranks, chain 1 back up; needs an even p, an even m and m ≥ 2p.

    The rows of the first p/2 ranks are DualPipeV's for p/2 ranks and m/2 microbatches. The other rows mirror them
    with the chains swapped.
    """
    half, share = num_ranks // 2, num_microbatches // 2
    rows = []
    for rank in range(num_ranks):
        down, up = _Chunk(rank), _Chunk(2 * num_ranks - 1 - rank, first=share)
        near, far = (down, up) if rank < half else (up, down)  # the chain that starts nearer comes first
        rows.append(_row(near, far, num_above=min(rank, num_ranks - 1 - rank), num_ranks=half, num_rounds=share))
    return Schedule.from_rows(
        rows, stage_to_rank=v_shape(num_ranks, 2 * num_ranks), num_microbatches=num_microbatches,
        name="dualpipe", num_replicas=2,
    )  # fmt: skip


def dual_pipe_v(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Needs m ≥ 2p."""
    rows = [
        _row(
            _Chunk(rank), _Chunk(2 * num_ranks - 1 - rank), num_above=rank, num_ranks=num_ranks,
            num_rounds=num_microbatches,
        )
        for rank in range(num_ranks)
    ]  # fmt: skip
    return Schedule.from_rows(rows, stage_to_rank=v_shape(num_ranks, 2 * num_ranks), name="dualpipev")


class _Chunk:
    """The actions of one stage, in microbatch order."""

    def __init__(self, stage: int, first: int = 0) -> None:
        self.stage, self.forwards, self.backwards = stage, count(first), count(first)

    def forward(self) -> Action:
        return Action(Op.F, self.stage, next(self.forwards))

    def backward(self, op: Op = Op.B) -> Action:
        return Action(op, self.stage, next(self.backwards))


def _row(first: _Chunk, second: _Chunk, *, num_above: int, num_ranks: int, num_rounds: int) -> list[Cell]:
    """The rank is number `num_above` of the `num_ranks` ranks in its half."""
    put_off: deque[Action] = deque()  # postponed weight gradients
    row: list[Cell] = []
    num_below = num_ranks - 1 - num_above

    def split(chunk: _Chunk) -> Action:
        action = chunk.backward(Op.I)
        put_off.append(action._replace(op=Op.W))
        return action

    # Warm-up: one chunk alone, then both alternate, then the first backwards, split.
    for _ in range(2 * num_below):
        row.append(first.forward())
    for _ in range(num_above + 1):
        row += [first.forward(), second.forward()]
    for _ in range(num_below):
        row += [split(second), put_off.popleft(), second.forward()]

    # Steady state. The last rank's first pair is not fused: its backward needs its forward.
    for step in range(num_rounds - 2 * num_ranks + num_above + 1):
        if step == 0 and num_below == 0:
            row += [first.forward(), second.backward()]
        else:
            row.append((first.forward(), second.backward()))
        row.append((second.forward(), first.backward()))

    # Cool-down: first without forwards of the first chunk, then without any; later backwards are split.
    for _ in range(num_below):
        row += [second.backward(), (second.forward(), first.backward())]
    for turn in range(2 * (num_above + 1)):
        chunk = first if turn % 2 else second
        row.append(split(chunk) if turn > num_above else chunk.backward())
    for _ in range(num_below):
        if put_off:
            row.append(put_off.popleft())
        row.append(split(first))
    return row + list(put_off)
