"""Expert-parallel messages of a step on a timeline."""

import pytest

import ppsim
from ppsim.api.views import expert_messages
from ppsim.schedule.table import Op

MOE = {
    "model": "qwen3-30b-a3b",
    "stack": "plain",
    "cluster": "h100",
    "gpus": 16,
    "ep": 8,
    "global_batch": 128,
    "seq_len": 4096,
    "pp": 2,
    "vpp": 2,
}


def test_exposed_messages_of_a_step_are_what_its_passes_take_beyond_compute():
    """On a timeline: all messages of all passes, and none outside of its pass."""
    made = ppsim.project(**MOE, overlap_ep="megatron")
    table, timeline = made.timeline.schedule, made.timeline
    pieces = expert_messages(made)
    assert {piece.kind for piece in pieces} == {"hidden", "exposed"}
    passes = {rank: timeline.end[: len(table)][table.rank == rank].max() for rank in range(2)}
    assert all(piece.end_s <= passes[piece.rank] + 1e-9 for piece in pieces)
    layers = made.stage_cost_set.layer_times
    stages = table.stage[(table.op == Op.F) | (table.op == Op.B)].tolist()
    alone_s = sum(2 * layer.exchange_s for stage in stages for layer in layers[stage])
    whole_s = sum(piece.end_s - piece.start_s for piece in pieces)
    assert alone_s <= whole_s * (1 + 1e-9)  # launches stretch them
    assert whole_s < 2 * alone_s
    assert not expert_messages(ppsim.project(**MOE))


def test_all_messages_are_shown_up_to_a_limit_and_none_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    projection = ppsim.project(**MOE, overlap_ep="megatron")
    number = len(expert_messages(projection))
    monkeypatch.setattr("ppsim.api.views.MOST_SHOWN", number)
    assert len(expert_messages(projection)) == number
    monkeypatch.setattr("ppsim.api.views.MOST_SHOWN", number - 1)
    assert expert_messages(projection) == []
