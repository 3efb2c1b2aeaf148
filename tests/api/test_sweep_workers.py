"""Workers of a cluster: each result once, nothing lost with a worker, and sentences for addresses without one."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from ppsim.api import sweep_workers
from ppsim.api.sweep_workers import in_dask, in_ray
from ppsim.base.errors import ConfigError, MissingExtra, RunFailed


@pytest.fixture(scope="module")
def scheduler():
    """The address of a Dask cluster of two processes on this machine."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address


def double_or_die(flag, number):
    """Twice the number, but for the first call that gets here: its process is gone."""
    try:
        flag.touch(exist_ok=False)
    except FileExistsError:
        return 2 * number
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def refuse(number):
    raise ConfigError(f"not {number}")


@pytest.mark.slow
def test_dask_gives_each_result_once_although_a_worker_is_lost(scheduler, tmp_path):
    found = list(in_dask(double_or_die, ((tmp_path / "flag", number) for number in range(20)), scheduler))
    assert sorted(found) == list(range(0, 40, 2))
    with pytest.raises(ConfigError, match="not 3"):
        list(in_dask(refuse, [(3,)], scheduler))


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("no-such-file.json", "there is no scheduler file no-such-file.json"),
        ("hdfs", "no Dask scheduler answers at hdfs"),
    ],
)
def test_a_scheduler_that_is_none_gets_a_sentence(address, sentence, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(sweep_workers, "_CONNECT_S", 0.2)
    with pytest.raises(ConfigError, match=sentence):
        next(in_dask(refuse, [(1,)], address))


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"Ray's workers need ray: pip install 'ppsim-pipeline\[ray\]'"):
        next(in_ray(refuse, [(1,)], "auto"))


def test_a_port_where_nothing_listens_is_named_at_once(monkeypatch):
    monkeypatch.setattr(sweep_workers, "_CONNECT_S", 0.2)
    with pytest.raises(ConfigError, match="no Ray cluster answers at localhost:1"):
        sweep_workers._require_answer("localhost:1")


class Killed(Exception):
    """A worker that was lost too often."""


class Client(SimpleNamespace):
    """A connection."""

    def __enter__(self):
        return self

    def __exit__(self, *_): ...


class Cluster:
    """A stand-in for distributed and ray, which runs each call when its result is asked for."""

    def __init__(self, num_threads=3):
        self.num_threads, self.asked, self.most_ahead, self.open, self.calls = num_threads, {}, 0, 0, []
        self.scheduler = SimpleNamespace(KilledWorker=Killed)
        self.exceptions = SimpleNamespace(RayActorError=Killed)

    # distributed
    def Client(self, **where):  # noqa: N802
        self.asked |= where
        threads = {"a": self.num_threads - 1, "b": 1} if self.num_threads else {}
        return Client(nthreads=lambda: threads, loop="loop", submit=self.submit)

    def submit(self, function, *task, **how):
        self.calls.append(how)
        self.open += 1
        self.most_ahead = max(self.most_ahead, self.open)
        return SimpleNamespace(result=lambda: function(*task))

    def as_completed(self, futures, loop):
        assert loop == "loop"
        queue = list(futures)

        class Running:
            update = staticmethod(queue.extend)

            def __iter__(_):  # noqa: N805
                while queue:
                    self.open -= 1
                    yield queue.pop(0)

        return Running()

    # ray
    def init(self, **how):
        self.asked |= how

    def cluster_resources(self):
        return {"CPU": float(self.num_threads)}

    def remote(self, **how):
        self.asked |= how

        def actor_of(kind):
            def made(function):
                actor, number = kind(function), len(self.calls)
                self.calls.append(number)
                return SimpleNamespace(call=SimpleNamespace(remote=lambda *task: self.ahead((actor, task))))

            return SimpleNamespace(remote=made)

        return actor_of

    def ahead(self, call):
        self.open += 1
        self.most_ahead = max(self.most_ahead, self.open)
        return call

    def wait(self, running):
        self.open -= 1
        return [running[0]], running[1:]

    def get(self, call):
        actor, task = call
        return actor.call(*task)

    def shutdown(self):
        self.asked["ended"] = True


def double(number):
    if number == 7:
        raise Killed("memory")
    return 2 * number


def test_dask_has_some_tasks_per_thread_ahead_and_a_new_one_for_each_result(monkeypatch, tmp_path):
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "distributed", cluster)
    monkeypatch.setattr(sweep_workers, "_TASKS_AHEAD", 2)
    monkeypatch.setattr(sweep_workers, "_MOST_LOSSES", 5)
    found = list(in_dask(double, ((number,) for number in range(100, 120)), "tcp://h:1"))
    assert found == list(range(200, 240, 2))
    assert cluster.most_ahead == 2 * 3
    assert cluster.asked == {"address": "tcp://h:1", "timeout": sweep_workers._CONNECT_S, "set_as_default": False}
    assert cluster.calls == 20 * [{"pure": False, "retries": 5}]
    file = tmp_path / "s.json"
    file.touch()
    with pytest.raises(RunFailed, match="a Dask worker was lost 5 times in the same task: memory"):
        list(in_dask(double, [(3,), (7,)], str(file)))
    assert cluster.asked["scheduler_file"] == str(file)
    cluster.num_threads = 0
    with pytest.raises(ConfigError, match="the Dask scheduler at a:1 has no workers"):
        list(in_dask(double, [(3,)], "a:1"))
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match="Dask's workers need distributed"):
        list(in_dask(double, [(3,)], "a:1"))


def test_ray_has_an_actor_per_cpu_with_some_tasks_ahead(monkeypatch):
    cluster = Cluster()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    monkeypatch.setattr(sweep_workers, "_TASKS_AHEAD", 2)
    monkeypatch.setattr(sweep_workers, "_MOST_LOSSES", 5)
    found = list(in_ray(double, ((number,) for number in range(100, 120)), "auto"))
    assert found == list(range(200, 240, 2))
    assert (cluster.most_ahead, cluster.calls) == (2 * 3, [0, 1, 2])
    assert cluster.asked == {
        "address": "auto", "log_to_driver": False, "logging_level": "ERROR", "num_cpus": 1, "max_restarts": 5,
        "max_task_retries": 5, "ended": True,
    }  # fmt: skip
    cluster.asked.clear()
    with pytest.raises(RunFailed, match="a Ray actor was lost 5 times: have they memory enough"):
        list(in_ray(double, [(3,), (7,)], "local"))
    assert cluster.asked["ended"]

    def refuse_all(**_):
        raise ConnectionError("nobody")

    monkeypatch.setattr(cluster, "init", refuse_all)
    with pytest.raises(ConfigError, match="no Ray cluster answers at auto: nobody"):
        list(in_ray(double, [(3,)], "auto"))


def test_an_address_with_a_port_is_tried_before_ray(monkeypatch):
    tried = []
    monkeypatch.setattr(
        sweep_workers.socket,
        "create_connection",
        lambda *where, timeout: tried.append((where, timeout)) or SimpleNamespace(close=int),
    )
    for address in ("auto", "local", "ray://head:6379", "head:1"):
        sweep_workers._require_answer(address)
    assert tried == [((("head", 6379),), sweep_workers._CONNECT_S), ((("head", 1),), sweep_workers._CONNECT_S)]
