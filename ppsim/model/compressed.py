"""Attention over a window and over blocks of tokens compressed into one key each, as DeepSeek-V4 has it.

DeepSeek-AI 2026, arXiv 2606.19348, §2.3. Shapes are those of transformers 5.23 (`modeling_deepseek_v4.py`), what is
kept is Megatron-LM's (dev at d48bd6b: `deepseek_v4_hybrid_attention.py`, `csa.py`, `csa_utils`). Letters: n heads
of d columns, q columns of the queries' latent, r tokens a block, w tokens of the window, s of the sequence.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ppsim.base.errors import ConfigError
from ppsim.model.batch import KernelChoice
from ppsim.model.linears import Linear, of_columns
from ppsim.model.mixer import opaque_mixer
from ppsim.model.operators import Operator
from ppsim.model.scored import OneWidth, keys_in_window
from ppsim.parallel.sizes import Cut, require_positive


@dataclass(frozen=True)
class Indexer:
    """What chooses `num_keys` compressed keys for a query by scores of heads of its own (§2.3.1, eq. 13 to 17)."""

    num_heads: int
    head_size: int
    num_keys: int

    def __post_init__(self) -> None:
        require_positive(self, "num_heads", "head_size", "num_keys")

    @property
    def columns(self) -> int:
        """Columns of all its queries."""
        return self.num_heads * self.head_size


@dataclass(frozen=True)
class CompressedAttention(OneWidth):
    """Queries of many heads over one key a token, which is its value too, in a window, and one a block before it.

    `block` tokens are joined by weights of a softmax over each column (None: the window alone). With an `indexer`
    each block overlaps the one before it, so that two keys a token are projected, and a query sees those that are
    chosen (compressed sparse attention); without one it sees all (heavily compressed attention). Heads leave by
    `out_groups` matrices side by side, of `out_rank` columns each. Every head has a sink.

    Megatron-LM divides nothing of it by tensor parallelism (`DSv4HybridAttention`: TP size 1). Context-parallel
    ranks have one piece of the sequence each, one behind the other: a rank takes the hidden states of `rows_before`
    from the one before it, and gathers the compressed keys of all (`csa_utils/cp_utils.py`, `csa.py`).
    """

    num_heads: int
    head_size: int
    q_lora_rank: int
    rope_head_size: int
    window: int
    out_groups: int
    out_rank: int
    block: int | None = None
    indexer: Indexer | None = None
    has_norm_apart = True

    def __post_init__(self) -> None:
        require_positive(
            self,
            "num_heads",
            "head_size",
            "q_lora_rank",
            "rope_head_size",
            "window",
            "out_groups",
            "out_rank",
            "block",
        )
        if self.num_heads * self.head_size % self.out_groups:
            raise ConfigError(
                f"the groups of the output must divide the columns of all heads: got {self.out_groups} with "
                f"{self.num_heads * self.head_size}"
            )
        if self.indexer and self.block is None:
            raise ConfigError("an indexer chooses among compressed keys: a layer without them has none")

    @property
    def norm_parameters(self) -> int:
        """Weights of the norms of the queries' latent, of keys, of compressed ones and of the indexer's."""
        compressed = self.head_size if self.block else 0
        return self.q_lora_rank + self.head_size + compressed + (self.indexer.head_size if self.indexer else 0)

    @property
    def _compressing(self) -> tuple[int, ...]:
        """Columns of what is compressed: keys of attention and of its indexer, two a token where they overlap."""
        if self.block is None:
            return ()
        return (2 * self.head_size, 2 * self.indexer.head_size) if self.indexer else (self.head_size,)

    @property
    def rows_before(self) -> int:
        """Tokens before its own that a context-parallel rank needs: a window's, or an overlapping block's."""
        return max(self.window, (1 + (self.indexer is not None)) * (self.block or 0))

    @property
    def gathered_columns(self) -> float:
        """Columns a token of compressed keys, those of the indexer too, which context-parallel ranks gather."""
        return (
            (self.head_size + (self.indexer.head_size if self.indexer else 0)) / self.block if self.block else 0.0
        )

    def blocks_a_query(self, sequence_length: int, at_most: int | None = None) -> float:
        """Return how many whole blocks end at a query or before it on average, of these `at_most` chosen.

        A query at place t of 1 to s sees ⌊t/r⌋. With q = ⌊s/r⌋, or as many as are chosen: (r·q(q - 1)/2 +
        q(s - qr + 1))/s.

        >>> attention = CompressedAttention(1, 1, 1, 1, window=1, out_groups=1, out_rank=1, block=4)
        >>> attention.blocks_a_query(10) == (0 + 0 + 0 + 1 + 1 + 1 + 1 + 2 + 2 + 2) / 10
        True
        >>> attention.blocks_a_query(10, at_most=1) == 7 / 10
        True
        """
        if self.block is None:
            return 0.0
        whole = sequence_length // self.block
        q = whole if at_most is None else min(whole, at_most)
        return (self.block * q * (q - 1) / 2 + q * (sequence_length - q * self.block + 1)) / sequence_length

    @property
    def _chosen(self) -> int | None:
        return self.indexer.num_keys if self.indexer else None

    def keys_a_query(self, sequence_length: int) -> float:
        """Return how many keys a query sees on average: those of its window, and compressed ones."""
        return keys_in_window(self.window, sequence_length) + self.blocks_a_query(sequence_length, self._chosen)

    def unmasked_keys(self, sequence_length: int) -> int:
        """Return how many keys are gathered for a query, those behind it too: window and blocks."""
        blocks = sequence_length // self.block if self.block else 0
        return min(self.window, sequence_length) + min(blocks, self._chosen or blocks)

    def core_flops(self, sequence_length: int, *, causal: bool) -> float:
        """Return the FLOPs of scores and their use a token, those of the indexer with all blocks before it too.

        2·2nd a key; 2 a column of the indexer's queries and block, of which ⌊t/r⌋ are before a query. As many again
        where masked ones count. The indexer's sum over heads and its choice are not counted.
        """
        scored = self.indexer.columns * self.blocks_a_query(sequence_length) if self.indexer else 0.0
        return super().core_flops(sequence_length, causal=causal) + 2.0 * scored * (2 - causal)

    def require_division(self, cut: Cut) -> None:
        """Raise `ConfigError` also for any tp above 1."""
        super().require_division(cut)
        if cut.tp > 1:
            raise ConfigError(f"compressed attention is not divided by tp: got tp {cut.tp} (nearest: 1)")

    @property
    def _rotated(self) -> float:
        """The columns per token that are read and written between products.

        Each query is normed and rotated in place, each result rotated back in a copy: 2nd; a key's columns with
        rotation; and what is compressed, its keys and their weights.
        """
        rotated = (self.num_heads + 1) * self.rope_head_size
        if self.indexer:
            rotated += self.indexer.num_heads * self.rope_head_size
        return 2 * self.inner_size + rotated + sum(self._compressing)

    def kept_columns(self, *, with_ups: bool, cp: int = 1) -> float:
        """Return the columns that a forward keeps of a token behind its input, of the type of activations.

        The queries' latent before and behind its norm, 2q. `with_ups`, unless `mla_up_proj` is recomputed: queries
        before and behind theirs, and a key before its norm, 2nd + d. Keys and values in one piece with compressed
        ones, d + d/r; keys and weights that are compressed, and their sum before its norm. Of the indexer the
        gradients of its queries, keys and weights, which its loss has at once (`fused_sparse_attention.py`). The
        result, the same rotated back, and what its groups give. Each of `cp` ranks has the compressed keys of all.
        """
        kept = 2.0 * self.q_lora_rank + 2 * self.inner_size + self.out_groups * self.out_rank + self.head_size
        kept += with_ups * (2 * self.inner_size + self.head_size)
        kept += 2 * sum(self._compressing)
        if self.block:
            kept += (1 + cp) * self.head_size / self.block
        if self.block and self.indexer:
            kept += self.indexer.columns + (1 + cp) * self.indexer.head_size / self.block + self.indexer.num_heads
        return kept

    def core_bytes(self, sequence_length: int) -> int:
        """Return the bytes a token that the core keeps: a sum a head in float32, and an int32 a key it may see."""
        return 4 * (self.num_heads + self.unmasked_keys(sequence_length))

    def operators(self, h: int, cut: Cut, kernels: KernelChoice, sequence_length: int) -> Iterator[Operator]:
        """Yield its GEMMs and what it keeps: the products up, the choice of keys, and all else."""
        kept = {
            "ups": ("mla_up_proj", 2 * self.inner_size + self.head_size),
            "kept": ("attn", self.kept_columns(with_ups=False, cp=cut.cp)),
            "index": ("core_attn", self.core_bytes(sequence_length) // 4),
        }
        yield Operator("rotate", "mla_up_proj", (), (), kind="rotation", columns=self._rotated)
        yield Operator("core", "core_attn", (), (), core=self)
        yield from opaque_mixer(self.linears(h, cut.tp), kept)

    def linears(self, h: int, tp: int) -> list[Linear]:
        """Return the matrices, whole on every rank: down to the queries' latent, up, keys, what compresses, out."""
        read, groups = "attention input", self.out_groups
        return [
            Linear("queries down", read, h, (self.q_lora_rank,)),
            Linear("queries up", "latent of queries", self.q_lora_rank, (self.inner_size,)),
            Linear("keys and values up", read, h, (self.head_size,)),
            *[
                one
                for name, columns in zip(("keys", "indexer's keys"), self._compressing, strict=False)
                for one in (
                    Linear(f"compressed {name} and weights", read, h, (columns, columns)),
                    of_columns(f"places of {name} in a block", name, (columns,), inputs=self.block or 1),
                )
            ],
            *(self._of_indexer(h) if self.indexer else []),
            of_columns("sinks", "scores", (self.num_heads,)),
            Linear("heads down", "heads", self.inner_size, (groups * self.out_rank,), groups=groups),
            Linear("attention output", "narrow heads", groups * self.out_rank, (h,)),
        ]

    def _of_indexer(self, h: int) -> list[Linear]:
        assert self.indexer
        return [
            Linear("indexer's queries up", "latent of queries", self.q_lora_rank, (self.indexer.columns,)),
            Linear("indexer's weights", "attention input", h, (self.indexer.num_heads,)),
        ]
