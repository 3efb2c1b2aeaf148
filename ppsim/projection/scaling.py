"""Projections for several values of one option."""

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


def causes_in(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds by cause of a row."""
    return {
        name.removesuffix(_SECONDS): part
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
        for setting in settings:
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
        if self.deadline_days is None:
            return None
        return min(
            (row for row in self._fitting if row["training_days"] <= self.deadline_days),
            key=lambda row: row["num_gpus"], default=None,
        )  # fmt: skip

    @property
    def soonest(self) -> dict[str, Any] | None:
        """The row that fits with the shortest training."""
        return min(self._fitting, key=lambda row: row["training_days"], default=None)

    @property
    def _fitting(self) -> list[dict[str, Any]]:
        return [row for row in self.possible if row["verdict"] != "does not fit"]

    @property
    def stacks(self) -> list[str]:
        """The stacks of the rows, with the reason for each; several have other settings, which change the times."""
        pairs = dict.fromkeys((row["stack_name"], row["stack_basis"]) for row in self.possible if row["stack_name"])
        return [f"{name} ({basis})" if basis else name for name, basis in pairs]

    @property
    def knee(self) -> dict[str, Any] | None:
        """Row of the first doubling of GPUs with less than 1.6 times the throughput, at the same batch.

        None if there is none, for other options, and if the rows have several stacks.
        """
        if len(self.stacks) > 1:
            return None
        rows = {row["num_gpus"]: row for row in self.possible if row["tokens_per_s"] is not None}
        for number in sorted(rows):
            half = rows.get(number // 2) if number % 2 == 0 else None
            if half is None or not self._has_same_batch(half, rows[number]):
                continue
            if rows[number]["tokens_per_s"] < LEAST_GROWTH * half["tokens_per_s"]:
                return rows[number]
        return None

    def _has_same_batch(self, row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        batch, other_batch = (each["tokens_per_s"] * each["iteration_time_s"] for each in (row, other))
        return bool(abs(batch / other_batch - 1) < 1e-6)

    @property
    def growing_cause(self) -> tuple[str, float, float] | None:
        """The cause whose share of the iteration grows most, with its shares in the first and in the last row.

        Rows are in the order of GPUs, then as given. None if they have several stacks.
        """
        if len(self.stacks) > 1:
            return None
        rows = sorted(self.possible, key=lambda row: row["num_gpus"])
        if len(rows) < 2:
            return None
        first, last = (
            {name: part / row["iteration_time_s"] for name, part in causes_in(row).items()}
            for row in (rows[0], rows[-1])
        )
        name = max(last, key=lambda cause: last[cause] - first.get(cause, 0.0))
        growth = last[name] - first.get(name, 0.0)
        return (name, first.get(name, 0.0), last[name]) if growth >= _LEAST_SHARE else None

    def to_json(self) -> dict[str, Any]:
        names = {name: None for row in self.rows for name in row}
        cause, knee = self.growing_cause, self.knee
        return {
            "option": self.option,
            "rows": [{name: row.get(name) for name in names} for row in self.rows],
            "knee_gpus": knee["num_gpus"] if knee else None,
            "growing_cause": cause[0] if cause else None,
            **self._deadline_to_json(),
        }

    def _deadline_to_json(self) -> dict[str, Any]:
        if self.deadline_days is None:
            return {}
        return {
            "deadline_days": self.deadline_days,
            "fewest_gpus": met["num_gpus"] if (met := self.in_time) else None,
        }
