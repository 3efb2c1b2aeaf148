"""ZeRO 3 with a collective for each parameter, on lists of one tensor a rank: what DeepSpeed did in 2021.

DeepSpeed 0.3.13 to 0.4, runtime/zero/partition_parameters.py and stage3.py, over torch 1.8, ProcessGroupNCCL.cpp:

- `_allgather_param` gathers each parameter by itself, behind a `torch.cuda.synchronize()`, and
  `_reduce_scatter_gradient` reduces each gradient by itself. Both hand torch a list of one tensor a rank, for which
  NCCL gathers into, or reduces from, another buffer: the host launches a copy for each rank, and launches nothing
  else meanwhile. (Gradients so where `contiguous_gradients` is set, as in DeepSpeed's tutorial of ZeRO 3.)
- Parameters of fewer than 100,000 entries are not divided between their passes: all of them are gathered together
  behind the optimizer, and each copied from each rank's part (`_allgather_params`).
- The parameter behind the one that computes is gathered beside it, unless there are 10^9 entries already
  (`stage3_max_live_parameters`), so that the network hides behind compute but the host's copies do not.
- A recomputed layer's parameter is still there for its backward where fewer than 10^9 entries are used in between
  (`stage3_max_reuse_distance`).

>>> round(exposed_s([0.5, 0.5], [2.0, 1.0], [True, False], compute_s=1.0), 3)
2.0
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ppsim.costs.job import Job
from ppsim.costs.parts import Estimate, Parts
from ppsim.machine.collectives import Operation
from ppsim.machine.kernels.times import moved
from ppsim.model.architecture import Layer
from ppsim.model.parameters import padded_vocabulary
from ppsim.model.stages import Stage

PERSISTENT = 100_000
LIVE = 1_000_000_000
REUSED = 1_000_000_000

_PASSES_OVER_A_GATHERED = 3
"""Each byte is set to zero, and read and written by the copy out of the other buffer."""

_PASSES_OVER_A_REDUCED = 4
"""Each is divided by the number of ranks, and copied to the other buffer."""


def exposed_s(
    host: Sequence[float], network: Sequence[float], is_ahead: Sequence[bool], *, compute_s: float
) -> float:
    """Return what collectives take beyond the compute of their pass.

    The host's seconds of each are nobody else's. Those of the network run beside them, and where it is ahead beside
    compute too.
    """
    alone = sum(
        max(pair) for pair, ahead in zip(zip(host, network, strict=True), is_ahead, strict=True) if not ahead
    )
    hosts = sum(one for one, ahead in zip(host, is_ahead, strict=True) if ahead)
    return alone + max(hosts, sum(one for one, ahead in zip(network, is_ahead, strict=True) if ahead) - compute_s)


def with_lists(job: Job, stage: Stage, costs: Estimate) -> Estimate:
    """Return a stage's costs with what gathering parameters and reducing gradients takes beyond its compute."""
    held = _Held.of(job, stage)
    layers = _large(size for layer in held.layers for size in layer)
    recomputed = layers if job.execution.recompute == "full" else []
    gathered = _gathered_s(job, [*_large(held.first), *layers, *_large(held.head)], costs.forward.total_s)
    gathered_again = _gathered_s(
        job, [*_large(held.head), *recomputed, *_left_to_gather(job, held)], costs.backward_input.total_s
    )
    reduced = sum(max(_copies_s(job, size), _moved_s(job, "reduce-scatter", size)) for size in held.trained)
    whole = costs.whole_backward
    return replace(
        costs,
        forward=costs.forward + Parts(dp_s=gathered),
        backward_input=costs.backward_input + Parts(dp_s=gathered_again),
        backward_weight=costs.backward_weight + Parts(dp_s=reduced),
        whole_backward=None if whole is None else whole + Parts(dp_s=gathered_again + reduced),
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
        of_kind = {layer: _sizes_of_layer(job, layer) for layer in set(layers)}
        words = padded_vocabulary(model.vocab_size, tp=job.layout.tp, multiple=job.vocab_multiple)
        table, (before, behind, _) = model.table(words // job.layout.tp), model.own_parameters
        return _Held(
            [table, before] if stage.embedding else [],
            [of_kind[layer] for layer in layers],
            [model.hidden_size] * (behind // model.hidden_size) if stage.head else [],
            [table] if stage.head else [],
            model.tied_embeddings and stage.embedding,
        )

    @property
    def trained(self) -> list[int]:
        """Each parameter once."""
        of_layers = (size for layer in self.layers for size in layer)
        return [size for size in (*self.first, *of_layers, *self.norm, *self.head * (not self.tied)) if size]


def _sizes_of_layer(job: Job, layer: Layer) -> list[int]:
    norms = [layer.hidden_size] * -(-layer.norm_parameters // layer.hidden_size)
    linears = layer.linears(job.settings.cut)
    return norms + [size for one in linears for size in (one.size, one.outputs * one.biased) * one.count if size]


def _large(sizes: Iterable[int]) -> list[int]:
    return [size for size in sizes if size >= PERSISTENT]


def _left_to_gather(job: Job, held: _Held) -> list[int]:
    """Entries of the parameters that layers' backwards gather: all, but for those that recomputation has left."""
    found = list[int]()
    for layer in reversed(held.layers):
        used = 0
        for size in reversed(_large(layer)):
            if job.execution.recompute != "full" or used >= REUSED:
                found.append(size)
            used += 2 * size
    return found


def _gathered_s(job: Job, sizes: Sequence[int], compute_s: float) -> float:
    is_ahead = [job.overlap and before < LIVE for before in [*sizes[-1:], *sizes[:-1]]]
    hosts = [_copies_s(job, size) for size in sizes]
    return exposed_s(hosts, [_moved_s(job, "all-gather", size) for size in sizes], is_ahead, compute_s=compute_s)


def _copies_s(job: Job, size: int) -> float:
    """The host's, of one copy for each rank that has entries."""
    return min(size, job.place.ranks("dp-cp").num_ranks) * job.cluster.device.efficiency.host_s


def _moved_s(job: Job, operation: Operation, size: int) -> float:
    """The network's seconds, and the device's: those copies, and before them zeros or a division by the ranks."""
    is_gathered = operation == "all-gather"
    num_bytes = float(size * (job.optimizer.weight_bytes if is_gathered else job.optimizer.bytes_of_gradient))
    passes = _PASSES_OVER_A_GATHERED if is_gathered else _PASSES_OVER_A_REDUCED
    copied = moved(job.place.times, "copy", passes * num_bytes, launches=job.place.ranks("dp-cp").num_ranks)
    return job.place.seconds(operation, num_bytes, "dp-cp") + copied.memory_s
