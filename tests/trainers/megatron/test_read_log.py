"""Logs of Megatron-LM, with lines as its training_log and its timers write them."""

from pathlib import Path

import pytest

from ppsim.base.errors import ConfigError
from ppsim.runs.log_totals import LogTotals
from ppsim.trainers.megatron import read_log as log_module
from ppsim.trainers.megatron.read_log import is_log, read_log
from tests.defaults import parameter_defaults


def iteration(number: int, ms: float | str, *, of: int = 9) -> str:
    return (
        f" iteration {number:8d}/{of:8d} | consumed samples: 64 | elapsed time per iteration (ms): {ms} | loss: 1.0"
    )


def read(tmp_path: Path, *lines: str, num_warm_up: int = 1) -> LogTotals:
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    return read_log(path, num_warm_up=num_warm_up)


def test_iterations_after_the_warm_up_are_seconds(tmp_path: Path) -> None:
    made = read(
        tmp_path, iteration(1, 900.5), "\x1b[32m" + iteration(2, "300.0/600.2") + "\x1b[0m", iteration(3, 310.0)
    )
    assert list(made.iterations_s) == [0.3, 0.31]
    assert (made.num_warm_up, made.num_garbled, made.num_restarts) == (1, 0, 0)
    assert made.source.endswith("train.log")
    assert list(read(tmp_path, iteration(1, 900.0), num_warm_up=0).iterations_s) == [0.9]


def test_timers_are_medians_of_the_least_and_of_the_most(tmp_path: Path) -> None:
    def timers(least: float, most: float) -> list[str]:
        return ["(min, max) time across ranks (ms):", f"    forward-backward ...............: ({least}, {most})"]

    made = read(
        tmp_path,
        *(iteration(1, 900.0), *timers(700.0, 800.0), iteration(2, 300.0), *timers(200.0, 250.0)),
        *(iteration(3, 320.0), *timers(240.0, 270.0), iteration(4, 310.0), *timers(210.0, 280.0)),
    )
    assert made.timers_s == {"forward-backward": (0.21, 0.27)}


def test_a_timer_of_one_iteration_only_is_not_left_out_as_a_warm_up(tmp_path: Path) -> None:
    made = read(tmp_path, iteration(1, 900.0), "  optimizer ...: (5.0, 6.0)", iteration(2, 300.0))
    assert made.timers_s == {"optimizer": (0.005, 0.006)}


def test_timers_of_ranks_are_their_least_and_their_most(tmp_path: Path) -> None:
    ranks = ["times across ranks (ms):", "  forward-compute:"]
    first, second = (
        [f"     rank  {rank}: {ms}" for rank, ms in enumerate(times)] for times in ((5, 4, 9), (7, 3, 6))
    )
    made = read(
        tmp_path, iteration(1, 90.0), *ranks, *first, iteration(2, 30.0), *ranks, *second, iteration(3, 30.0)
    )
    assert made.timers_s == {"forward-compute": (0.003, 0.007)}


def test_old_versions_and_maxima_have_no_least_time(tmp_path: Path) -> None:
    old = "time (ms) | forward-compute: 61.9 | backward-compute: 103.5"
    made = read(tmp_path, iteration(1, 200.0), iteration(2, 190.0), old, "    optimizer-inner ....: 7.25")
    assert made.timers_s == {
        "forward-compute": (None, pytest.approx(0.0619)),
        "backward-compute": (None, pytest.approx(0.1035)),
        "optimizer-inner": (None, pytest.approx(0.00725)),
    }


def test_memory_is_the_most_of_all_ranks_in_bytes(tmp_path: Path) -> None:
    lines = [
        f"[Rank {rank}] (after 2 iterations) memory (MB) | allocated: 9 | max allocated: {most} | max reserved: {held}"
        for rank, most, held in ((0, 1024.0, 2048.0), (1, 1536.0, 1800.0))
    ]
    made = read(tmp_path, iteration(1, 200.0), *lines, iteration(2, 190.0), "max allocated: 9999999")
    assert made.memory_bytes == {"max allocated": 1536 * 2**20, "max reserved": 2048 * 2**20}


def test_after_a_restart_only_the_last_run_counts(tmp_path: Path) -> None:
    made = read(
        tmp_path,
        *(iteration(1, 900.0), iteration(2, 100.0), "  optimizer ...: (5.0, 6.0)", iteration(3, 100.0)),
        *(iteration(2, 800.0), iteration(3, 200.0), iteration(3, 220.0)),
    )
    assert list(made.iterations_s) == [0.2, 0.22]  # the same number again is no restart
    assert made.timers_s == {}
    assert made.num_restarts == 1


def test_lines_into_which_two_ranks_wrote_are_counted(tmp_path: Path) -> None:
    lines = (iteration(1, 900.0), iteration(2, "300.0.5"), iteration(2, 0.0001), iteration(3, 300.0))
    made = read(tmp_path, *lines)
    assert (list(made.iterations_s), made.num_garbled) == ([0.3], 2)
    with pytest.raises(
        ConfigError, match=r"has no line 'elapsed time per iteration \(ms\): …' \(1 garbled lines were"
    ):
        read(tmp_path, iteration(2, "3e"))
    with pytest.raises(ConfigError, match=r"\(ms\): …'$"):
        read(tmp_path, "nothing")


def test_a_log_has_an_iteration() -> None:
    assert is_log("\x1b[32m" + iteration(1, 300.0))
    assert not is_log("elapsed time: 300.0")


def test_limits_of_a_log() -> None:
    assert (log_module._MIB, log_module._LEAST_MS, log_module._MOST_NUMBER) == (2**20, 1e-3, 1e12)
    assert parameter_defaults(log_module.read_log) == {"num_warm_up": 1}
    assert parameter_defaults(log_module._number) == {"least": 0.0}
