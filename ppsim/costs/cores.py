"""The kernels of a mixer's core: scores, softmax and their use, a scan, or a delta rule.

e: bytes of an element.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ppsim.costs.pass_kernels import NOTHING, PassKernels
from ppsim.costs.place import Place
from ppsim.machine.kernels.specified import activation_bytes, at_least_16_bits
from ppsim.machine.kernels.times import AttentionCore, KernelTime, fused_attention, moved, product
from ppsim.model.compressed import CompressedAttention
from ppsim.model.halves import Attention, OfLatents
from ppsim.model.mixer import Mixer
from ppsim.model.recurrent import Recurrent
from ppsim.model.scored import Scored


def core_of(part: Mixer, place: Place, *, micro_batch: int, sequence_length: int) -> PassKernels:
    """Return scores, softmax and their use, of 1/cp of the queries; nothing of it is W's.

    fused: half of the scores, being causal, or those in a window, and `_TILE_EDGE` keys a query where its last tile
    passes the window's end. unfused: all of them, by two batched products; and a score costs softmax 2e bytes
    forward and 3e backward, dropout 2e + 1 more each. Recurrent mixers: `recurrence`. Where keys and values are
    gathered, one kernel for each rank's, masked for its own only: 1/cp of the FLOPs, ranks having pieces from both
    ends of a sequence (torch, `_RoundRobinLoadBalancer`, by default), as they are then joined: `_blocks_joined`.
    Compressed and sparse attention score the keys that a query sees; an indexer chooses them first: `_choice`.
    """
    times, execution = place.wide_times, place.execution
    tokens = place.tokens(micro_batch, sequence_length)
    if isinstance(part, Recurrent):
        return recurrence(part, place, tokens=tokens)
    if not isinstance(part, Scored):
        return NOTHING
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
    """Return the work of an indexer: it scores the keys before a query, compressed or not, and chooses the best.

    Products of its queries with them, and a float32 sum of a pair, which is written and read by the choice. As I
    its loss on the chosen keys alone, which Megatron-LM has at once with its gradients: its scores again, those of
    attention's heads, whose sum it is to be like, and two products for gradients (`fused_sparse_attention.py`).
    """
    if not isinstance(part, OfLatents) or not part.indexer:
        return NOTHING
    times, indexer = place.wide_times, part.indexer
    if isinstance(part, CompressedAttention):
        blocks, chosen = (
            _of_last(partial(part.blocks_a_query, at_most=at_most), sequence_length, place.cut.cp)
            for at_most in (None, indexer.num_keys)
        )
    else:
        blocks, chosen = sequence_length / 2, part.keys_a_query(sequence_length)
    scored = product(times, "forward", float(tokens * indexer.num_heads), blocks, indexer.head_size)
    scored += moved(times, "elementwise", 8.0 * tokens * blocks, launches=2)
    again = product(times, "forward", float(tokens * indexer.num_heads), chosen, indexer.head_size)
    target = product(times, "forward", float(tokens * part.num_heads), chosen, part.qk_head_size)
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
        return NOTHING
    heads = part.num_heads // place.cut.tp
    if place.execution.context == "all-gather":
        size = float(tokens * heads * part.v_head_size)
        return PassKernels(
            moved(times, "elementwise", (38 * cp - 26) * size, launches=4 * cp - 2),
            moved(times, "elementwise", (46 * cp + 18) * size, launches=4 * cp + 3),
        )
    if place.execution.context != "ring" or place.execution.compile is not None:
        return NOTHING
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
