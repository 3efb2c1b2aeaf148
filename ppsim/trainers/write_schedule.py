"""The runtimes a table can be exported to, and which schedules each of them can express.

That is asked of the exporters themselves, on a small table: what one of them learns to write or to refuse shows up
here, in `ppsim schedules NAME` and in docs/schedules.md by itself.
"""

from collections.abc import Iterable

from ppsim.base.errors import PpsimError
from ppsim.base.shown import loaded
from ppsim.catalog.build import build, every_schedule
from ppsim.catalog.entry import Entry
from ppsim.trainers import TRAINERS

RUNTIMES = {one.export: loaded(one.writer) for one in TRAINERS if one.writer}
"""What each runtime reads of a table, by its name in `ppsim export --to`; raises where it cannot express it."""

_SMALL_PP, _SMALL_MICROBATCHES = 4, 8


def refusals(entry: Entry) -> dict[str, str | None]:
    """Return for each runtime None where it can run this schedule, or the sentence that says why not.

    Tried on a table of 4 ranks, two stages per rank if the schedule takes them, and 8 microbatches, or the fewest
    above that the schedule takes, at unit costs.
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


def runtime_facts(entry: Entry) -> list[tuple[str, str]]:
    """Return names and texts as `Entry.facts` does: the runtimes that run it, and why the others do not."""
    reasons = refusals(entry)
    runs = [name for name, reason in reasons.items() if reason is None]
    return [
        ("runs on", ", ".join(runs) or "none of them"),
        *((f"not on {name}", reason) for name, reason in reasons.items() if reason is not None),
    ]


def not_run_by(runtime: str, names: Iterable[str]) -> str:
    """Say which of these schedules a runtime cannot run, and which runtimes do; empty where it runs all.

    A runtime that is none of `RUNTIMES` refuses nothing; of a name that is no schedule's nothing is known.

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
