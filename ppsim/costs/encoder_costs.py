"""Seconds of image and audio encoders, per microbatch of the decoder."""

from collections import Counter
from dataclasses import replace

from ppsim.costs.analytic import layer_estimate, parts_of
from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.pass_kernels import PassKernels, products
from ppsim.costs.time_breakdown import NO_COST, CostEstimate, MeasuredSeconds, TimeBreakdown
from ppsim.machine.kernels.times import KernelTime, memory_kernel_time
from ppsim.model.encoder import Encoder, EncoderPart


def encoder_estimate(part: EncoderPart, context: ExecutionContext, *, micro_batch: int) -> CostEstimate:
    """If several ranks compute the same patches, the model FLOPs count them once.

    The model FLOPs take their time at the peak of the job's number format, also if the encoder computes in 16 bits.
    """
    encoder, number = part.encoder, micro_batch * part.encoder.images
    if not number:
        return NO_COST
    own = encoder_place(encoder, context)
    total = _embedding(part, own, number * encoder.num_tokens * encoder.merge)
    for layer, times in Counter(part.layers).items():
        total += layer_estimate(layer, own, micro_batch=number, sequence_length=encoder.rows) * times
    total += _projector(part, context, own, number * encoder.num_tokens)
    counted = own.layout.tp / (context.layout.tp * context.layout.cp)
    counted *= own.device.peak(own.execution.dtype) / context.device.peak(context.execution.dtype)
    return CostEstimate(
        _counted(total.forward, counted),
        _counted(total.backward_input, counted),
        _counted(total.backward_weight, counted),
        known=total.known,
    )


def encoder_place(encoder: Encoder, context: ExecutionContext) -> ExecutionContext:
    """The encoder follows the decoder's full recomputation if tp ranks divide it (`get_vision_model_config`)."""
    layout, execution = context.layout, context.execution
    tp = layout.tp if encoder.is_divided else 1
    dp = layout.dp * layout.cp * layout.tp // tp
    return replace(
        context,
        layout=replace(layout, tp=tp, cp=1, ep=1, etp=None, dp=dp),
        execution=execution.of_encoder(is_full=encoder.is_divided and execution.recompute == "full"),
    )


def _embedding(part: EncoderPart, own: ExecutionContext, patches: int) -> CostEstimate:
    """The matrices before the layers are whole on every rank; patches have no gradient."""
    if not part.embedding:
        return NO_COST
    kernels, e = products(part.embedding, own.times, tokens=patches), own.execution.element_bytes
    added = memory_kernel_time(own.times, "elementwise", 3.0 * patches * part.embedding[-1].outputs * e)
    weight = kernels.backward_weight + added if part.encoder.trains_layers else KernelTime()
    kernels = replace(kernels, forward=kernels.forward + added, backward_input=KernelTime())
    return _estimate(own, kernels, weight, counted=1 / own.layout.tp)


def _projector(part: EncoderPart, context: ExecutionContext, own: ExecutionContext, tokens: int) -> CostEstimate:
    """Each matrix has a norm or activation, and the result is copied into the decoder's embedding."""
    encoder = part.encoder
    if not part.projector:
        return NO_COST
    linears, e = part.own_projector(context.cut), own.execution.element_bytes
    kernels = products(linears, own.times, tokens=tokens)
    columns = sum(linear.rows * linear.inputs for linear in linears) + 2 * linears[-1].outputs
    forward, backward = (
        memory_kernel_time(own.times, "norm", passes * columns * tokens * e, launches=len(linears))
        for passes in (2, 3)
    )
    has_backward = encoder.trains_layers or encoder.trains_projector
    summed = sum(
        own.seconds("all-reduce", float(tokens * linear.outputs * e), "tp")
        for linear in linears
        if linear.split == "inputs"
    )
    again = sum(
        own.seconds("all-reduce", float(tokens * linear.inputs * e), "tp")
        for linear in linears
        if linear.split == "outputs"
    )
    back = kernels.backward_input if encoder.trains_layers else KernelTime()
    weight = kernels.backward_weight if encoder.trains_projector else KernelTime()
    kernels = PassKernels(kernels.forward + forward, back + backward if has_backward else KernelTime())
    return _estimate(own, kernels, weight, tp_s=summed, again_s=again * encoder.trains_layers)


def _estimate(
    own: ExecutionContext,
    kernels: PassKernels,
    weight: KernelTime,
    *,
    tp_s: float = 0.0,
    again_s: float = 0.0,
    counted: float = 1.0,
) -> CostEstimate:
    """`counted` is the fraction of the FLOPs that are model FLOPs."""
    passes = (kernels.forward, kernels.backward_input, weight)
    peak = own.device.peak(own.execution.dtype)
    forward, backward, of_weight = (
        parts_of(own, pass_cost, counted * pass_cost.matmul_ideal_s * peak, tp_s=sent)
        for pass_cost, sent in zip(passes, (tp_s, again_s, 0.0), strict=True)
    )
    return CostEstimate(
        forward,
        backward,
        of_weight,
        known=MeasuredSeconds(table_s=sum(pass_cost.measured_s for pass_cost in passes)),
    )


def _counted(parts: TimeBreakdown, share: float) -> TimeBreakdown:
    more = (1 - share) * parts.ideal_s
    return replace(parts, ideal_s=parts.ideal_s - more, more_flops_s=parts.more_flops_s + more)
