"""Published measurements of a recipe, from the validation sets."""

from dataclasses import dataclass
from typing import Any

from ppsim.model.registry import NAMES, find_model
from ppsim.projection.plan import Plan
from ppsim.trainers.recipe_table import TITLES
from ppsim.trainers.run_config import RunConfig
from ppsim.validation.project_case import measured_of
from ppsim.validation.published_runs import PublishedRun, case_sets, cases_of

_SAME = ("gpus", "tp", "cp", "ep", "pp", "vpp", "micro_batch", "global_batch", "seq_len", "dtype", "cluster")
_DEFAULTS: dict[str, Any] = {"tp": 1, "cp": 1, "ep": 1, "pp": 1, "vpp": 1, "micro_batch": 1, "dtype": "bfloat16"}


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
    """Return None if there is no published run with the same layout.

    The FLOPs of the recipe's `plan` convert a published throughput to seconds.
    """
    recipe = config.recipe
    if recipe is None or recipe.model not in NAMES:
        return None
    for name, one in case_sets().items():
        if not name.startswith("bridge"):
            continue
        for case in cases_of(name):
            if case.properties.table == f"{TITLES[recipe.trainer]} {recipe.release}" and _is_same(case, config):
                told = case.properties
                return PublishedResult(measured_of(case, plan), told.value, told.metric, told.table, one.source)
    return None


def _is_same(case: PublishedRun, config: RunConfig) -> bool:
    if find_model(str(case.settings["model"])) is not config.model:
        return False
    values = [{**_DEFAULTS, **words} for words in (case.settings, config.options)]
    return all((values[0].get(name) or None) == (values[1].get(name) or None) for name in _SAME)
