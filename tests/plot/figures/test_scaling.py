"""What is drawn of several values is what their rows say."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from ppsim.api.output_formats import SCALING
from ppsim.base.errors import ConfigError
from ppsim.plot.figures.scaling import _apart, _draw_shares, scaling_figure
from ppsim.projection.scaling import Scaling, shares_in
from tests.plot.figures.drawn import lines_of


def row(gpus, time, bubble):
    return {
        "num_gpus": gpus, "stack_name": None, "stack_basis": None, "iteration_time_s": time,
        "iteration_time_low_s": 0.9 * time, "iteration_time_high_s": 1.2 * time, "tokens_per_s": 1000 / time, "pipeline bubble (s)": bubble,
        "model FLOPs at peak (s)": time - bubble,
    }  # fmt: skip


ROWS = [{"gpus": 8} | row(8, 2.0, 0.2), {"gpus": 12, "error": "no"}, {"gpus": 16} | row(16, 1.5, 0.6)]


def drawn(option, rows, **more):
    return scaling_figure(option, rows, [*map(shares_in, rows)], **more)


def test_throughput_has_the_interval_of_the_iteration_the_ideal_and_the_knee():
    figure = drawn("gpus", [ROWS[0], ROWS[2]], knee=16)
    left, _ = figure.axes
    lines = [line.get_ydata() for line in left.lines if list(line.get_xdata()) == [8, 16]]
    assert any(list(heights) == pytest.approx([500.0, 1000 / 1.5]) for heights in lines)
    assert any(list(heights) == [500.0, 1000.0] for heights in lines), "twice the GPUs, twice the tokens"
    [bars] = left.collections
    low, high = bars.get_segments()[0][:, 1]
    assert (low, high) == pytest.approx((500 / 1.2, 500 / 0.9))
    texts = [text.get_text() for text in left.get_legend().get_texts()]
    assert "knee: 16 GPUs" in texts
    assert (left.get_xlabel(), left.get_ylabel()) == ("GPUs", "tokens per second")


def test_labels_of_the_throughput_do_not_overlap():
    rows = [{"gpus": gpus} | row(gpus, time, 0.1) for gpus, time in ((8, 2.0), (16, 1.0), (32, 0.9))]
    left, _ = drawn("gpus", rows).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["500", "1.00 k"]


def test_shares_are_stacked_to_the_whole_iteration():
    _, right = drawn("gpus", [ROWS[0], ROWS[2]], knee=16).axes
    heights = {bar.get_label(): [patch.get_height() for patch in bar] for bar in right.containers}
    assert heights["pipeline bubble"] == pytest.approx([10.0, 40.0])
    assert np.sum(list(heights.values()), axis=0) == pytest.approx([100.0, 100.0])
    bottoms = [[patch.get_y() for patch in bar] for bar in right.containers]
    below = np.cumsum([[0.0, 0.0], *heights.values()], axis=0)[:-1]
    assert np.array(bottoms) == pytest.approx(below), "each stands on those before it"


def test_names_have_iteration_times_and_no_ideal():
    rows = [
        {"cluster": name, f"of {name} (s)": 0.0, **row(8, time, 0.1)}
        for name, time in (("dgx-h100", 2.0), ("dgx-a100", 4.0))
    ]
    left, _ = drawn("cluster", rows).axes
    assert [label.get_text() for label in left.get_xticklabels()] == ["dgx-h100", "dgx-a100"]
    assert (left.get_xlabel(), left.get_ylabel()) == ("cluster", "iteration time (s)")
    assert left.collections[0].get_segments()[0][:, 1] == pytest.approx([1.8, 2.4])
    assert left.lines[0].get_ydata().tolist() == [2.0, 4.0]


def test_nothing_possible_is_nothing_to_draw():
    with pytest.raises(ConfigError, match="no value of --gpus is possible"):
        SCALING[".svg"][1](Scaling("gpus", ROWS[1:2]))


OF_CLUSTERS = [
    {"cluster": name, f"of {name} (s)": 0.0, **row(8, time, 0.1)}
    for name, time in (("a-cluster-of-20-chars", 2.0), ("another-one-of-20-chars", 4.0))
]
DRAWN = {
    "throughput": lambda: drawn("gpus", [ROWS[0], ROWS[2]], knee=16),
    "clusters": lambda: drawn("cluster", OF_CLUSTERS),
}
LINES = {
    "throughput": r"""
