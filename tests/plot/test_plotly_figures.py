"""Pictures for notebooks and the app: what plotly is given, by its numbers."""

import base64
import json
from dataclasses import replace

import numpy as np
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.plot import palette
from ppsim.plot import plotly_figures as plotly_figures_module
from ppsim.plot.action_colours import ActionColours, fills_of
from ppsim.plot.lanes import HALF_HEIGHT, PATH_OFFSET
from ppsim.plot.plotly_figures import (
    DARK,
    LIGHT,
    DrawingOptions,
    TradeoffPoint,
    _colours,
    _memory_panel,
    _rows_panel,
    figure_of,
    idle_plotly,
    timeline_plotly,
    tradeoff_figure,
    tradeoff_plotly,
)
from ppsim.plot.scale import time_scale
from ppsim.schedule.table import Op
from ppsim.simulation.idle_causes import CAUSES, idle_by_cause_s
from ppsim.simulation.timeline import Timeline
from tests.defaults import number_defaults

COSTS = StageCosts(
    forward_s=0.010, backward_input_s=0.010, backward_weight_s=0.008, activation_bytes=2.0**30, transfer_s=0.001
)
TIMELINES = [simulate(build(name, pp=4, microbatches=8), COSTS) for name in ("1f1b", "zb-h1")]


def numbers(packed):
    return np.frombuffer(base64.b64decode(packed["bdata"]), dtype=packed["dtype"])


def cells_of(picture):
    return [trace for trace in picture["data"] if trace["type"] == "heatmap"]


def test_the_cells_of_a_row_tile_the_step_and_one_axis_serves_all_timelines():
    picture = timeline_plotly(TIMELINES)
    longest_ms = 1e3 * max(timeline.step_time_s for timeline in TIMELINES)
    assert picture["layout"]["xaxis"]["range"] == pytest.approx([0, longest_ms])
    for place, timeline in enumerate(TIMELINES):
        rows = [trace for trace in cells_of(picture) if trace["yaxis"] == ("y2" if place else "y")]
        assert [sum(row["y"]) / 2 for row in rows] == pytest.approx([0, 1, 2, 3])
        for rank, row in enumerate(rows):
            edges, fills = numbers(row["x"]), numbers(row["z"])
            assert edges[0] == 0
            assert edges[-1] == pytest.approx(1e3 * timeline.step_time_s)
            busy = np.isin(fills, range(8))
            assert np.diff(edges)[busy].sum() == pytest.approx(1e3 * timeline.busy_s[rank])


def test_idle_cells_take_the_colour_of_their_cause_when_asked():
    by_kind, by_cause = (
        timeline_plotly(TIMELINES, look=DrawingOptions(colour=colour)) for colour in ("kind", "cause")
    )
    causes = range(ActionColours.causes, ActionColours.causes + len(CAUSES))
    assert not any(np.isin(numbers(row["z"]), causes).any() for row in cells_of(by_kind))
    idle = [np.diff(numbers(row["x"]))[np.isin(numbers(row["z"]), causes)].sum() for row in cells_of(by_cause)]
    expected = [1e3 * (timeline.step_time_s - busy) for timeline in TIMELINES for busy in timeline.busy_s]
    assert idle == pytest.approx(expected)


def test_without_texts_a_cell_still_says_its_name():
    told = cells_of(timeline_plotly(TIMELINES[:1], look=DrawingOptions(with_texts=False)))[2]["customdata"][0]
    whole = cells_of(timeline_plotly(TIMELINES[:1]))[2]["customdata"][0]
    assert [lines[0].split(":")[0] for lines in whole] == told
    place = told.index("2F0")
    assert told[place - 1] == "idle"
    assert "waited for 1F0 on rank 1" in whole[place][3]


def test_what_is_left_out_is_not_drawn():
    bare = DrawingOptions(with_critical_path=False)
    assert {trace["type"] for trace in timeline_plotly(TIMELINES, look=bare)["data"]} == {"heatmap"}
    memory = timeline_plotly(TIMELINES, look=replace(bare, with_memory=True, memory_limit_bytes=3 * 2.0**30))
    assert sum(trace["type"] == "scatter" for trace in memory["data"]) == 8
    assert [(shape["y0"], shape["yref"]) for shape in memory["layout"]["shapes"]] == [(3.0, "y3"), (3.0, "y4")]


