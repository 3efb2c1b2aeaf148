"""The operators of a layer's forward on one rank: one generator per block.

Letters as in `ppsim.model.architecture`. Statistics of norms (4 bytes per token and norm) and the integers of token
routing are left out. Without flash attention and with dropout, the saved tensors are as in Korthikanti et al. 2022
(arXiv 2205.05198), §4.1 and §4.2; otherwise as in Megatron-LM with TransformerEngine.
"""

from collections.abc import Iterator
from dataclasses import replace

from ppsim.layout.cut import Cut
from ppsim.model.architecture import Layer
from ppsim.model.batch import KernelChoice
from ppsim.model.compressed import CompressedAttention
from ppsim.model.halves import Attention, FeedForward, LatentAttention, MixtureOfExperts
from ppsim.model.linears import Linear
from ppsim.model.operators import Operator, Rows, Tensor
from ppsim.model.recurrent import Recurrent


def layer_input(layer: Layer) -> Tensor:
    """Return the tensor that a layer reads: the residual, with all its streams."""
    return Tensor("x", "own_tokens", layer.streams * layer.hidden_size, "norms")


def operators_of(layer: Layer, cut: Cut, kernels: KernelChoice, sequence_length: int) -> tuple[Operator, ...]:
    """Return the operators of a layer, cached per layer object, since a search asks for the same lists often."""
    key = cut.tp, cut.cp, cut.ep, cut.expert_tp, kernels, sequence_length
    if key not in layer.lists:
        found = [*_mixer_half(layer, cut, kernels, sequence_length), *_channel_half(layer, cut, kernels)]
        if (one := layer.conditioned) and one.text_ends:
            found = [replace(op, share=1.0 if op.name == "qkv" else 1 - one.text) for op in found]
        layer.lists[key] = tuple(found)
    made: tuple[Operator, ...] = layer.lists[key]
    return made


def has_norm_in_gemm(layer: Layer, half: int) -> bool:
    """Return whether TransformerEngine computes the norm before a half (1 or 2) inside its first GEMM.

    Before attention, a Mamba mixer, a delta rule and a dense feed-forward part (`LayerNormLinear`), but not before
    latent attention, experts and among residual streams (Megatron-LM, core/models/gpt/gpt_layer_specs.py). Such a
    norm is recomputed with its GEMM, and not by the word layernorm.
    """
    mixer = layer.attention
    is_apart = isinstance(mixer, LatentAttention | CompressedAttention) if half == 1 else layer.is_moe
    return not is_apart and layer.streams == 1


