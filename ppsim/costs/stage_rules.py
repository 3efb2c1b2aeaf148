"""Rules for the seconds of a stage that are no sums over its rows: gradient accumulation, ZeRO 2 and 3."""

from dataclasses import replace

from ppsim.costs.job import Job
from ppsim.costs.replica_collectives import passes_s, slowed_s
from ppsim.costs.time_breakdown import CostEstimate, TimeBreakdown
from ppsim.machine.kernels.times import memory_kernel_time
from ppsim.model.parameters import RankParameters


def head_in_passes(job: Job) -> CostEstimate:
    """Return the head's costs without deferred weight gradients, as a mean over microbatches."""
    _, head = job.costs.ends
    if not job.num_deferred or head.whole_backward is not None:
        return head
    return replace(head, backward_weight=head.backward_weight * (1 - job.num_deferred / job.num_microbatches))


def accumulated(job: Job, held: RankParameters) -> CostEstimate:
    """Time to accumulate gradients without gradient accumulation fusion.

    Up to ZeRO 1, gradients are added to a buffer. If the buffer has their dtype, the first gradient becomes the
    buffer (torch, `AccumulateGrad`). From ZeRO 2 on, gradients are copied into the buffer of the reduction.
    """
    optimizer = job.optimizer
    of_each, of_sum = optimizer.weight_bytes, optimizer.bytes_of_gradient
    adding = 1 - (of_sum == of_each) / job.num_microbatches
    moved_of_each = of_each + of_sum if optimizer.zero_stage >= 2 else adding * (of_each + 2.0 * of_sum)
    num_bytes = moved_of_each * (held.trained + held.trained_expert)
    moved_s = memory_kernel_time(job.place.wide_times, "elementwise", num_bytes, launches=0).memory_s
    return CostEstimate(TimeBreakdown(), TimeBreakdown(), TimeBreakdown(memory_s=moved_s))


def with_replicas(job: Job, held: RankParameters, costs: CostEstimate) -> CostEstimate:
    """Add data-parallel collectives to each pass: their exposed part, or slower compute if all is hidden.

    A backward that is not split hides gathers and reductions together: while a layer computes gradients of its
    input or weights, the next layer is gathered and the last one reduced.

    FSDP2 copies gathered parameters on the compute stream (`foreach_all_gather_copy_out`). Its calibrated fractions
    of peak include the slower compute.
    """
    if job.fully_shard and job.optimizer.zero_stage == 3:
        copied = _copied_out(job, held)
        unsplit = costs.whole_backward
        costs = replace(
            costs,
            forward=costs.forward + copied,
            backward_input=costs.backward_input + copied,
            whole_backward=None if unsplit is None else unsplit + copied,
        )
    gather_s, reduce_s = passes_s(job, held)
    slowdown = 0.0 if job.fully_shard else job.place.collective_slowdown

    def with_collectives(parts: TimeBreakdown, *, gather_s: float = 0.0, reduce_s: float = 0.0) -> TimeBreakdown:
        hidden_s = gather_s * job.overlap_param_gather + reduce_s * job.overlap_grad_reduce
        exposed_s, slower_s, compute_s = gather_s + reduce_s - hidden_s, slowdown * hidden_s, parts.total_s
        if hidden_s > compute_s + slower_s:
            return parts + TimeBreakdown(dp_s=exposed_s + hidden_s - compute_s)
        return parts + TimeBreakdown(dp_s=exposed_s, matmul_loss_s=slower_s)

    return replace(
        costs,
        forward=with_collectives(costs.forward, gather_s=gather_s),
        backward_input=with_collectives(costs.backward_input, gather_s=gather_s),
        backward_weight=with_collectives(costs.backward_weight, reduce_s=reduce_s),
        whole_backward=with_collectives(costs.backward, gather_s=gather_s, reduce_s=reduce_s),
    )


def with_held_cores(job: Job, held: RankParameters, costs: CostEstimate, hidden: float) -> CostEstimate:
    """Add the slower compute beside collectives of a step (up to ZeRO 1), divided among its microbatches."""
    forward_s, backward_s = (seconds / job.num_microbatches for seconds in slowed_s(job, held, hidden))
    unsplit, slower = costs.whole_backward, TimeBreakdown(matmul_loss_s=backward_s)
    return replace(
        costs,
        forward=costs.forward + TimeBreakdown(matmul_loss_s=forward_s),
        backward_weight=costs.backward_weight + slower,
        whole_backward=None if unsplit is None else unsplit + slower,
    )


def _copied_out(job: Job, held: RankParameters) -> TimeBreakdown:
    if job.place.cut.replicas == 1:
        return TimeBreakdown()
    num_bytes = 2 * job.settings.gathered_bytes * (held.dense + held.expert)
    return TimeBreakdown(memory_s=memory_kernel_time(job.place.wide_times, "copy", num_bytes, launches=0).memory_s)