figure 7.00 × 2.60
axes 0.0616, 0.128, 0.393, 0.978 x 7.73, 16.6 y 399, 1.04e+03
labels 'GPUs' 'tokens per second' title '' grids [True, True] spines ['left', 'bottom']
ticks [['8', '16'], ['500', '667']] scales log log
line '' #004488 -default 1 o 3.5 None sum 1191
line '' #004488 Nonedefault 1 _ 4 None sum 996.2
line '' #004488 Nonedefault 1 _ 4 None sum 1320
line 'proportional to GPUs' #666666 --default 0.7 None 3.5 None sum 1524
line 'knee: 16 GPUs' #c00040 :default 1 None 3.5 None sum 33
cells 2 [] edges ['#004488'] 0.8 hatch None raster False sum 2316.5
legend ['proportional to GPUs', 'knee: 16 GPUs', 'projected, 90 % interval'] ['#666666', '#c00040', '#004488'] 0.0686, 0.799, 0.285, 0.959
axes 0.461, 0.128, 0.792, 0.978 x -0.435, 1.44 y 0, 100
labels 'GPUs' 'share of the iteration (%)' title '' grids [False, False] spines ['left', 'bottom']
ticks [['8', '16'], ['0', '20', '40', '60', '80', '100']] scales linear linear
bar #004488 -0.35, 0, 0.7, 10
bar #004488 0.65, 0, 0.7, 40
bar #009282 -0.35, 10, 0.7, 90
bar #009282 0.65, 40, 0.7, 60
bar #88ccee -0.35, 100, 0.7, 0
bar #88ccee 0.65, 100, 0.7, 0
legend ['all else', 'model FLOPs at peak', 'pipeline bubble'] ['#88ccee', '#009282', '#004488'] 0.799, 0.473, 0.996, 0.633
""",
    "clusters": r"""
figure 7.00 × 2.60
axes 0.0595, 0.358, 0.339, 0.978 x -0.05, 1.05 y 0, 4.95
labels 'cluster' 'iteration time (s)' title '' grids [True, True] spines ['left', 'bottom']
ticks [['a-cluster-of-20-chars', 'another-one-of-20-chars'], ['0', '1', '2', '3', '4', '5']] scales linear linear
line '' #004488 Nonedefault 1 o 3.5 None sum 7
line '' #004488 Nonedefault 1 _ 4 None sum 6.4
line '' #004488 Nonedefault 1 _ 4 None sum 8.2
cells 2 [] edges ['#004488'] 0.8 hatch None raster False sum 14.6
legend ['projected, 90 % interval'] ['#004488'] 0.0664, 0.377, 0.283, 0.432
axes 0.472, 0.358, 0.751, 0.978 x -0.435, 1.44 y 0, 100
labels 'cluster' 'share of the iteration (%)' title '' grids [False, False] spines ['left', 'bottom']
ticks [['a-cluster-of-20-chars', 'another-one-of-20-chars'], ['0', '20', '40', '60', '80', '100']] scales linear linear
bar #004488 -0.35, 0, 0.7, 0
bar #004488 0.65, 0, 0.7, 0
bar #009282 -0.35, 0, 0.7, 5
bar #009282 0.65, 0, 0.7, 2.5
bar #88ccee -0.35, 5, 0.7, 95
bar #88ccee 0.65, 2.5, 0.7, 97.5
bar #ee7733 -0.35, 100, 0.7, 0
bar #ee7733 0.65, 100, 0.7, 0
bar #aa4499 -0.35, 100, 0.7, 0
bar #aa4499 0.65, 100, 0.7, 0
legend ['all else', 'of another-one-of-20-chars', 'model FLOPs at peak', 'pipeline bubble', 'of a-cluster-of-20-chars'] ['#aa4499', '#ee7733', '#88ccee', '#009282', '#004488'] 0.758, 0.535, 0.996, 0.801
""",
}
"""Figures in the form of `lines_of`."""


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_has_drawn_these_lines_texts_and_bars(name):
    figure = DRAWN[name]()
    assert lines_of(figure) == LINES[name].strip().splitlines()
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {
        30.0 if name == "clusters" else 0.0
    }


@pytest.mark.parametrize(("names", "rotation"), [(("a" * 19, "b" * 21), 0.0), (("a" * 20, "b" * 21), 30.0)])
def test_labels_of_more_than_40_characters_are_turned(names: tuple[str, str], rotation: float) -> None:
    rows = [{"cluster": name} | row(8, time, 0.1) for name, time in zip(names, (2.0, 4.0), strict=True)]
    labels = [label for axes in drawn("cluster", rows).axes for label in axes.get_xticklabels()]
    assert [label.get_rotation() for label in labels] == [rotation] * 4


def test_labels_of_a_logarithmic_axis_are_a_factor_of_1_3_apart() -> None:
    assert _apart([169.0, 100.0, 129.9, 130.0, 168.9]) == [100.0, 130.0, 169.0]
    assert _apart([]) == []


def test_the_seven_largest_causes_have_bars_and_the_others_are_together() -> None:
    figure = Figure()
    axes = figure.subplots()
    names = "abcdefgh"
    first = {name: 0.01 * (index + 1) for index, name in enumerate(names)}
    _draw_shares(axes, [first, {"a": 0.5, "c": 0.6}])
    heights = {bar.get_label(): [patch.get_height() for patch in bar] for bar in axes.containers}
    assert list(heights) == ["a", "c", "d", "e", "f", "g", "h", "all else"]
    assert heights["a"] == pytest.approx([1.0, 50.0])
    assert heights["all else"] == pytest.approx([66.0, 0.0])
    assert heights["h"] == pytest.approx([8.0, 0.0])
    assert [patch.get_width() for patch in axes.containers[0]] == pytest.approx([0.7, 0.7])
