"""GPU hours and cost."""

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.projection.cost import TrainingCost, amount, require_training_tokens


def test_hours_and_cost_of_a_step_and_a_run_by_hand():
    found = TrainingCost(num_gpus=72, iteration_time_s=50.0, price_per_gpu_hour=3.0, training_days=2.0).to_json()
    assert found == {
        "gpu_hours_per_step": 1.0, "cost_per_step": 3.0, "training_days": 2.0, "training_gpu_hours": 3456.0,
        "training_cost": 10368.0,
    }  # fmt: skip


def test_without_a_price_or_tokens_only_the_hours_of_a_step_are_known():
    cost = TrainingCost(8, 3600.0)
    assert {name for name, known in cost.to_json().items() if known is not None} == {"gpu_hours_per_step"}
    assert cost.text == "8.00 GPU hours per step"


def test_the_price_of_a_cluster_file_is_replaced_by_the_option(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('base = "dgx-h100"\nname = "mine"\nprice_per_gpu_hour = 2.5\n')
    options = {"model": "gpt2", "gpus": 2, "pp": 1, "cluster": str(file)}
    costs = [ppsim.project(**options, **more).summarise(with_advice=False).cost for more in ({}, {"price": 4})]
    assert [cost.price_per_gpu_hour for cost in costs] == [2.5, 4]
    assert costs[0].num_gpus == 2


@pytest.mark.parametrize("price", [-1.0, float("inf")])
def test_a_price_below_zero_is_refused(price):
    with pytest.raises(ConfigError, match=f"--price must be a number from 0 on, per GPU hour: got {price:g}"):
        ppsim.project(model="gpt2", gpus=2, pp=1, price=price)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (999.996, "1000.00"),
        (1000.0, "1.00 k"),
        (1000.4, "1.00 k"),
        (0.1, "0.10"),
        (0.0996, "0.0996"),
        (1.1, "1.10"),
    ],
)
def test_an_amount_has_two_decimals_between_a_tenth_and_a_thousand(number, text):
    assert amount(number) == text


def test_the_tokens_of_a_run_are_more_than_none_and_finite():
    for tokens in (None, 1e-3, 1e15):
        require_training_tokens(tokens)
    for tokens in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match=f"--tokens must be more than 0: got {tokens:g}"):
            require_training_tokens(tokens)
