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
    "layernorm": "the norms before attention and before the feed-forward part",
    "mhc": "the mixing of residual streams, and the norms behind it (all layers of a stage at once)",
    "mla_up_proj": "latent attention's projections up from its latents, and the rotation",
    "mlp": "a dense feed-forward part",
    "mlp_act": "the activation function of a dense feed-forward part (Megatron-LM has no word for it)",
    "moe": "a mixture of experts with its router and its exchange of tokens",
    "moe_act": "the activation functions of routed experts",
    "shared_experts": "the expert of all tokens",
}
"""What selective recomputation can be of: Megatron-LM's `--recompute-modules`, and one more."""

BY_OPERATORS = "selective-op"
"""TorchTitan's `selective_ac_option = "op"`: what `by_operators` says is kept, all else computed again."""

MEANING = (
    "What of a layer its backward computes again: none, full (all of it), full/N (all of every Nth layer, "
    "TorchTitan's selective checkpointing by layer), selective-op (its selective checkpointing by op: every second "
    "product, and what is cheap), or modules joined by +, Megatron-LM's core_attn (also: selective), layernorm, "
    "mhc, mla_up_proj, mlp, moe, moe_act, shared_experts, and mlp_act."
)


def recompute_of(text: str) -> Recompute:
    """Return the word for what is recomputed, its modules in the order of `MODULES`.

    "selective" is Megatron-LM's default, the core of attention alone. Raises `ConfigError` for what is no module.

    >>> recompute_of("selective"), recompute_of("moe_act+layernorm"), recompute_of("full/1")
    ('core_attn', 'layernorm+moe_act', 'full')
    """
    if text in ("none", "full", BY_OPERATORS):
        return text
    if text.startswith("full/"):
        if not text[5:].isdecimal() or not int(text[5:]):
            raise ConfigError(f"recompute {text} is full/N, of every Nth layer, N from 1 on: say full/2")
        return "full" if int(text[5:]) == 1 else f"full/{int(text[5:])}"
    named = "core_attn" if text == "selective" else text
    return joined_modules("recompute", named, MODULES, words="none, selective, selective-op, full, full/N")


def require_spelling(recompute: Recompute) -> None:
    """Raise `ConfigError` for a word that is not as `recompute_of` spells it."""
    if (word := recompute_of(recompute)) != recompute:
        raise ConfigError(f"recompute '{recompute}' is spelled '{word}'")


def whole_layers(recompute: Recompute) -> int:
    """Return how many layers there are to each that is computed again whole; 0 where none is.

    >>> whole_layers("full"), whole_layers("full/2"), whole_layers("mlp")
    (1, 2, 0)
    """
    name, _, every = recompute.partition("/")
    return int(every or 1) if name == "full" else 0


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
