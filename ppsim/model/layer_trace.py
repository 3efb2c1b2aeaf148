"""Tensors that one layer allocates and frees, in the execution order of TorchTitan's compiled Llama block.

The block is in torchtitan/models/llama/model.py and parallelize_llama.py at 9dec370. torch.compile fuses
consecutive pointwise operators into one kernel with one output.
"""

from ppsim.model.allocator import Allocator, AllocatorBlock
from ppsim.model.architecture import Layer
from ppsim.model.attention_and_mlp import Attention, FeedForward, NoAttention, NoFeedForward
from ppsim.model.batch import Batch
from ppsim.model.recompute import BY_OPERATORS
from ppsim.parallel.sizes import ParallelSizes, share

Kept = dict[str, AllocatorBlock | None]
"""Saved tensors of a forward, by name."""

_OF_ACCUMULATED = 4
"""Bytes per element of the queries' gradient while it is summed in float32 (FlashAttention-2's `dq_accum`)."""


def why_no_trace(layer: Layer) -> str | None:
    is_attention = isinstance(layer.attention, Attention) and not isinstance(layer.attention, NoAttention)
    is_swiglu = isinstance(layer.ffn, FeedForward) and not isinstance(layer.ffn, NoFeedForward) and layer.ffn.gated
    if is_attention and is_swiglu and not layer.conditioned:
        return None
    return "what an allocator reserves is known for layers of attention and SwiGLU only"


