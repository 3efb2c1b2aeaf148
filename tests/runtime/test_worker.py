"""A rank of a training run, in this process: what it records, trains and reports."""

import json
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.runtime import emulate, worker
from ppsim.runtime.train_config import GPTShape, TrainConfig, TurnLimits
from ppsim.runtime.worker import ReferenceWork, StepRecorder, _Rank, _result
from ppsim.trainers.torch.read_trace import WAIT_MARK

TABLE = ppsim.build("1f1b", pp=2, microbatches=4)
SHAPE = GPTShape(num_layers=2, hidden_size=8, num_heads=2, sequence_length=4)


def config_with(**fields: Any) -> TrainConfig:
    given = {"schedule": "T.csv", "num_ranks": 2, "model": SHAPE, "layers_per_stage": [1, 1]}
    return TrainConfig(**given | fields)  # type: ignore[arg-type]


class Clock:
    """Each look at it takes one second; moments are told as hours."""

    def __init__(self) -> None:
        self.moment = 0
        self.waited: list[Any] = []

    def now(self) -> int:
        self.moment += 1
        return self.moment

    def wait(self, moment: Any) -> None:
        self.waited.append(moment)

    def seconds(self, moment: Any) -> float:
        return 3600.0 * moment

    def zero(self) -> None:
        self.moment = 0


@pytest.mark.parametrize("mark_trace", [False, True])
def test_a_step_is_recorded_with_its_waits_and_calls_and_the_hooks_are_removed(
    *, mark_trace: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Any] = []

    @contextmanager
    def real_record(name: str) -> Any:
        events.append(f"[{name}")
        yield
        events.append(f"{name}]")

    def real_wait(work: Any) -> None:
        events.append(work)

    class Stage:
        def forward_one_chunk(self, microbatch: int, **how: Any) -> Any:
            return "forward", microbatch, how

        def backward_one_chunk(self, microbatch: int, **how: Any) -> Any:
            return "backward", microbatch, how

        def backward_weight_one_chunk(self, microbatch: int, **how: Any) -> Any:
            return "weight", microbatch, how

    schedules = SimpleNamespace(record_function=real_record, _wait_batch_p2p=real_wait)
    monkeypatch.setattr(worker, "schedules", schedules)
    stage, clock = Stage(), Clock()
    recorder = StepRecorder(clock, mark_trace=mark_trace)  # type: ignore[arg-type]
    called: list[Any] = []
    assert recorder.current is None
    with recorder.installed([stage], lambda *given: called.append(given)):
        schedules._wait_batch_p2p("before")
        with schedules.record_function("PP:0F3"):
            schedules._wait_batch_p2p("receive")
            assert recorder.current is not None
            assert recorder.current.name == "0F3"
            assert stage.forward_one_chunk(3, x=1) == ("forward", 3, {"x": 1})
        assert recorder.current is None
        with schedules.record_function("PP:0I2"):
            stage.backward_one_chunk(2, full_backward=False)
            stage.backward_one_chunk(1)
            stage.backward_one_chunk(0, full_backward=True)
            stage.backward_weight_one_chunk(2)
    assert (schedules.record_function, schedules._wait_batch_p2p) == (real_record, real_wait)
    assert vars(stage) == {}
    assert called == [
        (stage, "F", 3), (stage, "I", 2), (stage, "B", 1), (stage, "B", 0), (stage, "W", 2),
    ]  # fmt: skip
    hour = 3600.0
    assert recorder.take_step() == [
        {"name": "0F3", "begin": 2 * hour, "end": 6 * hour, "waits": [[3 * hour, 4 * hour]], "calls": [5 * hour]},
        {"name": "0I2", "begin": 7 * hour, "end": 12 * hour, "waits": [], "calls": [8 * hour, 9 * hour, 10 * hour, 11 * hour]},
    ]  # fmt: skip
    assert clock.waited[:4] == [2, 6, 3, 4]
    assert recorder.take_step() == []
    wait = [f"[{WAIT_MARK}", "receive", f"{WAIT_MARK}]"]
    before = [f"[{WAIT_MARK}", "before", f"{WAIT_MARK}]"]
    marked = [*before, "[PP:0F3", *wait, "PP:0F3]", "[PP:0I2", "PP:0I2]"]
    assert events == (marked if mark_trace else ["before", "receive"])


