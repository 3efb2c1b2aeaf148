"""Token mixer of a layer: the interface of all kinds, and operators that kinds share."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace

from ppsim.model.execution import Execution
from ppsim.model.operators import Operator, Rows, Tensor
from ppsim.model.weight_matrices import UPS_OF_LATENTS, WeightMatrix
from ppsim.parallel.sizes import ParallelSizes, require_divides


class Mixer(ABC):
    """A kind of token mixer, with matrices and operators.

    The time of a layer includes an attention or scan kernel for each mixer in `parts` that is a
    `ppsim.model.attention_base.ScoredAttention` or `ppsim.model.recurrent.Recurrent`. `has_norm_apart`: the
    preceding norm is not fused into the first GEMM. `graph_module`: the value of `--cuda-graphs` that captures the
    mixer.
    """

    num_heads: int
    has_norm_apart = False
    graph_module = "attn"

    @abstractmethod
    def linears(self, h: int, tp: int) -> list[WeightMatrix]:
        """Return the weight matrices of one of `tp` ranks, in forward order; `h` is the hidden size."""

    @abstractmethod
    def operators(
        self, h: int, sizes: ParallelSizes, execution: Execution, sequence_length: int
    ) -> Iterator[Operator]:
        """Yield the operators on a rank, from the input tensor `n1` (output of the norm) to the output `mixed`."""

    @abstractmethod
    def core_flops(self, sequence_length: int, *, causal: bool) -> float:
        """Return the FLOPs per token outside the GEMMs of `linears`; masked scores count unless `causal`."""

    @property
    @abstractmethod
    def divided(self) -> dict[str, int]:
        """Sizes that must be divisible by the number of tensor-parallel ranks, by name."""

    @property
    def parts(self) -> tuple["Mixer", ...]:
        """The mixers that run in parallel on the same input."""
        return (self,)

    @property
    def norm_parameters(self) -> int:
        """Number of weights in the mixer's norms, which every rank replicates."""
        return 0

    @property
    def transient_bytes(self) -> int:
        """Temporary bytes per token during the mixer's backward."""
        return 0

    def require_division(self, sizes: ParallelSizes) -> None:
        for what, count in self.divided.items():
            require_divides("tp", sizes.tp, what, count)


def gemm(
    linear: WeightMatrix,
    module: str,
    source: str,
    writes: tuple[Tensor, ...],
    *,
    name: str = "",
    quantized: bool = True,
) -> Operator:
    return Operator(
        name or linear.name, module, (source,), writes, saved_for_w=(source,), weight=linear, quantized=quantized
    )


def scored_core(
    mixer: Mixer,
    width: int,
    read: tuple[str, str, str],
    sizes: ParallelSizes,
    execution: Execution,
    sequence_length: int,
) -> Iterator[Operator]:
    """`width`: value columns per head."""
    heads = mixer.num_heads // sizes.tp
    out = Tensor("o", "tokens", heads * width, "attention")
    if execution.attention != "unfused":
        statistics = Tensor("lse", "tokens", heads, "scores", "f32")
        writes, saves = [out, statistics], ["o", "lse"]
        if sizes.cp > 1 and execution.context == "all-to-all":
            writes.append(Tensor("o of these heads", "tokens", heads * width, "scores"))
            saves.append(writes[-1].name)
        yield Operator("core", "core_attn", read, tuple(writes), saved_for_i=(*read, *saves), core=mixer)
        return
    columns = heads * sequence_length
    # The gradient of the scores overwrites the gradient of the probabilities.
    probabilities = [Tensor("softmax", "tokens", columns, "scores")]
    if execution.dropout:
        probabilities = [
            Tensor("dropped", "tokens", columns, "scores"),
            *probabilities,
            Tensor("mask of scores", "tokens", columns, "scores", "mask"),
        ]
    names = tuple(probability.name for probability in probabilities)
    scores = Tensor("scores", "tokens", columns, "scores")
    yield Operator("scores", "core_attn", read[:2], (scores,), saved_for_i=read[:2])
    yield Operator(
        "softmax", "core_attn", ("scores",), tuple(probabilities), saved_for_i=names, passes_gradient=True
    )
    yield Operator("core", "core_attn", (names[0], read[2]), (out,), saved_for_i=(names[0], read[2]), core=mixer)


def output(linear: WeightMatrix, source: str, h: int) -> Operator:
    # In 8 bits the projection saves a copy; its input is counted too, even if no other operator saves it.
    mixed = Tensor("mixed", "own_tokens", h, "norms")
    return replace(gemm(linear, "attn_proj", source, (mixed,)), saved_for_i=(source,))


def opaque_mixer(linears: list[WeightMatrix], saved_columns: dict[str, tuple[str, float]]) -> Iterator[Operator]:
    """Operators of a mixer whose inner operators are unknown.

    `saved_columns`: for each saved tensor, the module that writes it, and its columns per token.
    """
    for name, (module, columns) in saved_columns.items():
        made = Tensor(name, "tokens", columns, "scores" if name == "index" else "attention")
        made = replace(made, dtype="f32") if name == "index" else made
        yield Operator(f"makes {name}", module, (), (made,), saved_for_i=(name,))
    for linear in linears:
        if not linear.is_product:
            continue
        before, after = (_rows_of(linear, side) for side in ("inputs", "outputs"))
        if linear.reads != "attention input":
            view = Tensor(linear.reads, before, linear.inputs, "attention", storage="kept")
            yield Operator(f"view of {linear.name}", "attn", ("kept",), (view,), passes_gradient=True)
        is_last = linear is linears[-1]
        module = "attn/mla_up_proj" if linear.name in UPS_OF_LATENTS else "attn"
        made = Tensor("mixed" if is_last else f"{linear.name} out", after, linear.outputs, "norms")
        source, reads_input = linear.reads, linear.reads == "attention input"
        yield gemm(linear, module, "n1" if reads_input else source, (made,), quantized=reads_input)


def _rows_of(linear: WeightMatrix, side: str) -> Rows:
    """All tokens on the side that ranks divide, else the rank's own."""
    return "tokens" if linear.split == side else "own_tokens"
