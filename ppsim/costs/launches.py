"""What the host launches of a layer where CUDA graphs hold some of its kernels: a graph a pass, and the others."""

from dataclasses import replace

from ppsim.costs.between import elementwise
from ppsim.costs.layer_kernels import PassKernels, RankPart, products_of
from ppsim.costs.place import Place
from ppsim.machine.kernels.times import KernelTime
from ppsim.model.architecture import Layer
from ppsim.model.captured import captures_all, captures_feed_forward, captures_mixer, captures_router
from ppsim.model.graphs import captures
from ppsim.model.linears import UP_AND_DOWN


def launched(
    kernels: PassKernels, layer: Layer, place: Place, part: RankPart, core: PassKernels, *, tokens: int
) -> PassKernels:
    """Return the kernels of a layer with as many launches as the host has for them.

    `part` is all that the rank has of the layer, `core` that of its mixer. A step in one graph has none left.
    """
    graphs = place.execution.cuda_graphs
    if graphs == "none":
        return kernels
    if graphs == "full" or captures_all(graphs, layer):
        return _counting(kernels, [int(graphs != "full")] * 3)
    mixer = _mixer(layer, part, place, core, tokens=tokens)
    inside = [0, 0, 0]
    if captures_mixer(graphs, layer):
        inside = _counts(mixer)
    if captures_feed_forward(graphs, layer):
        inside = [own + whole - of for own, whole, of in zip(inside, _counts(kernels), _counts(mixer), strict=True)]
    elif captures_router(graphs, layer):
        inside = [own + more for own, more in zip(inside, _router(part, place, tokens=tokens), strict=True)]
    left = [whole - of + (of > 0) for whole, of in zip(_counts(kernels), inside, strict=True)]
    return _counting(kernels, left)


def launched_again(kernels: KernelTime, layer: Layer, place: Place) -> KernelTime:
    """Return what a backward computes again, which the graph of a whole layer holds too."""
    return replace(kernels, count=0) if captures_all(place.execution.cuda_graphs, layer) else kernels


def waits_for_counts(layer: Layer, place: Place) -> bool:
    """Return whether the host waits for what each expert gets before it launches what takes the tokens in.

    It does where no capacity fixes their sizes, of an expert or of a rank. What captures the way to the exchange
    leaves too little to launch behind it for a device to run dry, but for all-to-alls, before which the host reads
    the counts whatever is captured (Megatron-LM, `MoEAlltoAllTokenDispatcher`, its copies to the host).
    """
    execution = place.execution
    is_ready = captures(execution.cuda_graphs, "moe_preprocess") and execution.moe_dispatcher != "alltoall"
    return layer.is_moe and execution.is_dropless and not is_ready


_OF_MIXERS = ("dense", "vector", "condition")


def _mixer(layer: Layer, part: RankPart, place: Place, core: PassKernels, *, tokens: int) -> PassKernels:
    """The half of a layer in which its tokens see each other."""
    if not layer.has_mixer:
        return PassKernels()
    linears = tuple(one for one in part.linears if one.kind in _OF_MIXERS and one.name not in UP_AND_DOWN)
    biases = round(sum(one.rows * one.biases for one in linears))
    own = replace(part, linears=linears, pairs=0.0, activated=0, biases=biases, halves=1)
    return products_of(own, place, tokens=tokens) + core + elementwise(own, place, tokens=tokens)


def _router(part: RankPart, place: Place, *, tokens: int) -> list[int]:
    """Launches of the norm before a router, of the router, and of the shared expert's products."""
    linears = tuple(one for one in part.linears if one.kind in ("router", "shared"))
    products = products_of(replace(part, linears=linears), place, tokens=tokens)
    return [1 + count for count in _counts(products)]


def _counts(kernels: PassKernels) -> list[int]:
    return [one.count for one in kernels.passes]


def _counting(kernels: PassKernels, counts: list[int]) -> PassKernels:
    return PassKernels(*(replace(one, count=count) for one, count in zip(kernels.passes, counts, strict=True)))
