"""Residual streams: n copies of the hidden states, mixed around each mixer of a layer, as in DeepSeek-V4.

Manifold-constrained hyper-connections (Xie et al. 2025, arXiv 2512.24880; DeepSeek-AI 2026, 2606.19348, §2.2). From
all streams of a token, nh columns, a projection computes n² + 2n weights: for the sum that is a mixer's input, for
adding its output to each stream, and for mixing the streams (Megatron-LM, dev at d48bd6b, `hyper_connection.py`).
All streams are sent between pipeline stages: [s, b, nh] (`schedules.py`: `get_tensor_shapes`). After the last layer
n weights per token sum them (`learned_output_contract`).
"""

from ppsim.model.weight_matrices import WeightMatrix, of_columns


def mixing_operators(num_streams: int, h: int, num_halves: int) -> list[WeightMatrix]:
    """Return the matrices that compute the mixing weights: nh × (n² + 2n), biases and three scales per mixer."""
    columns = num_streams**2 + 2 * num_streams
    of_half = [
        WeightMatrix("mixing", "streams", num_streams * h, (columns,), kind="streams", biased=True),
        of_columns("scales of mixing", "streams", (1, 1, 1)),
    ]
    return num_halves * of_half


def joining_parameters(num_streams: int, h: int) -> int:
    """Return the parameters of the sum of all streams after the last layer: nh × n, n biases and a scale."""
    return num_streams * (num_streams * h + 1) + 1 if num_streams > 1 else 0


def passes(num_streams: int) -> tuple[int, int]:
    """Return how often a mixer's residual has h columns per token read or written, in forward and backward.

    One stream: 3 and 3. With more, besides the GEMM for the weights (`fused_mhc_kernels.py`): read for the mixer's
    input, which is written, n + 1; read again with the mixer's output and written, 2n + 1. Backward, for that
    output and the streams, 2n + 1 twice; for the input, 2n + 1; three gradients of the streams added, 4n.
    """
    n = num_streams
    return (3, 3) if n == 1 else (3 * n + 2, 10 * n + 3)


def end_passes(num_streams: int) -> int:
    """Return how often h columns per token are read or written at the start or end of the streams.

    n copies of one tensor, or the sum of n in one.
    """
    return num_streams + 1 if num_streams > 1 else 0


def further_passes(num_streams: int) -> tuple[int, int]:
    """Return (norms of h columns, other reads or writes of h columns) of a multi-token prediction layer.

    One stream: 3 norms (the token's embedding, the hidden state, the output), and 4 to concatenate. n streams: n +
    2; the sum of the token's and of each stream's projection, 2n + 1, and the sum after the layer.
    """
    n = num_streams
    return (3, 4) if n == 1 else (n + 2, 2 * n + 1 + end_passes(n))
