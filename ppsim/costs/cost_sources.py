"""Cost sources for plans: a profile at one shape, or measured times of ranks."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from ppsim.base.arrays import Floats, Numbers
from ppsim.base.errors import ConfigError
from ppsim.base.units import seconds, size
from ppsim.costs.assemble_profile import assemble, layer_costs_of
from ppsim.costs.profile import DEFAULT, Profile, Shape, load_profile
from ppsim.costs.stage_cost_set import LayerCosts, StageCostSet
from ppsim.costs.utilization import BY_DATA_SHEET, peak_of
from ppsim.parallel.layer_partition import Split
from ppsim.schedule.analysis_cache import cached
from ppsim.schedule.table import Schedule
from ppsim.simulation.stage_costs import StageCosts
from ppsim.simulation.step import StepCosts


@cache
def _default() -> Profile:
    return load_profile(DEFAULT)


@dataclass(frozen=True)
class ProfileSource:
    """One pipeline at a measured shape; `gpus_per_rank` counts tp and cp ranks."""

    profile: Profile
    shape: Shape
    num_layers: int
    transfer_s: float | None
    bandwidth_bytes_per_s: float | None

    @classmethod
    def of(
        cls,
        profile: Profile | None,
        shape: Shape | None,
        *,
        num_layers: int | None,
        transfer_s: float | None,
        bandwidth_bytes_per_s: float | None,
    ) -> "ProfileSource":
        """Defaults are the packaged profile and its first shape."""
        profile = profile or _default()
        layers = profile.model.num_layers if num_layers is None else num_layers
        return cls(profile, shape or profile.shape_at(), layers, transfer_s, bandwidth_bytes_per_s)

    @property
    def name(self) -> str:
        return f"profile {self.profile.name}"

    @property
    def sequence_length(self) -> int:
        return self.shape.sequence_length

    @property
    def hidden_size(self) -> int:
        return self.profile.model.hidden_size

    @property
    def tokens_per_microbatch(self) -> int:
        return self.shape.micro_batch * self.shape.sequence_length

    @property
    def gpus_per_rank(self) -> int:
        return self.shape.tp * self.shape.cp

    def assemble(self, schedule: Schedule, split: Split) -> StageCostSet:
        asked: dict[str, Any] = {
            "num_layers": self.num_layers, "split": split, "transfer_s": self.transfer_s,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
        }  # fmt: skip
        # Cached, because stragglers, overheads and networks change, but measured costs do not. The cache stores the
        # profile so that its id stays valid.
        key = ("assembled", id(self.profile), repr(self.shape), repr(asked))
        return cached(
            schedule, key, lambda: (self.profile, assemble(self.profile, schedule, shape=self.shape, **asked))
        )[1]

    def layer_costs(self) -> LayerCosts:
        return layer_costs_of(self.profile, self.shape, self.num_layers)

    def peak(self) -> tuple[float | None, list[str]]:
        """FLOP/s of the data sheet, else of the fastest measured GEMM."""
        device, facts, dtype = self.profile.provenance.device, self.profile.device_facts, self.shape.dtype
        sheet = {"provenance": {"device": vars(device)}}
        rate = peak_of(sheet, dtype) or peak_of(sheet | {"device_facts": facts and asdict(facts)}, dtype)
        if rate is None or rate[1] == BY_DATA_SHEET:
            return rate and rate[0], []
        return rate[0], [f"MFU: of {rate[1]}"]

    def jitter(self) -> float | None:
        """Relative standard deviation of a layer's forward, by its quartiles."""
        forward = self.profile.find("layer", self.shape).forward_s
        # The interquartile range of a normal distribution is 1.349 standard deviations.
        return (forward.high - forward.low) / 1.349 / forward.median if forward.median else None

    def to_json(self) -> dict[str, Any]:
        profile = self.profile
        return {
            "profile": {
                "name": profile.name,
                "provenance": profile.provenance.kind,
                "source": profile.provenance.source,
                "device": profile.provenance.device.name,
                "model": profile.model.name,
                "shape": dict(vars(self.shape)),
            }
        }


Measured: TypeAlias = float | tuple[float, ...]
"""Value of a rank (all its stages together), or of each of several equally deep parts of the model, in order."""


