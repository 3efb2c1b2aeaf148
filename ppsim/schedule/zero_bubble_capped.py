"""ZB-1p and ZB-2p: the zero-bubble schedules fitted to the costs, with the memory of 1F1B and twice that.

Qi et al. 2024 (arXiv 2401.10241), §3.1 and §5: a cap of p, or 2p, activations of a stage on its rank.
"""

from functools import partial
from typing import Any

import numpy as np

from ppsim.schedule.table import Schedule
from ppsim.schedule.zero_bubble_auto import zb_auto


def _capped(name: str, per_rank: int, *, num_ranks: int, num_microbatches: int, costs: Any = None) -> Schedule:
    """Return the best table found in which every rank holds at most `per_rank`·p activations of its stage.

    `costs` has arrays of one entry a stage (`StageCosts.resolved`); without it F, I and W take one unit each.
    Without bytes an activation counts as one until its W.
    """
    if costs is None:
        table = zb_auto(
            num_ranks=num_ranks, num_microbatches=num_microbatches, forward_s=1.0, backward_input_s=1.0,
            backward_weight_s=1.0, cap=float(per_rank * num_ranks),
        )  # fmt: skip
        return table.named(name)
    knows_bytes = bool((costs.activation_bytes > 0).all())
    activation = costs.activation_bytes if knows_bytes else np.ones(num_ranks)
    table = zb_auto(
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        forward_s=costs.forward_s,
        backward_input_s=costs.backward_input_s,
        backward_weight_s=costs.backward_weight_s,
        transfer_s=costs.transfer_s,
        activation=activation,
        activation_kept_for_weight=costs.kept_bytes if knows_bytes else None,
        cap=per_rank * num_ranks * activation,
    )
    return table.named(name)


zb_1p = partial(_capped, "zb-1p", 1)
zb_2p = partial(_capped, "zb-2p", 2)
