"""Seconds of F, I, W and B of layers and ends of a model, from data sheets and calibration constants.

`benchmarks/analytic.py` prints the errors against published runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ppsim.costs.cuda_graph_launches import idles_for_token_counts, with_launches, with_recomputed_launches
from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.layer_messages import LayerMessages
from ppsim.costs.operator_kernels import OperatorKernels, computed_rows, layer_operators
from ppsim.costs.pair_overlap import LayerTimes
from ppsim.costs.pass_kernels import PassKernels, total
from ppsim.costs.recomputation import forward_again
from ppsim.costs.time_breakdown import CostEstimate, MeasuredSeconds, TimeBreakdown
from ppsim.costs.torch_blocks import TorchKernels
from ppsim.machine import collectives
from ppsim.machine.collectives import Routing, dispatch_s
from ppsim.machine.kernels.times import KernelTime
from ppsim.model.architecture import End, Layer, Model, mtp_linears
from ppsim.model.attention_and_mlp import Attention, MixtureOfExperts
from ppsim.model.attention_base import ScoredAttention
from ppsim.model.blocks import end_operators, layer_input
from ppsim.model.compressed_attention import CompressedAttention
from ppsim.model.mixer import Mixer
from ppsim.model.operators import Operator, Rows
from ppsim.model.recurrent import Recurrent

Cores: TypeAlias = list[tuple[Mixer, PassKernels]]
"""The mixers of a layer, each with the kernels of its core."""

_LAUNCHES_IN_PAIR, _CASTING_LAUNCHES_IN_PAIR = 1.21, 1.48
"""Host time to launch F and B in the parts of a pair, relative to F and B alone, in 16 and in 8 or 4 bits.

