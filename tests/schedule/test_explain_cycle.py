"""Sentences about a deadlock: each kind of wait, and the part of the rows around it."""

import numpy as np
import pytest

from ppsim.schedule.explain_cycle import _sentence, explain_cycle, lines_around
from ppsim.schedule.grammar import parse_table

TABLE = parse_table("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")  # actions 0 to 3, and 4 to 7
SOURCES, TARGETS = np.array([0, 1, 5], np.int32), np.array([4, 6, 2], np.int32)  # transfers 8 to 10


@pytest.mark.parametrize(
    ("node", "cause", "sentence"),
    [
        (1, 0, None),
        (2, 10, "rank 0 waits at 0B0 for 1B0 (rank 1)"),
        (1, 8, "rank 0 blocks before 0F1 until the output of 0F0 (rank 0) has arrived at 1F0 (rank 1)"),
        (9, 8, "the transfer of 0F1 (rank 0 → 1) is queued after the transfer of 0F0 (rank 0 → 1)"),
        (10, 9, "the transfer of 1B0 (rank 1 → 0) is queued after the transfer of 0F1 (rank 0 → 1)"),
        (9, 5, "rank 1 posts the receive of 0F1 only after 1B0"),
        (9, 2, "rank 0 sends 0F1 only after 0B0"),
        (9, 1, None),
    ],
)
def test_a_wait_has_a_sentence_unless_it_is_in_the_order_of_the_rank(
    node: int, cause: int, sentence: str | None
) -> None:
    assert _sentence(TABLE, SOURCES, TARGETS, node, cause) == sentence


def test_a_cycle_has_the_sentences_of_its_waits_and_the_rows_of_what_waits() -> None:
    """The transfer of 0F0 waits for 0F1, after which it is sent."""
    assert explain_cycle(TABLE, SOURCES, TARGETS, [2, 10, 5, 4, 8, 1]) == (
        "deadlock: rank 0 waits at 0B0 for 1B0 (rank 1); rank 1 waits at 1F0 for 0F0 (rank 0); rank 0 sends 0F0 only "
        "after 0F1\n  rank 0: [0F0] 0F1 [0B0] 0B1\n  rank 1: [1F0] 1B0 1F1 1B1"
    )


def test_three_actions_on_either_side_are_shown_and_what_is_left_out_is_dots() -> None:
    table = parse_table("0F0,0F1,,0F2,0F3,0F4,0F5,0B0,0B1,0B2,0B3,0B4,0B5\n1F0,1F1\n")
    assert lines_around(table, [3]) == "  rank 0: 0F0 0F1 · [0F2] 0F3 0F4 0F5 …"
    assert lines_around(table, [9]) == "  rank 0: … 0F5 0B0 0B1 [0B2] 0B3 0B4 0B5"
    assert lines_around(table, [8, 1]) == "  rank 0: 0F0 [0F1] · 0F2 0F3 0F4 0F5 0B0 [0B1] 0B2 0B3 0B4 …"
    assert lines_around(table, [12, 0, 13]) == (
        "  rank 0: [0F0] 0F1 · 0F2 … 0B2 0B3 0B4 [0B5]\n  rank 1: [1F0] 1F1"
    )
