"""What a rank waits for has a name by where in its row it waits."""

import pytest

from ppsim import StageCosts, build, simulate
from ppsim.schedule.grammar import parse_table
from ppsim.schedule.rounds import repeat_rounds
from ppsim.simulation import idle_causes as causes_module
from ppsim.simulation import idle_causes as explain
from ppsim.simulation.idle_causes import CAUSES, compute_causes, critical_path, gaps, idle_by_cause_s

# Rank 1 has F, B, F, B: it warms up to its first B, cools down behind its last F, and waits for compute between.
ALTERNATING = "0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n2F0,2B0,2F1,2B1"


def test_a_rank_warms_up_to_its_first_backward_and_cools_down_behind_its_last_forward():
    names = [list(CAUSES)[place] for place in compute_causes(parse_table(ALTERNATING))]
    assert names == 3 * ["warm_up", "warm_up", "waiting_compute", "cool_down"]


def test_seconds_of_waiting_are_of_their_own_kind():
    timeline = simulate(parse_table(ALTERNATING), StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1))
    idle = idle_by_cause_s(timeline)  # a microbatch takes 3 forwards and 3 backwards of 2 s, and nothing overlaps
    assert idle["warm_up"] == pytest.approx([6, 4, 2])
    assert idle["waiting_compute"] == pytest.approx([0, 3, 6])
    assert idle["cool_down"] == pytest.approx([6, 3 + 2, 4])


def test_idle_time_is_the_same_however_many_ranks_are_looked_at_at_once(monkeypatch):
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, transfer_s=0.25, action_overhead_s=0.1)
    timeline = simulate(build("zbv", pp=5, microbatches=10), costs)
    whole = idle_by_cause_s(timeline)
    for num_ranks in (1, 2):
        monkeypatch.setattr(explain, "_AT_ONCE", num_ranks * timeline.num_actions // 5)
        assert {cause: idle.tolist() for cause, idle in idle_by_cause_s(timeline).items()} == {
            cause: idle.tolist() for cause, idle in whole.items()
        }


HOST_AND_TRANSFERS = StageCosts(
    forward_s=1, backward_input_s=1, backward_weight_s=1, transfer_s=0.5, action_overhead_s=0.125
)


def test_the_critical_path_leads_from_the_first_action_to_the_last():
    """Two passes on rank 0 and four on rank 1 (9 s), two transfers, and the host's time before all but the first."""
    timeline = simulate(build("1f1b", pp=2, microbatches=2), HOST_AND_TRANSFERS)
    path = [timeline.name_of(node) for node in critical_path(timeline).tolist()]
    assert path == ["0F0", "0SEND_F0", "1F0", "1B0", "1F1", "1B1", "1SEND_B1", "0B1"]
    assert timeline.step_time_s == 9 + 2 * 0.5 + 5 * 0.125


def test_the_gap_before_an_action_is_compute_then_communication_then_host_time():
    timeline = simulate(build("1f1b", pp=2, microbatches=2), HOST_AND_TRANSFERS)
    found = gaps(timeline)
    parts = {
        str(action): tuple(map(float, part))
        for action, part in zip(
            timeline.schedule,
            zip(found.compute_s, found.communication_s, found.overhead_s, strict=True),
            strict=True,
        )
    }
    assert parts == {
        "0F0": (0, 0, 0), "0F1": (0, 0, 0.125), "0B0": (2.625, 0.5, 0.125), "0B1": (0.625, 0.5, 0.125),
        "1F0": (1, 0.5, 0.125), "1B0": (0, 0, 0.125), "1F1": (0, 0, 0.125), "1B1": (0, 0, 0.125),
    }  # fmt: skip
    assert {cause: idle.tolist() for cause, idle in idle_by_cause_s(timeline).items()} == {
        "warm_up": [2.625, 1], "cool_down": [0.625, 2.625], "waiting_compute": [0, 0],
        "exposed_communication": [1, 0.5], "overhead": [0.375, 0.5],
    }  # fmt: skip


def test_causes_are_numbered_in_their_order() -> None:
    assert (causes_module._WARM_UP, causes_module._COOL_DOWN, causes_module._WAITING) == (0, 1, 2)
    assert causes_module._AT_ONCE == 32768


def test_each_round_warms_up_and_cools_down_and_the_gap_between_rounds_is_communication() -> None:
    """On rank 0, which starts the rounds; rank 1 waits for its input."""
    table = repeat_rounds(build("1f1b", pp=2, microbatches=2), 2)
    names = [list(CAUSES)[cause][:4] for cause in compute_causes(table)]
    assert names == ["warm", "warm", "warm", "cool"] * 2 + ["warm", "warm", "wait", "cool"] * 2
    costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, between_rounds_s=0.5)
    timeline = simulate(table, costs)
    waits = gaps(timeline)
    assert waits.communication_s.tolist() == [0.5 * (entry == 4) for entry in range(16)]
    assert not waits.overhead_s.any()
    assert gaps(timeline, range(1)).communication_s.tolist() == [0, 0, 0, 0, 0.5, 0, 0, 0]
    assert not gaps(timeline, range(1, 2)).communication_s.any()
    host = simulate(table, costs.replace(action_overhead_s=0.25))
    later = gaps(host)
    assert (later.communication_s[4], later.overhead_s[4]) == (0.5, 0.25)