def test_the_steps_run_along_what_nothing_improves_on_in_both():
    points = [
        TradeoffPoint("slow", 1.0 * 2**30, 3.0, bound_s=2.0),
        TradeoffPoint("quick", 2.0 * 2**30, 2.0, kind="compared"),
        TradeoffPoint("worse", 2.5 * 2**30, 2.5),
        TradeoffPoint("refused", 0.5 * 2**30, 1.0, kind="refused"),
    ]
    traces = {trace["name"]: trace for trace in tradeoff_plotly(points, memory_limit_bytes=2.0**31)["data"]}
    assert (traces["least of both"]["x"], traces["least of both"]["y"]) == ([1.0, 2.0], [3000.0, 2000.0])
    assert (traces["lower bound"]["x"], traces["lower bound"]["y"]) == ([1.0], [2000.0])
    assert traces["lower bound"]["error_y"]["array"] == [1000.0]
    for name, places in (
        ("compared", ([2.0], [2000.0])),
        ("others", ([1.0, 2.5], [3000.0, 2500.0])),
        ("do not run or fit as they are", ([0.5], [1000.0])),
    ):
        assert (traces[name]["x"], traces[name]["y"]) == places
    assert [data[0] for data in traces["others"]["customdata"]] == ["slow", "worse"]


def test_the_stacked_causes_of_a_rank_are_its_bubble():
    bars = idle_plotly(TIMELINES)["data"]
    assert [bar["name"] for bar in bars] == list(palette.CAUSE_TITLES.values())
    expected = [100 * (1 - busy / timeline.step_time_s) for timeline in TIMELINES for busy in timeline.busy_s]
    assert sum(numbers(bar["y"]) for bar in bars) == pytest.approx(expected)
    assert numbers(bars[0]["y"])[3] == pytest.approx(
        100 * idle_by_cause_s(TIMELINES[0])["warm_up"][3] / TIMELINES[0].step_time_s
    )


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_text_stands_out_from_the_paper(theme):
    assert palette.contrast(theme.text, theme.paper) >= 4.5
    assert palette.contrast(theme.quiet, theme.paper) >= 4.5
    assert palette.contrast(theme.accent, theme.paper) >= 3
    assert palette.contrast(theme.strong, theme.paper) >= 3


def test_plotly_takes_every_picture():
    point = TradeoffPoint("1f1b", 2.0**30, 1.0, 0.5)
    for figure in (
        figure_of(timeline_plotly(TIMELINES, look=DrawingOptions(with_memory=True))),
        figure_of(idle_plotly(TIMELINES)),
        tradeoff_figure([point]),
    ):
        assert json.loads(figure.to_json())["data"]


def test_panels_stand_below_each_other_with_room_for_their_captions():
    """Each of two timelines: 26 pixels of caption and 4 rows of 26 (130); memory: 26 and 150. Margins take 52."""
    layout = timeline_plotly(TIMELINES, titles=["a", "<b>"], look=DrawingOptions(with_memory=True))["layout"]
    whole = 2 * 130 + 2 * 176
    assert (layout["height"], layout["margin"]["t"] + layout["margin"]["b"]) == (whole + 52, 52)
    borders = [0, 130, 260, 436, 612]
    for place, name in enumerate(("yaxis", "yaxis2", "yaxis3", "yaxis4")):
        domain = [1 - borders[place + 1] / whole, 1 - (borders[place] + 26) / whole]
        assert layout[name]["domain"] == pytest.approx(domain, abs=1e-9)
        assert layout["annotations"][place]["y"] == pytest.approx(domain[1])
        assert (layout[name]["fixedrange"], layout[name]["zeroline"]) == (True, False)
    assert layout["xaxis"]["anchor"] == "y4"
    assert layout["annotations"][1]["text"].startswith("<b>&lt;b&gt;</b> ")
    assert layout["yaxis"]["range"] == [3.5, -0.5]
    assert layout["yaxis"]["ticktext"] == ["rank 0", "rank 1", "rank 2", "rank 3"]


@pytest.mark.parametrize(
    ("num_timelines", "row_px", "named"), [(5, 26, [0, 1, 2, 3]), (13, 10, [0, 1, 2, 3]), (52, 5, [0, 3])]
)
def test_rows_of_many_timelines_are_lower_and_every_kth_is_named(num_timelines, row_px, named):
    """520 pixels for all rows, 5 to 26 each; a name needs 13."""
    look, fills = DrawingOptions(with_texts=False), fills_of(TIMELINES)
    panel = _rows_panel(TIMELINES[0], "", time_scale(1.0), fills, look, num_timelines)
    assert (panel.height_px, panel.axis["tickvals"]) == (4 * row_px, named)


