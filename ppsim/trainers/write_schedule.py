"""Runtimes that a schedule table can be exported to, and the schedules that each one can run."""

from functools import cache

from ppsim.base.display import load_function
from ppsim.base.errors import PpsimError
from ppsim.catalog.build import CATALOG, build, every_schedule
from ppsim.catalog.entry import ScheduleEntry
from ppsim.schedule.table import Schedule
from ppsim.trainers import TRAINERS

RUNTIMES = {one.export: load_function(one.writer) for one in TRAINERS if one.writer}
"""Exporters by name in `ppsim export --to`; they raise for tables that they cannot express."""

_WITH_PIPELINE = tuple(
    trainer.export for trainer in TRAINERS if trainer.writer and (trainer.config or trainer.recording)
)
"""Trainers with a pipeline of their own; TransformerEngine is a library."""

_SMALL_PP, _SMALL_MICROBATCHES = 4, 8


def refusals(entry: ScheduleEntry) -> dict[str, str | None]:
    return {runtime: refusal(entry, runtime) for runtime in RUNTIMES}


def refusal(entry: ScheduleEntry, runtime: str) -> str | None:
    """Return None if the runtime can run this schedule, or else a sentence with the reason.

    The exporter is tried on a table with 4 ranks, 2 stages per rank if the schedule allows it, 8 microbatches (or
    the schedule's minimum if that is higher) and unit costs.
    """
    try:
        table = _small_table(entry)
    except PpsimError as error:
        return f"the small table to try it on cannot be built: {_sentence(error)}"
    try:
        RUNTIMES[runtime](table)
    except PpsimError as error:
        return _sentence(error)
    return None


@cache
def _small_table(entry: ScheduleEntry) -> Schedule:
    fewest = round(entry.least_microbatches(p=_SMALL_PP))
    least, most = entry.stages_per_rank
    vpp = max(least, min(2, most or 2))
    return build(entry, pp=_SMALL_PP, vpp=vpp, microbatches=max(_SMALL_MICROBATCHES, fewest))


def runtime_facts(entry: ScheduleEntry) -> list[tuple[str, str]]:
    reasons = refusals(entry)
    runs = [name for name, reason in reasons.items() if reason is None]
    return [
        ("runs on", ", ".join(runs) or "none of them"),
        *((f"not on {name}", reason) for name, reason in reasons.items() if reason is not None),
    ]


@cache
def is_run_by(trainer: str, schedule: str) -> bool:
    """Return whether a trainer, as in `ppsim export --to`, runs a schedule; False for "auto".

    >>> is_run_by("megatron", "interleaved-1f1b"), is_run_by("megatron", "zbv")
    (True, False)
    """
    entry = CATALOG.get(schedule) or every_schedule().get(schedule)
    return entry is not None and refusal(entry, trainer) is None


_BY_LAYER = {"@": ("torch", "primus"), "*": ("torch",)}
"""Trainers that recompute layers by number (`full@0,3`) and by runs (`full*2,none*3`), by the option's sign."""


def runs_in(schedule: str, recompute: str = "none") -> tuple[str, ...]:
    """Return the trainers that run a schedule with a recomputation, as in `ppsim export --to`.

    >>> runs_in("interleaved-1f1b"), runs_in("zbv"), runs_in("1f1b", "full@0-3")
    (('torch', 'megatron', 'primus'), ('torch', 'primus'), ('torch', 'primus'))
    """
    able = next((trainers for sign, trainers in _BY_LAYER.items() if sign in recompute), _WITH_PIPELINE)
    return tuple(trainer for trainer in able if is_run_by(trainer, schedule))


RUNS_IN = "runs in"
"""Header of the column of `trainers_text`."""


def trainers_text(schedule: str, recompute: str = "none") -> str:
    """Return the trainers of `runs_in` as a cell of a table.

    >>> trainers_text("1f1b"), trainers_text("zbv"), trainers_text("dualpipe")
    ('all', 'torch, primus', '–')
    """
    names = runs_in(schedule, recompute)
    return "all" if names == _WITH_PIPELINE else ", ".join(names) or "–"


def _sentence(error: PpsimError) -> str:
    return str(error).splitlines()[0]
