"""Waits, queues and names of emulated compute, without other processes."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ppsim import StageCosts, build  # noqa: E402
from ppsim.base.errors import RunFailed  # noqa: E402
from ppsim.runtime import emulate  # noqa: E402
from ppsim.runtime.emulate import EmulatedModel, EmulatedNetwork, EmulatedStage, JobThread, factor_of, waits_of  # noqa: E402

TABLE = build("1f1b", pp=2, microbatches=2)
COSTS = StageCosts(forward_s=[1.0, 2.0], backward_input_s=3.0, backward_weight_s=4.0, transfer_s=[0.5, 0.25])


def test_a_wait_sleeps_up_to_its_last_part(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [10.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    def clock() -> float:
        now[0] += 1e-4
        return now[0]

    monkeypatch.setattr(emulate.time, "sleep", sleep)
    monkeypatch.setattr(emulate.time, "perf_counter", clock)
    emulate.wait_for(0.5)
    assert slept == [0.5 - 3e-4]
    assert now[0] == pytest.approx(10.5, abs=3e-4)
    emulate.wait_for(2e-4)
    assert len(slept) == 1


def test_stages_wait_for_the_seconds_of_their_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = waits_of(TABLE, COSTS.resolved_for(TABLE))
    assert waits[0] == {("F", 0): 1.0, ("F", 1): 1.0, ("B", 0): 7.0, ("B", 1): 7.0}
    assert waits[1]["F", 1] == 2.0
    taken: list[float] = []
    monkeypatch.setattr(emulate, "wait_for", taken.append)
    stage = EmulatedStage(waits[1], is_first=False)
    stage.factor = 1.5
    given = torch.zeros(emulate.PAYLOAD, dtype=torch.float64, requires_grad=True)
    output = stage(given)
    stage.running = ("B", 0)
    output.sum().backward()
    assert taken == [3.0, 10.5], "B waits once, at the node of the input"


@pytest.mark.parametrize(("running", "passes"), [(("I", 0), 1), (("W", 0), 1)])
def test_halves_of_a_backward_wait_once(
    running: tuple[str, int], passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[float] = []
    monkeypatch.setattr(emulate, "wait_for", taken.append)
    stage = EmulatedStage({("F", 0): 1.0, running: 2.0}, is_first=False)
    given = torch.zeros(emulate.PAYLOAD, dtype=torch.float64, requires_grad=True)
    output = stage(given)
    stage.running = running
    output.sum().backward()
    assert taken == [1.0, *[2.0] * passes]


def test_only_the_first_stage_has_an_embedding() -> None:
    model = EmulatedModel(TABLE, COSTS.resolved_for(TABLE))
    stages = model.stages([0, 1])
    assert [stages[index].embedding is not None for index in (0, 1)] == [True, False]
    inputs, targets = model.batch(0, 3)
    assert tuple(inputs.shape) == tuple(targets.shape) == (3, 8)
    assert tuple(model.boundary(1).shape) == (1, 8)
    assert float(model.loss(torch.tensor([3.0]), torch.tensor([1.0]))) == 4.0


def test_a_slow_step_counts_without_warm_up() -> None:
    config: Any = SimpleNamespace(straggling_steps=((1, 2.0),), num_warm_up=3)
    assert [factor_of(config, step) for step in (1, 3, 4, 5)] == [1.0, 1.0, 2.0, 1.0]


def network(channel: Any) -> EmulatedNetwork:
    return EmulatedNetwork(COSTS.resolved_for(TABLE), channel, 3, lambda: "0SEND_F0")


def test_transfers_share_the_queue_of_their_channel() -> None:
    keys = {
        channel: [
            network(channel)._queue_key(5, is_send, forward=forward)
            for is_send, forward in ((True, True), (False, True), (False, False))
        ]
        for channel in ("rank", "pair", "edge", "direction")
    }
    assert keys == {
        "rank": ["all"] * 3, "pair": [5] * 3, "edge": [(3, 5), (5, 3), (5, 3)], "direction": [True, True, False],
    }  # fmt: skip


def test_a_transfer_takes_the_time_after_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[str, float]] = []
    for cell, named_at_sender, seconds in (
        ("0SEND_F0", "", 0.5),
        ("1RECV_F0", "0SEND_F0", 0.5),
        ("1SEND_B0", "", 0.5),
        ("0RECV_B0", "1SEND_B0", 0.5),
        ("1SEND_F0", "", 0.25),
        ("2RECV_F4", "1SEND_F4", 0.25),
    ):
        net = EmulatedNetwork(COSTS.resolved_for(TABLE), "rank", 0, lambda cell=cell: cell)
        monkeypatch.setattr(net, "_carry_out", lambda operation, seconds, name: taken.append((name, seconds)))
        net._issue(SimpleNamespace(group_peer=1)).wait()
        net.close()
        assert taken.pop() == (named_at_sender, seconds)


def test_jobs_run_in_order_and_errors_are_raised_by_their_waits() -> None:
    thread, order = JobThread("jobs"), []
    first = thread.put(lambda: order.append(1) or 7)
    second = thread.put(lambda: 1 // 0)
    assert first.result(5) == 7
    with pytest.raises(RunFailed, match="a transfer failed: integer division"):
        emulate._Transfer(second).wait()
    thread.end(5.0)
    assert not thread.is_alive()
    assert order == [1]


def test_a_message_arrives_its_time_after_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[float] = []
    monkeypatch.setattr(emulate, "wait_for", taken.append)
    net, sent = network("ideal"), time.perf_counter() - 1.0
    work = SimpleNamespace(wait=lambda: None)
    emulate._Arrival(net, work, torch.tensor([[sent]], dtype=torch.float64), 3.0, "0SEND_F0").wait()
    assert net.transfers == {"0SEND_F0": (sent, sent + 3.0)}
    assert taken[0] == pytest.approx(2.0, abs=0.1)
