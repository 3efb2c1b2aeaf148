"""Writer of the `_order` lists of TransformerEngine's `make_graphed_callables`."""

from ppsim.base.errors import ScheduleError
from ppsim.schedule.check import compute_for
from ppsim.schedule.table import Op, Schedule


def graph_order(schedule: Schedule) -> list[list[float]]:
    """Return one list per rank: +c is a forward pass of chunk c (from 1), −c its backward pass, −c − 0.5 a W.

    Forward and backward passes of a chunk count microbatches up, and a W belongs to the chunk's last backward pass
    (`_make_graphed_callables` captures it into the graph of its microbatch). Raises `ScheduleError` for any other
    order, and for a stage that splits only some backward passes, because −c means either kind.
    """
    compute = compute_for("TransformerEngine", schedule)
    full, split = (set(compute.stage[compute.op == op].tolist()) for op in (Op.B, Op.I))
    for stage in sorted(full & split):
        raise ScheduleError(
            f"TransformerEngine takes a chunk's backwards whole or split, not both; stage {stage} runs B for some "
            f"microbatches, I and W for others"
        )
    lists: list[list[float]] = []
    for rank in range(compute.num_ranks):
        chunk_of = {stage: chunk for chunk, stage in enumerate(compute.stages_of(rank), start=1)}
        counts: dict[tuple[int, int], int] = {}
        order: list[float] = []
        for entry in compute.entries_of(rank):
            op, stage, microbatch = compute[entry]
            kind = {Op.F: 0, Op.W: 2}.get(op, 1)
            if counts.setdefault((stage, kind), 0) != microbatch:
                raise ScheduleError(
                    f"TransformerEngine counts a chunk's microbatches itself, in order; rank {rank} runs "
                    f"{compute[entry]} where microbatch {counts[stage, kind]} is next"
                )
            if kind == 2 and (last := counts[stage, 1] - 1) != microbatch:
                raise ScheduleError(
                    f"TransformerEngine captures each W before the chunk's next backward; rank {rank} runs "
                    f"{stage}I{last} before {compute[entry]}"
                )
            counts[stage, kind] += 1
            chunk = chunk_of[stage]
            order.append((chunk, -chunk, -chunk - 0.5)[kind])
        lists.append(order)
    return lists
