"""Start of the ranks of a run as local processes, which communicate over loopback only."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError, MissingExtra, RunFailed
from ppsim.runtime.train_config import ONCE, TrainConfig, TurnLimits, turns_of, word_of

_BEAT_S = 0.05

_ERROR_S = 0.5
"""Seconds between a rank's error report and its use. If another rank died in this time, its end is the cause."""

_LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
"""The loopback interface, which no other machine reaches; by default gloo listens on the hostname's address."""


def is_worker() -> bool:
    """Return whether torchrun started this process as a rank of a run."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def require_extra(what: str) -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra.of("torch", f"{what} needs torch, which is not installed")


def require_device(device: str) -> None:
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("--device cuda: torch sees no CUDA device here (use --device cpu)")


def launch(config: TrainConfig) -> dict[str, Any]:
    """Run one configuration, and return its result.

    Raises `RunFailed` with the error of the rank that failed first; all other ranks are stopped by then.
    """
    return launch_all([config])[0]


def launch_all(
    configs: Sequence[TrainConfig],
    *,
    quiet: bool = False,
    turns: TurnLimits = ONCE,
    watch: Callable[[int], None] = lambda done: None,
) -> list[dict[str, Any]]:
    """Run configurations with equal numbers of ranks one after the other in the same processes.

    Returns one result per configuration and turn. Models continue from turn to turn; `watch` gets the number of
    finished turns. Raises `RunFailed` like `launch`. No rank outlives this process, however it ends.
    """
    require_extra("ppsim train")
    num_ranks = configs[0].num_ranks
    with _interruptions(), tempfile.TemporaryDirectory(prefix="ppsim-train-") as name:
        folder = Path(name)  # mode 0700: the ranks trust its content
        content = {"configs": [asdict(config) for config in configs], "turns": asdict(turns)}
        (folder / "configs.json").write_text(json.dumps(content))
        with _ranks(num_ranks, folder, quiet=quiet) as ranks:
            _wait_for_all(ranks, folder, watch)
        results: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())
        return results


@contextmanager
def _interruptions() -> Iterator[None]:
    """Raise `RunFailed` on SIGINT, SIGTERM or SIGHUP, unless ignored (nohup) or in another thread."""

    def interrupt(number: int, frame: Any) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # a second Ctrl-C must not disturb the stopping
        name = signal.Signals(number).name
        raise RunFailed(f"the run was interrupted by {name}; its ranks were stopped")

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        asking = [each for each in signal.Signals if each.name in ("SIGINT", "SIGTERM", "SIGHUP")]
        handlers = {each: signal.getsignal(each) for each in asking}
        before = {each: handler for each, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    for each in before:
        signal.signal(each, interrupt)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def _ranks(num_ranks: int, folder: Path, *, quiet: bool) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Run the ranks. The end of the block closes their standard input, which ends them; an error kills them."""
    ranks: list[subprocess.Popen[bytes]] = []
    read_end, write_end = os.pipe()
    try:
        with open(write_end, "wb"), open(read_end, "rb") as stdin:
            for rank in range(num_ranks):
                with open(_printed(folder, rank), "wb") as printed:
                    stderr = 2 if rank == 0 and not quiet else printed.fileno()  # rank 0 reports its progress
                    ranks.append(start_rank(folder, _environment(rank, num_ranks), stdin.fileno(), stderr))
            yield ranks
    except BaseException:
        for process in ranks:
            process.kill()
        raise
    finally:
        for process in ranks:
            process.wait()


def _environment(rank: int, num_ranks: int) -> dict[str, str]:
    interfaces = {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": f"={_LOOPBACK}"}
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks), **interfaces}


def start_rank(folder: Path, environment: Mapping[str, str], stdin: int, stderr: int) -> "subprocess.Popen[bytes]":
    """Start a rank that imports from the folders of this process; `stdin` and `stderr` are file descriptors."""
    run = f"from ppsim.runtime.launch import run_rank; run_rank({str(folder)!r})"
    code = f"import sys; sys.path[:] = {sys.path!r}; {run}"
    return subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        env={**os.environ, **environment},
        start_new_session=True,  # Ctrl-C is for the launcher
    )


def run_rank(folder: str) -> None:
    """Run a rank in this process, which ends as soon as its standard input is closed."""
    launcher = threading.Thread(target=_end_with_launcher, daemon=True)
    launcher.start()
    from ppsim.runtime.worker import main  # heavy import: torch

    main(Path(folder))
    launcher.join()


def _end_with_launcher() -> None:
    os.read(0, 1)
    os._exit(1)


def _wait_for_all(ranks: Sequence["subprocess.Popen[bytes]"], folder: Path, watch: Callable[[int], None]) -> None:
    """Wait until all ranks have reported; raise the error of the first rank that failed.

    No rank exits by itself: after its report, a rank leaves its connections open, so that it causes no error on
    other ranks.
    """
    words: dict[int, Any] = {}
    seen = 0
    while len(words) < len(ranks):
        paths = [word_of(folder, rank) for rank in range(len(ranks))]
        words = {rank: json.loads(path.read_text()) for rank, path in enumerate(paths) if path.exists()}
        if turns_of(folder).exists() and (done := int(turns_of(folder).read_text())) > seen:
            watch(seen := done)
        is_error = any(word is not None for word in words.values())
        time.sleep(_ERROR_S if is_error else _BEAT_S)  # first see whether another rank died
        for rank, process in enumerate(ranks):
            if (exit_code := process.poll()) is not None:
                raise _died(rank, exit_code, _printed(folder, rank))
        for rank, word in words.items():
            if word is not None:
                raise _failed(rank, **word)


def _printed(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.txt"


def _died(rank: int, exit_code: int, printed: Path) -> RunFailed:
    how = f"ended with exit code {exit_code}"
    if exit_code < 0:
        names = {each.value: each.name for each in signal.Signals}
        how = f"was killed by {names.get(-exit_code, f'signal {-exit_code}')}"
    error = RunFailed(f"rank {rank} {how}; the other ranks were stopped")
    error.add_note(f"Rank {rank} printed:\n{printed.read_text(errors='replace')}")
    return error


def _failed(rank: int, kind: str, message: str, callstack: str) -> Exception:
    """Return the error that a rank reported; a wrong table or option stays a `ConfigError`."""
    sentence = f"{kind}: {message.strip()}" if message else kind
    error: Exception = RunFailed(f"rank {rank} failed: {sentence}; the other ranks were stopped")
    if kind in ("ConfigError", "ScheduleError"):
        error = ConfigError(message)
    error.add_note(f"On rank {rank}:\n{callstack}")
    return error
