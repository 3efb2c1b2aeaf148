"""Workers of a sweep on other machines: a Dask or a Ray cluster."""

import socket
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError, MissingExtra, RunFailed
from ppsim.base.parallel import Task

_CONNECT_S = 10
_TASKS_AHEAD = 2
"""Tasks that each worker has, so that it does not wait for the next."""

_MOST_LOSSES = 4
"""Times that a task may lose its worker."""


def in_dask(function: Callable[..., Any], tasks: Iterable[Task], address: str) -> Iterator[Any]:
    """Yield what the calls return as they end, on the workers of a Dask scheduler or of its file.

    Raises the function's exceptions, `ConfigError` if no scheduler answers, `MissingExtra` without distributed, and
    `RunFailed` if a task loses its worker repeatedly.
    """
    try:
        import distributed
    except ImportError:
        raise MissingExtra.of("dask", "Dask's workers need distributed") from None
    is_file = address.endswith(".json")
    if is_file and not Path(address).exists():
        raise ConfigError(f"there is no scheduler file {address}: dask scheduler --scheduler-file writes one")
    where = {"scheduler_file" if is_file else "address": address}
    try:
        client = distributed.Client(**where, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"no Dask scheduler answers at {address}: {error}") from None
    with client:
        num_threads = sum(client.nthreads().values())
        if not num_threads:
            raise ConfigError(f"the Dask scheduler at {address} has no workers: start them with `dask worker`")
        remaining = iter(tasks)

        def submit(task: Task) -> Any:
            return client.submit(function, *task, pure=False, retries=_MOST_LOSSES)

        started = map(submit, islice(remaining, _TASKS_AHEAD * num_threads))
        running = distributed.as_completed(started, loop=client.loop)
        try:
            for future in running:
                yield future.result()
                running.update(map(submit, islice(remaining, 1)))
        except distributed.scheduler.KilledWorker as error:
            raise RunFailed(f"a Dask worker was lost {_MOST_LOSSES} times in the same task: {error}") from error


def in_ray(function: Callable[..., Any], tasks: Iterable[Task], address: str) -> Iterator[Any]:
    """Yield what the calls return as they end, on one actor per CPU of a Ray cluster.

    `address` is HOST:PORT, `auto` (the cluster of this machine) or `local` (a new one). Raises the function's
    exceptions, `ConfigError` if no cluster answers, `MissingExtra` without ray, and `RunFailed` if actors are lost
    repeatedly.
    """
    try:
        import ray
    except ImportError:
        raise MissingExtra.of("ray", "Ray's workers need ray") from None
    _require_answer(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"no Ray cluster answers at {address}: {error}") from None
    try:
        actor_class = ray.remote(num_cpus=1, max_restarts=_MOST_LOSSES, max_task_retries=_MOST_LOSSES)(_Actor)
        actors = [actor_class.remote(function) for _ in range(int(ray.cluster_resources()["CPU"]))]
        remaining = iter(tasks)
        running = {actor.call.remote(*task): actor for actor in actors for task in islice(remaining, _TASKS_AHEAD)}
        while running:
            [ended], _ = ray.wait(list(running))
            actor = running.pop(ended)
            yield ray.get(ended)
            running |= {actor.call.remote(*task): actor for task in islice(remaining, 1)}
    except ray.exceptions.RayActorError as error:
        raise RunFailed(f"a Ray actor was lost {_MOST_LOSSES} times: have they memory enough? ({error})") from error
    finally:
        ray.shutdown()


class _Actor:
    """Keeps caches and compiled kernels between tasks."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def call(self, *task: Any) -> Any:
        return self._function(*task)


def _require_answer(address: str) -> None:
    """Ray retries for minutes if nothing listens at the address."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"no Ray cluster answers at {address}: {error}") from None
