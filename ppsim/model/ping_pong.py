"""Optimizer state of the rank with the most, if ranks own whole tensors."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ppsim.model.architecture import Model
from ppsim.model.optimizer import Optimizer
from ppsim.model.parameters import held_parameters, padded_vocabulary
from ppsim.model.pipeline_stages import Stage
from ppsim.parallel.sizes import ParallelSizes

Tensors = Counter[tuple[int, bool]]
"""Numbers of trained tensors by size and whether Muon updates them."""


def trained_tensors(
    model: Model, stages: Sequence[Stage], cut: ParallelSizes, *, vocab_multiple: int = 1
) -> tuple[Tensors, Tensors]:
    """Return the tensors of a rank outside and inside routed experts."""
    dense, expert = Tensors(), Tensors()
    has_embedding = any(stage.embedding for stage in stages)
    table = model.table(padded_vocabulary(model.vocab_size, tp=cut.tp, multiple=vocab_multiple) // cut.tp)
    for stage in stages:
        for layer in (*stage.layers, *model.distinct(stage.mtp)):
            for one in layer.linears(cut):
                found = expert if one.kind in ("routed", "routed adapter") else dense
                found[one.size, one.is_orthogonalised] += one.count * one.trainable
                found[one.outputs, False] += one.count * one.biased * one.trainable
            dense[layer.hidden_size, False] += layer.norm_parameters // layer.hidden_size * layer.trains_norms
        is_here = has_embedding or bool(stage.mtp)
        if stage.embedding or (stage.mtp and not has_embedding):
            dense[table, False] += model.trains("embedding")
        if stage.head and not (model.tied_embeddings and is_here):
            dense[table, False] += model.trains("head")
    held = held_parameters(model, list(stages), cut, vocab_multiple=vocab_multiple)
    others = held.trained - sum(size * number for (size, _), number in dense.items())
    if others > 0:  # position embeddings and the final norm
        dense[others, False] += 1
    return dense, expert


def largest_state(tensors: Mapping[tuple[int, bool], int], optimizer: Optimizer, num_ranks: int) -> int:
    """Return the bytes of the rank with the most.

    Tensors, sorted by size, go to ranks 0, 1, …, n - 1, n - 1, …, 1, 0, and again (Megatron-LM at d98e8a64,
    core/optimizer/layer_wise_optimizer.py: `_shard_params_ping_pong`).
    """
    held = [0] * num_ranks
    for at, num_bytes in enumerate(_states(tensors, optimizer)):
        place = at % (2 * num_ranks)
        held[min(place, 2 * num_ranks - 1 - place)] += num_bytes
    return max(held)


def _states(tensors: Mapping[tuple[int, bool], int], optimizer: Optimizer) -> Iterator[int]:
    for (size, is_matrix), number in sorted(tensors.items()):
        yield from [size * optimizer.state_bytes(is_matrix=is_matrix)] * number
