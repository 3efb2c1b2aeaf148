"""Sizes at which a device is benchmarked. Does not import torch."""

from dataclasses import dataclass

_MIB = 2**20


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


CUDA = BenchmarkGrid(
    tokens=(512, 2048, 8192, 16384),
    # Llama-3 8B, 70B and 405B, GPT-3 175B and their tensor-parallel parts, and two output heads.
    weights=(
        (4096, 1024), (4096, 4096), (4096, 14336), (14336, 4096), (8192, 1024), (8192, 8192), (8192, 28672),
        (3584, 8192), (16384, 2048), (16384, 6656), (12288, 4608), (2048, 7168), (7168, 2048), (4096, 32000),
        (8192, 16032),
    ),
    groups=((4, 7168, 2048), (4, 2048, 7168), (8, 4096, 14336), (8, 14336, 4096)),
    attention=tuple(
        AttentionSizes(batch, heads, kv_heads, sequence, 128)
        for sequence in (1024, 4096, 8192, 16384)
        for batch, heads, kv_heads in ((1, 32, 8), (2, 32, 8), (1, 8, 1), (1, 16, 16))
    ),
    memory_bytes=(_MIB, 16 * _MIB, 128 * _MIB, 1024 * _MIB),
    beside=8192,
    rotated_bytes=192 * _MIB,  # more than any L2
    point_s=0.03,
    sample_s=1e-3,
)  # fmt: skip

CPU = BenchmarkGrid(
    tokens=(32, 128, 512, 2048),
    weights=((64, 64), (64, 256), (128, 128), (128, 352), (352, 128), (256, 256), (256, 1024), (1024, 256)),
    groups=((4, 128, 128),),
    attention=tuple(
        AttentionSizes(batch, heads, kv_heads, sequence, head)
        for sequence in (32, 128, 512)
        for batch, heads, kv_heads, head in ((1, 4, 2, 32), (4, 4, 2, 32), (2, 4, 4, 64), (2, 4, 4, 16))
    ),
    memory_bytes=(2**12, 2**16, _MIB, 16 * _MIB),
    beside=512,
    rotated_bytes=0,
    point_s=0.02,
    sample_s=2e-4,
)

QUICK = BenchmarkGrid(
    tokens=(16, 64),
    weights=((32, 32), (32, 128), (128, 32)),
    groups=((2, 32, 32),),
    attention=tuple(AttentionSizes(batch, 2, 1, sequence, 16) for batch in (1, 2) for sequence in (16, 64)),
    memory_bytes=(2**12, 2**16),
    beside=64,
    rotated_bytes=0,
    point_s=5e-4,
    sample_s=5e-5,
)
"""For `--suite smoke` and tests: every microbenchmark in a fraction of a second, without accuracy."""


def grid_of(device: str) -> BenchmarkGrid:
    return CUDA if device == "cuda" else CPU
