"""The kernels of a layer's operators by name, as tests ask for them."""

from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.operator_kernels import OperatorKernels, computed_rows, layer_operators
from ppsim.costs.pass_kernels import PassKernels, total
from ppsim.costs.torch_blocks import TorchKernels
from ppsim.model.architecture import Layer
from ppsim.model.blocks import layer_input
from ppsim.model.operators import Operator


def timed(layer: Layer, place: ExecutionContext, *, tokens: int = 4096) -> OperatorKernels:
    """Return what times operators on a rank, of one sequence of so many tokens."""
    rows = computed_rows(layer, place.cut, tokens=tokens, load=place.execution.expert_load)
    found = layer_operators(layer, place, tokens)
    kind = OperatorKernels if place.execution.compile is None else TorchKernels
    return kind(place, found, layer_input(layer), rows, 1, tokens)


def operators(layer: Layer, place: ExecutionContext, *, tokens: int = 4096) -> dict[str, Operator]:
    """Return the operators of a layer by name."""
    return {one.name: one for one in layer_operators(layer, place, tokens)}


def kernels(layer: Layer, place: ExecutionContext, *, tokens: int = 4096) -> dict[str, PassKernels]:
    """Return the kernels of each operator by name, and "sums"."""
    return timed(layer, place, tokens=tokens).of_all()


def passing(layer: Layer, place: ExecutionContext, *, tokens: int = 4096) -> PassKernels:
    """Return all that only passes over memory in a layer."""
    of = timed(layer, place, tokens=tokens)
    return total(of.passing(one) for one in of.operators) + of.sums()


def products_of(layer: Layer, place: ExecutionContext, *, tokens: int = 4096) -> PassKernels:
    """Return all GEMMs of a layer, with what passes over memory around those of experts."""
    of = timed(layer, place, tokens=tokens)
    gemms = [one for one in of.operators if one.weight is not None]
    return total(of.product(one) for one in gemms) + total(
        of.passing(one) for one in gemms if one.weight is not None and one.weight.kind == "routed"
    )
