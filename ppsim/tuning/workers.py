"""Workers of a search: this process, processes on this machine, or a Dask or Ray cluster.

Calls of a lost worker are repeated, and results are in the order of the calls.
"""

import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ppsim.base.errors import ConfigError, MissingExtra, RunFailed
from ppsim.base.process_startup import reduce_startup
from ppsim.base.version import __version__

HERE = "processes:1"
"""This process alone."""

_MOST_LOSSES = 4
"""Consecutive losses of workers without a finished call, after which the search fails."""

_CONNECT_S = 10


class Workers(Protocol):
    """Runs calls in this process or elsewhere."""

    def run(self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Raises the function's exceptions, and `RunFailed` if workers are lost repeatedly."""


@contextmanager
def workers(where: str) -> Iterator[Workers]:
    """Start workers for a `with` block.

    `where` is `processes:N` (−1: one per core), `dask:` with the address of a scheduler or its file, or `ray:` with
    an address or `auto`. Raises `ConfigError` for other values and if no cluster answers, `MissingExtra` if the
    package is not installed.

    >>> with workers("processes:1") as here:
    ...     here.run(divmod, [(7, 2), (9, 4)])
    [(3, 1), (2, 1)]
    """
    kind, _, address = where.partition(":")
    if where == HERE:
        yield _Here()
    elif kind in _POOLS and address:
        pool = _POOLS[kind](address)
        try:
            yield pool
        finally:
            pool.stop()
    else:
        raise ConfigError(
            f"workers are processes:N, dask:tcp://HOST:PORT or ray:auto: got '{where}' (nearest: processes:2)"
        )


class _Here:
    def run(self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [function(*call) for call in calls]


class _Pool:
    """Workers that may be lost; calls then raise one of the exceptions `lost`."""

    lost: tuple[type[BaseException], ...] = ()

    def submit(self, *call: Any) -> "Future[Any]":
        raise NotImplementedError

    def renew(self) -> None:
        """Clusters replace workers themselves."""

    def stop(self) -> None:
        raise NotImplementedError

    def run(self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
        done: dict[int, Any] = {}
        num_losses = 0
        while len(done) < len(calls):
            before = len(done)
            futures: dict[Future[Any], int] = {}
            try:
                for number, call in enumerate(calls):
                    if number not in done:
                        futures[self.submit(_run_there, __version__, function, call)] = number
                for future in as_completed(futures):
                    done[futures[future]] = future.result()
            except self.lost as error:
                done |= {number: one.result() for one, number in futures.items() if _is_good(one)}
                num_losses = 1 if len(done) > before else num_losses + 1
                if num_losses == _MOST_LOSSES:
                    raise RunFailed(
                        f"workers were lost {_MOST_LOSSES} times before any of {len(calls) - len(done)} groups of "
                        f"configurations was done ({type(error).__name__}: {error}): have they memory enough?"
                    ) from error
                self.renew()
        return [done[number] for number in range(len(calls))]


def _is_good(future: "Future[Any]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _run_there(version: str, function: Callable[..., Any], call: tuple[Any, ...]) -> Any:
    if version != __version__:
        raise ConfigError(f"a worker has ppsim {__version__}, and this is {version}: install the same on both")
    return function(*call)


class _Processes(_Pool):
    lost = (BrokenProcessPool,)

    def __init__(self, number: str) -> None:
        try:
            self._number = int(number)
        except ValueError:
            self._number = 0
        if self._number < 1 and self._number != -1:
            raise ConfigError(
                f"processes are a number, or -1 for one a core: got '{number}' (nearest: processes:2)"
            )
        try:
            from joblib import cpu_count
        except ImportError:
            raise MissingExtra.of("tune", "several processes need joblib", otherwise="give --jobs 1") from None
        if self._number == -1:
            self._number = cpu_count()
        self.renew()

    def renew(self) -> None:
        # loky starts fresh processes, which do not import the user's script and end with this process.
        from joblib.externals.loky import ProcessPoolExecutor

        self._executor: Executor = ProcessPoolExecutor(max_workers=self._number, initializer=reduce_startup)

    def submit(self, *call: Any) -> "Future[Any]":
        return self._executor.submit(*call)

    def stop(self) -> None:
        self._executor.shutdown(wait=True, kill_workers=True)  # type: ignore[call-arg]


class _Dask(_Pool):
    """Dask moves a lost worker's calls to others, and raises `KilledWorker` after several losses."""

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ImportError:
            raise MissingExtra.of("dask", "Dask's workers need distributed") from None
        is_file = address.endswith(".json")
        if is_file and not Path(address).exists():
            raise ConfigError(f"there is no scheduler file {address}: dask scheduler --scheduler-file writes one")
        where = {"scheduler_file" if is_file else "address": address}
        self.lost = (distributed.scheduler.KilledWorker,)
        try:
            self._client = distributed.Client(**where, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ConfigError(f"no Dask scheduler answers at {address}: {error}") from None
        self._executor = self._client.get_executor(pure=False)

    def submit(self, *call: Any) -> "Future[Any]":
        future: Future[Any] = self._executor.submit(*call)
        return future

    def stop(self) -> None:
        self._executor.shutdown(wait=False)  # cancels calls that have not started
        self._client.close()


class _Ray(_Pool):
    """Ray moves a lost worker's calls to others, and raises an exception after several losses."""

    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtra.of("ray", "Ray's workers need ray") from None
        self._ray = ray
        self.lost = (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError)
        self._is_ours = not ray.is_initialized()  # else the caller's connection stays open
        if self._is_ours:
            _require_answer(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise ConfigError(f"no Ray cluster answers at {address}: {error}") from None
        self._run_there = ray.remote(_run_there).options(max_retries=_MOST_LOSSES)
        self._given: list[Any] = []

    def submit(self, *call: Any) -> "Future[Any]":
        self._given.append(self._run_there.remote(*call[1:]))
        future: Future[Any] = self._given[-1].future()
        return future

    def stop(self) -> None:
        for one in self._given:
            self._ray.cancel(one)
        if self._is_ours:
            self._ray.shutdown()


def _require_answer(address: str) -> None:
    """Ray retries for minutes if nothing listens at the address."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"no Ray cluster answers at {address}: {error}") from None


_POOLS: dict[str, type[Any]] = {"processes": _Processes, "dask": _Dask, "ray": _Ray}
