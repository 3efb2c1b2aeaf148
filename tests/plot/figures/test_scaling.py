"""What is drawn of several values is what their rows say."""

import numpy as np
import pytest

from ppsim.api.output_formats import SCALING
from ppsim.base.errors import ConfigError
from ppsim.plot.figures.scaling import scaling_figure
from ppsim.projection.scaling import Scaling, shares_in


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
