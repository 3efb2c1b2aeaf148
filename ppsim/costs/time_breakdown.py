"""Seconds of a pass by cause, and the passes of a component."""

from dataclasses import dataclass, field, replace

from ppsim.costs.pair_overlap import LayerTimes

BASIS = "estimated from specifications"
MEASURED = "measured"


@dataclass(frozen=True)
class TimeBreakdown:
    """Seconds of a pass by cause.

    `ideal_s` is the pass's share of the model FLOPs (`Model.training_flops`, causal) at the device's peak for the
    job's dtype. `more_flops_s` are non-model FLOPs at the peak of their own dtype: masked scores, padded
    vocabulary, replicated weights, GEMMs in a wider dtype. `matmul_loss_s` and `attention_loss_s` are the time of
    GEMM and attention kernels beyond `ideal_s` and `more_flops_s`. `host_s` is the wait for launches. In a measured
    pass only the sum of these losses is known: `measured_loss_s`. `recompute_s` includes repeated communication;
    the times of other communication are its exposed parts.
    """

    ideal_s: float = 0.0
    more_flops_s: float = 0.0
    matmul_loss_s: float = 0.0
    attention_loss_s: float = 0.0
    memory_s: float = 0.0
    measured_loss_s: float = 0.0
    host_s: float = 0.0
    recompute_s: float = 0.0
    tp_s: float = 0.0
    ep_s: float = 0.0
    cp_s: float = 0.0
    dp_s: float = 0.0
    offload_s: float = 0.0

    @property
    def numbers(self) -> tuple[float, ...]:
        return tuple(self.__dict__.values())

    @property
    def total_s(self) -> float:
        return float(sum(self.numbers))

    @property
    def communication_s(self) -> float:
        """Exposed communication, without communication that recomputation repeats."""
        return self.tp_s + self.ep_s + self.cp_s + self.dp_s

    def __add__(self, other: "TimeBreakdown") -> "TimeBreakdown":
        return TimeBreakdown(*(mine + its for mine, its in zip(self.numbers, other.numbers, strict=True)))

    def __mul__(self, factor: float) -> "TimeBreakdown":
        return TimeBreakdown(*(factor * number for number in self.numbers))

    def slowed(self, factor: float) -> "TimeBreakdown":
        """Multiply the total. The time of the model FLOPs at peak stays, and kernels below peak take the rest."""
        added = (factor - 1) * self.ideal_s
        loss = "measured_loss_s" if self.measured_loss_s else "matmul_loss_s"
        scaled = self * factor
        return replace(scaled, ideal_s=self.ideal_s, **{loss: getattr(scaled, loss) + added})


@dataclass(frozen=True)
class MeasuredSeconds:
    """Measured seconds of F + B: passes from the profile, and single kernels from the device's kernel table."""

    profile_s: float = 0.0
    table_s: float = 0.0

    def __add__(self, other: "MeasuredSeconds") -> "MeasuredSeconds":
        return MeasuredSeconds(self.profile_s + other.profile_s, self.table_s + other.table_s)

    def __mul__(self, factor: float) -> "MeasuredSeconds":
        return MeasuredSeconds(factor * self.profile_s, factor * self.table_s)


@dataclass(frozen=True)
class CostEstimate:
    """F, I and W of one microbatch through one component of one rank.

    B is I + W unless it was measured whole. `known` is the measured part of F + B. `sent_again_s` are repeated
    messages of the recomputation, which no profile of one device contains.
    """

    forward: TimeBreakdown
    backward_input: TimeBreakdown
    backward_weight: TimeBreakdown
    basis: str = BASIS
    whole_backward: TimeBreakdown | None = None
    known: MeasuredSeconds = field(default_factory=MeasuredSeconds)
    sent_again_s: float = 0.0
    times: LayerTimes | None = None

    @property
    def backward(self) -> TimeBreakdown:
        return self.whole_backward or self.backward_input + self.backward_weight

    def __add__(self, other: "CostEstimate") -> "CostEstimate":
        is_whole = self.whole_backward is not None or other.whole_backward is not None
        return CostEstimate(
            self.forward + other.forward,
            self.backward_input + other.backward_input,
            self.backward_weight + other.backward_weight,
            whole_backward=self.backward + other.backward if is_whole else None,
            known=self.known + other.known,
        )

    def __mul__(self, factor: float) -> "CostEstimate":
        return CostEstimate(
            self.forward * factor,
            self.backward_input * factor,
            self.backward_weight * factor,
            self.basis,
            None if self.whole_backward is None else self.whole_backward * factor,
            self.known * factor,
        )

    def slowed(self, factor: float) -> "CostEstimate":
        return replace(
            self * factor,
            forward=self.forward.slowed(factor),
            backward_input=self.backward_input.slowed(factor),
            backward_weight=self.backward_weight.slowed(factor),
            whole_backward=None if self.whole_backward is None else self.whole_backward.slowed(factor),
        )


NO_COST = CostEstimate(TimeBreakdown(), TimeBreakdown(), TimeBreakdown())


def work_of(estimate: CostEstimate) -> float:
    """Return the seconds of F + B."""
    return estimate.forward.total_s + estimate.backward.total_s
