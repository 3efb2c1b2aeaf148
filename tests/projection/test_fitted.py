"""Schedules that are fitted to the costs: `project` and `build` hand them over."""

import numpy as np
import pytest

import ppsim
from ppsim.errors import ConfigError
from tests.cli.running import ppsim as run

UNEVEN = ppsim.StageCosts(
    forward_s=[1.6, 1.0, 1.0, 1.0], backward_input_s=[1.6, 1.0, 1.0, 1.0], backward_weight_s=[1.2, 0.8, 0.8, 0.8],
    activation_bytes=1.0,
)  # fmt: skip


def test_the_costs_change_the_table_and_it_is_no_slower_than_one_for_equal_stages():
    fitted = ppsim.build("zb-1p", pp=4, microbatches=12, costs=UNEVEN)
    plain = ppsim.build("zb-1p", pp=4, microbatches=12)
    assert fitted.name == plain.name == "zb-1p"
    assert fitted != plain
    assert ppsim.simulate(fitted, UNEVEN).step_time_s <= ppsim.simulate(plain, UNEVEN).step_time_s


@pytest.mark.parametrize(("name", "per_rank"), [("zb-1p", 1), ("zb-2p", 2)])
def test_no_rank_holds_more_than_its_cap(name, per_rank):
    costs = UNEVEN.replace(activation_bytes=[3.0, 1.0, 2.0, 1.0])
    timeline = ppsim.simulate(ppsim.build(name, pp=4, microbatches=12, costs=costs), costs)
    cap = per_rank * 4 * np.array([3.0, 1.0, 2.0, 1.0])
    assert (timeline.memory.peak_activation_bytes <= cap).all()


def test_project_fits_the_table_to_the_stages_of_the_layout():
    made = ppsim.project(pp=4, schedule="zb-1p", runtime="ideal", split=[10, 7, 7, 6])
    again = ppsim.build("zb-1p", pp=4, microbatches=16, costs=made.costs)
    assert made.timeline.schedule == again


def test_costs_are_refused_where_they_change_nothing(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="1f1b is the same at any costs"):
        ppsim.build("1f1b", pp=4, microbatches=8, costs=UNEVEN)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "C.json").write_text('{"forward_s": [1, 2], "backward_input_s": 1, "backward_weight_s": 1}')
    run("build", "zb-2p", "--pp", 2, "--microbatches", 4, "--costs", "C.json", "-o", "T.csv")
    assert "complete, ordered" in run("check", "T.csv").stdout
    assert (
        "forward_s has 2 entries"
        in run("build", "zb-1p", "--pp", 3, "--microbatches", 4, "--costs", "C.json", code=2).stderr
    )


@pytest.mark.parametrize("limit", [3.0, 5.5, 8.0, 24.0])
def test_zb_auto_keeps_to_the_memory_limit_and_is_no_slower_with_more_of_it(limit):
    costs = UNEVEN.replace(static_bytes=[1.0, 0.5, 0.5, 1.5])

    def timeline(limit):
        table = ppsim.build("zb-auto", pp=4, microbatches=12, costs=costs, memory_limit_bytes=limit)
        return ppsim.simulate(table, costs)

    assert (timeline(limit).memory.peak_bytes <= limit).all()
    assert timeline(100.0).step_time_s <= timeline(limit).step_time_s


def test_project_gives_zb_auto_the_memory_that_is_left():
    limit = 45 * 2.0**30
    made = ppsim.project(pp=8, schedule="zb-auto", memory_limit=limit)
    assert made.timeline.memory.peak_bytes.max() <= limit
    assert made.timeline.step_time_s <= ppsim.project(pp=8, schedule="zb-1p").timeline.step_time_s


def test_project_auto_takes_the_placement_that_fits_where_the_other_has_no_table():
    # In a loop none of the catalogue keeps to 20 GiB; in a V some do.
    limit = 20 * 2.0**30
    made = ppsim.project(
        pp=8, vpp=2, microbatches=8, schedule="auto", memory_limit=limit, search_time=0.0, runtime="ideal"
    )
    assert made.timeline.memory.peak_bytes.max() <= limit
    assert made.timeline.schedule.stage_to_rank.tolist() == [*range(8), *reversed(range(8))]


def test_a_limit_below_one_microbatch_does_not_fit(tmp_path, monkeypatch):
    result = run("project", "--pp", 8, "--schedule", "zb-auto", "--memory-limit", "10GiB", code=1)
    assert "for one microbatch > 10.0 GiB: no order of actions fits" in result.stderr
    listed = run("project", "--pp", 8, "--schedule", "all", "--memory-limit", "30GiB").stdout
    assert "zb-auto" in listed
    monkeypatch.chdir(tmp_path)
    wrong = run("build", "1f1b", "--pp", 2, "--microbatches", 4, "--memory-limit", "1GiB", code=2)
    assert "--memory-limit is for a schedule that fits into it" in wrong.stderr
