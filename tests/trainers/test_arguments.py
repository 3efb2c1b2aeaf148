"""Arguments that no release of Megatron-LM has are a fork's: they stop the reading if they decide about layers."""

from pathlib import Path
from typing import Any

import pytest

import ppsim
from ppsim.base.errors import ConfigError
from ppsim.trainers import setting
from ppsim.trainers.arguments import Arguments

COMMAND = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 512 --num-attention-heads 8 "
    "--seq-length 512 --vocab-size 1024 --micro-batch-size 1 --bf16 "
)


@pytest.mark.parametrize(
    "argument",
    ["--noop-layers 2,3", "--schedules-method dualpipev", "--first-k-dense-replace 1", "--recompute-in-advance",
     "--sequence-parallel-size 2", "--expert-interval 2", "--fp8-mode x"],
)  # fmt: skip
def test_an_argument_of_a_fork_that_decides_stops_the_reading_unless_it_is_ignored(
    tmp_path: Path, argument: str
) -> None:
    path = tmp_path / "x.sh"
    path.write_text(COMMAND + argument)
    name = argument.split()[0][2:].replace("-", "_")
    with pytest.raises(ConfigError, match=f"{name} .* is no argument of Megatron-LM.*--ignore {name}"):
        ppsim.read_run_config(path)
    read = ppsim.read_run_config(path, ignore=[name.replace("_", "-")])
    assert [option.name for option in read.ignored] == [name]


def test_an_argument_of_a_fork_stops_the_reading_of_a_yaml_file_too(tmp_path: Path) -> None:
    path = tmp_path / "model_config.yaml"
    path.write_text(
        "MODEL_ARGS:\n  --num-layers: 4\n  --hidden-size: 64\n  --num-attention-heads: 4\n  --noop-layers: 2\n"
    )
    with pytest.raises(ConfigError, match="noop_layers 2 is no argument of Megatron-LM"):
        ppsim.read_run_config(path)
    assert [option.name for option in ppsim.read_run_config(path, ignore=["noop-layers"]).ignored] == [
        "noop_layers"
    ]


@pytest.mark.parametrize(
    ("arguments", "is_said"),
    [("--fp8-format hybrid", True), ("--fp8-format hybrid --bf16", False), ("--bf16", False)],
)
def test_8_bit_gemms_without_16_bits_have_a_note(tmp_path: Path, arguments: str, is_said: bool) -> None:
    path = tmp_path / "x.sh"
    path.write_text(COMMAND.replace("--bf16", "") + arguments)
    notes = ppsim.read_run_config(path).notes
    assert ("float8 without bf16: what Megatron-LM has in float32 is taken as bfloat16" in notes) is is_said


