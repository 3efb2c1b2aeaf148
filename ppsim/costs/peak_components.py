"""Peak memory of a rank by component."""

from collections import Counter

import numpy as np

from ppsim.costs.job import Job
from ppsim.costs.ledger import Ledger
from ppsim.costs.offload import buffer_bytes
from ppsim.costs.stage_cost_set import StageCostSet
from ppsim.schedule.table import Schedule
from ppsim.simulation.memory_per_action import RankMemoryUse, bytes_at_peak
from ppsim.simulation.stage_costs import StageCosts


def components_at_peak(
    job: Job, schedule: Schedule, assembled: StageCostSet, costs: StageCosts, memory: RankMemoryUse, rank: int
) -> dict[str, int]:
    """Return the bytes of a rank at its peak by component, which sum to the simulated peak up to rounding.

    The simulation gives `costs` and `memory`. Pairs of a forward and a backward add the component "forward
    during a backward", and offloading adds "offloaded to the host" (negative) and "buffers of offloading".
    """
    resolved, ledger = costs.resolved_for(schedule), Ledger(job)
    of_rank = [(stage, int(schedule.model_stage[stage])) for stage in schedule.stages_of(rank)]
    stages = [assembled.stages[model_stage] for _, model_stage in of_rank]
    contents, sums = ledger.memory.contents(stages), ledger.stages(stages)
    if resolved.update_bytes[rank] > memory.peak_activation_bytes[rank]:
        return ledger.memory.update(contents)
    held, of_pair = bytes_at_peak(schedule, resolved, memory, rank)
    offloads = [assembled.offloads[model_stage] for _, model_stage in of_rank]
    freed = np.array([offload.freed for offload in offloads])
    per_microbatch = [of_stage.saved_bytes for of_stage in sums] - freed
    of_stages = held[[stage for stage, _ in of_rank]]
    in_flight = np.divide(of_stages, per_microbatch, out=np.zeros(len(stages)), where=per_microbatch > 0)
    components = Counter(ledger.memory.peak(contents, np.maximum(in_flight, 0.0)))
    components["forward during a backward"] = round(of_pair)
    components["offloaded to the host"] = -round(float(in_flight @ freed))
    (sums_of_rank,) = ledger.ranks([stages])
    components["buffers of offloading"] = round(buffer_bytes(job, sums_of_rank.transient_bytes, offloads))
    return {name: size for name, size in components.items() if size}
