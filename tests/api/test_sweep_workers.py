"""Workers of a cluster: each result once, nothing lost with a worker, and sentences for addresses without one."""

import os
import signal

import pytest

from ppsim.api import sweep_workers
from ppsim.api.sweep_workers import in_dask, in_ray
from ppsim.base.errors import ConfigError, MissingExtra


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
