"""Which rows of a set a machine is fitted on: those that are marked, one run of each dtype, or those by number."""

from collections.abc import Sequence

from ppsim.base.errors import ConfigError, PpsimError
from ppsim.validation.cases import Case
from ppsim.validation.predict import PlanOf

MARKED, ONE = "fit", "one"


def chosen_rows(cases: Sequence[Case], which: str, plan_of: PlanOf) -> list[Case]:
    """Return the rows that are meant by "fit" (marked so), "one" or numbers as "1,3-5", from 1 on.

    "one" is of each cluster and dtype the run on the fewest devices, of those marked fit where there are any: what
    somebody has after one run. Raises `ConfigError` for what is none of these and for a row that there is not.
    """
    if which == MARKED:
        return [case for case in cases if case.told.use == "fit"]
    if which == ONE:
        return _smallest(cases, plan_of)
    numbers = _numbers(which)
    if beyond := sorted(numbers - {case.number for case in cases}):
        raise ConfigError(f"there is no row {beyond[0]}: rows are 1 to {len(cases)}")
    return [case for case in cases if case.number in numbers]


def _smallest(cases: Sequence[Case], plan_of: PlanOf) -> list[Case]:
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for index, case in enumerate(cases):
        try:
            job = None if case.told.unexpressed or case.is_memory else plan_of(case.words).job
        except PpsimError:
            continue
        if job is not None:
            found.setdefault((job.cluster.name, job.execution.dtype), []).append((job.layout.num_devices, index))
    chosen = []
    for ran in found.values():
        marked = [one for one in ran if cases[one[1]].told.use == "fit"]
        chosen.append(min(marked or ran)[1])
    return [cases[index] for index in sorted(chosen)]


def _numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise ConfigError(f"rows to fit on are {MARKED}, {ONE} or numbers as 1,3-5: got {text!r}")
        found |= set(range(int(first), int(last or first) + 1))
    return found
