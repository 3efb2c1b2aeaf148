"""One weight matrix of a layer as a rank holds it, from which parameters, FLOPs, bytes and kernels are read.

`Layer.linears(cut)` has every matrix of a layer once, in the order in which a forward meets them.
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
"""Names of latent attention's products up from its latents."""

UP_AND_DOWN = ("up", "down")
"""Names of those of a feed-forward part, an expert's too."""


@dataclass(frozen=True)
class Linear:
    """A matrix [outputs, inputs], or `count` of them side by side over which tokens are spread.

    name, reads
        What it is, and what it multiplies: matrices that read the same share their input.
    inputs, columns
        What a rank has of both sides; `columns` of each of the matrices that are one in Megatron-LM, such as
        queries, keys and values.
    kind
        "dense": over all tokens; "routed": an expert's; "shared": of the expert of all tokens; "router"; "gate":
        the one column that weighs a shared expert, which is no product of its own; "latent": between the hidden
        size and that of experts narrower than it; "vector": numbers that multiply each column for itself, such as
        those of a convolution; "condition": it multiplies one vector a sequence, not tokens; "streams": it reads
        all residual streams of a token; "adapter": a matrix of a LoRA adapter; "routed
        adapter": of the adapter that a rank's routed experts share.
    split
        By which side ranks divide it: those of tp or, where it is routed, of etp. None: it is whole on each.
    count
        How many a rank holds: its experts.
    biased
        Whether each output has a bias. An expert's up is added in its product. That down, whose tokens are weighed
        before, is added in passes of its own (`ppsim.costs.operator_kernels`).
    rows
        The part of the tokens that it multiplies, where others have a matrix of their own.
    groups
        How many matrices it is, each of as many of the inputs and outputs, that all tokens pass side by side.
    trainable
        Whether it has a gradient and optimizer state.
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
        """Its columns in a forward's product, all together."""
        return sum(self.columns)

    @cached_property
    def size(self) -> int:
        """Weights of one of them."""
        return self.inputs * self.outputs // self.groups

    @property
    def weights(self) -> int:
        """Weights of all of them."""
        return self.count * self.size

    @property
    def biases(self) -> int:
        """Biases of all of them; behind a reduction they are whole on every rank."""
        return self.count * self.outputs * self.biased

    @property
    def is_product(self) -> bool:
        """Whether a kernel multiplies by it."""
        return self.kind not in ("gate", "vector", "condition")

    @property
    def is_adapter(self) -> bool:
        """Whether it is a matrix of a LoRA adapter."""
        return self.kind in ("adapter", "routed adapter")

    @property
    def is_orthogonalised(self) -> bool:
        """Whether Muon takes it: a matrix inside a layer that is no router."""
        return self.kind in ("dense", "routed", "shared", "latent")

    def apart(self) -> list["Linear"]:
        """Return the matrices that are one in Megatron-LM, each for itself."""
        return [replace(self, columns=(outputs,)) for outputs in self.columns]


def of_columns(name: str, reads: str, columns: tuple[int, ...], *, inputs: int = 1, biased: bool = False) -> Linear:
    """Return what multiplies each column for itself, by `inputs` numbers, divided as the heads are."""
    return Linear(name, reads, inputs, columns, kind="vector", split="outputs", biased=biased)


def out_of_heads(inputs: int, h: int, *, biased: bool = False) -> Linear:
    """Return the projection of what all heads give back to the hidden size."""
    return Linear("attention output", "heads", inputs, (h,), split="inputs", biased=biased)
