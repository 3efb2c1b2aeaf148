"""The projection of one step, for one plan or several, and its answer."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from ppsim.base.display import Drawable, HasRepr, Printable
from ppsim.base.errors import ConfigError, PpsimError, ScheduleError
from ppsim.base.units import count, percent, seconds, signed_percent, size
from ppsim.costs.stage_cost_set import StageCostSet
from ppsim.model.recompute import BY_OPERATORS
from ppsim.projection.cost import TrainingCost
from ppsim.projection.plan import AUTO, Plan
from ppsim.projection.plan_description import options_of, stage_rows
from ppsim.projection.quantities import values
from ppsim.schedule.check import why_not_in_torch
from ppsim.schedule.graph import CHANNELS
from ppsim.schedule.rounds import microbatches_in_words
from ppsim.schedule.table import Op
from ppsim.simulation.report import report_of
from ppsim.simulation.simulate import simulate
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.step import TrainingStep
from ppsim.simulation.timeline import Timeline
from ppsim.simulation.verdict import MemoryVerdict
from ppsim.trainers.write_schedule import is_run_by, trainers_text

if TYPE_CHECKING:
    import pandas

SECONDS_A_DAY = 86400.0

FROM_RUN = "from the run: "
"""Start of an assumption about a slow rank or link that the recorded run had."""

Interval = tuple[float, float]


@dataclass(frozen=True, repr=False)
class Projection(Printable, Drawable):
    """The projection of one step: timeline, report, throughput, and all assumptions.

    `step` is the pipeline's `timeline` together with the rest of the step. `stage_cost_set` are the costs before
    the runtime's special cases. Throughput and MFU refer to the iteration time: the step and the time between two
    steps. `str` is the output of `ppsim project`.

    >>> import ppsim
    >>> made = ppsim.project(pp=4, microbatches=8)
    >>> print(made)  # doctest: +ELLIPSIS
    GPT 6.2B on 4 × NVIDIA A100-SXM4-80GB, 8 microbatches
    pp 4 · 1f1b
    <BLANKLINE>
    fits           45.3 of 75.0 GiB (rank 0)
    iteration      1.74 s  (90 % interval 1.69 s to 1.80 s)
    ...
    >>> round(made.tokens_per_s), round(made.timeline.bubble_ratio, 4)
    (14102, 0.2767)
    """

    plan: Plan
    step: TrainingStep
    stage_cost_set: StageCostSet
    costs: StageCosts
    iteration_time_s: float
    tokens_per_s: float | None
    model_flops_utilization: float | None
    peak_flops_per_s: float | None
    assumptions: list[str]
    summarise_function: "Callable[..., ProjectionSummary]" = field(compare=False)
    peaks_function: Callable[[Plan], list[float]] = field(compare=False)

    @property
    def one_line(self) -> str:
        table, peak = self.timeline.schedule, float(self.timeline.memory.peak_bytes.max())
        batch = microbatches_in_words(table.num_microbatches, table.num_rounds)
        tokens = "" if self.tokens_per_s is None else f", {count(self.tokens_per_s)} tokens/s"
        return (
            f"{table.name}, pp {table.num_ranks}, vpp {table.vpp}, {batch}: "
            f"iteration {seconds(self.iteration_time_s)}{tokens}, bubble {percent(self.timeline.bubble_ratio)}"
            + (f", peak {size(peak)}" if self.plan.knows_memory else "")
            + (", DOES NOT FIT" if self.fits is False else "")
        )

    @property
    def timeline(self) -> Timeline:
        return self.step.timeline

    @cached_property
    def report(self) -> dict[str, Any]:
        return report_of(self.timeline, self.costs, memory_limit_bytes=self.plan.memory_limit_bytes)

    @cached_property
    def peak_components_bytes(self) -> dict[str, int] | None:
        """Bytes by component at the highest peak of all ranks; None without a job.

        >>> import ppsim
        >>> made = ppsim.project(model="llama3-8b", gpus=8, pp=2, recompute="full")
        >>> sum(made.peak_components_bytes.values()) == int(made.timeline.memory.peak_bytes.max())
        True
        """
        job, memory = self.plan.job, self.timeline.memory
        if job is None:
            return None
        from ppsim.costs.peak_components import components_at_peak  # heavy import: every tensor of a model

        fullest = int(memory.peak_bytes.argmax())
        return components_at_peak(job, self.timeline.schedule, self.stage_cost_set, self.costs, memory, fullest)

    @cached_property
    def reserved_bytes(self) -> list[int] | None:
        """Bytes that torch's allocator reserves on each rank with FSDP2; None without FSDP2.

        >>> import ppsim
        >>> made = ppsim.project(model="llama3-8b", gpus=8, pp=1, stack="torchtitan", recompute="full")
        >>> bool(made.reserved_bytes[0] > made.timeline.memory.peak_bytes[0])
        True
        """
        job = self.plan.job
        if job is None or not job.settings.fully_shard:
            return None
        from ppsim.model.memory_settings import RESERVED_PER_ALLOCATED  # heavy import: every tensor of a model

        return [round(RESERVED_PER_ALLOCATED * peak) for peak in self.timeline.memory.peak_bytes.tolist()]

    @cached_property
    def step_time_by_channel_s(self) -> dict[str, float | None]:
        """Step time per P2P serialization, without calls that block a rank; None if the table deadlocks."""
        return _by_channel(self.timeline, self.costs)

    @cached_property
    def summary(self) -> "ProjectionSummary":
        """The summary printed by `ppsim project`; the first access projects the alternatives of the plan.

        >>> import ppsim
        >>> summary = ppsim.project(pp=4, microbatches=8).summary
        >>> list(summary.time_breakdown_s)
        ['model FLOPs at peak', 'compute below peak', 'pipeline bubble', 'exposed P2P']
        >>> summary.advice[0].change, round(summary.advice[0].throughput_gain, 2)
        ('--schedule zbv-fixed --vpp 2', 0.28)
        """
        return self.summarise()

    def summarise(self, *, tokens: float | None = None, with_advice: bool = True) -> "ProjectionSummary":
        """Return the answer, optionally with the training days for `tokens`; the advice takes most of the time.

        >>> import ppsim
        >>> made = ppsim.project(pp=4, microbatches=8)
        >>> round(made.summarise(tokens=1e9, with_advice=False).training_days, 2)
        0.82
        """
        return self.summarise_function(self, tokens=tokens, with_advice=with_advice)

    def training_days(self, tokens: float) -> float:
        """Raises `ConfigError` if the throughput is unknown.

        >>> import ppsim
        >>> round(ppsim.project(model="llama3-8b", gpus=64, tp=2, pp=4).training_days(15e12))
        358
        """
        if self.tokens_per_s is None:
            raise ConfigError(f"--tokens needs a model: {self.plan.source.name}: no throughput; give --model too")
        return tokens / self.tokens_per_s / SECONDS_A_DAY

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with one row per rank.

        >>> import ppsim
        >>> ppsim.project(pp=4, microbatches=8).to_frame()["peak_at"].tolist()
        ['0F3', '1F2', '2F1', '3F0']
        """
        import pandas

        ranks = [
            {key: value for key, value in row.items() if key != "idle_by_cause_s"}
            | {f"{cause}_s": value for cause, value in row["idle_by_cause_s"].items()}
            for row in self.report["ranks"]
        ]
        return pandas.DataFrame(ranks)

    @property
    def split(self) -> list[int]:
        return self.stage_cost_set.split

    @cached_property
    def stages(self) -> list[dict[str, Any]]:
        """A row for each stage, empty without a job.

        >>> import ppsim
        >>> made = ppsim.project(model="llama3-8b", gpus=8, pp=2, recompute="block/4")
        >>> [(row["layers"], row["recompute"]) for row in made.stages]
        [(16, 'block/4'), (16, 'block/4')]
        """
        return stage_rows(self.plan, self.timeline, self.costs, self.split)

    @property
    def num_gpus(self) -> int:
        return self.timeline.schedule.num_ranks * self.plan.source.gpus_per_rank

    @property
    def parallel_sizes(self) -> dict[str, int]:
        """Sizes of tp, cp, ep and dp above 1, etp if it differs from tp, and always pp.

        >>> import ppsim
        >>> ppsim.project(model="llama3-8b", gpus=8, tp=2, pp=2).parallel_sizes
        {'tp': 2, 'dp': 2, 'pp': 2}
        """
        plan = self.plan
        sizes: Mapping[str, int] = {}
        if plan.has_model:
            sizes = vars(plan.job.layout) if plan.job else plan.source.to_json()["profile"]["shape"]
        least = {"tp": 2, "cp": 2, "ep": 2, "etp": 1, "dp": 2}
        given = {name: sizes.get(name) or 0 for name in least}
        return {name: ranks for name, ranks in given.items() if ranks >= least[name]} | {"pp": plan.pp}

    @property
    def runtime_error(self) -> str | None:
        schedule, job = self.timeline.schedule, self.plan.job
        if self.plan.runtime == "ideal":
            return None
        if job is not None and job.execution.recompute == BY_OPERATORS and schedule.splits_backward:
            return (
                "torch's selective checkpoint goes through one backward only, not through I and W "
                '("Trying to backward an extra time"): --recompute none or full, or a schedule with whole backwards'
            )
        return why_not_in_torch(schedule)

    @cached_property
    def verdict(self) -> MemoryVerdict | None:
        """The comparison of peak memory with the limit; None if no bytes are known.

        >>> import ppsim
        >>> print(ppsim.project(pp=4, microbatches=8, memory_limit="10GiB").verdict)
        DOES NOT FIT: rank 0 needs 45.3 GiB, 10.0 GiB usable
        """
        plan, peaks = self.plan, self.timeline.memory.peak_bytes
        if not plan.knows_memory:
            return None
        rank, job = int(peaks.argmax()), plan.job
        return MemoryVerdict(
            rank, float(peaks[rank]), plan.memory_limit,
            ignored_memory_options=job.ignored_memory_options if job else (),
            assumed_gpus=job.layout.num_devices if job and job.gpus_assumed else None,
            find_gpus=partial(enough_gpus, plan, self.peaks_function),
            activations_only=not plan.has_model,
        )  # fmt: skip

    @property
    def fits(self) -> bool | None:
        return self.verdict.fits if self.verdict else None

    @property
    def is_too_large(self) -> bool:
        """Whether the peak memory exceeds the limit, also on an assumed number of GPUs."""
        return self.verdict is not None and self.verdict.is_too_large

    @property
    def summary_without_advice(self) -> str:
        return f"no change that was tried {'makes it fit' if self.is_too_large else 'gains half a percent'}"

    @property
    def memory_error(self) -> str | None:
        """If the step does not fit: the highest peak, its action, and the forward passes in flight."""
        verdict, timeline = self.verdict, self.timeline
        if verdict is None or not verdict.is_too_large:
            return None
        rank, memory = verdict.rank, timeline.memory
        if timeline.costs.update_bytes[rank] > memory.peak_activation_bytes[rank]:
            sizes = f"{size(verdict.peak_bytes)} > {size(verdict.limit_bytes or 0.0)}"
            return f"rank {rank} peaks at {sizes} during the update (with float32 copies of gradients)"
        schedule, at = timeline.schedule, int(memory.peak_at[rank])
        ops = schedule.op[int(schedule.rank_offsets[verdict.rank]) : at + 1]
        in_flight = int((ops == Op.F).sum() - (ops == Op.B).sum() - (ops == Op.W).sum())
        return (
            f"rank {verdict.rank} peaks at {size(verdict.peak_bytes)} > {size(verdict.limit_bytes or 0.0)} at "
            f"{timeline.name_of(at)} ({in_flight} forwards in flight)"
        )

    @property
    def sort_key(self) -> tuple[bool, bool, bool, float, str]:
        """Plans that fit come first, then plans that fit tightly; then plans that the runtime can run."""
        is_tight = self.verdict is not None and self.verdict.is_tight
        name = self.plan.schedule_name
        return self.is_too_large, is_tight, bool(self.runtime_error), self.iteration_time_s, name

    def to_json(self) -> dict[str, Any]:
        return self.memory_fit_to_json() | self.report | self.extra_report_rows()

    def memory_fit_to_json(self) -> dict[str, Any]:
        verdict = self.verdict
        word = verdict.word if verdict else "unknown"
        return {"fits": self.fits, "verdict": word, "memory_fit": verdict.to_json() if verdict else None}

    def extra_report_rows(self) -> dict[str, Any]:
        rehearsal = self.plan.rehearsal
        return {
            **self.plan.source.to_json(),
            **values(self, "json"),
            "exposed_s": self.step.exposed_s,
            "reference_s": rehearsal.pace_s if rehearsal else None,
            "reference_ends_s": rehearsal.reference_ends_s if rehearsal else None,
            "reference_work": rehearsal.reference_work if rehearsal else "",
            "overheads_fitted_runs": list(self.plan.fitted_runs),
            "layers_per_stage": self.split if self.plan.has_model else None,
            "pipeline_layout": self.stage_cost_set.contents if self.plan.has_model else None,
            "stages": self.stages,
            "step_time_by_channel_s": self.step_time_by_channel_s,
            "runtime_error": self.runtime_error,
            "memory_error": self.memory_error,
            "peak_components_bytes": self.peak_components_bytes,
            "reserved_bytes": self.reserved_bytes,
            "assumptions": self.assumptions,
            "options": self.options,
        }

    @property
    def options(self) -> dict[str, Any]:
        return options_of(self.plan, self.timeline.schedule, self.num_gpus)


