"""Timelines for print: cells, labels, panels and their place on the page."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from ppsim import StageCosts, build, simulate
from ppsim.base.errors import ConfigError
from ppsim.plot import palette, save_figure, timeline_figure
from ppsim.plot.figures import timeline as timeline_module
from ppsim.plot.figures.style import TEXT_POINTS, WIDTHS
from ppsim.plot.figures.timeline import draw_timelines
from ppsim.plot.lanes import compute_lanes
from tests.defaults import number_defaults
from tests.plot.figures.drawn import lines_of
from tests.plot.figures.test_style import COSTS as COSTS_OF_FIGURES

COSTS = StageCosts(
    forward_s=1e-3, backward_input_s=1e-3, backward_weight_s=1e-3, activation_bytes=2.0**30, transfer_s=1e-4
)


def timeline_of(name="1f1b", pp=4, microbatches=8, vpp=1, costs=COSTS):
    return simulate(build(name, pp=pp, vpp=vpp, microbatches=microbatches), costs)


def cells_of(axes):
    return next(artist for artist in axes.collections if isinstance(artist, PolyCollection))


def texts_of(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def legend_of(figure):
    return [text.get_text() for row in figure.legends for text in row.get_texts()]


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


def test_a_kind_is_labelled_where_its_typical_cell_has_room():
    """Of 7 points a forward, and 8.4 on the last rank, two digits fit there alone: then none is labelled."""
    costs = COSTS.replace(forward_s=[1e-3, 1e-3, 1e-3, 1.2e-3], transfer_s=0.0)
    kinds_labelled = []
    for microbatches in (12, 18, 64):
        axes = timeline_figure([timeline_of(microbatches=microbatches, costs=costs)], panels=["compute"]).axes[0]
        kinds_labelled.append(len([text for text in axes.texts if text.get_text()]) / (4 * microbatches))
    assert kinds_labelled == [2, 1, 0]


def test_compute_transfers_and_memory_have_a_panel_each_on_one_time_axis():
    timelines = [timeline_of(), timeline_of("zbv-fixed", vpp=2)]
    figure = timeline_figure(timelines, titles=["a", "b"])
    assert len(figure.axes) == 6
    longest = max(timeline.step_time_s for timeline in timelines) * 1e3
    assert {axes.get_xlim() for axes in figure.axes} == {(0.0, longest)}
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "", "", "", "", "time (ms)"]
    bounds = [axes.get_position() for axes in figure.axes]
    assert all(upper.y0 > lower.y1 for upper, lower in pairwise(bounds))


def test_a_panel_of_transfers_has_a_cell_for_each_at_its_time_above_a_line_per_sending_rank():
    """1f1b on 4 ranks: 3 links, both ways, 8 microbatches; each takes 0.1 ms."""
    axes = timeline_figure([timeline_of()], titles=[""]).axes[1]
    boxes = [path.get_extents() for path in cells_of(axes).get_paths()]
    assert len(boxes) == 3 * 2 * 8
    assert [box.x1 - box.x0 for box in boxes] == pytest.approx([0.1] * len(boxes))
    assert min(box.x0 for box in boxes) == pytest.approx(1.0), "after the first F"


def test_the_memory_limit_is_drawn_and_inside_the_panel():
    axes = timeline_figure([timeline_of()], titles=[""], memory_limit_bytes=80 * 2**30).axes[-1]
    assert axes.get_ylim()[1] > 80
    assert "limit 80.0 GiB" in [text.get_text() for text in axes.texts]


def test_titles_are_no_formulas_and_no_markup(tmp_path):
    save_figure(timeline_figure([timeline_of()], titles=["$\\frac{1}$ <b>&"]), tmp_path / "a.svg")


def test_large_figures_hold_their_cells_as_an_image(tmp_path):
    figure = timeline_figure([timeline_of(pp=32, microbatches=400)], titles=["t"])
    save_figure(figure, tmp_path / "a.svg")
    assert cells_of(figure.axes[0]).get_rasterized()
    assert (tmp_path / "a.svg").stat().st_size < 3_000_000


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_drawn_outside_the_page(width):
    """The legend's rows too, of which one column needs more."""
    figure = timeline_figure([timeline_of(), timeline_of("zbv-fixed", vpp=2)], width=width)
    figure.draw_without_rendering()
    page = figure.get_window_extent()
    for artist in [*figure.legends, *(axes.yaxis.label for axes in figure.axes), *figure.axes[0].texts]:
        box = artist.get_window_extent()
        assert page.x0 <= box.x0 < box.x1 <= page.x1
        assert page.y0 <= box.y0 < box.y1 <= page.y1
    tops = [row.get_window_extent().y0 for row in figure.legends]
    assert tops == sorted(tops, reverse=True)
    assert tops[-1] > figure.axes[0].get_window_extent().y1


