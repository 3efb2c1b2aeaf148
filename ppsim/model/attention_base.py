"""Common parts of all kinds of attention: heads whose queries score keys."""

from ppsim.model.mixer import Mixer


class Scored(Mixer):
    """Heads whose queries score keys, `qk_head_size` columns wide, and whose values are `v_head_size` wide."""

    num_heads: int
    qk_head_size: int
    v_head_size: int
    is_causal: bool = True

    @property
    def score_width(self) -> int:
        """Query columns plus value columns of all heads."""
        return self.num_heads * (self.qk_head_size + self.v_head_size)

    @property
    def divided(self) -> dict[str, int]:
        """Sizes that tensor-parallel ranks divide."""
        return {"heads": self.num_heads}

    def keys_a_query(self, sequence_length: int) -> float:
        """Return the mean number of keys that a query sees: half of the sequence, or all."""
        return sequence_length / 2 if self.is_causal else float(sequence_length)

    def unmasked_keys(self, sequence_length: int) -> int:
        """Return the number of keys that a query scores if masked ones are not skipped: all."""
        return sequence_length

    def core_flops(self, sequence_length: int, *, causal: bool) -> float:
        """Return the FLOPs per token of scores and their use; twice that if masked scores count."""
        masked = self.is_causal and not causal
        return 2.0 * self.keys_a_query(sequence_length) * self.score_width * (1 + masked)


class OneWidth(Scored):
    """Queries, keys and values with heads of the same width."""

    head_size: int

    @property
    def inner_size(self) -> int:
        """Columns of all heads, nd."""
        return self.num_heads * self.head_size

    @property
    def qk_head_size(self) -> int:  # type: ignore[override]
        """Width of a query's head."""
        return self.head_size

    @property
    def v_head_size(self) -> int:  # type: ignore[override]
        """Width of a value's head."""
        return self.head_size


def keys_in_window(window: int, sequence_length: int) -> float:
    """Return the mean number of keys that a query sees in a window of w tokens: w - w(w - 1)/2s.

    The first w - 1 queries see fewer.

    >>> keys_in_window(3, 4) == (1 + 2 + 3 + 3) / 4
    True
    """
    seen = min(window, sequence_length)
    return seen - seen * (seen - 1) / (2 * sequence_length)
