"""Configuration of a run: what is refused, how long turns go on, and its file."""

import json
from dataclasses import MISSING, asdict, fields
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import declared_options
from ppsim.model.recompute import LayerPlan
from ppsim.runtime.options import TrainOptions
from ppsim.runtime.train_config import GPTShape, StageBoundary, TrainConfig, TurnLimits, UserModel

SIZES: dict[str, Any] = {"num_layers": 4, "hidden_size": 96, "num_heads": 6, "sequence_length": 32}


def config(**fields: Any) -> TrainConfig:
    return TrainConfig(
        **({"schedule": "s.json", "num_ranks": 2, "model": GPTShape(**SIZES), "layers_per_stage": [1, 3]} | fields)
    )


def test_a_layer_of_a_gpt_has_as_many_keys_as_heads_and_four_times_the_size_between() -> None:
    assert GPTShape(**SIZES).vocab_size == 256, "a token per byte"
    layer = GPTShape(**SIZES).layer
    assert (layer.hidden_size, layer.num_heads, layer.num_kv_heads, layer.head_size) == (96, 6, 6, 16)
    assert layer.ffn_size == 384


def test_a_field_has_the_default_of_its_option() -> None:
    own = {field.name: field.default for field in fields(TrainConfig) if field.default is not MISSING}
    declared = [word.option for word in declared_options(TrainOptions).values()]
    pairs = {
        one.field: (own[one.field], one.default) for one in declared if one.field in own and one.default is not None
    }
    assert {"learning_rate", "seed", "num_steps", "num_warm_up"} <= set(pairs)
    assert [name for name, (default, said) in pairs.items() if default != said] == []


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1: got 0"),
        ({"sequence_length": -1}, "sequence_length must be at least 1: got -1"),
        ({"num_heads": 5}, "the hidden size must be a multiple of the heads: got 96 and 5"),
        ({"vocab_size": 255}, "vocab_size must be at least 256, one token a byte: got 255"),
    ],
)
def test_sizes_that_no_gpt_has_are_refused(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GPTShape(**(SIZES | sizes))


def test_sizes_of_1_are_a_gpt() -> None:
    assert GPTShape(1, 1, 1, 1, vocab_size=256).layer.head_size == 1


@pytest.mark.parametrize("rate", [-1e-9, float("inf"), float("nan")])
def test_a_learning_rate_is_a_number_from_0_on(rate: float) -> None:
    with pytest.raises(ConfigError, match="--learning-rate must be a number from 0 on: got"):
        config(learning_rate=rate)
    assert config(learning_rate=0.0).learning_rate == 0


@pytest.mark.parametrize(
    ("done", "elapsed_s", "goes_on"),
    [
        (1, 99.0, True),  # fewer than two
        (2, 8.0, False),  # a third would end after 12 s
        (2, 6.0, True),  # and now after 9 s
        (4, 8.0, True),  # after exactly 10 s
        (4, 8.1, False),
        (5, 1.0, False),  # enough
    ],
)
def test_another_turn_is_done_if_it_would_end_in_time(done: int, elapsed_s: float, *, goes_on: bool) -> None:
    assert TurnLimits(most=5, least=2, limit_s=10.0).go_on(done, elapsed_s) is goes_on


def test_a_stage_without_plans_recomputes_as_all() -> None:
    assert config(recompute="full").plan_of(1) == [LayerPlan(3, "full")]
    plans = [[LayerPlan(1, "none")], [LayerPlan(2, "full"), LayerPlan(1, "none")]]
    assert config(layer_plans=plans).plan_of(1) == plans[1]


@pytest.mark.parametrize(
    ("dtype", "fix"),
    [("float16", "--dtype bfloat16 or float32, or a smaller one"), ("bfloat16", "give a smaller one")],
)
def test_a_loss_that_is_not_finite_is_named_by_its_first_step(dtype: Any, fix: str) -> None:
    run = config(dtype=dtype, learning_rate=8.0)
    run.require_finite([None, 1.0, 2.0])
    with pytest.raises(
        ConfigError, match=f"the loss of step 3 is nan: --learning-rate 8 is too much in {dtype}.*{fix}"
    ):
        run.require_finite([None, 1.0, float("nan"), float("inf")])


@pytest.mark.parametrize(
    "made",
    [
        config(),
        config(layer_plans=[[LayerPlan(1, "none")], [LayerPlan(3, "full")]]),
        config(model=UserModel("m.py", 4, [StageBoundary([2, 3], "float32", 24)] * 3)),
    ],
)
def test_a_configuration_is_read_as_it_was_written(made: TrainConfig) -> None:
    read = TrainConfig.from_dict(json.loads(json.dumps(asdict(made))))
    assert (read.model, read.layer_plans, read.layers_per_stage) == (made.model, made.layer_plans, [1, 3])
