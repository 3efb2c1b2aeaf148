"""Classes of jobs with similar errors."""

import pytest

import ppsim
from ppsim.projection.error_classes import UNMEASURED_SPREAD, error_class_of, error_classes


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"stack": "megatron-bridge"}, "dense on Hopper"),
        ({"stack": "megatron-bridge@26.06"}, "dense on Hopper"),
        ({"stack": "torchtitan", "compile": True}, "dense on Hopper"),
        ({"stack": "torchtitan", "compile": False}, None),
        ({"stack": "torchtitan", "cluster": "dgx-a100"}, None),
        ({"stack": "plain", "cluster": "gh200-4"}, "dense on Hopper"),
        ({"stack": "plain", "cluster": "h20-8"}, None),
        ({"stack": "megatron-bridge", "lora": "16"}, "fine-tuning on Hopper"),
        ({"stack": "megatron-bridge", "model": "mixtral-8x7b", "ep": 8, "cluster": "dgx-b200"}, "MoE on Blackwell"),
    ],
)
def test_a_class_needs_runs_of_the_stack_on_the_generation_and_of_the_device(
    options: dict[str, object], name: str | None
) -> None:
    found = error_class_of(ppsim.job(**({"model": "llama3-8b", "cluster": "dgx-h100", "gpus": 8} | options)))
    assert (found and found.name) == name


def test_a_new_source_has_the_variances_within_and_between_sources() -> None:
    """Its 90 % interval is ± 1.5 spreads."""
    for one in error_classes():
        assert (1.645 / 1.5 * one.spread) ** 2 == pytest.approx(one.within**2 + one.between**2)


def test_a_trainer_without_runs_has_the_variances_of_55_published_runs() -> None:
    assert pytest.approx((0.21**2 + 0.17**2) ** 0.5, abs=0.001) == UNMEASURED_SPREAD
