"""Kernel launches of a layer with CUDA graphs: one per graph and pass, and one per kernel outside graphs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.pass_kernels import PassKernels, total
from ppsim.machine.kernels.times import KernelTime
from ppsim.model.architecture import Layer
from ppsim.model.cuda_graph_scope import captures_all, captures_feed_forward, captures_mixer, captures_router
from ppsim.model.cuda_graphs import CudaGraphs, captures
from ppsim.model.operators import Operator


def with_launches(
    kernels: PassKernels,
    layer: Layer,
    context: ExecutionContext,
    operators: Sequence[Operator],
    of: Mapping[str, PassKernels],
) -> PassKernels:
    graphs = context.execution.cuda_graphs
    if graphs == "none":
        return kernels
    if graphs == "full" or captures_all(graphs, layer):
        return _counting(kernels, [int(graphs != "full")] * 3)
    inside = _counts(total(of[operator.name] for operator in operators if _is_captured(operator, graphs, layer)))
    left = [
        launches - of_graph + (of_graph > 0) for launches, of_graph in zip(_counts(kernels), inside, strict=True)
    ]
    return _counting(kernels, left)


def _is_captured(one: Operator, graphs: CudaGraphs, layer: Layer) -> bool:
    if one.sublayer == 1:
        return captures_mixer(graphs, layer)
    is_before = one.kind == "norm" or "shared_experts" in one.module or "router" in one.module
    return captures_feed_forward(graphs, layer) or (captures_router(graphs, layer) and is_before)


def with_recomputed_launches(
    kernels: KernelTime,
    layer: Layer,
    context: ExecutionContext,
    repeated: Iterable[Operator],
    of: Mapping[str, PassKernels],
) -> KernelTime:
    graphs = context.execution.cuda_graphs
    if graphs == "full" or captures_all(graphs, layer):
        return replace(kernels, count=0)
    captured = sum(
        of[operator.name].forward.count for operator in repeated if _is_captured(operator, graphs, layer)
    )
    return replace(kernels, count=kernels.count - captured)


def idles_for_token_counts(layer: Layer, context: ExecutionContext) -> bool:
    """Return whether the device can run idle because the host reads token counts before it launches the experts.

    If the operators before the exchange are captured, too few launches remain for the device to run idle, except
    before an all-to-all, where the host always reads the counts (Megatron-LM, `MoEAlltoAllTokenDispatcher`).
    """
    execution = context.execution
    is_ready = captures(execution.cuda_graphs, "moe_preprocess") and execution.moe_dispatcher != "alltoall"
    return layer.is_moe and execution.is_dropless and not is_ready


def _counts(kernels: PassKernels) -> list[int]:
    return [pass_cost.count for pass_cost in kernels.passes]


def _counting(kernels: PassKernels, counts: list[int]) -> PassKernels:
    return PassKernels(
        *(replace(pass_cost, count=count) for pass_cost, count in zip(kernels.passes, counts, strict=True))
    )
