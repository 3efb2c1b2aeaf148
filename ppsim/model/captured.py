"""What of a layer its CUDA graph holds, and why it cannot."""

from ppsim.model.architecture import Layer
from ppsim.model.graphs import CudaGraphs, captures
from ppsim.model.recompute import BY_OPERATORS, Recompute, recomputes


def captures_mixer(graphs: CudaGraphs, layer: Layer) -> bool:
    """Return whether graphs hold the half of a layer in which its tokens see each other."""
    return layer.has_mixer and captures(graphs, layer.attention.graph_module)


def captures_feed_forward(graphs: CudaGraphs, layer: Layer) -> bool:
    """Return whether graphs hold the other half whole: a feed-forward part, or experts and their exchange."""
    return layer.has_feed_forward and captures(graphs, "moe" if layer.is_moe else "mlp")


def captures_router(graphs: CudaGraphs, layer: Layer) -> bool:
    """Return whether graphs hold what is before a mixture's exchange, if not all of it."""
    return layer.is_moe and captures(graphs, "moe_router")


def captures_all(graphs: CudaGraphs, layer: Layer) -> bool:
    """Return whether a graph holds all of a layer."""
    halves = captures_mixer(graphs, layer) + captures_feed_forward(graphs, layer)
    return halves == layer.num_halves


def num_outputs_beside(graphs: CudaGraphs, layer: Layer) -> int:
    """Return how many hidden states a layer's graph holds that its forward would not keep: 0 or 1.

    Its output where the next graph copies it; the residual where it ends at a router. What ends or begins at an
    eager half is what that half keeps.
    """
    return int(captures_all(graphs, layer) or (captures_mixer(graphs, layer) and captures_router(graphs, layer)))


def has_graph(graphs: CudaGraphs, layer: Layer) -> bool:
    """Return whether some of a layer is captured."""
    return any(one(graphs, layer) for one in (captures_mixer, captures_feed_forward, captures_router))


_ONLY_IN = {"mlp": "a dense feed-forward part", "moe": "experts", "moe_router": "experts", "mamba": "Mamba"}


def why_not_captured(
    graphs: CudaGraphs, layers: tuple[Layer, ...], *, recompute: Recompute, offload: float, is_dropless: bool
) -> str | None:
    """Return the sentence that says why such layers cannot be captured so, or None.

    The rules are those of Megatron-LM's `TransformerConfig`.
    """
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
                f"cuda_graphs {module} is for layers with {_ONLY_IN[module]}, and the model has none: leave it out"
            )
    if has["moe"] and is_dropless and captures(graphs, "moe"):
        return (
            f"cuda_graphs {graphs} captures the exchange of tokens with experts, whose sizes a dropless router "
            "leaves open: attn+moe_router+moe_preprocess ends before it, --moe-expert-capacity-factor or "
            "--moe-expert-rank-capacity-factor fixes them"
        )
    if graphs != "full" and recompute in (BY_OPERATORS, "full"):
        return f"cuda_graphs {graphs} cannot hold layers that are recomputed whole: full can, or recompute less"
    if recomputes(recompute, "moe") and "moe_router" in graphs.split("+"):
        return (
            "recompute moe computes the router again, which cuda_graphs moe_router captures: leave out one of them"
        )
    if graphs != "full" and offload:
        return f"cuda_graphs {graphs} holds its activations where they are: leave out --offload, or capture full"
    return None
