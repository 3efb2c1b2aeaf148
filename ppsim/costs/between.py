"""What a rank's part of a layer passes over memory between its matrix products and the core of attention.

Bytes are of a read and a write each once, in the kernels that Megatron-LM and TransformerEngine run. The letters
are those of `ppsim.costs.layer_kernels`.
"""

from ppsim.costs.layer_kernels import PassKernels, RankPart
from ppsim.costs.place import Place
from ppsim.machine.choices import FLEX
from ppsim.machine.kernels.specified import OPERAND_BYTES
from ppsim.machine.kernels.times import KernelTime, moved
from ppsim.model.architecture import Layer
from ppsim.model.streams import passes


def elementwise(part: RankPart, place: Place, *, tokens: int) -> PassKernels:
    """Return what only passes over memory, bytes a token; norms, dropout and residuals on a rank's own tokens.

    Forward: two norms 4eh, two residuals 6eh (masks 2h). Backward: norms 10eh (their parameters' gradients read
    input and gradient again), residuals 6eh (dropout 4eh, masks 2h); half of both in a layer of one half. W: the
    gradients of biases read what the products did, e a column. A convolved column 2e forward and 5e backward, which
    computes it again; a gated one, its norm in the same kernel, 3e and 6e; a norm's inside attention 2e and 5e, as
    before a half. A modulated norm 2eh and 4eh, and the weights of its modulation once a pass, of whose gradients W
    reads and writes 8 bytes. Residual streams: `ppsim.model.streams.passes`. What norms write is filled before in
    deterministic mode, e more either way. A sum of two gradients of a norm's output 3eh. The rest is
    `between_products`.
    """
    h, e, own, times = part.hidden_size, place.execution.element_bytes, place.cut.norm_divisor, place.times
    dropout, share = place.execution.dropout, part.halves / 2
    residual, of_residual = passes(part.streams)
    filled = 2 * place.execution.deterministic_mode
    forward = ((4 + filled + 2 * residual) * e + 2 * dropout) * h * share + 2 * e * h * part.modulated
    backward = (
        (10 + filled + 2 * of_residual) * e + (4 * e + 2) * dropout
    ) * h * share + 4 * e * h * part.modulated
    modulations = [one.weights for one in part.linears if one.kind == "condition"]
    read, written = ((size * sum(modulations), len(modulations)) for size in (e, e + 8))
    convolved, gates, normed = part.convolved, part.gates, part.normed
    launches = (convolved > 0) + (gates > 0) + 2 * (normed > 0)
    return between_products(part, place, tokens=tokens) + PassKernels(
        moved(times, "elementwise", tokens * forward / own, launches=2 * part.halves)
        + moved(times, "elementwise", tokens * e * (2 * convolved + 3 * gates + 2 * normed), launches=launches)
        + moved(times, "copy", read[0], launches=read[1]),
        moved(times, "elementwise", tokens * backward / own, launches=3 * part.halves)
        + moved(times, "elementwise", 3.0 * tokens * e * h * part.num_sums / own, launches=part.num_sums)
        + moved(times, "elementwise", tokens * e * (5 * convolved + 6 * gates + 5 * normed), launches=2 * launches)
        + moved(times, "copy", read[0], launches=read[1]),
        moved(times, "elementwise", tokens * e * part.biases, launches=4)
        + moved(times, "copy", written[0], launches=written[1]),
    )


def norms(layer: Layer, place: Place, *, tokens: int, number: int) -> KernelTime:
    """Return the forward of so many of the norms before a layer's halves: 2eh bytes a token each."""
    num_bytes = tokens * 2 * number * place.execution.element_bytes * layer.hidden_size / place.cut.norm_divisor
    return moved(place.times, "norm", num_bytes, launches=number)


def between_products(part: RankPart, place: Place, *, tokens: int) -> PassKernels:
    """Return what passes over memory between the products, bytes a token.

    An activation of f columns 2ef forward and 3ef backward, a gated one 3ef and 5ef; rotation 2e a column either
    way; moe, for each of a token's k experts, to and from them 4e times its width either way; as much again where
    the tokens of an all-to-all are ordered by ranks before it and by experts behind it, and where an expert's come
    to a multiple that narrow products take (`Fp8Padding`), unless capacities or HybridEP see to it. A clamp of
    gate and up before they are joined 8ef and 10ef. Biases behind experts are weighed, added to the rows of each
    expert by itself, and these joined: `_BIASES` times the width of a pair (Megatron-LM,
    `weighted_bias_quick_geglu_impl`, `TEGroupedMLP._apply_bias`, `token_dispatcher.py`). Fused experts have all
    that inside.
    """
    f, e, biased = part.activated, place.execution.element_bytes, part.biased_experts
    execution = place.execution
    if execution.fused_experts:
        f, biased = f - part.activated_of_pairs, 0
    orderings = 1 + (execution.moe_dispatcher == "alltoall" and place.cut.ep > 1)
    if execution.dtype in OPERAND_BYTES and execution.expert_capacity is None:
        orderings += execution.moe_dispatcher != "hybridep"
    around = 2 * e * part.rotated + 4 * e * part.expert_width * part.pairs * orderings
    launches = 8 if part.pairs else (f > 0) + (part.rotated > 0)
    clamps = part.is_clamped and f > 0
    width = part.expert_width * part.pairs * (biased > 0)
    of_biases = _BIASES[execution.moe_dispatcher in FLEX]
    return PassKernels(
        *(
            moved(
                place.times,
                "elementwise",
                tokens * (e * f * (activations + clamped * clamps) + around + (own + of_e * e) * width),
                launches=launches + 3 * clamps + an_expert * biased + for_all * (biased > 0),
            )
            for activations, clamped, (own, of_e, an_expert, for_all) in (
                (3 if part.is_gated else 2, 8, of_biases[0]),
                (5 if part.is_gated else 3, 10, of_biases[1]),
            )
        )
    )


_BIASES = {False: ((0, 6, 2, 1), (0, 8, 4, 1)), True: ((24, 2, 2, 2), (32, 4, 7, 3))}
"""Of biases behind experts, forward and backward: bytes of a column of a pair, those for each byte of an element,
and kernels of an expert and of all. By whether their weights are float32, as DeepEP and HybridEP want them
(`fused_a2a.py`); else they have the activations' type, in which torch then multiplies and adds."""
