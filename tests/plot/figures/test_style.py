"""Every figure is as wide as a column or two, has its fonts in it, and is the same bytes every time."""

import subprocess
import sys

import matplotlib
import pandas
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.base.errors import ConfigError
from ppsim.plot import (
    memory_figure,
    pareto_figure,
    save_figure,
    timeline_figure,
)
from ppsim.plot.figures import style as style_module
from ppsim.plot.figures.style import _SETTINGS, WIDTHS, figure_bytes, inches, settings
from tests.defaults import number_defaults
from tests.plot.figures.drawn import lines_of

COSTS = StageCosts(
    forward_s=1e-3, backward_input_s=1e-3, backward_weight_s=1e-3, activation_bytes=2.0**30, transfer_s=1e-4
)
TIMELINE = simulate(build("zbv-fixed", pp=4, microbatches=8), COSTS)
CONFIGURATIONS = pandas.DataFrame(
    {
        "configuration": [
            "tp1 cp1 ep1 dp1 pp4 vpp1 mb1 none 1f1b auto",
            "tp2 cp1 ep1 dp1 pp2 vpp1 mb1 full 1f1b auto",
        ],
        "iteration_time_s": [2.0, 3.0],
        "peak_bytes": [60 * 2.0**30, 40 * 2.0**30],
        "pareto": [True, True],
    }
)
FIGURES = {
    "timeline": lambda width: timeline_figure([TIMELINE], titles=["t"], width=width),
    "memory": lambda width: memory_figure(TIMELINE, memory_limit_bytes=20 * 2**30, title="t", width=width),
    "pareto": lambda width: pareto_figure(CONFIGURATIONS, memory_limit_bytes=80 * 2**30, width=width),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_as_wide_as_its_column(name, width):
    figure = FIGURES[name](width)
    assert figure.get_figwidth() == WIDTHS[width]
    assert 1 < figure.get_figheight() < 9


@pytest.mark.parametrize("name", FIGURES)
def test_no_text_is_smaller_than_print_allows(name):
    figure = FIGURES[name]("one-column")
    figure.draw_without_rendering()
    sizes = {
        text.get_fontsize()
        for text in figure.findobj(matplotlib.text.Text)
        if text.get_text() and not (name == "timeline" and text.get_text().isdigit())
    }
    assert min(sizes) >= 7


@pytest.mark.parametrize("name", FIGURES)
def test_fonts_are_embedded_as_truetype(name):
    content = figure_bytes(FIGURES[name]("one-column"), ".pdf")
    assert b"/FontFile2" in content
    assert b"/CIDFontType2" in content
    assert b"/Type3" not in content


@pytest.mark.parametrize(
    ("name", "suffix"), [*((name, ".svg") for name in FIGURES), ("pareto", ".pdf"), ("pareto", ".png")]
)
def test_the_same_figure_is_the_same_bytes_under_any_matplotlibrc(name, suffix):
    first = figure_bytes(FIGURES[name]("two-column"), suffix)
    with matplotlib.rc_context(
        {"font.size": 20, "axes.facecolor": "black", "pdf.fonttype": 3, "svg.hashsalt": None}
    ):
        assert figure_bytes(FIGURES[name]("two-column"), suffix) == first
    assert len(first) > 5000
    assert b"CreationDate" not in first
    assert b"<dc:date>" not in first


def test_an_unknown_suffix_or_width_is_refused_with_those_that_there_are(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot write a figure as '.bmp': give it one of .svg, .pdf, .png"):
        save_figure(FIGURES["pareto"]("one-column"), tmp_path / "a.bmp")
    assert list(tmp_path.iterdir()) == []
    for make in FIGURES.values():
        with pytest.raises(ConfigError, match="a figure is one-column or two-column wide: got 'three'"):
            make("three")


def test_a_figure_leaves_pyplot_alone():
    code = """
import sys
import ppsim.plot
assert "matplotlib" not in sys.modules
from ppsim import StageCosts, build, simulate
from ppsim.plot import timeline_figure
costs = StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
timeline_figure([simulate(build("1f1b", pp=2, microbatches=2), costs)])
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_both_axes_look_alike():
    with settings():
        for name in _SETTINGS:
            if name.startswith("xtick.") and name.split(".")[-1] in ("labelsize", "color", "width", "size"):
                assert matplotlib.rcParams["y" + name[1:]] == matplotlib.rcParams[name], name
        assert matplotlib.rcParams["axes.spines.top"] is matplotlib.rcParams["axes.spines.right"] is False


def test_what_is_left_out_in_plot_style_has_these_values() -> None:
    assert number_defaults(style_module) == {
        "figure_bytes": {"dpi": 300},
    }  # fmt: skip


FEW = simulate(build("zb-h1", pp=3, microbatches=4), COSTS.replace(backward_weight_s=2e-3, transfer_s=3e-4))
DRAWN = {
    "memory": lambda: memory_figure(FEW, memory_limit_bytes=20 * 2**30, title="t"),
    "narrow memory": lambda: memory_figure(FEW, width="one-column"),
    "pareto": lambda: pareto_figure(CONFIGURATIONS, memory_limit_bytes=80 * 2**30, title="t"),
}
LINES = {
    "memory": r"""
figure 7.00 × 1.75
axes 0.0516, 0.194, 0.997, 0.753 x 0, 19.8 y 0, 24
labels 'time (ms)' 'memory (GiB)' title 't' grids [False, True] spines ['left', 'bottom']
ticks [['0.0', '2.5', '5.0', '7.5', '10.0', '12.5', '15.0', '17.5', '20.0'], ['0', '5', '10', '15', '20', '25']] scales linear linear
line '' #332288 -steps-post 0.8 None 3.5 None sum 80.4
line '' #aa4499 -steps-post 0.8 None 3.5 None sum 115.2
line '' #ee99aa -steps-post 0.8 None 3.5 None sum 104.8
line '' #c00040 --default 1 None 3.5 None sum 41
line '' #332288 Nonedefault 1 o 2.5 None sum 5
line '' #aa4499 Nonedefault 1 o 2.5 None sum 8.9
line '' #ee99aa Nonedefault 1 o 2.5 None sum 10.2
text 'limit 20.0 GiB' -2, 1.5 at -2, 1.5 right bottom 7 normal #c00040 math True
text 'rank 0: 3.00 GiB at 0F2' 0, 12.6 at 0, 12.6 left bottom 7 normal #222222 math True
legend ['rank 0', '1', '2'] ['#332288', '#aa4499', '#ee99aa'] 0.0537, 0.761, 0.196, 0.82
""",
    "narrow memory": r"""
figure 3.33 × 1.75
axes 0.0905, 0.194, 0.994, 0.83 x 0, 19.8 y 0, 3.18
labels 'time (ms)' 'memory (GiB)' title '' grids [False, True] spines ['left', 'bottom']
ticks [['0', '5', '10', '15', '20'], ['0', '1', '2', '3', '4']] scales linear linear
line '' #332288 -steps-post 0.8 None 3.5 None sum 80.4
line '' #aa4499 -steps-post 0.8 None 3.5 None sum 115.2
line '' #ee99aa -steps-post 0.8 None 3.5 None sum 104.8
line '' #332288 Nonedefault 1 o 2.5 None sum 5
line '' #aa4499 Nonedefault 1 o 2.5 None sum 8.9
line '' #ee99aa Nonedefault 1 o 2.5 None sum 10.2
text 'rank 0: 3.00 GiB at 0F2' 0, 12.6 at 0, 12.6 left bottom 7 normal #222222 math True
legend ['rank 0', '1', '2'] ['#332288', '#aa4499', '#ee99aa'] 0.0949, 0.838, 0.393, 0.897
""",
    "pareto": r"""
figure 7.00 × 2.50
axes 0.0559, 0.135, 0.997, 0.854 x 38, 82 y 1.95, 3.05
labels 'peak memory per GPU (GiB)' 'iteration time (s)' title 't' grids [True, True] spines ['left', 'bottom']
ticks [['35', '40', '45', '50', '55', '60', '65', '70', '75', '80', '85'], ['1.8', '2.0', '2.2', '2.4', '2.6', '2.8', '3.0', '3.2']] scales linear linear
line 'simulated' #004488 Nonedefault 1 o 2.5 0.4 sum 105
line 'Pareto set' #ee7733 -steps-post 0.8 s 2.5 None sum 105
line 'limit 80.0 GiB' #c00040 --default 1 None 3.5 None sum 161
text 'tp2 pp2 full 1f1b' 14, 0 at 14, 0 left center 7 normal #222222 math False
text 'pp4 1f1b' 6, 34 at 6, 34 right center 7 normal #222222 math False
legend ['simulated', 'Pareto set', 'limit 80.0 GiB'] ['#004488', '#ee7733', '#c00040'] 0.592, 0.924, 0.993, 0.981
""",
}
"""Figures in the form of `lines_of`."""


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_has_drawn_these_lines_texts_and_cells(name):
    assert lines_of(DRAWN[name]()) == LINES[name].strip().splitlines()


def test_the_style_has_these_sizes_and_switches() -> None:
    sizes = {name: value for name, value in _SETTINGS.items() if isinstance(value, int | float)}
    assert sizes == {
        "font.size": 7.0,
        "axes.titlesize": 7.5,
        "axes.labelsize": 7.0,
        "xtick.labelsize": 7.0,
        "ytick.labelsize": 7.0,
        "legend.fontsize": 7.0,
        "axes.linewidth": 0.5,
        "xtick.major.width": 0.5,
        "ytick.major.width": 0.5,
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "axes.labelpad": 2.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "grid.linewidth": 0.5,
        "lines.linewidth": 1.0,
        "lines.markersize": 3.5,
        "lines.markeredgewidth": 0.7,
        "legend.fancybox": False,
        "legend.framealpha": 1.0,
        "legend.handlelength": 2.2,
        "legend.labelspacing": 0.35,
        "legend.columnspacing": 1.2,
        "legend.borderpad": 0.2,
        "hatch.linewidth": 0.3,
        "pdf.fonttype": 42,
    }
    assert {inches(width): width for width in WIDTHS} == {3.33: "one-column", 7.0: "two-column"}


def test_sizes_are_of_a_figure_in_a_paper() -> None:
    """Points and inches; text in a figure is smaller than the 9 or 10 points around it."""
    style = style_module
    points = style.TEXT_POINTS, style.TITLE_POINTS, style.CELL_POINTS
    assert points == (7.0, 7.5, 5.5)
    assert (style.POINTS, style.LEGEND_ROW) == (72.0, 0.14)
