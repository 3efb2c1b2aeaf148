"""The interval of an answer, with the spreads that a calibration found."""

import json

import ppsim


def width_of(tmp_path, **spreads):
    file = tmp_path / "overheads.json"
    file.write_text(json.dumps({"action_overhead_s": 0.0, "hop_overhead_s": 0.0} | spreads))
    found = ppsim.project(pp=4, microbatches=8, calibration=file)
    low, high = found.summary.iteration_time_interval_s
    return (high - low) / found.iteration_time_s, found.summary.interval_basis


def test_ranks_that_differ_widen_the_interval_and_are_named(tmp_path):
    plain, said = width_of(tmp_path, action_spread=0.01)
    wide, also_said = width_of(tmp_path, action_spread=0.01, rank_spread=0.2)
    assert "1.00 % per action" in said
    assert "per rank" not in said
    assert wide > 1.5 * plain
    assert "20.00 % per rank" in also_said
