"""Checks of the `_order` of TransformerEngine's `make_graphed_callables` before any graph is captured.

The rules come from transformer_engine/pytorch/graph.py (`_make_graphed_callables`, as of 2025, and the later
weight-gradient graphs), whose asserts have no messages. Importing TransformerEngine needs CUDA.
"""

from collections.abc import Sequence

from ppsim.base.errors import ConfigError


def check_order(order: Sequence[float], *, num_chunks: int, num_microbatches: int) -> None:
    """Raise `ConfigError`, naming the entry, for an order that cannot be captured.

    Chunks count from 1. +c is a forward, −c a backward, −c − 0.5 a weight gradient, which a chunk has for all
    microbatches or for none. A weight gradient belongs to the chunk's latest backward, and must come before the
    chunk's next backward.
    """
    counts = {(chunk, kind): 0 for chunk in range(1, num_chunks + 1) for kind in range(3)}
    for position, entry in enumerate(order):
        chunk, kind = int(abs(entry)), 0 if entry > 0 else 1 if entry == int(entry) else 2
        if not 1 <= chunk <= num_chunks or abs(entry) - chunk not in (0, 0.5) or (kind == 0 and entry != chunk):
            raise ConfigError(f"entry {position} is {entry:g}, which is no pass of one of {num_chunks} chunks")
        if kind and counts[chunk, kind] >= counts[chunk, kind - 1]:
            before = "forward" if kind == 1 else "backward"
            raise ConfigError(
                f"entry {position}, {entry:g}, comes before the {before} of its microbatch {counts[chunk, kind]}"
            )
        if kind == 2 and counts[chunk, 1] - counts[chunk, 2] > 1:
            raise ConfigError(
                f"entry {position}, {entry:g}, comes after the backward of microbatch {counts[chunk, 1] - 1}: the "
                f"weight gradient of microbatch {counts[chunk, 2]} must come before it"
            )
        counts[chunk, kind] += 1
    for (chunk, kind), count in counts.items():
        if count != num_microbatches and (kind < 2 or count):
            name = ("forwards", "backwards", "weight gradients")[kind]
            raise ConfigError(f"chunk {chunk} has {count} {name}: there are {num_microbatches} microbatches")


def most_alive(order: Sequence[float]) -> dict[int, int]:
    """Return the peak number of microbatches between forward and backward, per chunk.

    The peak is the number of buffers that `_reuse_graph_input_output_buffers` holds.

    >>> most_alive([1, 1, 2, -2, -1, 2, -2, -1])
    {1: 2, 2: 1}
    """
    alive: dict[int, int] = {}
    most: dict[int, int] = {}
    for entry in order:
        if entry == int(entry):
            chunk = int(abs(entry))
            alive[chunk] = alive.get(chunk, 0) + (1 if entry > 0 else -1)
            most[chunk] = max(most.get(chunk, 0), alive[chunk])
    return most
