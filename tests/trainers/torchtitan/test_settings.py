"""The table of TorchTitan's settings: each row is needed to read and to write."""

import contextlib
from typing import Any

import pytest

from ppsim.base.option_declarations import given_options
from ppsim.model.registry import find_model
from ppsim.trainers.arguments import Arguments
from ppsim.trainers.setting import read_rows, write_rows
from ppsim.trainers.torchtitan.settings import SETTINGS

PLAN: dict[str, Any] = {
    "tp": 2, "pp": 4, "cp": 2, "ep": 2, "etp": 1, "gpus": 64, "seq_len": 4096, "micro_batch": 2, "global_batch": 64, "zero": 1,
    "num_distributed_optimizer_instances": 2, "schedule": "zbv-fixed", "split": [3, 4, 4, 4, 4, 5, 4, 4], "vpp": 2,
    "recompute": "full", "sequence_parallel": False, "dtype": "float8", "fp8_param_gather": True, "compile": True, "overlap_tp": "0.5,0.5",
}  # fmt: skip


def written(rows: Any, release: str) -> dict[str, Any]:
    return write_rows(rows, {**PLAN, "release": release, "entry": {}})


def read(rows: Any, release: str) -> dict[str, Any]:
    arguments = Arguments(written(SETTINGS, release) | {"nproc_per_node": 8, "nnodes": 8}, "F")
    options = given_options(read_rows(rows, arguments, {"model": find_model("llama3-8b")}))
    return {name: option for name, option in options.items() if name not in ("model", "batch")}


@pytest.mark.parametrize("release", ["0.2", "main"])
def test_a_plan_is_read_back(release: str) -> None:
    again = read(SETTINGS, release)
    other = {"gpus", "dtype", "fp8_param_gather"} if release == "main" else {"gpus", "sequence_parallel"}
    assert {name: option for name, option in PLAN.items() if again.get(name) != option}.keys() == other | {
        "overlap_tp"
    }
    assert (again["dp"], again["overlap_tp"]) == (4, "0.5")


@pytest.mark.parametrize("row", range(len(SETTINGS)), ids=lambda row: "+".join(SETTINGS[row].options))
def test_without_a_row_of_the_table_its_options_are_neither_read_nor_written(row: int) -> None:
    rows = SETTINGS[:row] + SETTINGS[row + 1 :]
    with contextlib.suppress(KeyError):  # a later row needs the option
        assert any(read(rows, release) != read(SETTINGS, release) for release in ("0.2", "main"))
    is_written = any(written(rows, release) != written(SETTINGS, release) for release in ("0.2", "main"))
    assert is_written is ("runtime" not in SETTINGS[row].options)
