"""Activations kept on the host between a forward and its backward, copied beside compute.

PipeOffload (arXiv 2503.01328) does so in pipelines.
"""

from dataclasses import replace

from ppsim.base.errors import ConfigError
from ppsim.costs.job import Job
from ppsim.costs.parts import Estimate, Parts
from ppsim.model import activations
from ppsim.model.stages import Stage

HOST_EFFICIENCY = 0.8
"""What copies of pinned memory get of the line rate. Assumed, no measurement behind it."""

NUM_BUFFERS = 2
"""Microbatches, or layers, whose offloaded part is on the device all the same, on its way out and in."""


def offloaded_bytes(job: Job, stage: Stage, kept: float) -> tuple[float, float]:
    """Return a stage's bytes of a microbatch that go to the host, and those of them on the device all the same.

    Of a part of everything: `NUM_BUFFERS` microbatches, one on its way out and one on its way back; of modules: as
    many layers.
    """
    if job.offload:
        return job.offload * kept, NUM_BUFFERS * job.offload * kept
    modules, settings = stage.offload_modules, job.settings
    if not modules:
        return 0.0, 0.0
    words = stage.recomputed(settings.batch.recompute)
    of_layers = {
        (layer, word): activations.offloaded_bytes(
            layer, settings.recomputing(word).batch, settings.cut, settings.kernels, modules
        )
        for layer, word in set(words)
    }
    whole = sum(of_layers[one] for one in words)
    return float(whole), float(NUM_BUFFERS * max(of_layers.values(), default=0))


def copy_s(job: Job, num_bytes: float) -> float:
    """Return the seconds of a copy between device and host; raises `ConfigError` if their link is not known."""
    rate = job.cluster.device.host_bytes_per_s
    if rate is None:
        raise ConfigError(f"{job.cluster.device.name} has no host_bytes_per_s, which offloading needs")
    return num_bytes / (rate * HOST_EFFICIENCY)


def with_copies(job: Job, costs: Estimate, num_bytes: float) -> Estimate:
    """Return a stage's costs with what compute does not hide of copying `num_bytes` of a microbatch out and back.

    Both directions have a stream of their own; a copy has the length of its own pass, F or B, to be done in. Raises
    `ConfigError` where the link to the host is not known.
    """
    seconds = copy_s(job, num_bytes)
    beyond_b = Parts(offload_s=max(0.0, seconds - costs.backward.total_s))
    return replace(
        costs,
        forward=costs.forward + Parts(offload_s=max(0.0, seconds - costs.forward.total_s)),
        backward_input=costs.backward_input + beyond_b,
        whole_backward=None if costs.whole_backward is None else costs.whole_backward + beyond_b,
    )
