"""Writer of tables for torch.distributed.pipelining (`_PipelineScheduleRuntime._load_csv`)."""

import re

from ppsim.base.errors import ConfigError
from ppsim.schedule.check import compute_for
from ppsim.schedule.grammar import format_table
from ppsim.schedule.graph import build_graph
from ppsim.schedule.lowering import lower
from ppsim.schedule.option_types import Receives
from ppsim.schedule.table import Schedule
from ppsim.schedule.waits import has_waits, with_waits, without_waits

COMMS_VERSIONS = {"2.10": False, "2.11": False, "2.12": False, "2.13": False, "2.14": False, "2.15": True}
"""Versions of torch with a known format of compute+comms tables, and whether the format has explicit waits."""

DEFAULT_VERSION = "2.13"


def torch_csv(
    schedule: Schedule,
    *,
    with_communication: bool = False,
    receives: Receives | None = None,
    torch_version: str | None = None,
) -> str:
    """Return the CSV text of a table, after a check that the table can run.

    By default compute-only (`format="compute_only"`, any torch from 2.9 on). `with_communication` adds the actions
    that `torch_version` adds when it loads a table (`format="compute_comms"`). A table with communication keeps it
    unless `receives` is given; an explicit version adds or drops its waits.

    Raises `ScheduleError` for model replicas and slices, `Deadlock` for a table that cannot finish, `ConfigError`
    for an unknown version.
    """
    waits = _spells_out_waits(torch_version or DEFAULT_VERSION)
    compute = compute_for("torch", schedule)
    build_graph(schedule)
    if not with_communication:
        return format_table(compute)
    if schedule.has_communication and receives is None:
        if torch_version is None or waits == has_waits(schedule):
            return format_table(schedule)
        return format_table(with_waits(schedule) if waits else without_waits(schedule))
    lowered = lower(compute, receives=receives or "torch", waits=waits)
    build_graph(lowered, channel="edge")
    return format_table(lowered)


def why_not_loaded(schedule: Schedule, torch_version: str) -> str | None:
    """Return None if this torch can load a table with communication.

    Up to 2.14, torch reads a WAIT as a W. From 2.15 on it refuses sends without a WAIT.
    """
    if not schedule.has_communication:
        return None
    try:
        waits = _spells_out_waits(torch_version)
    except ConfigError:
        return None
    if waits == has_waits(schedule):
        return None
    has = "has no waits, which torch 2.15 needs" if waits else "has waits, which torch reads from 2.15 on"
    return f"the table {has}: ppsim export --to torch-comms --torch-version {torch_version} writes it for this one"


def _spells_out_waits(version: str) -> bool:
    match = re.match(r"(\d+)\.(\d+)(?!\d)", version)
    short = f"{match[1]}.{match[2]}" if match else version
    if short not in COMMS_VERSIONS:
        versions = list(COMMS_VERSIONS)
        asked = (int(match[1]), int(match[2])) if match else (0, 0)
        is_newer = asked > tuple(map(int, versions[-1].split(".")))
        nearest = f" (nearest: {versions[-1] if is_newer else versions[0]})" if match else ""
        raise ConfigError(
            f"unknown compute+comms tables of torch {version}: ppsim has the tables of {versions[0]} to "
            f"{versions[-1]}{nearest}"
        )
    return COMMS_VERSIONS[short]