class Buffered(torch.nn.Module):
    """Doubles its input times a weight, counts its calls in a buffer, and drops values at random."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(3.0))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, given: Any) -> Any:
        self.calls += 1
        return torch.nn.functional.dropout(2 * given * self.weight, 0.5)


def model_of_ones() -> Any:
    return SimpleNamespace(
        loss=lambda output, wanted: (output - wanted).sum(), batch=lambda step, number: (torch.ones(4), torch.zeros(4)),
        boundary=lambda stage: torch.ones(4),
    )  # fmt: skip


def test_reference_work_runs_all_stages_and_leaves_random_state_and_buffers() -> None:
    modules = {0: Buffered(), 1: Buffered()}
    state = torch.random.get_rng_state()
    work = ReferenceWork(config_with(), model_of_ones(), modules)
    first, second = work._stages
    assert (first[1].tolist(), first[3], second[3]) == ([1.0] * 4, False, True)
    assert second[1].requires_grad
    assert second[2].tolist() == [0.0] * 4
    assert work.seconds() > 0
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [module.calls.item() for module in modules.values()] == [0.0, 0.0]
    assert all(module.weight.grad is not None for module in modules.values())
    before = [module.weight.grad.clone() for module in modules.values()]
    work.seconds()
    assert any(
        not torch.equal(module.weight.grad, old) for module, old in zip(modules.values(), before, strict=True)
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "stages of 8, 2 heads, 256 words, 2 × 4 tokens, float32, 2 ranks at once, --threads 1"),
        (
            {"recompute": "full", "micro_batch": 3, "dtype": "bfloat16", "num_threads": 5},
            "stages of 8, 2 heads, 256 words, 3 × 4 tokens, bfloat16, 2 ranks at once, --threads 5, recompute full",
        ),
        (
            {"model": SimpleNamespace(module="own.py:model")},
            "stages of own.py:model, micro-batch 2, float32, 2 ranks at once, --threads 1",
        ),
    ],
)
def test_reference_work_is_described_by_its_sizes(fields: dict[str, Any], text: str) -> None:
    assert ReferenceWork(config_with(**fields), model_of_ones(), {}).work == text


def of_rank(number: int, **fields: Any) -> dict[str, Any]:
    given = {
        "host": f"host{1 - number}", "losses": [None, None] if number == 0 else [4.5, 3.5], "num_warm_up": 3 + number,
        "memory": {"rank": number}, "reference_work": f"work {number}", "reference_s": [1.0 + number, 3.0 + number],
        "optimizer_s": [0.5 + number, 0.75 - number / 2], "steps": [f"a{number}", f"b{number}"],
        "differences": {"loss": 0.25 + number, "gradient": 0.5 - number / 4, "num_parameters": 7 + number},
    }  # fmt: skip
    return given | fields


def test_the_result_joins_the_ranks() -> None:
    config = config_with(layers_per_stage=[3, 4])
    assert _result(TABLE, config, [of_rank(0), of_rank(1)]) == {
        "torch": torch.__version__, "hosts": ["host0", "host1"], "losses": [4.5, 3.5], "num_warm_up": 3,
        "memory": {"ranks": [{"rank": 0}, {"rank": 1}]}, "reference_work": "work 0", "reference_layers": [3, 4],
        "reference_s": [[1.0, 2.0], [3.0, 4.0]], "optimizer_s": [1.5, 0.75], "steps": [["a0", "a1"], ["b0", "b1"]],
        "differences": {"loss": 1.25, "gradient": 0.5, "num_parameters": 15},
    }  # fmt: skip
    few = _result(TABLE, config, [of_rank(0, memory=None), of_rank(1, differences=None)])
    assert (few["memory"], few["differences"]) == (None, {"loss": 0.25, "gradient": 0.5, "num_parameters": 7})
    none = _result(TABLE, config, [of_rank(number, differences=None) for number in (0, 1)])
    assert none["differences"] is None
    with pytest.raises(ConfigError, match="the loss of step 2 is nan"):
        _result(TABLE, config, [of_rank(0), of_rank(1, losses=[4.5, float("nan")])])


class Store(dict[str, str]):
    """A store in which the other rank has answered."""

    def __bool__(self) -> bool:
        return True

    def set_timeout(self, timeout: Any) -> None:
        self.timeout = timeout

    def set(self, name: str, value: str) -> None:
        self[name] = value

    def get(self, name: str) -> str:
        return self.get_all().get(name) or self[name]

    def get_all(self) -> dict[str, str]:
        return {
            f"turn {turn} run {run} rank 1": json.dumps(["other", turn, run])
            for turn in range(9)
            for run in range(9)
        }


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what a rank is asked instead of torch."""
    calls: list[Any] = []

    class Rank:
        def __init__(self, config: Any, table: Any, rank: int, device: Any) -> None:
            calls.append(("made", config.num_threads, table.num_ranks, rank, device.type))
            self.turns = 0

        def train(self) -> Any:
            self.turns += 1
            return ["own", self.turns]

    monkeypatch.setattr(worker, "_Rank", Rank)
    monkeypatch.setattr(worker, "require_torch", lambda: calls.append("required"))
    monkeypatch.setattr(worker, "read_schedule", lambda path: TABLE)
    monkeypatch.setattr(worker, "validate", lambda table: calls.append("validated"))
    monkeypatch.setattr(worker, "keep_freed_memory", lambda: calls.append("kept"))
    monkeypatch.setattr(worker, "_result", lambda table, config, everyone: (config.num_threads, everyone))
    monkeypatch.setattr(worker.sys, "setswitchinterval", lambda seconds: calls.append(seconds))
    monkeypatch.setattr(worker.torch, "set_num_threads", lambda number: calls.append(("threads", number)))
    monkeypatch.setattr(worker.dist, "init_process_group", lambda *all, **how: calls.append((all, how)))
    monkeypatch.setattr(worker.dist, "destroy_process_group", lambda: calls.append("destroyed"))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    return calls


