"""Parts of a step launched as CUDA graphs: "none", "full", "layer", or modules joined by "+".

They correspond to Megatron-LM's `--cuda-graph-impl` and `--cuda-graph-modules` (formerly `--cuda-graph-scope`).
"full" is its full_iteration, one graph of all forwards and backwards. "layer" is one graph per layer and pass, with
no modules named. Modules capture a part of each layer in one graph; other kernels are launched one by one.
"""

from typing import TypeAlias

from ppsim.base.errors import ConfigError
from ppsim.model.modules import joined_modules

CudaGraphs: TypeAlias = str

MODULES = {
    "attn": "attention with its norm and projections, or a delta rule in its place",
    "mamba": "a Mamba mixer",
    "mlp": "a dense feed-forward part",
    "moe": "a mixture of experts with its exchange of tokens",
    "moe_router": "the router of a mixture, its norm and its shared expert",
    "moe_preprocess": "what the router's choice is made ready by for the exchange",
}
"""Modules that a partial graph can capture: Megatron-LM's `--cuda-graph-modules`."""

MEANING = (
    "What the host launches as CUDA graphs: none, full (a step's forwards and backwards in one), layer (one a "
    "layer and pass), or modules joined by +, Megatron-LM's attn (also: attention), mamba, mlp, moe, moe_router, "
    "moe_preprocess."
)

_WHOLE = ("layer", "full")


def cuda_graphs_of(text: str) -> CudaGraphs:
    """Return the normalised option, with modules in the order of `MODULES`.

    Raises `ConfigError` for unknown modules, and for modules that Megatron-LM does not capture together.

    >>> cuda_graphs_of("attention"), cuda_graphs_of("moe_preprocess+moe_router+attn")
    ('attn', 'attn+moe_router+moe_preprocess')
    """
    if text in ("none", *_WHOLE):
        return text
    word = joined_modules(
        "cuda_graphs", text, MODULES, words="none, layer, full", also={"attention": "attn"}, near=_WHOLE
    )
    modules = word.split("+")
    if "moe_preprocess" in modules and "moe_router" not in modules:
        raise ConfigError("cuda_graphs moe_preprocess goes with moe_router: moe_router+moe_preprocess")
    if {"moe", "moe_router"} <= set(modules):
        raise ConfigError("cuda_graphs moe holds the router: leave out moe_router or moe")
    return word


def captures(graphs: CudaGraphs, module: str) -> bool:
    """Return whether graphs capture a module, in layers that have it.

    >>> captures("layer", "mlp"), captures("attn+mlp", "mlp"), captures("none", "mlp")
    (True, True, False)
    """
    return graphs in _WHOLE or module in graphs.split("+")
