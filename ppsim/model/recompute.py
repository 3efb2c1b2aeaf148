"""What of a layer its backward computes again, by one word: none, full, selective-op, or modules joined by +."""

from collections.abc import Iterable
from typing import TypeAlias

from ppsim.base.errors import ConfigError
from ppsim.layout.cut import Cut
from ppsim.model.linears import Linear
from ppsim.model.modules import joined_modules

Recompute: TypeAlias = str

MODULES = {
    "core_attn": "the core of attention: scores, softmax and their use",
    "layernorm": "the norms before attention and before the feed-forward part that are not inside a GEMM",
    "mhc": "the mixing of residual streams, and the norms behind it (all layers of a stage at once)",
    "mla_up_proj": "latent attention's projections up from its latents, with their norms, and the rotation",
    "mlp": "a dense feed-forward part, with its norm if that is inside the first GEMM",
    "mlp_act": "the activation function of a dense feed-forward part (Megatron-LM has no word for it)",
    "moe": "a mixture of experts with its router and its exchange of tokens",
    "moe_act": "the activation functions of routed experts",
    "shared_experts": "the expert of all tokens",
}
"""What selective recomputation can be of: Megatron-LM's `--recompute-modules`, and one more."""

BY_OPERATORS = "selective-op"
"""TorchTitan's `selective_ac_option = "op"`: what `by_operators` says is kept, all else computed again."""

MEANING = (
    "Recomputation in the backward: none, full (every layer), block/N (the first N layers of each stage), "
    "uniform/N (every layer, in checkpoints of N layers), full/N (every Nth layer, TorchTitan's selective "
    "checkpointing by layer), selective-op (TorchTitan's selective checkpointing by operator: every second GEMM "
    "and the cheap operators), or modules joined by +, Megatron-LM's core_attn (also: selective), layernorm, mhc, "
    "mla_up_proj, mlp, moe, moe_act, shared_experts, and mlp_act."
)

BY_STAGE = ("block", "uniform")
"""Megatron-LM's recompute methods, whose checkpoints depend on a layer's place in its stage: block/N, uniform/N."""


def recompute_of(text: str) -> Recompute:
    """Return the word for what is recomputed, its modules in the order of `MODULES`.

    "selective" is Megatron-LM's default, the core of attention alone. Raises `ConfigError` for what is no module.

    >>> recompute_of("selective"), recompute_of("moe_act+layernorm"), recompute_of("full/1")
    ('core_attn', 'layernorm+moe_act', 'full')
    >>> recompute_of("block/0"), recompute_of("uniform/1"), recompute_of("block/10")
    ('none', 'full', 'block/10')
    """
    if text in ("none", "full", BY_OPERATORS):
        return text
    method, _, number = text.partition("/")
    if method in ("full", *BY_STAGE):
        least = 0 if method == "block" else 1
        if not number.isdecimal() or int(number) < least:
            raise ConfigError(f"recompute must be {method}/N with N from {least} on: got '{text}' (say {method}/2)")
        if int(number) == least:
            return "none" if method == "block" else "full"
        return f"{method}/{int(number)}"
    named = "core_attn" if text == "selective" else text
    words = "none, selective, selective-op, full, full/N, block/N, uniform/N"
    return joined_modules("recompute", named, MODULES, words=words)


def require_spelling(recompute: Recompute) -> None:
    """Raise `ConfigError` for a word that is not as `recompute_of` spells it."""
    if (word := recompute_of(recompute)) != recompute:
        raise ConfigError(f"recompute '{recompute}' is spelled '{word}'")


def whole_layers(recompute: Recompute) -> int:
    """Return N if one of N layers is recomputed, 0 if none is.

    The layers after those of block/N keep everything, so block/N counts as none: see `checkpoints`.

    >>> whole_layers("full"), whole_layers("full/2"), whole_layers("uniform/4"), whole_layers("mlp")
    (1, 2, 1, 0)
    """
    name, _, every = recompute.partition("/")
    return int(every or 1) if name == "full" else int(name == "uniform")


def is_by_stage(recompute: Recompute) -> bool:
    """Return whether a layer's recomputation depends on its place in its stage."""
    return recompute.partition("/")[0] in BY_STAGE


def require_of_layer(text: str) -> Recompute:
    """Return the recomputation that a text names; raises `ConfigError` for block/N and uniform/N."""
    if is_by_stage(recompute := recompute_of(text)):
        raise ConfigError(
            f"recompute {text} is for the stages of a --model: a layer alone has none, full or modules"
        )
    return recompute


def of_layer(recompute: Recompute) -> Recompute:
    """Return the recomputation of a layer alone: that of a layer behind the checkpoints of block/N.

    >>> of_layer("block/4"), of_layer("uniform/4"), of_layer("full/2")
    ('none', 'full', 'full/2')
    """
    name = recompute.partition("/")[0]
    return {"block": "none", "uniform": "full"}.get(name, recompute)


def checkpoints(recompute: Recompute, num_layers: int) -> list[int]:
    """Return the number of layers in each checkpoint of a stage, in order; none unless block/N or uniform/N.

    A checkpoint keeps its input and computes its layers again. Layers after the last checkpoint keep everything
    (Megatron-LM, core/transformer/transformer_block.py: `_checkpointed_forward`).

    >>> checkpoints("block/2", 5), checkpoints("uniform/2", 5)
    ([1, 1], [2, 2, 1])
    """
    if not is_by_stage(recompute):
        return []
    method, _, number = recompute.partition("/")
    most = int(number)
    if method == "block":
        return [1] * min(most, num_layers)
    return [min(most, num_layers - first) for first in range(0, num_layers, most)]


def recomputes(recompute: Recompute, module: str) -> bool:
    """Return whether a word names a module; "full" keeps nothing of a layer, and names none.

    >>> recomputes("core_attn+layernorm", "layernorm"), recomputes("full", "mlp")
    (True, False)
    """
    return module in recompute.split("+")


def by_operators(linears: Iterable[Linear], cut: Cut) -> tuple[list[Linear], list[Linear]]:
    """Return the products of a layer whose outputs `selective-op` keeps for its backward, and those it does again.

    In the order of a forward every second is computed again; queries, keys and values count each, and so do gate
    and up. One with a bias is kept, and not counted (`addmm`). What a reduce-scatter made of attention's output is
    kept in its place, and what the last product gives nothing in the backward needs: eagerly it is held too, where
    its turn is to be kept (TorchTitan, activation_checkpoint.py: `SelectiveAC`; at 9dec370 parallelize_llama.py:
    `_save_list`).

    >>> one = [Linear("queries, keys, values", "x", 8, (8, 2, 2)), Linear("attention output", "heads", 8, (8,))]
    >>> [[product.outputs for product in half] for half in by_operators(one, Cut())]
    [[8, 2], [2, 8]]
    """
    kept: list[Linear] = []
    again: list[Linear] = []
    counted = 0
    for one in (part for linear in linears if linear.is_product for part in linear.apart()):
        counted += not one.biased
        if one.name != "down" and not (one.name == "attention output" and cut.tp > 1):
            (kept if one.biased or counted % 2 else again).append(one)
    return kept, again
