"""A weight matrix on a rank, the source of parameters, FLOPs, bytes and kernels.

`Layer.linears(cut)` has every matrix of a layer once, in forward order.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

LinearKind = Literal[
    "dense", "router", "routed", "shared", "gate", "latent", "vector", "condition", "streams", "adapter",
    "routed adapter",
]  # fmt: skip
Side = Literal["outputs", "inputs"]

UPS_OF_LATENTS = ("queries up", "keys and values up")
"""Names of latent attention's up-projections."""

UP_AND_DOWN = ("up", "down")
"""Names of the projections of an MLP or expert."""


@dataclass(frozen=True)
class WeightMatrix:
    """A matrix [outputs, inputs], or `count` parallel matrices over which tokens are distributed.

    name, reads
        Name of the matrix and of its input; matrices that read the same share their input.
    inputs, columns
        Sizes of both sides on a rank; `columns` of each of the matrices that are one in Megatron-LM, such as
        queries, keys and values.
    kind
        "dense": for all tokens; "routed": of an expert; "shared": of the shared expert; "router"; "gate": the
        single column that weighs a shared expert, not a separate GEMM; "latent": between the hidden size and
        narrower experts; "vector": elementwise per column, for example of a convolution; "condition": multiplies
        one vector per sequence, not tokens; "streams": reads all residual streams of a token; "adapter": of a LoRA
        adapter; "routed adapter": of the adapter that a rank's routed experts share.
    split
        Side that tp ranks (etp ranks if routed) divide. None: replicated.
    count
        Number of matrices on a rank: its experts.
    biased
        Each output has a bias. An expert's up-projection adds it in the GEMM. The down-projection, whose inputs are
        weighted before, adds it in separate kernels (`ppsim.costs.operator_kernels`).
    rows
        Fraction of the tokens that it multiplies, if the others have their own matrix.
    groups
        Number of parallel matrices that all tokens pass, each with an equal part of inputs and outputs.
    trainable
        It has a gradient and optimizer state.
    """

    name: str
    reads: str
    inputs: int
    columns: tuple[int, ...]
    kind: LinearKind = "dense"
    split: Side | None = None
    count: int = 1
    biased: bool = False
    rows: float = 1.0
    groups: int = 1
    trainable: bool = True

    @cached_property
    def outputs(self) -> int:
        """All its columns together."""
        return sum(self.columns)

    @cached_property
    def size(self) -> int:
        """Weights of one matrix."""
        return self.inputs * self.outputs // self.groups

    @property
    def weights(self) -> int:
        """Weights of all `count` matrices."""
        return self.count * self.size

    @property
    def biases(self) -> int:
        """Biases of all matrices; after a reduction they are replicated."""
        return self.count * self.outputs * self.biased

    @property
    def is_product(self) -> bool:
        """True if a kernel multiplies by it."""
        return self.kind not in ("gate", "vector", "condition")

    @property
    def is_adapter(self) -> bool:
        """True for a matrix of a LoRA adapter."""
        return self.kind in ("adapter", "routed adapter")

    @property
    def is_orthogonalised(self) -> bool:
        """True if Muon updates it: a matrix inside a layer, except routers."""
        return self.kind in ("dense", "routed", "shared", "latent")

    def separate_matrices(self) -> list["WeightMatrix"]:
        """Return the matrices that Megatron-LM fuses into this one, such as query, key and value projections."""
        return [replace(self, columns=(outputs,)) for outputs in self.columns]


def of_columns(
    name: str, reads: str, columns: tuple[int, ...], *, inputs: int = 1, biased: bool = False
) -> WeightMatrix:
    """Return weights that multiply each column separately, `inputs` per column, divided like the heads."""
    return WeightMatrix(name, reads, inputs, columns, kind="vector", split="outputs", biased=biased)


def out_of_heads(inputs: int, h: int, *, biased: bool = False) -> WeightMatrix:
    """Return the projection of all heads' outputs back to the hidden size."""
    return WeightMatrix("attention output", "heads", inputs, (h,), split="inputs", biased=biased)
