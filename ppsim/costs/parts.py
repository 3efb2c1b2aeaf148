"""Seconds of a pass by cause, and the passes of a component."""

from dataclasses import dataclass, field

from ppsim.costs.pair_overlap import LayerTimes

BASIS = "estimated from specifications"
MEASURED = "measured"


@dataclass(frozen=True)
class Parts:
    """The seconds of a pass by cause, for a loss budget; `total_s` is their sum.

    `ideal_s` is the pass's share of the model's FLOPs (`Model.training_flops`, causal) at the device's peak for the
    type of the job; `more_flops_s` what its products and attention would take beyond that at their own peak: masked
    scores, a padded vocabulary, weights that ranks repeat, products in a wider type. `matmul_loss_s` and
    `attention_loss_s` are what their kernels take beyond both; `memory_s` memory-bound kernels; `host_s` what
    the device waits for launches; `measured_loss_s` all of these together where a pass was measured, which cannot
    tell them apart; `recompute_s` all that is computed a second time, its communication included; the others
    exposed communication.
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
        """The seconds in the order of the fields."""
        return tuple(self.__dict__.values())

    @property
    def total_s(self) -> float:
        """All of it."""
        return float(sum(self.numbers))

    @property
    def communication_s(self) -> float:
        """What of it is exposed communication, but for that of recomputation."""
        return self.tp_s + self.ep_s + self.cp_s + self.dp_s

    def __add__(self, other: "Parts") -> "Parts":
        return Parts(*(mine + its for mine, its in zip(self.numbers, other.numbers, strict=True)))

    def __mul__(self, factor: float) -> "Parts":
        return Parts(*(factor * number for number in self.numbers))


@dataclass(frozen=True)
class Known:
    """Seconds of F and B that somebody measured: in the profile, or of single kernels in the device's table."""

    profile_s: float = 0.0
    table_s: float = 0.0

    def __add__(self, other: "Known") -> "Known":
        return Known(self.profile_s + other.profile_s, self.table_s + other.table_s)

    def __mul__(self, factor: float) -> "Known":
        return Known(factor * self.profile_s, factor * self.table_s)


@dataclass(frozen=True)
class Estimate:
    """F, I and W of one microbatch through one component of one rank.

    B, the full backward, is I and W one after the other unless it was measured whole. `known` is what of F and B is
    by measurement; the rest is communication, and by the device's data sheet. `sent_again_s` of the recomputation
    are messages, which no profile of one device has. `times` are those of a single estimated layer, by what comes
    before the experts, the experts, and the exchange of tokens.
    """

    forward: Parts
    backward_input: Parts
    backward_weight: Parts
    basis: str = BASIS
    whole_backward: Parts | None = None
    known: Known = field(default_factory=Known)
    sent_again_s: float = 0.0
    times: LayerTimes | None = None

    @property
    def backward(self) -> Parts:
        """B, the full backward."""
        return self.whole_backward or self.backward_input + self.backward_weight

    def __add__(self, other: "Estimate") -> "Estimate":
        is_whole = self.whole_backward is not None or other.whole_backward is not None
        return Estimate(
            self.forward + other.forward,
            self.backward_input + other.backward_input,
            self.backward_weight + other.backward_weight,
            whole_backward=self.backward + other.backward if is_whole else None,
            known=self.known + other.known,
        )

    def __mul__(self, factor: float) -> "Estimate":
        return Estimate(
            self.forward * factor,
            self.backward_input * factor,
            self.backward_weight * factor,
            self.basis,
            None if self.whole_backward is None else self.whole_backward * factor,
            self.known * factor,
        )
