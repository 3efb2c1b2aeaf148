"""When the default of a stack holds, and which stack a job without one gets."""

from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.trainers import stacks
from ppsim.trainers.stacks import StackDefault, StackDefaults, StackErrors

H200 = "NVIDIA H200 SXM"


def default(word: str, value: int | str, **conditions: Any) -> StackDefault:
    return StackDefault(word=word, value=value, source="", **conditions)


def holds(conditions: dict[str, Any], *, device: str = H200, has_experts: bool = False, **options: Any) -> bool:
    return default("overlap_tp", 1, **conditions).holds(options, device=device, has_experts=has_experts)


def test_a_default_for_devices_needs_one_of_their_words() -> None:
    assert holds({})
    assert holds({"devices": ["B200", "H200"]})
    assert not holds({"devices": ["B200"]})
    assert not holds({"devices": ["H20"]})  # a word, not its beginning


def test_a_default_for_models_with_experts_is_not_for_others() -> None:
    assert [holds({"experts": True}, has_experts=has) for has in (False, True)] == [False, True]
    assert [holds({"experts": False}, has_experts=has) for has in (False, True)] == [True, False]
    assert [holds({}, has_experts=has) for has in (False, True)] == [True, True]


@pytest.mark.parametrize(
    ("values", "given", "expected"),
    [
        ([], None, True),
        ([], False, True),
        ([], 0, True),
        ([], "0,0", True),
        ([], True, False),
        ([], 2, False),
        ([], "0,1", False),
        (["block", 3], None, True),
        (["block", 3], "block", False),
        (["block", 3], 3, False),
        (["block", 3], "full", True),
    ],
)
def test_options_cancel_a_default(values: list[int | str], given: Any, expected: bool) -> None:
    assert holds({"unless": {"recompute": values}}, recompute=given) is expected


def test_a_default_for_zero_needs_one_of_its_stages_typed() -> None:
    assert [holds({"zero": [2, 3]}, zero=stage) for stage in (3, 2, 1, None)] == [True, True, False, False]


def test_gradients_of_megatron_fsdp_have_the_dtype_of_the_weights() -> None:
    for zero, fully_shard, expected in ((3, None, True), (2, None, True), (1, None, None), (3, True, None)):
        options = {"zero": zero, "fully_shard": fully_shard}
        found = stacks.stack_of("megatron-bridge@none", options, device=H200, has_experts=True)
        assert found.options.get("grad_reduce_in_bf16") is expected


def test_a_default_for_a_dtype_holds_for_bfloat16_where_none_is_typed() -> None:
    assert [holds({"dtypes": ["bfloat16"]}, dtype=name) for name in (None, "bfloat16", "fp8")] == [
        True,
        True,
        False,
    ]
    assert [holds({"dtypes": ["fp8"]}, dtype=name) for name in (None, "bfloat16", "fp8")] == [False, False, True]


def test_a_pipeline_has_two_ranks_or_is_still_to_be_chosen() -> None:
    sizes = (None, 1, 2, "2,4")
    assert [holds({"pipelined": True}, pp=pp) for pp in sizes] == [False, False, True, True]
    assert [holds({"pipelined": False}, pp=pp) for pp in sizes] == [True, True, False, False]


@pytest.fixture
def few_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    base = [default("overlap_tp", 1), default("dispatcher", "all-to-all", of_recipes=True)]
    own = [default("dispatcher", "deepep"), default("pp_communication", "blocking", pipelined=True)]
    of_name = {
        "plain": StackDefaults(title="Plain"),
        "base": StackDefaults(title="Base", lines=base, generations=["Hopper"]),
        "own": StackDefaults(title="Own", extends="base", lines=own, export="nemo"),
        "old": StackDefaults(title="Old", ended=True, export="old"),
        "recipes": StackDefaults(title="Recipes", has_recipes=True, lines=base),
    }
    rows = [
        StackErrors(generation="Hopper", kind="dense", rows=1, errors={"base": (0.04, -0.01), "own": (0.03, 0.03)}),
        StackErrors(generation="Hopper", kind="MoE", rows=5, errors={"base": (0.02, -0.09), "own": (0.08, -0.08)}),
        StackErrors(generation="Ampere", kind="dense", rows=2, errors={"plain": (0.2, 0.2), "own": (0.2, 0.2)}),
    ]
    monkeypatch.setattr(stacks, "stacks", lambda: of_name)
    monkeypatch.setattr(stacks, "stack_errors", lambda: {(row.generation, row.kind): row for row in rows})


