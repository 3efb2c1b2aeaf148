"""State files: verdicts come back, and files of other searches are refused."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.tuning.command_line import _exact_size
from ppsim.tuning.evaluate import EvaluationResult, is_dominated
from ppsim.tuning.resume_file import read_state, state_to_json, verdicts_in

VERDICTS = {
    "a": EvaluationResult("fits", 10.0, 2.0), "b": EvaluationResult("does not fit", 90.0),
    "c": EvaluationResult("not possible", math.inf),
}  # fmt: skip


def search(zero: int = 1, **question: Any) -> tuple[Any, Any]:
    """Return a question and a space that are written as they are."""
    job = SimpleNamespace(optimizer=SimpleNamespace(zero_stage=zero))
    asked = {"gpus": 8} | question
    return SimpleNamespace(job=job, to_json=lambda: asked), SimpleNamespace(
        to_json=lambda: {"tp": [1, 2], "zero": [zero]}
    )


def written(path: Path, change: dict[str, Any] | None = None, zero: int = 1) -> Path:
    state = state_to_json(*search(zero), 3, VERDICTS) | (change or {})
    path.write_text(json.dumps(state))
    return path


def test_verdicts_come_back_with_unknown_sizes(tmp_path: Path) -> None:
    path = written(tmp_path / "s.json")
    assert json.loads(path.read_text())["verdicts"] == {
        "a": ["fits", 10.0, 2.0], "b": ["does not fit", 90.0, None], "c": ["not possible", None, None],
    }  # fmt: skip
    assert json.loads(path.read_text())["seed"] == 3
    assert read_state(path, *search(), 3) == VERDICTS
    assert read_state(None, *search(), 3) == read_state(tmp_path / "gone.json", *search(), 3) == {}


@pytest.mark.parametrize("content", ["[]", '{"format": "ppsim-tune/2"}', "{}"])
def test_other_files_are_no_states(tmp_path: Path, content: str) -> None:
    (tmp_path / "s.json").write_text(content)
    with pytest.raises(ConfigError, match=r"is no state of ppsim tune \(format ppsim-tune/1\)"):
        read_state(tmp_path / "s.json", *search(), 3)


def test_states_of_other_searches_name_the_difference(tmp_path: Path) -> None:
    path = written(tmp_path / "s.json")
    with pytest.raises(ConfigError, match="gpus is 8 there and 16 here"):
        read_state(path, *search(gpus=16), 3)
    with pytest.raises(ConfigError, match=r"zero is \[1\] there and \[2\] here"):
        read_state(path, *search(zero=2), 3)
    with pytest.raises(ConfigError, match="gpus is None there"):
        read_state(written(path, {"question": None}), *search(), 3)


@pytest.mark.parametrize(
    "verdict",
    [
        ["fast", 1.0, 1.0], ["fits", None, 1.0], ["fits", 1.0, None], ["fits", 0.0, 1.0], ["fits", -1.0, 1.0],
        ["fits", 1e30, 1.0], ["fits", 1.0], ["fits", "x", 1.0], 3,
    ],
)  # fmt: skip
def test_wrong_verdicts_are_refused(verdict: Any) -> None:
    with pytest.raises(ConfigError, match=r"s\.json is wrong: its verdicts are not those of ppsim tune"):
        verdicts_in({"verdicts": {"a": verdict}}, "s.json")


def test_a_configuration_is_dominated_by_one_as_fast_with_as_little_memory() -> None:
    front = [(1.0, 100.0), (2.0, 50.0)]
    assert is_dominated(1.0, 100.0, front)
    assert is_dominated(2.5, 60.0, front)
    assert not is_dominated(0.9, 200.0, front)
    assert not is_dominated(1.9, 60.0, front)
    assert not is_dominated(9.0, 49.0, front)


def test_a_limit_is_written_exactly() -> None:
    assert [_exact_size(size) for size in (40 * 2.0**30, 1.5 * 2.0**30, 80e9)] == [
        "40GiB",
        "1.5GiB",
        "80000000000.0B",
    ]
