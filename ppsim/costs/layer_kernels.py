"""The kernels of a rank's part of a layer: matrix products, attention, and what passes over memory.

Bytes are of a read and a write each once, in the kernels that Megatron-LM and TransformerEngine run. T tokens, h
hidden, n and g query and key/value heads of size d, f feed-forward columns, e bytes of an element.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from ppsim.costs.place import Place
from ppsim.layout.cut import Cut
from ppsim.machine.kernels.specified import OPERAND_BYTES, activation_bytes, at_least_16_bits
from ppsim.machine.kernels.times import AttentionCore, KernelTime, KernelTimes, fused_attention, moved, product
from ppsim.model.architecture import Layer
from ppsim.model.compressed import CompressedAttention
from ppsim.model.halves import Attention, FeedForward, OfLatents
from ppsim.model.linears import UP_AND_DOWN, UPS_OF_LATENTS, Linear
from ppsim.model.mixer import Mixer
from ppsim.model.parameters import require_division_of_layer
from ppsim.model.recompute import MODULES, by_operators
from ppsim.model.recurrent import Recurrent
from ppsim.model.scored import Scored


@dataclass(frozen=True)
class PassKernels:
    """The kernels of F, I and W."""

    forward: KernelTime = field(default_factory=KernelTime)
    backward_input: KernelTime = field(default_factory=KernelTime)
    backward_weight: KernelTime = field(default_factory=KernelTime)

    @property
    def passes(self) -> tuple[KernelTime, KernelTime, KernelTime]:
        """F, I and W in this order."""
        return self.forward, self.backward_input, self.backward_weight

    def __add__(self, other: "PassKernels") -> "PassKernels":
        return PassKernels(*(mine + its for mine, its in zip(self.passes, other.passes, strict=True)))

    def slowed(self, factor: float) -> "PassKernels":
        """Return the same with so many times the seconds."""
        return PassKernels(*(one.slowed(factor) for one in self.passes))


def products(linears: Iterable[Linear], times: KernelTimes, *, tokens: float, pairs: float = 0.0) -> PassKernels:
    """Return the matrix products of a layer's matrices, each with an I and a W.

    `pairs` of a token and an expert are spread over the experts evenly, whose products are one launch (a grouped
    product).
    """
    total = PassKernels()
    for one in linears:
        if not one.is_product:
            continue
        rows = pairs if one.kind == "routed" else tokens * one.rows * one.groups
        inputs, outputs, groups = one.inputs // one.groups, one.outputs // one.groups, one.count * one.groups
        total += PassKernels(
            product(times, "forward", rows, outputs, inputs, groups=groups),
            product(times, "input", rows, inputs, outputs, groups=groups),
            product(times, "weight", outputs, inputs, rows, groups=groups),
        )
    return total


@dataclass(frozen=True)
class RankPart:
    """What a rank computes of a layer, or of some of its modules, but for the core of attention and norms.

    `pairs` of a token and an expert come to the rank for each token of its own; `rotated` columns of queries and
    keys rotate; `activated` columns pass through an activation function, of which a gated one reads twice as many;
    `activated_of_pairs` of them are routed experts'.
    `normed` columns are those of norms inside attention. `biases` are columns that have one; of those that ranks
    divide by rows, a part. Gradients of norms' outputs are added `num_sums` times. `convolved` columns pass
    through a convolution, `gates` are multiplied by one; `modulated` norms are scaled and shifted; `halves` is how
    many parts have a residual around them. A pair is `expert_width` wide where it is sent; `biased_experts` of the
    rank add a bias to what they give. The residual has so many `streams`.
    """

    hidden_size: int
    linears: tuple[Linear, ...]
    pairs: float = 0.0
    expert_width: int = 0
    rotated: float = 0
    normed: float = 0
    activated: float = 0
    activated_of_pairs: float = 0
    is_gated: bool = True
    is_clamped: bool = False
    biases: float = 0
    num_sums: int = 0
    biased_experts: int = 0
    convolved: int = 0
    gates: int = 0
    modulated: int = 0
    halves: int = 2
    streams: int = 1


def rank_part(layer: Layer, cut: Cut, *, load: float = 1.0) -> RankPart:
    """Return a rank's part of a layer, whose experts get `load` of the mean's tokens.

    Raises `ConfigError` naming what the cut does not divide.
    """
    require_division_of_layer(layer, cut)
    linears, mixer = layer.linears(cut), layer.attention
    return RankPart(
        layer.hidden_size,
        linears,
        pairs=load * _pairs(layer, cut),
        expert_width=layer.expert_width,
        rotated=mixer.rotated_columns(cut.tp, layer.norm),
        normed=mixer.normed_columns(cut),
        activated=_activated(layer, cut.tp, MODULES, load),
        activated_of_pairs=_activated_of_pairs(layer, cut.tp, MODULES, load),
        is_gated=layer.ffn.gated,
        is_clamped=layer.ffn.clamped,
        biases=sum(one.rows * one.biases * _rows_of_output(one, cut) for one in linears if one.kind == "dense"),
        num_sums=_num_sums(linears, layer),
        biased_experts=_biased_experts(linears),
        convolved=mixer.convolved // cut.tp,
        gates=mixer.gate_columns // cut.tp,
        modulated=layer.conditioned.num_modulated if layer.conditioned else 0,
        halves=layer.num_halves,
        streams=layer.streams,
    )


def module_part(layer: Layer, modules: Collection[str], cut: Cut, *, load: float = 1.0) -> RankPart:
    """Return what modules of `ppsim.model.recompute` have of a rank's part: their products, and what is between."""
    ups = "mla_up_proj" in modules and isinstance(layer.attention, OfLatents)
    whole = ("moe" if layer.is_moe else "mlp") in modules
    return RankPart(
        layer.hidden_size,
        tuple(one for one in layer.linears(cut) if _is_in(one, modules)),
        pairs=load * _pairs(layer, cut) if whole else 0.0,
        expert_width=layer.expert_width,
        rotated=layer.attention.rotated_columns(cut.tp, layer.norm) if ups else 0,
        activated=_activated(layer, cut.tp, modules, load),
        activated_of_pairs=_activated_of_pairs(layer, cut.tp, modules, load),
        is_gated=layer.ffn.gated,
        is_clamped=layer.ffn.clamped,
        biased_experts=_biased_experts(layer.linears(cut)) if whole else 0,
    )


