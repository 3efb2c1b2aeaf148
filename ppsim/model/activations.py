"""Bytes that a forward keeps for its backward, by component, on a rank of a divided model.

Letters: T tokens of a microbatch on a context-parallel rank, b·s/cp; h, n, g, d, f as in
`ppsim.model.architecture`; t = tp; q = t with sequence parallelism, else 1; e bytes of an element. Every tensor is
counted once. The statistics of norms (4 bytes a token and norm) and the integers of token routing are left out.

The parts without flash attention and with dropout are Korthikanti et al. 2022 (arXiv 2205.05198), §4.1 and §4.2;
the others are what Megatron-LM keeps with TransformerEngine.
"""

from dataclasses import dataclass, replace
from typing import Literal

from ppsim.base.errors import ConfigError
from ppsim.layout.cut import Cut, require_positive, share
from ppsim.model.architecture import Layer, Model
from ppsim.model.compressed import CompressedAttention
from ppsim.model.halves import Attention, FeedForward, LatentAttention, MixtureOfExperts
from ppsim.model.linears import UP_AND_DOWN
from ppsim.model.parameters import exactly, padded_vocabulary
from ppsim.model.recompute import BY_OPERATORS, Recompute, by_operators, recomputes, require_spelling, whole_layers
from ppsim.model.recurrent import Recurrent
from ppsim.model.streams import kept_columns


@dataclass(frozen=True)
class KernelChoice:
    """What the implementation keeps.

    `flash_attention`: the log-sum-exp of the scores instead of the scores (Dao et al. 2022, arXiv 2205.14135).
    `dropout`: masks of 1 byte an element. `fused_activation`: SwiGLU keeps gate and up, and its product, not also
    SiLU of the gate. `fused_cross_entropy`: the gradient takes the place of the logits, in their type; else the
    softmax stays in float32 beside it. `cp_communication`: "a2a" holds attention's output a second time, in the
    layout before the exchange; "p2p" (ring) does not. `gradient_placeholders`: TransformerEngine's weight-gradient
    fusion hands autograd an uninitialised tensor of each weight's shape, kept once a shape (`get_dummy_wgrad`),
    and Megatron-LM one of the head's.

    `input_bytes`: what a product keeps of an element of its input for its weight's gradient, in 8 or 4 bits with
    its part of a scale; None: the input as it is. `weight_copy_bytes`: what TransformerEngine holds beside each
    weight of a product in 8 or 4 bits, by rows and by columns, from a step's first microbatch on. `expert_room`:
    what there is room for of what experts keep, of the mean. `eager`: `selective-op` also holds what nothing in the
    backward needs, as compiled blocks do not: the last product's output, where its turn is to be kept, and what is
    scattered of it (torch, utils/checkpoint.py: `_CachingTorchDispatchMode`).
    """

    flash_attention: bool = True
    dropout: bool = False
    fused_activation: bool = True
    fused_cross_entropy: bool = True
    cp_communication: Literal["p2p", "a2a"] = "p2p"
    gradient_placeholders: bool = True
    input_bytes: float | None = None
    weight_copy_bytes: float = 0.0
    expert_room: float = 1.0
    eager: bool = False

    def kept_of_input(self, num_elements: int, element_bytes: int) -> int:
        """Return the bytes that a product keeps of an input; one kept by what made it has none an element."""
        return num_elements * element_bytes if self.input_bytes is None else exactly(num_elements, self.input_bytes)


@dataclass(frozen=True)
class Batch:
    """The shape of a microbatch, and what is recomputed of it, as `ppsim.model.recompute` has it."""

    micro_batch: int
    sequence_length: int
    element_bytes: int = 2
    recompute: Recompute = "none"

    def __post_init__(self) -> None:
        require_positive(self, "micro_batch", "sequence_length", "element_bytes")
        require_spelling(self.recompute)

    def recomputes(self, module: str) -> bool:
        """Whether a module is recomputed by itself."""
        return recomputes(self.recompute, module)

    def tokens(self, cut: Cut) -> int:
        """Tokens on a context-parallel rank."""
        if self.sequence_length % cut.cp:
            raise ConfigError(f"cp must divide the sequence length: got {cut.cp} with {self.sequence_length}")
        return self.micro_batch * self.sequence_length // cut.cp