def _mixer_half(layer: Layer, cut: Cut, kernels: KernelChoice, sequence_length: int) -> Iterator[Operator]:
    if not layer.has_mixer:
        return
    a, h, linears = layer.attention, layer.hidden_size, layer.attention.linears(layer.hidden_size, cut.tp)
    yield from _before_half(layer, 1, "x", "attention", kernels)
    if isinstance(a, Recurrent):
        yield from opaque_mixer(linears, {"kept": ("scan", a.kept_columns // cut.tp)})
    elif isinstance(a, CompressedAttention):
        ups = 2 * a.inner_size + a.head_size
        kept = {
            "ups": ("mla_up_proj", ups),
            "kept": ("attn", a.kept_columns(with_ups=False, cp=cut.cp)),
            "index": ("core_attn", a.core_bytes(sequence_length) // 4),
        }
        yield from opaque_mixer(linears, kept)
    elif isinstance(a, LatentAttention):
        yield from latent_attention(a, linears, cut, kernels, sequence_length)
    else:
        yield from attention(a, linears, cut, kernels, sequence_length)
    yield from _after_half(layer, 1, "mixed", h, kernels)


def _channel_half(layer: Layer, cut: Cut, kernels: KernelChoice) -> Iterator[Operator]:
    if not layer.has_feed_forward:
        return
    h, ffn, component = layer.hidden_size, layer.ffn, "experts" if layer.is_moe else "feed-forward"
    source = "x1" if layer.has_mixer and layer.num_norms > 1 else "x"
    yield from _before_half(layer, 2, source, component, kernels)
    if isinstance(ffn, FeedForward):
        yield from mlp(ffn, ffn.linears(h, cut.tp), "mlp", component, kernels, made="fed")
    else:
        yield from experts(ffn, h, cut, kernels)
    yield from _after_half(layer, 2, "fed", h, kernels)


def _before_half(
    layer: Layer, number: int, source: str, component: str, kernels: KernelChoice
) -> Iterator[Operator]:
    """The norm before a half; a modulated one saves its input and output for scale and gate."""
    h, module = layer.hidden_size, f"layernorm/{'attn' if number == 1 else 'mlp'}_norm"
    if kernels.norm_in_gemm and has_norm_in_gemm(layer, number):
        module = "qkv_linear" if number == 1 else "mlp"
    if layer.streams > 1:
        # The streams are mixed again from the stage's first ones, which `stage_activations` adds: it reads nothing.
        wide = Tensor("streams", "own_tokens", layer.streams * h, "residual streams")
        mixed = Tensor(f"h{number}", "own_tokens", h, "norms")
        linear = next(one for one in layer.linears(Cut()) if one.kind == "streams")
        written = (wide if number == 1 or not layer.has_mixer else replace(wide, name="streams 2"), mixed)
        gives = Tensor(f"numbers {number}", "own_tokens", linear.outputs, "residual streams")
        yield Operator(f"mix{number}", "mhc", (), written, saved_for_i=(written[0].name,))
        # One name for both halves, as if they read the same streams.
        yield Operator(f"numbers{number}", "mhc", (), (gives,), saved_for_w=("streams",), weight=linear)
        source, module = mixed.name, "layernorm/mhc"
    normed = Tensor(f"n{number}", "own_tokens", h, component)
    yield Operator(f"norm{number}", module, (source,), (normed,), saved_for_i=(source,))


def _after_half(layer: Layer, number: int, given: str, h: int, kernels: KernelChoice) -> Iterator[Operator]:
    """A norm of the half's output (Gemma 2), its gate, dropout, and the addition to the residual."""
    if layer.num_norms > 2:
        post = Tensor(f"post{number}", "own_tokens", h, "norms")
        yield Operator(f"post norm{number}", "", (given,), (post,), saved_for_i=(given,))
        given = post.name
    if layer.conditioned and number <= layer.conditioned.num_modulated:
        both = tuple(Tensor(f"{name}{number}", "own_tokens", h, "modulation") for name in ("scaled", "gated"))
        yield Operator(f"modulate{number}", "", (given,), both, saved_for_i=tuple(one.name for one in both))
    made = [Tensor(f"x{number}", "own_tokens", h, "norms")]
    saves = []
    if kernels.dropout:
        made.append(Tensor(f"mask{number}", "own_tokens", h, "dropout masks", "mask"))
        saves.append(f"mask{number}")
    if layer.streams > 1:
        made.append(Tensor(f"half{number}", "own_tokens", h, "residual streams"))
        saves.append(f"half{number}")
    yield Operator(
        f"add{number}",
        "",
        ("x1" if number > 1 and layer.has_mixer else "x", given),
        tuple(made),
        tuple(saves),
        passes_gradient=True,
    )


def gemm(
    linear: Linear,
    module: str,
    source: str,
    writes: tuple[Tensor, ...],
    *,
    name: str = "",
    quantized: bool = True,
) -> Operator:
    """Return a GEMM, whose weight gradient reads its input."""
    return Operator(
        name or linear.name, module, (source,), writes, saved_for_w=(source,), weight=linear, quantized=quantized
    )


def _core(
    heads: int, width: int, read: tuple[str, str, str], cut: Cut, kernels: KernelChoice, sequence_length: int
) -> Iterator[Operator]:
    """Scores, softmax and their use, with v columns per head: the log-sum-exp is saved, or the softmax."""
    out = Tensor("o", "tokens", heads * width, "attention")
    if kernels.flash_attention:
        statistics = Tensor("lse", "tokens", heads, "scores", "f32")
        writes, saves = [out, statistics], ["o", "lse"]
        if cut.cp > 1 and kernels.cp_communication == "a2a":
            writes.append(Tensor("o of these heads", "tokens", heads * width, "scores"))
            saves.append(writes[-1].name)
        yield Operator("core", "core_attn", read, tuple(writes), saved_for_i=(*read, *saves))
        return
    scores = heads * sequence_length
    softmax = [Tensor("softmax", "tokens", scores, "scores")]
    if kernels.dropout:
        softmax += [
            Tensor("dropped", "tokens", scores, "scores"),
            Tensor("mask of scores", "tokens", scores, "scores", "mask"),
        ]
    names = tuple(one.name for one in softmax)
    yield Operator("softmax", "core_attn", read[:2], tuple(softmax), saved_for_i=(*read[:2], *names))
    yield Operator("core", "core_attn", (names[:2][-1], read[2]), (out,), saved_for_i=(read[2],))


def _out(linear: Linear, source: str, h: int) -> Operator:
    # In 8 bits the projection saves a copy; its input is counted too, even if nothing else saves it.
    made = Tensor("mixed", "own_tokens", h, "norms")
    return replace(gemm(linear, "attn_proj", source, (made,)), saved_for_i=(source,))


def attention(
    a: Attention, linears: list[Linear], cut: Cut, kernels: KernelChoice, sequence_length: int
) -> Iterator[Operator]:
    """Multi-head or grouped-query attention: queries, keys and values (n + 2g)d/t, output nd/t."""
    inwards, out = linears[0], linears[-1]
    names = ("q", "gate", "k", "v") if a.gated else ("q", "k", "v")
    made = tuple(
        Tensor(name, "tokens", size, "attention") for name, size in zip(names, inwards.columns, strict=True)
    )
    yield gemm(inwards, "qkv_linear", "n1", made, name="qkv")
    rotated = tuple(Tensor(f"rotated {one.name}", "tokens", one.columns, "attention") for one in made)
    rotated = (rotated[0], rotated[-2])
    normed = ("q", "k") if a.qk_norm else ()
    yield Operator("rotate", "qkv_linear", ("q", "k"), rotated, saved_for_i=normed)
    heads = a.num_heads // cut.tp
    yield from _core(heads, a.head_size, (rotated[0].name, rotated[1].name, "v"), cut, kernels, sequence_length)
    source = "o"
    if a.gated:
        source = "gated o"
        gated = Tensor(source, "tokens", heads * a.head_size, "attention")
        yield Operator("gate", "attn", ("o", "gate"), (gated,), saved_for_i=("o", "gate"))
    yield _out(out, source, out.outputs)


def latent_attention(
    a: LatentAttention, linears: list[Linear], cut: Cut, kernels: KernelChoice, sequence_length: int
) -> Iterator[Operator]:
    """MLA: both latents before and after their norms, queries, keys with rotation, keys and values as projected."""
    *down, q_up, kv_down, kv_up, out = linears
    heads, component = a.num_heads // cut.tp, "attention"

    def own(name: str, columns: int, storage: str | None = None) -> Tensor:
        return Tensor(name, "own_tokens", columns, component, storage=storage)

    def wide(name: str, columns: float, storage: str | None = None) -> Tensor:
        return Tensor(name, "tokens", columns, component, storage=storage)

    source, latent_norms = "n1", "qkv_linear/mla_up_proj" if kernels.norm_in_gemm else "qkv_linear"
    if a.q_lora_rank is not None:
        yield gemm(down[0], "qkv_linear", "n1", (own("ql", a.q_lora_rank),))
        yield Operator("norm of queries", latent_norms, ("ql",), (own("qn", a.q_lora_rank),), saved_for_i=("ql",))
        source = "qn"
    # The copies of latents in 8 bits are not counted: the projections up save them in the type of activations.
    queries = wide("q", heads * a.qk_head_size)
    yield gemm(kv_down, "qkv_linear", "n1", (own("kvl", a.kv_lora_rank + a.qk_rope_head_size),))
    yield Operator("norm of latent", latent_norms, ("kvl",), (own("kn", a.kv_lora_rank),), saved_for_i=("kvl",))
    yield gemm(q_up, "qkv_linear/mla_up_proj", source, (queries,), quantized=source == "n1")
    kv = wide("kv", heads * (a.qk_nope_head_size + a.v_head_size))
    yield gemm(kv_up, "qkv_linear/mla_up_proj", "kn", (kv,), quantized=False)
    rotated = wide("rq", queries.columns, "q"), wide("rk", queries.columns), wide("v", heads * a.v_head_size, "kv")
    yield Operator("rotate", "qkv_linear/mla_up_proj", ("q", "kv", "kvl"), rotated)
    yield from _core(heads, a.v_head_size, ("rq", "rk", "v"), cut, kernels, sequence_length)
    yield _out(out, "o", out.outputs)


def opaque_mixer(linears: list[Linear], kept: dict[str, tuple[str, float]]) -> Iterator[Operator]:
    """A mixer by the columns that it keeps: by name, the module that makes them and their number."""
    for name, (module, columns) in kept.items():
        made = Tensor(name, "tokens", columns, "scores" if name == "index" else "attention")
        made = replace(made, dtype="f32") if name == "index" else made
        yield Operator(f"makes {name}", module, (), (made,), saved_for_i=(name,))
    for one in linears:
        if not one.is_product:
            continue
        before, after = (_rows_of(one, side) for side in ("inputs", "outputs"))
        if one.reads != "attention input":
            view = Tensor(one.reads, before, one.inputs, "attention", storage="kept")
            yield Operator(f"view of {one.name}", "attn", ("kept",), (view,), passes_gradient=True)
        is_last = one is linears[-1]
        made = Tensor("mixed" if is_last else f"{one.name} out", after, one.outputs, "norms")
        yield gemm(
            one,
            "attn",
            "n1" if one.reads == "attention input" else one.reads,
            (made,),
            quantized=one.reads == "attention input",
        )


def _rows_of(linear: Linear, side: str) -> Rows:
    """The rows on one side of a GEMM: all tokens on the side that ranks divide, the rank's own on the other."""
    return "tokens" if linear.split == side else "own_tokens"


_ACTIVATIONS = {"fed": "mlp_act", "routed": "moe_act"}


def mlp(
    ffn: FeedForward,
    linears: list[Linear],
    module: str,
    component: str,
    kernels: KernelChoice,
    *,
    made: str,
    source: str = "n2",
) -> Iterator[Operator]:
    """Up, activation and down; SiLU of the gate is saved too unless the activation is fused."""
    up, down = linears
    rows: Rows = "capacity" if made == "routed" else "tokens"
    act_module = f"{module}/{_ACTIVATIONS.get(made, '')}"
    wide = Tensor(f"{made} up", rows, up.outputs, component)
    up_module = f"{module}/expert_fc1" if made == "routed" else module
    yield gemm(up, up_module, source, (wide,), name=f"{made} up")
    active = [Tensor(f"{made} activated", rows, down.inputs, component)]
    saves = [wide.name]
    if not kernels.fused_activation and ffn.gated:
        active.append(Tensor(f"{made} silu", rows, down.inputs, component))
        saves.append(active[-1].name)
    if ffn.weighted_apart and made == "routed":
        active.append(Tensor(f"{made} before its weight", rows, down.inputs, component))
        saves.append(active[-1].name)
    yield Operator(f"{made} act", act_module, (wide.name,), tuple(active), saved_for_i=tuple(saves))
    after = rows if rows == "capacity" else "own_tokens"
    yield gemm(
        down,
        module,
        active[0].name,
        (Tensor(made, after, down.outputs, "norms" if made == "fed" else component),),
        name=f"{made} down",
    )


def experts(ffn: MixtureOfExperts, h: int, cut: Cut, kernels: KernelChoice) -> Iterator[Operator]:
    """Router, dispatch, routed experts, combine, and the expert of all tokens, if experts are loaded evenly.

    Router: logits and probabilities in float32. `capacity` rows: T·k·etp/q pairs of token and expert, in all the
    room there is for them.
    """
    linears = {(one.kind, one.name): one for one in ffn.linears(h, cut)}
    width, component = ffn.latent_size or h, "experts"
    numbers = [
        Tensor(name, "own_tokens", ffn.num_experts, component, "f32") for name in ("logits", "probabilities")
    ]
    yield gemm(linears["router", "router"], "moe/router", "n2", (numbers[0],), quantized=False)
    yield Operator("top k", "moe/router", ("logits",), (numbers[1],), saved_for_i=("logits", "probabilities"))
    sent = "n2"
    if ffn.latent_size:
        narrow = Tensor("latent", "own_tokens", width, component)
        yield gemm(linears["latent", "latent down"], "moe/latent", "n2", (narrow,))
        sent = "latent"
    yield Operator("dispatch", "moe/dispatch", (sent,), (Tensor("sent", "capacity", width, component),))
    routed = [linears["routed", "up"], linears["routed", "down"]]
    where = "moe/experts", component
    yield from mlp(ffn.expert, routed, *where, kernels, made="routed", source="sent")
    joined = Tensor("combined", "own_tokens", width, component)
    saves = ("routed",) if kernels.weighted_output else ()
    yield Operator("combine", "moe/combine", ("routed",), (joined,), saved_for_i=saves)
    last = "combined"
    if ffn.latent_size:
        last = "combined up"
        out = Tensor(last, "own_tokens", h, component)
        yield gemm(linears["latent", "latent up"], "moe/latent", "combined", (out,), quantized=False)
    if ffn.shared:
        pair = [linears["shared", "up"], linears["shared", "down"]]
        where = "moe/shared_experts", component
        yield from mlp(ffn.shared, pair, *where, kernels, made="shared")
    reads = (last, "shared") if ffn.shared else (last,)
    fed = Tensor("fed", "own_tokens", h, "norms")
    yield Operator("join", "moe", reads, (fed,), passes_gradient=True)