def part_by_operators(layer: Layer, cut: Cut) -> RankPart:
    """Return what `selective-op` computes again of a rank's part: its products, and what is between any."""
    _, again = by_operators(layer.linears(cut), cut)
    return replace(rank_part(layer, cut), linears=tuple(again))


def _rows_of_output(one: Linear, cut: Cut) -> float:
    """What of the tokens has the output of a matrix on a rank: with sequence parallelism its part behind a sum."""
    return 1 if one.split == "outputs" else 1 / cut.norm_divisor


def _num_sums(linears: Iterable[Linear], layer: Layer) -> int:
    """Additions of gradients of norms' outputs, one for each reader beyond the first.

    Routed tokens are sent from the output of the norm, unless a latent is.
    """
    readers = Counter(one.reads for one in linears if one.kind not in ("routed", "streams", "vector"))
    of_ffn = readers["feed-forward input"] + (layer.is_moe and layer.expert_width == layer.hidden_size)
    return max(0, readers["attention input"] - 1) + max(0, of_ffn - 1)


def _biased_experts(linears: Iterable[Linear]) -> int:
    """How many experts of a rank have a bias behind their second matrix; that of the first is in its product."""
    return sum(one.count for one in linears if one.kind == "routed" and one.biased and one.split == "inputs")


