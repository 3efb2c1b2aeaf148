"""Looped schedules with v stages per rank: interleaved 1F1B and ZB-H1, GIS, GIS-H and looped BFS.

Interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473, §2.2) runs depth first in groups of microbatches. The
group size is Megatron-LM's `microbatch_group_size_per_vp_stage` (also Llama 3, arXiv 2407.21783, §3.3.2). Size p is
the published schedule, size m is breadth first.

Schedules with split backwards use the same groups: torch's `ScheduleInterleavedZeroBubble`, which is ZB-H1 (Qi et
al. 2024, arXiv 2401.10241, §2.1) with this placement, and GIS and GIS-H of PipeOffload (arXiv 2503.01328), Table 1.

Looped BFS (Lamy-Poirier, MLSys 2023) is breadth first. Its backwards run in the reverse order of the forwards, as
in torch.
"""

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.catalog.published.one_f_one_b import (
    full_row,
    paired_row,
    split_row,
    table_of_rows,
    visits_in_groups,
    visits_of_stage,
)
from ppsim.schedule.placement import loop
from ppsim.schedule.table import Schedule


def looped_bfs(*, num_ranks: int, vpp: int, num_microbatches: int) -> Schedule:
    """A chunk's gradients are complete after m backwards, so that their reduction overlaps with later chunks."""
    rows = []
    for rank in range(num_ranks):
        stages = range(rank, num_ranks * vpp, num_ranks)
        forwards = np.hstack([visits_of_stage(stage, range(num_microbatches)) for stage in stages])
        rows.append(full_row(forwards, forwards[:, ::-1], num_warm_up=vpp * num_microbatches))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks * vpp), name="looped-bfs")


def interleaved_one_f_one_b(
    *, num_ranks: int, vpp: int, num_microbatches: int, group_size: int | None = None
) -> Schedule:
    """The default is the smallest allowed group size; raises `ConfigError` for a size that is not allowed."""
    if group_size is None:
        group_size = smallest_group_size(num_ranks, num_microbatches)
    elif reason := why_group_size_fails(num_ranks, num_microbatches, group_size):
        raise ConfigError(reason)

    rows = []
    groups = visits_in_groups(num_ranks, vpp, num_microbatches, group_size)
    for rank, (forwards, backwards) in enumerate(groups):
        # Before the first backward, a group passes all chunks but the last; then a microbatch passes the ranks
        # below and returns.
        num_warm_up = (vpp - 1) * group_size + 2 * (num_ranks - 1 - rank)
        rows.append(full_row(forwards, backwards, num_warm_up=num_warm_up))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks * vpp), name="interleaved-1f1b")


def combined_one_f_one_b(
    *, num_ranks: int, vpp: int, num_microbatches: int, group_size: int | None = None
) -> Schedule:
    """Return Megatron-Core's combined 1F1B: interleaved 1F1B whose steady-state forwards are fused with backwards.

    Each warm-up is one forward longer, so that the two actions of a pair belong to different microbatches. The
    expert-parallel all-to-alls of one then overlap with the compute of the other
    (`--overlap-moe-expert-parallel-comm`; core/pipeline_parallel/combined_1f1b.py and schedules.py, d98e8a64). On
    one rank the pairs consist of accumulated microbatches.
    """
    if group_size is None:
        group_size = smallest_group_size(num_ranks, num_microbatches)
    elif reason := why_group_size_fails(num_ranks, num_microbatches, group_size):
        raise ConfigError(reason)
    groups = visits_in_groups(num_ranks, vpp, num_microbatches, group_size)
    rows, pairs = zip(
        *(
            paired_row(forwards, backwards, num_warm_up=(vpp - 1) * group_size + 2 * (num_ranks - 1 - rank) + 1)
            for rank, (forwards, backwards) in enumerate(groups)
        ),
        strict=True,
    )
    return table_of_rows(rows, pairs, stage_to_rank=loop(num_ranks, num_ranks * vpp), name="combined-1f1b")


def interleaved_zero_bubble(*, num_ranks: int, vpp: int, num_microbatches: int) -> Schedule:
    """torch requires that m is divisible into ⌊m/p⌋ equal groups; for such m, this table equals torch's."""
    group_size = smallest_group_size(num_ranks, num_microbatches)
    # Postponed weight gradients let the input gradients reach the ranks above sooner.
    return _with_split_backwards("interleaved-zb", num_ranks, vpp, num_microbatches, group_size, puts_off=True)


def gis(*, num_ranks: int, vpp: int, num_microbatches: int) -> Schedule:
    """Activations as in 1F1B; each W follows its I directly."""
    group_size = smallest_group_size(num_ranks, num_microbatches)
    return _with_split_backwards("gis", num_ranks, vpp, num_microbatches, group_size)


def gis_h(*, num_ranks: int, vpp: int, num_microbatches: int) -> Schedule:
    """GIS with groups of half the size and little more than half the activations."""
    group_size = smallest_group_size((num_ranks + 1) // 2, num_microbatches)
    return _with_split_backwards("gis-h", num_ranks, vpp, num_microbatches, group_size)


def _with_split_backwards(
    name: str, num_ranks: int, vpp: int, num_microbatches: int, group_size: int, *, puts_off: bool = False
) -> Schedule:
    rows = []
    groups = visits_in_groups(num_ranks, vpp, num_microbatches, group_size)
    for rank, (forwards, backwards) in enumerate(groups):
        # A group passes all chunks but the last, then each rank below once, as in ZB-H1.
        num_warm_up = (vpp - 1) * group_size + num_ranks - 1 - rank
        rows.append(split_row(forwards, backwards, num_warm_up=num_warm_up, num_put_off=puts_off * rank))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks * vpp), name=name)


def why_group_size_fails(num_ranks: int, num_microbatches: int, group_size: int) -> str | None:
    """Return why this group size is not allowed, or None if it is.

    Megatron-LM's rule: with a group smaller than p, a microbatch can return to rank 0 before rank p−1 has passed on
    the group, and the ranks then wait for each other. Some smaller groups do run; every allowed group size runs.
    """
    legal = legal_group_sizes(num_ranks, num_microbatches)
    if group_size in legal:
        return None
    nearest = sorted(sorted(legal, key=lambda size: abs(size - group_size))[:2])
    if group_size > num_microbatches:
        reason = f"is more than the {num_microbatches} microbatches"
    elif group_size < num_ranks:
        reason = f"is smaller than pp={num_ranks}"
    else:
        reason = f"leaves a last group of {num_microbatches % group_size}, smaller than pp={num_ranks}"
    return f"interleaved-1f1b: group size {group_size} {reason} (nearest: {' or '.join(map(str, nearest))})"


def legal_group_sizes(num_ranks: int, num_microbatches: int) -> list[int]:
    """Return the group sizes p ≤ N ≤ m with a last group that is complete or at least p; [m] if m < p."""
    if num_microbatches <= num_ranks:
        return [num_microbatches]
    return [
        size
        for size in range(num_ranks, num_microbatches + 1)
        if num_microbatches % size == 0 or num_microbatches % size >= num_ranks
    ]


def smallest_group_size(num_ranks: int, num_microbatches: int) -> int:
    """This size, p if p divides m, needs the fewest activations in memory."""
    return legal_group_sizes(num_ranks, num_microbatches)[0]
