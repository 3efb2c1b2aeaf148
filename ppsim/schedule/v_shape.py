"""ZB-V: two chunks a rank in a V, so that the loss sits on rank 0 and the last forward is the first backward.

Qi et al. 2024 (arXiv 2401.10241), §6 and Figure 9. The paper writes B for what torch and ppsim call I.
"""

from ppsim.schedule.placement import v_shape
from ppsim.schedule.rows import Chunk
from ppsim.schedule.table import Action, Schedule


def zbv_fixed(*, num_ranks: int, num_microbatches: int) -> Schedule:
    """Return the hand-made ZB-V table: no bubble for F = I = W, with 1F1B's activations on every rank.

    Any number of microbatches is legal: the pattern is laid out for at least 2p−1 and what exceeds m left out.
    """
    rows = []
    for rank in range(num_ranks):
        row = _row(rank, num_ranks, max(num_microbatches, 2 * num_ranks - 1))
        rows.append([action for action in row if action.microbatch < num_microbatches])
    return Schedule.from_rows(
        rows, stage_to_rank=v_shape(num_ranks, 2 * num_ranks),
        num_microbatches=num_microbatches, name="zbv-fixed",
    )  # fmt: skip


def _row(rank: int, num_ranks: int, num_microbatches: int) -> list[Action]:
    down, up = Chunk(rank), Chunk(2 * num_ranks - 1 - rank)
    row: list[Action] = []

    # Warm-up: 2p−1 forwards on every rank, of which r (0-based) are of the way up.
    row += [down.forward() for _ in range(2 * (num_ranks - rank) - 1)]
    for _ in range(rank):
        row += [up.forward(), down.forward()]

    # The p−r microbatches on their way up now turn into backwards; then the two chunks alternate.
    for _ in range(num_ranks - rank):
        row += [up.forward(), up.backward_input(), up.backward_weight()]
    while up.next_forward < num_microbatches:
        if down.next_forward < num_microbatches:
            row.append(down.forward())
        row += [down.backward_input(), down.backward_weight()]
        row += [up.forward(), up.backward_input(), up.backward_weight()]

    # Cool-down: input gradients first, weight gradients where the rank would wait, the rest at the end.
    for _ in range(rank):
        row += [down.backward_input(), up.backward_input()]
    for _ in range(num_ranks - rank):
        row += [down.backward_input(), down.backward_weight()]
    row += [up.backward_weight() for _ in range(num_microbatches - up.next_weight)]
    row += [down.backward_weight() for _ in range(num_microbatches - down.next_weight)]
    return row
