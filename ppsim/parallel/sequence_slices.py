"""Slices of a sequence with equal time under causal attention, in which later tokens cost more.

In a layer of hidden size h with a feed-forward of 4h, the forward of the first x tokens takes (Narayanan et al.
2021, arXiv 2104.04473, appendix; causal attention takes half of the 4·s²·b·h given there)

    C(x) = 24·h²·x + 4·h·(1 + 2 + … + x) = 24·h²·x + 2·h·x·(x + 1)

A backward takes about twice that in both terms. Embedding and head are ignored.
"""

from itertools import pairwise
from math import sqrt

from ppsim.base.errors import ConfigError


def equal_time_slices(num_tokens: int, num_slices: int, *, hidden_size: int) -> list[int]:
    """Return tokens per slice such that all slices take the same FLOPs, up to one token.

    This is Seq1F1B's computation-wise split (arXiv 2406.03488). Raises `ConfigError` if a slice would have no
    tokens.

    >>> equal_time_slices(32768, 4, hidden_size=4096)
    [11132, 8407, 7044, 6185]
    """
    if num_slices < 1 or hidden_size < 1:
        raise ConfigError(f"slices and hidden size must be at least 1: got {num_slices} and {hidden_size}")
    if reason := why_no_slices(num_tokens, num_slices, hidden_size=hidden_size):
        raise ConfigError(reason)
    return _lengths(num_tokens, num_slices, hidden_size)


def why_no_slices(num_tokens: int, num_slices: int, *, hidden_size: int) -> str | None:
    if min(_lengths(num_tokens, num_slices, hidden_size)) < 1:
        return f"{num_tokens} tokens are too few for {num_slices} slices of equal time"
    return None


def _lengths(num_tokens: int, num_slices: int, hidden_size: int) -> list[int]:
    linear = 12 * hidden_size + 1  # C(x) / 2h = x² + (12h + 1)·x
    total = num_tokens * (num_tokens + linear)
    ends = [
        round((sqrt(linear**2 + 4 * total * boundary / num_slices) - linear) / 2)
        for boundary in range(num_slices + 1)
    ]
    return [end - begin for begin, end in pairwise(ends)]


def time_shares(tokens_per_slice: list[int], *, hidden_size: int) -> list[float]:
    """Return the fraction of a layer's time per slice.

    >>> [round(share, 3) for share in time_shares([8192] * 4, hidden_size=4096)]
    [0.175, 0.225, 0.275, 0.325]
    """
    shares, end = [], 0
    linear = 12 * hidden_size + 1
    for tokens in tokens_per_slice:
        begin, end = end, end + tokens
        shares.append(end * (end + linear) - begin * (begin + linear))
    return [share / sum(shares) for share in shares]
