"""Slices of a sequence under causal attention: later tokens look back farther and cost more.

Per layer of hidden size h, with a feed-forward of 4h, a token's forward takes 24·h² FLOPs in matrix products and
4·h for every token that it attends to, itself included: Narayanan et al. 2021 (arXiv 2104.04473, appendix) count
24·s·b·h² + 4·s²·b·h with attention in full, of which causal attention is half. The first x tokens thus take

    C(x) = 24·h²·x + 4·h·(1 + 2 + … + x) = 24·h²·x + 2·h·x·(x + 1)

A backward of inputs and weights takes about twice that in both terms, so that one set of shares serves all passes.
Embedding and head, linear in the tokens, are left out.
"""

from itertools import pairwise
from math import sqrt

from ppsim.base.errors import ConfigError


def equal_time_slices(num_tokens: int, num_slices: int, *, hidden_size: int) -> list[int]:
    """Return tokens per slice such that all slices take the same FLOPs, to within those of one token.

    Slice j ends where C(x) = (j + 1)/k·C(s), a quadratic in x, rounded to a token: Seq1F1B's computation-wise split
    (arXiv 2406.03488). Raises `ConfigError` where that leaves a slice without tokens.

    >>> equal_time_slices(32768, 4, hidden_size=4096)
    [11132, 8407, 7044, 6185]
    """
    if num_slices < 1 or hidden_size < 1:
        raise ConfigError(f"slices and hidden size must be at least 1: got {num_slices} and {hidden_size}")
    if reason := why_no_slices(num_tokens, num_slices, hidden_size=hidden_size):
        raise ConfigError(reason)
    return _lengths(num_tokens, num_slices, hidden_size)


def why_no_slices(num_tokens: int, num_slices: int, *, hidden_size: int) -> str | None:
    """Return the sentence that says why so many slices of equal time cannot be cut, or None where they can."""
    if min(_lengths(num_tokens, num_slices, hidden_size)) < 1:
        return f"{num_tokens} tokens are too few for {num_slices} slices of equal time"
    return None


def _lengths(num_tokens: int, num_slices: int, hidden_size: int) -> list[int]:
    linear = 12 * hidden_size + 1  # C(x) / 2h = x² + (12h + 1)·x
    whole = num_tokens * (num_tokens + linear)
    ends = [
        round((sqrt(linear**2 + 4 * whole * place / num_slices) - linear) / 2) for place in range(num_slices + 1)
    ]
    return [end - begin for begin, end in pairwise(ends)]


def time_shares(tokens_per_slice: list[int], *, hidden_size: int) -> list[float]:
    """Return what of a layer's time each slice takes, for given tokens per slice; they sum to 1.

    >>> [round(share, 3) for share in time_shares([8192] * 4, hidden_size=4096)]
    [0.175, 0.225, 0.275, 0.325]
    """
    shares, end = [], 0
    linear = 12 * hidden_size + 1
    for tokens in tokens_per_slice:
        begin, end = end, end + tokens
        shares.append(end * (end + linear) - begin * (begin + linear))
    return [share / sum(shares) for share in shares]
