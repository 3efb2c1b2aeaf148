"""Tables fitted for two chunks per rank in a V, against runs of the authors' searches and of Primus' simulator."""

import pytest

from benchmarks.heuristics import zbv_heuristic
from ppsim import StageCosts, build, simulate
from ppsim.catalog.published import controllable_memory as controllable_memory_module
from ppsim.catalog.search.best_table import best_table
from ppsim.simulation.bounds.lower import lower_bounds
from tests.defaults import number_defaults
from tests.fitting import in_a_v
from tests.published import read

SEARCHES = read("v_searches.csv")
PATTERNS = read("v_patterns.csv")
PRIMUS = read("primus_grid.csv")
TABLE_8 = read("zb_paper_v.csv")
SCORES = {"span": "span_s", "step": "step_time_s"}
UNITS = {"forward_s": "forward", "backward_input_s": "backward_input", "backward_weight_s": "backward_weight"}


def case_of(row, cap, kept=1.0):
    """The problem of a row, whose costs are per rank (half a rank a chunk), and the same for the simulator."""
    seconds = {ours: float(row[theirs]) / 2 for ours, theirs in UNITS.items()}
    seconds["transfer_s"] = float(row["transfer"])
    problem = in_a_v(
        num_ranks=int(row["pp"]), num_microbatches=int(row["microbatches"]), activation=0.5,
        activation_kept_for_weight=kept / 2, cap=cap, **seconds,
    )  # fmt: skip
    return problem, StageCosts(**seconds, activation_bytes=0.5, activation_bytes_kept_for_weight=kept / 2)


def search_case(row):
    return case_of(row, float(row["cap"]), float(row["kept"]))


def compared(rows, criterion, theirs, case):
    """For each row ours / theirs − 1 by the criterion, within the cap, and how many meet the lower bound."""
    changes, num_optimal = [], 0
    for row in rows:
        problem, costs = case(row)
        ours = simulate(best_table(problem, criterion=criterion), costs)
        assert (ours.memory.peak_activation_bytes <= problem.cap).all(), row
        seconds = getattr(ours, SCORES[criterion])
        assert seconds <= float(row[theirs]) * (1 + 1e-9), row
        changes.append(seconds / float(row[theirs]) - 1)
        num_optimal += seconds <= lower_bounds(problem).of(criterion) * (1 + 1e-9)
    return changes, num_optimal


@pytest.mark.search
def test_the_zbv_heuristic_alone_has_the_span_and_the_memory_of_the_authors_runs():
    rows = [row for row in SEARCHES if row["algorithm"] == "zb-v"]
    assert len(rows) == 288
    for row in rows:
        problem, costs = search_case(row)
        timeline = simulate(zbv_heuristic(problem), costs)
        assert timeline.span_s == float(row["span"]), row
        assert timeline.step_time_s == float(row["step"]), row
        assert round(timeline.memory.peak_activation_bytes.max(), 3) == float(row["peak"]), row


@pytest.mark.parametrize("row", TABLE_8, ids=lambda row: row["microbatches"])
@pytest.mark.parametrize(
    "kept", [1.0, 32 * 4096 / (34 * 4096 + 5 * 32 * 1024)], ids=["W-frees-all", "I-frees-part"]
)
def test_zero_bubble_paper_table_8_zb_v_in_the_memory_of_1f1b(row, kept):
    """Whether W frees an activation whole or I a part of it (M_B = 34h + 5as, M_W = 32h) is no matter here."""
    seconds = {ours: float(row[f"{theirs}_us"]) for ours, theirs in {**UNITS, "transfer_s": "transfer"}.items()}
    cap, m = 32.0, int(row["microbatches"])
    problem = in_a_v(num_ranks=16, num_microbatches=m, activation_kept_for_weight=kept, cap=cap, **seconds)
    timeline = simulate(
        zbv_heuristic(problem), StageCosts(**seconds, activation_bytes=1, activation_bytes_kept_for_weight=kept)
    )
    assert round(timeline.span_bubble_ratio, 4) == float(row["bubble_zb_v"])
    assert round(timeline.bubble_ratio, 4) == float(row["bubble_zb_v_step"])
    assert timeline.memory.peak_activation_bytes.max() <= cap


