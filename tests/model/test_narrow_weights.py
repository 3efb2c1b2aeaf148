"""Weights of GEMMs in 8 and 4 bits: with 16-bit weights, and as primary weights."""

import pytest

from ppsim.api.parse_job import job
from ppsim.model import narrow_weights as narrow_weights_module
from ppsim.model.parameters import held_parameters
from ppsim.model.pipeline_stages import stages_of
from ppsim.model.rank_memory import rank_memory
from tests.defaults import number_defaults

WEIGHTS = ("parameters", "expert parameters", "weights in fewer bits")


def bytes_per_weight(dtype: str, cluster: str = "gb300-nvl72", model: str = "llama3-8b", **words) -> float:
    """Bytes per GEMM weight inside layers, on one rank; the other weights have 2."""
    one = job(model=model, layers=2, cluster=cluster, dtype=dtype, **words)
    stages = stages_of(one.model, [2])
    held = held_parameters(one.model, stages, one.settings.cut, vocab_multiple=one.vocab_multiple)
    components = rank_memory(one.model, stages, one.settings, in_flight=[0]).components
    gemms = held.gemms + held.expert_gemms
    others = 2 * (held.dense + held.expert - gemms)
    return (sum(components.get(name, 0) for name in WEIGHTS) - others) / gemms


@pytest.mark.parametrize(
    ("dtype", "cluster", "wide", "primary"),
    [
        ("bfloat16", "gb300-nvl72", 2, 2),
        ("float8", "gb300-nvl72", 2 + 1, 1),
        ("float8", "dgx-h100", 2 + 2, 2),
        ("float8", "mi300x-8", 2 + 2, 2),
        ("float8-block", "dgx-h100", 2 + 2 * (1 + 4 / 128), 2 * (1 + 4 / 128)),
        ("mxfp8", "gb300-nvl72", 2 + 2 * 33 / 32, 2 * 33 / 32),
        ("nvfp4", "gb300-nvl72", 2 + 2 * 9 / 16, 2 * 9 / 16),
    ],
)
def test_primary_weights_in_8_or_4_bits_have_no_16_bit_copy(
    dtype: str, cluster: str, wide: float, primary: float
) -> None:
    for is_primary, expected in ((False, wide), (True, primary)):
        assert bytes_per_weight(dtype, cluster, fp8_param_gather=is_primary) == pytest.approx(expected, rel=1e-6)


def test_experts_and_frozen_weights_are_primary_weights_too() -> None:
    words = {"dtype": "mxfp8", "fp8_param_gather": True}
    assert bytes_per_weight(model="mixtral-8x7b", **words) == pytest.approx(2 * 33 / 32, rel=1e-6)
    assert bytes_per_weight(lora="16", **words) == pytest.approx(2 * 33 / 32, rel=1e-3)


@pytest.mark.parametrize(
    ("dtype", "is_primary", "expected"), [("float8", False, 2), ("float8", True, 1), ("mxfp8", True, 2 * 33 / 32)]
)
def test_zero_3_shards_weights_in_8_bits(dtype: str, is_primary: bool, expected: float) -> None:
    found = bytes_of_rank(dtype, is_primary, 3), bytes_of_rank(dtype, is_primary, 1)
    assert found[0]["parameters"] == pytest.approx(expected_shard(dtype, expected), rel=1e-5)
    assert "weights in fewer bits" not in found[0]
    assert ("weights in fewer bits" in found[1]) is not is_primary


def bytes_of_rank(dtype: str, is_primary: bool, zero: int):
    one = job(model="llama3-8b", gpus=8, cluster="gb300-nvl72", dtype=dtype, zero=zero, fp8_param_gather=is_primary)
    return rank_memory(one.model, stages_of(one.model, [32]), one.settings, in_flight=[0]).components


def expected_shard(dtype: str, bytes_per_gemm_weight: float) -> float:
    one = job(model="llama3-8b", gpus=8, cluster="gb300-nvl72", dtype=dtype)
    held = held_parameters(one.model, stages_of(one.model, [32]), one.settings.cut, vocab_multiple=128)
    return (2 * (held.dense - held.gemms) + bytes_per_gemm_weight * held.gemms) / 8


@pytest.mark.parametrize(("cache", "copies"), [("none", 0), ("rowwise", 1), ("all", 2), (None, 2)])
def test_copies_of_16_bit_weights_are_those_of_the_cache(cache: str | None, copies: int) -> None:
    assert bytes_per_weight("float8", "mi300x-8", weight_cache=cache) == pytest.approx(2 + copies, rel=1e-6)


def test_first_and_last_layers_may_have_16_bits_in_bytes_and_time() -> None:
    """Layers in 16 bits cost as with --dtype bfloat16, the others as without the option."""
    words = {"model": "llama3-8b", "layers": 8, "gpus": 1, "cluster": "dgx-h100"}
    made = [
        job(**words, dtype=dtype, num_layers_at_start_in_bf16=start, num_layers_at_end_in_bf16=end)
        for dtype, start, end in (("float8", 0, 0), ("float8", 1, 2), ("bfloat16", 1, 2))
    ]
    narrow, mixed, wide = made
    assert [layer.in_16_bits for layer in mixed.model.layers] == [True] + 5 * [False] + 2 * [True]
    assert wide.model == narrow.model
    for of in (weights_and_activations, forward_s):
        assert of(mixed) == pytest.approx(of(narrow) * 5 / 8 + of(wide) * 3 / 8)


def weights_and_activations(one) -> int:
    [stage] = stages_of(one.model, [8])
    components = rank_memory(one.model, [stage], one.settings, in_flight=[1]).components
    names = ("weights in fewer bits", "norms", "attention", "feed-forward")
    return sum(components.get(name, 0) for name in names)


def forward_s(one) -> float:
    return sum(one.costs.layer(layer).forward.total_s for layer in one.model.layers)


def test_what_is_left_out_in_model_narrow_weights_has_these_values() -> None:
    assert number_defaults(narrow_weights_module) == {
        "NarrowWeights": {"is_primary": False, "is_transposable": True},
    }  # fmt: skip
