"""What is drawn of memory and searches is what their tables say."""

import numpy as np
import pytest

from ppsim import build, simulate
from ppsim.base.errors import ConfigError
from ppsim.plot import memory_figure, pareto_figure
from tests.plot.figures.test_style import CONFIGURATIONS, COSTS

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


def test_titles_are_no_formulas():
    pareto_figure(CONFIGURATIONS, title="$\\frac{1}$").draw_without_rendering()
    memory_figure(timeline_of(), title="$\\frac{1}$").draw_without_rendering()
