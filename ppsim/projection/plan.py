"""The input of a projection."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ppsim.base.display import HasRepr
from ppsim.base.errors import ConfigError
from ppsim.catalog.build import find, schedule_named
from ppsim.costs.cost_sources import MeasuredProfileSource, ProfileSource, RankCosts, RankSource
from ppsim.costs.profile import CalibrationRun, Profile, Shape
from ppsim.parallel.layer_partition import MegatronSplit, Split
from ppsim.projection.options import Runtime
from ppsim.schedule.option_types import Channel, Communication, Receives
from ppsim.simulation.bounds.problem import Criterion
from ppsim.simulation.variation import Variation
from ppsim.simulation.verdict import MemoryLimit

if TYPE_CHECKING:
    from ppsim.costs.job import Job
    from ppsim.costs.job_cost_sources import JobSource
    from ppsim.model.cuda_graphs import CudaGraphs

RUNTIMES: dict[Runtime, tuple[Channel, str]] = {
    "torch": (
        "pair",
        "torch.distributed.pipelining: NCCL communicators made on first use; stage 0 splits no backward",
    ),
    "megatron": (
        "edge",
        "Megatron-LM: 1F1B blocks at its sends and receives, interleaved overlaps them in the steady state; "
        "others: a queue per direction and peer",
    ),
    "ideal": ("ideal", "the literature's network: pure latency, nothing shared"),
}


AUTO = "auto"
"""Name of the schedule that is found by a search."""


@dataclass(frozen=True, repr=False)
class Plan(HasRepr):
    """The input of a projection: one schedule, its shape, and the source of its costs.

    Costs come from a `job` on a cluster or, without one, from a `profile` of one pipeline.

    - `schedule` None: 1f1b for one stage per rank, interleaved-1f1b for more. "auto" searches for `search_time_s`.
    - `microbatches` None: the job's, or 4·pp. `num_slices` None: the schedule's.
    - `profile` None: the packaged default. `shape`, `num_layers` and `transfer_s` None: the profile's.
    - `channel` None: the runtime's.
    - `split` None: balanced stages, or Megatron-LM's own rule on runtime megatron.
    - `searches_stages`: search layers, recomputation and offloading of each stage (`--plan auto`).
    - `bandwidth_bytes_per_s` replaces the profile's transfers; `hop_overhead_s` is then the whole latency.
    - `pass_factors`: durations of actions in a typical step over their medians.
    - `fitted_runs`: fingerprints of the runs to which the overheads were fitted.
    - `measured`: times of a rank in place of the costs of the job or profile.
    - `stragglers`: pairs of a rank and a factor on its compute time.
    - `lengths`: tokens of sequences, from which `seed` draws a step. None: all have the full length.
    - `by_stack`: the plan with each of the other stacks, if the stack was not named.
    - `on_gpus`: the plan on a given number of GPUs, if its number is assumed.
    - `names_trainer`: the user named the trainer; otherwise, it is a default.
    - `is_recipe`: the job is a published recipe, possibly with changes.
    - `gradient_accumulation_steps`: pipeline rounds per step, each drained before the next one (TorchTitan).

    >>> import ppsim
    >>> plan = ppsim.Plan(pp=8, vpp=2)
    >>> plan.schedule_name, plan.num_microbatches
    ('interleaved-1f1b', 32)
    >>> ppsim.project(plan).plan == plan
    True
    """

    pp: int
    vpp: int | None = None
    schedule: str | None = None
    microbatches: int | None = None
    gradient_accumulation_steps: int = 1
    group_size: int | None = None
    num_slices: int | None = None
    job: "Job | None" = None
    profile: Profile | None = None
    shape: Shape | None = None
    num_layers: int | None = None
    split: Split | None = None
    searches_stages: bool = False
    runtime: Runtime = "torch"
    channel: Channel | None = None
    receives: Receives = "torch"
    transfer_s: float | None = None
    measured: RankCosts | None = None
    overlap_p2p: bool = True
    action_overhead_s: float = 0.0
    hop_overhead_s: float = 0.0
    overlap_slowdown: float = 0.0
    step_overhead_s: float = 0.0
    message_overhead_s: float = 0.0
    first_pass_s: float = 0.0
    last_pass_s: float = 0.0
    pass_factors: tuple[float, ...] | None = None
    action_spread: float | None = None
    rank_spread: float | None = None
    bandwidth_bytes_per_s: float | None = None
    fitted_runs: tuple[str, ...] = ()
    memory_limit_bytes: float | None = None
    stragglers: tuple[tuple[int, float], ...] = ()
    lengths: tuple[int, ...] | None = None
    search_time_s: float = 10.0
    seed: int = 0
    by_stack: "Mapping[str, Plan]" = field(default_factory=dict, compare=False)
    names_trainer: bool = field(default=False, compare=False)
    is_recipe: bool = field(default=False, compare=False)
    on_gpus: "Callable[[int], Plan] | None" = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.schedule is not None:
            object.__setattr__(self, "schedule", schedule_named(self.schedule))
        if self.job is not None and self.job.layout.pp != self.pp:
            raise ConfigError(f"the job's layout has pp {self.job.layout.pp}: got pp {self.pp}")
        if self.searches_stages and (self.job is None or self.measured is not None):
            raise ConfigError("--plan auto needs a model on a cluster, without measured times: give --model")
        if self.searches_stages and (self.split not in (None, "auto") or self.lengths is not None):
            wrong = "--sequence-lengths" if self.lengths else "--split"
            raise ConfigError(f"--plan auto finds the layers of each stage: leave out {wrong}")
        for rank, factor in self.stragglers:
            if not 0 <= rank < self.pp:
                raise ConfigError(f"a straggler is one of the ranks 0 to {self.pp - 1}: got {rank}")
            if not 1 <= factor < float("inf"):
                raise ConfigError(f"a straggler takes at least 1 × as long: got {factor:g}")

    @cached_property
    def source(self) -> "ProfileSource | JobSource | RankSource":
        if self.job is not None:
            from ppsim.costs.job_cost_sources import JobSource, MeasuredSource  # heavy import: models on clusters

            return JobSource(self.job) if self.measured is None else MeasuredSource(self.job, self.measured)
        if self.measured is not None and self.profile is None:
            return RankSource(self.measured)
        source = ProfileSource.of(
            self.profile, self.shape, num_layers=self.num_layers, transfer_s=self.transfer_s,
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
        )  # fmt: skip
        return source if self.measured is None else MeasuredProfileSource(**vars(source), costs=self.measured)

    @property
    def modelled_source(self) -> "ProfileSource | JobSource":
        """Raises `ConfigError` if the user gave only times."""
        if isinstance(self.source, RankSource):
            raise ConfigError("times given by hand have no layers, tokens or device: give --model or --profile too")
        return self.source

    @property
    def has_model(self) -> bool:
        """False if the user gave only times; throughput, MFU and memory are then unknown."""
        return not isinstance(self.source, RankSource)

    @property
    def knows_memory(self) -> bool:
        return self.has_model or (self.measured is not None and self.measured.activation_bytes is not None)

    @property
    def rehearsal(self) -> CalibrationRun | None:
        """The profile's calibration run, if it applies to this plan."""
        rehearsed = self.profile.rehearsal if self.profile and self.measured is None else None
        return rehearsed if rehearsed and rehearsed.num_processes == self.pp else None

    @property
    def variation(self) -> Variation | None:
        """Variation of actions; None if unknown.

        Quartiles in a published profile are not used, because they may not describe actions.
        """
        if self.pass_factors is not None:
            return self.pass_factors
        source = self.source
        is_measured = isinstance(source, ProfileSource) and source.profile.provenance.kind == "measured"
        return source.jitter() if self.action_spread is None and is_measured else self.action_spread

    @property
    def memory_limit(self) -> MemoryLimit | None:
        """The given limit, else the device's. The result is None for a CPU, whose memory all ranks share."""
        if self.memory_limit_bytes is not None:
            return MemoryLimit.given(self.memory_limit_bytes)
        if self.job is not None:
            return memory_limit_of(self.job)
        source = self.source
        device = source.profile.provenance.device if isinstance(source, ProfileSource) else None
        if device is None or device.kind == "cpu" or device.memory_bytes is None:
            return None
        return MemoryLimit.of_device(device.memory_bytes)

    @property
    def memory_bound_bytes(self) -> float | None:
        """Bytes that a rank may use."""
        return self.memory_limit.usable_bytes if self.memory_limit else None

    @property
    def communication(self) -> Communication:
        """Megatron-LM's calls are simulated with runtime "megatron" and its schedules, unless `channel` is set."""
        runs_it = self.schedule_name in ("1f1b", "interleaved-1f1b") and self.pp > 1
        if self.runtime != "megatron" or self.channel is not None or not runs_it:
            return "overlap"
        return "megatron" if self.overlap_p2p else "megatron-no-overlap"

    @property
    def trainer(self) -> str:
        """The trainer whose schedules the plan can use, as in `ppsim export --to`; "" for an ideal network."""
        from ppsim.trainers.stacks import PLAIN, trainer_of

        return trainer_of(self.job.stack if self.job else PLAIN, self.runtime)

    @property
    def stages_per_rank(self) -> int:
        """`vpp`, or the fewest that the schedule allows; 1 for a table that is searched."""
        if self.vpp or self.schedule == AUTO:
            return self.vpp or 1
        return find(self.schedule_name).stages_per_rank[0]

    @property
    def recompute(self) -> str:
        return self.job.execution.recompute if self.job else "none"

    @property
    def criterion(self) -> Criterion:
        return "span" if self.job is not None and self.job.update == "post-validated" else "step"

    @property
    def layer_split_rule(self) -> Split:
        if self.split is None:
            return MegatronSplit() if self.runtime == "megatron" else "auto"
        return self.split

    @property
    def schedule_name(self) -> str:
        if self.schedule is None and self.job is not None and self.job.execution.ep_order:
            return "combined-1f1b"
        return self.schedule or ("1f1b" if self.vpp in (None, 1) else "interleaved-1f1b")

    @property
    def num_microbatches(self) -> int:
        if self.microbatches is not None:
            return self.microbatches
        return 4 * self.pp if self.job is None else self.job.num_microbatches

    @property
    def round_microbatches(self) -> int:
        """Raises `ConfigError` if rounds cannot have equal shares."""
        count, rounds = self.num_microbatches, self.gradient_accumulation_steps
        if rounds < 1:
            raise ConfigError(f"--gradient-accumulation-steps must be at least 1: got {rounds}")
        if rounds > 1 and self.runtime == "megatron":
            raise ConfigError(
                f"Megatron-LM runs all {count} microbatches of a step in one pipeline: leave out "
                f"--gradient-accumulation-steps {rounds}, or give --runtime torch"
            )
        if count % rounds:
            nearest = min(
                (one for one in range(1, count + 1) if count % one == 0), key=lambda one: abs(one - rounds)
            )
            raise ConfigError(
                f"--gradient-accumulation-steps {rounds} does not divide the {count} microbatches per step and "
                f"data-parallel rank (nearest: {nearest})"
            )
        return count // rounds


def memory_limit_of(job: "Job", graphs: "CudaGraphs | None" = None) -> MemoryLimit:
    """Return the limit of the job's device with these CUDA graphs, by default the job's.

    >>> import ppsim
    >>> job = ppsim.job(model="llama3-8b", gpus=8, pp=2)
    >>> memory_limit_of(job, "layer").safe_bytes < memory_limit_of(job, "none").safe_bytes
    True
    """
    fragments = ["experts"] if job.model.has_experts else []
    fragments += ["CUDA graphs"] if (graphs or job.execution.cuda_graphs) != "none" else []
    return MemoryLimit.of_device(job.cluster.device.memory_bytes, fragments=" and ".join(fragments))
