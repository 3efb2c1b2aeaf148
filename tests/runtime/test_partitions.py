"""All ranks of a table in one process: the same results as one process without pipelining, and no rank left behind."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

import torch
from torch import Tensor

import ppsim
from ppsim.base.errors import ConfigError, RunFailed
from ppsim.cli import main
from ppsim.runs.timeline_file import read_timeline
from ppsim.runs.timeline_import import TOLERANCE, import_result
from ppsim.runtime import partitions
from ppsim.runtime.executor import Executor, SharedDevice
from ppsim.runtime.partitions import SpinningStage, check_device, run_partitions
from ppsim.schedule.grammar import format_table
from ppsim.schedule.table import Op
from tests.processes import start
from tests.runtime.cases import BUILDERS, config_of, sizes_of, table_of

CASES = [
    pytest.param((name, p, sizes_of(name, p)[-1]), marks=[pytest.mark.long] * (p == 2 or index % 2))
    for p in (2, 4)
    for index, name in enumerate(BUILDERS)
    if sizes_of(name, p)
]
TINY = ("--hidden", "32", "--heads", "2", "--seq-len", "16", "--micro-batch-size", "1", "--warm-up", "0")


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
@pytest.mark.torch
def test_loss_and_gradients_are_those_of_one_process(case: Any, tmp_path: Path) -> None:
    name, p, m = case
    table = table_of(name, p=p, m=m)
    result = run_partitions(config_of(table, tmp_path, dtype="float64", verify=True, num_warm_up=1))
    assert result["differences"]["loss"] <= TOLERANCE["float64"]
    assert result["differences"]["gradient"] <= TOLERANCE["float64"]
    assert result["differences"]["num_parameters"] == 12 * table.num_stages + 2 + 3
    timeline = import_result(result, table, None).timeline
    assert timeline.schedule == table
    for rank in range(p):
        mine = slice(*table.rank_offsets[rank : rank + 2])
        assert (timeline.start[mine][1:] >= timeline.end[mine][:-1]).all()


def test_a_run_says_which_attention_and_what_of_the_device(tmp_path: Path) -> None:
    table = table_of("1f1b", p=2, m=2)
    result = run_partitions(config_of(table, tmp_path))
    assert (result["attention"], result["partitions"]) == ("flash", {"num_threads": 1})


def test_no_action_begins_before_what_it_takes_was_made_and_copied(tmp_path: Path) -> None:
    table = table_of("zbv-fixed", p=4, m=8)
    timeline = import_result(run_partitions(config_of(table, tmp_path)), table, None).timeline
    graph, first = timeline.graph, timeline.num_actions
    assert (timeline.start[first:] >= timeline.end[graph.source]).all()
    assert (timeline.start[graph.target] >= timeline.end[first:]).all()


def test_emulated_costs_never_take_less_than_the_simulation_on_an_ideal_network(tmp_path: Path) -> None:
    table = table_of("1f1b", p=2, m=4)
    costs = {"forward_s": 0.01, "backward_input_s": 0.01, "backward_weight_s": 0.005, "transfer_s": 0.015}
    (tmp_path / "C.json").write_text(json.dumps(costs))
    config = config_of(table, tmp_path, emulate_costs=str(tmp_path / "C.json"), num_warm_up=1)
    given = ppsim.StageCosts(**costs)
    measured = import_result(run_partitions(config), table, given).timeline
    simulated = ppsim.simulate(table, given)
    assert (measured.end - measured.start >= simulated.end - simulated.start - 1e-6).all()
    assert measured.step_time_s >= simulated.step_time_s - 1e-6


class Failing(SpinningStage):
    """Raises at a backward."""

    def run(self, op: Op, microbatch: int, received: Tensor | None) -> Tensor | None:
        if op is Op.B and microbatch == 1:
            raise ValueError("no such thing")
        return super().run(op, microbatch, received)


def executor_of(
    table: ppsim.Schedule, kind: type[SpinningStage], forward_s: list[float], timeout_s: float
) -> Executor:
    device = SharedDevice()
    seconds = [
        {(op, mb): forward if op == "F" else 0.001 for op in "FBIW" for mb in range(table.num_microbatches)}
        for forward in forward_s
    ]
    stages = {index: kind(one, device.spin) for index, one in enumerate(seconds)}
    return Executor(table, stages, device, transfer_s=np.zeros(table.num_stages), timeout_s=timeout_s)


def ranks_alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("rank ")]


def test_a_rank_that_fails_stops_all_others_and_is_named() -> None:
    executor = executor_of(table_of("1f1b", p=2, m=4), Failing, [0.001, 0.001], 60.0)
    begin = time.monotonic()
    with pytest.raises(RunFailed, match=r"rank 1 failed: ValueError: no such thing; the other ranks were stopped"):
        executor.step()
    assert time.monotonic() - begin < 30
    assert not ranks_alive()


def test_a_rank_that_hangs_ends_the_run_within_the_time_out() -> None:
    """Stage 1 is never done; who waits for it gives up, and wakes it."""
    executor = executor_of(table_of("1f1b", p=2, m=4), SpinningStage, [0.001, 1e4], 0.2)
    with pytest.raises(RunFailed, match=r"rank 0 waited for 1SEND_B0 of rank 1 for more than 0.2 s"):
        executor.step()
    assert not ranks_alive()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "T.csv").write_text(format_table(table_of("zbv-fixed", p=2, m=4)))
    slow = {"forward_s": 0.1, "backward_input_s": 0.1, "backward_weight_s": 0.1}
    (tmp_path / "slow.json").write_text(json.dumps(slow))
    (tmp_path / "pair.json").write_text(json.dumps(slow | {"channel": "pair"}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Noting(SpinningStage):
    """Notes the threads that run it."""

    def __init__(self, seconds: dict[tuple[str, int], float], spin: Any) -> None:
        super().__init__(seconds, spin)
        self.threads: list[threading.Thread] = []

    def run(self, op: Op, microbatch: int, received: Tensor | None) -> Tensor | None:
        self.threads.append(threading.current_thread())
        return super().run(op, microbatch, received)


def test_a_rank_is_the_same_thread_in_every_step_and_ends_with_the_run() -> None:
    """What libraries keep by thread, as cuDNN's plans of attention, is made once and not in every step."""
    executor = executor_of(table_of("1f1b", p=2, m=4), Noting, [1e-4, 1e-4], 60.0)
    with closing(executor):
        for _ in range(3):
            executor.step()
    for rank, stage in executor.stages.items():
        assert isinstance(stage, Noting)
        assert {thread.name for thread in stage.threads} == {f"rank {rank}"}
        assert len(stage.threads) == 3 * 2 * 4
        assert all(thread is stage.threads[0] for thread in stage.threads)
    assert not ranks_alive()