@dataclass(frozen=True)
class RankCosts:
    """Measured seconds of a microbatch on a rank or in each part of the model, and of a P2P transfer.

    With more stages than parts, each part is divided evenly; with fewer, neighbouring parts are summed.
    `transfer_s` of a part is the transfer after it, also used after the other stages of the part.
    """

    forward_s: Measured
    backward_input_s: Measured
    backward_weight_s: Measured
    transfer_s: Measured = 0.0
    activation_bytes: Measured | None = None

    @property
    def name(self) -> str:
        return "times given by hand"

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_input_s", "backward_weight_s", "transfer_s"):
            for value in np.atleast_1d(getattr(self, name)):
                if not 0 <= value < float("inf"):
                    flag = f"--{name.replace('_', '-')[:-2]}-ms"
                    raise ConfigError(f"{flag} must be 0 or more: got {1e3 * value:g}")

    def replacing(self, estimated: StageCostSet, schedule: Schedule) -> StageCostSet:
        """The rest of the step takes no time. Raises `ConfigError` if stages neither divide nor sum the parts."""
        stages = schedule.num_model_stages
        vpp = max(1, stages // schedule.num_ranks)
        costs = estimated.costs.replace(
            forward_s=_of_stages("--forward-ms", self.forward_s, stages, vpp),
            backward_input_s=_of_stages("--backward-input-ms", self.backward_input_s, stages, vpp),
            backward_weight_s=_of_stages("--backward-weight-ms", self.backward_weight_s, stages, vpp),
            backward_s=None,
            fused_s=None,
            transfer_s=_transfers_after_stages(self.transfer_s, stages),
        )
        sentences = [_told(self.forward_s, stages, vpp)]
        if self.activation_bytes is not None:
            kept = costs.activation_bytes_kept_for_weight
            own = np.asarray(costs.activation_bytes, dtype=np.float64)
            share = np.divide(0.0 if kept is None else kept, own, out=np.zeros_like(own), where=own > 0)
            stage_bytes = _of_stages("--activation-memory", self.activation_bytes, stages, vpp)
            costs = costs.replace(
                activation_bytes=stage_bytes,
                activation_bytes_kept_for_weight=None if kept is None else (share * np.asarray(stage_bytes)),
            )
            most = size(max(np.atleast_1d(self.activation_bytes)))
            of = "the fullest part" if isinstance(self.activation_bytes, tuple) else "a rank"
            sentences.append(f"activations: {most} per microbatch on {of}, as given")
        lines = [line for line in estimated.assumptions if not line.startswith(_OF_TIME)]
        return replace(estimated, costs=costs, assumptions=[*sentences, *lines], step_costs=StepCosts(), parts=[])


@dataclass(frozen=True, kw_only=True)
class RunCosts(RankCosts):
    """The costs of a recorded run: seconds per microbatch of each model stage of the schedule `table`.

    `splits_backward`: I and W were recorded; otherwise they are two arbitrary parts of B. `knows_gaps`: the time
    between steps was recorded. The times are without the slow ranks and links of the run. `slow_ranks` has these
    ranks with the factors of their forwards and backwards, `slow_links` the rows of `StageCosts.slow_links`.
    `note` is about ranks without a recording.
    """

    forward_s: tuple[float, ...]
    backward_input_s: tuple[float, ...]
    backward_weight_s: tuple[float, ...]
    table: Schedule
    note: str = ""
    split: Split = "even"
    source: str
    splits_backward: bool
    knows_gaps: bool
    slow_ranks: tuple[tuple[int, float, float], ...] = ()
    slow_links: tuple[tuple[float, ...], ...] = ()

    @property
    def name(self) -> str:
        return f"recorded run {self.source}"

    @property
    def faults(self) -> dict[str, str]:
        """Slow ranks and links by their names, with their sizes."""
        sizes = {
            f"slow ranks {rank}": f"forward × {one:.2f}, backward × {two:.2f}" for rank, one, two in self.slow_ranks
        }
        for sender, receiver, queue_s, latency_s, block_s in self.slow_links:
            times = {"{} per message, one after the other": queue_s, "{} later": latency_s, "{} blocked": block_s}
            causes = ", ".join(text.format(seconds(time)) for text, time in times.items() if time)
            name, direction = _link_name(sender, receiver), f"{sender:.0f} → {receiver:.0f}: {causes}"
            sizes[name] = f"{sizes[name]}; {direction}" if name in sizes else direction
        return sizes

    def without(self, causes: Sequence[str]) -> "RunCosts":
        """Remove slow ranks and links by number, name or kind; raises `ConfigError` for an unknown one."""
        numbered = {str(number): name for number, name in enumerate(self.faults, start=1)}
        removed: set[str] = set()
        for cause in causes:
            chosen = {name for number, name in numbered.items() if cause in (number, name, name.rpartition(" ")[0])}
            if not chosen:
                listed = ", ".join(f"{number} ({name})" for number, name in numbered.items())
                why = f"no such cause: give {listed}" if listed else "no slow rank or link"
                raise ConfigError(f"--without '{cause}': {self.source} has {why}")
            removed |= chosen
        return replace(
            self,
            slow_ranks=tuple(row for row in self.slow_ranks if f"slow ranks {row[0]}" not in removed),
            slow_links=tuple(row for row in self.slow_links if _link_name(*row[:2]) not in removed),
        )

    def with_faults(self, healthy: StageCostSet, schedule: Schedule) -> StageCostSet:
        """Return the costs on the slow ranks and links, which stay if the number of ranks does."""
        if not self.faults or schedule.num_ranks != self.table.num_ranks:
            return healthy
        factors = np.ones((2, schedule.num_ranks))
        for rank, *of_rank in self.slow_ranks:
            factors[:, rank] = of_rank
        changed: dict[str, Any] = {"slow_links": [list(row) for row in self.slow_links] or None}
        for name in _PASSES:
            of_stages = np.broadcast_to(getattr(healthy.costs, name), schedule.num_model_stages)[
                schedule.model_stage
            ]
            changed[name] = of_stages * factors[int(name != "forward_s"), schedule.stage_to_rank]
        return replace(healthy, costs=healthy.costs.replace(**changed))

    def replacing(self, estimated: StageCostSet, schedule: Schedule) -> StageCostSet:
        """Divide each recorded stage evenly into several stages, or sum neighbouring ones.

        With at least three recorded stages, the first new stage keeps the excess of the first recorded stage over
        the median of those between (the embedding). The last new stage keeps the excess of the last one (the head).
        """
        parts, stages = len(self.forward_s), schedule.num_model_stages
        if stages % parts and parts % stages:
            raise ConfigError(
                f"{self.source} has {parts} stages, which are neither divided nor summed to {stages} without a "
                f"model: give --model, or --pp and --vpp whose product divides {parts} or is a multiple of it"
            )
        replaced = super().replacing(estimated, schedule)
        lines = [f"costs: medians per stage of {self.source}, {parts} stages", *replaced.assumptions[1:]]
        if stages > parts:
            lines[0] += f" divided into {stages}"
            if parts >= 3:
                uneven = {
                    name: _with_ends(getattr(replaced.costs, name), getattr(self, name), stages // parts)
                    for name in _PASSES
                }
                replaced = replace(replaced, costs=replaced.costs.replace(**uneven))
                lines[0] += ", more than the median of the others stays at the first and the last"
        if schedule.splits_backward and not self.splits_backward:
            lines.insert(1, "I and W: each half of the recorded B, assumed (the run has full backwards)")
        return self.with_faults(replace(replaced, assumptions=lines), schedule)

    def correcting(self, estimated: StageCostSet, own: StageCostSet) -> StageCostSet:
        """Multiply the estimates by recorded time / `own`, averaged over a stage's layers.

        `own` is the estimate for the stages of the recorded run.
        """
        ends, own_ends = np.cumsum([0, *estimated.split]), np.cumsum([0, *own.split])
        shared = np.minimum(ends[1:, None], own_ends[None, 1:]) - np.maximum(ends[:-1, None], own_ends[None, :-1])
        shared = np.maximum(shared, 0).astype(np.float64)
        alone = np.flatnonzero(shared.sum(axis=1) == 0)  # stages without a layer: the ratio of the nearest layer
        nearest = np.searchsorted(own_ends[1:-1], ends[alone], side="right")
        shared[alone, np.minimum(nearest, len(own_ends) - 2)] = 1.0
        weights = shared / shared.sum(axis=1, keepdims=True)
        recorded, guess = (
            [np.asarray(getattr(costs, name), dtype=np.float64) for name in _PASSES] for costs in (self, own.costs)
        )
        if not self.splits_backward:
            recorded, guess = ([forward, i + w, i + w] for forward, i, w in (recorded, guess))
        ratios = {
            name: np.divide(real, estimate, out=np.ones_like(estimate), where=estimate > 0)
            for name, real, estimate in zip(_PASSES, recorded, guess, strict=True)
        }
        costs = estimated.costs.replace(
            **{
                name: np.asarray(getattr(estimated.costs, name), dtype=np.float64) * (weights @ ratio)
                for name, ratio in ratios.items()
            },
            backward_s=None,
            fused_s=None,
            transfer_s=_transfers_after_stages(self.transfer_s, len(estimated.split)),
        )
        lines = [line for line in estimated.assumptions if not line.startswith(_OF_TIME)]
        factors = ", ".join(
            f"{letter} {ratio.min():.2f} to {ratio.max():.2f}"
            for letter, ratio in zip("FIW", ratios.values(), strict=True)
        )
        lines.insert(0, f"costs: the model's, times recorded / estimated per stage of {self.source}: {factors}")
        return replace(estimated, costs=costs, assumptions=lines, step_costs=StepCosts(), parts=[])


def _link_name(sender: float, receiver: float) -> str:
    return f"slow links {min(sender, receiver):.0f}-{max(sender, receiver):.0f}"


def _with_ends(stages: Numbers, recorded: Sequence[float], pieces: int) -> Floats:
    of_stages = np.array(stages, dtype=np.float64)
    usual = float(np.median(recorded[1:-1]))
    for end, inside, outer in ((recorded[0], slice(0, pieces), 0), (recorded[-1], slice(-pieces, None), -1)):
        excess = max(end - usual, 0.0)
        of_stages[inside] -= excess / pieces
        of_stages[outer] += excess
    return of_stages


_PASSES = ("forward_s", "backward_input_s", "backward_weight_s")

_OF_TIME = ("costs:", "transfers:", "data parallelism:")
"""Starts of the assumptions that recorded times replace."""


def _of_stages(flag: str, measured: Measured, num_stages: int, vpp: int) -> Numbers:
    if not isinstance(measured, tuple):
        return measured / vpp
    if num_stages % len(measured) == 0:
        pieces = num_stages // len(measured)
        return [value / pieces for value in measured for _ in range(pieces)]
    if len(measured) % num_stages == 0:
        together = len(measured) // num_stages
        return [sum(measured[first : first + together]) for first in range(0, len(measured), together)]
    raise ConfigError(
        f"{flag} has {len(measured)} values for {num_stages} stages: give {num_stages} (one per stage), a "
        f"divisor of {num_stages} or a multiple of {num_stages}"
    )


def _transfers_after_stages(measured: Measured, num_stages: int) -> Numbers:
    """Transfer after each stage: the transfer of the part that contains it, or of the last part in it."""
    if not isinstance(measured, tuple):
        return measured
    _of_stages("--transfer-ms", measured, num_stages, 1)
    return [measured[((stage + 1) * len(measured) - 1) // num_stages] for stage in range(num_stages)]


def _told(measured: Measured, num_stages: int, vpp: int) -> str:
    if not isinstance(measured, tuple):
        return f"costs: measured of a rank, in {vpp} equal stages" if vpp > 1 else "costs: measured of a rank"
    pieces = num_stages // len(measured)
    divided = f", in {pieces} equal stages each" if pieces > 1 else ""
    return f"costs: measured of {len(measured)} parts of the model{divided}"


@dataclass(frozen=True)
class RankSource:
    """Times that the user gives without a model: there are no layers, tokens, FLOPs or peak."""

    costs: RankCosts
    gpus_per_rank: int = 1

    @property
    def name(self) -> str:
        return self.costs.name

    def assemble(self, schedule: Schedule, split: Split) -> StageCostSet:
        nothing = StageCostSet(StageCosts(forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0), [], 0.0)
        found = self.costs.replacing(nothing, schedule)
        unknown = "memory" if self.costs.activation_bytes is None else "memory except activations"
        line = f"no --model: throughput, MFU and {unknown} are not known"
        return replace(found, assumptions=[*found.assumptions, line])

    def peak(self) -> tuple[float | None, list[str]]:
        return None, []

    def jitter(self) -> float | None:
        return None

    def to_json(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class MeasuredProfileSource(ProfileSource):
    """One pipeline with measured times; tokens, and bytes that were not measured, come from the profile."""

    costs: RankCosts

    def assemble(self, schedule: Schedule, split: Split) -> StageCostSet:
        return self.costs.replacing(super().assemble(schedule, split), schedule)
