"""What a run in partitions refuses before anything starts. Imports no torch."""

import os

from ppsim.base.errors import ConfigError
from ppsim.schedule.dependencies import transfers_of
from ppsim.schedule.table import Schedule
from ppsim.simulation.stage_costs import StageCosts

_NUM_QUEUES = 32
"""Of a GPU: streams that share one wait for each other."""


def check_partitions(table: Schedule, source: str, num_partitions: int, device: str) -> None:
    """Raise `ConfigError` where the ranks of a table from `source` cannot be these partitions of one device."""
    if num_partitions != table.num_ranks:
        raise ConfigError(f"{source} has {table.num_ranks} ranks: got --partitions {num_partitions}")
    if table.has_communication:
        raise ConfigError(
            f"{source} spells out its sends and receives, which partitions of one device do not execute: give the "
            f"compute-only table (ppsim export --to torch writes it)"
        )
    check_streams(table, device)
    queue_streams_apart()


def check_streams(table: Schedule, device: str) -> None:
    """Raise `ConfigError` where a GPU has too few hardware queues for the streams of a table.

    A rank has one, and so has every directed pair of ranks for its transfers: 16 and 30 of 1F1B over 16 ranks.
    """
    source, target = transfers_of(table)
    num_edges = len(set(zip(table.rank[source].tolist(), table.rank[target].tolist(), strict=True)))
    if device == "cuda" and table.num_ranks + num_edges > _NUM_QUEUES:
        raise ConfigError(
            f"--partitions {table.num_ranks}: {table.num_ranks} ranks and {num_edges} directed pairs of them that "
            f"transfer need {table.num_ranks + num_edges} streams, which would wait for each other in the "
            f"{_NUM_QUEUES} hardware queues of a GPU (8 ranks fit)"
        )


def queue_streams_apart() -> None:
    """Ask CUDA's driver, before it starts, for as many queues as there are: streams that share one wait in it."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def check_emulated(costs: StageCosts) -> None:
    """Raise `ConfigError` where waiting on one device cannot stand for these costs."""
    if costs.channel != "ideal":
        raise ConfigError(
            f"channel {costs.channel} cannot be emulated in partitions: on one device a copy waits for its content "
            f"only (ideal)"
        )
