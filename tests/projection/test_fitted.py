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
