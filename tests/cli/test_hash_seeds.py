"""The answer does not depend on the order of sets of names, which Python draws anew in every process."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "scripts" / "check_hash_seeds.py"
spec = importlib.util.spec_from_file_location("check_hash_seeds", PATH)
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)

SMALL = (
    check.COMMANDS[0],
    "tune --model gpt2 --gpus 2 --cluster dgx-a100 --global-batch-size 8 --recompute full --split auto --json",
)


@pytest.mark.slow
def test_two_hash_seeds_give_one_answer():
    assert check.different(SMALL, (0, 2)) == []
