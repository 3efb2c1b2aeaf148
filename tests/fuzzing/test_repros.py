"""Inputs that once got past the readers, each with its sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

import ppsim as public
from ppsim.base.errors import ConfigError
from tests.cli.conftest import RUNS
from tests.cli.running import ppsim
from tests.fuzzing.corpus import TUNED

GARBLED = " iteration 1 | elapsed time per iteration (ms): {} |\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_garbled_lines_of_a_log_are_skipped_and_counted() -> None:
    Path("train.log").write_text("".join(map(GARBLED.format, ["9.0", "1.2.3", "5.0", "5.0", "1e99", "0"])))
    found = public.read("train.log")
    assert isinstance(found, public.LogTotals)
    assert (list(found.iterations_s), found.num_garbled) == ([0.005, 0.005], 3)
    assert "3 skipped" in str(found)
    Path("train.log").write_text(GARBLED.format("1.2.3"))
    with pytest.raises(ConfigError, match="no line 'elapsed time per iteration"):
        public.read("train.log")


@pytest.mark.parametrize(("name", "value"), [("bf16", True), ("fp16", "x"), ("zero_optimization", 1)])
def test_a_section_of_deepspeed_that_is_no_object_is_refused(name: str, value: Any) -> None:
    Path("ds.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 2, name: value}))
    with pytest.raises(ConfigError, match=rf'{name} must be an object, "{name}": '):
        public.read_run_config("ds.json")


def test_rows_are_printed_as_markdown_where_a_table_is_empty() -> None:
    Path("runs.csv").write_text(RUNS)
    printed = ppsim("validate", "runs.csv", "--markdown").stdout
    assert "runs.csv" in printed
    assert "Rows for which no projection can be asked" not in printed


def test_a_field_of_a_csv_that_is_too_long_is_refused_with_its_row() -> None:
    Path("long.csv").write_text(
        "model,gpus,metric,value,remarks\nllama3-8b,8,iteration_s,1," + "r" * 140_000 + "\n"
    )
    for command in (["validate", "long.csv"], ["fit", "long.csv", "-o", "x.json"]):
        assert "long.csv, row 1 cannot be read as CSV: field larger" in ppsim(*command, code=2).output
    assert not Path("x.json").exists()


@pytest.mark.parametrize(
    ("key", "verdict", "words"),
    [
        (None, ["fit", 1e9, 1.0], "its verdicts are not those of ppsim tune"),
        (None, ["fits", 1e9, None], "its verdicts are not those of ppsim tune"),
        (None, ["fits", None, 1.0], "its verdicts are not those of ppsim tune"),
        ("tp3", ["fits", 1e9, 1.0], "has a verdict for 'tp3', which is not a configuration of this search"),
    ],
)
def test_an_edited_verdict_is_refused(key: str | None, verdict: list[Any], words: str) -> None:
    public.tune(**TUNED, resume="state.json")
    state = json.loads(Path("state.json").read_text())
    state["verdicts"][key or next(iter(state["verdicts"]))] = verdict
    Path("state.json").write_text(json.dumps(state))
    with pytest.raises(ConfigError, match=words):
        public.tune(**TUNED, resume="state.json")


def test_a_table_with_a_stage_that_has_no_rank_is_refused() -> None:
    table = {"format": "ppsim-table/1", "num_microbatches": 1, "stage_to_rank": [0], "ranks": [[[["F", 3, 0]]]]}
    Path("t.json").write_text(json.dumps(table))
    assert "stage_to_rank has 1 stages, ranks has stage 3" in ppsim("check", "t.json", code=2).output


def test_a_step_whose_action_ends_before_it_starts_is_refused() -> None:
    public.save(public.project(pp=2, microbatches=4), "projected.json")
    timeline = json.loads(Path("projected.json").read_text())
    timeline["timeline"]["start_s"][2] = 1e9
    Path("projected.json").write_text(json.dumps(timeline))
    with pytest.raises(ConfigError, match=r"timeline.end_s\[2\] is before the start of the action"):
        public.read_timeline("projected.json")
