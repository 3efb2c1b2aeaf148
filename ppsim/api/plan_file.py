"""Files of `--plan`: layers, recomputation and offloading of each stage of the model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from ppsim.base.errors import ConfigError
from ppsim.base.file_schema import Bounds, ConvertAfter, ConvertBefore, FileSchema, validated
from ppsim.base.files import CONFIG_READERS
from ppsim.base.limits import MOST_LAYERS, integer_if_equal
from ppsim.catalog.build import find
from ppsim.costs.job import Job
from ppsim.costs.job_plans import with_plans
from ppsim.model.offloading import offload_modules_of
from ppsim.model.pipeline_stages import StagePlan
from ppsim.model.recompute import plan_of_stage, recompute_of
from ppsim.projection.plan import AUTO, Plan


class _Stage(FileSchema):
    layers: Annotated[int, Bounds(ge=0, le=MOST_LAYERS), ConvertBefore(integer_if_equal)] | None = None
    recompute: Annotated[str, ConvertAfter(recompute_of)] | None = None
    offload_modules: Annotated[str, ConvertAfter(offload_modules_of)] | None = None


class _File(FileSchema):
    stages: Annotated[list[_Stage], Bounds(min_length=1, max_length=MOST_LAYERS)]


@dataclass(frozen=True)
class StagesFile:
    """Content of a file of `--plan`; settings that it does not have come from the job."""

    path: Path
    stages: Sequence[_Stage]

    @property
    def layers(self) -> list[int] | None:
        counts = [stage.layers for stage in self.stages]
        return [count for count in counts if count is not None] if None not in counts else None

    def split(self, given: Any) -> Any:
        if self.layers is None or given is None:
            return self.layers or given
        is_layout = isinstance(given, list) and any(isinstance(one, str) for one in given)
        counts = [str(one).count("t") for one in given] if is_layout else given
        if counts != self.layers:
            raise ConfigError(f"{self.path} says the layers of each stage: leave out --split")
        return given

    def plans(self, job: Job) -> tuple[StagePlan, ...]:
        return tuple(
            StagePlan(
                job.execution.recompute if stage.recompute is None else stage.recompute,
                job.offload_modules if stage.offload_modules is None else stage.offload_modules,
            )
            for stage in self.stages
        )

    def applied_to(self, job: Job) -> Job:
        return with_plans(job, self.plans(job), self.layers)

    def require_fit(self, plan: Plan, job: Job, vpp: int) -> None:
        if problems := list(dict.fromkeys(self._problems(plan, job, vpp))):
            raise ConfigError(f"{self.path}: " + "\n  ".join(problems))

    def _problems(self, plan: Plan, job: Job, vpp: int) -> Iterator[str]:
        entry = None if plan.schedule == AUTO else find(plan.schedule_name)
        num_stages = plan.pp * vpp // (entry.num_replicas if entry else 1)
        if len(self.stages) != num_stages:
            yield f"it has {len(self.stages)} stages, but pp {plan.pp} and vpp {vpp} make {num_stages}"
        given = [stage.layers for stage in self.stages]
        if None in given and any(count is not None for count in given):
            missing = ", ".join(str(at) for at, count in enumerate(given) if count is None)
            yield f"all stages have layers, or none: stage {missing} has none"
        if self.layers and sum(self.layers) != len(job.model.layers):
            yield f"its stages have {sum(self.layers)} layers, but the model has {len(job.model.layers)}"
        for at, (stage, one) in enumerate(zip(self.stages, self.plans(job), strict=True)):
            if stage.layers is not None:
                number = one.recompute.partition("/")[2] if one.recompute.startswith("block/") else "0"
                if int(number) > stage.layers:
                    yield f"stage {at}: recompute {one.recompute} is of {number} layers, but it has {stage.layers}"
            try:
                if stage.layers is not None:
                    plan_of_stage(one.recompute, stage.layers)
                replace(job, stage_plans=(one,))
            except ConfigError as error:
                yield f"stage {at}: {error}"
            if one.offload_modules and entry and entry.splits_backward:
                yield f"stage {at}: {plan.schedule_name} splits the backward: leave out offload_modules"


def read_stages(path: str | Path) -> StagesFile:
    path = Path(path)
    read = CONFIG_READERS.get(path.suffix, CONFIG_READERS[".json"])
    return StagesFile(path, validated(_File, read(path), str(path)).stages)


def stages_toml(report: Mapping[str, Any]) -> str:
    """Raises `ConfigError` for a report without a model."""
    if not report.get("stages"):
        raise ConfigError("a plan of each stage is of a projection with a model: give --model")
    blocks = []
    for stage in report["stages"]:
        lines = ["[[stages]]", f"layers = {stage['layers']}", f'recompute = "{stage["recompute"]}"']
        if stage["offload_modules"]:
            lines.append(f'offload_modules = "{stage["offload_modules"]}"')
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)