def test_every_turn_runs_all_configurations_with_ranks_that_are_kept(started: list[Any]) -> None:
    store, watched = Store(), []
    configs = [config_with(num_threads=3, timeout_s=40.0), config_with(num_threads=5)]
    results = worker.run_all(configs, store, TurnLimits(most=3, least=2, limit_s=0.0), watched.append)  # type: ignore[arg-type]
    assert results == [
        (3, [["own", 1], ["other", 0, 0]]), (5, [["own", 1], ["other", 0, 1]]),
        (3, [["own", 2], ["other", 1, 0]]), (5, [["own", 2], ["other", 1, 1]]),
    ]  # fmt: skip
    assert watched == [1, 2]
    assert (store["turn 1"], store["turn 2"], store.timeout.total_seconds()) == ("1", "0", 40.0)
    assert started[:4] == ["required", "validated", "validated", 1e-4]
    (backend,), how = started[4]
    assert (backend, how["rank"], how["world_size"], how["store"]) == ("gloo", 0, 2, store)
    assert how["timeout"].total_seconds() == 40.0
    assert started[5:11] == [
        ("threads", 3), "kept", ("made", 3, 2, 0, "cpu"), ("threads", 5), "kept", ("made", 5, 2, 0, "cpu"),
    ]  # fmt: skip
    assert started[11:] == [("threads", 3), "kept", ("threads", 5), "kept", "destroyed"]


def test_other_ranks_have_no_results_and_another_number_of_processes_is_refused(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    store = Store({"turn 1": "0"})
    assert worker.run_all([config_with()], store) is None  # type: ignore[arg-type]
    assert store["turn 0 run 0 rank 1"] == '["own", 1]'
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match=r"T.csv has 2 ranks, but 3 processes were started"):
        worker.run_all([config_with()], store)  # type: ignore[arg-type]


