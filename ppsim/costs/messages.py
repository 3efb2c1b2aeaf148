"""What tensor-parallel ranks exchange around the operators of a layer, and what of it no compute hides."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ppsim.costs.operator_kernels import OperatorKernels
from ppsim.costs.place import Place
from ppsim.costs.torch_blocks import num_amax
from ppsim.model.operators import gathered_inputs, summed_outputs
from ppsim.model.recompute import BY_OPERATORS


@dataclass(frozen=True)
class Messages:
    """Bytes that ranks gather before an operator and sum behind it in a forward, by the operator's name.

    A GEMM that ranks divide by its outputs takes the whole sequence, which is gathered once for all that read it;
    one that they divide by its inputs gives a part of a sum. Without sequence parallelism nothing is gathered, and
    gradients of inputs are summed instead. `pairs`: a rank's part of what was dispatched to experts, which ranks
    of etp gather and sum (Megatron-LM, `MoEAlltoAllTokenDispatcher`).
    """

    place: Place
    scales: tuple[int, int]
    gathered: Mapping[str, float]
    summed: Mapping[str, float]
    pairs: Mapping[str, float]

    @classmethod
    def of(cls, timed: OperatorKernels) -> "Messages":
        """Return the messages of a layer whose operators are timed."""
        place, operators, e = timed.place, timed.operators, timed.place.execution.element_bytes
        routed = [one for one in operators if one.weight is not None and one.weight.kind == "routed"]
        size, pairs = e * timed.rows["tokens"], dict[str, float]()
        if routed and not place.execution.sequence_parallel and place.cut.expert_tp == place.cut.tp:
            # One sum is behind all experts and the expert of all tokens, and one of gradients before them.
            halves = [one for one in operators if one.half == 1]
            gathered, summed = gathered_inputs(halves, timed.tensors), summed_outputs(halves)
            gathered[routed[0].name] = summed[routed[-1].name] = timed.layer_input
        else:
            gathered, summed = timed.gathered, timed.summed
            pairs = {one.name: e * timed.rows["capacity"] * one.writes[0].columns for one in routed[-1:]}
        return cls(
            place,
            num_amax(operators, place),
            {name: size * one.columns for name, one in gathered.items()},
            {name: size * one.columns for name, one in summed.items()},
            pairs,
        )

    def forward_s(self, names: Iterable[str] | None = None) -> float:
        """Return the exposed seconds of a forward, or of these operators of it."""
        wanted = {*self.gathered, *self.summed, *self.pairs} if names is None else set(names)
        hidden = self.place.execution.hidden_tp_forward
        gather_s = sum(self._gather_s(size) for name, size in self.gathered.items() if name in wanted)
        sum_s = sum(self.place.reduced_s(size) for name, size in self.summed.items() if name in wanted)
        sum_s += self._pairs_s(wanted)
        exposed, is_whole = 1.0 if self._waits_for_gathers else 1 - hidden, wanted >= self.gathered.keys()
        return exposed * gather_s + (1 - hidden) * sum_s + self.scales[0] * self._agreed_s * is_whole

    def backward_s(self) -> float:
        """Return the exposed seconds of a backward.

        Megatron-LM's GEMMs keep their part of the sequence, and gather it again for W. torch's keep what was
        gathered, so that only `selective-op` gathers again; and none of its sums of gradients is inside a GEMM.
        """
        execution = self.place.execution
        exposed = 1 - execution.hidden_tp_backward
        gather_s = sum(self._gather_s(size) for size in self.summed.values())
        sum_s = sum(self.place.reduced_s(size) for size in self.gathered.values()) + self._pairs_s(self.pairs)
        again_s = sum(self._gather_s(size) for size in self.gathered.values())
        if not self._is_torch:
            return exposed * (gather_s + sum_s + again_s)
        exposed_of_gathers = 1.0 if self._waits_for_gathers else exposed
        repeats = execution.recompute == BY_OPERATORS
        return exposed_of_gathers * (gather_s + repeats * again_s) + sum_s + self.scales[1] * self._agreed_s

    @property
    def _is_torch(self) -> bool:
        return self.place.execution.compile is not None and self.place.cut.norm_divisor > 1

    @property
    def _waits_for_gathers(self) -> bool:
        """Whether gathers are not among the messages that run beside GEMMs."""
        return self._is_torch and self.place.is_async and not self.place.gathers_in_products

    @property
    def _agreed_s(self) -> float:
        """Of one scale that ranks agree on."""
        return self.place.seconds("all-reduce", 4.0, "tp") if self._is_torch else 0.0

    def _gather_s(self, num_bytes: float) -> float:
        """The whole sequence for a GEMM, in the type of its operands."""
        return self.place.gathered_s(self.place.execution.gathered_share * num_bytes)

    def _pairs_s(self, names: Iterable[str]) -> float:
        return sum(self.place.sum_over_tp_s(self.pairs[name], "etp") for name in names if name in self.pairs)
