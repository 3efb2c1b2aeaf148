"""Runtimes that a schedule table can be exported to, and the schedules that each one can run."""

from collections.abc import Iterable

from ppsim.base.display import load_function
from ppsim.base.errors import PpsimError
from ppsim.catalog.build import build, every_schedule
from ppsim.catalog.entry import ScheduleEntry
from ppsim.trainers import TRAINERS

RUNTIMES = {one.export: load_function(one.writer) for one in TRAINERS if one.writer}
"""Exporters by name in `ppsim export --to`; they raise for tables that they cannot express."""

_SMALL_PP, _SMALL_MICROBATCHES = 4, 8


def refusals(entry: ScheduleEntry) -> dict[str, str | None]:
    """Return None for each runtime that can run this schedule, or else a sentence with the reason.

    The exporters are tried on a table with 4 ranks, 2 stages per rank if the schedule allows it, 8 microbatches (or
    the schedule's minimum if that is higher) and unit costs.
    """
    fewest = round(entry.least_microbatches(p=_SMALL_PP))
    least, most = entry.stages_per_rank
    vpp = max(least, min(2, most or 2))
    reasons: dict[str, str | None] = {}
    try:
        table = build(entry, pp=_SMALL_PP, vpp=vpp, microbatches=max(_SMALL_MICROBATCHES, fewest))
    except PpsimError as error:
        return dict.fromkeys(RUNTIMES, f"the small table to try it on cannot be built: {_sentence(error)}")
    for name, export in RUNTIMES.items():
        try:
            export(table)
            reasons[name] = None
        except PpsimError as error:
            reasons[name] = _sentence(error)
    return reasons


def runtime_facts(entry: ScheduleEntry) -> list[tuple[str, str]]:
    reasons = refusals(entry)
    runs = [name for name, reason in reasons.items() if reason is None]
    return [
        ("runs on", ", ".join(runs) or "none of them"),
        *((f"not on {name}", reason) for name, reason in reasons.items() if reason is not None),
    ]


def not_run_by(runtime: str, names: Iterable[str]) -> str:
    """Name the runtimes that can run the refused schedules; "" if the runtime runs all of them.

    >>> not_run_by("megatron", ["1f1b", "zb-h1"])
    'zb-h1: run by torch, primus'
    """
    schedules, elsewhere = every_schedule(), dict[str, list[str]]()
    for name in dict.fromkeys(names):
        reasons = refusals(schedules[name]) if name in schedules else {}
        if reasons.get(runtime):
            runs = ", ".join(other for other, reason in reasons.items() if reason is None)
            elsewhere.setdefault(f"run by {runs}" if runs else "run by none of them", []).append(name)
    return "; ".join(f"{', '.join(refused)}: {others}" for others, refused in elsewhere.items())


def _sentence(error: PpsimError) -> str:
    return str(error).splitlines()[0]