def test_memory_is_in_steps_of_one_unit_with_its_limit():
    timeline = TIMELINES[0]
    panel = _memory_panel(timeline, "t", time_scale(1.0), DrawingOptions(memory_limit_bytes=6 * 2.0**30))
    assert panel.caption == ("t", "memory (GiB)")
    for rank, line in enumerate(panel.traces):
        assert numbers(line["y"]).max() == 4 - rank
        assert (line["mode"], line["line"]["shape"], line["line"]["color"]) == (
            "lines",
            "hv",
            palette.rank_colour(rank, 4),
        )
    assert [(line["y0"], line["y1"], line["x0"], line["x1"]) for line in panel.limits] == [(6.0, 6.0, 0, 1)]
    assert _memory_panel(timeline, "t", time_scale(1.0), DrawingOptions()).limits == []


def test_the_colour_scale_has_a_step_of_one_for_each_fill_and_idle_is_the_themes():
    for theme in (LIGHT, DARK):
        scale = _colours(theme)
        number = len(ActionColours.colours)
        assert (scale["cmin"], scale["cmax"], scale["showscale"]) == (-0.5, number - 0.5, False)
        edges, colours = zip(*scale["colorscale"], strict=True)
        assert edges[0] == 0
        assert edges[1::2] == pytest.approx([(place + 1) / number for place in range(number)])
        assert edges[2::2] == edges[1:-1:2]
        assert colours[::2] == colours[1::2]
        idle = [place for place, fill in enumerate(ActionColours.colours) if fill == palette.COLOURS[Op.IDLE]]
        assert all(colours[2 * place] == theme.idle for place in idle)
        assert sum(a != b for a, b in zip(colours[::2], ActionColours.colours, strict=True)) <= len(idle) > 0


def test_points_are_told_with_their_bound_and_what_is_refused_is_crossed():
    points = [
        TradeoffPoint("<a>", 1.0 * 2**30, 3.0, bound_s=2.0, kind="compared", told="<x>", key="k"),
        TradeoffPoint("b", 3.0 * 2**30, 2.0, kind="compared"),
        TradeoffPoint("c", 2.0 * 2**30, 1.0, kind="refused"),
    ]
    picture = tradeoff_plotly(points, memory_limit_bytes=4 * 2.0**30)
    traces = {trace["name"]: trace for trace in picture["data"]}
    compared, refused = traces["compared"], traces["do not run or fit as they are"]
    assert compared["text"] == ["&lt;a&gt;", "b"]
    assert compared["textposition"] == ["top center", "bottom center"]
    assert compared["customdata"] == [
        ["k", "3.00 s, at least 2.00 s<br>1.00 GiB peak memory<br>&lt;x&gt;"],
        ["b", "2.00 s<br>3.00 GiB peak memory"],
    ]
    assert (compared["mode"], refused["mode"]) == ("markers+text", "markers")
    assert (compared["marker"]["line"]["width"], refused["marker"]["line"]["width"]) == (0, 1.5)
    assert compared["marker"]["size"] > refused["marker"]["size"]
    assert "others" not in traces
    (limit,) = picture["layout"]["shapes"]
    assert (limit["x0"], limit["x1"], limit["y0"], limit["y1"]) == (4.0, 4.0, 0, 1)
    bare = tradeoff_plotly(points[2:])
    assert [trace["name"] for trace in bare["data"]] == ["do not run or fit as they are"]
    assert bare["layout"]["shapes"] == []


def test_idle_bars_stand_by_timeline_and_rank():
    bars = idle_plotly(TIMELINES, titles=["a", "b"])["data"]
    assert all(bar["x"] == [["a"] * 4 + ["b"] * 4, ["0", "1", "2", "3"] * 2] for bar in bars)
    assert all(len(numbers(bar["y"])) == 0 for bar in idle_plotly([])["data"])


def test_the_critical_path_runs_below_the_middle_of_each_row():
    (path,) = [trace for trace in timeline_plotly(TIMELINES[:1])["data"] if trace["type"] == "scatter"]
    rows = numbers(path["y"])
    assert set(rows) == {rank + PATH_OFFSET for rank in range(4)}
    assert 0 < PATH_OFFSET < HALF_HEIGHT
    assert (numbers(path["x"]).min(), path["hoverinfo"]) == (0.0, "skip")


