"""Starting the ranks of a run as local processes, by torch's own elastic launcher."""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from ppsim.errors import ConfigError, MissingExtra, RunFailed
from ppsim.runtime.config import TrainConfig


def is_worker() -> bool:
    """Return whether torchrun started this process as a rank of a run."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def require_extra(what: str) -> None:
    """Raise `MissingExtra` where torch is not installed."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise MissingExtra(f"{what} needs torch, which is not installed: pip install 'ppsim[torch]'")


def launch(config: TrainConfig) -> dict[str, Any]:
    """Run one process a rank on this machine and return the run's result.

    Raises `RunFailed` with the error of the rank that failed first; all other ranks are stopped by then.
    """
    require_extra("ppsim train")
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="ppsim-train-") as folder:
        config_path, result_path = Path(folder) / "config.json", Path(folder) / "result.json"
        config_path.write_text(config.to_json())
        # Rank 0 reports its progress on stderr; what the others print goes to files that vanish with the run.
        redirects = {rank: Std.OUT if rank == 0 else Std.ALL for rank in range(config.num_ranks)}
        agent = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=config.num_ranks,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=str(Path(folder) / "logs"), redirects=redirects),
        )
        try:
            elastic_launch(agent, sys.executable)("-m", "ppsim.runtime.worker", str(config_path), str(result_path))
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            raise _failed(rank, failure) from None
        result: dict[str, Any] = json.loads(result_path.read_text())
        return result


def _failed(rank: int, failure: Any) -> Exception:
    """The error of a rank as its own process told it; a wrong table or option stays one."""
    message = failure.message
    if isinstance(message, dict):
        message = message.get("message", message)
    if isinstance(message, dict):
        message = message.get("message", str(message))
    text = str(message).strip()
    for name in ("ConfigError", "ScheduleError"):
        if text.startswith(f"{name}: "):
            return ConfigError(text.removeprefix(f"{name}: "))
    if failure.exitcode < 0:
        return RunFailed(f"rank {rank} was killed by signal {-failure.exitcode}; the other ranks were stopped")
    return RunFailed(f"rank {rank} failed: {text}; the other ranks were stopped")
