"""`ppsim build auto`: the table on standard output or in a file, the verdict beside it."""

import json
import os
import signal
import sys

import pytest

from ppsim import StageCosts, read_schedule, simulate
from tests.cli.conftest import COSTS
from tests.cli.running import ppsim
from tests.processes import start

SHAPE = ("build", "auto", "--pp", 4, "--num-microbatches", 8, "--costs", "C.json")


def test_the_file_is_what_standard_output_has_and_the_verdict_is_beside_it(folder):
    printed = ppsim(*SHAPE)
    written = ppsim(*SHAPE, "-o", "auto.csv")
    assert (folder / "auto.csv").read_text() == printed.stdout
    assert written.stdout == ""
    assert written.stderr.splitlines() == [
        "wrote auto.csv (4 ranks, 96 actions)",
        "step 27.4 s, equal to zb-h2; placement loop; optimal (bound 27.4 s)",
    ]
    assert simulate(read_schedule("auto.csv"), StageCosts(**COSTS)).step_time_s == 27.375


def test_it_keeps_to_the_memory_limit(folder):
    told = ppsim(
        *SHAPE, "--memory-limit", "3GiB", "--criterion", "span", "--max-rounds", 2, "-o", "auto.csv"
    ).stderr
    assert "\nspan " in told
    assert simulate(read_schedule("auto.csv"), StageCosts(**COSTS)).memory.peak_bytes.max() <= 3 * 2**30


def test_what_is_not_proved_is_said_with_its_gap_and_rounds_give_the_same_table(folder):
    stages = [1.5, 1, 1, 1, 1, 1, 1, 1.5]
    costs = {"forward_s": stages, "backward_input_s": stages, "backward_weight_s": stages, "transfer_s": 0.3}
    (folder / "C.json").write_text(json.dumps(costs))
    shape = (*SHAPE[:4], "--num-microbatches", 17, *SHAPE[-2:])  # of 8, ranks are bounded together: it is proved
    search = (*shape, "--vpp", 2, "--placement", "loop", "--max-rounds", 10, "--time-limit", 600, "--seed", 3)
    first, again = (ppsim(*search) for _ in range(2))
    assert first.output == again.output
    assert first.stderr == (
        "step 133 s, 4.71 % below gis-h; placement loop; at most 1.14 % above the best possible (bound 132 s)\n"
    )


def test_the_limit_is_the_commands_and_not_the_searchs_alone(folder, monkeypatch):
    from ppsim.catalog import auto
    from ppsim.cli import common

    given, began_s = [], common.time.monotonic()
    monkeypatch.setattr(common.time, "monotonic", lambda: began_s + 2.0 * len(given))
    read, optimise = common.time_left_s, auto.optimise
    monkeypatch.setattr("ppsim.cli.build.time_left_s", lambda limit_s: given.append("started") or read(limit_s))
    monkeypatch.setattr(auto, "optimise", lambda **all: given.append(all["time_limit_s"]) or optimise(**all))
    ppsim(*SHAPE, "--time-limit", 5)
    assert given == ["started", 2.0]  # 2 s until here, and 1 s to write the table


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_ctrl_c_ends_the_search_without_a_traceback_or_a_file(folder):
    costs = {"forward_s": [1, 2] * 4, "backward_input_s": 1, "backward_weight_s": [1, 3] * 4, "transfer_s": 0.3}
    (folder / "C.json").write_text(json.dumps(costs))
    waiting = (
        "import signal, ppsim.catalog.auto as o; from ppsim.cli import main\n"
        "o._Search.begin = lambda self, until, begin=o._Search.begin: (begin(self, until), print('searching', flush=True))\n"
        "main()"
    )
    command = [
        sys.executable,
        "-c",
        waiting,
        *map(str, SHAPE),
        "--vpp",
        "2",
        "--time-limit",
        "200",
        "-o",
        "auto.csv",
    ]
    search = start(command)
    assert search.stdout.readline() == "searching\n"
    search.send_signal(signal.SIGINT)
    told = search.communicate(timeout=120)[1]
    assert search.returncode == 130
    assert told == ""
    assert not (folder / "auto.csv").exists()
