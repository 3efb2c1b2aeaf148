"""Processes give what one gives, in order; a lost one is a sentence, and none is left behind."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from ppsim.base import parallel as parallel_module
from ppsim.base.errors import ConfigError, MissingExtra, RunFailed
from ppsim.base.parallel import in_processes
from tests.defaults import number_defaults
from tests.processes import start

pytest.importorskip("joblib")


def double(number):
    return 2 * number


def die(_):
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(number):
    raise ConfigError(f"not {number}")


def test_one_process_calls_one_after_the_other():
    tasks = iter([(1,), (2,)])
    results = in_processes(double, tasks, 1)
    assert next(results) == 2
    assert next(tasks) == (2,), "the second task must not be taken before it is wanted"


@pytest.mark.parametrize("number", [0, -2])
def test_another_number_of_processes_is_refused(number):
    with pytest.raises(ConfigError, match=f"--jobs is a number of processes, .* got {number}"):
        list(in_processes(double, [(1,)], number))


@pytest.mark.slow
def test_two_processes_keep_the_order_and_pass_on_errors():
    tasks = [(number,) for number in range(20)]
    assert list(in_processes(double, tasks, 2)) == list(range(0, 40, 2))
    assert sorted(in_processes(double, tasks, 2, is_ordered=False)) == list(range(0, 40, 2))
    with pytest.raises(ConfigError, match="not 3"):
        list(in_processes(refuse, [(3,)], 2))


@pytest.mark.slow
def test_a_lost_process_is_named():
    with pytest.raises(RunFailed, match="a process of --jobs 2 was lost"):
        list(in_processes(die, [(1,)], 2))


WITH_SEARCHES_THAT_SLEEP = """
import time
from ppsim.__main__ import command
from ppsim.tuning import search
search._screened = time.sleep
search.in_processes = lambda function, tasks, number, run=search.in_processes: run(time.sleep, [(1e4,)] * 4, number)
command()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupt_and_a_kill_leave_no_process_behind(sent, code):
    options = ["--model", "gpt2", "--gpus", "2", "--global-batch-size", "8", "--jobs", "2"]
    run = start([sys.executable, "-c", WITH_SEARCHES_THAT_SLEEP, "tune", *options])
    started = wait_for(lambda: len(busy := children(run.pid)) >= 2 and busy)
    run.send_signal(sent)
    said = run.communicate(timeout=30)[1]
    assert run.returncode == code, said
    assert wait_for(lambda: not any(alive(one) for one in started))


def children(pid):
    """The processes that loky started."""
    found = psutil.Process(pid).children(recursive=True)
    return [one for one in found if any("popen_loky" in word for word in one.cmdline())]


def alive(process):
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def wait_for(found, seconds=60):
    end = time.monotonic() + seconds
    while not (answer := found()) and time.monotonic() < end:
        time.sleep(0.05)
    assert answer
    return answer


def test_what_is_left_out_in_base_parallel_has_these_values() -> None:
    assert number_defaults(parallel_module) == {
        "in_processes": {"is_ordered": True},
    }  # fmt: skip


def test_a_worker_ends_when_its_parent_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives the children of an ended process to process 1."""
    parents, waited, codes = iter([7, 7, 1]), [], []
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setattr(os, "_exit", codes.append)
    parallel_module._end_with(7)
    assert (waited, codes) == ([1.0, 1.0], [1])


def test_the_watch_for_the_parent_does_not_keep_a_worker_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []

    class Thread:
        def __init__(self, **given: object) -> None:
            self.given = given

        def start(self) -> None:
            started.append(self.given)

    monkeypatch.setattr(parallel_module, "Thread", Thread)
    monkeypatch.setattr(parallel_module, "reduce_startup", lambda: started.append("reduced"))
    parallel_module._start_worker(7)
    assert started == ["reduced", {"target": parallel_module._end_with, "args": [7], "daemon": True}]


@pytest.mark.parametrize(("is_ordered", "kind"), [(True, "generator"), (False, "generator_unordered")])
def test_several_processes_get_a_task_at_a_time(
    monkeypatch: pytest.MonkeyPatch, is_ordered: bool, kind: str
) -> None:
    import joblib

    given: list[object] = []

    def run(**options: object) -> Callable[[Iterable[object]], list[object]]:
        given.append(options)
        return lambda calls: [*calls]

    @contextmanager
    def configure(backend: str, **options: object) -> Iterator[None]:
        given.append((backend, options))
        yield

    monkeypatch.setattr(joblib, "Parallel", run)
    monkeypatch.setattr(joblib, "parallel_config", configure)
    assert list(in_processes(double, [(3,)], -1, is_ordered=is_ordered)) == [(double, (3,), {})]
    initial = {"initializer": parallel_module._start_worker, "initargs": (os.getpid(),)}
    assert given == [("loky", {"n_jobs": -1, **initial}), {"return_as": kind, "batch_size": 1}]


def test_several_processes_need_joblib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joblib", None)
    with pytest.raises(MissingExtra, match=r"\[tune\]"):
        list(in_processes(double, [(1,)], 2))
    assert list(in_processes(double, [(3,)], 1)) == [6]