def layer_activations(layer: Layer, batch: Batch, cut: Cut, kernels: KernelChoice) -> dict[str, int]:
    """Return the bytes that a layer keeps of a microbatch: "norms", "attention", "scores", "feed-forward", …

    A modulated norm is kept before it is scaled, and what its gate multiplies ("modulation": 2T·h·e/q).
    Full recomputation keeps the layer's input ("layer input": T·h·e/q a residual stream), that of every Nth layer
    the mean of both, that of modules their inputs, `selective-op` its products' outputs. See `_attention`,
    `_feed_forward`, `_experts`, `_of_operators` and `ppsim.model.streams` for the terms.
    """
    tokens, e, q = batch.tokens(cut), batch.element_bytes, cut.norm_divisor
    hidden = share(tokens * layer.hidden_size, q)
    if every := whole_layers(batch.recompute):
        of_input = {"layer input": layer.streams * hidden * e}
        if every == 1:
            return of_input
        kept = layer_activations(layer, replace(batch, recompute="none"), cut, kernels)
        return {name: share(size * (every - 1), every) for name, size in kept.items()} | {
            name: share(size, every) for name, size in of_input.items()
        }
    if batch.recompute == BY_OPERATORS:
        return {"layer input": hidden * e} | _of_operators(layer, batch, cut, kernels)
    attention, scores = _attention(layer, batch, cut, kernels)
    mixes = layer.streams > 1 and batch.recomputes("mhc")
    normed = 0 if mixes or batch.recomputes("layernorm") else kernels.kept_of_input(hidden, e)
    found = {
        "norms": 0 if mixes else layer.num_norms * hidden * e,
        "attention": layer.has_mixer * normed + attention,
    }
    if not batch.recomputes("core_attn"):
        found["scores"] = scores
    name, module = ("experts", "moe") if layer.is_moe else ("feed-forward", "mlp")
    found[name] = layer.has_feed_forward * normed
    if not batch.recomputes(module):
        if isinstance(layer.ffn, FeedForward):
            keeps = not batch.recomputes("mlp_act")
            found[name] += _feed_forward(layer.ffn, tokens, batch, cut.tp, kernels, keeps_activation=keeps)
        else:
            found[name] += _experts(layer, layer.ffn, batch, cut, kernels)
    if layer.conditioned:
        found["modulation"] = 2 * layer.conditioned.num_modulated * hidden * e
    if layer.streams > 1:
        columns = kept_columns(layer.streams, layer.hidden_size, layer.num_halves, again=mixes)
        found["residual streams"] = share(tokens * columns, q) * e
    if kernels.dropout:
        found["dropout masks"] = layer.num_halves * hidden
    return found


def _of_operators(layer: Layer, batch: Batch, cut: Cut, kernels: KernelChoice) -> dict[str, int]:
    """What `selective-op` keeps beside a layer's input: attention's output and statistics, and `by_operators`.

    Attention's output reduced and scattered: T·h·e/t. Eagerly `held_for_nothing` too.
    """
    a, tokens, e = layer.attention, batch.tokens(cut), batch.element_bytes
    assert isinstance(a, Attention)
    kept, _ = by_operators(layer.linears(cut), cut)
    of_attention = sum(one.outputs for one in kept if one.name not in UP_AND_DOWN) + a.inner_size // cut.tp
    scattered = tokens * layer.hidden_size // cut.tp * (cut.tp > 1)
    return {
        "attention": (tokens * of_attention + scattered) * e,
        "scores": 4 * a.num_heads // cut.tp * tokens,
        "feed-forward": tokens * sum(one.outputs for one in kept if one.name in UP_AND_DOWN) * e
        + sum(held_for_nothing(layer, batch, cut, kernels)),
    }