def _is_in(one: Linear, modules: Collection[str]) -> bool:
    """Whether a matrix is in one of the modules."""
    if one.kind != "dense":
        return ("moe" in modules and one.kind != "streams") or (
            one.kind == "shared" and "shared_experts" in modules
        )
    return ("mla_up_proj" in modules and one.name in UPS_OF_LATENTS) or (
        "mlp" in modules and one.name in UP_AND_DOWN
    )


def _pairs(layer: Layer, cut: Cut) -> float:
    """Of experts that are loaded evenly: a rank takes in as many tokens as it sends, etp ranks the same."""
    return layer.experts_per_token * cut.expert_tp / cut.tp


def _activated(layer: Layer, tp: int, modules: Collection[str], load: float) -> float:
    """Columns a token, those of its experts and of a shared one."""
    ffn = layer.ffn
    if isinstance(ffn, FeedForward):
        return ffn.size // tp * (not {"mlp", "mlp_act"}.isdisjoint(modules))
    shared = ffn.shared_size * (not {"moe", "shared_experts"}.isdisjoint(modules))
    return _activated_of_pairs(layer, tp, modules, load) + shared / tp


def _activated_of_pairs(layer: Layer, tp: int, modules: Collection[str], load: float) -> float:
    """Those of a token's experts are as many whatever etp, which has fewer columns of more tokens."""
    ffn = layer.ffn
    if isinstance(ffn, FeedForward):
        return 0.0
    return load * ffn.expert.size * ffn.experts_per_token * (not {"moe", "moe_act"}.isdisjoint(modules)) / tp


