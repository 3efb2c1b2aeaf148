"""A recomputation option is for layers that have the module, and by operators for those that torch knows."""

import pytest

from ppsim.costs.recomputable import why_not_recomputed
from ppsim.model.execution import Execution
from ppsim.model.recompute import BY_OPERATORS
from ppsim.model.registry import find_model


@pytest.mark.parametrize(
    ("module", "has", "lacks", "what"),
    [
        ("mhc", "deepseek-v4-flash", "deepseek-v3", "residual streams"),
        ("mla_up_proj", "deepseek-v3", "llama3-8b", "latent attention"),
        ("mlp", "deepseek-v3", "mixtral-8x7b", "a dense feed-forward part"),
        ("mlp_act", "llama3-8b", "mixtral-8x7b", "a dense feed-forward part"),
        ("moe", "mixtral-8x7b", "llama3-8b", "experts"),
        ("moe_act", "mixtral-8x7b", "llama3-8b", "experts"),
        ("shared_experts", "deepseek-v3", "mixtral-8x7b", "a shared expert"),
    ],
)
def test_a_module_is_recomputed_if_a_kind_of_layer_has_it(module: str, has: str, lacks: str, what: str) -> None:
    assert why_not_recomputed(find_model(has), Execution(), module, 1) is None
    assert why_not_recomputed(find_model(lacks), Execution(), module, 1) == (
        f"recompute {module} is for layers with {what}, and the model has none: leave it out"
    )
    assert why_not_recomputed(find_model(has), Execution(), "none", 1) is None
    assert why_not_recomputed(find_model(lacks), Execution(), "full", 1) is None


@pytest.mark.parametrize("model", ["llama3-8b", "mixtral-8x7b", "deepseek-v3", "gpt2"])
def test_operators_of_softmax_attention_with_an_mlp_or_experts_are_known(model: str) -> None:
    assert why_not_recomputed(find_model(model), Execution(attention="fused"), BY_OPERATORS, 1) is None


@pytest.mark.parametrize("model", ["mamba2-130m", "deepseek-v4-flash", "deepseek-v3.2", "nemotron-h-8b"])
def test_operators_of_other_layers_are_not_known(model: str) -> None:
    found = why_not_recomputed(find_model(model), Execution(attention="fused"), BY_OPERATORS, 1)
    assert (found or "").startswith("recompute selective-op is known of layers with softmax attention")


@pytest.mark.parametrize(
    ("execution", "tp", "begin"),
    [
        ({}, 1, None),
        ({"attention": "unfused"}, 1, "recompute selective-op keeps what fused attention gives"),
        ({"dropout": True}, 1, "recompute selective-op keeps what fused attention gives"),
        ({}, 2, "recompute selective-op keeps what tp ranks scatter"),
        ({"sequence_parallel": True}, 2, None),
        ({"sequence_parallel": False}, 1, None),
    ],
)
def test_operators_need_fused_attention_and_scattered_tokens(
    execution: dict[str, object], tp: int, begin: str | None
) -> None:
    given = Execution(**{"attention": "fused", **execution})  # type: ignore[arg-type]
    found = why_not_recomputed(find_model("llama3-8b"), given, BY_OPERATORS, tp)
    assert (found is None) if begin is None else (found or "").startswith(begin)