def test_a_worker_writes_its_results_or_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = {"most": 4, "least": 3, "limit_s": 2.5}
    config = vars(config_with(num_threads=7)) | {"model": vars(SHAPE)}
    (tmp_path / "configs.json").write_text(json.dumps({"configs": [config], "turns": turns}))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(worker, "FileStore", lambda path, number: (path, number))

    def run_all(configs: Any, store: Any, limits: Any, watch: Any) -> Any:
        assert ([one.num_threads for one in configs], limits) == ([7], TurnLimits(4, 3, 2.5))
        assert store == (str(tmp_path / "store"), 2)
        watch(3)
        return [{"loss": 1.5}]

    monkeypatch.setattr(worker, "run_all", run_all)
    worker.main(tmp_path)
    assert json.loads((tmp_path / "results.json").read_text()) == [{"loss": 1.5}]
    assert (tmp_path / "turns.txt").read_text() == "3"
    assert json.loads((tmp_path / "rank1.json").read_text()) is None
    (tmp_path / "results.json").unlink()
    monkeypatch.setattr(worker, "run_all", lambda *_: None)
    worker.main(tmp_path)
    assert not (tmp_path / "results.json").exists()

    def fail(*_: Any) -> None:
        raise ConfigError("too few ranks")

    monkeypatch.setattr(worker, "run_all", fail)
    worker.main(tmp_path)
    word = json.loads((tmp_path / "rank1.json").read_text())
    assert (word["kind"], word["message"]) == ("ConfigError", "too few ranks")
    assert "in fail" in word["callstack"]


def rank_with(stages: list[Any], **fields: Any) -> Any:
    """Return a rank without processes: its steps are of a runtime that notes what it gets."""
    made = object.__new__(_Rank)
    given = {
        "config": config_with(num_steps=2, num_warm_up=1, verify=True), "table": TABLE, "rank": 0,
        "device": torch.device("cpu"), "costs": None, "stages": stages, "num_done": 0, "reference": None, "parameters": [],
        "recorder": SimpleNamespace(
            clock=Clock(), installed=lambda *_: nullcontext(), take_step=lambda: ["records"],
            current=SimpleNamespace(name="0F3"), seconds=lambda moment: 10.0 * moment,
        ),
        "model": SimpleNamespace(batch=lambda step, number: (torch.tensor([step]), torch.tensor([number]))),
        "live_bytes": SimpleNamespace(counting=nullcontext, peak=lambda rank, held: (rank, held), action=None),
        "optimizer": SimpleNamespace(zero_grad=lambda: None, step=lambda: None),
    } | fields  # fmt: skip
    vars(made).update(given)
    return made


@pytest.fixture
def _without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.dist, "barrier", lambda: None)
    monkeypatch.setattr(worker, "AllocatedPeak", lambda device, parameters: SimpleNamespace(bytes=lambda: 99))
    monkeypatch.setattr(worker.platform, "node", lambda: "node")


@pytest.mark.usefixtures("_without_processes")
def test_a_rank_trains_its_steps_and_counts_memory_in_the_last_of_warm_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []

    def step(*arguments: Any, return_outputs: bool, target: Any, losses: list[Any]) -> None:
        assert not return_outputs
        given.append(([one.item() for one in arguments], target.item()))
        losses += [torch.tensor(1.0), torch.tensor(4.0)]

    paces = iter([7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0])
    stages = [SimpleNamespace(stage_index=0), SimpleNamespace(stage_index=1)]
    reference = SimpleNamespace(work="work", seconds=lambda: next(paces))
    made = rank_with(stages, runtime=SimpleNamespace(step=step), reference=reference)
    monkeypatch.setattr(made, "_differences", lambda inputs, targets, losses: inputs.item() + len(losses))
    assert made.train() == {
        "losses": [2.5, 2.5, 2.5], "steps": 3 * [{"records": ["records"], "transfers": {}}],
        "optimizer_s": [10.0] * 3, "differences": 2, "memory": (0, 99), "host": "node", "num_warm_up": 1,
        "reference_s": [7.0, 8.0, 9.0, 10.0], "reference_work": "work",
    }  # fmt: skip
    assert given == [([0], 4), ([1], 4), ([2], 4)]
    assert capsys.readouterr().err == "step 1 of 3\nstep 2 of 3\nstep 3 of 3\n"
    again = made.train()
    assert (again["num_warm_up"], again["memory"], again["differences"], len(again["steps"])) == (0, None, None, 2)
    assert [inputs for inputs, _ in given[3:]] == [[3], [4]]
    assert made.num_done == 5


