"""Operators of a forward on one rank, of layers and of the ends of a model: one generator per block.

Statistics of norms (4 bytes per token and norm) and the integers of token routing are not counted. Without flash
attention and with dropout, the saved tensors are as in Korthikanti et al. 2022 (arXiv 2205.05198), §4.1 and §4.2;
otherwise as in Megatron-LM with TransformerEngine.
"""

from collections.abc import Iterator
from dataclasses import replace

from ppsim.model.adapters import trained_operators
from ppsim.model.architecture import End, Layer, Model, mtp_linears
from ppsim.model.attention_and_mlp import FeedForward, MixtureOfExperts
from ppsim.model.execution import Execution
from ppsim.model.hyper_connections import mtp_passes
from ppsim.model.mixer import gemm
from ppsim.model.operators import Kind, Operator, Rows, Tensor
from ppsim.model.parameters import padded_vocabulary
from ppsim.model.weight_matrices import WeightMatrix
from ppsim.parallel.sizes import ParallelSizes


def layer_input(layer: Layer) -> Tensor:
    return Tensor("x", "own_tokens", layer.streams * layer.hidden_size, "norms")


def operators_of(
    layer: Layer, sizes: ParallelSizes, execution: Execution, sequence_length: int
) -> tuple[Operator, ...]:
    """Cached, because a search asks for them repeatedly."""
    key = sizes.tp, sizes.cp, sizes.ep, sizes.expert_tp, execution.saved_tensors, sequence_length
    if key not in layer.lists:
        operators = list(_mixer_half(layer, sizes, execution, sequence_length))
        operators += [replace(operator, sublayer=2) for operator in _channel_half(layer, sizes, execution)]
        if layer.conditioned:
            operators = list(layer.conditioned.conditioned(operators, layer.hidden_size, sizes.tp))
        if layer.training:
            mixer = layer.attention.linears(layer.hidden_size, sizes.tp)
            operators = list(trained_operators(operators, layer_input(layer), mixer, layer.training, sizes))
        layer.lists[key] = tuple(operators)
    made: tuple[Operator, ...] = layer.lists[key]
    return made


def has_norm_in_gemm(layer: Layer, half: int) -> bool:
    """Return whether TransformerEngine fuses the norm before a mixer into its first GEMM (`LayerNormLinear`).

    `half`: 1 for the token mixer, 2 for the channel mixer. Source: Megatron-LM, core/models/gpt/gpt_layer_specs.py.
    A fused norm is recomputed with its GEMM, and not by the module layernorm of `--recompute`.
    """
    is_apart = layer.attention.has_norm_apart if half == 1 else layer.is_moe
    return not is_apart and layer.streams == 1 and layer.summed_residuals is None


def _mixer_half(
    layer: Layer, sizes: ParallelSizes, execution: Execution, sequence_length: int
) -> Iterator[Operator]:
    if not layer.has_mixer:
        return
    h = layer.hidden_size
    yield from _before_half(layer, 1, "x", "attention", execution)
    rotates = layer.norm != "layernorm"  # models with LayerNorms add positions to the embedding
    for operator in layer.attention.operators(h, sizes, execution, sequence_length):
        yield operator if rotates or "rotation" not in operator.kind else replace(operator, kind="")
    yield from _after_half(layer, 1, "mixed", h, execution)


def _channel_half(layer: Layer, sizes: ParallelSizes, execution: Execution) -> Iterator[Operator]:
    if not layer.has_feed_forward:
        return
    h, ffn, component = layer.hidden_size, layer.ffn, "experts" if layer.is_moe else "feed-forward"
    source = "x1" if layer.has_mixer and layer.num_norms > 1 else "x"
    yield from _before_half(layer, 2, source, component, execution)
    if isinstance(ffn, FeedForward):
        yield from mlp(ffn, ffn.linears(h, sizes.tp), "mlp", component, execution, made="fed")
    else:
        yield from experts(ffn, h, sizes, execution)
    yield from _after_half(layer, 2, "fed", h, execution)


def _before_half(
    layer: Layer, number: int, source: str, component: str, execution: Execution
) -> Iterator[Operator]:
    h, module = layer.hidden_size, f"layernorm/{'attn' if number == 1 else 'mlp'}_norm"
    if execution.fuses_norms and has_norm_in_gemm(layer, number):
        module = "qkv_linear" if number == 1 else "mlp"
    if layer.streams > 1:
        # The operator reads nothing, because mixing is recomputed from the stage's first streams, which
        # `stage_activations` adds.
        wide = Tensor("streams", "own_tokens", layer.streams * h, "residual streams")
        mixed = Tensor(f"h{number}", "own_tokens", h, "norms")
        linear = next(one for one in layer.linears(ParallelSizes()) if one.kind == "streams")
        written = (wide if number == 1 or not layer.has_mixer else replace(wide, name="streams 2"), mixed)
        gives = Tensor(f"numbers {number}", "own_tokens", linear.outputs, "residual streams")
        yield Operator(f"mix{number}", "mhc", (), written, saved_for_i=(written[0].name,), kind="mix")
        # The saved tensor has one name in both halves, as if they read the same streams.
        yield Operator(f"numbers{number}", "", (), (gives,), saved_for_w=("streams",), weight=linear)
        source, module = mixed.name, "layernorm/mhc"
    elif layer.summed_residuals and (rows := layer.summed_residuals[number - 1]) > 1:
        # Earlier states are saved by the layers that wrote them, the newest state here.
        mixed = Tensor(f"h{number}", "own_tokens", h, "norms")
        passed = (rows + 1) * h
        yield Operator(f"sum{number}", "", (source,), (mixed,), (source,), kind="weighted sum", columns=passed)
        source = mixed.name
    normed = Tensor(f"n{number}", "own_tokens", h, component)
    yield Operator(f"norm{number}", module, (source,), (normed,), saved_for_i=(source,), kind="norm")


