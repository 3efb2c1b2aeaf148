"""Peak memory of a rank by component."""

import numpy as np

from ppsim.base.arrays import Floats
from ppsim.base.errors import ConfigError
from ppsim.costs.job import Job
from ppsim.costs.stage_cost_set import StageCostSet, values_of_ranks
from ppsim.model.pipeline_stages import stages_of_layout
from ppsim.model.rank_memory import rank_memory, update_memory
from ppsim.schedule.table import Op, Schedule
from ppsim.simulation.memory_per_action import RankMemoryUse


def components_at_peak(
    job: Job,
    schedule: Schedule,
    assembled: StageCostSet,
    memory: RankMemoryUse,
    rank: int,
    *,
    of_tokens: Floats | None = None,
) -> dict[str, int]:
    """Return the bytes of a rank at its peak, by component of `ppsim.model.rank_memory`.

    `of_tokens` has the tokens of each microbatch as a fraction of the job's microbatch. Raises `ConfigError` if
    activations are offloaded, because no component contains them.
    """
    if job.offloads:
        raise ConfigError("what a rank holds by component is known without offloading only")
    costs, first = assembled.costs.resolved_for(schedule), int(schedule.rank_offsets[rank])
    mine = values_of_ranks(schedule, stages_of_layout(job.model, assembled.contents))[rank]
    if costs.update_bytes[rank] > memory.peak_activation_bytes[rank]:
        return dict(update_memory(job.model, mine, job.settings).components)
    whole_microbatches = np.ones(schedule.num_microbatches) if of_tokens is None else of_tokens
    in_flight = dict.fromkeys(schedule.stages_of(rank), 0.0)
    for action in range(first, int(memory.peak_at[rank]) + 1):
        stage, op = int(schedule.stage[action]), int(schedule.op[action])
        microbatch, place = divmod(int(schedule.microbatch[action]), schedule.num_slices)
        whole, for_weight = (float(values[stage]) for values in (costs.activation_bytes, costs.kept_bytes))
        waits = for_weight / whole if whole else 0.0
        freed = {Op.F: -1.0, Op.B: 1.0, Op.I: 1 - waits, Op.W: waits}[Op(op)]
        if freed < 0 or action < memory.peak_at[rank]:
            in_flight[stage] -= freed * float(costs.token_shares[place] * whole_microbatches[microbatch])
    held = [max(0.0, number) for number in in_flight.values()]
    return dict(rank_memory(job.model, mine, job.settings, in_flight=held).components)
