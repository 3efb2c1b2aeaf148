"""Pauses are told by their steps, ranks and sizes."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppsim import build
from ppsim.runs.pauses import passes_in_words, pauses_between, pauses_beyond, spread_in_words, waits_in_words
from ppsim.runs.step_replay import MeasuredSteps

TABLE = build("1f1b", pp=2, microbatches=2)  # 0F0 0F1 0B0 0B1 1F0 1B0 1F1 1B1


def test_a_pause_is_half_as_long_again_as_usual_and_a_fiftieth_of_the_step_longer() -> None:
    durations = np.array([1.5, 1.6, 0.05, 0.3])
    usual = np.array([1.0, 1.0, 0.01, 0.01])
    assert pauses_beyond(durations, usual, 10.0).tolist() == pytest.approx([0.0, 0.6, 0.0, 0.29])
    assert pauses_beyond(np.array([0.21]), np.array([0.01]), 10.0).tolist() == [0.0], "0.2 s of 10 s is not more"


def test_waits_are_compared_with_the_usual_gap_and_with_most_steps() -> None:
    """The second action waits long in every step, which is no pause; the first only in the last step."""
    waits = np.array([[0.1, 3.0], [0.1, 3.0], [2.0, 3.0]])
    usual: Any = SimpleNamespace(gap_s=np.array([0.1, 0.1]), transit_s=np.array([0.5, 0.5]))
    steps = MeasuredSteps(np.ones((3, 2)), 2 * waits, waits)
    found = pauses_between(steps, usual, 10.0)
    assert not found.taken.any()
    assert found.after_own == pytest.approx(np.array([[0, 0], [0, 0], [1.9, 0]]))
    assert found.hop == pytest.approx(np.array([[0, 0], [0, 0], [3.5, 0]]))
    alone = pauses_between(steps[2], usual, 10.0)
    assert alone.after_own == pytest.approx(np.array([[1.9, 2.9]])), "one step is compared with the usual gap only"


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ([], ""),
        ([(3, 0)], ""),
        ([(3, 1), (5, 1)], "always on rank 1: "),
        ([(3, 0), (5, 1)], "one rank after the other, each in another step: "),
        ([(3, 0), (3, 1)], "several ranks in the same step: "),
    ],
)
def test_several_pauses_have_their_pattern_first(places: list[tuple[int, int]], words: str) -> None:
    assert spread_in_words(places) == words


def test_the_longest_four_pauses_of_passes_are_listed_in_the_order_of_the_steps() -> None:
    durations = np.ones((3, 8))
    for step, entry, seconds in ((2, 2, 4.0), (1, 5, 3.0), (0, 3, 2.5), (0, 4, 2.0), (2, 7, 5.0)):
        durations[step, entry] = seconds
    pauses = pauses_beyond(durations, np.ones_like(durations), 20.0)
    assert passes_in_words(TABLE, pauses, durations, first_step=3) == (
        "several ranks in the same step: step 3: rank 0, 0B1, 2.50 s instead of 1.00 s; "
        "step 4: rank 1, 1B0, 3.00 s instead of 1.00 s; step 5: rank 0, 0B0, 4.00 s instead of 1.00 s; "
        "step 5: rank 1, 1B1, 5.00 s instead of 1.00 s; 1 more"
    )


def test_waits_at_the_same_time_are_one_pause_of_the_rank_that_sends_late() -> None:
    """Rank 0 pauses 2 s before 0F1, so that 1F1 waits 2 s for its input: both overlap. 0B1 waits 1 s later."""
    start = np.arange(8.0)[None] + np.array([[0, 2, 4, 9, 0, 0, 0, 0]])
    start[0, 6] = start[0, 1] + 0.5  # 1F1
    none = np.zeros((1, 8))
    own, hop = none.copy(), none.copy()
    own[0, 1], hop[0, 6], own[0, 3] = 2.0, 2.0, 1.0
    assert waits_in_words(TABLE, MeasuredSteps(none, hop, own), start, first_step=1) == (
        "always on rank 0: step 1: rank 0, 2.00 s before 0F1; step 1: rank 0, 1.00 s before 0B1"
    )
