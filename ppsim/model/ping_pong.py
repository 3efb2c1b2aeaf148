"""Optimizer state of the rank with the most, if ranks own whole tensors."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ppsim.model.architecture import Layer
from ppsim.model.optimizer import Optimizer
from ppsim.model.parameters import RankParameters
from ppsim.model.stage_rows import Row
from ppsim.parallel.sizes import ParallelSizes

Tensors = Counter[tuple[int, bool]]
"""Numbers of trained tensors by size and whether Muon updates them."""


def trained_tensors(
    rows: Iterable[tuple[Row, int]], held: RankParameters, sizes: ParallelSizes, *, tables: int, table_size: int
) -> tuple[Tensors, Tensors]:
    """Return the tensors of a rank outside and inside routed experts.

    `rows`: parts of its stages, and the number of each. `held`: its parameters. `tables`: trained embedding tables,
    each with `table_size` parameters.
    """
    dense, expert = Tensors({(table_size, False): tables}), Tensors()
    for row, number in rows:
        if row.kind in ("layer", "checkpoint", "mtp weights"):
            for layer in row.layers:
                _add_layer(layer, number, sizes, dense, expert)
    others = held.trained - sum(size * number for (size, _), number in dense.items())
    if others > 0:  # position embeddings and the final norm
        dense[others, False] += 1
    return dense, expert


def _add_layer(layer: Layer, number: int, sizes: ParallelSizes, dense: Tensors, expert: Tensors) -> None:
    for matrix in layer.linears(sizes):
        tensors = expert if matrix.kind in ("routed", "routed adapter") else dense
        tensors[matrix.size, matrix.is_orthogonalised] += number * matrix.count * matrix.trainable
        tensors[matrix.outputs, False] += number * matrix.count * matrix.biased * matrix.trainable
    norms = layer.norm_parameters // layer.hidden_size * layer.trains_norms
    dense[layer.hidden_size, False] += number * norms


def largest_state(tensors: Mapping[tuple[int, bool], int], optimizer: Optimizer, num_ranks: int) -> int:
    """Return the bytes of the rank with the most.

    Tensors, sorted by size, go to ranks 0, 1, …, n - 1, n - 1, …, 1, 0, and again (Megatron-LM at d98e8a64,
    core/optimizer/layer_wise_optimizer.py: `_shard_params_ping_pong`).
    """
    held = [0] * num_ranks
    for at, num_bytes in enumerate(_states(tensors, optimizer)):
        position = at % (2 * num_ranks)
        held[min(position, 2 * num_ranks - 1 - position)] += num_bytes
    return max(held)


def _states(tensors: Mapping[tuple[int, bool], int], optimizer: Optimizer) -> Iterator[int]:
    for (size, is_matrix), number in sorted(tensors.items()):
        yield from [size * optimizer.state_bytes(is_matrix=is_matrix)] * number
