"""Pauses are told by their steps, ranks and sizes."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.made_steps import Made
from ppsim import build
from ppsim.runs import pauses as pauses_module
from ppsim.runs.loss_attribution import attribute_losses
from ppsim.runs.pauses import passes_in_words, pauses_between, pauses_beyond, spread_in_words, waits_in_words
from ppsim.runs.step_replay import MeasuredSteps
from ppsim.schedule.table import Schedule

TABLE = build("1f1b", pp=2, microbatches=2)  # 0F0 0F1 0B0 0B1 1F0 1B0 1F1 1B1


def test_a_pause_is_half_as_long_again_as_usual_and_a_fiftieth_of_the_step_longer() -> None:
    durations = np.array([1.5, 1.6, 0.05, 0.3])
    usual = np.array([1.0, 1.0, 0.01, 0.01])
    assert pauses_beyond(durations, usual, 10.0).tolist() == pytest.approx([0.0, 0.6, 0.0, 0.29])
    assert pauses_beyond(np.array([0.21]), np.array([0.01]), 10.0).tolist() == [0.0], "0.2 s of 10 s is not more"


def test_waits_are_compared_with_the_usual_gap_and_with_most_steps() -> None:
    """The second action waits long in every step, which is no pause; the first only in the last step."""
    waits = np.array([[0.1, 3.0], [0.1, 3.0], [2.0, 3.0]])
    usual: Any = SimpleNamespace(gap_s=np.array([0.1, 0.1]), transit_s=np.array([0.5, 0.5]), queue_s=0.0)
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


def test_the_longest_four_pauses_between_actions_are_listed_in_the_order_of_the_steps(monkeypatch) -> None:
    """Whether the rank's gap or the message was late; two pauses at the same time are one."""
    monkeypatch.setattr(pauses_module, "_culprits", lambda *given: ([len(given[2])], "then"))
    own, hop = np.zeros((5, 8)), np.zeros((5, 8))
    for step, entry, seconds in ((0, 1, 5.0), (1, 2, 1.0), (2, 3, 4.0), (3, 4, 3.0), (4, 6, 2.0)):
        (own if step % 2 else hop)[step, entry] = seconds
    own[0, 5] = 0.5
    start = np.full((5, 8), 10.0)
    text = waits_in_words(TABLE, MeasuredSteps(np.ones_like(own), hop, own), None, start, 3)  # type: ignore[arg-type]
    assert text.removeprefix("one rank after the other, each in another step: ") == (
        "step 3: rank 2, 5.00 s then; step 5: rank 1, 4.00 s then; step 6: rank 1, 3.00 s then; "
        "step 7: rank 1, 2.00 s then; 1 more"
    )


def stop_of(
    table: Schedule, entry: int, *, is_sent: bool, gaps_s: float = 0.0, work: tuple[str, str] | None = None
) -> str:
    """Return the pause that is found if a rank stops for 0.8 s after an action, with gaps of up to `gaps_s`.

    `work` is recorded before an action of that step, and then by name.
    """
    steps = Made(table, seed=1, num_steps=6)
    steps.gap *= gaps_s / 2e-4
    steps.hop[:] = 3e-4
    steps.stop(3, entry, 0.8, is_sent=is_sent)
    run = steps.run()
    if work:
        spent = np.zeros((6, len(table)))
        spent[3, [str(action) for action in table].index(work[0])] = 0.79
        run = replace(run, work_s={work[1]: spent, "logging": np.full_like(spent, 1e-4)})
    found = attribute_losses(run)
    return next(loss.detail for loss in found.losses if loss.cause == "pauses")


FOUR_RANKS = build("1f1b", pp=4, microbatches=5)
WITH_NEXT = np.setdiff1d(np.arange(len(FOUR_RANKS)), FOUR_RANKS.rank_offsets[1:] - 1).tolist()


@pytest.mark.parametrize("is_sent", [False, True])
def test_the_rank_that_stopped_is_named_and_not_a_rank_that_waits_for_it(is_sent: bool) -> None:
    for entry in WITH_NEXT[:: 1 + is_sent]:
        rank = int(FOUR_RANKS.rank[entry])
        if entry + 1 in FOUR_RANKS.rank_offsets[1:] - 1 and rank < 3:
            continue  # before the last action: see below
        detail = stop_of(FOUR_RANKS, entry, is_sent=is_sent)
        assert re.fullmatch(rf"step 4: rank {rank}, \d+ ms before {FOUR_RANKS[entry + 1]}", detail)


@pytest.mark.parametrize("rank", [1, 3])
def test_a_last_result_that_comes_late_leaves_two_ranks(rank: int) -> None:
    last = int(FOUR_RANKS.rank_offsets[rank + 1]) - 1
    assert stop_of(FOUR_RANKS, last, is_sent=False) == (
        f"step 4: rank {rank - 1} or {rank}, 800 ms before {rank - 1}B4 or after {rank}B4"
    )


def test_a_recorded_receive_shows_that_its_rank_waited_and_other_work_names_the_pause() -> None:
    last = int(FOUR_RANKS.rank_offsets[2]) - 1
    waited = stop_of(FOUR_RANKS, last, is_sent=False, work=("0B4", "receive"))
    assert waited == "step 4: rank 1, 800 ms after 1B4"
    worked = stop_of(FOUR_RANKS, last, is_sent=False, work=("0B4", "checkpoint"))
    assert worked == "step 4: rank 0 or 1, 800 ms before 0B4 (checkpoint) or after 1B4"


def test_ranks_that_begin_closer_together_than_gaps_differ_are_named_together() -> None:
    """Rank 2 stops before it sends 2F2 to rank 3, which sent it 3B1: a message takes 0.3 ms, gaps up to 2 ms."""
    entry = [str(action) for action in FOUR_RANKS].index("2F2")
    assert stop_of(FOUR_RANKS, entry, is_sent=False).startswith("step 4: rank 2, ")
    detail = stop_of(FOUR_RANKS, entry, is_sent=False, gaps_s=2e-3)
    assert re.fullmatch(r"step 4: rank 2 or 3, (80.|79.) ms before 2B1 or 3F2", detail)
    assert stop_of(FOUR_RANKS, entry, is_sent=True, gaps_s=2e-3).startswith("step 4: rank 2, ")


def test_limits_of_pauses() -> None:
    names = ("LONG", "PART_OF_STEP", "_CERTAIN", "_AS_GOOD", "MOST_PLACES")
    assert [getattr(pauses_module, name) for name in names] == [1.5, 0.02, 1.5, 0.9, 4]