class LayerTrace:
    """Allocations of a layer's forward and backward for a microbatch on a rank.

    - `operand_bytes`: per element of a GEMM operand.
    - `tokens`: of a tensor-parallel group. `whole`, `own`: bytes of their hidden states, and of a rank's part.
    - `weights`: elements of each weight matrix, attention before MLP.
    - `is_async`: all-gathers and reduce-scatters are fused with GEMMs, through symmetric memory, which the
      allocator does not manage (torch, distributed/_symmetric_memory: `_fused_all_gather_matmul_impl`,
      `_fused_matmul_reduce_scatter_impl`).
    - `held`: bytes from `unused_output_bytes`, of tensors that are held until the end of the backward. Otherwise,
      an eager block is assumed to allocate like a compiled one.
    """

    def __init__(
        self,
        layer: Layer,
        batch: Batch,
        cut: ParallelSizes,
        operand_bytes: float,
        memory: Allocator,
        *,
        is_async: bool = False,
        held: tuple[int, int] = (0, 0),
    ) -> None:
        a, ffn, e, tp = layer.attention, layer.ffn, batch.element_bytes, cut.tp
        assert isinstance(a, Attention)
        assert isinstance(ffn, FeedForward)
        self.layer, self.batch, self.cut, self.operand_bytes, self.memory = layer, batch, cut, operand_bytes, memory
        self.is_async, self.held = is_async, held
        self.tokens = batch.tokens(cut)
        self.whole = self.tokens * layer.hidden_size * e
        self.own = share(self.whole, cut.norm_divisor)
        self.products = tuple(one for fused in layer.linears(cut) for one in fused.separate_matrices())
        self.weights = tuple(one.size for one in self.products)
        self._operand = self.tokens * layer.hidden_size * operand_bytes
        self._queries = self.tokens * a.num_heads // tp * a.head_size * e
        self._keys = self.tokens * a.kv_heads_per_rank(tp) * a.head_size * e
        self._columns = self.tokens * ffn.size // tp * e

    def gathered(self, num_bytes: float) -> AllocatorBlock | None:
        """All-gather operands along the sequence into a buffer, and return the reordered copy.

        A gather or scatter along any dimension except the first needs a copy (torch,
        distributed/_functional_collectives.py: `all_gather_tensor`, `reduce_scatter_tensor`).
        """
        raw = self.memory.make(num_bytes)
        if self.cut.tp == 1:
            return raw
        found = self.memory.make(num_bytes)
        self.memory.drop(raw)
        return found

    def scattered(self, whole: AllocatorBlock | None) -> AllocatorBlock | None:
        """Copy partial sums into one piece per rank, and return this rank's piece."""
        if self.cut.tp == 1:
            return whole
        pieces = self.memory.make(self.whole)
        self.memory.drop(whole)
        found = self.memory.make(self.own)
        self.memory.drop(pieces)
        return found

    def _into_product(self, num_bytes: float) -> AllocatorBlock | None:
        return self.memory.make(num_bytes) if self.is_async else self.gathered(num_bytes)

    def _out_of_product(self, whole: AllocatorBlock | None) -> AllocatorBlock | None:
        if not self.is_async:
            return self.scattered(whole)
        found = self.memory.make(self.own)
        self.memory.drop(whole)
        return found

    def forward(self, *, keeps: bool) -> tuple[AllocatorBlock | None, Kept]:
        """Without `keeps` each tensor is freed after its last use.

        Recomputation `selective-op` always saves the outputs of every second GEMM, of attention and of the
        reduce-scatter. From these, `backward` recomputes each mixer just before the mixer's own backward.
        """
        kept: Kept = {}
        by_operators = self.batch.recompute == BY_OPERATORS
        keeps = keeps and not by_operators
        residual = self._attend(kept, keeps=keeps, by_operators=by_operators)
        return self._feed(kept, residual, keeps=keeps, by_operators=by_operators), kept

    def _into_products(self, kept: Kept, name: str) -> None:
        make, drop = self.memory.make, self.memory.drop
        normed = make(self.own)
        cast = (
            make(self._operand / self.cut.norm_divisor) if self.operand_bytes < self.batch.element_bytes else None
        )
        if self.cut.tp == 1:
            kept[name] = normed
            drop(cast)
            return
        kept[name] = self._into_product(self._operand)
        drop(cast, normed)

    def _attend(self, kept: Kept, *, keeps: bool, by_operators: bool) -> AllocatorBlock | None:
        make, drop = self.memory.make, self.memory.drop
        self._into_products(kept, "attention input")
        projected = [make(size) for size in (self._queries, self._keys, self._keys)]
        self._unless(keeps, kept, "attention input")
        self._into_core(kept, projected, keeps_projected=by_operators)
        of_others = self._of_other_ranks()
        kept["heads"] = make(self._queries)
        kept["statistics"] = make(4 * self.tokens * self.layer.attention.num_heads // self.cut.tp)
        drop(*of_others)
        self._unless(keeps, kept, "queries", "keys", "values")
        partial = self._product_into(self._queries, self.whole)
        self._unless(keeps or by_operators, kept, "heads", "statistics")
        mixed = self._out_of_product(partial)
        residual = make(self.own)
        if by_operators and self.cut.tp > 1:
            kept["scattered"] = mixed
        else:
            drop(mixed)
        return residual

    def _into_core(self, kept: Kept, projected: list[AllocatorBlock | None], *, keeps_projected: bool) -> None:
        """With `keeps_projected` (for `selective-op`), queries and values before the core are saved."""
        make, drop = self.memory.make, self.memory.drop
        if keeps_projected:
            kept["projected queries"] = projected[0]
        rotated = self._rotated(projected[:2], drops_queries=not keeps_projected)
        kept["queries"], kept["keys"], kept["values"] = rotated[0], rotated[1], projected[2]
        if self._keys != self._queries:
            kept["keys"], kept["values"] = make(self._queries), make(self._queries)
            drop(rotated[1])
            if keeps_projected:
                kept["projected values"] = projected[2]
            else:
                drop(projected[2])
        elif keeps_projected:
            kept["projected values"] = kept.pop("values")

    def _rotated(
        self, given: list[AllocatorBlock | None], *, drops_queries: bool = True
    ) -> list[AllocatorBlock | None]:
        """Rotate queries and keys, or their gradients, as complex float32 numbers."""
        make, drop, sizes = self.memory.make, self.memory.drop, (self._queries, self._keys)
        wide = [size * _OF_ACCUMULATED // self.batch.element_bytes for size in sizes]
        exact = [make(size) for size in wide]
        drop(*given[not drops_queries :])
        turned = []
        for size, before in zip(wide, exact, strict=True):
            turned.append(make(size))
            drop(before)
        found = [make(size) for size in sizes]
        drop(*turned)
        return found

    def _feed(
        self, kept: Kept, residual: AllocatorBlock | None, *, keeps: bool, by_operators: bool
    ) -> AllocatorBlock | None:
        make, drop = self.memory.make, self.memory.drop
        self._into_products(kept, "feed-forward input")
        kept["gate"], kept["up"] = make(self._columns), make(self._columns)
        self._unless(keeps, kept, "feed-forward input")
        kept["activated"] = make(self._columns)
        self._unless(keeps or by_operators, kept, "gate")
        self._unless(keeps, kept, "up")
        partial = self._product_into(self._columns, self.whole)
        self._unless(keeps, kept, "activated")
        fed = self._out_of_product(partial)
        output = make(self.own)
        drop(fed)
        if by_operators and any(self.held):
            kept["product"], kept["fed"] = (make(size) for size in self.held)
        kept["residual"] = residual
        self._unless(keeps, kept, "residual")
        return output

    def _of_other_ranks(self) -> list[AllocatorBlock | None]:
        """Keys and values of a rank in one tensor, and of all context-parallel ranks.

        torch, distributed/tensor/experimental/_attention.py: `_AllGatherRotater`, the default.
        """
        if self.cut.cp == 1:
            return []
        return [self.memory.make(2 * self._queries), self.memory.make(2 * self.cut.cp * self._queries)]

    def _product_into(self, input_bytes: int, output_bytes: int) -> AllocatorBlock | None:
        share_of = self.operand_bytes / self.batch.element_bytes
        cast = self.memory.make(input_bytes * share_of) if share_of < 1 else None
        output = self.memory.make(output_bytes)
        self.memory.drop(cast)
        return output

    def _unless(self, keeps: bool, kept: Kept, *names: str) -> None:
        if not keeps:
            self.memory.drop(*(kept.pop(name, None) for name in names))

    def backward_again(
        self, gradient: AllocatorBlock | None
    ) -> tuple[AllocatorBlock | None, list[AllocatorBlock | None]]:
        again, kept = self.forward(keeps=True)
        self.memory.drop(again)
        return self.backward(gradient, kept)

    def backward(
        self, gradient: AllocatorBlock | None, kept: Kept
    ) -> tuple[AllocatorBlock | None, list[AllocatorBlock | None]]:
        of_weights: list[AllocatorBlock | None] = []
        if self.batch.recompute == BY_OPERATORS:
            self._feed_again(kept)
        residual = self._feed_backward(gradient, kept, of_weights)
        if self.batch.recompute == BY_OPERATORS:
            self._attend_again(kept)
        return self._attend_backward(residual, kept, of_weights), of_weights

    def _feed_again(self, kept: Kept) -> None:
        make = self.memory.make
        mixed = kept.pop("scattered") if self.cut.tp > 1 else self._product_into(self._queries, self.whole)
        kept["residual"] = make(self.own)
        self.memory.drop(mixed)
        self._into_products(kept, "feed-forward input")
        kept["up"], kept["activated"] = make(self._columns), make(self._columns)

    def _attend_again(self, kept: Kept) -> None:
        self._into_products(kept, "attention input")
        projected = [kept.pop("projected queries"), self.memory.make(self._keys), kept.pop("projected values")]
        self._into_core(kept, projected, keeps_projected=False)

    def _of_weight(self, of_weights: list[AllocatorBlock | None]) -> None:
        """Make the next weight gradient.

        In 8 bits, both operands are first copied with tokens as the last dimension (torchao, float8_ops.py:
        `preprocess_addmm`).
        """
        one = self.products[len(self.products) - 1 - len(of_weights)]
        copies = [self._copied(self.tokens * columns) for columns in (one.outputs, one.inputs)]
        of_weights.append(self.memory.make(one.size * self.batch.element_bytes))
        self.memory.drop(*copies)

    def _copied(self, num_elements: int) -> AllocatorBlock | None:
        return (
            self.memory.make(num_elements * self.operand_bytes)
            if self.operand_bytes < self.batch.element_bytes
            else None
        )

    def _of_input(self, of_weights: list[AllocatorBlock | None], num_bytes: float) -> AllocatorBlock | None:
        """Make the gradient of a GEMM's input; in 8 bits the weight is copied first."""
        copied = self._copied(self.weights[len(self.weights) - 1 - len(of_weights)])
        found = self.memory.make(num_bytes)
        self.memory.drop(copied)
        return found

    def _of_output(self) -> AllocatorBlock | None:
        """Gradient of a scattered output, gathered in the operand dtype."""
        if self.cut.tp > 1:
            return self._into_product(self._operand)
        return self.memory.make(self._operand) if self.operand_bytes < self.batch.element_bytes else None

    def _feed_backward(
        self, gradient: AllocatorBlock | None, kept: Kept, of_weights: list[AllocatorBlock | None]
    ) -> AllocatorBlock | None:
        make, drop = self.memory.make, self.memory.drop
        gathered, of_activated = self._of_output(), self._of_input(of_weights, self._columns)
        self._of_weight(of_weights)
        drop(kept.pop("activated"), gathered)
        columns = [make(self._columns), make(self._columns)]
        drop(of_activated, kept.pop("gate"), kept.pop("up"))
        inputs = []
        for _ in columns:
            inputs.append(self._of_input(of_weights, self.whole))
            self._of_weight(of_weights)
        drop(*columns, kept.pop("feed-forward input"))
        total = make(self.whole)
        drop(*inputs)
        own = self.scattered(total)  # a sum of GEMM outputs: no reduce-scatter is fused into it
        normed = make(self.own)
        drop(own, kept.pop("residual"))
        residual = make(self.own)
        drop(normed, gradient)
        return residual

    def _attend_backward(
        self, gradient: AllocatorBlock | None, kept: Kept, of_weights: list[AllocatorBlock | None]
    ) -> AllocatorBlock | None:
        make, drop = self.memory.make, self.memory.drop
        gathered, of_heads = self._of_output(), self._of_input(of_weights, self._queries)
        self._of_weight(of_weights)
        drop(gathered)
        of_others = self._of_other_ranks()
        summed = make(self._queries * _OF_ACCUMULATED // self.batch.element_bytes)
        parts = [make(self._queries) for _ in range(3)]
        drop(summed, of_heads, *of_others)
        drop(*(kept.pop(name) for name in ("heads", "statistics", "queries", "keys", "values")))
        if self._keys != self._queries:
            repeated, parts[1:] = parts[1:], [make(self._keys), make(self._keys)]
            drop(*repeated)
        parts[:2] = self._rotated(parts[:2])
        total = self._of_input(of_weights, self.whole)
        self._of_weight(of_weights)
        for _ in parts[1:]:
            one, before = self._of_input(of_weights, self.whole), total
            self._of_weight(of_weights)
            total = make(self.whole)
            drop(before, one)
        drop(*parts, kept.pop("attention input"), kept.pop("product", None), kept.pop("fed", None))
        own = self.scattered(total)  # a sum of GEMM outputs: no reduce-scatter is fused into it
        of_input = make(self.own)
        drop(own, gradient)
        return of_input
