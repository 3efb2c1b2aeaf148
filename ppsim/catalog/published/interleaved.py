"""Interleaved 1F1B and ZB-H1, GIS and GIS-H: v stages a rank, looped, depth first in groups of microbatches.

And looped BFS (Lamy-Poirier, MLSys 2023), breadth first: every microbatch through one chunk before the next chunk;
its backwards run in the reverse of the forwards' order, as in torch.

Narayanan et al. 2021 (arXiv 2104.04473, §2.2). The group size is Megatron-LM's
`microbatch_group_size_per_vp_stage` (also Llama 3, arXiv 2407.21783, §3.3.2): p is the published schedule, m is
breadth first, and what lies between lifts the demand that m be a multiple of p. The others split the backward, in
groups of that size: torch's `ScheduleInterleavedZeroBubble`, which is ZB-H1 (Qi et al. 2024, arXiv 2401.10241,
§2.1) on this placement, and the two of PipeOffload (arXiv 2503.01328), Table 1.
"""

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.catalog.published.rows import (
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
    """Return the looped BFS table: `vpp` stages a rank, stage s on rank s mod p.

    Any number of microbatches is legal; every rank holds all of them at its peak. A chunk's gradients are
    complete after one run of m backwards, so that their reduction overlaps with the chunks still to come.
    """
    rows = []
    for rank in range(num_ranks):
        stages = range(rank, num_ranks * vpp, num_ranks)
        forwards = np.hstack([visits_of_stage(stage, range(num_microbatches)) for stage in stages])
        rows.append(full_row(forwards, forwards[:, ::-1], num_warm_up=vpp * num_microbatches))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks * vpp), name="looped-bfs")


def interleaved_one_f_one_b(
    *, num_ranks: int, vpp: int, num_microbatches: int, group_size: int | None = None
) -> Schedule:
    """Return the interleaved 1F1B table: `vpp` stages a rank, stage s on rank s mod p.

    Each rank takes a group of `group_size` microbatches through its first chunk, the same through its second,
    and so on; backwards likewise with the chunks reversed. Default: the smallest legal group size, which is p
    where p divides m. Raises `ConfigError` for a group size that cannot run.
    """
    if group_size is None:
        group_size = smallest_group_size(num_ranks, num_microbatches)
    elif reason := why_group_size_fails(num_ranks, num_microbatches, group_size):
        raise ConfigError(reason)

    rows = []
    groups = visits_in_groups(num_ranks, vpp, num_microbatches, group_size)
    for rank, (forwards, backwards) in enumerate(groups):
        # The first backward waits for a group to pass all chunks but the last, and for the ranks below, twice.
        num_warm_up = (vpp - 1) * group_size + 2 * (num_ranks - 1 - rank)
        rows.append(full_row(forwards, backwards, num_warm_up=num_warm_up))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks * vpp), name="interleaved-1f1b")


def combined_one_f_one_b(
    *, num_ranks: int, vpp: int, num_microbatches: int, group_size: int | None = None
) -> Schedule:
    """Return Megatron-Core's combined 1F1B: interleaved 1F1B whose steady forwards are fused with backwards.

    Each warm-up is one forward longer, so that the two of a pair are of different microbatches: the expert-parallel
    messages of one overlap with the compute of the other (`--overlap-moe-expert-parallel-comm`;
    core/pipeline_parallel/combined_1f1b.py and schedules.py, d98e8a64). On one rank the pairs are of accumulated
    microbatches. Group sizes are those of `interleaved_one_f_one_b`.
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
    """Return the interleaved zero-bubble table: the backward split, and weight gradients put off.

    Groups are those of interleaved 1F1B: p microbatches where p divides m. Any number of microbatches is legal;
    torch takes only those that split into m div p equal groups, and there the tables are equal.
    """
    group_size = smallest_group_size(num_ranks, num_microbatches)
    # Weight gradients wait, so that the input gradients reach the ranks above sooner.
    return _with_split_backwards("interleaved-zb", num_ranks, vpp, num_microbatches, group_size, puts_off=True)


def gis(*, num_ranks: int, vpp: int, num_microbatches: int) -> Schedule:
    """Return the GIS table: interleaved, with the activations of 1F1B: each W follows its I at once.

    Any number of microbatches is legal; groups are those of interleaved 1F1B.
    """
    group_size = smallest_group_size(num_ranks, num_microbatches)
    return _with_split_backwards("gis", num_ranks, vpp, num_microbatches, group_size)


def gis_h(*, num_ranks: int, vpp: int, num_microbatches: int) -> Schedule:
    """Return the GIS-H table: groups of half as many microbatches, and little more than half the activations.

    Any number of microbatches is legal; the groups are as small as ⌈p/2⌉ allows.
    """
    group_size = smallest_group_size((num_ranks + 1) // 2, num_microbatches)
    return _with_split_backwards("gis-h", num_ranks, vpp, num_microbatches, group_size)


def _with_split_backwards(
    name: str, num_ranks: int, vpp: int, num_microbatches: int, group_size: int, *, puts_off: bool = False
) -> Schedule:
    rows = []
    groups = visits_in_groups(num_ranks, vpp, num_microbatches, group_size)
    for rank, (forwards, backwards) in enumerate(groups):
        # A group passes all chunks but the last, then each rank below once: as in ZB-H1, half of interleaved 1F1B.
        num_warm_up = (vpp - 1) * group_size + num_ranks - 1 - rank
        rows.append(split_row(forwards, backwards, num_warm_up=num_warm_up, num_put_off=puts_off * rank))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks * vpp), name=name)


def why_group_size_fails(num_ranks: int, num_microbatches: int, group_size: int) -> str | None:
    """Return the sentence that says why this group size is refused, or None where it is legal.

    Megatron-LM's rule: a group smaller than p can come back to rank 0 before rank p−1 has passed it on, and the
    ranks then wait for each other. Some smaller groups do run; every legal one does.
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
    """Return the group sizes p ≤ N ≤ m whose last group is whole or at least p; [m] where m < p."""
    if num_microbatches <= num_ranks:
        return [num_microbatches]
    return [
        size
        for size in range(num_ranks, num_microbatches + 1)
        if num_microbatches % size == 0 or num_microbatches % size >= num_ranks
    ]


def smallest_group_size(num_ranks: int, num_microbatches: int) -> int:
    """Return the group size that holds the fewest activations: p where p divides m."""
    return legal_group_sizes(num_ranks, num_microbatches)[0]
