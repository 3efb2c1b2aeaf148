"""Token mixers with a recurrent state: Mamba-2, and gated delta rules.

Both are computed in chunks of Q tokens: within a chunk as attention without a softmax, between chunks by the state.
Letters: H heads, P columns per head, N columns of the state, G groups; others as in `ppsim.model.architecture`.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ppsim.base.errors import ConfigError
from ppsim.model.execution import Execution
from ppsim.model.mixer import Mixer, opaque_mixer
from ppsim.model.operators import Operator
from ppsim.model.weight_matrices import WeightMatrix, of_columns, out_of_heads
from ppsim.parallel.sizes import ParallelSizes, require_divides, require_positive


@dataclass(frozen=True)
class ChunkProduct:
    """`count` GEMMs [rows, depth] · [depth, columns] of a chunk.

    `is_within`: over pairs of tokens in the chunk; half of the pairs are masked. `is_again`: recomputed at the
    start of the backward.
    """

    count: int
    rows: int
    columns: int
    depth: int
    is_within: bool = False
    is_again: bool = False

    @property
    def flops(self) -> float:
        return 2.0 * self.count * self.rows * self.columns * self.depth


class Recurrent(Mixer):
    """Common parts: heads with a state, a convolution, a gate, and GEMMs of chunks."""

    chunk_size: int

    @property
    @abstractmethod
    def inner_size(self) -> int:
        """Output columns of all heads."""

    @property
    @abstractmethod
    def convolved(self) -> int:
        """Columns that pass through the convolution."""

    @property
    @abstractmethod
    def kept_columns(self) -> int:
        """Columns that a forward saves besides its input."""

    def operators(
        self, h: int, sizes: ParallelSizes, execution: Execution, sequence_length: int
    ) -> Iterator[Operator]:
        yield Operator("convolution", "scan", (), (), kind="convolution", columns=self.convolved // sizes.tp)
        yield Operator("scan", "scan", (), (), core=self)
        yield Operator("gate", "scan", (), (), kind="gate", columns=self.inner_size // sizes.tp)
        yield from opaque_mixer(self.linears(h, sizes.tp), {"kept": ("scan", self.kept_columns // sizes.tp)})

    @abstractmethod
    def chunk_products(self, tp: int = 1) -> tuple[ChunkProduct, ...]:
        """Return the GEMMs of a chunk on one of `tp` ranks."""

    @cached_property
    def _products(self) -> tuple[ChunkProduct, ...]:
        return self.chunk_products()

    def core_flops(self, sequence_length: int, *, causal: bool) -> float:
        """FLOPs per token; GEMMs within a chunk count half if `causal`.

        Mamba-2: 2Q(GN + HP) within chunks and 4HPN. Delta rule with keys of k and values of v columns, per head:
        2Q(3k + 2v) in chunks and 6kv.
        """
        part = min(1.0, sequence_length / self.chunk_size) / (2 if causal else 1)
        return (
            sum(product.flops * (part if product.is_within else 1) for product in self._products) / self.chunk_size
        )


@dataclass(frozen=True)
class Mamba(Recurrent):
    """A Mamba-2 mixer (Dao & Gu 2024, arXiv 2405.21060, §6 and §7; Megatron-LM's `MambaMixer`)."""

    num_heads: int
    head_size: int
    state_size: int
    num_groups: int = 1
    kernel: int = 4
    chunk_size: int = 256
    bias: bool = False
    conv_bias: bool = True
    gated_norm: bool = True
    graph_module = "mamba"

    def __post_init__(self) -> None:
        require_positive(self, "num_heads", "head_size", "state_size", "num_groups", "kernel", "chunk_size")
        if self.num_heads % self.num_groups:
            raise ConfigError(
                f"the Mamba heads must be a multiple of the groups: got {self.num_heads} and {self.num_groups}"
            )

    @property
    def inner_size(self) -> int:
        return self.num_heads * self.head_size

    @property
    def convolved(self) -> int:
        return self.inner_size + 2 * self.num_groups * self.state_size

    @property
    def divided(self) -> dict[str, int]:
        return {"Mamba heads": self.num_heads, "Mamba groups": self.num_groups}

    def require_division(self, sizes: ParallelSizes) -> None:
        super().require_division(sizes)
        require_divides("tp × cp", sizes.tp * sizes.cp, "Mamba heads", self.num_heads)

    @property
    def kept_columns(self) -> int:
        """The projection, the scan's result, the gated result, and the norm's output.

        Convolution and scan are recomputed (mamba_ssm's `mamba_split_conv1d_scan_combined`).
        """
        return self.inner_size + self.convolved + self.num_heads + (2 + self.gated_norm) * self.inner_size

    @property
    def transient_bytes(self) -> int:
        """States of all chunks and their gradients, in float32."""
        return 8 * self.inner_size * self.state_size // self.chunk_size

    def chunk_products(self, tp: int = 1) -> tuple[ChunkProduct, ...]:
        """CBᵀ, its use on x, the final states of chunks, and the use of their initial states."""
        heads, p, n, q = self.num_heads // tp, self.head_size, self.state_size, self.chunk_size
        return (
            ChunkProduct(self.num_groups // tp, q, q, n, is_within=True, is_again=True),
            ChunkProduct(heads, q, p, q, is_within=True),
            ChunkProduct(heads, p, n, q, is_again=True),
            ChunkProduct(heads, q, p, n),
        )

    def linears(self, h: int, tp: int) -> list[WeightMatrix]:
        heads, inner, state = self.num_heads // tp, self.inner_size // tp, self.num_groups * self.state_size // tp
        columns = inner, inner, state, state, heads
        read, convolved = "attention input", (inner, state, state)
        return [
            WeightMatrix("gate, x, B, C, time step", read, h, columns, split="outputs", biased=self.bias),
            of_columns("convolution", "x, B, C", convolved, inputs=self.kernel, biased=self.conv_bias),
            of_columns("decay, skip, bias of time step", "x", (heads,) * 3),
            *[of_columns("gated norm", "heads", (inner,))] * self.gated_norm,
            out_of_heads(inner, h, biased=self.bias),
        ]


@dataclass(frozen=True)
class GatedDeltaNet(Recurrent):
    """A gated delta rule (Yang et al. 2024, arXiv 2412.06464), as in Qwen3-Next and Megatron-LM."""

    num_key_heads: int
    num_value_heads: int
    key_size: int
    value_size: int
    kernel: int = 4
    chunk_size: int = 64

    def __post_init__(self) -> None:
        require_positive(self, "num_key_heads", "num_value_heads", "key_size", "value_size", "kernel", "chunk_size")
        if self.num_value_heads % self.num_key_heads:
            raise ConfigError(
                "the value heads of a delta net must be a multiple of its key heads: got "
                f"{self.num_value_heads} and {self.num_key_heads}"
            )

    @property
    def num_heads(self) -> int:  # type: ignore[override]
        return self.num_value_heads

    @property
    def inner_size(self) -> int:
        return self.num_value_heads * self.value_size

    @property
    def convolved(self) -> int:
        return 2 * self.num_key_heads * self.key_size + self.inner_size

    @property
    def norm_parameters(self) -> int:
        return self.value_size

    @property
    def divided(self) -> dict[str, int]:
        return {"key heads of the delta net": self.num_key_heads, "its value heads": self.num_value_heads}

    def require_division(self, sizes: ParallelSizes) -> None:
        super().require_division(sizes)
        if sizes.cp > 1:
            raise ConfigError(
                f"context parallelism of a gated delta net is not known: got cp {sizes.cp} (nearest: 1)"
            )

    @property
    def kept_columns(self) -> int:
        """Saved tensors of flash-linear-attention's `chunk_gated_delta_rule`.

        They are the convolution's input, the gate and two numbers per head; then queries, keys and values per value
        head, a row of the chunk's inverse, and the result before and after its norm.
        """
        heads = self.num_value_heads
        projected = self.convolved + self.inner_size + 2 * heads
        return projected + 2 * heads * self.key_size + 3 * self.inner_size + heads * self.chunk_size

    @property
    def transient_bytes(self) -> int:
        """States of all chunks and their gradients, in 16 bits."""
        return 4 * self.num_value_heads * self.key_size * self.value_size // self.chunk_size

    def chunk_products(self, tp: int = 1) -> tuple[ChunkProduct, ...]:
        """KKᵀ, its inverse on keys and values, QKᵀ and its use, state reads and update.

        The inversion of a unit triangular matrix, Q²/3 multiply-adds per token and head, is not counted: 1.5 % of
        the counted FLOPs for heads of 128 in chunks of 64.
        """
        heads, k, v, q = self.num_value_heads // tp, self.key_size, self.value_size, self.chunk_size
        return (
            ChunkProduct(heads, q, q, k, is_within=True),
            ChunkProduct(heads, q, k, q, is_within=True, is_again=True),
            ChunkProduct(heads, q, v, q, is_within=True, is_again=True),
            ChunkProduct(heads, q, q, k, is_within=True),
            ChunkProduct(heads, q, v, q, is_within=True),
            ChunkProduct(heads, q, v, k, is_again=True),
            ChunkProduct(heads, q, v, k),
            ChunkProduct(heads, k, v, q, is_again=True),
        )

    def linears(self, h: int, tp: int) -> list[WeightMatrix]:
        heads, inner, keys = (
            count // tp for count in (self.num_value_heads, self.inner_size, self.num_key_heads * self.key_size)
        )
        return [
            *self._inwards(h, heads, inner, keys),
            of_columns("convolution", "queries, keys, values", (keys, keys, inner), inputs=self.kernel),
            self._decay(heads),
            out_of_heads(inner, h),
        ]

    def _inwards(self, h: int, heads: int, inner: int, keys: int) -> list[WeightMatrix]:
        columns = keys, keys, inner, inner, heads, heads
        return [WeightMatrix("queries, keys, values, gates", "attention input", h, columns, split="outputs")]

    def _decay(self, heads: int) -> WeightMatrix:
        return of_columns("decay, bias of time step", "gates", (heads,) * 2)


@dataclass(frozen=True)
class KimiDeltaAttention(GatedDeltaNet):
    """A delta rule with a decay per column (Kimi Team 2025, arXiv 2510.26692), as in Kimi Linear.

    Decay and output gate are projected through the width of one head. `full_gate`: the output gate has a single,
    full projection (Kimi K3).
    """

    gate_bias: bool = False
    full_gate: bool = False

    @property
    def kept_columns(self) -> int:
        """As in `GatedDeltaNet`, with narrow projections, a decay per column, and rows of two Q × Q matrices."""
        heads, keys = self.num_value_heads, self.num_value_heads * self.key_size
        narrow = self.value_size * (1 if self.full_gate else 2)
        projected = self.convolved + narrow + heads + keys + self.inner_size
        return projected + 2 * keys + 3 * self.inner_size + 2 * heads * self.chunk_size

    def _inwards(self, h: int, heads: int, inner: int, keys: int) -> list[WeightMatrix]:
        read, low = "attention input", self.value_size
        if self.full_gate:
            columns = keys, keys, inner, heads, inner
            return [
                WeightMatrix("queries, keys, values, strength, gate", read, h, columns, split="outputs"),
                WeightMatrix("decay down", read, h, (low,)),
                WeightMatrix("decay up", "narrow decay", low, (heads * self.key_size,), split="outputs"),
            ]
        return [
            WeightMatrix("queries, keys, values, strength", read, h, (keys, keys, inner, heads), split="outputs"),
            WeightMatrix("decay and gate down", read, h, (low, low)),
            WeightMatrix("decay up", "narrow decay", low, (heads * self.key_size,), split="outputs"),
            WeightMatrix("gate up", "narrow gate", low, (inner,), split="outputs", biased=self.gate_bias),
        ]

    def _decay(self, heads: int) -> WeightMatrix:
        return of_columns("rate and bias of decay", "decay", (heads, heads * self.key_size))