Fit: Qwen3-235B-A22B on 64 B200 took 17.2 s in bfloat16 and 20.1 s in MXFP8 with overlapped exchanges. Its authors
then switched the overlap off because of the host (NVIDIA-NeMo/Megatron-Bridge, pull request 1760).
`benchmarks/expert_overlap.py` prints the errors of other runs.
"""


def layer_estimate(
    layer: Layer, context: ExecutionContext, *, micro_batch: int, sequence_length: int
) -> CostEstimate:
    """Raises `ConfigError` if tp, cp or ep do not divide the shape, or the device has no peak for the dtype."""
    if layer.in_16_bits and context.execution.operand_bytes:
        context = replace(context, execution=context.execution.in_16_bits())
    execution, tp, tokens = context.execution, context.layout.tp, context.tokens(micro_batch, sequence_length)
    operators = layer_operators(layer, context, sequence_length)
    rows = computed_rows(layer, context.cut, tokens=tokens, load=execution.expert_load)
    kind = OperatorKernels if execution.compile is None else TorchKernels
    timed = kind(context, operators, layer_input(layer), rows, micro_batch, sequence_length)
    of = timed.of_all()
    kernels = with_launches(total(of.values()), layer, context, operators, of)
    messages = LayerMessages.of(timed)
    ep_s = _experts_s(layer, context, tokens / context.cut.norm_divisor) + timed.permuted_in_exchange_s()
    cores = [(operator.core, of[operator.name]) for operator in operators if operator.core is not None]
    cp_s, cp_backward_s = _context_s(layer, context, tokens, cores)
    scores = layer.attention.core_flops(sequence_length, causal=True) * tokens / tp
    flops = layer.forward_flops(sequence_length, causal=True) * tokens / tp
    calls_s = _calls_s(layer, context)
    efficiency = context.cluster.device.efficiency
    launching_s = efficiency.routing_host_s * idles_for_token_counts(layer, context) + calls_s
    forward = parts_of(
        context, kernels.forward, flops,
        tp_s=messages.forward_s(),
        ep_s=ep_s - context.hidden_ep_s(ep_s, kernels.backward_input + kernels.backward_weight),
        cp_s=(1 - execution.hidden_cp) * cp_s,
        launching_s=launching_s,
    )  # fmt: skip
    if not layer.has_backward:
        only_forward, alone = (forward, TimeBreakdown(), TimeBreakdown()), PassKernels(kernels.forward)
        launches = _launches_s(context, alone, launching_s)[0], 0.0
        times = _times(operators, of, only_forward, launches)
        return CostEstimate(*only_forward, known=_known(alone), times=times)
    again, names = forward_again(timed, of)
    repeated = [operator for operator in operators if operator.name in names]
    again = with_recomputed_launches(again, layer, context, repeated, of)
    cores_again = [(one.core, of[one.name]) for one in repeated if one.core is not None]
    sent_again_s = messages.forward_s(names)
    sent_again_s += (1 - execution.hidden_cp) * _context_s(layer, context, tokens, cores_again)[0]
    sent_again_s += forward.ep_s * any(one.kind == "dispatch" for one in repeated)
    launching_again_s = max(again.count * efficiency.host_s, launching_s * (execution.recompute == "full"))
    backward_input = parts_of(
        context, kernels.backward_input, flops + scores,
        tp_s=messages.backward_s(),
        ep_s=ep_s - context.hidden_ep_s(ep_s, kernels.forward),
        cp_s=(1 - execution.hidden_cp) * cp_backward_s,
        recompute_s=again.busy_s + sent_again_s,
        launching_s=launching_s, launching_again_s=launching_again_s,
    )  # fmt: skip
    frozen = 2.0 * layer.frozen_weights_per_token * tokens / tp
    launched_s = launching_s + launching_again_s
    ahead_s = max(0.0, backward_input.total_s - backward_input.host_s - launched_s)  # the host, at the end of I
    backward_weight = parts_of(
        context, kernels.backward_weight, flops - scores - frozen, launching_s=max(0.0, calls_s - ahead_s)
    )
    passes = forward, backward_input, backward_weight
    times = _times(operators, of, passes, _launches_s(context, kernels, launching_s, calls_s, launching_again_s))
    return CostEstimate(*passes, known=_known(kernels, again), sent_again_s=sent_again_s, times=times)


def _times(
    operators: Sequence[Operator],
    of: Mapping[str, PassKernels],
    passes: tuple[TimeBreakdown, TimeBreakdown, TimeBreakdown],
    launches: tuple[float, float],
) -> LayerTimes:
    kinds = [operator.kind for operator in operators]
    if "dispatch" in kinds:
        inside = operators[kinds.index("dispatch") : kinds.index("combine") + 1]
    else:
        inside = [operator for operator in operators if operator.sublayer == 2]
    experts = [kernels.busy_s for kernels in total(of[one.name] for one in inside).passes]
    before = [
        max(0.0, pass_cost.total_s - pass_cost.ep_s - pass_cost.host_s - experts_s)
        for pass_cost, experts_s in zip(passes, experts, strict=True)
    ]
    return LayerTimes(
        (before[0], before[1], before[2]),
        (experts[0], experts[1], experts[2]),
        passes[0].ep_s / 2,
        launches,
        (passes[0].host_s, passes[1].host_s + passes[2].host_s),
    )


def _launches_s(
    context: ExecutionContext, kernels: PassKernels, launching_s: float, calls_s: float = 0.0, again_s: float = 0.0
) -> tuple[float, float]:
    """Host seconds of F and of B in a pair; `calls_s` is the part of B that is W's, `again_s` of recomputation."""
    if context.execution.cuda_graphs == "full":
        return 0.0, 0.0
    of_kernel_s = context.cluster.device.efficiency.host_s
    backward = kernels.backward_input.count + kernels.backward_weight.count
    slower = _CASTING_LAUNCHES_IN_PAIR if context.execution.operand_bytes else _LAUNCHES_IN_PAIR
    forward_s = max(kernels.forward.count * of_kernel_s, launching_s)
    backward_s = max(backward * of_kernel_s, launching_s + calls_s) + again_s
    return slower * forward_s, slower * backward_s


def _known(kernels: PassKernels, *others: KernelTime) -> MeasuredSeconds:
    return MeasuredSeconds(table_s=sum(one.measured_s for one in (*kernels.passes, *others)))


