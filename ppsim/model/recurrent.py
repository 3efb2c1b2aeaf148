"""Mixers whose tokens change a state instead of looking at each other: Mamba-2, and the gated delta rule.

Both are computed in chunks of Q tokens: within one as attention without a softmax, between chunks by the state. The
products of a chunk are listed once; FLOPs and kernels are read from that list. Letters: h hidden size, H heads,
P columns of a head, N columns of the state, G groups, as in `ppsim.model.architecture` otherwise.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ppsim.base.errors import ConfigError
from ppsim.model.batch import KernelChoice
from ppsim.model.linears import Linear, of_columns, out_of_heads
from ppsim.model.mixer import Mixer, opaque_mixer
from ppsim.model.operators import Operator
from ppsim.parallel.sizes import Cut, require_divides, require_positive


@dataclass(frozen=True)
class ChunkProduct:
    """`count` products [rows, depth] · [depth, columns] of a chunk.

    `is_within`: of pairs of tokens of the chunk, of which half are masked. `is_again`: the backward computes it
    once more before it starts.
    """

    count: int
    rows: int
    columns: int
    depth: int
    is_within: bool = False
    is_again: bool = False

    @property
    def flops(self) -> float:
        """FLOPs of all of them, 2 a multiply-add, masked ones too."""
        return 2.0 * self.count * self.rows * self.columns * self.depth


class Recurrent(Mixer):
    """What both mixers have: heads with a state, a convolution, a gate, and products of chunks."""

    chunk_size: int

    @property
    @abstractmethod
    def inner_size(self) -> int:
        """Columns of what all heads give."""

    @property
    @abstractmethod
    def convolved(self) -> int:
        """Columns that pass through the convolution."""

    @property
    @abstractmethod
    def kept_columns(self) -> int:
        """Columns that a forward keeps behind its input."""

    def operators(self, h: int, cut: Cut, kernels: KernelChoice, sequence_length: int) -> Iterator[Operator]:
        """Yield what its scan keeps, its convolution, the scan, its gate, and its GEMMs."""
        yield Operator("convolution", "scan", (), (), kind="convolution", columns=self.convolved // cut.tp)
        yield Operator("scan", "scan", (), (), core=self)
        yield Operator("gate", "scan", (), (), kind="gate", columns=self.inner_size // cut.tp)
        yield from opaque_mixer(self.linears(h, cut.tp), {"kept": ("scan", self.kept_columns // cut.tp)})

    @abstractmethod
    def chunk_products(self, tp: int = 1) -> tuple[ChunkProduct, ...]:
        """Return the products of a chunk, those of one of `tp` ranks."""

    @cached_property
    def _products(self) -> tuple[ChunkProduct, ...]:
        return self.chunk_products()

    def core_flops(self, sequence_length: int, *, causal: bool) -> float:
        """Return the FLOPs of the scan or the rule a token, of products within a chunk half if `causal`.

        Mamba-2: 2Q(GN + HP) within chunks and 4HPN. A delta rule of keys k and values v wide, of a head: 2Q(3k +
        2v) in chunks and 6kv. A sequence shorter than a chunk has as many pairs as it has tokens.
        """
        part = min(1.0, sequence_length / self.chunk_size) / (2 if causal else 1)
        return sum(one.flops * (part if one.is_within else 1) for one in self._products) / self.chunk_size


@dataclass(frozen=True)
class Mamba(Recurrent):
    """A Mamba-2 mixer (Dao & Gu 2024, arXiv 2405.21060, §6 and §7; Megatron-LM's `MambaMixer`).

    One projection gives gate, x, B, C and the time steps; a convolution of `kernel` tokens passes over x, B and C;
    the scan; a norm of what the gate leaves (`gated_norm`); the output's projection.
    """

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
        """Columns of all heads, HP."""
        return self.num_heads * self.head_size

    @property
    def convolved(self) -> int:
        """Columns that pass through the convolution: x, B and C, HP + 2GN."""
        return self.inner_size + 2 * self.num_groups * self.state_size

    @property
    def divided(self) -> dict[str, int]:
        """What tensor-parallel ranks divide."""
        return {"Mamba heads": self.num_heads, "Mamba groups": self.num_groups}

    def require_division(self, cut: Cut) -> None:
        """Raise `ConfigError` also for heads that ranks of tp and cp do not divide."""
        super().require_division(cut)
        require_divides("tp × cp", cut.tp * cut.cp, "Mamba heads", self.num_heads)

    @property
    def kept_columns(self) -> int:
        """Columns that a forward keeps behind its input.

        What the projection gives, 2HP + 2GN + H (the convolution and the scan are computed again), the scan's
        result, what the gate leaves of it, and the norm's output (mamba_ssm's `mamba_split_conv1d_scan_combined`).
        """
        return self.inner_size + self.convolved + self.num_heads + (2 + self.gated_norm) * self.inner_size

    @property
    def transient_bytes(self) -> int:
        """Bytes a token that the backward has for itself: states of all chunks and their gradients, in float32."""
        return 8 * self.inner_size * self.state_size // self.chunk_size

    def chunk_products(self, tp: int = 1) -> tuple[ChunkProduct, ...]:
        """Return a rank's: CBᵀ, its use on x, the states that chunks leave, and those that they start from."""
        heads, p, n, q = self.num_heads // tp, self.head_size, self.state_size, self.chunk_size
        return (
            ChunkProduct(self.num_groups // tp, q, q, n, is_within=True, is_again=True),
            ChunkProduct(heads, q, p, q, is_within=True),
            ChunkProduct(heads, p, n, q, is_again=True),
            ChunkProduct(heads, q, p, n),
        )

    def linears(self, h: int, tp: int) -> list[Linear]:
        """Return the matrices that a rank holds: in, convolution, what a head has one number of, norm, out."""
        heads, inner, state = self.num_heads // tp, self.inner_size // tp, self.num_groups * self.state_size // tp
        columns = inner, inner, state, state, heads
        read, convolved = "attention input", (inner, state, state)
        return [
            Linear("gate, x, B, C, time step", read, h, columns, split="outputs", biased=self.bias),
            of_columns("convolution", "x, B, C", convolved, inputs=self.kernel, biased=self.conv_bias),
            of_columns("decay, skip, bias of time step", "x", (heads,) * 3),
            *[of_columns("gated norm", "heads", (inner,))] * self.gated_norm,
            out_of_heads(inner, h, biased=self.bias),
        ]


@dataclass(frozen=True)
class GatedDeltaNet(Recurrent):
    """A gated delta rule (Yang et al. 2024, arXiv 2412.06464), as Qwen3-Next and Megatron-LM have it.

    Queries and keys of `num_key_heads`, repeated for the value heads; a convolution of `kernel` tokens over
    queries, keys and values; a norm over each value head; a gate.
    """

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
        """Heads of the state."""
        return self.num_value_heads

    @property
    def inner_size(self) -> int:
        """Columns of all values."""
        return self.num_value_heads * self.value_size

    @property
    def convolved(self) -> int:
        """Columns that pass through the convolution: queries, keys and values."""
        return 2 * self.num_key_heads * self.key_size + self.inner_size

    @property
    def norm_parameters(self) -> int:
        """Weights of the norm over a value head."""
        return self.value_size

    @property
    def divided(self) -> dict[str, int]:
        """What tensor-parallel ranks divide."""
        return {"key heads of the delta net": self.num_key_heads, "its value heads": self.num_value_heads}

    def require_division(self, cut: Cut) -> None:
        """Raise `ConfigError` also for context parallelism."""
        super().require_division(cut)
        if cut.cp > 1:
            raise ConfigError(
                f"context parallelism of a gated delta net is not known: got cp {cut.cp} (nearest: 1)"
            )

    @property
    def kept_columns(self) -> int:
        """Columns that a forward keeps behind its input.

        Before the convolution, gate, and two numbers a head; behind it queries and keys of every value head, and
        values; a row of the chunk's inverse; the result before and behind its norm (flash-linear-attention's
        `chunk_gated_delta_rule`).
        """
        heads = self.num_value_heads
        projected = self.convolved + self.inner_size + 2 * heads
        return projected + 2 * heads * self.key_size + 3 * self.inner_size + heads * self.chunk_size

    @property
    def transient_bytes(self) -> int:
        """Bytes a token that the backward has for itself: states of all chunks and their gradients, in 16 bits."""
        return 4 * self.num_value_heads * self.key_size * self.value_size // self.chunk_size

    def chunk_products(self, tp: int = 1) -> tuple[ChunkProduct, ...]:
        """Return a rank's: KKᵀ, its inverse on keys and values, QKᵀ and its use, the state's reads and update.

        The inverse of a unit triangle itself, Q²/3 multiply-adds a token and head, is left out: 1.5 % of the others
        for heads of 128 in chunks of 64.
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

    def linears(self, h: int, tp: int) -> list[Linear]:
        """Return the matrices that a rank holds: in, with the gates, convolution, decay, out."""
        heads, inner, keys = (
            count // tp for count in (self.num_value_heads, self.inner_size, self.num_key_heads * self.key_size)
        )
        return [
            *self._inwards(h, heads, inner, keys),
            of_columns("convolution", "queries, keys, values", (keys, keys, inner), inputs=self.kernel),
            self._decay(heads),
            out_of_heads(inner, h),
        ]

    def _inwards(self, h: int, heads: int, inner: int, keys: int) -> list[Linear]:
        columns = keys, keys, inner, inner, heads, heads
        return [Linear("queries, keys, values, gates", "attention input", h, columns, split="outputs")]

    def _decay(self, heads: int) -> Linear:
        return of_columns("decay, bias of time step", "gates", (heads,) * 2)


@dataclass(frozen=True)
class KimiDeltaAttention(GatedDeltaNet):
    """A delta rule whose decay is a column's own (Kimi Team 2025, arXiv 2510.26692), as Kimi Linear has it.

    Decay and output gate come by way of one head's width, whole on every rank. `gate_bias`: the gate has one.
    """

    gate_bias: bool = False

    @property
    def kept_columns(self) -> int:
        """Columns that a forward keeps behind its input.

        Before the convolution, both narrow ones, a number a head, decay and gate; behind it queries and keys of
        every value head, and values; rows of both products of a chunk; the result before and behind its norm.
        """
        heads, keys = self.num_value_heads, self.num_value_heads * self.key_size
        projected = self.convolved + 2 * self.value_size + heads + keys + self.inner_size
        return projected + 2 * keys + 3 * self.inner_size + 2 * heads * self.chunk_size

    def _inwards(self, h: int, heads: int, inner: int, keys: int) -> list[Linear]:
        read, low = "attention input", self.value_size
        return [
            Linear("queries, keys, values, strength", read, h, (keys, keys, inner, heads), split="outputs"),
            Linear("decay and gate down", read, h, (low, low)),
            Linear("decay up", "narrow decay", low, (heads * self.key_size,), split="outputs"),
            Linear("gate up", "narrow gate", low, (inner,), split="outputs", biased=self.gate_bias),
        ]

    def _decay(self, heads: int) -> Linear:
        return of_columns("rate and bias of decay", "decay", (heads, heads * self.key_size))
