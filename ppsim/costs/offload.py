"""Activations that wait on the host between a forward and its backward, with copies overlapped with compute.

PipeOffload (arXiv 2503.01328) does so in pipelines. Modules are offloaded as in Megatron-LM
(core/pipeline_parallel/fine_grained_activation_offload.py at d98e8a64).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ppsim.base.errors import ConfigError
from ppsim.costs.job import Job
from ppsim.costs.ledger import Ledger
from ppsim.costs.time_breakdown import CostEstimate, TimeBreakdown
from ppsim.model.activations import LayerOffload, layer_backward, layer_offload
from ppsim.model.architecture import Layer
from ppsim.model.offloading import Offload
from ppsim.model.pipeline_stages import Stage
from ppsim.model.recompute import Recompute

HOST_EFFICIENCY = 0.8
"""Fraction of the line rate for copies of pinned memory. Assumed, not measured."""

NUM_BUFFERS = 2
"""Microbatches whose offloaded part is on the device in a pipeline: one on its way out, one on its way back."""


def offloads_of(job: Job, stages: Sequence[Stage], saved: Sequence[float], *, by_layer: bool) -> list[Offload]:
    """Return what each stage offloads; nothing if no byte is copied."""
    if not job.offloads:
        return [Offload()] * len(stages)
    offloads = [offload_of(job, *pair, by_layer=by_layer) for pair in zip(stages, saved, strict=True)]
    return offloads if any(sum(offload.copied) for offload in offloads) else [Offload()] * len(stages)


def offload_of(job: Job, stage: Stage, saved_bytes: float, *, by_layer: bool = False) -> Offload:
    """The last stage never offloads its last layer's modules, because the backward follows at once.

    `by_layer`: the stage has one microbatch in flight. Its layers leave and return one by one, so that the device
    holds the layers that are not offloaded, and at least one layer (TransformerEngine, pytorch/cpu_offload.py at
    00382b96).
    """
    if job.offload:
        part = job.offload * saved_bytes
        least = saved_bytes / max(1, len(stage.layers))
        ahead = max(0.0, least - (saved_bytes - part)) if by_layer else NUM_BUFFERS * part
        return Offload(part, (part,), ahead, ahead)
    layers = _layers(job, stage)
    groups = [_Group(at, *group) for at, layer in enumerate(layers) for group in layer.groups]
    gone = groups[: job.offload_rules.num_offloaded_groups(len(groups))]
    if not gone:
        return Offload()
    never = groups[-1].layer if stage.head else None
    copied = [0.0] * len(layers)
    for one in gone:
        copied[one.layer] += one.copied * (one.layer != never)
    return Offload(
        float(sum(one.freed for one in gone)),
        tuple(copied),
        *_ahead(groups, len(gone), never),
        max(layer.forward_bytes for layer in layers),
    )


class _Group(NamedTuple):
    layer: int
    copied: int
    freed: int


def _ahead(groups: Sequence[_Group], num_gone: int, never: int | None) -> tuple[float, float]:
    """Return the most bytes of offloaded groups that are on the device, and those during a forward.

    When a backward finishes a group, the next offloaded group comes back (`bulk_reload`). If this backward has no
    group left, a group of the next backward comes back. If all groups are offloaded, the groups of one layer are
    therefore on the device before their backward starts. `never` is the layer that never leaves, because its
    backward follows at once; with such a layer, nothing comes back before the backward starts.
    """
    backward = groups[::-1]
    num_staying = len(groups) - num_gone
    back = [one for one in backward[num_staying:] if one.layer != never]
    of_last_layer = sum(one.layer == groups[-1].layer for one in back)
    first = 0 if never is not None else len(back) if num_staying else of_last_layer
    most = 0.0
    for done in range(len(groups)):
        num_behind = sum(one.layer != never for one in backward[num_staying:done])
        own = sum(one.copied for one in back[num_behind : first + done])
        own += sum(one.freed for one in backward[max(done, num_staying) :] if one.layer == never)
        next_ = 0 if never is not None else sum(one.copied for one in back[: max(0, first + done - len(back))])
        most = max(most, own + next_ - sum(one.freed for one in backward[: min(done, num_staying)]))
    return most, float(sum(one.copied for one in back[:first]))


def _layers(job: Job, stage: Stage) -> list[LayerOffload]:
    if not stage.offload_modules:
        return []
    recomputed = stage.recomputed(job.execution.recompute)
    return [offload_of_layer(job, layer, word, stage.offload_modules) for layer, word in recomputed]


def offload_of_layer(job: Job, layer: Layer, recompute: Recompute, modules: str) -> LayerOffload:
    return layer_offload(layer, job.settings, recompute, modules, job.offload_rules.min_offloaded_tensor_size)


def buffer_bytes(job: Job, transient_bytes: float, offloads: Sequence[Offload]) -> float:
    """Bytes on the device of a rank with these offloads and these transient bytes of a backward.

    The peak without offloading is in a backward; with offloading it can also be in a forward.
    """
    ahead = max(offload.ahead for offload in offloads)
    if job.offload or not ahead:
        return ahead
    in_forward = max(offload.ahead_in_forward for offload in offloads) + max(
        offload.forward for offload in offloads
    )
    return max(ahead, in_forward - transient_bytes)


def layer_buffer_bytes(job: Job, layer: Layer, recompute: Recompute, modules: str) -> float:
    one, inside = offload_of_layer(job, layer, recompute, modules), layer_backward(layer, job.settings, recompute)
    return one.copied + max(0.0, one.forward_bytes - inside) if one.copied else 0.0


def copy_s(job: Job, num_bytes: float) -> float:
    """Raises `ConfigError` if the bandwidth between device and host is unknown."""
    rate = job.cluster.device.host_bytes_per_s
    if rate is None:
        raise ConfigError(f"{job.cluster.device.name} has no host_bytes_per_s, which offloading needs")
    return num_bytes / (rate * HOST_EFFICIENCY)


def with_copies(job: Job, stage: Stage, costs: CostEstimate, one: Offload, ledger: Ledger) -> CostEstimate:
    """With `--offload-modules`, copies to the host may continue after the forward.

    `max_inflight_offloads` makes the forward wait. On the last stage the backward follows at once, so the copies to
    the GPU wait for the copies to the host.
    """
    seconds = copy_s(job, sum(one.copied))
    late_s = max(0.0, seconds - costs.forward.total_s)
    waits_s = late_s if job.offload else _waits_s(job, ledger.costs_in_order(stage), one)
    after_s = max(0.0, late_s - waits_s) if stage.head else 0.0
    beyond_b = TimeBreakdown(offload_s=max(0.0, after_s + seconds - costs.backward.total_s))
    return replace(
        costs,
        forward=costs.forward + TimeBreakdown(offload_s=waits_s),
        backward_input=costs.backward_input + beyond_b,
        whole_backward=None if costs.whole_backward is None else costs.whole_backward + beyond_b,
    )


def _waits_s(job: Job, costs: Sequence[CostEstimate], one: Offload) -> float:
    """Seconds that a forward waits for the copies of all but its last `max_inflight_offloads` layers."""
    allowed = job.offload_rules.max_inflight_offloads
    if allowed is None or not one.copied:
        return 0.0
    now_s = waited_s = copied_s = 0.0
    ends: list[float] = []
    for cost, size in zip(costs, one.copied, strict=True):
        now_s += cost.forward.total_s
        if not size:
            continue
        copied_s = max(copied_s, now_s) + copy_s(job, size)
        ends.append(copied_s)
        wait_s = max(0.0, ends[-1 - allowed] - now_s) if len(ends) > allowed else 0.0
        now_s, waited_s = now_s + wait_s, waited_s + wait_s
    return waited_s
