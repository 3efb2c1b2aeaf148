"""Peak memory within a layer's forward and backward, by a walk over its operators."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ppsim.model.operators import MemoryPlan, OffloadGroup, Operator, Tensor, saved, stored, tensors_of


class _Gradients:
    """Live gradients by tensor name; inputs of a sum share its gradient."""

    def __init__(self) -> None:
        self.owner: dict[str, str] = {}
        self.sizes: dict[str, float] = {}

    def make(self, name: str, size: float) -> None:
        if name not in self.owner:
            self.owner[name] = name
            self.sizes[name] = size

    def share(self, name: str, other: str) -> None:
        self.owner.setdefault(name, self.owner[other])

    def free(self, name: str) -> None:
        owner = self.owner.pop(name, None)
        if owner is not None and owner not in self.owner.values():
            del self.sizes[owner]


def backward_peak(
    operators: Sequence[Operator],
    layer_input: Tensor,
    plan: MemoryPlan,
    size: Callable[[Tensor], float],
    *,
    casts: bool,
) -> float:
    """Bytes at the peak of a backward beyond those saved by the forward.

    A checkpoint recomputes all its tensors at once. With `discards_output`, it recomputes each output when needed,
    and the output lives until the backward of the operator that wrote it ends. The gradient of the layer's output
    is not counted: it is the message from the next stage.
    """
    tensors = tensors_of(operators, layer_input)
    needs = {operator.name: _needs(operator, tensors, size, casts=casts) for operator in operators}
    dropped = frozenset(name for one in plan if one.discards_output for name in one.operators)
    reused = {name for one in operators for name in (*one.saved_for_i, *one.saved_for_w)}
    for one in operators:
        if one.name in dropped:
            outputs = [stored(tensors, tensor.name) for tensor in one.writes if tensor.name in reused]
            needs[one.name] |= {tensor.name: size(tensor) for tensor in outputs}
    users = Counter(name for found in needs.values() for name in found)
    alive = {one.name: size(one) for one in saved(operators, layer_input, plan, casts=casts)}
    regions = [one.operators for one in plan if not one.discards_output]
    held, peak, gradients = sum(alive.values()), 0.0, _Gradients()
    for tensor in operators[-1].writes:
        gradients.make(tensor.name, 0.0)
    for one in reversed(operators):
        for name in next((names for names in regions if one.name in names), (one.name,)):
            alive |= {need: bytes_ for need, bytes_ in needs[name].items() if users[need] > 0}
        for name in one.reads:
            if one.passes_gradient:
                gradients.share(name, one.writes[0].name)
            else:
                gradients.make(name, size(tensors[name]))
        transient = sum(size(tensor) for tensor in (*_gathered(one, tensors, size), *_cast_back(one, tensors)))
        peak = max(peak, sum(alive.values()) + sum(gradients.sizes.values()) + transient)
        for tensor in one.writes:
            gradients.free(tensor.name)
        users.subtract(needs[one.name].keys())
        alive = {name: bytes_ for name, bytes_ in alive.items() if users[name] > 0}
    return peak - held


def forward_peak(
    operators: Sequence[Operator],
    layer_input: Tensor,
    plan: MemoryPlan,
    size: Callable[[Tensor], float],
    groups: Sequence[OffloadGroup],
    *,
    casts: bool,
) -> float:
    """Bytes at the peak of a forward beyond those that stay saved, with offloaded groups.

    A copied tensor that no other module saves leaves the device after the last operator of its module.
    """
    tensors = tensors_of(operators, layer_input)
    ends = {word: at for at, one in enumerate(operators) for word in one.module.split("/")}
    kept = {one.name for one in saved(operators, layer_input, plan, casts=casts)}
    kept -= {tensor.name for group in groups for tensor in group.freed}
    last = {stored(tensors, name).name: at for at, one in enumerate(operators) for name in one.reads}
    for group in groups:
        for tensor in group.copied:
            last[tensor.name] = max(last.get(tensor.name, 0), ends[group.module])
    source = stored(tensors, layer_input.name)
    alive, peak = {source.name: size(source)}, 0.0
    for at, operator in enumerate(operators):
        outputs = [stored(tensors, tensor.name) for tensor in operator.writes]
        outputs += [stored(tensors, name, is_operand=casts and operator.quantized) for name in operator.saved_for_w]
        alive |= {tensor.name: size(tensor) for tensor in outputs}
        gathered = next(_gathered(operator, tensors, size), None)
        peak = max(peak, sum(alive.values()) + (size(gathered) if gathered else 0.0))
        alive = {name: bytes_ for name, bytes_ in alive.items() if name in kept or last.get(name, at) > at}
    return peak - sum(alive.values())


def _needs(
    one: Operator, tensors: Mapping[str, Tensor], size: Callable[[Tensor], float], *, casts: bool
) -> dict[str, float]:
    saves = [stored(tensors, name) for name in one.saved_for_i]
    saves += [stored(tensors, name, is_operand=casts and one.quantized) for name in one.saved_for_w]
    return {tensor.name: size(tensor) for tensor in saves}


def _cast_back(one: Operator, tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
    """Inputs that were saved in 8 bits (Megatron-LM, core/fusions/fused_bias_swiglu.py)."""
    for name in one.saved_for_i:
        if tensors[name].dtype == "f8":
            yield replace(tensors[name], dtype="act")


def _gathered(one: Operator, tensors: Mapping[str, Tensor], size: Callable[[Tensor], float]) -> Iterator[Tensor]:
    """Whole-sequence tensors that tensor-parallel ranks hold during a GEMM's backward.

    If the weight is divided by outputs: its input, gathered again unless the weight is frozen, and the input's
    gradient before the reduce-scatter. If divided by inputs: the gathered gradient of its output.
    """
    if one.weight is None or one.weight.split is None or not one.writes:
        return
    is_before = one.weight.split == "outputs"
    own = tensors[one.reads[0]] if is_before else one.writes[0]
    whole = replace(own, rows="tokens")
    if own.rows == "own_tokens" and size(whole) > size(own):
        yield whole
        if is_before and one.trainable:
            yield whole
