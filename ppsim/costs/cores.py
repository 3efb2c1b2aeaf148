"""Kernels of the core of a token mixer: attention, a scan, or a delta rule. e: bytes per element."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ppsim.base.number_formats import activation_bytes, at_least_16_bits
from ppsim.costs.execution_context import ExecutionContext
from ppsim.costs.pass_kernels import NOTHING, PassKernels
from ppsim.machine.kernels.times import AttentionCore, KernelTime, attention_time, gemm_time, memory_kernel_time
from ppsim.model.attention_and_mlp import Attention
from ppsim.model.attention_base import ScoredAttention
from ppsim.model.compressed_attention import CompressedAttention
from ppsim.model.mixer import Mixer
from ppsim.model.recurrent import Recurrent


def core_of(part: Mixer, context: ExecutionContext, *, micro_batch: int, sequence_length: int) -> PassKernels:
    """Return the kernels of a mixer's core for 1/cp of the queries; it has no W.

    The backward of fused attention in 8 bits ignores the window: in NVIDIA/cudnn-frontend's training benchmark
    (3929da2, cuDNN 9.22, window 128) its time grows with the square of the length. In unfused attention, softmax
    moves 2e bytes per score forward and 3e backward, dropout 2e + 1 more each. If keys and values are gathered,
    there is one kernel for the keys of each rank. Only the kernel for a rank's own keys has a mask, because each
    rank has pieces from both ends of a sequence (torch, `_RoundRobinLoadBalancer`).
    """
    times, execution = context.wide_times, context.execution
    tokens = context.tokens(micro_batch, sequence_length)
    if isinstance(part, Recurrent):
        return recurrence(part, context, tokens=tokens)
    if not isinstance(part, ScoredAttention):
        return NOTHING
    heads, queries = micro_batch * (part.num_heads // context.cut.tp), sequence_length // context.cut.cp
    if execution.attention != "unfused":
        mean = _of_last(part.keys_per_query, sequence_length, _pieces(part, context))
        keys = round(2 * mean)  # AttentionCore counts the causal half of its keys
        unmasked = 1 - 1 / context.cut.cp if execution.context == "all-gather" else 0.0
        core = AttentionCore(heads, queries, keys, part.qk_head_size, part.v_head_size, unmasked)
        joined = _choice(part, context, tokens=tokens, sequence_length=sequence_length) + _blocks_joined(
            part, context, tokens=tokens
        )
        if isinstance(part, Attention) and part.window and part.window < sequence_length:
            seen = part.keys_per_query(sequence_length)
            tiled = replace(core, keys=min(sequence_length, round(2 * (seen + _TILE_EDGE))))
            forward, backward = attention_time(times, tiled)
            if execution.attention_dtype:  # in 8 bits, the backward computes all causal scores
                backward = attention_time(times, replace(core, keys=sequence_length))[1]
            windowed = PassKernels(
                replace(forward, attention_ideal_s=forward.attention_ideal_s * 2 * seen / tiled.keys),
                replace(backward, attention_ideal_s=2 * forward.attention_ideal_s * 2 * seen / tiled.keys),
            )
            return _in_its_format(windowed, part, context, tokens) + joined
        return _in_its_format(PassKernels(*attention_time(times, core)), part, context, tokens) + joined
    rows, e = heads * queries, activation_bytes(at_least_16_bits(execution.dtype))
    keys = part.unmasked_keys(sequence_length)
    wide = gemm_time(times, "forward", rows, keys, part.qk_head_size, groups=heads)
    deep = gemm_time(times, "forward", rows, part.v_head_size, keys, groups=heads)
    scores, masked = float(rows * keys), (2 * e + 1) * execution.dropout
    launches = 2 if execution.dropout else 1
    softmax, gradient = (
        memory_kernel_time(times, "elementwise", (count * e + masked) * scores, launches=launches)
        for count in (2, 3)
    )
    return PassKernels(
        (wide + deep + softmax).as_attention(), (wide + wide + deep + deep + gradient).as_attention()
    )


def _in_its_format(
    kernels: PassKernels, part: ScoredAttention, context: ExecutionContext, tokens: int
) -> PassKernels:
    """Kernels of 16-bit attention; with fp8 attention, faster kernels and the casts before them.

    TransformerEngine casts queries, keys and values before the forward and the gradient of the output before the
    backward. A cast reads two bytes and writes one per element; in MXFP8 it writes two
    (`mxfp8_quantize_fast_path`). With delayed scaling, the kernels write 8 bits, and the output and the gradients
    of queries, keys and values are cast back to 16 (`FusedAttnFunc`: `out_fp8.dequantize`, `dq_fp8.dequantize`;
    TransformerEngine 2.2 and 2.8).
    """
    style = context.execution.attention_dtype
    if style is None:
        return kernels
    gains = context.cluster.device.efficiency.attention_fp8_gain or {}
    gain, times = gains.get(style, gains.get("float8", {})), context.wide_times
    faster = PassKernels(
        _times_faster(kernels.forward, gain.get("forward", 1.0)),
        _times_faster(kernels.backward_input, gain.get("backward", 1.0)),
    )
    heads = part.num_heads // context.cut.tp
    keys = part.kv_heads_per_rank(context.cut.tp) if isinstance(part, Attention) else heads
    cast = heads * part.qk_head_size + keys * (part.qk_head_size + part.v_head_size)
    output, per_element = heads * part.v_head_size, 4.0 if style == "mxfp8" else 3.0
    parts = ((cast, 3), (output, 1)) if style == "mxfp8" else ((cast + output, 4),) * 2
    forward, backward = (
        memory_kernel_time(times, "elementwise", per_element * tokens * columns, launches=launches)
        for columns, launches in parts
    )
    return faster + PassKernels(forward, backward)


def _times_faster(attention: KernelTime, gain: float) -> KernelTime:
    return replace(attention, attention_s=attention.attention_s / gain, measured_s=attention.measured_s / gain)


def _pieces(part: ScoredAttention, context: ExecutionContext) -> int:
    return context.cut.cp if isinstance(part, CompressedAttention) else 1


def _of_last(seen: Callable[[int], float], sequence_length: int, pieces: int) -> float:
    """Mean number of keys that queries see in the last piece of a sequence, whose rank is the slowest.

    >>> _of_last(lambda length: (length + 1) / 2, 8, 2)
    6.5
    """
    behind = sequence_length // pieces
    before = sequence_length - behind
    return (sequence_length * seen(sequence_length) - (before * seen(before) if before else 0.0)) / behind


def _choice(part: ScoredAttention, context: ExecutionContext, *, tokens: int, sequence_length: int) -> PassKernels:
    """Return the kernels of the indexer, which scores the keys before a query and chooses the best.

    I contains the loss on the chosen keys, which Megatron-LM computes together with its gradients: the indexer's
    scores again, the scores of attention's heads (their sum is the target), and two GEMMs for gradients
    (`fused_sparse_attention.py`).
    """
    if not part.indexer:
        return NOTHING
    times, indexer = context.wide_times, part.indexer
    if isinstance(part, CompressedAttention):
        blocks, chosen = (
            _of_last(partial(part.blocks_per_query, at_most=at_most), sequence_length, context.cut.cp)
            for at_most in (None, indexer.num_keys)
        )
    else:
        blocks, chosen = sequence_length / 2, part.keys_per_query(sequence_length)
    scored = gemm_time(times, "forward", float(tokens * indexer.num_heads), blocks, indexer.head_size)
    scored += memory_kernel_time(times, "elementwise", 8.0 * tokens * blocks, launches=2)
    again = gemm_time(times, "forward", float(tokens * indexer.num_heads), chosen, indexer.head_size)
    target = gemm_time(times, "forward", float(tokens * part.num_heads), chosen, part.qk_head_size)
    return PassKernels(scored.as_attention(), (again + again + again + target).as_attention())


def _blocks_joined(part: ScoredAttention, context: ExecutionContext, *, tokens: int) -> PassKernels:
    """Return the kernels that join attention over the keys of each cp rank.

    The numbers are bytes per column and token of a rank.

    Keys gathered by torch, in float32. Forward: in each block a cast 6; in each block after the first also a
    difference 12, its product with a weight 8, and another difference 12; at the end a cast back 6. Backward: in
    each block, gradients of queries, keys and values are accumulated, 10 each, and the gradients of keys and values
    are joined for the next rank, 16; at the end all three are cast back, 18 (torch, `_SDPAMerger` and
    `_templated_ring_attention_backward`).

    Ring, for the last rank, which is the slowest. Forward: keys and values are joined 2e, the first output is
    weighted 2e, each further output added 3e. Backward: keys and values are copied 2e. Gradients of queries are
    copied 2e in the first block and added 3e in each further block. Gradients of keys and values: half are copied
    in the first block, half are added in each further block, and all are added in the last block
    (TransformerEngine, `AttnFuncWithCPAndKVP2P`).
    """
    cp, e, times = context.cut.cp, context.execution.element_bytes, context.wide_times
    if cp == 1 or isinstance(part, CompressedAttention):
        return NOTHING
    heads = part.num_heads // context.cut.tp
    if context.execution.context == "all-gather":
        size = float(tokens * heads * part.v_head_size)
        return PassKernels(
            memory_kernel_time(times, "elementwise", (38 * cp - 26) * size, launches=4 * cp - 2),
            memory_kernel_time(times, "elementwise", (46 * cp + 18) * size, launches=4 * cp + 3),
        )
    if context.execution.context != "ring" or context.execution.compile is not None:
        return NOTHING
    keys = part.kv_heads_per_rank(context.cut.tp) if isinstance(part, Attention) else heads
    of_keys = keys * (part.qk_head_size + part.v_head_size)
    forward = 2 * of_keys + (3 * cp - 1) * heads * part.v_head_size
    backward = (1.5 * cp + 3) * of_keys + (3 * cp - 1) * heads * part.qk_head_size
    return PassKernels(
        *(
            memory_kernel_time(times, "elementwise", tokens * e * one, launches=2 * cp + 1)
            for one in (forward, backward)
        )
    )


_TILE_EDGE = 64
"""Masked keys that a query computes beyond its window: half a tile of 128 (Dao 2023, arXiv 2307.08691)."""


def recurrence(mixer: Recurrent, context: ExecutionContext, *, tokens: int) -> PassKernels:
    """Return the chunked scan or delta rule of a rank's heads.

    `Efficiency.scan_flops_per_s` includes the passing of states. A cp rank has whole sequences of some heads
    (Megatron-LM, `MambaContextParallel`).
    """
    products, chunks = mixer.chunk_products(context.cut.tp), max(1, tokens // mixer.chunk_size)
    forward = chunks * sum(product.flops for product in products)
    backward = 2 * forward + chunks * sum(product.flops for product in products if product.is_again)
    return PassKernels(*(_scanned(flops, context, launches=2 + len(products)) for flops in (forward, backward)))


def _scanned(flops: float, context: ExecutionContext, *, launches: int) -> KernelTime:
    device, efficiency = context.device, context.device.efficiency
    ideal_s = flops / context.wide_times.peak("products")
    took = flops / (device.num_cores * efficiency.scan_flops_per_s) + launches * efficiency.kernel_s
    return KernelTime(attention_ideal_s=ideal_s, attention_s=max(took, ideal_s), count=launches)
