"""How fast any schedule could be for these costs on this placement."""

import numpy as np

from ppsim.costs.stages import StageCosts
from ppsim.schedule.table import Schedule


def lower_bound_s(schedule: Schedule, costs: StageCosts) -> float:
    """Return seconds that no table with this placement and number of microbatches can undercut.

    The largest of three, all from the first start on: rank r cannot begin before a forward reaches it, and then
    has m(F + min(B, I + W)) to do; or it has m(F + min(B, I)) to do before its last backward can run back to
    stage 0; and one microbatch must go down and up. Memory is not considered. Proof: the parts of each sum are
    ordered in time on one rank or by dependencies.
    """
    table = costs.resolved(num_stages=schedule.num_stages, num_ranks=schedule.num_ranks)
    overhead = costs.action_overhead_s
    rank = schedule.stage_to_rank
    forward = table.forward_s + overhead
    to_input = np.minimum(table.backward_s, table.backward_input_s) + overhead
    backward = np.minimum(
        table.backward_s + overhead, table.backward_input_s + table.backward_weight_s + 2 * overhead
    )
    hop = np.where(rank[1:] != rank[:-1], table.transfer_s[:-1] + costs.hop_overhead_s, 0.0)
    reach = np.concatenate(([0.0], np.cumsum(forward[:-1] + hop)))  # until stage s can begin its first forward
    # From the end of a stage's last backward until stage 0 is done with it.
    inner = np.concatenate(([0.0], to_input[1:-1]))
    back = np.concatenate(([0.0], backward[0] + np.cumsum(inner) + np.cumsum(hop)))

    bounds = [reach[-1] + forward[-1] + (to_input[-1] + back[-1] if schedule.num_stages > 1 else backward[0])]
    for r in range(schedule.num_ranks):
        here = rank == r
        work = schedule.num_microbatches * (forward + backward)[here].sum()
        work_to_input = schedule.num_microbatches * (forward + to_input)[here].sum()
        bounds.append(reach[here].min() + work)
        bounds.append(reach[here].min() + work_to_input + back[here].min())
    return float(max(bounds)) - overhead
