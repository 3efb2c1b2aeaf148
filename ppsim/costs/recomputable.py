"""Reasons why a job cannot use a recomputation option."""

from collections.abc import Callable

from ppsim.model.architecture import Layer, Model
from ppsim.model.attention_and_mlp import Attention, LatentAttention, OfLatents
from ppsim.model.execution import Execution
from ppsim.model.recompute import BY_OPERATORS, Recompute, recomputes


def _has_dense(layer: Layer) -> bool:
    return layer.has_feed_forward and not layer.is_moe


_ONLY_IN: dict[str, tuple[str, Callable[[Layer], bool]]] = {
    "mhc": ("residual streams", lambda layer: layer.streams > 1),
    "mla_up_proj": ("latent attention", lambda layer: isinstance(layer.attention, OfLatents)),
    "mlp": ("a dense feed-forward part", _has_dense),
    "mlp_act": ("a dense feed-forward part", _has_dense),
    "moe": ("experts", lambda layer: layer.is_moe),
    "moe_act": ("experts", lambda layer: layer.is_moe),
    "shared_experts": ("a shared expert", lambda layer: bool(getattr(layer.ffn, "shared", None))),
}
"""Property that a layer needs so that a module of `ppsim.model.recompute` can be recomputed."""


def _has_known_operators(layer: Layer) -> bool:
    a = layer.attention
    is_softmax = isinstance(a, Attention | LatentAttention) and layer.has_mixer and a.indexer is None
    return is_softmax and layer.has_feed_forward and layer.streams == 1 and not layer.conditioned


def why_not_recomputed(model: Model, execution: Execution, recompute: Recompute, tp: int) -> str | None:
    if recompute == BY_OPERATORS and not all(map(_has_known_operators, model.kinds)):
        return "recompute selective-op is known of layers with softmax attention and an MLP or experts: take full"
    if recompute == BY_OPERATORS and (execution.attention != "fused" or execution.dropout):
        return "recompute selective-op keeps what fused attention gives: give --attention fused, and no --dropout"
    if recompute == BY_OPERATORS and tp > 1 and not execution.sequence_parallel:
        return "recompute selective-op keeps what tp ranks scatter: give --sequence-parallel, or tp 1"
    for module, (what, has) in _ONLY_IN.items():
        if recomputes(recompute, module) and not any(map(has, model.kinds)):
            return f"recompute {module} is for layers with {what}, and the model has none: leave it out"
    return None