def end_estimate(
    model: Model, end: End, context: ExecutionContext, *, micro_batch: int, sequence_length: int
) -> CostEstimate:
    """Return the seconds of a part outside the layers, which torch does not compile.

    No message is cast, and only messages of multi-token prediction and of the head's backward can be hidden.
    Vocabulary-parallel cross entropy sums three float32 numbers per token: the maximum, the sum of exponentials and
    the logit of the target. The projection for multi-token prediction gathers its outputs. The whole backward of an
    embedding is W.
    """
    execution, tokens = context.execution, context.tokens(micro_batch, sequence_length)
    source, operators = end_operators(model, end, context.cut, execution, context.vocab_multiple)
    hidden = execution.hidden_tp_forward * (end == "mtp"), execution.hidden_tp_backward * (end in ("mtp", "head"))
    outside = replace(execution, compile=None, hidden_tp_forward=hidden[0], hidden_tp_backward=hidden[1])
    implementation = OperatorKernels if execution.compile is None or end == "mtp" else TorchKernels
    rows: dict[Rows, float] = {"tokens": tokens, "own_tokens": tokens / context.cut.norm_divisor}
    timed = implementation(replace(context, execution=outside), operators, source, rows)
    passes, sent = total(timed.of_all().values()), replace(LayerMessages.of(timed), gathered_share=1.0)
    flops, forward_s, backward_s = 0.0, sent.forward_s(), sent.backward_s()
    if end == "head":
        flops = model.head_forward_flops() * tokens / context.layout.tp
        forward_s += 3 * context.seconds("all-reduce", 4.0 * tokens, "tp")
    elif end == "mtp":
        flops = (
            2.0 * tokens * sum(matrix.size * matrix.rows for matrix in mtp_linears(model.mtp[0], context.layout.tp))
        )
        message = float(tokens * model.hidden_size * execution.element_bytes)
        forward_s += (1 - hidden[0]) * context.seconds("all-gather", message, "tp")
        backward_s += (1 - hidden[1]) * context.gathered_s(message)
    inputs, weights = passes.backward_input, passes.backward_weight
    trains, is_first = model.trains(end), end == "embedding"
    gives = all(operator.gives_gradient for operator in operators)
    if is_first:
        inputs, weights, gives = KernelTime(), inputs + weights, False
    if not trains:
        weights = KernelTime()
    return CostEstimate(
        parts_of(context, passes.forward, flops, tp_s=forward_s),
        parts_of(context, inputs, flops * gives, tp_s=backward_s * gives),
        parts_of(context, weights, flops * trains, tp_s=backward_s * (is_first and trains)),
        known=_known(PassKernels(passes.forward, inputs, weights)),
    )


def parts_of(
    context: ExecutionContext,
    kernels: KernelTime,
    model_flops: float = 0.0,
    *,
    launching_s: float = 0.0,
    launching_again_s: float = 0.0,
    recompute_s: float = 0.0,
    **communication: float,
) -> TimeBreakdown:
    """Split the seconds of kernels by cause; if launching takes longer than running, the device waits.

    `launching_s` is the host time to launch the pass of a MoE layer, which communication can hide. Before the pass,
    the host needs `launching_again_s` to launch recomputed kernels, which take `recompute_s`.
    """
    device = context.cluster.device
    count = 0 if context.execution.cuda_graphs == "full" else kernels.count
    launches = max(count * device.efficiency.host_s, launching_s - sum(communication.values())) + launching_again_s
    ideal_s = model_flops / device.peak(context.execution.dtype)
    return TimeBreakdown(
        ideal_s=ideal_s,
        more_flops_s=kernels.matmul_ideal_s + kernels.attention_ideal_s - ideal_s,
        matmul_loss_s=kernels.matmul_s - kernels.matmul_ideal_s,
        attention_loss_s=kernels.attention_s - kernels.attention_ideal_s,
        memory_s=kernels.memory_s,
        host_s=max(launches - kernels.busy_s - recompute_s, 0.0),
        recompute_s=recompute_s,
        **communication,
    )


def _experts_s(layer: Layer, context: ExecutionContext, tokens: float) -> float:
    if not isinstance(layer.ffn, MixtureOfExperts):
        return 0.0
    execution = context.execution
    routing = Routing(
        tokens=tokens * execution.expert_load,
        token_bytes=layer.expert_width * execution.element_bytes,
        num_experts=layer.ffn.num_experts,
        experts_per_token=layer.experts_per_token,
    )
    return 2 * dispatch_s(
        execution.moe_dispatcher,
        routing,
        context.ranks("ep"),
        context.cluster,
        num_sms=execution.num_dispatcher_sms,
    )