@pytest.mark.search
def test_no_run_of_the_authors_zb_v_heuristic_has_a_shorter_span_in_its_memory():
    # benchmarks/grids.py compares all 288, and every row of the other grids.
    rows = [row for row in SEARCHES if row["algorithm"] == "zb-v" and row["forward"] == "28814"]
    rows = [row for row in rows if row["kept"] == "1" and row["pp"] in "48" and int(row["microbatches"]) < 64]
    assert len(rows) == 12
    changes, num_optimal = compared(rows, "span", "span", search_case)
    assert num_better(changes) >= 4
    assert num_optimal >= 4


@pytest.mark.parametrize(
    ("forward", "num_rows", "better", "optimal"),
    [("18522", 13, 11, 5), pytest.param("29718", 19, 14, 13, marks=pytest.mark.long)],
)
@pytest.mark.search
def test_no_table_of_the_authors_v_flex_search_is_faster_in_its_memory(forward, num_rows, better, optimal):
    rows = [row for row in SEARCHES if row["algorithm"] == "v-flex" and row["forward"] == forward]
    assert len(rows) == num_rows
    changes, num_optimal = compared(rows, "step", "step", search_case)
    assert num_better(changes) >= better
    assert num_optimal >= optimal


@pytest.mark.parametrize(
    ("algorithm", "forward", "mean", "optimal"),
    [
        ("v-half-fixed", "18522", -0.0339, 8),
        ("v-half-fixed", "29718", -0.0299, 12),
        ("v-min-fixed", "18522", -0.1269, 2),
        ("v-min-fixed", "29718", -0.0866, 6),
    ],
)
@pytest.mark.long
def test_v_half_and_v_min_as_published_are_always_slower_in_the_memory_that_they_take(
    algorithm, forward, mean, optimal
):
    rows = [row for row in PATTERNS if row["algorithm"] == algorithm and row["forward"] == forward]
    assert len(rows) == 12
    changes, num_optimal = compared(rows, "step", "step_time", lambda row: case_of(row, float(row["peak"])))
    assert max(changes) < 0
    assert sum(changes) / len(changes) <= mean
    assert num_optimal >= optimal


def num_better(changes):
    return sum(change < -1e-9 for change in changes)


def primus_timeline(row, name):
    """The table that `build` makes for the costs of a row, its f, b, w a rank (half a rank a chunk)."""
    costs = StageCosts(
        forward_s=float(row["f"]) / 2,
        backward_input_s=float(row["b"]) / 2,
        backward_weight_s=float(row["w"]) / 2,
        activation_bytes=0.5,
    )
    return simulate(build(name, pp=int(row["pp"]), microbatches=int(row["microbatches"]), costs=costs), costs)


@pytest.mark.parametrize("algorithm", ["v-half", "v-min", "zbv-formatted"])
@pytest.mark.long
def test_primus_tables_for_a_v_are_never_faster_than_what_build_makes_in_no_more_memory(algorithm):
    rows = [row for row in PRIMUS if row["algorithm"] == algorithm and (row["f"], row["b"]) == ("12", "14")]
    assert len(rows) == (9 if algorithm == "zbv-formatted" else 12)
    for row in rows:
        busy = int(row["microbatches"]) * (12 + 14 + 8)
        assert 1 - busy / float(row["step_time"]) == pytest.approx(float(row["bubble_rate"]), abs=1e-6), row
        ours = primus_timeline(row, algorithm.replace("zbv-formatted", "zbv"))
        assert ours.step_time_s <= float(row["step_time"]) * (1 + 1e-9), row
        assert ours.bubble_ratio <= float(row["bubble_rate"]) + 1e-6, row
        assert ours.memory.peak_activation_bytes.max() <= float(row["max_memory_fraction"]), row


@pytest.mark.parametrize(
    ("name", "theirs", "ours"),
    [("v-half", 10.6, 5.76), pytest.param("v-min", 23.5, 14.30, marks=pytest.mark.long)],
)
def test_bubbles_at_f_12_i_14_w_8_of_primus_v_half_and_v_min_and_of_ours(name, theirs, ours):
    (row,) = (
        row
        for row in PRIMUS
        if (row["algorithm"], row["pp"], row["microbatches"], row["b"]) == (name, "8", "64", "14")
    )
    assert round(100 * float(row["bubble_rate"]), 1) == theirs
    assert 100 * primus_timeline(row, name).bubble_ratio <= ours + 0.005


def test_what_is_left_out_in_catalog_controllable_memory_has_these_values() -> None:
    assert number_defaults(controllable_memory_module) == {
        "from_block": {"are_weights_in_order": True},
    }  # fmt: skip
