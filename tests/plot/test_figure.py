"""Figures for print: what is drawn, and that it is drawn the same every time."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.collections import PolyCollection

from ppsim import StageCosts, build, simulate
from ppsim.errors import ConfigError
from ppsim.plot.figure import save_figure, timeline_figure
from ppsim.plot.lanes import compute_lanes

COSTS = StageCosts(
    forward_s=1e-3, backward_input_s=1e-3, backward_weight_s=1e-3, activation_bytes=2.0**30, transfer_s=1e-4
)


def timeline_of(name="1f1b", pp=4, microbatches=8, vpp=1, costs=COSTS):
    return simulate(build(name, pp=pp, vpp=vpp, microbatches=microbatches), costs)


def cells_of(axes):
    (collection,) = [artist for artist in axes.collections if isinstance(artist, PolyCollection)]
    return collection


def test_the_cells_are_those_of_the_lanes():
    timeline = timeline_of()
    axes = timeline_figure([timeline], titles=[""]).axes[0]
    lanes = compute_lanes(timeline)
    outlines = [path.get_extents() for path in cells_of(axes).get_paths()]
    edges = [
        (lane.edges[cell] * 1e3, lane.edges[cell + 1] * 1e3) for lane in lanes for cell in range(len(lane.node))
    ]
    assert np.array([(box.x0, box.x1) for box in outlines]) == pytest.approx(np.array(edges))


def test_every_action_of_a_small_table_is_labelled_with_its_microbatch():
    axes = timeline_figure([timeline_of()], titles=[""]).axes[0]
    labels = sorted(text.get_text() for text in axes.texts if text.get_text().isdigit())
    assert labels == sorted(str(microbatch) for microbatch in range(8) for _ in range(2 * 4))


def test_compute_transfers_and_memory_have_a_panel_each_on_one_time_axis():
    timelines = [timeline_of(), timeline_of("zbv-fixed", vpp=2)]
    figure = timeline_figure(timelines, titles=["a", "b"])
    assert len(figure.axes) == 6
    longest = max(timeline.step_time_s for timeline in timelines) * 1e3
    assert {axes.get_xlim() for axes in figure.axes} == {(0.0, longest)}
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "", "", "", "time (ms)"]
    bounds = [axes.get_position() for axes in figure.axes]
    assert all(upper.y0 > lower.y1 for upper, lower in pairwise(bounds))


def test_the_memory_limit_is_drawn_and_inside_the_panel():
    axes = timeline_figure([timeline_of()], titles=[""], memory_limit_bytes=80 * 2**30).axes[-1]
    assert axes.get_ylim()[1] > 80
    assert "limit 80.0 GiB" in [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("suffix", [".svg", ".pdf", ".png"])
def test_the_same_timeline_gives_the_same_bytes(tmp_path, suffix):
    contents = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}{suffix}"
        save_figure(timeline_figure([timeline_of()], titles=["t"]), path)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert len(contents[0]) > 5000
    assert b"CreationDate" not in contents[0]
    assert b"<dc:date>" not in contents[0]


def test_the_readers_matplotlibrc_does_not_change_the_figure(tmp_path):
    import matplotlib

    save_figure(timeline_figure([timeline_of()], titles=["t"]), tmp_path / "a.svg")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "black", "lines.linewidth": 9}):
        save_figure(timeline_figure([timeline_of()], titles=["t"]), tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_titles_are_no_formulas_and_no_markup(tmp_path):
    save_figure(timeline_figure([timeline_of()], titles=["$\\frac{1}$ <b>&"]), tmp_path / "a.svg")


def test_large_figures_hold_their_cells_as_an_image(tmp_path):
    figure = timeline_figure([timeline_of(pp=32, microbatches=400)], titles=["t"])
    save_figure(figure, tmp_path / "a.svg")
    assert cells_of(figure.axes[0]).get_rasterized()
    assert (tmp_path / "a.svg").stat().st_size < 3_000_000


def test_an_unknown_suffix_is_refused_with_those_that_are_not(tmp_path):
    with pytest.raises(ConfigError, match=r"\.svg, \.pdf, \.png"):
        save_figure(timeline_figure([timeline_of()], titles=["t"]), tmp_path / "a.bmp")


def test_a_figure_leaves_pyplot_alone():
    code = """
import sys
from ppsim import StageCosts, build, simulate
from ppsim.plot.figure import timeline_figure
costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
timeline_figure([simulate(build("1f1b", pp=2, microbatches=2), costs)], titles=[""])
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
