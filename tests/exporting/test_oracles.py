"""What is exported, executed by the code that is to execute it: Primus' runner, Megatron-core's parser and orders."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ppsim.base.errors import PpsimError
from ppsim.base.files import to_json
from ppsim.catalog.build import build, every_schedule
from ppsim.exporting.primus import primus_table
from tests.exporting.oracles import oracles

DRIVER = Path(__file__).with_name("primus_tables.py")
MOST_SECONDS = 240  # a guard: the ranks of a run that hangs are ended by the driver long before


def write_what_primus_takes(folder: Path, pp: int) -> set[str]:
    """Write a table of every entry that Primus can express, of 2 pp microbatches; return their names."""
    written = set()
    for name, entry in every_schedule().items():
        table = build(entry, pp=pp, microbatches=max(2 * pp, round(entry.least_microbatches(p=pp))))
        try:
            (folder / f"{name}.json").write_text(to_json(primus_table(table)))
        except PpsimError:
            continue
        written.add(name)
    return written


@pytest.mark.parametrize("pp", [2, 4])
def test_primus_runs_every_entry_it_can_express_in_both_modes_and_its_gradients_are_right(pp, tmp_path):
    folder, names = oracles(), write_what_primus_takes(tmp_path, pp)
    assert len(names) >= 22
    done = subprocess.run(
        [sys.executable, DRIVER, folder, tmp_path], capture_output=True, text=True, timeout=MOST_SECONDS
    )
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [run for run in runs if run["max_gradient_error"] is None or run["max_gradient_error"] > 1e-9]
    assert not wrong, (wrong, done.stderr[-2000:])
    assert {(run["table"], run["mode"]) for run in runs} == {
        (name, mode) for name in names for mode in ("async_p2p", "batch_p2p")
    }, done.stderr[-2000:]
