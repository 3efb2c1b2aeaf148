"""Tensor-parallel communication around the operators of a layer, and its exposed time."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.operator_kernels import OperatorKernels
from ppsim.costs.torch_blocks import num_amax
from ppsim.model.operators import Operator, gathered_inputs, summed_outputs
from ppsim.model.recompute import BY_OPERATORS
from ppsim.parallel.groups import GroupName


@dataclass(frozen=True)
class LayerMessages:
    """Bytes that ranks all-gather before an operator and reduce after it in a forward, by operator name.

    Without sequence parallelism nothing is gathered, and gradients of inputs are all-reduced instead. `scales`:
    number of float8 scales that ranks agree on, in a forward and in a backward. `pairs`: tokens dispatched to
    experts, which etp ranks gather and reduce (Megatron-LM, `MoEAlltoAllTokenDispatcher`), not beside GEMMs
    (core/extensions/transformer_engine.py at d98e8a64, `explicit_expert_comm`). `again`: bytes gathered again for a
    weight gradient. `adapters`: seconds of LoRA adapters in a forward and in a backward. `gathered_share`: bytes of
    a gathered input, relative to activations.
    """

    place: ExecutionContext
    scales: tuple[int, int]
    gathered: Mapping[str, float]
    summed: Mapping[str, float]
    pairs: Mapping[str, float]
    again: Mapping[str, float]
    adapters: Mapping[str, tuple[float, float]]
    gathered_share: float

    @classmethod
    def of(cls, timed: OperatorKernels) -> "LayerMessages":
        context, operators, e = timed.place, timed.operators, timed.place.execution.element_bytes
        routed = [
            operator for operator in operators if operator.weight is not None and operator.weight.kind == "routed"
        ]
        size, pairs = e * timed.rows["tokens"], dict[str, float]()
        if routed and not context.execution.sequence_parallel and context.cut.expert_tp == context.cut.tp:
            # Routed and shared experts share one all-reduce of outputs, and one of input gradients.
            halves = [operator for operator in operators if operator.sublayer == 1]
            gathered, summed = gathered_inputs(halves, timed.tensors), summed_outputs(halves)
            gathered[routed[0].name] = summed[routed[-1].name] = timed.layer_input
        else:
            gathered, summed = timed.gathered, timed.summed
            pairs = {one.name: e * timed.rows["capacity"] * one.writes[0].columns for one in routed[-1:]}
        frozen = {operator.name for operator in operators if not operator.trainable}
        return cls(
            context,
            num_amax(operators, context),
            {name: size * one.columns for name, one in gathered.items()},
            {name: size * one.columns for name, one in summed.items()},
            pairs,
            {name: size * one.columns for name, one in gathered.items() if name not in frozen},
            {
                operator.name: _of_adapter(timed, operator)
                for operator in operators
                if operator.weight and operator.weight.is_adapter
            },
            context.execution.gathered_share,
        )

    def forward_s(self, names: Iterable[str] | None = None) -> float:
        wanted = {*self.gathered, *self.summed, *self.pairs} if names is None else set(names)
        hidden = self.place.execution.hidden_tp_forward
        gather_s = sum(self._gather_s(size) for name, size in self.gathered.items() if name in wanted)
        sum_s = sum(self.place.reduced_s(size) for name, size in self.summed.items() if name in wanted)
        exposed, is_whole = 1.0 if self._waits_for_gathers else 1 - hidden, wanted >= self.gathered.keys()
        adapters_s = sum(
            forward_s for name, (forward_s, _) in self.adapters.items() if names is None or name in wanted
        )
        own_s = self._pairs_s(wanted) + self.scales[0] * self._agreed_s * is_whole + adapters_s
        return exposed * gather_s + (1 - hidden) * sum_s + own_s

    def backward_s(self) -> float:
        """torch overlaps no gradient reduction with a GEMM.

        Megatron-LM's GEMMs save only their part of the sequence and gather it again for W. torch saves the gathered
        tensor, so it gathers again only with `selective-op`.
        """
        execution = self.place.execution
        exposed = 1 - execution.hidden_tp_backward
        gather_s = sum(self._gather_s(size) for size in self.summed.values())
        sum_s = sum(self.place.reduced_s(size) for size in self.gathered.values())
        again_s = sum(self._gather_s(size) for size in self.again.values())
        adapters_s = sum(backward_s for _, backward_s in self.adapters.values())
        own_s = self._pairs_s(self.pairs) + adapters_s
        if not self._is_torch:
            return exposed * (gather_s + sum_s + again_s) + own_s
        exposed_of_gathers = 1.0 if self._waits_for_gathers else exposed
        repeats = execution.recompute == BY_OPERATORS
        gathers_s = exposed_of_gathers * (gather_s + repeats * again_s)
        return gathers_s + sum_s + self.scales[1] * self._agreed_s + own_s

    @property
    def _is_torch(self) -> bool:
        return self.place.execution.compile is not None and self.place.cut.norm_divisor > 1

    @property
    def _waits_for_gathers(self) -> bool:
        return self._is_torch and self.place.is_async and not self.place.gathers_in_products

    @property
    def _agreed_s(self) -> float:
        return self.place.seconds("all-reduce", 4.0, "tp") if self._is_torch else 0.0

    def _gather_s(self, num_bytes: float) -> float:
        return self.place.gathered_s(self.gathered_share * num_bytes)

    def _pairs_s(self, names: Container[str]) -> float:
        return sum(self.place.sum_over_tp_s(self.pairs[name], "etp") for name in self.pairs if name in names)


def _of_adapter(timed: OperatorKernels, operator: Operator) -> tuple[float, float]:
    """Seconds of the messages of matrix A or B of a LoRA adapter, in a forward and in a backward.

    Outputs that ranks divide are gathered. If ranks divide A's inputs instead, A's outputs are all-reduced. In the
    backward, the gradient of B's input is all-reduced. With sequence parallelism, the gradient of B's divided
    outputs is gathered; without it, the gradient of A's input is all-reduced if A's outputs are divided. No message
    is hidden (Megatron-Bridge, `ParallelLinearAdapter.forward`).
    """
    assert operator.weight is not None
    context = timed.place
    group: GroupName = "etp" if operator.weight.kind == "routed adapter" else "tp"
    of_column = context.execution.element_bytes * timed.rows[operator.rows]
    read, written = timed.tensors[operator.reads[0]], operator.writes[0]
    is_gathered, is_parallel = operator.weight.outputs < written.columns, context.execution.sequence_parallel
    gather_s = context.seconds("all-gather", of_column * written.columns, group) if is_gathered else 0.0
    sum_s = context.seconds("all-reduce", of_column * read.columns, group)
    if operator.name.endswith(" B"):
        return gather_s, sum_s + is_parallel * gather_s
    if is_gathered:
        return gather_s, (not is_parallel) * sum_s
    return context.seconds("all-reduce", of_column * written.columns, group), 0.0
