"""Classes of jobs with similar errors, and the error that a source of runs has which was never seen.

The errors of a class vary within a source of published runs and between sources. A new source has both variances.
`ppsim validate --leave-source-out` prints them.
"""

from dataclasses import dataclass
from functools import cache
from math import hypot
from typing import TYPE_CHECKING

from ppsim.base.files import data_folder, read_toml
from ppsim.trainers.stacks import base_of

if TYPE_CHECKING:
    from ppsim.costs.job import Job

UNMEASURED_SPREAD = 0.27
"""Standard deviation of log(projected step time) for trainers without measured runs.

55 published runs of six trainers that ppsim has no stack for: 21 % within a source, 17 % between sources.
"""


SPREADS_OF_90 = 1.5
"""Half-width of the 90 % interval of a source never seen, in spreads of its class.

It contains 91.5 % of the times of sources left out, and 84 % or more in each class with five sources; the 1.645 of
normal errors contains 92.9 %. A few sources have far larger errors than the others.
"""


def spread_of_source(within: float, between: float) -> float:
    """Return the standard deviation of the normal distribution with the same 90 % interval.

    >>> round(spread_of_source(0.03, 0.04), 4)
    0.0456
    """
    return SPREADS_OF_90 / 1.645 * hypot(within, between)


@dataclass(frozen=True, kw_only=True)
class ErrorClass:
    """A kind of job on a GPU generation, with the stacks that published runs were measured with.

    `within` and `between`: standard deviations of log(projected / measured step time) within and between sources.
    """

    name: str
    generation: str
    kind: str
    stacks: list[str]
    within: float
    between: float

    @property
    def spread(self) -> float:
        return spread_of_source(self.within, self.between)


@cache
def error_classes() -> tuple[ErrorClass, ...]:
    classes = read_toml(data_folder("machine/data") / "error_classes.toml")
    return tuple(ErrorClass(name=name, **fields) for name, fields in classes.items())


def stack_variant(job: "Job") -> str:
    """Return the stack without its release, and whether its blocks are eager."""
    return base_of(job.stack) + (", eager" if job.execution.compile is False else "")


def error_class_of(job: "Job") -> ErrorClass | None:
    """Return None if no runs of the stack were measured on the GPU generation, or none at all on the GPU."""
    if not job.cluster.device.has_runs:
        return None
    key = job.cluster.device.generation, _kind(job)
    of_job = (each for each in error_classes() if (each.generation, each.kind) == key)
    return next((each for each in of_job if stack_variant(job) in each.stacks), None)


def why_unmeasured(job: "Job") -> str:
    """Return what is missing for an error class of the job."""
    device = job.cluster.device
    if not device.has_runs:
        return f"no published runs on {device.name}"
    runs = f"published {_kind(job)} runs with {stack_variant(job)}"
    return f"fewer than five {runs} on {device.generation or device.name}"


def _kind(job: "Job") -> str:
    return "fine-tuning" if job.lora or job.freeze else "MoE" if job.model.has_experts else "dense"