def _after_half(layer: Layer, number: int, given: str, h: int, execution: Execution) -> Iterator[Operator]:
    if layer.num_norms > 2:
        post = Tensor(f"post{number}", "own_tokens", h, "norms")
        yield Operator(f"post norm{number}", "", (given,), (post,), saved_for_i=(given,), kind="norm")
        given = post.name
    if layer.conditioned and number <= layer.conditioned.num_modulated:
        modulated = tuple(Tensor(f"{name}{number}", "own_tokens", h, "modulation") for name in ("scaled", "gated"))
        saves = tuple(one.name for one in modulated)
        yield Operator(f"modulate{number}", "", (given,), modulated, saved_for_i=saves, kind="modulation")
        given = f"gated{number}"
    outputs = [Tensor(f"x{number}", "own_tokens", h, "norms")]
    kept = []
    if execution.dropout:
        outputs.append(Tensor(f"mask{number}", "own_tokens", h, "dropout masks", "mask"))
        kept.append(f"mask{number}")
    if layer.streams > 1:
        outputs.append(Tensor(f"half{number}", "own_tokens", h, "residual streams"))
        kept.append(f"half{number}")
    yield Operator(
        f"add{number}",
        "",
        ("x1" if number > 1 and layer.has_mixer else "x", given),
        tuple(outputs),
        tuple(kept),
        passes_gradient=True,
        kind="add" if layer.streams == 1 else "",
    )


_ACTIVATIONS = {"fed": "mlp_act", "routed": "moe_act"}


def mlp(
    ffn: FeedForward,
    linears: list[WeightMatrix],
    module: str,
    component: str,
    execution: Execution,
    *,
    made: str,
    source: str = "n2",
) -> Iterator[Operator]:
    up, down = linears
    rows: Rows = "capacity" if made == "routed" else "tokens"
    act_module = f"{module}/{_ACTIVATIONS.get(made, '')}"
    wide = Tensor(f"{made} up", rows, up.outputs, component)
    up_module = f"{module}/expert_fc1" if made == "routed" else module
    yield gemm(up, up_module, source, (wide,), name=f"{made} up")
    active = [Tensor(f"{made} activated", rows, down.inputs, component)]
    saves = [wide.name]
    if ffn.gated and made in execution.fp8_activation_inputs:
        active.append(replace(wide, name=f"{wide.name} in 8 bits", dtype="f8"))
        saves = [active[-1].name]
    if not execution.fused_activation and ffn.gated:
        active.append(Tensor(f"{made} silu", rows, down.inputs, component))
        saves.append(active[-1].name)
    if ffn.weighted_apart and made == "routed":
        active.append(Tensor(f"{made} before its weight", rows, down.inputs, component))
        saves.append(active[-1].name)
    kind: Kind = "clamped activation" if ffn.clamped else "gated activation" if ffn.gated else "activation"
    yield Operator(f"{made} act", act_module, (wide.name,), tuple(active), saved_for_i=tuple(saves), kind=kind)
    after = rows if rows == "capacity" else "own_tokens"
    out = Tensor(made, after, down.outputs, "norms" if made == "fed" else component)
    yield gemm(down, module, active[0].name, (out,), name=f"{made} down")