def products_of(part: RankPart, place: Place, *, tokens: int) -> PassKernels:
    """Return the matrix products of a rank's part: those of all tokens, then those of its experts.

    The latter take `Efficiency.experts` times as long as a single kernel for all experts, each of which is a launch
    on one of `_STREAMS` (TransformerEngine, `nvte_multi_tensor_gemm`); beside them `_casts`. A rank's only expert
    is a product like any other. Fused they are one kernel, beside `_around_fused`.
    """
    routed = [one for one in part.linears if one.kind == "routed"]
    others = _others(part, place, tokens)
    of_experts = products(routed, place.times, tokens=tokens, pairs=tokens * part.pairs)
    if place.execution.fused_experts:
        around = _around_fused(part, place, tokens=tokens) if routed else PassKernels()
        return others + of_experts + around
    if any(one.count > 1 for one in routed):
        of_experts = of_experts.slowed(place.device.efficiency.experts)
    for one in routed:
        between_s = (-(-one.count // _STREAMS) - 1) * place.device.efficiency.kernel_s
        of_experts += PassKernels(*[KernelTime(matmul_s=between_s, count=one.count - 1)] * 3)
    return others + of_experts + _casts(routed, place, tokens * part.pairs)


def _others(part: RankPart, place: Place, tokens: int) -> PassKernels:
    """Return the products of all tokens; in torch's blocks each matrix for itself.

    Megatron-LM multiplies a rank's own part of the sequence by matrices that are whole on each tensor-parallel rank
    (latent attention's projections down, routers): the sequence is gathered behind them.
    Where they are pipelined with tensor-parallel messages, a forward, and the gradient of an input whose output was
    scattered, is a product for each rank's part of the tokens (distributed/_symmetric_memory,
    `_pipelined_multi_all_gather_and_consume`, `_pipelined_produce_and_all2all`).
    """
    others = [one for one in part.linears if one.kind != "routed"]
    if place.execution.compile is None:
        own = 1 / place.cut.norm_divisor
        held = [one if one.split or one.kind == "shared" else replace(one, rows=own * one.rows) for one in others]
        return products(held, place.times, tokens=tokens)
    apart = [of_one for one in others for of_one in one.apart()]
    if not place.is_async:
        return products(apart, place.times, tokens=tokens)
    pieces, total = place.cut.tp, PassKernels()
    for one in apart:
        whole = products([one], place.times, tokens=tokens)
        piece = products([one], place.times, tokens=tokens / pieces)
        if one.kind != "dense" or one.split is None:
            total += whole
        else:
            scatters, gathers = one.split == "inputs", place.gathers_in_products
            total += PassKernels(
                piece.forward.times(pieces) if scatters or gathers else whole.forward,
                piece.backward_input.times(pieces) if scatters and gathers else whole.backward_input,
                whole.backward_weight,
            )
    return total


_STREAMS = 4
"""On which TransformerEngine launches products of experts in turn (`nvte_get_num_compute_streams`)."""


def _casts(routed: Iterable[Linear], place: Place, rows: float) -> PassKernels:
    """Return what brings inputs of experts' products, and gradients of their outputs, to a narrow type.

    Bytes an element: e read, and its own written as often as `Place.operand_copies` says, by a kernel an expert
    (TransformerEngine, `GroupedLinear`, `split_quantize`). Tables of experts' products have none of it; others'
    casts are in what their class gets of its peak, which was found on runs.
    """
    narrow = OPERAND_BYTES.get(place.execution.dtype)
    if narrow is None:
        return PassKernels()
    each = rows * (place.execution.element_bytes + place.operand_copies * narrow)
    return sum(
        (
            PassKernels(
                *(
                    moved(place.times, "elementwise", each * columns, launches=one.count)
                    for columns in (one.inputs, one.outputs)
                )
            )
            for one in routed
        ),
        PassKernels(),
    )


def _around_fused(part: RankPart, place: Place, *, tokens: int) -> PassKernels:
    """Return what a fused product of experts passes over memory beside operands and results of its two products.

    Bytes a pair, w wide and with f activated columns: inputs are cast by a kernel of their own, and so are the
    gradients of outputs, e read and c written an element; what is activated is written by the first product as its
    operand is, c a column; the backward reads what went up, and writes its gradients as operands. c: a narrow
    element as often as `Place.operand_copies` says; in 16 bits nothing is cast, and c = e
    (TransformerEngine, `ops/fused/forward_grouped_mlp.py` and `backward_grouped_mlp.py`).
    """
    e, narrow = place.execution.element_bytes, OPERAND_BYTES.get(place.execution.dtype)
    written = e if narrow is None else place.operand_copies * narrow
    cast = 0.0 if narrow is None else tokens * part.pairs * part.expert_width * (e + written)
    activated, up = tokens * part.activated_of_pairs, 1 + part.is_gated
    return PassKernels(
        *(
            moved(place.times, "elementwise", cast + inside, launches=int(narrow is not None))
            for inside in (activated * written, activated * up * (e + written))
        )
    )


def stashed(part: RankPart, place: Place, *, tokens: int) -> PassKernels:
    """Return what copies experts' activations to pages in a forward and back in a backward, each read and written.

    A pair's input and what is activated as operands by columns, and what went up (Megatron-LM,
    `moe/paged_stash.py`).
    """
    if place.execution.paged_stash is None or not part.pairs:
        return PassKernels()
    e, up = place.execution.element_bytes, 1 + part.is_gated
    narrow = OPERAND_BYTES.get(place.execution.dtype, float(e))
    columns = narrow * (part.pairs * part.expert_width + part.activated_of_pairs) + e * up * part.activated_of_pairs
    copied = moved(place.times, "copy", 2 * tokens * columns, launches=3)
    return PassKernels(copied, copied)


def core_of(part: Mixer, place: Place, *, micro_batch: int, sequence_length: int) -> PassKernels:
    """Return scores, softmax and their use, of 1/cp of the queries; nothing of it is W's.

    fused: half of the scores, being causal, or those in a window, and `_TILE_EDGE` keys a query where its last tile
    passes the window's end. unfused: all of them, by two batched products; and a score costs softmax 2e bytes
    forward and 3e backward, dropout 2e + 1 more each. Recurrent mixers: `recurrence`. Where keys and values are
    gathered, one kernel for each rank's, masked for its own only: 1/cp of the FLOPs, ranks having pieces from both
    ends of a sequence (torch, `_RoundRobinLoadBalancer`, by default), as they are then joined: `_blocks_joined`.
    Compressed attention scores the keys that it sees, and its indexer chooses them first: `_choice`.
    """
    times, execution = place.wide_times, place.execution
    tokens = place.tokens(micro_batch, sequence_length)
    if isinstance(part, Recurrent):
        return recurrence(part, place, tokens=tokens)
    if not isinstance(part, Scored):
        return PassKernels()
    heads, queries = micro_batch * (part.num_heads // place.cut.tp), sequence_length // place.cut.cp
    if execution.attention == "fused":
        mean = _of_last(part.keys_a_query, sequence_length, _pieces(part, place))
        keys = round(2 * mean)  # the half of which a causal mask leaves
        unmasked = 1 - 1 / place.cut.cp if execution.context == "all-gather" else 0.0
        whole = AttentionCore(heads, queries, keys, part.qk_head_size, part.v_head_size, unmasked)
        joined = _choice(part, place, tokens=tokens, sequence_length=sequence_length) + _blocks_joined(
            part, place, tokens=tokens
        )
        if isinstance(part, Attention) and part.window and part.window < sequence_length:
            seen = part.keys_a_query(sequence_length)
            tiled = replace(whole, keys=min(sequence_length, round(2 * (seen + _TILE_EDGE))))
            return (
                PassKernels(
                    *(
                        replace(kernel, attention_ideal_s=kernel.attention_ideal_s * 2 * seen / tiled.keys)
                        for kernel in fused_attention(times, tiled)
                    )
                )
                + joined
            )
        return PassKernels(*fused_attention(times, whole)) + joined
    rows, e = heads * queries, activation_bytes(at_least_16_bits(execution.dtype))
    keys = part.unmasked_keys(sequence_length)
    wide = product(times, "forward", rows, keys, part.qk_head_size, groups=heads)
    deep = product(times, "forward", rows, part.v_head_size, keys, groups=heads)
    scores, masked = float(rows * keys), (2 * e + 1) * execution.dropout
    launches = 2 if execution.dropout else 1
    softmax, gradient = (
        moved(times, "elementwise", (count * e + masked) * scores, launches=launches) for count in (2, 3)
    )
    return PassKernels(
        (wide + deep + softmax).as_attention(), (wide + wide + deep + deep + gradient).as_attention()
    )


def _pieces(part: Scored, place: Place) -> int:
    """How many pieces of a sequence ranks have in its order; where they have others, each sees as much."""
    return place.cut.cp if isinstance(part, CompressedAttention) else 1


def _of_last(seen: Callable[[int], float], sequence_length: int, pieces: int) -> float:
    """The mean of what queries see in the last of a sequence's pieces, whose rank all others wait for.

    >>> _of_last(lambda length: (length + 1) / 2, 8, 2)
    6.5
    """
    behind = sequence_length // pieces
    before = sequence_length - behind
    return (sequence_length * seen(sequence_length) - (before * seen(before) if before else 0.0)) / behind


def _choice(part: Scored, place: Place, *, tokens: int, sequence_length: int) -> PassKernels:
    """Return what an indexer computes in a forward of the compressed keys before a query, whose best are chosen.

    Products of its queries with them, and a float32 sum of a pair, which is written and read by the choice. As I
    its loss on the chosen keys alone, which Megatron-LM has at once with its gradients: its scores again, those of
    attention's heads, whose sum it is to be like, and two products for gradients (`fused_sparse_attention.py`).
    """
    if not isinstance(part, CompressedAttention) or not part.indexer:
        return PassKernels()
    times, indexer = place.wide_times, part.indexer
    blocks, chosen = (
        _of_last(partial(part.blocks_a_query, at_most=at_most), sequence_length, place.cut.cp)
        for at_most in (None, indexer.num_keys)
    )
    scored = product(times, "forward", float(tokens * indexer.num_heads), blocks, indexer.head_size)
    scored += moved(times, "elementwise", 8.0 * tokens * blocks, launches=2)
    again = product(times, "forward", float(tokens * indexer.num_heads), chosen, indexer.head_size)
    target = product(times, "forward", float(tokens * part.num_heads), chosen, part.head_size)
    return PassKernels(scored.as_attention(), (again + again + again + target).as_attention())


def _blocks_joined(part: Scored, place: Place, *, tokens: int) -> PassKernels:
    """Return what joins attention to the keys of each rank, bytes a column and token of this one.

    Gathered by torch, in float32. Forward: a cast 6, and for each block beyond the first a difference 12, its
    product with a weight 8, and another difference 12; a cast back 6. Backward: in each block gradients of queries,
    keys and values are added to sums, 10 each, those of keys and values joined for the next rank, 16; a cast of all
    back 18 (torch, `_SDPAMerger` and `_templated_ring_attention_backward`).

    Round a ring, of the last rank, for which the others wait: it has all of its queries in each block, and half of
    the keys. Forward: keys and values are joined 2e, an output is weighed 2e, each other one added 3e. Backward:
    keys and values are copied 2e, gradients of queries copied 2e, then added 3e; of keys half are copied, then
    added, and in the last block all (TransformerEngine, `AttnFuncWithCPAndKVP2P`).
    """
    cp, e, times = place.cut.cp, place.execution.element_bytes, place.wide_times
    if cp == 1 or isinstance(part, CompressedAttention):
        return PassKernels()
    heads = part.num_heads // place.cut.tp
    if place.execution.context == "all-gather":
        size = float(tokens * heads * part.v_head_size)
        return PassKernels(
            moved(times, "elementwise", (38 * cp - 26) * size, launches=4 * cp - 2),
            moved(times, "elementwise", (46 * cp + 18) * size, launches=4 * cp + 3),
        )
    if place.execution.context != "ring" or place.execution.compile is not None:
        return PassKernels()
    keys = part.kv_heads_on_a_rank(place.cut.tp) if isinstance(part, Attention) else heads
    of_keys = keys * (part.qk_head_size + part.v_head_size)
    forward = 2 * of_keys + (3 * cp - 1) * heads * part.v_head_size
    backward = (1.5 * cp + 3) * of_keys + (3 * cp - 1) * heads * part.qk_head_size
    return PassKernels(
        *(moved(times, "elementwise", tokens * e * one, launches=2 * cp + 1) for one in (forward, backward))
    )


_TILE_EDGE = 64
"""Keys that a query computes for nothing beyond its window: half a tile of 128 (Dao 2023, arXiv 2307.08691)."""


def recurrence(mixer: Recurrent, place: Place, *, tokens: int) -> PassKernels:
    """Return the scan or the delta rule of a rank's heads, its chunks side by side, and the passing on of states.

    FLOPs of the products of chunks, masked ones too, at `Efficiency.scan_flops_per_s` a core, which has what passes
    states on too. The backward has two products for each of the forward's, and some of these again. Ranks
    of cp have whole sequences of some heads, 1/cp of the products (Megatron-LM, `MambaContextParallel`).
    """
    products, chunks = mixer.chunk_products(place.cut.tp), max(1, tokens // mixer.chunk_size)
    forward = chunks * sum(one.flops for one in products)
    backward = 2 * forward + chunks * sum(one.flops for one in products if one.is_again)
    return PassKernels(*(_scanned(flops, place, launches=2 + len(products)) for flops in (forward, backward)))


def _scanned(flops: float, place: Place, *, launches: int) -> KernelTime:
    device, efficiency = place.device, place.device.efficiency
    ideal_s = flops / place.wide_times.peak("products")
    took = flops / (device.num_cores * efficiency.scan_flops_per_s) + launches * efficiency.kernel_s
    return KernelTime(attention_ideal_s=ideal_s, attention_s=max(took, ideal_s), count=launches)