def test_other_arguments_of_a_fork_are_listed_as_such(tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_text(COMMAND + "--wonderful-trick 2 --moe-router-force-load-balancing --log-nothing")
    effects = {option.name: option.effect for option in ppsim.read_run_config(path).ignored}
    assert effects == {"wonderful_trick": "unknown, not Megatron-LM's", "moe_router_force_load_balancing": "time"}


def test_an_argument_without_its_value_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.sh"
    path.write_text(COMMAND + "--num-layers")
    with pytest.raises(ConfigError, match="num_layers has no value: give a whole number of 1 or more"):
        ppsim.read_run_config(path)


def given(**values: Any) -> Arguments:
    return Arguments(values, "x.sh")


def test_a_flag_is_true_false_or_followed_by_a_variable() -> None:
    found = given(on=True, off=False, number=1, opened="$MORE", text="yes")
    assert [found.flag(name) for name in ("on", "off", "number", "opened", "gone")] == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert found.flag("gone", default=True)
    with pytest.raises(ConfigError, match="text must be true or false: got 'yes'"):
        found.flag("text")


def test_a_count_is_whole_and_large_enough() -> None:
    found = given(layers=4, none=None, empty=True, zero=0)
    assert [found.count(name) for name in ("layers", "none", "gone")] == [4, None, None]
    assert (found.count("gone", 3), found.count("zero", least=0)) == (3, 0)
    assert (found.number("layers", 7), found.number("gone", 7), found.number("zero", 7, least=0)) == (4, 7, 0)
    assert (found.need("layers"), found.need("gone", "layers")) == (4, 4)
    for name, sentence in (("empty", "empty has no value: give a whole number of 1 or more"), ("zero", "zero")):
        with pytest.raises(ConfigError, match=sentence):
            found.count(name)
    with pytest.raises(ConfigError, match=r"x\.sh: gone is missing"):
        found.need("gone", "none")


def test_a_variable_of_the_launch_is_asked_for_by_its_option() -> None:
    found = given(tp="$TP", dp="$(nproc)", deep="${A:-1}")
    assert found.count("tp", word="tp") is None
    assert found.needed["tp"] == ("tp is $TP, which the file does not set", "--set TP=VALUE or --tp")
    assert found.count("dp", word="dp") is None
    assert found.needed["dp"][1] == "--dp"
    with pytest.raises(ConfigError, match=r"which the file does not set: give --set TP=VALUE"):
        found.count("tp")
    with pytest.raises(ConfigError, match="deep is "):
        found.count("deep", word="dp")


def test_torchrun_starts_one_node_by_default() -> None:
    assert given(nproc_per_node=4).launched_gpus() == 4
    assert given(nproc_per_node=4, nnodes=3).launched_gpus() == 12
    assert given(nnodes=3).launched_gpus() is None
    for value, text in (("auto", "auto"), (True, "without a value")):
        found = given(nproc_per_node=value)
        assert found.launched_gpus() is None
        assert found.assumed == [f"nproc_per_node {text} is no number: the file leaves the number of GPUs open"]


def test_choices_and_parts_are_within_their_range() -> None:
    found = given(mode="a", part=0.5, ends=1, beyond=1.5, flag=True, negative=-0.1)
    assert (found.choice("mode", ("a", "b"), word="x"), found.choice("gone", ("a", "b"), word="x")) == ("a", None)
    assert found.choice("gone", ("a", "b"), "b", word="x") == "b"
    with pytest.raises(ConfigError, match="mode must be b, c or d: got 'a'"):
        found.choice("mode", ("b", "c", "d"), word="x")
    assert [found.part(name, 0.25, word="x") for name in ("part", "ends", "gone")] == [0.5, 1.0, 0.25]
    for name in ("beyond", "flag", "negative"):
        with pytest.raises(ConfigError, match=f"{name} must be a number from 0 to 1"):
            found.part(name, 0.0, word="x")


def test_arguments_that_were_read_set_or_asked_are_told_apart() -> None:
    found = Arguments({"tp": 2, "off": False, "other": 3, "none": None}, "x.sh", asked=["tp", "off"])
    assert (found.has("tp"), found.has("off"), found.has("gone")) == (True, False, False)
    assert (found.asks("tp"), found.asks("off"), found.asks("other")) == (True, False, False)
    assert found.read == (("tp", "model"),)
    found.get("other", word="dp")
    found.get("none")
    assert found.read == (("tp", "model"), ("other", "dp"))
    assert found.read_options == (("tp", "model"),)
    complete = Arguments({"tp": 2}, "x.sh", is_complete=True)
    assert not complete.asks("tp")
    assert given(tp=2, wonderful="x", adam="adam").unread == [("tp", 2), ("wonderful", "x")]


def test_rows_of_a_table_read_and_write_one_option() -> None:
    row = setting.count("pp", "pipeline_size", 1, least=0)
    assert setting.read_rows([row], given(pipeline_size=0), {"tp": 2}) == {"tp": 2, "pp": 0}
    assert setting.read_rows([row], given(), {}) == {"pp": 1}
    assert setting.write_rows([row], {"pp": 4}) == {"pipeline_size": 4}
    assert setting.write_rows([row], {}) == {}
    only = setting.count("pp", "pipeline_size", when=lambda options: options["pp"] > 1)
    assert (only.write({"pp": 1}), only.write({"pp": 2})) == ({}, {"pipeline_size": 2})
    assert setting.read_rows([only], given(), {}) == {"pp": None}
    assert (setting.named("a", 0), setting.named("a", None), setting.named("a", 1, None)) == ({"a": 0}, {}, {})
