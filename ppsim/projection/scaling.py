"""Projections for several values of one option."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppsim.base.display import Printable
from ppsim.base.errors import PpsimError
from ppsim.projection import project as planning
from ppsim.projection.plan import Plan
from ppsim.projection.quantities import values

if TYPE_CHECKING:
    from ppsim.costs.job import Job

ERROR = "error"
LEAST_GROWTH = 1.6
"""Throughput of twice the GPUs over that of half of them, below which `Scaling.knee` names the larger number."""


_LEAST_SHARE = 0.001
"""Growth of a cause's share of the iteration, below which no cause grows."""


def row_of_plan(plan: Plan, tokens: float | None = None) -> dict[str, Any]:
    """Project a plan: numbers in the units of their names, the verdict, the stack, and seconds by cause."""
    projection = planning.project(plan)
    answer = projection.summarise(tokens=tokens, with_advice=False)
    low_s, high_s = answer.iteration_time_interval_s
    verdict = projection.verdict
    return {
        "iteration_time_s": projection.iteration_time_s,
        "iteration_time_low_s": low_s,
        "iteration_time_high_s": high_s,
        **values(projection, "sweep"),
        "verdict": verdict.word if verdict else "unknown",
        "headroom_bytes": verdict.headroom_bytes if verdict else None,
        "stack_name": plan.job.stack_name if plan.job else None,
        "stack_basis": plan.job.stack_basis or None if plan.job else None,
        "note": note_of(plan.job) if plan.job else None,
        **answer.cost.to_json(),
        **{f"{name}{_SECONDS}": part for name, part in answer.time_breakdown_s.items()},
    }


def note_of(job: "Job") -> str | None:
    """Return doubts about a job: an assumed number of GPUs, and experts that are gathered as all other weights."""
    number = job.layout.num_devices
    notes = [f"{number} GPU{'s' if number > 1 else ''} assumed"] if job.gpus_assumed else []
    notes += [GATHERED] if gathers_experts(job) else []
    return ", ".join(notes) or None


GATHERED = "experts gathered, not exchanged"


def gathers_experts(job: "Job") -> bool:
    return job.model.has_experts and job.layout.ep == 1 and job.optimizer.zero_stage == 3


_SECONDS = " (s)"
"""End of a column with a part of the iteration, named as `ppsim project` prints it: "GEMMs below peak (s)"."""


def shares_in(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the fractions of the iteration by cause of a row."""
    return {
        name.removesuffix(_SECONDS): part / row["iteration_time_s"]
        for name, part in row.items()
        if name.endswith(_SECONDS) and part is not None
    }


@dataclass(frozen=True, repr=False)
class Scaling(Printable):
    """A row for each value of an option, in the order of the values; impossible values have an `error`.

    `option` is its name in Python, which is also the key of its value in the rows.
    """

    option: str
    rows: list[dict[str, Any]]
    deadline_days: float | None = None

    @classmethod
    def of(cls, option: str, settings: Sequence[Any], row_of: Callable[[Any], dict[str, Any]]) -> "Scaling":
        """Raises the error of the rows if all values have the same, because then another option is wrong."""
        rows, errors = [], {}
        for setting in dict.fromkeys(settings):
            try:
                rows.append({option: setting, **row_of(setting)})
            except PpsimError as error:
                text = " ".join(str(error).split())
                rows.append({option: setting, ERROR: text})
                errors[text] = error
        if len(errors) == 1 and all(ERROR in row for row in rows):
            raise next(iter(errors.values()))
        return cls(option, rows)

    @property
    def possible(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if ERROR not in row]

    @property
    def in_time(self) -> dict[str, Any] | None:
        """The row with the fewest GPUs that fits and meets the deadline; None without one."""
        limit = self.deadline_days
        met = [row for row in self._fitting if limit is not None and row["training_days"] <= limit]
        return min(met, key=lambda row: row["num_gpus"], default=None)

    @property
    def soonest(self) -> dict[str, Any] | None:
        """The row that fits with the shortest training."""
        return min(self._fitting, key=lambda row: row["training_days"], default=None)

    @property
    def _fitting(self) -> list[dict[str, Any]]:
        return [row for row in self.possible if row["verdict"] != "does not fit"]

    @property
    def stacks(self) -> list[str]:
        """The stacks of the rows, with the reason for each; several have other settings, which change the times.

        Recipes that set the same are one stack.
        """
        pairs = [(row["stack_name"], row["stack_basis"]) for row in self.possible if row["stack_name"]]
        texts = [f"{name} ({basis})" if basis else name for name, basis in pairs]
        return list({_RECIPE.sub("", text): text for text in texts}.values())

    @property
    def _scaled(self) -> list[dict[str, Any]]:
        """The possible rows in the order of GPUs; none if they have several stacks."""
        return [] if len(self.stacks) > 1 else sorted(self.possible, key=lambda row: row["num_gpus"])

    @property
    def knee(self) -> dict[str, Any] | None:
        """Row of the first doubling of GPUs with less than 1.6 times the throughput, at the same batch.

        None if there is none, for other options, and if the rows have several stacks.
        """
        rows = {row["num_gpus"]: row for row in self._scaled if row["tokens_per_s"] is not None}
        doublings = ((rows[number // 2], row) for number, row in rows.items() if number / 2 in rows)
        growths = (
            (row, row["tokens_per_s"] / half["tokens_per_s"])
            for half, row in doublings
            if abs(_batch_of(half) / _batch_of(row) - 1) < _ROUNDING
        )
        return next((row for row, growth in growths if growth < LEAST_GROWTH), None)

    @property
    def growing_cause(self) -> tuple[str, float, float] | None:
        """The cause whose share of the iteration grows most, with its shares in the first and in the last row.

        Rows are in the order of GPUs, then as given. None if they have several stacks.
        """
        if len(rows := self._scaled) < 2:
            return None
        first = shares_in(rows[0])
        causes = ((name, first.get(name, 0.0), last) for name, last in shares_in(rows[-1]).items())
        cause = max(causes, key=lambda cause: cause[2] - cause[1])
        return cause if cause[2] - cause[1] >= _LEAST_SHARE else None

    def to_json(self) -> dict[str, Any]:
        names = {name: None for row in self.rows for name in row}
        cause, knee, met = self.growing_cause, self.knee, self.in_time
        deadline = {"deadline_days": self.deadline_days, "fewest_gpus": met["num_gpus"] if met else None}
        return {
            "option": self.option,
            "rows": [{name: row.get(name) for name in names} for row in self.rows],
            "knee_gpus": knee["num_gpus"] if knee else None,
            "growing_cause": cause[0] if cause else None,
            **(deadline if self.deadline_days else {}),
        }


_RECIPE = re.compile(r"\brecipe \S+")
_ROUNDING = 1e-6
"""Relative difference of two batches below which they are the same."""


def _batch_of(row: Mapping[str, Any]) -> float:
    """Return the tokens of a step."""
    return float(row["tokens_per_s"] * row["iteration_time_s"])
