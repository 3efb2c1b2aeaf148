"""Registry of all schedules, and functions that build them by name."""

import re
from collections.abc import Iterable
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.base.errors import ConfigError, require_kind
from ppsim.base.limits import require_memory
from ppsim.base.lru_cache import LRUCache
from ppsim.base.name_lookup import NameLookup, plain
from ppsim.catalog.entries import ENTRIES
from ppsim.catalog.entry import Formula, ScheduleEntry
from ppsim.catalog.search_cache import cached_result
from ppsim.schedule.table import Schedule
from ppsim.simulation.bounds.problem import Criterion
from ppsim.simulation.stage_costs import StageCosts

if TYPE_CHECKING:
    from ppsim.catalog.search.best_table import TableEvaluator

__all__ = [
    "CATALOG",
    "PLUGINS",
    "Formula",
    "ScheduleEntry",
    "build",
    "every_schedule",
    "find",
    "optimise_entry",
    "schedule_named",
]

CATALOG: dict[str, ScheduleEntry] = {entry.name: entry for entry in ENTRIES}

PLUGINS = "ppsim.schedules"
"""Entry-point group in which other packages register a `ScheduleEntry`, or a function that returns one."""


TABLES: LRUCache[Schedule] = LRUCache(4_000_000)
"""Cache of tables that do not depend on costs: up to 4 million actions at 13 bytes each."""

_TIE = 1e-12
"""Relative tolerance for ties: step times of equal tables differ by this through the order of additions."""


def _plain(name: str) -> str:
    """Remove the "Schedule" prefix of torch's class names."""
    return plain(re.sub(r"^schedule(?=\w)", "", name.strip(), flags=re.IGNORECASE))


def _names_of(entries: Iterable[ScheduleEntry]) -> NameLookup:
    entries = list(entries)
    also = {word: entry.name for entry in entries for word in entry.also}
    return NameLookup("schedule", [entry.name for entry in entries], also=also, plain_of=_plain)


_NAMES = _names_of(ENTRIES)


def schedule_named(name: str) -> str:
    """Return the catalogue's name for a schedule's name, and other text unchanged.

    >>> [schedule_named(name) for name in ("1F1B", "zb_h1", "ScheduleZBVZeroBubble", "auto")]
    ['1f1b', 'zb-h1', 'zbv-fixed', 'auto']
    """
    return _NAMES.find(name) or name


def every_schedule() -> dict[str, ScheduleEntry]:
    """Return the catalogue, followed by the schedules that installed packages register.

    Raises `ConfigError` for an entry point that cannot be loaded or whose name is in use.
    """
    from importlib.metadata import entry_points  # slow: reads a file of each package

    entries = dict(CATALOG)
    for point in entry_points(group=PLUGINS):
        try:
            loaded = point.load()
            entry = loaded if isinstance(loaded, ScheduleEntry) else loaded()
        except Exception as error:
            raise ConfigError(f"cannot load schedule '{point.name}' from {point.value}: {error}") from error
        if not isinstance(entry, ScheduleEntry):
            raise ConfigError(f"schedule '{point.name}' from {point.value} is no ppsim.catalog.build.ScheduleEntry")
        if entry.name in entries:
            raise ConfigError(f"schedule '{entry.name}' from {point.value} takes a name that is taken already")
        entries[entry.name] = entry
    return entries


def find(name: str) -> ScheduleEntry:
    """Raises `ConfigError` with close matches."""
    if (full_name := schedule_named(name)) in CATALOG:
        return CATALOG[full_name]
    everything = every_schedule()
    names = _names_of(everything.values())
    if (registered := names.find(name)) is None:
        if name.endswith((".csv", ".json")):
            raise ConfigError(
                f"'{name}' is a file, no schedule's name: `ppsim simulate {name} --costs C.json` takes it"
            )
        raise ConfigError(names.unknown(name))
    return everything[registered]


def build(
    name: str | ScheduleEntry,
    *,
    pp: int,
    microbatches: int,
    vpp: int | None = None,
    group_size: int | None = None,
    num_slices: int | None = None,
    costs: StageCosts | None = None,
    memory_limit_bytes: float | None = None,
) -> Schedule:
    """Return the table of a schedule, by name or `ScheduleEntry`, for `pp` ranks and `microbatches` microbatches.

    `vpp` is the number of stages per rank (None: the smallest that the schedule allows). `group_size` is for
    interleaved-1f1b and combined-1f1b, `num_slices` for schedules that slice microbatches (None: their defaults).
    `costs`, network included, are for schedules that are optimised for costs (None: F, I and W take one unit each);
    the search may be longer here than in a projection. `memory_limit_bytes` (per rank, static bytes included) is
    for schedules that use a memory limit. Tables that do not depend on costs are cached and shared.

    Raises `ConfigError` with the invalid value and the nearest valid one.

    >>> table = build("1f1b", pp=2, microbatches=2)
    >>> [str(action) for action in table]
    ['0F0', '0F1', '0B0', '0B1', '1F0', '1B0', '1F1', '1B1']
    """
    entry = find(name) if isinstance(name, str) else name
    require_kind("a schedule", entry, ScheduleEntry, "a name or a ScheduleEntry")
    shape: dict[str, Any] = {
        "pp": pp, "microbatches": microbatches, "vpp": vpp, "group_size": group_size, "num_slices": num_slices,
    }  # fmt: skip
    for word, value in shape.items():
        if value is not None:
            require_kind(word, value, Integral, "a whole number")
    if costs is None:
        shape["memory_limit_bytes"] = memory_limit_bytes
        if CATALOG.get(entry.name) is not entry:
            return _made(entry, **shape)
        most = 3 * max(pp, 1) * (vpp or 2) * max(microbatches, 1) * (num_slices or entry.num_slices)
        return TABLES.get((entry.name, *shape.values()), size=most, make=lambda: _made(entry, **shape))
    require_kind("costs", costs, StageCosts, "a ppsim.StageCosts")
    return optimise_entry(entry, **shape, costs=costs, memory_limit_bytes=memory_limit_bytes, is_thorough=True)[0]


