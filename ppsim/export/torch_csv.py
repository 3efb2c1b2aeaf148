"""The table for torch.distributed.pipelining: `_PipelineScheduleRuntime._load_csv`."""

from ppsim.schedule.check import require_one_chain, validate
from ppsim.schedule.grammar import format_table
from ppsim.schedule.graph import build_graph
from ppsim.schedule.lowering import Receives, lower
from ppsim.schedule.table import Schedule


def torch_csv(schedule: Schedule, *, with_communication: bool = False, receives: Receives | None = None) -> str:
    """Return the CSV text of a table that has been checked to run.

    Compute-only (`format="compute_only"`, any torch from 2.9 on), or with what torch 2.10 to 2.14 adds when it
    loads one (`format="compute_comms"`): sends, receives, UNSHARD, RESHARD and REDUCE_GRAD. A table that has
    its communication already keeps it unless `receives` asks for another place. Raises `ScheduleError` for a
    broken table and one with replicas or slices, and `Deadlock` for one that cannot finish.
    """
    validate(schedule)
    require_one_chain(schedule, runtime="torch")
    build_graph(schedule)
    if not with_communication:
        return format_table(schedule.compute_only())
    if schedule.has_communication and receives is None:
        return format_table(schedule)
    lowered = lower(schedule.compute_only(), receives=receives or "torch")
    build_graph(lowered, channel="edge")
    return format_table(lowered)