@pytest.mark.usefixtures("_without_processes")
@pytest.mark.parametrize(("index", "has_input", "has_loss"), [(0, True, False), (1, False, True)])
def test_the_first_stage_gets_the_inputs_and_the_last_the_targets(
    index: int, has_input: bool, has_loss: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(*arguments: Any, return_outputs: bool, **last: Any) -> None:
        assert (len(arguments), list(last)) == (int(has_input), ["target", "losses"] * has_loss)
        if last:
            last["losses"].append(torch.tensor(3.0))

    config = config_with(num_steps=1, num_warm_up=0, verify=False)
    made = rank_with(
        [SimpleNamespace(stage_index=index)], rank=1, config=config, runtime=SimpleNamespace(step=step)
    )
    found = made.train()
    assert (found["losses"], found["memory"], found["reference_work"]) == ([3.0 if has_loss else None], None, "")
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("_without_processes")
def test_an_emulated_rank_has_its_network_and_factors_and_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Network:
        def __init__(self, *given: Any) -> None:
            self.transfers = {"a": 1}
            calls.append(given[:3])

        def issue(self) -> None: ...

        def close(self) -> None:
            calls.append("closed")

    schedules = SimpleNamespace(_batch_p2p="real")
    monkeypatch.setattr(worker, "schedules", schedules)
    monkeypatch.setattr(emulate, "EmulatedNetwork", Network)
    monkeypatch.setattr(emulate, "factor_of", lambda config, step: 1.5 + step)
    stage = SimpleNamespace(stage_index=0, submod=SimpleNamespace(factor=None))
    resolved = SimpleNamespace(transfer_s=torch.tensor([0.0, 0.5]))
    factors: list[float] = []

    def step(*_: Any, **__: Any) -> None:
        assert schedules._batch_p2p != "real"
        factors.append(stage.submod.factor)

    made = rank_with([stage], costs=(SimpleNamespace(channel="edge"), resolved), runtime=SimpleNamespace(step=step))
    found = made.train()
    assert calls == [(resolved, "edge", 0), "closed"]
    assert factors == [1.5, 2.5, 3.5]
    assert (found["optimizer_s"], found["memory"], found["differences"]) == ([], None, None)
    assert found["steps"][0]["transfers"] == {"a": 1}
    assert schedules._batch_p2p == "real"
    resolved.transfer_s = torch.tensor([0.0, 0.0])
    schedules._batch_p2p = 3
    assert made.train()["steps"][0]["transfers"] == {}
    assert len(calls) == 2


def test_differences_are_of_the_gradients_of_each_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "differences", lambda *given: given)
    parameters = [SimpleNamespace(grad="first"), SimpleNamespace(grad="second")]
    stage = SimpleNamespace(stage_index=3, submod=SimpleNamespace(parameters=lambda: parameters))
    made = rank_with([stage])
    assert made._differences("inputs", "targets", ["loss"]) == (
        made.config, TABLE, "inputs", "targets", ["loss"], {3: ["first", "second"]},
    )  # fmt: skip
    made.costs = ("costs", "resolved")
    assert made._differences("inputs", "targets", []) is None


def test_the_action_that_runs_is_told_to_the_counter_of_bytes_and_an_emulated_stage() -> None:
    made = rank_with([])
    emulated = object.__new__(emulate.EmulatedStage)
    made._tell_stage(SimpleNamespace(submod=emulated), "B", 5)
    assert made.live_bytes.action == "0F3"
    assert emulated.running == ("B", 5)
    plain = SimpleNamespace()
    made._tell_stage(SimpleNamespace(submod=plain), "B", 5)
    assert vars(plain) == {}
