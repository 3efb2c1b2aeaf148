"""Totals of a training log."""

import pytest

from ppsim.base.errors import ConfigError
from ppsim.runs import log_totals as log_totals_module
from ppsim.runs.log_totals import FORMAT, LogTotals
from tests.defaults import number_defaults


def test_totals_have_the_median_iteration_and_no_restarts_unless_there_were_some() -> None:
    totals = LogTotals("a.log", [2.0, 9.0, 2.5])
    assert totals.iteration_time_s == 2.5
    assert totals.one_line == "3 iterations of 2.50 s"
    assert totals.to_json() == {
        "format": FORMAT, "iteration_time_s": 2.5, "source": "a.log", "iterations_s": [2.0, 9.0, 2.5], "timers_s": {},
        "memory_bytes": {}, "num_warm_up": 0, "num_garbled": 0, "num_restarts": 0,
    }  # fmt: skip
    given = LogTotals("a.log", [2.0], {"f": (None, 1.0)}, {"reserved": 5.0}, 3, 4, 6).to_json()
    assert (given["timers_s"], given["memory_bytes"]) == ({"f": (None, 1.0)}, {"reserved": 5.0})
    assert (given["num_warm_up"], given["num_garbled"], given["num_restarts"]) == (3, 4, 6)
    with pytest.raises(ConfigError, match=r"a.log has no iteration left after 3 of warm-up"):
        LogTotals("a.log", [], num_warm_up=3)


def test_numbers_that_callers_may_leave_out() -> None:
    assert number_defaults(log_totals_module) == {
        "LogTotals": {"num_warm_up": 0, "num_garbled": 0, "num_restarts": 0}
    }
