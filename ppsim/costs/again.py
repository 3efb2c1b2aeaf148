"""The forward kernels that a backward runs again, by the layer's plan of recomputation."""

from collections.abc import Sequence

from ppsim.costs.operator_kernels import OperatorKernels
from ppsim.costs.pass_kernels import total
from ppsim.costs.torch_blocks import TorchKernels
from ppsim.machine.kernels.times import KernelTime
from ppsim.model.operators import Operator, plan_of
from ppsim.model.recompute import BY_OPERATORS, Recompute, by_operators


def operators_again(operators: Sequence[Operator], recompute: Recompute, *, stops_early: bool) -> set[str] | None:
    """Return the names of the operators that a backward runs again; None for `selective-op`, see `forward_again`.

    `stops_early`: torch's checkpoint of a whole layer stops after the last tensor that the backward needs.
    """
    if recompute == BY_OPERATORS:
        return None
    if recompute == "full" and stops_early:
        return _until_last_saved(operators)
    return {name for one in plan_of(operators, recompute) for name in one.operators}


def _until_last_saved(operators: Sequence[Operator]) -> set[str]:
    """The operators up to the last whose output the backward needs, where torch stops."""
    needed = {name for one in operators for name in (*one.saved_for_i, *one.saved_for_w)}
    last = max(index for index, one in enumerate(operators) if needed & {made.name for made in one.writes})
    return {one.name for one in operators[: last + 1]}


def forward_again(timed: OperatorKernels) -> KernelTime:
    """Return what `selective-op` computes again: every second GEMM, and what passes over memory but the last sum.

    Neither the core of attention nor what is scattered along the sequence, which are kept.
    """
    gemms = [one.weight for one in timed.operators if one.weight is not None]
    _, repeated = by_operators(gemms, timed.place.cut)
    passing = [timed.passing(one) for one in timed.operators[:-1]]
    again = total([*map(timed.gemm, repeated), *passing]).forward
    return again.without(timed.scattered_s()) if isinstance(timed, TorchKernels) else again
