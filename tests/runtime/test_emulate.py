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


def test_an_operation_is_posted_to_its_peer_in_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(emulate.dist, "isend", send := lambda *given, **more: asked.append(("send", given, more)))
    monkeypatch.setattr(emulate.dist, "irecv", lambda *given, **more: asked.append(("receive", given, more)))
    for op, name, peer in ((send, "send", "group_dst"), (None, "receive", "group_src")):
        emulate._post(SimpleNamespace(op=op, tensor="t", group="g", group_peer=5, tag=7))
        assert asked.pop() == (name, ("t",), {"group": "g", peer: 5, "tag": 7})


def test_a_message_on_an_ideal_channel_carries_the_time_at_which_it_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(emulate, "_post", lambda operation: f"posted {operation.group_peer}")
    monkeypatch.setattr(emulate.time, "perf_counter", lambda: 41.5)
    sender, tensor = network("ideal"), torch.zeros(emulate.PAYLOAD, dtype=torch.float64)
    assert sender.issue([SimpleNamespace(tensor=tensor, group_peer=1)], "any") == ["posted 1"]
    assert tensor.view(-1).tolist() == [41.5, *[0.0] * 7]
    receiver = EmulatedNetwork(COSTS.resolved_for(TABLE), "ideal", 0, lambda: "1RECV_F3")
    (arrival,) = receiver.issue([SimpleNamespace(tensor=tensor, group_peer=2)])
    assert (arrival._work, arrival._seconds, arrival._name) == ("posted 2", 0.5, "0SEND_F3")
    assert arrival._tensor is tensor


def test_a_transfer_is_recorded_at_its_receiver_from_the_moment_when_both_have_reached_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, steps = [3.0], []

    def wait() -> None:
        steps.append("reached")
        now[0] = 5.0

    monkeypatch.setattr(emulate, "_post", lambda operation: SimpleNamespace(wait=wait))
    monkeypatch.setattr(emulate.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(
        emulate, "wait_for", lambda seconds: (steps.append(seconds), now.append(now.pop() + seconds))
    )
    net = network("pair")
    net._carry_out(None, 0.75, "0SEND_F0")
    assert (net.transfers, steps) == ({"0SEND_F0": (5.0, 5.75)}, ["reached", 0.75])
    net._carry_out(None, 0.75, "")
    assert len(net.transfers) == 1


def test_transfers_of_one_queue_share_a_thread() -> None:
    net = EmulatedNetwork(COSTS.resolved_for(TABLE), "pair", 0, lambda: "0SEND_F0")
    done: list[int] = []
    net._carry_out = lambda operation, seconds, name: done.append(operation.group_peer)  # type: ignore[method-assign]
    for transfer in net.issue([SimpleNamespace(group_peer=peer) for peer in (1, 2, 1)]):
        transfer.wait()
    assert sorted(net._queues) == [1, 2]
    assert sorted(done) == [1, 1, 2]
    threads = list(net._queues.values())
    assert [thread.name for thread in threads] == ["transfers 1", "transfers 2"]
    assert all(thread.daemon for thread in threads)
    net.close()
    for thread in threads:
        thread.join(5.0)
        assert not thread.is_alive()


def test_emulated_costs_are_those_of_the_file_by_torchs_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulate, "read_costs", lambda path: COSTS if path == "costs.json" else None)
    config: Any = SimpleNamespace(emulate_costs="costs.json")
    given = emulate.emulated_costs(config, TABLE)
    assert given is not None
    costs, arrays = given
    expected = COSTS.with_torch_first_stage(num_stages=2, num_ranks=2)
    assert costs.backward_weight_s == pytest.approx(expected.backward_weight_s)
    assert arrays.backward_input_s.tolist() == [0.0, 3.0]
    assert arrays.backward_weight_s.tolist() == [7.0, 4.0]
    config.emulate_costs = None
    assert emulate.emulated_costs(config, TABLE) is None


def test_an_emulated_stage_adds_its_parameters_and_passes_gradients_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(emulate, "wait_for", lambda seconds: None)
    stage = EmulatedStage({("F", 0): 1.0, ("B", 0): 2.0}, is_first=True)
    assert stage.embedding is not None
    with torch.no_grad():
        stage.embedding += 3.0
        stage.weight += 5.0
    output = stage(torch.full(emulate.PAYLOAD, 2.0, dtype=torch.float64))
    assert output.tolist() == [[10.0] * 8]
    stage.running = ("B", 0)
    output.sum().backward()
    assert stage.embedding.grad is not None
    assert stage.embedding.grad.tolist() == [1.0] * 8
    assert stage.weight.grad is not None
    assert stage.weight.grad.tolist() == [1.0] * 8