@pytest.mark.torch
def test_ctrl_c_ends_the_run_with_one_sentence(folder: Path) -> None:
    command = [sys.executable, "-m", "ppsim", "train", "--schedule", "T.csv", "--partitions", "2"]
    run = start([*command, "--emulate-costs", "slow.json"], cwd=folder)
    assert run.stderr is not None
    for line in run.stderr:
        if "step 1 of" in line:
            break
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 1
    assert err.splitlines()[-1] == "ppsim: the run was interrupted by SIGINT; its ranks were stopped"
    assert "Traceback" not in err


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.long
def test_it_runs_where_there_is_torch_and_little_else(emulated: bool, folder: Path) -> None:
    """As on a machine with a GPU: no pydantic, no plots, no pandas; the timeline is written all the same."""
    arguments = ["train", "--schedule", "T.csv", "--partitions", "2", *TINY, "--steps", "1", "-o", "measured.json"]
    arguments += ["--emulate-costs", "slow.json"] if emulated else ["--verify"]
    missing = ("pydantic", "plotly", "matplotlib", "pandas", "numba", "scipy", "networkx", "ortools")
    code = (
        f"import sys; sys.argv = {['ppsim', *arguments]}\n"
        f"for name in {missing}: sys.modules[name] = None\n"
        "from ppsim.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    timeline, _ = read_timeline(folder / "measured.json")
    assert timeline.origin == "measured"
    assert timeline.num_actions == 48


def test_an_old_torch_will_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's runtime, whose split backward needs 2.13, is not used."""
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    arguments = ["train", "--schedule", "T.csv", "--partitions", "2", *TINY, "--steps", "1", "--verify", "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["run"]["differences"]["gradient"] <= 1e-5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--partitions", "4"], "T.csv has 2 ranks: got --partitions 4"),
        (["--partitions", "2", "--nproc", "2"], "leave out --nproc and torchrun"),
        (["--partitions", "2", "--emulate-costs", "pair.json"], "channel pair cannot be emulated"),
        (["--partitions", "2", "--device", "cuda"], "add --emulate-costs C.json, or leave out --partitions"),
        (["--partitions", "2", "--schedule", "comms.csv"], "comms.csv spells out its sends and receives"),
        (["--partitions", "2", "--emulate-costs", "none.json"], "none.json"),
    ],
)
def test_what_partitions_cannot_do_ends_before_anything_is_started(
    arguments: list[str], sentence: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ppsim.trainers.torch.write_schedule import torch_csv

    (folder / "comms.csv").write_text(torch_csv(table_of("1f1b", p=2, m=4), with_communication=True))
    monkeypatch.setattr("ppsim.runtime.partitions.run_partitions", lambda config: pytest.fail("started"))
    result = CliRunner().invoke(main, ["train", "--schedule", "T.csv", *arguments])
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_ranks_and_edges_that_a_gpu_has_no_queues_for_are_refused_with_their_numbers() -> None:
    """1F1B over p ranks transfers over 2 (p − 1) directed pairs, a stream each: 3p − 2 streams in 32 queues."""
    costs = ppsim.StageCosts(forward_s=1, backward_s=1)
    for p in (2, 4, 8, 11):
        check_device(table_of("1f1b", p=p, m=p), "cuda", costs)
    check_device(table_of("1f1b", p=16, m=16), "cpu", costs)
    with pytest.raises(ConfigError, match=r"--partitions 16: 16 ranks and 30 directed pairs .* need 46 streams"):
        check_device(table_of("1f1b", p=16, m=16), "cuda", costs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_cuda_partitions_are_refused(folder: Path) -> None:
    arguments = ["train", "--schedule", "T.csv", "--partitions", "2", "--device", "cuda"]
    arguments += ["--emulate-costs", "slow.json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert "torch sees no CUDA device here" in result.stderr


class Gpu:
    """A stand-in for torch.cuda with a clock of one second per moment; sleeps of n cycles take n / `rate` s."""

    def __init__(self) -> None:
        self.streams: list[Any] = []
        self.current: Any = None
        self.slept: list[Any] = []
        self.busy = 0

    def init(self) -> None: ...

    def current_device(self) -> int:
        return 0

    def get_device_name(self, where: Any) -> str:
        return f"GPU {where.index}"

    def set_device(self, where: Any) -> None:
        self.device = where

    def Stream(self, where: Any, priority: int = 0) -> Any:  # noqa: N802
        def query() -> bool:
            self.busy -= 1
            return self.busy < 0

        events: list[Any] = []
        made = SimpleNamespace(priority=priority, wait_event=events.append, events=events, query=query)
        self.streams.append(made)
        return made

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def current_stream(self) -> Any:
        return self.current

    def _sleep(self, cycles: int) -> None:
        self.slept.append((cycles, self.current))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made, moments = Gpu(), count(1)
    monkeypatch.setattr(partitions.torch, "cuda", made)
    monkeypatch.setattr(partitions, "CudaClock", lambda where: SimpleNamespace(now=lambda: next(moments)))
    monkeypatch.setattr(partitions, "_cycles_per_s", lambda clock: 1000.0)
    return made


def test_ranks_and_pairs_are_streams_of_a_gpu(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    device = partitions.Streams(3)
    assert device.facts() == {"name": "GPU 0", "spin_cycles_per_s": 1000.0}
    ranks = list(gpu.streams)
    assert len(ranks) == 3
    with device.rank(2):
        assert gpu.current is ranks[2]
        device.spin(0.25)
        device.spin(0.0)
        assert gpu.slept == [(250, ranks[2])]
        at_once = device.send(None, (2, 1), 0.0)
        later = device.send(None, (2, 1), 0.5)
        again = device.send(None, (2, 1), 0.125)
        device.send(None, (1, 2), 0.125)
    assert gpu.current is None
    first, second = gpu.streams[3:]
    assert (first.priority, second.priority) == (-1, -1)
    assert gpu.slept[1:] == [(500, first), (125, first), (125, second)]
    assert first.events == [2, 5]
    assert [(one._begin, one._end) for one in (at_once, later, again)] == [(1, 1), (3, 4), (6, 7)]
    with device.rank(1):
        later._wait()
    assert ranks[1].events == [4]
    naps: list[float] = []
    monkeypatch.setattr(partitions.time, "sleep", naps.append)
    gpu.busy = 2
    device.finish_step(60.0)
    assert len(naps) == 2
    gpu.busy = 10**9
    with pytest.raises(Exception, match="the device worked on one step"):
        device.finish_step(-1.0)
    device.stop()


def test_cycles_per_second_are_the_median_of_equal_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = partitions._CALIBRATION_CYCLES
    calls: list[int] = []
    rates = [4000.0, 2000.0, *[1000.0] * 50]

    def time_of(work: Any, cycles: int) -> tuple[None, Any]:
        calls.append(cycles)
        rate = rates[(len(calls) - 1) // 2]
        return None, lambda: 7.0 + cycles / rate  # launches take 7 s

    clock: Any = SimpleNamespace(time=time_of)
    monkeypatch.setattr(partitions.torch, "cuda", SimpleNamespace(_sleep=None))
    assert partitions._cycles_per_s(clock) == pytest.approx(1000.0)
    assert calls == [long, short] * (2 + partitions._ALIKE)
    calls.clear()
    rates[:] = [1000.0 * (1 + number / 100) for number in range(partitions._MOST_CALIBRATIONS)]
    partitions._cycles_per_s(clock)
    assert len(calls) == 2 * partitions._MOST_CALIBRATIONS
