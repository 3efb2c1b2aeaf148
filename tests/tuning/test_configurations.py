"""The table of a search's file: what fits, fastest first, with the Pareto set."""

import json
from pathlib import Path
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.tuning.configurations import read_answer, read_configurations
from ppsim.tuning.resume_file import FORMAT

KEY = "tp{} cp1 ep1 dp2 pp2 vpp1 mb1 none 1f1b auto"
OUTCOMES = {1: ["fits", 6.0, 3.0], 2: ["fits", 5.0, 3.0], 4: ["fits", 7.0, 2.0], 8: ["does not fit", 1.0, 1.0], 16: ["fits", 5.0, 3.0],
            32: ["fits", 9.0, 2.5]}  # fmt: skip


def answer(**fields: Any) -> dict[str, Any]:
    given = {
        "format": FORMAT, "question": {"memory_limit_bytes": 80},
        "verdicts": {KEY.format(tp): outcome for tp, outcome in OUTCOMES.items()},
    }  # fmt: skip
    return given | fields


def test_configurations_that_fit_are_rows_by_time_memory_and_key_with_the_pareto_set(tmp_path: Path) -> None:
    rows = read_configurations(answer())
    assert list(rows.columns) == ["configuration", "iteration_time_s", "peak_bytes", "pareto"]
    assert [
        (name.split()[0], *row) for name, *row in rows.itertuples(index=False)
    ] == [
        ("tp4", 2.0, 7.0, True), ("tp32", 2.5, 9.0, False), ("tp16", 3.0, 5.0, True), ("tp2", 3.0, 5.0, False),
        ("tp1", 3.0, 6.0, False),
    ]  # fmt: skip
    file = tmp_path / "tune.json"
    file.write_text(json.dumps(answer()))
    read, limit = read_answer(file)
    assert read.equals(rows)
    assert limit == 80.0


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([], "is not a result of ppsim tune"),
        (answer(format="other"), "is not a result of ppsim tune"),
        (answer(question={}), "is wrong: its question has no memory_limit_bytes"),
        (answer(question={"memory_limit_bytes": "much"}), "is wrong: its question has no memory_limit_bytes"),
        (answer(verdicts={KEY.format(1): OUTCOMES[8]}), "has no configuration that fits"),
        (answer(verdicts={KEY.format(1): ["odd", 1, 1]}), "t.json"),
    ],
)
def test_other_files_are_refused(content: Any, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=sentence):
        read_answer(file)