def test_timelines_in_given_axes_start_at_zero_and_end_with_the_longest():
    figure = timeline_figure([timeline_of()])
    axes = figure.axes[0]
    draw_timelines(axes, [timeline_of(costs=COSTS.replace(transfer_s=0.0))], ["t"])
    assert axes.get_xlim() == pytest.approx((0.0, 33.0))  # (8 + 3) · 3 ms


def test_timelines_in_given_axes_share_their_height_and_name_the_ranks_that_have_room():
    figure = Figure(figsize=(5.0, 4.0))
    draw_timelines(figure.add_axes((0, 0, 1, 1)), [timeline_of(pp=16, microbatches=16)] * 2, ["a", "b"])
    rows = 0.8 * 4.0 * 72 / 2 / 16  # points a rank: four fifths of the height, the rest is captions
    assert rows < 1.2 * TEXT_POINTS < 2 * rows
    assert [axes.get_yticks().tolist() for axes in figure.axes[0].child_axes] == [list(range(0, 16, 2))] * 2


def test_one_timeline_has_no_caption_and_several_are_told_apart():
    assert not any("bubble" in text for text in texts_of(timeline_figure([timeline_of()])))
    texts = texts_of(timeline_figure([timeline_of(), timeline_of("zbv-fixed", vpp=2)]))
    assert {"1f1b", "zbv-fixed"} <= set(texts)
    assert sum("bubble" in text for text in texts) == 2
    bare = COSTS.replace(transfer_s=0.0)
    narrow = texts_of(timeline_figure([timeline_of(costs=bare)], titles=["t"], width="one-column"))
    assert "step 33.0 ms · bubble 27.27 %" in narrow  # (8 + 3) · 3 ms, 3 of 11 idle


def test_panels_are_chosen_and_bring_their_legend():
    figure = timeline_figure([timeline_of()], panels=["memory"], with_critical_path=False)
    assert [axes.get_ylabel() for axes in figure.axes] == ["memory (GiB)"]
    assert legend_of(figure) == []
    figure = timeline_figure([timeline_of()], panels=["compute"], with_critical_path=False)
    assert legend_of(figure) == [palette.TITLES[0], palette.TITLES[1], "idle"]
    assert not figure.axes[0].lines
    with pytest.raises(ConfigError, match="panels are compute, transfers, memory: got 'cost'"):
        timeline_figure([timeline_of()], panels=["cost"])
    nothing = COSTS.replace(activation_bytes=0.0)
    with pytest.raises(ConfigError, match="the timelines have no memory"):
        timeline_figure([timeline_of(costs=nothing)], panels=["memory"])


def test_w_is_hatched_where_later_chunks_of_f_have_its_lightness():
    """Without colour the two cannot be told apart."""
    looped = timeline_figure([timeline_of("zb-h1")], panels=["compute"])
    assert [row.get_hatch() for row in looped.axes[0].collections] == [None]
    timeline = timeline_of("zbv-fixed", vpp=2, microbatches=4)
    figure = timeline_figure([timeline], panels=["compute"])
    (hatching,) = [row for row in figure.axes[0].collections if row.get_hatch()]
    assert len(hatching.get_paths()) == int((timeline.schedule.op == 3).sum())
    patches = [patch for row in figure.legends for patch in row.get_patches()]
    assert [patch.get_hatch() is not None for patch in patches[:3]] == [False, False, True]


def test_what_is_left_out_in_plot_timeline_has_these_values() -> None:
    assert number_defaults(timeline_module) == {
        "_Panel": {"has_rank_legend": False},
        "timeline_figure": {"with_critical_path": True},
        "_cells": {"with_idle": True},
    }  # fmt: skip


