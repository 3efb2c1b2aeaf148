"""Zero-bubble schedules fitted to the costs, with the memory of 1F1B (ZB-1p), twice that (ZB-2p), or what is left.

Qi et al. 2024 (arXiv 2401.10241), §3.1 and §5: a cap of p, or 2p, activations of a stage on its rank.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppsim.errors import DoesNotFit
from ppsim.schedule.table import Schedule
from ppsim.schedule.zero_bubble_auto import zb_auto
from ppsim.units import size


def _capped(name: str, per_rank: int, *, num_ranks: int, num_microbatches: int, costs: Any = None) -> Schedule:
    """Return the best table found in which every rank holds at most `per_rank`·p activations of its stage.

    `costs` has arrays of one entry a stage (`StageCosts.resolved`); without it F, I and W take one unit each.
    Without bytes an activation counts as one until its W.
    """
    activation = np.ones(num_ranks)
    if costs is not None and _knows_bytes(costs):
        activation = costs.activation_bytes
    cap = per_rank * num_ranks * activation
    return _fitted(num_ranks, num_microbatches, costs, cap).named(name)


def zb_to_limit(
    *, num_ranks: int, num_microbatches: int, costs: Any = None, memory_limit_bytes: float | None = None
) -> Schedule:
    """Return the best table found in which no rank holds more than the limit, static bytes included.

    Without a limit, or without bytes, memory is no matter. Raises `DoesNotFit` naming the rank whose limit is
    below its static bytes and one activation.
    """
    cap = np.full(num_ranks, np.inf)
    if memory_limit_bytes is not None and costs is not None and _knows_bytes(costs):
        cap = (memory_limit_bytes - costs.static_bytes) * (1 - 1e-9)  # no byte above it by rounding
        short = np.flatnonzero(cap < costs.activation_bytes)
        if len(short):
            rank = int(short[0])
            needed = float(costs.static_bytes[rank] + costs.activation_bytes[rank])
            raise DoesNotFit(
                f"rank {rank} needs {size(needed)} for one microbatch > {size(memory_limit_bytes)}: no order of "
                f"actions fits"
            )
    return _fitted(num_ranks, num_microbatches, costs, cap).named("zb-auto")


def _knows_bytes(costs: Any) -> bool:
    return bool((costs.activation_bytes > 0).all())


def _fitted(num_ranks: int, num_microbatches: int, costs: Any, cap: NDArray[np.float64]) -> Schedule:
    if costs is None:
        return zb_auto(
            num_ranks=num_ranks, num_microbatches=num_microbatches, forward_s=1.0, backward_input_s=1.0,
            backward_weight_s=1.0, cap=cap,
        )  # fmt: skip
    knows_bytes = _knows_bytes(costs)
    return zb_auto(
        num_ranks=num_ranks,
        num_microbatches=num_microbatches,
        forward_s=costs.forward_s,
        backward_input_s=costs.backward_input_s,
        backward_weight_s=costs.backward_weight_s,
        transfer_s=costs.transfer_s,
        activation=costs.activation_bytes if knows_bytes else 1.0,
        activation_kept_for_weight=costs.kept_bytes if knows_bytes else None,
        cap=cap,
    )


zb_1p = partial(_capped, "zb-1p", 1)
zb_2p = partial(_capped, "zb-2p", 2)