def held_for_nothing(layer: Layer, batch: Batch, cut: Cut, kernels: KernelChoice) -> tuple[int, int]:
    """Return the bytes of a layer's last product, and of what is scattered of it, that `selective-op` holds."""
    whole = batch.tokens(cut) * layer.hidden_size * batch.element_bytes * kernels.eager
    counted = sum(not one.biased for linear in layer.linears(cut) if linear.is_product for one in linear.apart())
    return whole * (counted % 2), share(whole, cut.norm_divisor) * (cut.tp > 1)


def kept_for_weight(layer: Layer, batch: Batch, cut: Cut) -> int:
    """Return the bytes that a layer holds between I and W of a split backward.

    For each weight matrix its input and the gradient of its output; an input that two share counts once. What ranks
    divide by columns has all tokens there, and a rank's own on the other side (routed: those sent to it). In a GPT
    layer these are 32 s·b·h bytes in 16 bits (Qi et al. 2024, arXiv 2401.10241, Table 1).
    """
    tokens = batch.tokens(cut)
    own = share(tokens, cut.norm_divisor)
    pairs = own * layer.experts_per_token * cut.expert_tp
    columns, read = 0.0, set()
    for one in layer.linears(cut):
        if not one.is_product:
            continue
        before, behind = (tokens if one.split == side else own for side in ("inputs", "outputs"))
        if one.kind == "routed":
            before = behind = pairs
        columns += one.rows * (behind * one.outputs + (0 if one.reads in read else before * one.inputs))
        read.add(one.reads)
    return round(columns * batch.element_bytes)


def _attention(layer: Layer, batch: Batch, cut: Cut, kernels: KernelChoice) -> tuple[int, int]:
    """What attention keeps behind its input: for its projections, and for its core.

    Queries, keys and values (n + 2g)d·e/t, output nd·e/t; with norms of the heads, queries and keys before them.
    Core: 4n/t of log-sum-exp, or the softmax n·s·e/t and, with dropout, its mask and what it leaves, n·s(1 + e)/t.
    A gate: nd·e/t, and what it leaves as much. Mamba and the delta rule: `kept_columns` of them, and no core.
    MLA: both latents before and behind their norms (whole on each rank), and, unless they are recomputed, queries,
    keys with rotation, and what the latent gives, of which the values are a part. Compressed attention:
    `kept_columns` and `core_bytes` of it.
    """
    a, e, tokens, t = layer.attention, batch.element_bytes, batch.tokens(cut), cut.tp
    if isinstance(a, Recurrent):
        return a.kept_columns // t * tokens * e, 0
    if isinstance(a, CompressedAttention):
        kept_of_token = a.kept_columns(with_ups=not batch.recomputes("mla_up_proj"), cp=cut.cp)
        return exactly(tokens * e, kept_of_token), tokens * a.core_bytes(batch.sequence_length)
    heads = a.num_heads // t
    if isinstance(a, LatentAttention):
        latents = 2 * (a.q_lora_rank or 0) + 2 * a.kv_lora_rank + a.qk_rope_head_size
        own = heads * (2 * a.qk_head_size + a.qk_nope_head_size + a.v_head_size)
        own *= not batch.recomputes("mla_up_proj")
        kept, out = share(latents * tokens, cut.norm_divisor) * e + own * tokens * e, heads * a.v_head_size
    else:
        groups = a.kv_heads_on_a_rank(t)
        columns = heads + 2 * groups + a.qk_norm * (heads + groups) + 2 * a.gated * heads
        kept = columns * a.head_size * tokens * e
        out = heads * a.head_size
    if kernels.flash_attention:
        core = 4 * heads * tokens
        if cut.cp > 1 and kernels.cp_communication == "a2a":
            core += out * tokens * e
    else:
        width = 2 * e + 1 if kernels.dropout else e
        core = heads * batch.sequence_length * tokens * width
    return kept + out * tokens * e + kernels.kept_of_input(out * tokens, 0), core


