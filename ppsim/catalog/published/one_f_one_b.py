"""One stage per rank: GPipe, 1F1B, eager 1F1B, Seq1F1B, ZB-H1 and ZB-H2.

GPipe: Huang et al. 2019, §2.3. 1F1B: PipeDream-Flush (Narayanan et al. 2021, arXiv 2006.09503, §3.2), DAPPLE (arXiv
2007.01045). Eager: Zhuang et al. 2023; drawn in Qi et al. 2024 (arXiv 2405.15362), Figure 1b. Seq1F1B: Sun et al.
2024 (arXiv 2406.03488). ZB-H1 and ZB-H2: Qi et al. 2024 (arXiv 2401.10241), §2.1 and §2.2, which writes B for I.
"""

from ppsim.catalog.published.rank_rows import full_row, split_row, table_of_rows, visits_of_stage
from ppsim.schedule.placement import loop
from ppsim.schedule.table import Schedule


def gpipe(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Backwards run in microbatch order, as in torch."""
    visits = [visits_of_stage(rank, range(num_microbatches)) for rank in range(num_ranks)]
    rows = [full_row(own, own, num_warm_up=num_microbatches) for own in visits]
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks), name="gpipe")


def one_f_one_b(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Rank r holds at most p−r activations, the fewest that fill the pipeline."""
    return _by_turns("1f1b", num_ranks, num_microbatches, ahead=1)  # one way to the last rank


def eager_one_f_one_b(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Forwards run twice as far ahead, so that transfers are hidden; rank r holds at most 2(p−r)−1 activations."""
    return _by_turns("eager-1f1b", num_ranks, num_microbatches, ahead=2)  # a round trip to the last rank


def seq_one_f_one_b(*, num_ranks: int, num_microbatches: int, num_slices: int) -> Schedule:
    """With causal attention, the forwards of a microbatch's slices run in order and the backwards in reverse
    order.
    """
    slices = range(num_microbatches * num_slices)
    backwards = [
        microbatch * num_slices + place
        for microbatch in range(num_microbatches)
        for place in reversed(range(num_slices))
    ]
    rows = []
    for rank in range(num_ranks):
        # the ranks after this one, and the slices before the one whose backward comes first
        num_warm_up = num_ranks - 1 - rank + num_slices - 1
        visits = visits_of_stage(rank, slices), visits_of_stage(rank, backwards)
        rows.append(full_row(*visits, num_warm_up=num_warm_up))
    return table_of_rows(
        rows, stage_to_rank=loop(num_ranks, num_ranks), num_microbatches=num_microbatches, name="seq1f1b",
        num_slices=num_slices,
    )  # fmt: skip


def zb_h1(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """A third of the bubble of 1F1B at 1F1B's peak memory."""
    # Later ranks postpone more weight gradients: they have a longer cool-down to fill.
    return _by_turns("zb-h1", num_ranks, num_microbatches, ahead=1, splits=True)


def zb_h2(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """No bubble within a rank's own span, at twice the activations of 1F1B; the closed form needs m ≥ 2p−1."""
    return _by_turns("zb-h2", num_ranks, num_microbatches, ahead=2, splits=True)


def _by_turns(name: str, num_ranks: int, num_microbatches: int, *, ahead: int, splits: bool = False) -> Schedule:
    rows = []
    for rank in range(num_ranks):
        visits, num_warm_up = visits_of_stage(rank, range(num_microbatches)), ahead * (num_ranks - 1 - rank)
        if splits:
            rows.append(split_row(visits, visits, num_warm_up=num_warm_up, num_put_off=ahead * rank))
        else:
            rows.append(full_row(visits, visits, num_warm_up=num_warm_up))
    return table_of_rows(rows, stage_to_rank=loop(num_ranks, num_ranks), name=name)
