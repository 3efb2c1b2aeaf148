"""What is drawn of memory, bubbles, searches and validations is what their tables say."""

import math

import matplotlib
import numpy as np
import pandas
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.base.errors import ConfigError
from ppsim.plot import accuracy_figure, bubble_figure, memory_figure, pareto_figure
from ppsim.projection.bubbles import bubbles_at
from tests.plot.figures.test_style import CONFIGURATIONS, COSTS, ROWS

GIB = 2**30


def timeline_of(pp=4, **costs):
    return simulate(build("1f1b", pp=pp, microbatches=8), COSTS.replace(**costs))


def points_of(axes):
    return {tuple(point) for line in axes.lines for point in np.column_stack(line.get_data()).tolist()}


def test_the_fullest_rank_is_named_and_every_peak_has_a_dot():
    (axes,) = memory_figure(timeline_of(static_bytes=[0, 0, 9 * GIB, 0])).axes
    assert [text.get_text() for text in axes.texts] == ["rank 2: 11.0 GiB at 2F1"]
    dots = {(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "o"}
    assert {y for _, y in dots} == {4.0, 3.0, 11.0, 1.0}


def test_the_limit_is_drawn_inside_the_axis_and_may_be_below_the_peak():
    for limit, top in ((2.0, 4.0), (80.0, 80.0)):
        (axes,) = memory_figure(timeline_of(), memory_limit_bytes=limit * GIB).axes
        assert f"limit {limit:.{2 if limit < 10 else 1}f} GiB" in [text.get_text() for text in axes.texts]
        assert axes.get_ylim()[1] > top


def test_the_memory_axis_leaves_out_what_is_held_all_the_time_only_where_that_is_most_of_it():
    assert memory_figure(timeline_of(static_bytes=1.0 * GIB)).axes[0].get_ylim()[0] == 0
    low, top = memory_figure(timeline_of(static_bytes=40.0 * GIB)).axes[0].get_ylim()
    assert 39 < low < 40 < 44 < top


def test_a_timeline_without_bytes_has_no_memory_figure():
    with pytest.raises(ConfigError, match="the timeline holds no bytes"):
        memory_figure(timeline_of(activation_bytes=0.0))


def test_bubbles_are_a_line_a_schedule_with_a_tick_at_every_number_tried():
    sweep = bubbles_at(
        COSTS.replace(transfer_s=0.0), pp=4, schedules=["1f1b", "dualpipev"], microbatches=[16, 4, 8]
    )
    (axes,) = bubble_figure(sweep).axes
    assert [line.get_label() for line in axes.lines] == ["1f1b", "dualpipev, vpp 2"]
    assert axes.lines[0].get_xdata().tolist() == [4, 8, 16]
    assert axes.lines[0].get_ydata() == pytest.approx([100 * 3 / (m + 3) for m in (4, 8, 16)])
    assert axes.lines[1].get_xdata().tolist() == [8, 16]  # it needs two a rank
    assert [label.get_text() for label in axes.get_xticklabels()] == ["4", "8", "16"]
    assert axes.get_ylim()[0] == 0


def test_bubbles_by_span_are_those_by_span():
    sweep = bubbles_at(COSTS, pp=4, schedules=["zb-h2"], microbatches=[8])
    (axes,) = bubble_figure(sweep, by="span").axes
    assert axes.lines[0].get_ydata() == pytest.approx(100 * sweep["span_bubble_ratio"])
    assert axes.get_ylabel() == "bubble ratio by span (%)"


def test_a_sweep_of_nothing_that_can_be_built_is_refused():
    with pytest.raises(ConfigError, match="no schedule of the sweep can be built"):
        bubble_figure(bubbles_at(COSTS, pp=4, schedules=["dualpipev"], microbatches=[4]))


def test_a_search_is_its_points_its_pareto_set_and_its_limit():
    figure = pareto_figure(CONFIGURATIONS, memory_limit_bytes=80 * GIB)
    (axes,) = figure.axes
    simulated, front, limit = axes.lines
    assert simulated.get_xydata().tolist() == [[60.0, 2.0], [40.0, 3.0]]
    assert front.get_xydata().tolist() == [[40.0, 3.0], [60.0, 2.0]]
    assert limit.get_xdata() == [80.0, 80.0]
    assert [text.get_text() for text in axes.texts] == ["tp2 pp2 full 1f1b", "pp4 1f1b"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "simulated",
        "Pareto set",
        "limit 80.0 GiB",
    ]


@pytest.mark.parametrize("width", ["one-column", "two-column"])
def test_accuracy_has_every_row_twice_and_fitted_ones_hollow(width):
    time, memory, errors = accuracy_figure(ROWS, width=width).axes
    assert {(1.0, 1.0), (2.0, 2.1)} <= points_of(time)
    assert (16.0, 16.0) in points_of(memory)
    hollow = [line for line in time.lines if line.get_marker() == "o" and line.get_markerfacecolor() == "none"]
    assert [line.get_xydata().tolist() for line in hollow] == [[[1.0, 1.0]]]
    drawn = [line.get_xdata().tolist() for line in errors.lines if line.get_marker() != "None"]
    assert drawn == [[0.0], [5.0], [0.0]]
    assert [label.get_text() for label in errors.get_yticklabels()] == ["a", "b"]
    assert {text.get_text() for text in errors.texts} == {"mean |error|", "5.0 %", "0.0 %"}


def test_accuracy_draws_no_set_of_which_only_the_order_counts():
    rows = pandas.concat([ROWS, ROWS.assign(set="c", order_only=True)])
    *_, errors = accuracy_figure(rows).axes
    assert [label.get_text() for label in errors.get_yticklabels()] == ["a", "b"]
    with pytest.raises(ConfigError, match="only the order of the schedules counts"):
        accuracy_figure(ROWS.assign(order_only=True))


def test_sets_of_times_alone_have_no_panel_of_memory():
    figure = accuracy_figure(ROWS[ROWS["quantity"] == "time"])
    assert len(figure.axes) == 2
    assert not any("memory" in axes.get_xlabel() for axes in figure.axes)


def test_the_error_that_is_written_is_that_of_the_rows_that_judge():
    assert math.isclose(ROWS[ROWS["use"] == "test"]["error"].abs().iloc[0], 0.05)
    figure = accuracy_figure(ROWS[ROWS["set"] == "a"])
    assert "5.0 %" in [text.get_text() for text in figure.axes[-1].findobj(matplotlib.text.Text)]


def test_titles_are_no_formulas():
    costs = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    sweep = bubbles_at(costs, pp=2, schedules=["1f1b"], microbatches=[2])
    bubble_figure(sweep, title="$\\frac{1}$").draw_without_rendering()
    pareto_figure(CONFIGURATIONS, title="$\\frac{1}$").draw_without_rendering()
    accuracy_figure(ROWS, title="$\\frac{1}$").draw_without_rendering()
    memory_figure(timeline_of(), title="$\\frac{1}$").draw_without_rendering()
