"""What is projected: a schedule, its shape, and where its costs come from."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ppsim.base.errors import ConfigError
from ppsim.base.shown import InBrief
from ppsim.catalog.build import schedule_named
from ppsim.costs.profile import Profile, Rehearsal, Shape
from ppsim.costs.sources import MeasuredProfileSource, ProfileSource, RankCosts, RankSource
from ppsim.machine.choices import MEMORY_SHARE
from ppsim.parallel.layer_partition import MegatronSplit, Split
from ppsim.projection.options import Runtime
from ppsim.schedule.choices import Channel, Communication, Receives
from ppsim.simulation.bounds.problem import Criterion
from ppsim.simulation.variation import Variation

if TYPE_CHECKING:
    from ppsim.costs.job import Job
    from ppsim.costs.job_sources import JobSource

RUNTIMES: dict[Runtime, tuple[Channel, str]] = {
    "torch": (
        "pair",
        "torch.distributed.pipelining: NCCL communicators made on first use; stage 0 splits no backward",
    ),
    "megatron": (
        "edge",
        "Megatron-LM: 1F1B stands still at its sends and receives, interleaved overlaps them in the steady state; "
        "others: a queue per direction and peer",
    ),
    "ideal": ("ideal", "the literature's network: pure latency, nothing shared"),
}


AUTO = "auto"
"""The name of the schedule that is searched for."""


@dataclass(frozen=True, repr=False)
class Plan(InBrief):
    """What is asked: one schedule, its shape, and where its costs come from.

    Costs are those of a `job` on a cluster or, without one, of a `profile`: one pipeline of the ranks that were
    measured. `schedule` None is 1f1b for one stage a rank and interleaved-1f1b for more; `microbatches` None is the
    job's, or 4·pp. `profile` None is the packaged default, `shape` None its `shape_at()`, `num_layers` None its
    model's; `num_slices` None is the schedule's; `channel` None is the runtime's, `transfer_s` None the profile's.
    The overheads are the constants that `ppsim calibrate` finds, with their meaning in `StageCosts`, the spreads
    those of its actions and ranks, for the interval of the answer, and `pass_factors` what passes of a typical
    step take beside their medians (`variation`); `fitted_runs` are the fingerprints of the runs that they were
    fitted on, none if unknown;
    `split` None balances the stages or, on runtime megatron, is Megatron-LM's own rule (`how_split`).
    `searches_stages`: layers, recomputation and offloading of each stage are searched for (`--plan auto`).
    `bandwidth_bytes_per_s`, where it could tell one, replaces the profile's transfers, and `hop_overhead_s` is then
    the whole latency. Schedule "auto" is searched for, for up to `search_s` seconds from `seed`
    (`ppsim.catalog.auto`). `measured` are times of a rank in place of the job's or the profile's. `overlap_p2p`:
    whether Megatron-LM overlaps the transfers of interleaved-1f1b, on its runtime and where no `channel` is given.
    `stragglers` are ranks whose compute takes so many times as long. `lengths` are tokens of sequences, of which
    those of a step are drawn by `seed` (`ppsim.projection.lengths`); None: all have the sequence length.
    `gradient_accumulation_steps` is the number of pipeline rounds per step: each round has an equal share of the
    microbatches and is drained before the next (TorchTitan).

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
    search_s: float = 10.0
    seed: int = 0

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
            if not 0 < factor < float("inf"):
                raise ConfigError(f"a straggler takes a number of times as long, above 0: got {factor:g}")

    @cached_property
    def source(self) -> "ProfileSource | JobSource | RankSource":
        """What says sizes, costs per stage, what stands for 100 %, jitter, and reports of them."""
        if self.job is not None:
            from ppsim.costs.job_sources import JobSource, MeasuredSource  # models on clusters

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
        """The source of a plan with a model; raises `ConfigError` for times given by hand alone."""
        if isinstance(self.source, RankSource):
            raise ConfigError("times given by hand have no layers, tokens or device: give --model or --profile too")
        return self.source

    @property
    def has_model(self) -> bool:
        """Whether throughput, MFU and memory can be known: not of times given by hand alone."""
        return not isinstance(self.source, RankSource)

    @property
    def knows_memory(self) -> bool:
        """Whether any bytes are known: those of a model, or of the activations given."""
        return self.has_model or (self.measured is not None and self.measured.activation_bytes is not None)

    @property
    def rehearsal(self) -> Rehearsal | None:
        """That of the profile, where its costs are taken and it was of as many ranks."""
        found = self.profile.rehearsal if self.profile and self.measured is None else None
        return found if found and found.num_processes == self.pp else None

    @property
    def variation(self) -> Variation | None:
        """What passes vary by: as calibrated or rehearsed, else by the quartiles of a profile; None: nobody knows.

        Quartiles of a publication are what it gives, and not those of passes.
        """
        if self.pass_factors is not None:
            return self.pass_factors
        source = self.source
        is_measured = isinstance(source, ProfileSource) and source.profile.provenance.kind == "measured"
        return source.jitter() if self.action_spread is None and is_measured else self.action_spread

    @property
    def memory_bound_bytes(self) -> float | None:
        """Bytes that a rank may use: the limit given, else 95 % of the memory of the job's or profile's device.

        None if no device is named, or a CPU, whose memory all ranks share.
        """
        if self.memory_limit_bytes is not None:
            return self.memory_limit_bytes
        if self.job is not None:
            return self.job.cluster.device.usable_bytes()
        source = self.source
        device = source.profile.provenance.device if isinstance(source, ProfileSource) else None
        if device is None or device.kind == "cpu" or device.memory_bytes is None:
            return None
        return MEMORY_SHARE * device.memory_bytes

    @property
    def communication(self) -> Communication:
        """How transfers wait: Megatron-LM's own calls for the schedules that it runs, unless a channel is given."""
        runs_it = self.schedule_name in ("1f1b", "interleaved-1f1b") and self.pp > 1
        if self.runtime != "megatron" or self.channel is not None or not runs_it:
            return "overlap"
        return "megatron" if self.overlap_p2p else "megatron-no-overlap"

    @property
    def criterion(self) -> Criterion:
        """What a fitted table minimises: the span where no rank's optimizer waits for another's, else the step."""
        return "span" if self.job is not None and self.job.update == "post-validated" else "step"

    @property
    def how_split(self) -> Split:
        """How the stages' layers are found."""
        if self.split is None:
            return MegatronSplit() if self.runtime == "megatron" else "auto"
        return self.split

    @property
    def schedule_name(self) -> str:
        """The schedule asked for, or the one that fits vpp."""
        if self.schedule is None and self.job is not None and self.job.execution.ep_order:
            return "combined-1f1b"
        return self.schedule or ("1f1b" if self.vpp in (None, 1) else "interleaved-1f1b")

    @property
    def num_microbatches(self) -> int:
        """The number asked for, the job's, or four a rank."""
        if self.microbatches is not None:
            return self.microbatches
        return 4 * self.pp if self.job is None else self.job.num_microbatches

    @property
    def round_microbatches(self) -> int:
        """Microbatches per accumulation round; raises `ConfigError` if the rounds cannot share them equally."""
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
