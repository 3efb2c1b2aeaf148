"""The table of the sizes of layers: each row is needed to read and to write a model."""

from dataclasses import replace
from typing import Any

import pytest

from ppsim.model.architecture import Model
from ppsim.model.registry import find_model
from ppsim.trainers.arguments import Arguments, megatron_names
from ppsim.trainers.megatron import layer_sizes
from ppsim.trainers.megatron.read_model import model_of
from ppsim.trainers.megatron.write_model import model_arguments

MODELS = {
    "Attention": "qwen3-next-80b-a3b", "LatentAttention": "deepseek-v3", "Indexer": "deepseek-v3.2",
    "Mamba": "nemotron-h-8b", "GatedDeltaNet": "qwen3-next-80b-a3b", "MixtureOfExperts": "qwen3-next-80b-a3b",
    "moe_latent_size": "nemotron-3-super-120b-a12b", "moe_router_enable_expert_bias": "deepseek-v3",
}  # fmt: skip
UNUSUAL = {"linear_conv_kernel_dim": 3, "moe_grouped_gemm": False}
"""Values that are not the default of the field."""
ROWS = [(kind, name) for kind, rows in layer_sizes._sizes().items() for name in rows]


def read(arguments: dict[str, Any]) -> Model:
    return model_of(Arguments(megatron_names(arguments), "F"))


@pytest.mark.parametrize(("kind", "name"), ROWS)
def test_without_a_row_of_the_table_a_size_is_neither_read_nor_written(
    monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    model = find_model(MODELS.get(name, MODELS[kind]))
    arguments = model_arguments(model, 4096)
    assert arguments is not None
    assert name in arguments
    arguments |= {name: UNUSUAL.get(name, arguments[name])}
    again = read(arguments)
    rows = {other: row for other, row in layer_sizes._sizes()[kind].items() if other != name}
    without = layer_sizes._sizes() | {kind: rows}
    monkeypatch.setattr(layer_sizes, "_sizes", lambda: without)
    with pytest.raises((TypeError, KeyError, AssertionError)):  # a field is missing, or has its default
        assert read(arguments) == again
    of_kind = (part for part in parts(model) if kind in {base.__name__ for base in type(part).__mro__})
    assert name not in layer_sizes.sizes_of(next(of_kind))


@pytest.mark.parametrize("is_apart", [False, True])
def test_squared_relu_of_experts_is_fused_unless_the_routing_weight_is_multiplied_apart(is_apart: bool) -> None:
    nemotron, gated = find_model("nemotron-3-super-120b-a12b"), find_model("qwen3-30b-a3b")
    layers = [
        replace(layer, ffn=replace(layer.ffn, expert=replace(layer.ffn.expert, weighted_apart=is_apart)))
        if layer.is_moe
        else layer
        for layer in nemotron.layers
    ]
    arguments = model_arguments(replace(nemotron, layers=tuple(layers)), 4096)
    assert arguments is not None
    assert arguments.get("use_fused_weighted_squared_relu", False) is not is_apart
    assert "use_fused_weighted_squared_relu" not in (model_arguments(gated, 4096) or {})


def parts(model: Model) -> list[object]:
    mixers = [layer.attention for layer in model.layers]
    return [*mixers, *(getattr(one, "indexer", None) for one in mixers), *(layer.ffn for layer in model.layers)]
