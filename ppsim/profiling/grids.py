"""Sizes at which a device is benchmarked. Does not import torch."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from ppsim.base.files import data_folder, read_toml


@dataclass(frozen=True)
class AttentionSizes:
    """Sizes of one attention benchmark."""

    micro_batch: int
    num_heads: int
    num_kv_heads: int
    sequence_length: int
    head_size: int


@dataclass(frozen=True)
class BenchmarkGrid:
    """Sizes of a device's microbenchmarks.

    `weights` are (in, out) of a linear layer, `groups` are (number, in, out). `beside` is the edge length of the
    square GEMM that overlaps with copies. `rotated_bytes` is the total size of rotated operands.
    """

    tokens: tuple[int, ...]
    weights: tuple[tuple[int, int], ...]
    groups: tuple[tuple[int, int, int], ...]
    attention: tuple[AttentionSizes, ...]
    memory_bytes: tuple[int, ...]
    beside: int
    rotated_bytes: int
    point_s: float
    sample_s: float


@cache
def tables() -> dict[str, Any]:
    """Return the tables of data/suites.toml, with tuples in place of lists."""
    tables: dict[str, Any] = _with_tuples(read_toml(data_folder("profiling/data") / "suites.toml"))
    return tables


def _with_tuples(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _with_tuples(branch) for name, branch in tree.items()}
    return tuple(map(_with_tuples, tree)) if isinstance(tree, list) else tree


def grid_named(name: str) -> BenchmarkGrid:
    sizes = dict(tables()["grids"][name])
    attention = tuple(
        AttentionSizes(micro_batch, heads, kv_heads, length, head_size)
        for length in sizes.pop("sequence_lengths") for micro_batch, heads, kv_heads, head_size in sizes["calls"]
    )  # fmt: skip
    del sizes["calls"]
    return BenchmarkGrid(attention=attention, **sizes)


CUDA, CPU, QUICK = map(grid_named, ("cuda", "cpu", "quick"))


def grid_of(device: str) -> BenchmarkGrid:
    return CUDA if device == "cuda" else CPU