def _feed_forward(
    ffn: FeedForward, tokens: int, batch: Batch, tp: int, kernels: KernelChoice, *, keeps_activation: bool = True
) -> int:
    """What a feed-forward part keeps behind its input: what goes up, its activation, and SiLU where not fused."""
    columns = ffn.up_columns
    if not keeps_activation:
        return tokens * columns // tp * batch.element_bytes
    if not kernels.fused_activation and ffn.gated:
        columns += ffn.size
    activated = kernels.kept_of_input(tokens * ffn.size // tp, batch.element_bytes)
    return tokens * columns // tp * batch.element_bytes + activated


def _experts(layer: Layer, ffn: MixtureOfExperts, batch: Batch, cut: Cut, kernels: KernelChoice) -> int:
    """What a mixture keeps behind its input, where the router loads experts evenly.

    Router: logits and probabilities in float32, 8E/q a token. A rank takes in T·k·etp/q pairs of token and expert,
    and keeps of each, in all the room there is for them, input, output (to be weighted) and the expert's own; of a
    latent a token's before its experts and behind them. A shared expert is a feed-forward part.
    """
    tokens = batch.tokens(cut)
    own = share(tokens, cut.norm_divisor)
    pairs = own * ffn.experts_per_token * cut.expert_tp
    columns = pairs * layer.expert_width
    keeps = not batch.recomputes("moe_act")
    of_pairs = columns * batch.element_bytes + kernels.kept_of_input(columns, batch.element_bytes)
    of_pairs += _feed_forward(ffn.expert, pairs, batch, cut.expert_tp, kernels, keeps_activation=keeps)
    kept = 8 * ffn.num_experts * own + exactly(of_pairs, kernels.expert_room)
    kept += own * 2 * (ffn.latent_size or 0) * batch.element_bytes
    if ffn.shared and not batch.recomputes("shared_experts"):
        kept += _feed_forward(ffn.shared, tokens, batch, cut.tp, kernels)
    return kept


def head_activations(
    model: Model, batch: Batch, cut: Cut, kernels: KernelChoice, *, vocab_multiple: int = 1
) -> dict[str, int]:
    """Return what final norm, projection and cross entropy keep: "head" 2T·h·e/q, and "logits".

    What joins residual streams keeps them too.
    Logits: T·V·e/t fused, 4T·V/t for the softmax otherwise. Each layer for further tokens has both once more.
    """
    tokens, e = batch.tokens(cut), batch.element_bytes
    vocab = padded_vocabulary(model.vocab_size, tp=cut.tp, multiple=vocab_multiple) // cut.tp
    joined = model.streams if model.streams > 1 else 0
    norms = (1 + model.final_norm + joined) * share(tokens * model.hidden_size, cut.norm_divisor) * e
    logits = tokens * vocab * (e if kernels.fused_cross_entropy else max(e, 4))
    passes = 1 + len(model.mtp)
    return {"head": passes * norms, "logits": passes * logits}


def mtp_activations(model: Model, num_layers: int, batch: Batch, cut: Cut) -> dict[str, int]:
    """Return what layers for further tokens keep in front: inputs of two norms and of the projection, 4T·h·e/q.

    Of n residual streams, whose norm reads what the head before has, (2 + n)T·h·e/q.
    """
    hidden = share(batch.tokens(cut) * model.hidden_size, cut.norm_divisor)
    kept = 4 if model.streams == 1 else 2 + model.streams
    return {"multi-token prediction": kept * num_layers * hidden * batch.element_bytes}


def embedding_activations(model: Model, batch: Batch, cut: Cut, kernels: KernelChoice) -> dict[str, int]:
    """Return what the embedding keeps: 8 bytes of a token's number and, with dropout, its mask of T·h/q."""
    tokens = batch.tokens(cut)
    mask = share(tokens * model.hidden_size, cut.norm_divisor) if kernels.dropout else 0
    return {"embedding": 8 * tokens + mask}