FEW = simulate(
    build("zb-h1", pp=3, microbatches=4), COSTS_OF_FIGURES.replace(backward_weight_s=2e-3, transfer_s=3e-4)
)
TINY = simulate(build("zbv-fixed", pp=2, microbatches=3), COSTS_OF_FIGURES)
DRAWN = {
    "two": lambda: timeline_figure([FEW, TINY], titles=["a", "b"], panels=["compute"]),
    "one column": lambda: timeline_figure(
        [TINY], width="one-column", memory_limit_bytes=9 * 2**30, with_critical_path=False
    ),
    "only transfers": lambda: timeline_figure([FEW], panels=["transfers"]),
}
LINES = {
    "two": r"""
figure 7.00 × 1.74
axes 0.06, 0.5, 0.986, 0.793 x 0, 19.8 y 2.5, -0.5
labels '' 'rank' title '' grids [False, False] spines []
ticks [[], ['0', '1', '2']] scales linear linear
line '' #ffffff -default 2.2 None 3.5 None sum 110.4
line '' #c00040 -default 1.1 None 3.5 None sum 110.4
numbers 36 at 356, 35.3 #000000 #ffffff [('center', 'center_baseline', 5.5, True)] 012003112233010210321323001122033123
text 'a' 0, 2.5 at 0, 2.5 left bottom 7.5 bold #222222 math False
text 'zb-h1 · pp 3 · vpp 1 · 4 microbatches · step 19.8 ms · bubble 19.19 %, per-rank span 16.67 %' 6, 0 at 6, 0 left bottom 7 normal #666666 math False
cells 45 ['#004488', '#88ccee', '#d2d2d2', '#ee7733'] edges ['#ffffff'] 0.4 hatch None raster False sum 1921.6
cells 12 [] edges ['#b05010'] 0 hatch //////////// raster False sum 735.2
axes 0.06, 0.195, 0.986, 0.391 x 0, 19.8 y 1.5, -0.5
labels 'time (ms)' 'rank' title '' grids [False, False] spines []
ticks [['0.0', '2.5', '5.0', '7.5', '10.0', '12.5', '15.0', '17.5', '20.0'], ['0', '1']] scales linear linear
line '' #ffffff -default 2.2 None 3.5 None sum 44.36
line '' #c00040 -default 1.1 None 3.5 None sum 44.36
numbers 36 at 351, 17.3 #000000 #ffffff [('center', 'center_baseline', 5.5, True)] 012000111002221122001100200211122122
text 'b' 0, 2.5 at 0, 2.5 left bottom 7.5 bold #222222 math False
text 'zbv-fixed · pp 2 · vpp 2 · 3 microbatches · step 19.3 ms · bubble 6.74 %, per-rank span 2.17 %' 6, 0 at 6, 0 left bottom 7 normal #666666 math False
cells 41 ['#004488', '#85a5c6', '#88ccee', '#bfe3f6', '#d2d2d2', '#ee7733', '#f4a87c'] edges ['#ffffff'] 0.4 hatch None raster False sum 1633.6
cells 12 [] edges ['#b05010'] 0 hatch //////////// raster False sum 647.2
legend ['F  forward', 'I  backward, inputs', 'W  backward, weights', 'lighter: every other chunk', 'idle', 'critical path'] ['#004488', '#88ccee', '#ee7733', '#85a5c6', '#d2d2d2', '#c00040'] 0.06, 0.923, 0.92, 0.983
""",
    "one column": r"""
figure 3.33 × 3.01
axes 0.126, 0.724, 0.97, 0.837 x 0, 19.3 y 1.5, -0.5
labels '' 'rank' title '' grids [False, False] spines []
ticks [[], ['0', '1']] scales linear linear
numbers 36 at 351, 17.3 #000000 #ffffff [('center', 'center_baseline', 5.5, True)] 012000111002221122001100200211122122
text '' 0, 2.5 at 0, 2.5 left bottom 7.5 bold #222222 math False
text '' 0, 0 at 0, 0 left bottom 7 normal #666666 math False
cells 41 ['#004488', '#85a5c6', '#88ccee', '#bfe3f6', '#d2d2d2', '#ee7733', '#f4a87c'] edges ['#ffffff'] 0.4 hatch None raster False sum 1633.6
cells 12 [] edges ['#b05010'] 0 hatch //////////// raster False sum 647.2
axes 0.126, 0.588, 0.97, 0.661 x 0, 19.3 y 1.5, -0.5
labels '' 'rank' title '' grids [False, False] spines []
ticks [[], ['0']] scales linear linear
text '' 0, 2.5 at 0, 2.5 left bottom 7.5 bold #222222 math False
text 'transfers, by sending rank' 0, 0 at 0, 0 left bottom 7 normal #666666 math False
cells 2 [] edges ['#c4b63c'] 0.4 hatch None raster False sum 42.28
cells 12 ['#f0e442'] edges ['#c4b63c'] 0.4 hatch None raster False sum 395.2
axes 0.126, 0.113, 0.97, 0.478 x 0, 19.3 y 0, 10.8
labels 'time (ms)' 'memory (GiB)' title '' grids [False, True] spines ['left', 'bottom']
ticks [['0', '5', '10', '15', '20'], ['0.0', '2.5', '5.0', '7.5', '10.0', '12.5']] scales linear linear
line '' #332288 -steps-post 0.8 None 3.5 None sum 99.9
line '' #ee99aa -steps-post 0.8 None 3.5 None sum 94.6
line '' #c00040 --default 1 None 3.5 None sum 19
text 'limit 9.00 GiB' -2, 1.5 at -2, 1.5 right bottom 7 normal #c00040 math True
text '' 0, 12.6 at 0, 12.6 left bottom 7.5 bold #222222 math False
text 'memory by rank' 0, 0 at 0, 0 left bottom 7 normal #666666 math False
legend ['rank 0', '1'] ['#332288', '#ee99aa'] 0.131, 0.483, 0.347, 0.518
legend ['F  forward', 'I  backward, inputs'] ['#004488', '#88ccee'] 0.126, 0.956, 0.682, 0.99
legend ['W  backward, weights', 'lighter: every other chunk'] ['#ee7733', '#85a5c6'] 0.126, 0.909, 0.961, 0.944
legend ['transfer', 'idle'] ['#f0e442', '#d2d2d2'] 0.126, 0.863, 0.424, 0.897
""",
    "only transfers": r"""
figure 7.00 × 1.03
axes 0.06, 0.33, 0.986, 0.65 x 0, 19.8 y 2.5, -0.5
labels 'time (ms)' 'rank' title '' grids [False, False] spines []
ticks [['0.0', '2.5', '5.0', '7.5', '10.0', '12.5', '15.0', '17.5', '20.0'], ['0', '2']] scales linear linear
text '' 0, 2.5 at 0, 2.5 left bottom 7.5 bold #222222 math False
text 'transfers, by sending rank' 0, 0 at 0, 0 left bottom 7 normal #666666 math False
cells 3 [] edges ['#c4b63c'] 0.4 hatch None raster False sum 67.92
cells 16 ['#f0e442'] edges ['#c4b63c'] 0.4 hatch None raster False sum 538.4
legend ['transfer'] ['#f0e442'] 0.06, 0.871, 0.139, 0.971
""",
}
"""Figures in the form of `lines_of`."""


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_has_drawn_these_lines_texts_and_cells(name):
    assert lines_of(DRAWN[name]()) == LINES[name].strip().splitlines()


