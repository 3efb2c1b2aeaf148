"""A folder with a table of 2 ranks, and costs that make a run of it take seconds."""

import json
from pathlib import Path

import pytest

from ppsim.schedule.grammar import format_table
from tests.runtime.cases import table_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "T.csv").write_text(format_table(table_of("zbv-fixed", p=2, m=4)))
    slow = {"forward_s": 0.1, "backward_input_s": 0.1, "backward_weight_s": 0.1}
    (tmp_path / "slow.json").write_text(json.dumps(slow))
    return tmp_path
