"""The modules of a layer whose saved tensors wait for the backward in host memory."""

from ppsim.model.modules import joined_modules

MODULES = {
    "attn_norm": "the input of the norm before attention",
    "qkv_linear": "what the projections before the core of attention save",
    "core_attn": "what the core of attention saves",
    "attn_proj": "the input of attention's output projection",
    "mlp_norm": "the input of the norm before the feed-forward part",
    "expert_fc1": "the input of the routed experts",
    "moe_act": "the input of the routed experts' activation",
}
"""Megatron-LM's `--offload-modules`."""

MEANING = (
    "Modules joined by + whose saved tensors wait for the backward in host memory, Megatron-LM's attn_norm, "
    "qkv_linear, core_attn, attn_proj, mlp_norm, expert_fc1, moe_act. A tensor that another module saves too, or "
    "of less than 2^20 elements, stays."
)


def offload_modules_of(text: str) -> str:
    """Return modules in the order of `MODULES`, or "" for none; raises `ConfigError` for what is no module.

    >>> offload_modules_of("core_attn+attn_norm"), offload_modules_of("none")
    ('attn_norm+core_attn', '')
    """
    if text in ("", "none"):
        return ""
    return joined_modules("offload_modules", text, MODULES, words="none")