@dataclass(frozen=True, repr=False)
class Projections(Printable):
    """The projections of all possible schedules, best first, and the reasons why others are rejected.

    Schedules of `trainer` come first; "": all rank alike.
    """

    projections: list[Projection]
    rejected: dict[str, str]
    trainer: str = ""

    def is_elsewhere(self, projection: Projection) -> bool:
        """Whether only other trainers run the schedule."""
        return self.trainer != "" and not is_run_by(self.trainer, projection.plan.schedule_name)

    def trainers_of(self, projection: Projection) -> dict[str, Any]:
        return {
            "runs_in": trainers_text(projection.plan.schedule_name, projection.plan.recompute),
            "elsewhere": self.is_elsewhere(projection),
        }

    @property
    def one_line(self) -> str:
        refused = f"{len(self.rejected)} not possible"
        if not self.projections:
            return refused
        best = self.projections[0]
        name = best.plan.schedule_name
        return f"{len(self.projections)}, best {name} with {seconds(best.iteration_time_s)} an iteration, {refused}"

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with one row per schedule.

        elsewhere: only other trainers than the plan's run the schedule. `fits` is None and `verdict` "unknown" if
        memory is unknown. runtime_error and memory_error are sentences or None.

        >>> import ppsim
        >>> found = ppsim.project_all(pp=4, microbatches=8).to_frame()
        >>> best = found[(found["verdict"] == "fits") & found["runtime_error"].isna()]
        >>> best["iteration_time_s"].is_monotonic_increasing
        True
        """
        import pandas

        rows = [
            {
                "schedule": projection.plan.schedule_name,
                "vpp": projection.plan.vpp,
                **self.trainers_of(projection),
                **values(projection, "columns"),
                "fits": projection.fits,
                "verdict": projection.verdict.word if projection.verdict else "unknown",
                "runtime_error": projection.runtime_error,
                "memory_error": projection.memory_error,
            }
            for projection in self.projections
        ]
        return pandas.DataFrame(rows)


def _by_channel(timeline: Timeline, costs: StageCosts) -> dict[str, float | None]:
    """Channels are compared without calls that block a rank: these have no queues."""
    times: dict[str, float | None] = {}
    for channel in CHANNELS:
        if (channel, "overlap") == (costs.channel, costs.communication):
            times[channel] = timeline.step_time_s
            continue
        try:
            there = costs.replace(channel=channel, communication="overlap")
            times[channel] = simulate(timeline.schedule, there, ready_s=timeline.ready_s).step_time_s
        except ScheduleError:
            times[channel] = None
    return times


@dataclass(frozen=True)
class ConfigurationChange:
    """One change of a plan, with the options to add to the command."""

    change: str
    projection: Projection
    throughput_gain: float
    makes_it_fit: bool = False

    @property
    def effect(self) -> str:
        gain, verdict = f"{signed_percent(self.throughput_gain)} throughput", self.projection.verdict
        if self.makes_it_fit and verdict is not None and verdict.headroom_bytes is not None:
            return f"fits, {size(verdict.headroom_bytes)} free, {gain}"
        return f"{gain}, iteration {seconds(self.projection.iteration_time_s)}"

    def to_json(self) -> dict[str, Any]:
        verdict = self.projection.verdict
        return {
            "change": self.change,
            "throughput_gain": self.throughput_gain,
            "iteration_time_s": self.projection.iteration_time_s,
            "fits": self.projection.fits,
            "verdict": verdict.word if verdict else "unknown",
            "headroom_bytes": verdict.headroom_bytes if verdict else None,
        }


@dataclass(frozen=True, repr=False)
class ProjectionSummary(HasRepr):
    """The answer that `ppsim project` prints after the projection itself.

    The interval is the 5th to 95th percentile over sampled costs. `interval_scope` says which runs it holds for
    ("": measured or fitted ones). `by_stack_s` are iteration times with other
    stacks.
    """

    iteration_time_interval_s: Interval
    interval_scope: str
    interval_basis: str
    time_breakdown_s: dict[str, float]
    advice: list[ConfigurationChange]
    cost: TrainingCost
    by_stack_s: dict[str, float]
    sensitivities_function: Callable[[], dict[str, float]] = field(compare=False)

    @property
    def training_days(self) -> float | None:
        """None without a number of tokens."""
        return self.cost.training_days

    @cached_property
    def gain_per_percent(self) -> dict[str, float]:
        """Fraction of the iteration time that is saved if one cost is 1 % lower, largest first."""
        return self.sensitivities_function()

    @property
    def bottleneck(self) -> str:
        return largest_bottleneck(self.gain_per_percent)

    @property
    def one_line(self) -> str:
        low, high = map(seconds, self.iteration_time_interval_s)
        return f"iteration between {low} and {high}, {self.bottleneck}, {len(self.advice)} changes that gain"

    def to_json(self) -> dict[str, Any]:
        return {
            "iteration_time_interval_s": list(self.iteration_time_interval_s),
            "time_breakdown_s": self.time_breakdown_s,
            "gain_per_percent": self.gain_per_percent,
            "bottleneck": self.bottleneck,
            "advice": [one.to_json() for one in self.advice],
            **self.cost.to_json(),
            "by_stack_s": self.by_stack_s,
        }


ALL_STAGES = "compute of all stages"


def largest_bottleneck(shares: dict[str, float]) -> str:
    """Return the limiting resource, or the stage with the largest gain if all stages together limit the step.

    >>> largest_bottleneck({"compute of all stages": 0.9, "transfers": 0.05, "compute of stage 3": 0.02})
    'compute of stage 3'
    """
    of_one = [name for name in shares if name.startswith("compute of stage ")]
    most = max((name for name in shares if name not in of_one), key=lambda name: shares[name])
    return max(of_one, key=lambda name: shares[name]) if most == ALL_STAGES else most


_MOST_DOUBLINGS = 7


def enough_gpus(plan: Plan, peaks_of: Callable[[Plan], list[float]]) -> int | None:
    """Return the first doubling of the plan's GPUs that fits; None if no doubling fits, or none saves memory."""
    if plan.job is None or plan.on_gpus is None or plan.memory_limit is None:
        return None
    schedule = None if plan.schedule == AUTO else plan.schedule  # a search takes seconds, and keeps to the memory
    peaks: list[float] = []
    for doublings in range(1, _MOST_DOUBLINGS + 1):
        number: int = plan.job.layout.num_devices * 2**doublings
        with suppress(PpsimError):  # the batch or the cluster has no such number
            other = plan.on_gpus(number)
            rounds = other.gradient_accumulation_steps
            on_more = replace(plan, job=other.job, gradient_accumulation_steps=rounds, schedule=schedule)
            peak = max(peaks_of(on_more))
            if plan.memory_limit.holds(peak):
                return number
            if peaks and peak >= peaks[-1]:
                return None
            peaks.append(peak)
    return None
