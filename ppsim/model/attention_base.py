"""Common parts of all kinds of attention: heads whose queries score keys."""

from dataclasses import dataclass

from ppsim.model.mixer import Mixer
from ppsim.parallel.sizes import require_positive


@dataclass(frozen=True)
class Indexer:
    """Choice of `num_keys` keys per query, by the scores of the indexer's own heads.

    A weighted sum of the heads' scores chooses the same keys for all query heads (DeepSeek-AI 2025, arXiv
    2512.02556, §2.1). With `block`, each head of the indexer chooses blocks of `block` keys for its own group of
    query heads, always with the query's own block (MiniMax-M3; transformers 5.23, `MiniMaxM3VLIndexer`).
    """

    num_heads: int
    head_size: int
    num_keys: int
    block: int | None = None

    def __post_init__(self) -> None:
        require_positive(self, "num_heads", "head_size", "num_keys", "block")

    @property
    def columns(self) -> int:
        return self.num_heads * self.head_size

    @property
    def indices(self) -> float:
        """Indices of chosen keys (or blocks) that the indexer writes per query."""
        return self.num_heads * self.num_keys / self.block if self.block else self.num_keys

    def keys_per_query(self, sequence_length: int) -> float:
        """Mean number of keys that a query sees.

        It is below `num_keys`: the first queries have fewer keys, and a query's own block has keys after the query.

        >>> Indexer(1, 8, 4, block=2).keys_per_query(8) == (1 + 2 + 3 + 4 + 3 + 4 + 3 + 4) / 8
        True
        """
        if self.num_keys >= sequence_length:
            return sequence_length / 2
        missing = ((self.block or 1) - 1) / 2 * (1 - self.num_keys / sequence_length)
        return keys_in_window(self.num_keys, sequence_length) - missing


class ScoredAttention(Mixer):
    """Heads with queries and keys of `qk_head_size` columns, and values of `v_head_size`."""

    num_heads: int
    qk_head_size: int
    v_head_size: int
    is_causal: bool = True
    indexer: Indexer | None = None

    @property
    def score_width(self) -> int:
        return self.num_heads * (self.qk_head_size + self.v_head_size)

    @property
    def divided(self) -> dict[str, int]:
        return {"heads": self.num_heads}

    def keys_per_query(self, sequence_length: int) -> float:
        """Mean number of keys that a query sees."""
        return sequence_length / 2 if self.is_causal else float(sequence_length)

    def unmasked_keys(self, sequence_length: int) -> int:
        """Keys that a query scores if masked ones are not skipped."""
        return sequence_length

    def core_flops(self, sequence_length: int, *, causal: bool) -> float:
        """FLOPs per token of QKᵀ and of scores times V; twice that if masked scores count."""
        masked = self.is_causal and not causal
        return 2.0 * self.keys_per_query(sequence_length) * self.score_width * (1 + masked)

    def choice_flops(self, sequence_length: int, *, causal: bool) -> float:
        """FLOPs per token of an indexer's scores over all keys before the query."""
        return self.indexer.columns * sequence_length * (1.0 if causal else 2.0) if self.indexer else 0.0


class EqualWidthAttention(ScoredAttention):
    """Queries, keys and values with heads of the same width."""

    head_size: int

    @property
    def inner_size(self) -> int:
        return self.num_heads * self.head_size

    @property
    def qk_head_size(self) -> int:  # type: ignore[override]
        return self.head_size

    @property
    def v_head_size(self) -> int:  # type: ignore[override]
        return self.head_size


def blocks_before(block: int, sequence_length: int, at_most: int | None = None) -> float:
    """Mean number of whole blocks of r tokens at or before a query, at most `at_most`.

    A query at position t of 1 to s sees min(⌊t/r⌋, `at_most`) blocks. With q = min(⌊s/r⌋, `at_most`), the mean is
    (r·q(q - 1)/2 + q(s - qr + 1))/s.

    >>> blocks_before(4, 10) == (0 + 0 + 0 + 1 + 1 + 1 + 1 + 2 + 2 + 2) / 10
    True
    >>> blocks_before(4, 10, at_most=1) == 7 / 10
    True
    """
    num_blocks = sequence_length // block
    q = num_blocks if at_most is None else min(num_blocks, at_most)
    return (block * q * (q - 1) / 2 + q * (sequence_length - q * block + 1)) / sequence_length


def keys_in_window(window: int, sequence_length: int) -> float:
    """Mean number of keys that a query sees in a window of w tokens: w - w(w - 1)/2s.

    >>> keys_in_window(3, 4) == (1 + 2 + 3 + 3) / 4
    True
    """
    seen = min(window, sequence_length)
    return seen - seen * (seen - 1) / (2 * sequence_length)
