"""Parts of a layer that CUDA graphs capture, and reasons why a capture is impossible."""

from ppsim.model.architecture import Layer
from ppsim.model.cuda_graphs import CudaGraphs, captures
from ppsim.model.recompute import BY_OPERATORS, Recompute, recomputes


def captures_mixer(graphs: CudaGraphs, layer: Layer) -> bool:
    return layer.has_mixer and captures(graphs, layer.attention.graph_module)


def captures_feed_forward(graphs: CudaGraphs, layer: Layer) -> bool:
    return layer.has_feed_forward and captures(graphs, "moe" if layer.is_moe else "mlp")


def captures_router(graphs: CudaGraphs, layer: Layer) -> bool:
    """Return whether graphs capture the router with the whole layer or as moe_router, not as a part of moe."""
    return layer.is_moe and captures(graphs, "moe_router")


def captures_all(graphs: CudaGraphs, layer: Layer) -> bool:
    halves = captures_mixer(graphs, layer) + captures_feed_forward(graphs, layer)
    return halves == layer.num_sublayers


def num_extra_hidden_states(graphs: CudaGraphs, layer: Layer) -> int:
    """Return the number of hidden states that a layer's graph holds and an eager forward would not save: 0 or 1.

    The graph of a whole layer holds the output, which the next graph copies. A graph that ends at the router holds
    the residual. After other graphs, the eager part of the layer saves these tensors anyway.
    """
    return int(captures_all(graphs, layer) or (captures_mixer(graphs, layer) and captures_router(graphs, layer)))


def has_graph(graphs: CudaGraphs, layer: Layer) -> bool:
    return any(one(graphs, layer) for one in (captures_mixer, captures_feed_forward, captures_router))


_ONLY_IN = {"mlp": "a dense feed-forward part", "moe": "experts", "moe_router": "experts", "mamba": "Mamba"}


def why_not_captured(
    graphs: CudaGraphs, layers: tuple[Layer, ...], *, recompute: Recompute, offload: float, is_dropless: bool
) -> str | None:
    """Apply the rules of Megatron-LM's `TransformerConfig`."""
    if graphs == "none":
        return None
    has = {
        "mlp": any(layer.has_feed_forward and not layer.is_moe for layer in layers),
        "moe": any(layer.is_moe for layer in layers),
        "mamba": any(layer.attention.graph_module == "mamba" for layer in layers),
    }
    has["moe_router"] = has["moe"]
    for module in graphs.split("+"):
        if not has.get(module, True):
            return (
                f"--cuda-graphs {module} is for layers with {_ONLY_IN[module]}, which the model lacks: leave it out"
            )
    if has["moe"] and is_dropless and captures(graphs, "moe"):
        return (
            f"--cuda-graphs {graphs} captures the exchange of tokens with experts, whose sizes a dropless router "
            "leaves open: attn+moe_router+moe_preprocess ends before it, --moe-expert-capacity-factor or "
            "--moe-expert-rank-capacity-factor fixes them"
        )
    if graphs != "full" and recompute in (BY_OPERATORS, "full"):
        return f"--cuda-graphs {graphs} cannot hold layers that are recomputed whole: full can, or recompute less"
    if recomputes(recompute, "moe") and "moe_router" in graphs.split("+"):
        return "--recompute moe computes the router again, which --cuda-graphs moe_router captures: leave one out"
    if graphs != "full" and offload:
        return f"--cuda-graphs {graphs} holds its activations where they are: leave out --offload, or capture full"
    return None
