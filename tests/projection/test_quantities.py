"""Quantities of a projection in each view, from a projection of round numbers."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppsim.projection.quantities import texts_of, values


def projection(**fields: Any) -> SimpleNamespace:
    timeline = SimpleNamespace(
        step_time_s=1.5, bubble_ratio=0.125, span_bubble_ratio=0.0625,
        memory=SimpleNamespace(peak_bytes=np.array([1.0, 3.0, 2.0]) * 2**30),
    )  # fmt: skip
    given = {
        "iteration_time_s": 2.0, "timeline": timeline, "tokens_per_s": 8000.0, "num_gpus": 4,
        "model_flops_utilization": 0.5, "peak_flops_per_s": 1e15, "plan": SimpleNamespace(knows_memory=True),
    }  # fmt: skip
    return SimpleNamespace(**(given | fields))


def test_json_has_all_quantities_in_their_units() -> None:
    assert values(projection(), "json") == {
        "iteration_time_s": 2.0, "step_time_s": 1.5, "tokens_per_s": 8000.0, "tokens_per_s_per_gpu": 2000.0,
        "model_flops_utilization": 0.5, "peak_flops_per_s": 1e15, "model_flops_per_s_per_gpu": 5e14,
        "bubble_ratio": 0.125, "span_bubble_ratio": 0.0625, "peak_bytes": 3 * 2**30, "num_gpus": 4,
    }  # fmt: skip


def test_each_view_has_its_quantities_in_order() -> None:
    assert list(values(projection(), "columns")) == [
        "iteration_time_s", "step_time_s", "tokens_per_s", "model_flops_utilization", "model_flops_per_s_per_gpu",
        "bubble_ratio", "span_bubble_ratio", "peak_bytes",
    ]  # fmt: skip
    assert list(values(projection(), "card")) == ["iteration_time_s", "tokens_per_s", "bubble_ratio", "peak_bytes"]
    assert list(values(projection(), "sweep")) == [
        "tokens_per_s", "tokens_per_s_per_gpu", "model_flops_utilization", "bubble_ratio", "peak_bytes", "num_gpus",
    ]  # fmt: skip


def test_texts_have_the_units_of_their_quantities() -> None:
    assert texts_of(projection(), "throughput") == {
        "throughput": "8.00 k tokens/s", "throughput per GPU": "2.00 k tokens/s per GPU",
        "model FLOP/s": "500 TFLOP/s per GPU",
    }  # fmt: skip
    assert texts_of(projection(), "page") == {
        "iteration": "2.00 s", "throughput": "8.00 k tokens/s", "MFU": "50.00 %", "model FLOP/s": "500 TFLOP/s per GPU",
    }  # fmt: skip
    assert texts_of(projection(), "card")["peak memory"] == "3.00 GiB"
    assert texts_of(projection(num_gpus=16384), "sweep")["GPUs"] == "16,384"


@pytest.mark.parametrize(
    ("fields", "unknown"),
    [
        ({"tokens_per_s": None}, {"tokens_per_s", "tokens_per_s_per_gpu"}),
        ({"model_flops_utilization": None}, {"model_flops_utilization", "model_flops_per_s_per_gpu"}),
        ({"peak_flops_per_s": None}, {"peak_flops_per_s", "model_flops_per_s_per_gpu"}),
        ({"plan": SimpleNamespace(knows_memory=False)}, {"peak_bytes"}),
    ],
)
def test_an_unknown_quantity_is_none_and_has_no_text(fields: dict[str, Any], unknown: set[str]) -> None:
    found = values(projection(**fields), "json")
    assert {key for key, number in found.items() if number is None} == unknown
    assert len(texts_of(projection(**fields), "json")) == len(found) - len(unknown)
