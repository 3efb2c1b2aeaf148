"""What of a layer its backward computes again, by one word: "none", "full", or modules joined by "+"."""

from typing import TypeAlias

from ppsim.base.errors import ConfigError
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

MEANING = (
    "What of a layer its backward computes again: none, full (all of it), or modules joined by +, Megatron-LM's "
    "core_attn (also: selective), layernorm, mhc, mla_up_proj, mlp, moe, moe_act, shared_experts, and mlp_act."
)


def recompute_of(text: str) -> Recompute:
    """Return the word for what is recomputed, its modules in the order of `MODULES`.

    "selective" is Megatron-LM's default, the core of attention alone. Raises `ConfigError` for what is no module.

    >>> recompute_of("selective"), recompute_of("moe_act+layernorm")
    ('core_attn', 'layernorm+moe_act')
    """
    if text in ("none", "full"):
        return text
    named = "core_attn" if text == "selective" else text
    return joined_modules("recompute", named, MODULES, words="none, selective, full")


def require_spelling(recompute: Recompute) -> None:
    """Raise `ConfigError` for a word that is not as `recompute_of` spells it."""
    if (word := recompute_of(recompute)) != recompute:
        raise ConfigError(f"recompute '{recompute}' is spelled '{word}'")


def recomputes(recompute: Recompute, module: str) -> bool:
    """Return whether a word names a module; "full" keeps nothing of a layer, and names none.

    >>> recomputes("core_attn+layernorm", "layernorm"), recomputes("full", "mlp")
    (True, False)
    """
    return module in recompute.split("+")
