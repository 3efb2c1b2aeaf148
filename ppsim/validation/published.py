"""Published measurements of a recipe, from the validation sets."""

from dataclasses import dataclass
from typing import Any

from ppsim.projection.plan import Plan
from ppsim.trainers.recipe_table import TITLES
from ppsim.trainers.run_config import RunConfig
from ppsim.validation.project_case import measured_of
from ppsim.validation.published_runs import case_sets, cases_of


@dataclass(frozen=True)
class PublishedResult:
    """A published run of a recipe; `value` is as published."""

    seconds: float
    value: float
    metric: str
    table: str
    source: str

    def to_json(self, projected_s: float) -> dict[str, Any]:
        return {
            "iteration_time_s": self.seconds, "value": self.value, "metric": self.metric, "table": self.table,
            "source": self.source,
            "error": projected_s / self.seconds - 1,
        }  # fmt: skip


def published_of(config: RunConfig, plan: Plan) -> PublishedResult | None:
    """Return None if no published run of the release names this recipe without changes.

    The FLOPs of the recipe's `plan` convert a published throughput to seconds.
    """
    recipe = config.recipe
    if recipe is None:
        return None
    title = TITLES[recipe.trainer]
    for name, one in case_sets().items():
        for case in cases_of(name) if title in one.source else ():
            told = case.properties
            if told.table == f"{title} {recipe.release}" and case.options == {"recipe": recipe.name}:
                return PublishedResult(measured_of(case, plan), told.value, told.metric, told.table, one.source)
    return None
