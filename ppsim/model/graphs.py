"""What of a step the host launches as CUDA graphs, by one word: "none", "full", "layer", or modules joined by "+".

Of Megatron-LM's `--cuda-graph-impl` and `--cuda-graph-modules` (once `--cuda-graph-scope`): "full" is its
full_iteration, one graph of all forwards and backwards; "layer" one a layer and pass, with no modules named;
modules capture a part of each layer, in one graph, and leave the rest to be launched kernel by kernel.
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
"""What a graph of a part of a layer can hold: Megatron-LM's `--cuda-graph-modules`."""

MEANING = (
    "CUDA graphs: none, full (one graph of all forward and backward passes of a step), layer (one graph per layer "
    "and pass), or modules joined by +, with Megatron-LM's names attn (also: attention), mamba, mlp, moe, "
    "moe_router, moe_preprocess."
)

_WHOLE = ("layer", "full")


def cuda_graphs_of(text: str) -> CudaGraphs:
    """Return the word for what is captured, its modules in the order of `MODULES`.

    Raises `ConfigError` for what is no module, and for modules that Megatron-LM does not capture together.

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
    """Return whether graphs hold a module of the layers that have it.

    >>> captures("layer", "mlp"), captures("attn+mlp", "mlp"), captures("none", "mlp")
    (True, True, False)
    """
    return graphs in _WHOLE or module in graphs.split("+")
