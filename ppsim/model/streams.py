"""Residual streams: n copies of the hidden states, mixed around each half of a layer, as DeepSeek-V4 has them.

Manifold-constrained hyper-connections (Xie et al. 2025, arXiv 2512.24880; DeepSeek-AI 2026, 2606.19348, §2.2).
All streams of a token in a row, nh columns, give n² + 2n numbers: how a half's input is summed from them, how its
output is added to each, and how they are mixed (Megatron-LM, dev at d48bd6b, `hyper_connection.py`). Between
pipeline stages all streams are sent: [s, b, nh] (`schedules.py`: `get_tensor_shapes`). Behind the last layer n
numbers a token sum them (`learned_output_contract`).
"""

from ppsim.model.linears import Linear, of_columns


def mixing(num_streams: int, h: int, num_halves: int) -> list[Linear]:
    """Return what gives the numbers of each half: nh × (n² + 2n) with as many biases, and three scales."""
    columns = num_streams**2 + 2 * num_streams
    of_half = [
        Linear("mixing", "streams", num_streams * h, (columns,), kind="streams", biased=True),
        of_columns("scales of mixing", "streams", (1, 1, 1)),
    ]
    return num_halves * of_half


def joining_parameters(num_streams: int, h: int) -> int:
    """Return the parameters of what sums all streams behind the last layer: nh × n, n biases and a scale."""
    return num_streams * (num_streams * h + 1) + 1 if num_streams > 1 else 0


def passes(num_streams: int) -> tuple[int, int]:
    """Return how often a half's residual has h columns of a token read or written, forward and backward.

    One stream: 3 and 3. More, beside the product that gives their numbers (`fused_mhc_kernels.py`): read for the
    half's input, which is written, n + 1; read again with the half's output to write them, 2n + 1. Backward, of
    that output and the streams, 2n + 1 twice; of the input, 2n + 1; three gradients of the streams added, 4n.
    """
    n = num_streams
    return (3, 3) if n == 1 else (3 * n + 2, 10 * n + 3)


def end_passes(num_streams: int) -> int:
    """Return how often h columns of a token are read or written where streams begin and end, either way.

    n copies of one, and the sum of n in one.
    """
    return num_streams + 1 if num_streams > 1 else 0


def further_passes(num_streams: int) -> tuple[int, int]:
    """Return of a layer for a further token how many columns of h are normed, and how many read or written beside.

    The token's, the hidden state's and the last: 3, and 4 to have two in a row. Of n streams each: n + 2; the sum
    of the token's and of each stream, 2n + 1, and their joining behind the layer.
    """
    n = num_streams
    return (3, 4) if n == 1 else (n + 2, 2 * n + 1 + end_passes(n))
