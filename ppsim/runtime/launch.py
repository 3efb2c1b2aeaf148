"""Starting the ranks of a run as local processes, by torch's own elastic launcher."""

import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ppsim.errors import ConfigError, MissingExtra, RunFailed
from ppsim.runtime.config import TrainConfig

_SHUTDOWN_S = 5
"""A rank that was asked to stop and has not by then is killed: it may be the one that hangs."""


def is_worker() -> bool:
    """Return whether torchrun started this process as a rank of a run."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def require_extra(what: str) -> None:
    """Raise `MissingExtra` where torch is not installed."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise MissingExtra(f"{what} needs torch, which is not installed: pip install 'ppsim[torch]'")


def require_device(device: str) -> None:
    """Raise `ConfigError` where the device asked for is not there."""
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("--device cuda: torch sees no CUDA device here (use --device cpu)")


def launch(config: TrainConfig) -> dict[str, Any]:
    """Run one process a rank on this machine and return the run's result.

    Raises `RunFailed` with the error of the rank that failed first; all other ranks are stopped by then.
    """
    return launch_all([config])[0]


def launch_all(configs: Sequence[TrainConfig]) -> list[dict[str, Any]]:
    """Run several configurations of as many ranks one after the other in the same processes; one result each.

    Raises `RunFailed` like `launch`; nothing is returned then.
    """
    require_extra("ppsim train")
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # What goes wrong is told once, by the error that is raised.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    num_ranks = configs[0].num_ranks
    with tempfile.TemporaryDirectory(prefix="ppsim-train-") as folder:
        configs_path, results_path = Path(folder) / "configs.json", Path(folder) / "results.json"
        configs_path.write_text(json.dumps([asdict(config) for config in configs]))
        # Rank 0 reports its progress on stderr; what the others print goes to files that vanish with the run.
        redirects = {rank: Std.OUT if rank == 0 else Std.ALL for rank in range(num_ranks)}
        agent = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=num_ranks,
            run_id=f"ppsim-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            monitor_interval=0.1,
            shutdown_timeout=_SHUTDOWN_S,
            logs_specs=DefaultLogsSpecs(log_dir=str(Path(folder) / "logs"), redirects=redirects),
        )
        try:
            elastic_launch(agent, sys.executable)(
                "-m", "ppsim.runtime.worker", str(configs_path), str(results_path)
            )
        except ChildFailedError as error:
            raise _failed(*_first_failure(error.failures)) from None
        except SignalException as error:
            name = signal.Signals(error.sigval).name
            raise RunFailed(f"the run was interrupted by {name}; its ranks were stopped") from None
        results: list[dict[str, Any]] = json.loads(results_path.read_text())
        return results


def _first_failure(failures: dict[int, Any]) -> tuple[int, Any]:
    """The rank that failed first and how: the launcher stops all others by SIGTERM in the same second."""
    own = {rank: failure for rank, failure in failures.items() if failure.exitcode != -signal.SIGTERM} or failures
    return min(own.items(), key=lambda item: (item[1].timestamp, item[0]))


def _failed(rank: int, failure: Any) -> Exception:
    """The error of a rank as its own process told it; a wrong table or option stays one."""
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        return RunFailed(f"rank {rank} was killed by {name}; the other ranks were stopped")
    # The error file of torch's `record`: {"message": {"message": …, "extraInfo": {"py_callstack": …}}}
    told = failure.message["message"] if isinstance(failure.message, dict) else failure.message
    text, callstack = told, ""
    if isinstance(told, dict):
        text, callstack = told["message"], told.get("extraInfo", {}).get("py_callstack", "")
    text = str(text).strip()
    error: Exception = RunFailed(f"rank {rank} failed: {text}; the other ranks were stopped")
    for name in ("ConfigError", "ScheduleError"):
        if text.startswith(f"{name}: "):
            error = ConfigError(text.removeprefix(f"{name}: "))
    error.add_note(f"On rank {rank}:\n{callstack}")
    return error
