"""Folders with a table of 2 ranks, and a run that several tests check."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from ppsim.schedule.grammar import format_table
from tests.processes import start
from tests.runtime.cases import table_of
from tests.runtime.processes import TINY, Training, finished, rank_process, sockets_of

REFUSES_PICKLES = """
import pickle
class Unpickler(pickle.Unpickler):
    load = None
pickle.Unpickler, pickle.loads = Unpickler, None
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table, and costs that make a run of it take seconds."""
    (tmp_path / "T.csv").write_text(format_table(table_of("zbv-fixed", p=2, m=4)))
    slow = {"forward_s": 0.1, "backward_input_s": 0.1, "backward_weight_s": 0.1}
    (tmp_path / "slow.json").write_text(json.dumps(slow))
    return tmp_path


@pytest.fixture(scope="session")
def training(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A training run that completes, although

    - its terminal is closed, under nohup;
    - its processes can unpickle nothing: an unpickled message runs what its sender likes, and a local user may be
      quicker to connect than a rank;
    - the folder has a torch.py, which `ppsim`, unlike `python -m ppsim`, does not import.
    """
    folder = tmp_path_factory.mktemp("training")
    (folder / "T.csv").write_text(format_table(table_of("zbv-fixed", p=2, m=4)))
    (folder / "torch.py").write_text("raise SystemExit('this is not torch')")
    (folder / "strict").mkdir()
    (folder / "strict" / "sitecustomize.py").write_text(REFUSES_PICKLES)
    (folder / "tmp").mkdir()
    environment = {
        **os.environ, "PYTHONPATH": str(folder / "strict"), "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "3",
    }  # fmt: skip
    command = ["nohup", sys.executable, "-P", "-m", "ppsim", "train", "--schedule", "T.csv", *TINY]
    command += ["--steps", "12", "--learning-rate", "0.01", "--verify", "--json", "-o", "measured.json"]
    run = start(command, cwd=folder, env=environment)
    rank_environment = rank_process(run, 1).environ()
    (meeting,) = (folder / "tmp").glob("ppsim-train-*")
    mode = meeting.stat().st_mode
    os.kill(run.pid, signal.SIGHUP)
    sockets = sockets_of(run)
    code, out, err = finished(run)
    assert code == 0, err
    return Training(folder, out, sockets, rank_environment, mode)
