"""Arguments that no release of Megatron-LM has are a fork's: they stop the reading if they decide about layers."""

from pathlib import Path

import pytest

import ppsim
from ppsim.base.errors import ConfigError

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
