"""A weight matrix on a rank, the source of parameters, FLOPs, bytes and kernels."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

LinearKind = Literal[
    "dense", "router", "routed", "shared", "gate", "latent", "vector", "condition", "streams", "adapter",
    "routed adapter", "outside",
]  # fmt: skip
Side = Literal["outputs", "inputs"]

UPS_OF_LATENTS = ("queries up", "keys and values up")
"""Names of latent attention's up-projections."""

UP_AND_DOWN = ("up", "down")
"""Names of the projections of an MLP or expert."""


@dataclass(frozen=True)
class WeightMatrix:
    """A matrix [outputs, inputs], or `count` parallel matrices over which tokens are distributed.

    - `reads`: name of the input; matrices that read the same share it.
    - `inputs`, `columns`: sizes of both sides on a rank. `columns` has the outputs of each matrix that Megatron-LM
      joins in one, such as queries, keys and values.
    - `kind`: "gate": the single column that weighs a shared expert, not a separate GEMM; "latent": between the
      hidden size and narrower experts; "vector": elementwise per column, for example of a convolution; "condition":
      multiplies one vector per sequence, not tokens; "streams": reads all residual streams of a token; "routed
      adapter": of the LoRA adapter that a rank's routed experts share; "outside": before or after all layers.
    - `split`: side that tp ranks (etp ranks if routed) divide; None: replicated.
    - `biased`: an expert's down-projection adds its bias in separate kernels, because its inputs are weighted
      before (`ppsim.costs.operator_kernels`).
    - `rows`: rows that it multiplies per token. Below 1: other tokens have another matrix.
    - `groups`: number of parallel matrices that all tokens pass, each with an equal part of inputs and outputs.
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
        return sum(self.columns)

    @cached_property
    def size(self) -> int:
        """Weights of one matrix."""
        return self.inputs * self.outputs // self.groups

    @property
    def weights(self) -> int:
        return self.count * self.size

    @property
    def biases(self) -> int:
        return self.count * self.outputs * self.biased

    @property
    def is_product(self) -> bool:
        """True if it has a GEMM of its own over tokens."""
        return self.kind not in ("gate", "vector", "condition")

    @property
    def is_wide(self) -> bool:
        """True if its GEMM has at least 16 bits, for the rows of its output."""
        return self.is_adapter or self.kind == "outside"

    @property
    def is_adapter(self) -> bool:
        return self.kind in ("adapter", "routed adapter")

    @property
    def is_orthogonalised(self) -> bool:
        """True if Muon updates it: a large matrix of a mixer or expert, not a router, gate or adapter."""
        return self.kind in ("dense", "routed", "shared", "latent")

    def separate_matrices(self) -> list["WeightMatrix"]:
        return [replace(self, columns=(outputs,)) for outputs in self.columns]


def of_columns(
    name: str, reads: str, columns: tuple[int, ...], *, inputs: int = 1, biased: bool = False
) -> WeightMatrix:
    """Weights that multiply each column separately, `inputs` per column."""
    return WeightMatrix(name, reads, inputs, columns, kind="vector", split="outputs", biased=biased)


def out_of_heads(inputs: int, h: int, *, biased: bool = False) -> WeightMatrix:
    return WeightMatrix("attention output", "heads", inputs, (h,), split="inputs", biased=biased)
