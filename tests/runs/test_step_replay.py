"""Durations and waits of a simulated step are those that it was made of, and replay it."""

import numpy as np
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.runs.step_replay import (
    MeasuredSteps,
    median_gap_s,
    rank_waits_s,
    replay,
    replayed_step_s,
    steps_of,
    waits_for_messages,
)

COSTS = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, transfer_s=0.25)
TIMELINE = simulate(build("1f1b", pp=2, microbatches=3), COSTS)
GRAPH, NUM_ACTIONS = TIMELINE.graph, TIMELINE.num_actions
START, END = TIMELINE.start[:NUM_ACTIONS], TIMELINE.end[:NUM_ACTIONS]
NAMES = [str(action) for action in TIMELINE.schedule]


def named(values: np.ndarray) -> dict[str, float]:
    """Return the values that are not 0 by their actions."""
    return {name: value for name, value in zip(NAMES, values.tolist(), strict=True) if value}


def test_steps_have_the_durations_and_transfers_that_they_were_made_of() -> None:
    steps = steps_of(GRAPH, np.stack([START, START + 20]), np.stack([END, END + 20]))
    assert steps.taken.tolist() == [[2.0 if "B" in name else 1.0 for name in NAMES]] * 2
    assert named(steps.hop[0]) == dict.fromkeys(["0B0", "0B1", "0B2", "1F0", "1F1", "1F2"], 0.25)
    assert not steps[0].after_own.any()
    assert steps[1].taken.shape == (1, NUM_ACTIONS)


def test_a_replay_takes_as_long_as_the_step_and_longer_with_slower_messages() -> None:
    """Four messages are on the critical path: 13 s with 0.25 s each, 14 s with 0.5 s."""
    steps = steps_of(GRAPH, START[None], END[None])
    assert TIMELINE.step_time_s == 13.0
    assert replayed_step_s(GRAPH, steps).tolist() == [13.0]
    assert replayed_step_s(GRAPH, steps, hop_s=0.5).tolist() == [14.0]
    assert replay(GRAPH, steps).end[:NUM_ACTIONS].tolist() == END.tolist()


def test_an_own_wait_delays_the_replay_unless_messages_have_one_given_time() -> None:
    steps = steps_of(GRAPH, START[None], END[None])
    first = np.where(np.array(NAMES) == "1F0", 0.75, 0.0)[None]
    late = MeasuredSteps(steps.taken, steps.hop, first)
    assert replayed_step_s(GRAPH, late).tolist() == [13.75]
    assert replayed_step_s(GRAPH, late, hop_s=0.25).tolist() == [13.0]
    assert median_gap_s(late) == 0.75, "waits of 0 s do not count"
    assert median_gap_s(steps) == 0.0


def test_a_rank_waits_for_messages_after_and_for_compute_before_they_are_sent() -> None:
    assert named(waits_for_messages(GRAPH, START, END)) == dict.fromkeys(["0B0", "0B2", "1F0", "1F2"], 0.25)
    for_compute_s = rank_waits_s(GRAPH, END)  # rank 0: until 1B0 and 1B2 end; rank 1: until 0F0 and 0F2 end
    assert for_compute_s == pytest.approx([(4.25 - 2.0) + (10.75 - 9.5), 1.0 + (7.5 - 7.25)])
