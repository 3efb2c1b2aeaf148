"""Options of a training run that are decided before a rank starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import ppsim
from ppsim.api.train import (
    _OF_GPTS,
    _emulated,
    _facts,
    _layers,
    _message_bytes,
    _own_model,
    _planned,
    _shape,
    _straggling,
    _train_config,
    as_files,
    table_from,
)
from ppsim.base.errors import ConfigError
from ppsim.base.option_declarations import declared_options, with_defaults
from ppsim.runtime.options import TrainOptions
from ppsim.runtime.train_config import GPTShape, TrainConfig, UserModel
from ppsim.simulation.cost_files import read_costs

TABLE = ppsim.build("1f1b", pp=2, microbatches=2)
COSTS = ppsim.StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)


def options(**given: Any) -> dict[str, Any]:
    return {**with_defaults(declared_options(TrainOptions), {}), "schedule": "T.csv", **given}


def test_a_table_is_named_or_built() -> None:
    assert table_from("T.csv", pp=None, vpp=None, microbatches=None) == "T.csv"
    built: Any = table_from(None, pp=2, vpp=None, microbatches=None)
    assert (built.name, built.num_ranks, built.num_microbatches) == ("1f1b", 2, 8)
    interleaved: Any = table_from(None, pp=2, vpp=2, microbatches=4)
    assert (interleaved.name, interleaved.vpp, interleaved.num_microbatches) == ("interleaved-1f1b", 2, 4)
    assert table_from("zb-h1", pp=2, vpp=1, microbatches=4).name == "zb-h1"  # type: ignore[union-attr]
    for wrong, sentence in (
        ({"schedule": None, "pp": None}, "--schedule T.csv must be given"),
        ({"schedule": "T.csv", "pp": None, "vpp": 2}, "leave them out for T.csv"),
        ({"schedule": "T.csv", "pp": None, "microbatches": 2}, "leave them out for T.csv"),
        ({"schedule": "T.csv", "pp": 2}, "leave out --pp"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            table_from(**({"vpp": None, "microbatches": None} | wrong))


def test_objects_are_written_for_the_processes_of_a_run() -> None:
    with as_files(TABLE, COSTS) as (table, costs):
        assert ppsim.read_schedule(table) == TABLE
        assert costs is not None
        assert read_costs(costs).forward_s == [1.0]
        folder = Path(table).parent
    assert not folder.exists()
    with as_files("T.csv", None) as found:
        assert found == ("T.csv", None)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"nproc": 3}, "T.csv has 2 ranks: got --nproc 3"),
        ({"steps": 0}, "--steps must be at least 1, --warm-up not negative: got 0 and "),
        ({"warm_up": -1}, "--warm-up not negative: got .* and -1"),
        ({"timeout": 0.0}, "--timeout must be more than 0"),
        ({"micro_batch": 0}, "micro-batch"),
        ({"threads": 0}, "threads"),
        ({"emulate_costs": "c.json", "recompute": "full"}, "recomputation and all: leave out --recompute"),
        ({"emulate_costs": "c.json", "stage_plan": "p.toml"}, "recomputation and all: leave out --plan"),
        ({"model": "nono"}, "nano"),
    ],
)
def test_options_out_of_range_are_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        _train_config(TABLE, options(**given))


def test_a_configuration_has_the_layers_of_each_stage() -> None:
    config = _train_config(TABLE, options(nproc=2, layers=5, micro_batch=3))
    assert (config.num_ranks, list(config.layers_per_stage), config.layer_plans) == (2, [3, 2], None)
    assert config.model.num_layers == 5
    assert _train_config(TABLE, options(warm_up=0, steps=1)).num_ranks == 2


def test_slow_steps_are_emulated_and_recorded() -> None:
    given = options(emulate_costs="c.json", steps=3, straggling_steps={2: 1.5, 0: 0.5})
    assert _straggling(given) == ((2, 1.5), (0, 0.5))
    assert _straggling(options()) == ()
    with pytest.raises(ConfigError, match="--straggling-step is for --emulate-costs"):
        _straggling(options(straggling_steps={0: 1.5}))
    for wrong in ({3: 1.5}, {-1: 1.5}, {0: 0.0}, {0: float("inf")}):
        with pytest.raises(ConfigError, match="names one of the 3 recorded steps"):
            _straggling(given | {"straggling_steps": wrong})


def test_layers_are_even_or_given_and_no_inner_stage_is_empty() -> None:
    four = ppsim.build("1f1b", pp=4, microbatches=4)
    assert _layers(8, four, options()) == [2, 2, 2, 2]
    assert _layers(8, four, options(split="1,3,3,1")) == [1, 3, 3, 1]
    assert _layers(8, four, options(split="0,4,4,0")) == [0, 4, 4, 0]
    with pytest.raises(ConfigError, match="stage 2 would hold no layer: 8 layers for 4 stages"):
        _layers(8, four, options(split="4,4,0,0"))
    assert _layers(8, four, options(split="4,4,0,0", emulate_costs="c.json")) == [4, 4, 0, 0]


def test_whole_layers_are_recomputed_by_stage_or_by_a_plan(tmp_path: Path) -> None:
    assert _planned(4, TABLE, options(recompute="full")) == ([2, 2], "full", None)
    layers, text, plans = _planned(4, TABLE, options(recompute="block/1"))
    assert (layers, text) == ([2, 2], "block/1")
    assert plans is not None
    assert [[(one.layers, one.recompute) for one in stage] for stage in plans] == [[(1, "full"), (1, "none")]] * 2
    with pytest.raises(ConfigError, match="train recomputes whole layers: got recompute core_attn"):
        _planned(4, TABLE, options(recompute="core_attn"))
    plan = tmp_path / "plan.toml"
    plan.write_text('[[stages]]\nlayers = 3\nrecompute = "full"\n[[stages]]\nlayers = 1\n')
    layers, text, plans = _planned(4, TABLE, options(stage_plan=plan))
    assert (layers, text) == ([3, 1], "by plan.toml")
    assert plans is not None
    assert [stage[0].recompute for stage in plans] == ["full", "none"]
    with pytest.raises(ConfigError, match="has 2 stages, but the table has 4"):
        _planned(4, ppsim.build("1f1b", pp=4, microbatches=4), options(stage_plan=plan))
    plan.write_text('[[stages]]\n[[stages]]\noffload_modules = "core_attn"\n')
    with pytest.raises(ConfigError, match="leave out offload_modules of stage 1"):
        _planned(4, TABLE, options(stage_plan=plan))


def test_sizes_replace_those_of_the_named_model() -> None:
    small = _shape(options(model="nano"))
    assert _shape(options(model="nano", layers=7)).num_layers == 7
    assert _shape(options(model="nano", layers=small.num_layers)) == small


def test_emulated_costs_fit_the_table_and_have_one_time_per_hop(tmp_path: Path) -> None:
    def emulated(costs: ppsim.StageCosts) -> Any:
        with as_files(TABLE, costs) as (table, path):
            return _emulated(_train_config(TABLE, options(schedule=table, emulate_costs=path)), TABLE)

    found = emulated(COSTS)
    assert list(found.backward_input_s) == [0.0, 1.0], "torch's first stage has no input gradient"
    assert _emulated(_train_config(TABLE, options()), TABLE) is None
    with pytest.raises(ConfigError, match="transfers that differ by microbatch cannot be emulated"):
        emulated(COSTS.replace(transfer_s=[[0.1, 0.2]] * 2))
    assert emulated(COSTS.replace(transfer_s=[[0.0, 0.0]] * 2)) is not None
    with pytest.raises(ConfigError, match="forward_s has 3 entries"):
        emulated(COSTS.replace(forward_s=[1.0, 2.0, 3.0]))


@pytest.mark.parametrize(("dtype", "num_bytes"), [("float64", 8), ("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_a_message_is_a_microbatch_of_hidden_states(dtype: Any, num_bytes: int, tmp_path: Path) -> None:
    shape = GPTShape(num_layers=3, hidden_size=10, num_heads=5, sequence_length=7)
    config = TrainConfig("T.csv", 2, shape, [1, 2], micro_batch=11, dtype=dtype)
    assert _message_bytes(config) == 7 * 10 * 11 * num_bytes
    (tmp_path / "costs.json").write_text('{"transfer_s": {"bytes": 64}}')
    assert _message_bytes(replace(config, emulate_costs=str(tmp_path / "costs.json"))) == 64.0


def test_a_message_of_an_own_model_is_its_largest_boundary_between_stages() -> None:
    boundaries: Any = [SimpleNamespace(num_bytes=size) for size in (900, 30, 50, 40, 800)]
    config = TrainConfig("T.csv", 4, UserModel("own.py:model", 4, boundaries), [1] * 4)
    assert _message_bytes(config) == 50.0
    alone = replace(config, model=UserModel("own.py:model", 4, boundaries[:2]))
    assert _message_bytes(alone) is None


def test_an_own_model_is_tried_with_a_microbatch_and_has_its_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    @contextmanager
    def limit_time(module: str, seconds: float) -> Iterator[None]:
        calls.append((module, seconds))
        yield

    def check(function: Any, layers: list[int], **how: Any) -> tuple[list[str], str]:
        calls.append((layers, how))
        return ["boundary"], "bfloat16"

    function = SimpleNamespace(where="own.py:model", num_layers=lambda given: 5 if given is None else given)
    monkeypatch.setattr("ppsim.runtime.user_model.limit_time", limit_time)
    monkeypatch.setattr("ppsim.runtime.user_model.function_of", lambda module: function)
    monkeypatch.setattr("ppsim.runtime.user_model.check_user_model", check)
    given = dict.fromkeys(_OF_GPTS) | {"emulate_costs": None, "module": "own.py:model", "timeout": 9.0, "layers": None, "split": "even",
             "micro_batch": 3, "seed": 7, "device": "cpu"}  # fmt: skip
    model, layers, dtype = _own_model(TABLE, given)
    assert (model.module, model.num_layers, model.boundaries) == ("own.py:model", 5, ["boundary"])
    assert (sum(layers), len(layers), dtype) == (5, TABLE.num_stages, "bfloat16")
    how = {"micro_batch": 3, "seed": 7, "device": "cpu", "splits": TABLE.splits_backward}
    assert calls == [("own.py:model", 9.0), (layers, how)]
    assert _own_model(TABLE, given | {"layers": 8})[0].num_layers == 8
    for name, setting in (("hidden", 64), ("dtype", "float32"), ("stage_plan", "p.json")):
        with pytest.raises(ConfigError, match="--module says what is trained: leave out --"):
            _own_model(TABLE, given | {name: setting})
    with pytest.raises(ConfigError, match="--emulate-costs waits instead of computing"):
        _own_model(TABLE, given | {"emulate_costs": "costs.json"})


def test_facts_of_a_run_are_of_its_recorded_steps() -> None:
    config = TrainConfig("T.csv", 2, GPTShape(4, 8, 2, 4), [2, 2], num_warm_up=2, device="cuda")
    measured: Any = SimpleNamespace(step_times_s=[3.0, 4.0], run=SimpleNamespace(gaps_s=(0.5,)), chosen_step=1)
    result = {
        "torch": "2.9", "optimizer_s": [9.0, 8.0, 1.0, 2.0], "losses": [4.0, 3.0], "differences": {"loss": 0.5},
        "memory": None, "partitions": 2, "more": 1,
    }  # fmt: skip
    assert _facts(config, result, measured) == {
        "torch": "2.9", "device": "cuda", "emulated": False, "num_warm_up": 2, "step_times_s": [3.0, 4.0],
        "between_steps_s": [0.5], "optimizer_s": [1.0, 2.0], "chosen_step": 1, "losses": [4.0, 3.0],
        "differences": {"loss": 0.5}, "memory": None, "partitions": 2,
    }  # fmt: skip
    assert _facts(replace(config, emulate_costs="costs.json"), result | {"attention": "fused"}, measured)[
        "emulated"
    ]