def experts(ffn: MixtureOfExperts, h: int, sizes: ParallelSizes, execution: Execution) -> Iterator[Operator]:
    """Yield the operators of evenly loaded experts.

    The row count `capacity` is T·k·etp/q token-expert pairs, times `Execution.expert_buffer_factor`, with the
    letters of `ppsim.model.activations`.
    """
    linears = {(linear.kind, linear.name): linear for linear in ffn.linears(h, sizes)}
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
    taken = Tensor("sent", "capacity", width, component)
    yield Operator("dispatch", "moe/dispatch", (sent,), (taken,), kind="dispatch")
    routed = [linears["routed", "up"], linears["routed", "down"]]
    where = "moe/experts/fused_group_mlp", component
    yield from mlp(ffn.expert, routed, *where, execution, made="routed", source="sent")
    joined = Tensor("combined", "own_tokens", width, component)
    saves = ("routed",) if execution.weighted_output else ()
    yield Operator("combine", "moe/combine", ("routed",), (joined,), saved_for_i=saves, kind="combine")
    last = "combined"
    if ffn.latent_size:
        if ffn.latent_norm:
            last = "normed latent"
            normed = replace(joined, name=last)
            yield Operator("norm of combined", "moe/latent", ("combined",), (normed,), ("combined",), kind="norm")
        out = Tensor("combined up", "own_tokens", h, component)
        yield gemm(linears["latent", "latent up"], "moe/latent", last, (out,), quantized=False)
        last = out.name
    if gate := linears.get(("gate", "shared gate")):
        yield Operator("shared gate", "moe/shared_experts", ("n2",), (), weight=gate)
    if ffn.shared:
        pair = [linears["shared", "up"], linears["shared", "down"]]
        where = "moe/shared_experts", component
        yield from mlp(ffn.shared, pair, *where, execution, made="shared")
    reads: tuple[str, ...] = (last, "shared") if ffn.shared else (last,)
    fed = Tensor("fed", "own_tokens", h, "norms")
    if ffn.joined_norms:
        for name in reads:
            normed = Tensor(f"normed {name}", "own_tokens", h, component)
            yield Operator(f"norm of {name}", "moe", (name,), (normed,), saved_for_i=(name,), kind="norm")
        reads = tuple(f"normed {name}" for name in reads)
    yield Operator("join", "moe", reads, (fed,), passes_gradient=True, kind="add" if ffn.shared else "")


def end_operators(
    model: Model, end: End, sizes: ParallelSizes, execution: Execution, vocab_multiple: int = 1
) -> tuple[Tensor, list[Operator]]:
    """Return the input and the operators."""
    source = Tensor("x", "own_tokens", model.residual_size, {"mtp": "multi-token prediction"}.get(end, end))
    if end == "embedding":
        return source, list(_embedding(model, execution))
    if end == "mtp":
        return source, list(_mtp(model, sizes, source.component))
    if end == "head":
        columns = padded_vocabulary(model.vocab_size, tp=sizes.tp, multiple=vocab_multiple) // sizes.tp
        return source, list(_head(model, columns))
    weights = model.outside_weights(end)
    return source, [Operator(matrix.name, "", (matrix.reads,), (), weight=matrix) for matrix in weights]


def _embedding(model: Model, execution: Execution) -> Iterator[Operator]:
    h, n = model.hidden_size, model.streams
    out, ids = Tensor("embedded", "tokens", h, "embedding"), Tensor("ids", "tokens", 1, "embedding", "i64")
    for linear in model.patches.linears(h) if model.patches else ():
        yield Operator(linear.name, "", (), (out,), weight=linear, gives_gradient=False)
    yield Operator("look up", "", (), (out, ids), saved_for_i=("ids",), kind="look up")
    if execution.dropout:
        mask = Tensor("mask", "own_tokens", h, "embedding", "mask")
        yield Operator("dropout", "", (), (out, mask), saved_for_i=("mask",), kind="dropout")
    if n > 1:
        yield Operator("copies", "", (), (out,), kind="copies", columns=(n + 1) * h)


def _mtp(model: Model, sizes: ParallelSizes, component: str) -> Iterator[Operator]:
    """Each tp rank computes a part of the columns of the projection from 2h to h.

    Source: Megatron-LM, `core/transformer/multi_token_prediction.py`, `eh_proj`. With residual streams, the input
    of one of the norms is the head's input, which is counted there.
    """
    h, n, (num_norms, joined) = model.hidden_size, model.streams, mtp_passes(model.streams)
    linears = mtp_linears(model.mtp[0], sizes.tp)
    read = tuple(Tensor(linear.reads, "own_tokens", linear.inputs * linear.rows, component) for linear in linears)
    yield Operator("embedding", "", (), (Tensor("token", "own_tokens", h, component),))
    saves = ("token", "x") if n == 1 else ("token",)
    yield Operator("norms", "", ("token", "x"), read, saves, kind="norms", columns=num_norms * h)
    yield Operator("join", "", (), read, kind="copies", columns=joined * h)
    for linear in linears:
        yield gemm(linear, "", linear.reads, (Tensor(linear.name, "tokens", linear.outputs, component),))


def _head(model: Model, columns: int) -> Iterator[Operator]:
    h, n, source = model.hidden_size, model.streams, "x"
    if n > 1:
        source = "joined"
        joined = Tensor(source, "own_tokens", h, "head")
        yield Operator("join", "", ("x",), (joined,), ("x",), kind="copies", columns=(n + 1) * h)
    normed, gives = Tensor("normed", "own_tokens", h, "head"), model.head_gives_gradient
    saves = (source,) if model.final_norm and gives else ()
    yield Operator("norm", "", (source,), (normed,), saves, kind="final norm")
    logits, saves = Tensor("logits", "tokens", columns, "logits"), ("normed",) if model.trains("head") else ()
    linear = WeightMatrix("head", "normed", h, (columns,), "outside", split="outputs")
    yield Operator(
        "head", "", ("normed",), (logits,), saved_for_w=saves, weight=linear, gives_gradient=gives,
        trainable=model.trains("head"),
    )  # fmt: skip
    yield Operator("loss", "", ("logits",), (replace(logits, name="loss"),), kind="loss")