@pytest.mark.usefixtures("few_stacks")
def test_a_job_gets_the_stack_with_the_smallest_mean_error_of_its_kind_and_generation() -> None:
    one = stacks.default_stack("Hopper", has_experts=False)
    assert one == ("own", "default: smallest error on 1 dense calibration run on Hopper")
    several = stacks.default_stack("Hopper", has_experts=True)
    assert several == ("base", "default: smallest error on 5 MoE calibration runs on Hopper")
    assert stacks.default_stack("Ampere", has_experts=False)[0] == "own"
    measured = stacks.default_stack("Hopper", has_experts=True, measured="layers.csv")
    assert measured == ("plain", "default with layers.csv")
    assert (
        stacks.default_stack("", has_experts=True)[1] == "default: no calibration runs of MoE models on this device"
    )
    assert stacks.default_stack("CDNA", has_experts=False) == (
        "plain",
        "default: no calibration runs of dense models on CDNA",
    )


@pytest.mark.usefixtures("few_stacks")
def test_the_measured_stacks_are_those_with_errors_of_the_kind() -> None:
    assert stacks.measured_stacks("Hopper", has_experts=True) == ["base", "own"]
    assert stacks.measured_stacks("CDNA", has_experts=True) == []


@pytest.mark.usefixtures("few_stacks")
def test_current_stacks_are_not_ended_and_not_of_other_generations() -> None:
    assert stacks.current_stacks("Hopper") == ["plain", "base", "own", "recipes"]
    assert stacks.current_stacks("CDNA") == ["plain", "own", "recipes"]


@pytest.mark.usefixtures("few_stacks")
def test_schedules_are_those_of_the_stack_or_else_of_the_runtime() -> None:
    assert stacks.trainer_of("own@1", "megatron") == "nemo"
    assert stacks.trainer_of("base", "megatron") == "megatron"
    assert stacks.trainer_of("base", "ideal") == ""


@pytest.mark.usefixtures("few_stacks")
def test_only_a_stack_with_recipes_can_be_named_without_them() -> None:
    names = ["recipes", "base", "unheard"]
    assert [stacks.without_recipes(name) for name in names] == ["recipes@none", "base", "unheard"]


def options_of(name: str, *, has_experts: bool = False, **options: Any) -> tuple[str, dict[str, Any]]:
    one = stacks.stack_of(name, options, device=H200, has_experts=has_experts)
    return one.name, dict(one.options)


@pytest.mark.usefixtures("few_stacks")
def test_a_stack_adds_to_the_one_that_it_extends() -> None:
    assert options_of("base") == ("base", {"overlap_tp": 1, "dispatcher": "all-to-all"})
    assert options_of("own", pp=1) == ("own", {"overlap_tp": 1, "dispatcher": "deepep"})
    assert options_of("own", pp=2)[1]["pp_communication"] == "blocking"


@pytest.mark.usefixtures("few_stacks")
def test_none_leaves_out_settings_of_recipes_and_is_in_the_name_where_there_could_be_some() -> None:
    assert options_of("recipes") == ("recipes", {"overlap_tp": 1, "dispatcher": "all-to-all"})
    assert options_of("recipes@none") == ("recipes", {"overlap_tp": 1})
    assert options_of("recipes@none", has_experts=True) == ("recipes@none", {"overlap_tp": 1})


@pytest.mark.usefixtures("few_stacks")
def test_unknown_names_and_releases_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown stack 'bse': there are plain, base, own, old, recipes"):
        options_of("bse@none")
    with pytest.raises(ConfigError, match="stack base has no releases: leave out @1"):
        options_of("base@1")
