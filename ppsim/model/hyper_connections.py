"""Residual streams: n copies of the hidden states, mixed around each mixer of a layer, as in DeepSeek-V4.

Manifold-constrained hyper-connections (Xie et al. 2025, arXiv 2512.24880; DeepSeek-AI 2026, 2606.19348, §2.2), as
in Megatron-LM (dev at d48bd6b, `hyper_connection.py`). All streams are sent between pipeline stages
(`schedules.py`: `get_tensor_shapes`).
"""

from ppsim.model.weight_matrices import WeightMatrix, of_columns


def mixing_operators(num_streams: int, h: int, num_halves: int) -> list[WeightMatrix]:
    """Matrices that compute n² + 2n weights from all streams of a token.

    The weights are for the sum that is a mixer's input, for adding its output to each stream, and for mixing the
    streams.
    """
    columns = num_streams**2 + 2 * num_streams
    of_half = [
        WeightMatrix("mixing", "streams", num_streams * h, (columns,), kind="streams", biased=True),
        of_columns("scales of mixing", "streams", (1, 1, 1)),
    ]
    return num_halves * of_half


def joining_parameters(num_streams: int, h: int) -> int:
    """Parameters of the sum of all streams after the last layer (`learned_output_contract`)."""
    return num_streams * (num_streams * h + 1) + 1 if num_streams > 1 else 0


def passes(num_streams: int) -> tuple[int, int]:
    """Reads and writes of h columns per token for the residual of a mixer, in forward and backward.

    With n streams (`fused_mhc_kernels.py`), the forward has n + 1 for the mixer's input and 2n + 1 to add its
    output. The backward has 2n + 1 each for output, streams and input, and 4n to add three gradients of the
    streams.
    """
    n = num_streams
    return (3, 3) if n == 1 else (3 * n + 2, 10 * n + 3)


def mtp_passes(num_streams: int) -> tuple[int, int]:
    """Number of norms, and of other reads and writes, of h columns per token before and after an MTP layer.

    One stream: 4 to concatenate. n streams: 2n + 1 to add the projected token to each projected stream, and n + 1
    to sum them.
    """
    n = num_streams
    return (3, 4) if n == 1 else (n + 2, 3 * n + 2)
