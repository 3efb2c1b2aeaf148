"""A folder to work in, with the files that the commands' examples name."""

import json

import pytest

from ppsim import build
from ppsim.schedule.grammar import format_table

COSTS = {
    "forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0,
    "activation_bytes": 2**30, "activation_bytes_kept_for_weight": 2**29, "transfer_s": 0.125,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, holding T.csv (interleaved, pp 4, vpp 2, m 8), zbv.csv and C.json."""
    monkeypatch.chdir(tmp_path)
    tables = {
        "T.csv": build("interleaved-1f1b", pp=4, vpp=2, microbatches=8),
        "zbv.csv": build("zbv-fixed", pp=4, microbatches=8),
    }
    for name, table in tables.items():
        (tmp_path / name).write_text(format_table(table))
    (tmp_path / "C.json").write_text(json.dumps(COSTS))
    return tmp_path
