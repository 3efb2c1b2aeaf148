"""The searched zero-bubble schedules against the paper's numbers and against runs of the authors' code."""

import pytest

from ppsim import StageCosts, simulate
from ppsim.catalog.search.best_table import best_table
from tests.fitting import one_chunk
from tests.published import read

TABLE_9 = {(row["model"], row["microbatches"]): row for row in read("zb_paper.csv")}
TABLE_5 = read("zb_paper_auto.csv")
GRID = read("zb_heuristic_grid.csv")


def paper_case(row, caps):
    """Arguments of the builders, and the same costs for the simulator."""
    profile = TABLE_9[row["model"], row["microbatches"]]
    names = ("forward", "backward_input", "backward_weight", "transfer")
    seconds = {f"{name}_s": float(profile[f"{name}_ms"]) / 1e3 for name in names}
    hidden, heads, p = int(row["hidden"]), int(row["heads"]), int(profile["pp"])
    activation, kept = 34 * hidden + 5 * heads * 1024, 32 * hidden
    arguments = {
        "num_ranks": p,
        "num_microbatches": int(row["microbatches"]),
        "activation": activation,
        "activation_kept_for_weight": kept,
        "cap": caps * p * activation,
        **seconds,
    }
    return arguments, StageCosts(**seconds, activation_bytes=activation, activation_bytes_kept_for_weight=kept)


@pytest.mark.parametrize("caps", [1, 2])
@pytest.mark.parametrize("row", TABLE_5, ids=lambda row: f"{row['model']}-{row['microbatches']}")
def test_zero_bubble_paper_table_5_zb_1p_and_zb_2p(row, caps):
    assert len(TABLE_5) == 12
    arguments, costs = paper_case(row, caps)
    ours = simulate(best_table(one_chunk(**arguments), criterion="span"), costs)
    assert round(ours.span_bubble_ratio, 4) <= float(row[f"bubble_zb_{caps}p"]) + 5e-4
    assert ours.memory.peak_activation_bytes.max() <= arguments["cap"]


def score(criterion):
    return {"span": "span_s", "step": "step_time_s"}[criterion]


def grid_case(row):
    seconds = {
        f"{name}_s": float(row[name]) for name in ("forward", "backward_input", "backward_weight", "transfer")
    }
    kept = float(row["kept"])
    arguments = {
        "num_ranks": int(row["pp"]),
        "num_microbatches": int(row["microbatches"]),
        "activation_kept_for_weight": kept,
        "cap": float(row["cap"]),
        **seconds,
    }
    return arguments, StageCosts(**seconds, activation_bytes=1, activation_bytes_kept_for_weight=kept)


@pytest.mark.parametrize("p", [2, *(pytest.param(p, marks=pytest.mark.search) for p in (4, 8))])
def test_no_run_of_the_authors_heuristic_has_a_shorter_step_and_only_one_a_shorter_span(p):
    rows = [row for row in GRID if int(row["pp"]) == p]
    assert len(rows) == 48
    num_shorter = 0
    for row in rows:
        arguments, costs = grid_case(row)
        step, span = (
            simulate(
                best_table(one_chunk(**arguments), criterion=criterion, is_thorough=criterion == "span"), costs
            )
            for criterion in ("step", "span")
        )
        assert step.step_time_s <= float(row["step"]) + 1e-6, row
        assert span.span_s <= 1.007 * float(row["span"]), row
        num_shorter += span.span_s > float(row["span"]) + 1e-6
        for timeline in (step, span):
            assert timeline.memory.peak_activation_bytes.max() <= arguments["cap"] + 1e-9, row
    assert num_shorter <= (p == 8)


@pytest.mark.search
def test_some_rows_are_better_than_the_authors_heuristic():
    gains = {"span": [], "step": []}
    for row in (row for row in GRID if int(row["pp"]) > 2 and float(row["cap"]) == 1.5 * int(row["pp"])):
        arguments, costs = grid_case(row)
        for criterion, gain in gains.items():
            ours = simulate(best_table(one_chunk(**arguments), criterion=criterion), costs)
            gain.append(1 - getattr(ours, score(criterion)) / float(row[criterion]))
    assert max(gains["span"]) > 0.005
    assert max(gains["step"]) > 0.01
