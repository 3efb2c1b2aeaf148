"""Whoever works, the answer is the same, nothing is lost with a worker, and none is left behind."""

import os
import signal
import sys
import time

import psutil
import pytest

from ppsim.base.errors import ConfigError, RunFailed
from ppsim.tuning import workers as module
from ppsim.tuning.search import tune
from ppsim.tuning.workers import workers
from tests.frozen.values import numbers_of
from tests.processes import start
from tests.tuning.questions import question

pytest.importorskip("joblib")
ASKED = question("gpt2", gpus=2, batch=8, length=1024, limit_gib=6.0)


@pytest.fixture(scope="module")
def in_process():
    return tune(ASKED).to_json()


@pytest.fixture(scope="module")
def scheduler():
    """The address of a Dask cluster of two processes on this machine."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield f"dask:{cluster.scheduler_address}"


def require_alike(found, in_process):
    """The same configurations in the same order, and numbers up to rounding, which may differ between processes."""
    assert list(found["verdicts"]) == list(in_process["verdicts"])
    assert numbers_of(found) == pytest.approx(numbers_of(in_process), rel=1e-9)


def die_once(flag, number):
    """Twice the number, but for the first call that gets here: its process is gone."""
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return 2 * number
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def die(_):
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(number):
    raise ConfigError(f"not {number}")


def test_two_processes_give_the_answer_of_one(in_process):
    require_alike(tune(ASKED, where="processes:2").to_json(), in_process)


@pytest.mark.slow
def test_dask_gives_the_answer_of_one(scheduler, in_process):
    require_alike(tune(ASKED, where=scheduler).to_json(), in_process)


@pytest.mark.slow
def test_what_a_lost_process_had_is_done_again_and_an_error_of_the_work_is_the_error(tmp_path):
    with workers("processes:2") as those:
        assert those.run(die_once, [(tmp_path / "flag", number) for number in range(20)]) == list(range(0, 40, 2))
        with pytest.raises(ConfigError, match="not 3"):
            those.run(refuse, [(3,)])
    assert (tmp_path / "flag").exists()


@pytest.mark.slow
def test_what_a_lost_worker_of_dask_had_is_done_again(scheduler, tmp_path):
    with workers(scheduler) as those:
        assert those.run(die_once, [(tmp_path / "flag", number) for number in range(20)]) == list(range(0, 40, 2))
    assert (tmp_path / "flag").exists()


@pytest.mark.slow
def test_workers_that_are_always_lost_end_the_search(monkeypatch):
    monkeypatch.setattr(module, "_MOST_LOSSES", 2)
    lost = pytest.raises(RunFailed, match="workers were lost 2 times before any of 1 groups")
    with workers("processes:2") as those, lost:
        those.run(die, [(1,)])


def test_a_worker_of_another_version_is_refused():
    with pytest.raises(ConfigError, match=r"a worker has ppsim .*, and this is 0\.0\.1: install the same on both"):
        module._run_there("0.0.1", divmod, (7, 2))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("two", r"got 'two' \(nearest: processes:2\)"),
        ("dask", "got 'dask'"),
        ("processes:some", "processes are a number, or -1 for one a core: got 'some'"),
        ("processes:0", "got '0'"),
        ("dask:no-such-file.json", "there is no scheduler file no-such-file.json"),
        ("dask:hdfs", "no Dask scheduler answers at hdfs"),
    ],
)
def test_workers_that_are_none_get_a_sentence(where, words, monkeypatch):
    if where.startswith("dask:"):
        pytest.importorskip("distributed")
        monkeypatch.setattr(module, "_CONNECT_S", 0.2)
    with pytest.raises(ConfigError, match=words), workers(where):
        pass


WITH_WORKERS_THAT_SLEEP = """
import time
from ppsim.__main__ import command
from ppsim.tuning.workers import _Processes
_Processes.submit = lambda self, *call: self._executor.submit(time.sleep, 1e4)
command()
"""


@pytest.mark.slow
def test_an_interrupt_leaves_no_process_behind():
    options = ["--model", "gpt2", "--gpus", "2", "--global-batch-size", "8", "--workers", "processes:2"]
    run = start([sys.executable, "-c", WITH_WORKERS_THAT_SLEEP, "tune", *options])
    started = wait_for(lambda: len(busy := children(run.pid)) >= 2 and busy)
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=30)[1]
    assert run.returncode == 130, said
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