def test_what_is_left_out_in_plot_plotly_figures_has_these_values() -> None:
    assert number_defaults(plotly_figures_module) == {
        "limit_line": {"horizontal": False},
        "DrawingOptions": {"with_texts": True, "with_critical_path": True, "with_memory": False},
        "TradeoffPoint": {"fits": True, "is_tight": False},
    }  # fmt: skip


def small_timeline() -> Timeline:
    """Forward takes 2 ms and backward 8 ms, of one microbatch on two ranks, without transfers: 20 ms."""
    costs = StageCosts(
        forward_s=2e-3,
        backward_input_s=3e-3,
        backward_weight_s=5e-3,
        activation_bytes=2.0**31,
        static_bytes=2.0**30,
    )
    return simulate(build("1f1b", pp=2, microbatches=1), costs)


def test_cells_have_edges_in_the_unit_of_the_axis_and_names() -> None:
    """Rank 0 waits from 2 to 12 ms, and rank 1 before and after its 10 ms."""
    timeline = small_timeline()
    picture = timeline_plotly([timeline], titles=["<a>"], look=DrawingOptions(with_texts=False))
    first, second, path = picture["data"]
    assert numbers(first["x"]) == pytest.approx([0.0, 2.0, 12.0, 20.0])
    assert numbers(second["x"]) == pytest.approx([0.0, 2.0, 4.0, 12.0, 20.0])
    assert [row["customdata"] for row in (first, second)] == [
        [["0F0", "idle", "0B0"]],
        [["idle", "1F0", "1B0", "idle"]],
    ]
    assert [row["z"]["shape"] for row in (first, second)] == ["1, 3", "1, 4"]
    assert (first["y"], second["y"]) == ([-HALF_HEIGHT, HALF_HEIGHT], [1 - HALF_HEIGHT, 1 + HALF_HEIGHT])
    assert {key: first[key] for key in ("type", "coloraxis", "zsmooth", "yaxis", "showlegend", "hovertemplate")} == {
        "type": "heatmap", "coloraxis": "coloraxis", "zsmooth": False, "yaxis": "y", "showlegend": False,
        "hovertemplate": "%{customdata}<extra>rank 0</extra>",
    }  # fmt: skip
    assert numbers(path["x"]) == pytest.approx([0.0, 2.0, 2.0, 12.0, 12.0, 20.0])
    assert numbers(path["y"]) == pytest.approx([row + PATH_OFFSET for row in (0, 0, 1, 1, 0, 0)])
    assert {key: path[key] for key in ("type", "mode", "hoverinfo", "line", "showlegend", "yaxis")} == {
        "type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False, "yaxis": "y",
        "line": {"color": palette.CRITICAL_PATH, "width": 2},
    }  # fmt: skip
    (caption,) = picture["layout"]["annotations"]
    assert caption.pop("text").startswith("<b>&lt;a&gt;</b>   1f1b · pp 2")
    assert caption == {
        "xref": "paper", "yref": "paper", "x": 0, "y": pytest.approx(caption["y"]), "xanchor": "left",
        "yanchor": "bottom", "showarrow": False,
    }  # fmt: skip


def test_memory_is_a_line_per_rank_in_its_unit() -> None:
    timeline = small_timeline()
    scale = time_scale(timeline.step_time_s)
    panel = _memory_panel(timeline, "a", scale, DrawingOptions(memory_limit_bytes=5 * 2.0**30))
    (first, second), (limit,) = panel.traces, panel.limits
    assert numbers(first["x"]) == pytest.approx([0.0, 20.0])
    assert numbers(second["x"]) == pytest.approx([0.0, 2.0, 12.0, 20.0])
    assert numbers(second["y"]) == pytest.approx([1.0, 3.0, 1.0, 1.0])
    assert [line["hovertemplate"] for line in panel.traces] == [
        f"rank {rank}: %{{y:.2f}} GiB<extra></extra>" for rank in (0, 1)
    ]
    assert first["line"] == {"shape": "hv", "width": 1.5, "color": palette.rank_colour(0, 2)}
    assert (first["type"], first["mode"], limit["y0"]) == ("scatter", "lines", 5.0)
    assert (panel.caption, panel.axis) == (("a", "memory (GiB)"), {"rangemode": "tozero"})
    assert _memory_panel(timeline, "a", scale, DrawingOptions()).limits == []
