"""Forward kernels that the backward runs again, according to the recomputation plan of a layer."""

from collections.abc import Mapping, Sequence

from ppsim.costs.operator_kernels import OperatorKernels
from ppsim.costs.pass_kernels import PassKernels, total
from ppsim.costs.torch_blocks import TorchKernels
from ppsim.machine.kernels.times import KernelTime
from ppsim.model.operators import Operator, plan_of
from ppsim.model.recompute import BY_OPERATORS, by_operators, counts


def forward_again(timed: OperatorKernels, of: Mapping[str, PassKernels]) -> tuple[KernelTime, set[str]]:
    """Return the time of the recomputed part of a forward, and the operators whose communication is repeated.

    `selective-op` repeats no communication.
    """
    execution = timed.place.execution
    if execution.recompute == BY_OPERATORS:
        return _by_operators(timed), set()
    names = {name for one in plan_of(timed.operators, execution.recompute) for name in one.operators}
    if execution.recompute == "full" and execution.compile is not None:
        names = _until_last_saved(timed.operators)
    return total(of[operator.name] for operator in timed.operators if operator.name in names).forward, names


def _until_last_saved(operators: Sequence[Operator]) -> set[str]:
    """Operators up to the last one whose output the backward needs, after which torch's checkpoint stops."""
    needed = {name for operator in operators for name in (*operator.saved_for_i, *operator.saved_for_w)}
    last = max(
        index for index, operator in enumerate(operators) if needed & {output.name for output in operator.writes}
    )
    return {operator.name for operator in operators[: last + 1]}


def _by_operators(timed: OperatorKernels) -> KernelTime:
    """Kernels that `selective-op` runs again: every second GEMM, experts, others up to the last that is saved."""
    gemms = [operator for operator in timed.operators if operator.weight is not None]
    _, repeated = by_operators([gemm.weight for gemm in gemms if gemm.weight], timed.place.cut)
    uncounted = [timed.product(gemm) for gemm in gemms if gemm.weight and not counts(gemm.weight)]
    names = _until_last_saved(timed.operators)
    passing = [timed.passing(operator) for operator in timed.operators if operator.name in names]
    again = total([*map(timed.gemm, repeated), *uncounted, *passing]).forward
    return again.without(timed.scattered_s()) if isinstance(timed, TorchKernels) else again