def test_timelines_in_given_axes_have_labels_and_a_path_but_no_frame() -> None:
    """Axes of 4 × 2 inches: the cells of 1 ms have 9.6 points, and a microbatch number needs 4.12."""
    figure = Figure(figsize=(8.0, 4.0))
    axes = figure.add_axes((0.1, 0.2, 0.5, 0.5))
    alone = timeline_of(microbatches=7, costs=COSTS.replace(transfer_s=0.0))
    draw_timelines(axes, [alone], ["t"])
    assert [side for side, spine in axes.spines.items() if spine.get_visible()] == []
    assert len([text for text in axes.texts if text.get_text().isdigit()]) == 4 * 7 * 2
    path = axes.lines[-1]
    assert (path.get_color(), path.get_linewidth()) == (palette.CRITICAL_PATH, 1.1)
    assert axes.get_xlabel() == "time (ms)"
    draw_timelines(figure.add_axes((0.1, 0.2, 0.2, 0.5)), [alone], ["t"])
    numbers = [text for text in figure.axes[1].texts if text.get_text().isdigit()]
    assert len(numbers) == 4 * 7, "F has 3.84 points, B has twice as many"


def test_only_the_last_of_timelines_in_given_axes_has_the_time_axis() -> None:
    figure = Figure(figsize=(8.0, 4.0))
    draw_timelines(figure.add_axes((0, 0, 1, 1)), [FEW, TINY], ["a", "b"])
    first, second = figure.axes[0].child_axes
    assert not figure.axes[0].axison
    assert [axes.get_xlabel() for axes in (first, second)] == ["", "time (ms)"]
    assert [axes.xaxis.get_tick_params()["labelbottom"] for axes in (first, second)] == [False, True]
    assert first.get_xlim() == second.get_xlim() == (0.0, FEW.step_time_s * 1e3)
    assert "a" in [text.get_text() for text in first.texts]


def test_narrow_cells_have_no_edges_and_no_antialiasing() -> None:
    wide, narrow = (
        cells_of(timeline_figure([timeline_of(microbatches=number)], panels=["compute"]).axes[0])
        for number in (8, 160)
    )
    assert (wide.get_linewidth(), narrow.get_linewidth()) == ([0.4], [0])
    assert [cells.get_antialiased()[0] for cells in (wide, narrow)] == [True, False]


def test_one_timeline_in_given_axes_has_their_whole_height() -> None:
    """10 ranks on an inch have 7.2 points each, and a rank's number needs 8.4."""
    figure = Figure(figsize=(5.0, 1.0))
    draw_timelines(figure.add_axes((0, 0, 1, 1)), [timeline_of(pp=10, microbatches=2)], ["a"])
    assert figure.axes[0].get_yticks().tolist() == [0, 2, 4, 6, 8]
    assert figure.axes[0].get_ylim() == (9.5, -0.5)
