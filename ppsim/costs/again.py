"""The forward kernels that a backward runs again, by the layer's plan of recomputation."""

from collections.abc import Mapping, Sequence

from ppsim.costs.operator_kernels import Kernels
from ppsim.costs.pass_kernels import PassKernels, total
from ppsim.costs.torch_blocks import TorchKernels
from ppsim.machine.kernels.times import KernelTime
from ppsim.model.operators import Operator, plan_of
from ppsim.model.recompute import BY_OPERATORS, by_operators


def forward_again(operators: Sequence[Operator], of: Mapping[str, PassKernels], timed: Kernels) -> KernelTime:
    """Return what of a forward is computed again; `of` has the kernels of each operator by name."""
    recompute = timed.place.execution.recompute
    if recompute == BY_OPERATORS:
        return _by_operators(operators, of, timed)
    again = {name for one in plan_of(operators, recompute) for name in one.operators}
    if recompute == "full" and isinstance(timed, TorchKernels):
        again = _until_last_saved(operators)
    return total(of[name] for name in again).forward


def _until_last_saved(operators: Sequence[Operator]) -> set[str]:
    """The operators up to the last whose output the backward needs, where torch stops."""
    needed = {name for one in operators for name in (*one.saved_for_i, *one.saved_for_w)}
    last = max(index for index, one in enumerate(operators) if needed & {made.name for made in one.writes})
    return {one.name for one in operators[: last + 1]}


def _by_operators(operators: Sequence[Operator], of: Mapping[str, PassKernels], timed: Kernels) -> KernelTime:
    """What `selective-op` computes again: every second GEMM, and all that passes over memory but the last addition.

    Neither the core of attention nor what is scattered along the sequence, which are kept.
    """
    _, gemms = by_operators([one.weight for one in operators if one.weight is not None], timed.place.cut)
    passing = [timed.passing(one) for one in operators[:-1]]
    kept = sum(
        (
            timed.along_sequence(one).forward
            for one in operators[:-1]
            if isinstance(timed, TorchKernels) and one.sequence == "scattered"
        ),
        KernelTime(),
    )
    again = total([timed.gemm(one) for one in gemms] + passing).forward
    return again.without(kept)
