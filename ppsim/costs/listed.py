"""ZeRO 3 with a collective for each parameter, on lists of one tensor a rank: what DeepSpeed did in 2021.

DeepSpeed 0.3.13 to 0.4, runtime/zero/partition_parameters.py and stage3.py, over torch 1.8, ProcessGroupNCCL.cpp,
as its tutorial of ZeRO 3 sets it up:

- `_allgather_param` gathers each parameter by itself, and `_reduce_scatter_gradient` reduces each gradient by
  itself. Both hand torch a list of one tensor a rank, for which NCCL gathers into, or reduces from, another buffer:
  the host launches a copy for each rank. Nothing runs beside: around each is a `torch.cuda.synchronize()`, and so
  few parameters may be there at once (`stage3_max_live_parameters`) that none is gathered ahead.
- Parameters of fewer than 100,000 entries are not divided between their passes: all of them are gathered together
  behind the optimizer, and each copied from each rank's part (`_allgather_params`).
- A recomputed layer's parameter is still there for its backward where fewer than 10^8 entries are used in between
  (`stage3_max_reuse_distance`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ppsim.costs.job import Job
from ppsim.costs.parts import Estimate, Parts
from ppsim.machine.kernels.times import moved
from ppsim.model.architecture import Layer
from ppsim.model.parameters import padded_vocabulary
from ppsim.model.recompute import whole_layers
from ppsim.model.stages import Stage

PERSISTENT, REUSED = 100_000, 100_000_000


def with_lists(job: Job, stage: Stage, costs: Estimate) -> Estimate:
    """Return a stage's costs with gathering parameters and reducing gradients, which nothing hides."""
    held = _Held.of(job, stage)
    layers = _divided(size for layer in held.layers for size in layer)
    recomputed = layers if whole_layers(job.execution.recompute) else []
    gathered = Parts(dp_s=sum(_gathered_s(job, size) for size in _divided([*held.first, *layers, *held.head])))
    again = [*held.head, *recomputed, *_gathered_again(job, held)]
    gathered_again = Parts(dp_s=sum(_gathered_s(job, size) for size in again))
    reduced = Parts(dp_s=sum(_reduced_s(job, size) for size in held.trained))
    whole = costs.whole_backward
    return replace(
        costs,
        forward=costs.forward + gathered,
        backward_input=costs.backward_input + gathered_again,
        backward_weight=costs.backward_weight + reduced,
        whole_backward=None if whole is None else whole + gathered_again + reduced,
    )


def persistent_s(job: Job, stages: Sequence[Stage]) -> float:
    """Return the host's seconds behind the optimizer, for parameters that are not divided between their passes."""
    sizes = (size for stage in stages for size in _Held.of(job, stage).trained)
    return sum(_copies_s(job, size) for size in sizes if size < PERSISTENT)


@dataclass(frozen=True)
class _Held:
    """Entries of each parameter of a stage as a rank has it, in the order of a forward.

    `head` is what the logits are made by, `tied` whether that is a parameter of `first`.
    """

    first: list[int]
    layers: list[list[int]]
    norm: list[int]
    head: list[int]
    tied: bool

    @staticmethod
    def of(job: Job, stage: Stage) -> "_Held":
        model, layers = job.model, (*stage.layers, *stage.mtp)
        of_kind = {layer: _sizes(job, layer) for layer in set(layers)}
        words = padded_vocabulary(model.vocab_size, tp=job.layout.tp, multiple=job.vocab_multiple)
        table, (before, behind, _) = model.table(words // job.layout.tp), model.own_parameters
        return _Held(
            [table, before] if stage.embedding else [],
            [of_kind[layer] for layer in layers],
            [model.hidden_size] * (behind // model.hidden_size) if stage.head else [],
            _divided([table]) if stage.head else [],
            model.tied_embeddings and stage.embedding,
        )

    @property
    def trained(self) -> list[int]:
        """Each parameter once."""
        of_layers = (size for layer in self.layers for size in layer)
        return [size for size in (*self.first, *of_layers, *self.norm, *self.head * (not self.tied)) if size]


def _sizes(job: Job, layer: Layer) -> list[int]:
    norms = [layer.hidden_size] * -(-layer.norm_parameters // layer.hidden_size)
    linears = layer.linears(job.settings.cut)
    return norms + [size for one in linears for size in (one.size, one.outputs * one.biased) * one.count if size]


def _divided(sizes: Iterable[int]) -> list[int]:
    return [size for size in sizes if size >= PERSISTENT]


def _gathered_again(job: Job, held: _Held) -> list[int]:
    """What layers' backwards gather: all, but for those that recomputation has left."""
    found = list[int]()
    for layer in held.layers:
        used = 0
        for size in reversed(_divided(layer)):
            if not whole_layers(job.execution.recompute) or used >= REUSED:
                found.append(size)
            used += 2 * size
    return found


def _copies_s(job: Job, size: int) -> float:
    """The host's, of one copy for each rank that has entries."""
    return min(size, job.place.ranks("dp-cp").num_ranks) * job.cluster.device.efficiency.host_s


def _gathered_s(job: Job, size: int) -> float:
    """Of one parameter: the host's copies, or network and device where they take longer.

    The device sets each byte to 0 before, and copies it out of the other buffer.
    """
    num_bytes = float(size * job.optimizer.weight_bytes)
    return max(
        _copies_s(job, size), job.place.seconds("all-gather", num_bytes, "dp-cp") + _moved_s(job, 3 * num_bytes)
    )


def _reduced_s(job: Job, size: int) -> float:
    """Of one gradient the same; the device divides it by the ranks, and copies it to the other buffer."""
    num_bytes = float(size * job.optimizer.bytes_of_gradient)
    network_s = job.place.seconds("reduce-scatter", num_bytes, "dp-cp")
    return max(_copies_s(job, size), network_s + _moved_s(job, 4 * num_bytes))


def _moved_s(job: Job, num_bytes: float) -> float:
    return moved(job.place.times, "copy", num_bytes, launches=job.place.ranks("dp-cp").num_ranks).memory_s