def optimise_entry(
    entry: ScheduleEntry,
    *,
    costs: StageCosts,
    memory_limit_bytes: float | None = None,
    criterion: Criterion = "step",
    is_thorough: bool = False,
    **shape: Any,
) -> tuple[Schedule, str]:
    """Return the fastest table for the given costs, and a sentence that names its origin.

    The candidates are the table optimised for an ideal network and the published patterns within the memory limit;
    `criterion` compares them on the network in `costs`.
    """
    from ppsim.catalog.search.best_table import TableEvaluator  # deferred: loads the search kernels

    evaluator = TableEvaluator(costs, criterion)
    differ = costs.differ_by_microbatch
    network = costs.communication, costs.channel, costs.overlap_slowdown
    is_ideal = network == ("overlap", "ideal", 0.0) and not differ
    mean = ", their mean microbatch and the largest one's bytes; the step is at each one's own" if differ else ""
    ours = _answered(
        entry, **shape, costs=costs, memory_limit_bytes=memory_limit_bytes,
        evaluator=criterion if is_ideal else evaluator, is_thorough=is_thorough,
    )  # fmt: skip
    patterns = [build(other, **shape) for other in entry.published]
    times = {table.name: evaluator(table, memory_limit_bytes) for table in patterns}
    best = min(patterns, key=lambda table: times[table.name], default=ours)
    ours_s, best_s = evaluator(ours), times.get(best.name, np.inf)
    if best_s < ours_s * (1 - _TIE):
        suited = "these microbatches" if differ else "these channels"
        return best.named(entry.name), f"schedule: that of {best.name}, which {suited} suit better"
    gain = f", {100 * (1 - ours_s / best_s):.2f} % below {best.name}" if ours_s < best_s < np.inf else ""
    return ours, f"schedule: fitted to the costs of every stage{mean}{gain}"


def _answered(entry: ScheduleEntry, **options: Any) -> Schedule:
    make = partial(_made, entry, **options)
    return (
        cached_result((entry.name, sorted(options.items())), make) if CATALOG.get(entry.name) is entry else make()
    )


def _made(
    entry: ScheduleEntry,
    *,
    pp: int,
    microbatches: int,
    vpp: int | None = None,
    evaluator: "TableEvaluator | Criterion" = "step",
    is_thorough: bool = False,
    **others: Any,
) -> Schedule:
    options: dict[str, Any] = dict.fromkeys(_REFUSALS) | others
    num_slices, costs = options["num_slices"], options["costs"]
    require_shape(pp=pp, microbatches=microbatches)
    if vpp is None:
        vpp = entry.stages_per_rank[0]
    if reason := entry.why_not(pp=pp, vpp=vpp, microbatches=microbatches):
        raise ConfigError(reason)
    if num_slices is not None and num_slices < 1:
        raise ConfigError(f"slices must be at least 1: got {num_slices}")
    require_memory((num_slices or entry.num_slices) * entry.num_actions(pp=pp, vpp=vpp, microbatches=microbatches))
    for option, refusal in _REFUSALS.items():
        if options[option] is not None and not entry.takes(option) and (option, num_slices) != ("num_slices", 1):
            takers = " or ".join(name for name, other in CATALOG.items() if other.takes(option))
            raise ConfigError(refusal.format(name=entry.name, takers=takers))
    if costs is not None:
        if entry.splits_backward:
            costs.require_parts(f"the I and W of {entry.name}")
        options["costs"] = costs.resolved(num_stages=pp * vpp, num_ranks=pp)
    options |= {
        "vpp": vpp, "num_slices": num_slices or entry.num_slices, "evaluator": evaluator,
        "is_thorough": is_thorough,
    }  # fmt: skip
    taken = {option: value for option, value in options.items() if entry.takes(option)}
    return entry.build(num_ranks=pp, num_microbatches=microbatches, **taken)


def require_shape(*, pp: int, microbatches: int) -> None:
    if pp < 1:
        raise ConfigError(f"pp must be at least 1: got {pp}")
    if microbatches < 1:
        raise ConfigError(f"microbatches must be at least 1: got {microbatches}")


_REFUSALS = {
    "group_size": "group size is for {takers}; {name} has none",
    "num_slices": "{name} runs whole microbatches; slices are for {takers}",
    "costs": "{name} is the same at any costs; costs are for {takers}",
    "memory_limit_bytes": "{name} is the same at any memory limit; a limit is for {takers}",
}
