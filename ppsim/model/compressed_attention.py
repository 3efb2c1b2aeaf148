"""Attention of DeepSeek-V4: over a window, and over blocks of tokens compressed into one key each.

DeepSeek-AI 2026, arXiv 2606.19348, §2.3. Shapes as in transformers 5.23 (`modeling_deepseek_v4.py`), saved tensors
as in Megatron-LM (dev at d48bd6b: `deepseek_v4_hybrid_attention.py`, `csa.py`, `csa_utils`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ppsim.base.errors import ConfigError
from ppsim.model.attention_base import EqualWidthAttention, Indexer, blocks_before, keys_in_window
from ppsim.model.execution import Execution
from ppsim.model.mixer import opaque_mixer
from ppsim.model.operators import Operator
from ppsim.model.weight_matrices import WeightMatrix, of_columns
from ppsim.parallel.sizes import ParallelSizes, require_positive


@dataclass(frozen=True)
class CompressedAttention(EqualWidthAttention):
    """Multi-query attention with one key per token in a window, and one compressed key per earlier block.

    Each key is also the value. With an `indexer` a query sees the chosen blocks (compressed sparse attention),
    which overlap, so that two keys per token are projected. Without `indexer` it sees all blocks (heavily
    compressed attention). `block` None: the window alone.

    Megatron-LM does not divide this attention by tensor parallelism (`DSv4HybridAttention`). A context-parallel
    rank has one contiguous piece of the sequence, receives `rows_before` hidden states from the previous rank, and
    gathers the compressed keys of all ranks (`csa_utils/cp_utils.py`, `csa.py`).
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
        compressed = self.head_size if self.block else 0
        return self.q_lora_rank + self.head_size + compressed + (self.indexer.head_size if self.indexer else 0)

    @property
    def _compressing(self) -> tuple[int, ...]:
        if self.block is None:
            return ()
        return (2 * self.head_size, 2 * self.indexer.head_size) if self.indexer else (self.head_size,)

    @property
    def rows_before(self) -> int:
        return max(self.window, (1 + (self.indexer is not None)) * (self.block or 0))

    @property
    def gathered_columns(self) -> float:
        return (
            (self.head_size + (self.indexer.head_size if self.indexer else 0)) / self.block if self.block else 0.0
        )

    def blocks_per_query(self, sequence_length: int, at_most: int | None = None) -> float:
        return blocks_before(self.block, sequence_length, at_most) if self.block else 0.0

    @property
    def _chosen(self) -> int | None:
        return self.indexer.num_keys if self.indexer else None

    def keys_per_query(self, sequence_length: int) -> float:
        return keys_in_window(self.window, sequence_length) + self.blocks_per_query(sequence_length, self._chosen)

    def unmasked_keys(self, sequence_length: int) -> int:
        blocks = sequence_length // self.block if self.block else 0
        return min(self.window, sequence_length) + min(blocks, self._chosen or blocks)

    def core_flops(self, sequence_length: int, *, causal: bool) -> float:
        """Include the indexer's scores, but neither its sum over heads nor its selection of keys."""
        scored = self.indexer.columns * self.blocks_per_query(sequence_length) if self.indexer else 0.0
        return super().core_flops(sequence_length, causal=causal) + 2.0 * scored * (2 - causal)

    def require_division(self, sizes: ParallelSizes) -> None:
        super().require_division(sizes)
        if sizes.tp > 1:
            raise ConfigError(f"compressed attention is not divided by tp: got tp {sizes.tp} (nearest: 1)")

    @property
    def _rotated(self) -> float:
        """Columns per token that memory-bound kernels between the GEMMs read and write.

        Queries are rotated in place, and results are rotated back in a copy.
        """
        rotated = (self.num_heads + 1) * self.rope_head_size
        if self.indexer:
            rotated += self.indexer.num_heads * self.rope_head_size
        return 2 * self.inner_size + rotated + sum(self._compressing)

    def kept_columns(self, *, with_ups: bool, cp: int = 1) -> float:
        """Columns per token that a forward saves besides its input, in the dtype of activations.

        - The query latent before and after its norm. `with_ups` (unless `mla_up_proj` is recomputed): queries
          before and after their norm, and a key before its norm.
        - Keys and values joined with compressed ones; keys and weights to be compressed, and their sum before its
          norm. Each of `cp` ranks has the compressed keys of all.
        - For the indexer, the gradients of its queries, keys and weights, which its loss computes at once
          (`fused_sparse_attention.py`).
        - The result, the result rotated back, and the outputs of the down-projection in groups.
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
        """Saved bytes per token: a float32 softmax sum per head, and an int32 index per visible key."""
        return 4 * (self.num_heads + self.unmasked_keys(sequence_length))

    def operators(
        self, h: int, sizes: ParallelSizes, execution: Execution, sequence_length: int
    ) -> Iterator[Operator]:
        kept = {
            "ups": ("mla_up_proj", 2 * self.inner_size + self.head_size),
            "kept": ("attn", self.kept_columns(with_ups=False, cp=sizes.cp)),
            "index": ("core_attn", self.core_bytes(sequence_length) // 4),
        }
        yield Operator("rotate", "mla_up_proj", (), (), kind="rotation", columns=self._rotated)
        yield Operator("core", "core_attn", (), (), core=self)
        yield from opaque_mixer(self.linears(h, sizes.tp), kept)

    def linears(self, h: int, tp: int) -> list[WeightMatrix]:
        read, groups = "attention input", self.out_groups
        return [
            WeightMatrix("queries down", read, h, (self.q_lora_rank,)),
            WeightMatrix("queries up", "latent of queries", self.q_lora_rank, (self.inner_size,)),
            WeightMatrix("keys and values up", read, h, (self.head_size,)),
            *[
                one
                for name, columns in zip(("keys", "indexer's keys"), self._compressing, strict=False)
                for one in (
                    WeightMatrix(f"compressed {name} and weights", read, h, (columns, columns)),
                    of_columns(f"places of {name} in a block", name, (columns,), inputs=self.block or 1),
                )
            ],
            *(self._of_indexer(h) if self.indexer else []),
            of_columns("sinks", "scores", (self.num_heads,)),
            WeightMatrix("heads down", "heads", self.inner_size, (groups * self.out_rank,), groups=groups),
            WeightMatrix("attention output", "narrow heads", groups * self.out_rank, (h,)),
        ]

    def _of_indexer(self, h: int) -> list[WeightMatrix]:
        assert self.indexer
        return [
            WeightMatrix("indexer's queries up", "latent of queries", self.q_lora_rank, (self.indexer.columns,)),
            WeightMatrix("indexer's weights", "attention input", h, (self.indexer.num_heads,)),
        ]
