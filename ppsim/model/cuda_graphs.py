"""Parts of a step that run as CUDA graphs: "none", "full", "layer", or modules joined by "+".

"full" is Megatron-LM's full_iteration. The modules are values of `--cuda-graph-modules` (formerly
`--cuda-graph-scope`); the host launches all other kernels one by one.
"""

from typing import TypeAlias

from ppsim.base.errors import ConfigError
from ppsim.base.name_lookup import joined_modules

CudaGraphs: TypeAlias = str

MODULES = {
    "attn": "attention (or delta rule) with its norm and projections",
    "mamba": "a Mamba mixer",
    "mlp": "a dense MLP",
    "moe": "an MoE layer with its all-to-all",
    "moe_router": "the router of an MoE layer, its norm and its shared experts",
    "moe_preprocess": "the preparation of the routed tokens for the all-to-all",
}
"""Modules that a CUDA graph can capture: Megatron-LM's `--cuda-graph-modules`."""

MEANING = (
    "CUDA graphs: none, full (one graph of all forward and backward passes of a step), layer (one graph per layer "
    "and pass), or modules joined by +, with Megatron-LM's names attn (also: attention), mamba, mlp, moe, "
    "moe_router, moe_preprocess."
)

_WHOLE = ("layer", "full")


def cuda_graphs_of(text: str) -> CudaGraphs:
    """Normalise the option; raises `ConfigError` for modules that Megatron-LM does not capture together.

    >>> cuda_graphs_of("attention"), cuda_graphs_of("moe_preprocess+moe_router+attn")
    ('attn', 'attn+moe_router+moe_preprocess')
    """
    if text in ("none", *_WHOLE):
        return text
    word = joined_modules(
        "--cuda-graphs", text, MODULES, words="none, layer, full", also={"attention": "attn"}, near=_WHOLE
    )
    modules = word.split("+")
    if "moe_preprocess" in modules and "moe_router" not in modules:
        raise ConfigError("--cuda-graphs moe_preprocess goes with moe_router: moe_router+moe_preprocess")
    if {"moe", "moe_router"} <= set(modules):
        raise ConfigError("--cuda-graphs moe holds the router: leave out moe_router or moe")
    return word


def captures(graphs: CudaGraphs, module: str) -> bool:
    """Return whether graphs capture a module.

    >>> captures("layer", "mlp"), captures("attn+mlp", "mlp"), captures("none", "mlp")
    (True, True, False)
    """
    return graphs in _WHOLE or module in graphs.split("+")
