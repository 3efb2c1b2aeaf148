"""Selection of a set's rows for fitting."""

from collections.abc import Sequence

from ppsim.base.errors import ConfigError, PpsimError
from ppsim.validation.project_case import PlanOf
from ppsim.validation.published_runs import PublishedRun

MARKED, ONE, ONE_A_MODEL = "fit", "one", "one-a-model"

SPARING = (MARKED, ONE, ONE_A_MODEL)
"""Selections with which rows marked fit are never test rows."""


def calibration_rows(cases: Sequence[PublishedRun], selection: str, plan_of: PlanOf) -> list[PublishedRun]:
    """Rows are selected by "fit", "one", "one-a-model" or row numbers such as "1,3-5" (from 1).

    "fit" selects marked rows. "one" selects, for each cluster and dtype, the run with the fewest GPUs (among rows
    marked fit, if any). "one-a-model" selects one for each model too. Raises `ConfigError` for other values.
    """
    if selection == MARKED:
        return [case for case in cases if case.properties.use == "fit"]
    if selection in (ONE, ONE_A_MODEL):
        return _smallest(cases, plan_of, of_each_model=selection == ONE_A_MODEL)
    numbers = _numbers(selection)
    if beyond := sorted(numbers - {case.number for case in cases}):
        raise ConfigError(f"there is no row {beyond[0]}: rows are 1 to {len(cases)}")
    return [case for case in cases if case.number in numbers]


def _smallest(cases: Sequence[PublishedRun], plan_of: PlanOf, *, of_each_model: bool) -> list[PublishedRun]:
    found: dict[tuple[str, str, str], list[tuple[int, int]]] = {}
    for index, case in enumerate(cases):
        try:
            job = None if case.properties.unexpressed or case.is_memory else plan_of(case.options).job
        except PpsimError:
            continue
        if job is not None:
            kind = job.cluster.name, job.execution.dtype, job.job_features.model if of_each_model else ""
            found.setdefault(kind, []).append((job.layout.num_devices, index))
    chosen = []
    for ran in found.values():
        marked = [one for one in ran if cases[one[1]].properties.use == "fit"]
        chosen.append(min(marked or ran)[1])
    return [cases[index] for index in sorted(chosen)]


def _numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise ConfigError(f"rows to fit on are {', '.join(SPARING)} or numbers as 1,3-5: got {text!r}")
        found |= set(range(int(first), int(last or first) + 1))
    return found
