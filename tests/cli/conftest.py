"""A folder to work in, with the files that the commands' examples name."""

import json

import pytest

from ppsim import build
from ppsim.schedule.grammar import format_table

COSTS = {
    "forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0,
    "activation_bytes": 2**30, "activation_bytes_kept_for_weight": 2**29, "transfer_s": 0.125,
}  # fmt: skip

ANSWER = {  # of `ppsim tune`, as far as `figure pareto` looks
    "format": "ppsim-tune/1",
    "question": {"memory_limit_bytes": 80e9},
    "verdicts": {
        "tp1 cp1 ep1 dp2 pp2 vpp1 mb1 none 1f1b auto": ["fits", 60e9, 2.0],
        "tp2 cp1 ep1 dp1 pp2 vpp1 mb1 none 1f1b auto": ["fits", 40e9, 3.0],
        "tp2 cp1 ep1 dp1 pp2 vpp1 mb1 full 1f1b auto": ["fits", 45e9, 3.5],
        "tp1 cp1 ep1 dp4 pp1 vpp1 mb1 none 1f1b auto": ["does not fit", None, None],
    },
}
RUNS = (  # as `ppsim validate` and `ppsim fit` read them
    "model,gpus,tp,pp,global_batch,metric,value\n"
    "llama3-8b,8,2,2,32,iteration_s,3.9\n"
    "llama3-8b,16,2,2,64,iteration_s,3.95\n"
)  # fmt: skip


@pytest.fixture
def advice():
    """In a test with it, `project` looks for changes that gain time: see `without_advice`."""


@pytest.fixture(autouse=True)
def _advice_only_for_its_tests(request):
    if "advice" not in request.fixturenames:
        request.getfixturevalue("without_advice")


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
    (tmp_path / "runs.csv").write_text(RUNS)
    return tmp_path