def _calls_s(layer: Layer, context: ExecutionContext) -> float:
    """Host seconds to call a library once per expert and GEMM, in F, and again in I and in W."""
    of_call_s = context.device.efficiency.expert_call_s
    if of_call_s is None or not context.execution.legacy_grouped_gemm:
        return 0.0
    return of_call_s * sum(linear.count for linear in layer.linears(context.cut) if linear.kind == "routed")


def _context_s(layer: Layer, context: ExecutionContext, tokens: int, cores: Cores) -> tuple[float, float]:
    if context.layout.cp == 1 or not layer.has_mixer:
        return 0.0, 0.0
    took = [_exchanged_s(part, core, layer.hidden_size, context, tokens) for part, core in cores]
    return sum(forward for forward, _ in took), sum(backward for _, backward in took)


def _exchanged_s(
    a: Mixer, core: PassKernels, h: int, context: ExecutionContext, tokens: int
) -> tuple[float, float]:
    """Communication among cp ranks in a forward and in a backward, for one mixer.

    In 8-bit attention with one scale per tensor, a ring and an all-to-all send 8 bits per element. With delayed
    scaling, this includes gradients (`AttnFuncWithCPAndKVP2P`, `AttnFuncWithCPAndQKVOA2A`). In MXFP8 they send 16.

    If keys and values are gathered, their gradients are sent to the next rank in float32 after each of the cp
    blocks (torch, `_templated_ring_attention_backward`). With torch.compile, nothing overlaps with attention: a
    traced collective is waited for at once (torch 2.5 to 2.6, distributed/_functional_collectives.py,
    `_maybe_wrap_tensor`).
    """
    cp, tp, execution, e = context.layout.cp, context.layout.tp, context.execution, context.execution.element_bytes
    if isinstance(a, Recurrent):
        columns = (a.inner_size + a.convolved + a.num_heads) // tp, a.inner_size // tp
        took = sum(context.seconds("all-to-all", float(count * tokens * e), "cp") for count in columns)
        return took, took
    if isinstance(a, CompressedAttention):
        before_s = collectives.point_to_point_s(
            float(a.rows_before * h * e), context.cluster.tiers[context.ranks("cp").tier].p2p_link
        )
        gathered = a.gathered_columns * tokens * cp * e
        exchanges = [
            context.seconds(how, gathered, "cp") if gathered else 0.0 for how in ("all-gather", "reduce-scatter")
        ]
        return before_s + exchanges[0], before_s + exchanges[1]
    if isinstance(a, Attention):
        columns = a.num_heads // tp * a.head_size, a.kv_heads_per_rank(tp) * a.head_size
    elif isinstance(a, ScoredAttention):
        columns = (a.score_width // tp // 2,) * 2
    else:
        return 0.0, 0.0
    if execution.attention_dtype == "float8" and execution.context != "all-gather":
        e = 1
    queries, keys = (float(count * tokens * e) for count in columns)
    if execution.context == "all-to-all":
        took = 2 * context.seconds("all-to-all", queries, "cp") + 2 * context.seconds("all-to-all", keys, "cp")
        return took, took
    link = context.cluster.tiers[context.ranks("cp").tier].p2p_link
    if execution.context == "ring":
        hop_s = collectives.point_to_point_s(2 * keys, link)
        if execution.compile is not None:
            return (cp - 1) * hop_s, 2 * (cp - 1) * hop_s
        return _exposed_ring_s(hop_s, cp, core)
    gathered_s = context.seconds("all-gather", 2 * queries * cp, "cp")
    return gathered_s, gathered_s + cp * collectives.point_to_point_s(2 * queries * 4 / e, link)


def _exposed_ring_s(hop_s: float, cp: int, core: PassKernels) -> tuple[float, float]:
    """Exposed time of ring messages of `hop_s` each; each pass computes cp blocks of attention.

    Forward: keys and values overlap with each block except the last. Backward: keys and values overlap with the
    first block, gradients with the last, both with the blocks between (TransformerEngine,
    `AttnFuncWithCPAndKVP2P`).
    """
    forward, backward = (
        [max(0.0, hops * hop_s - kernels.attention_s / cp) for hops in (1, 2)]
        for kernels in (core.forward, core.backward_input)
    )
    return (cp - 1) * forward[0], 2 * backward[0] + (cp - 2) * backward[1]
