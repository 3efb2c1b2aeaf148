"""The interactive page, by its data; tests/plot/test_browser.py opens it."""

import base64
import json
import re
import zlib
from itertools import pairwise

import numpy as np
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.plot.figure import timeline_figure
from ppsim.plot.html import plotly_figure, timeline_html
from ppsim.plot.lanes import MOST_HAIRLINES, MOST_LABELS, compute_lanes
from ppsim.plot.scale import heading

COSTS = StageCosts(
    forward_s=1e-3, backward_input_s=1e-3, backward_weight_s=1e-3, activation_bytes=2.0**30, transfer_s=1e-4
)


def timeline_of(name="1f1b", pp=4, microbatches=8, vpp=1, costs=COSTS):
    return simulate(build(name, pp=pp, vpp=vpp, microbatches=microbatches), costs)


def numbers(packed):
    values = np.frombuffer(base64.b64decode(packed["bdata"]), dtype=packed["dtype"])
    return values.reshape([int(length) for length in packed["shape"].split(",")]) if "shape" in packed else values


def cells_of(figure, axis):
    return [trace for trace in figure["data"] if trace["type"] == "heatmap" and trace["yaxis"] == axis]


def captions_of(figure):
    return [re.sub("<[^>]*>", "", note["text"]) for note in figure["layout"]["annotations"]]


def test_a_heatmap_a_rank_has_the_lanes_own_edges_and_a_text_a_cell():
    timeline = timeline_of()
    figure = plotly_figure([timeline], titles=[""])
    traces = cells_of(figure, "y")
    assert len(traces) == 4
    for trace, lane in zip(traces, compute_lanes(timeline), strict=True):
        assert numbers(trace["x"]) == pytest.approx(lane.edges * 1e3)
        assert numbers(trace["z"]).shape == (1, len(lane.node))
        assert len(trace["customdata"][0]) == len(lane.node)
    assert captions_of(figure) == [
        f"1f1b   {heading(timeline, '')[1]}",
        "transfers, by sending rank",
        "memory by rank",
    ]


def test_several_timelines_share_one_time_axis_that_holds_the_longest():
    slow, fast = timeline_of("1f1b"), timeline_of("zbv-fixed", vpp=2, costs=COSTS.replace(forward_s=5e-4))
    figure = plotly_figure([slow, fast], titles=["slow", "fast"])
    longest = max(slow.step_time_s, fast.step_time_s) * 1e3
    assert figure["layout"]["xaxis"]["range"] == [0, longest]
    assert not any(key.startswith("xaxis") and key != "xaxis" for key in figure["layout"])
    assert [caption.split(" ")[0] for caption in captions_of(figure)] == [
        "slow",
        "fast",
        "slow:",
        "fast:",
        "slow:",
        "fast:",
    ]
    assert len(cells_of(figure, "y")) == len(cells_of(figure, "y2")) == 4


def test_panels_do_not_overlap():
    figure = plotly_figure([timeline_of(), timeline_of("zbv-fixed", vpp=2)], titles=["a", "b"])
    domains = [axis["domain"] for key, axis in figure["layout"].items() if key.startswith("yaxis")]
    assert len(domains) == 6
    for (bottom, top), (_, next_top) in pairwise(domains):
        assert top > bottom > next_top
    assert domains[-1][0] == pytest.approx(0)


def test_without_transfer_times_and_memory_there_are_no_panels_for_them():
    bare = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    assert len(captions_of(plotly_figure([timeline_of(costs=bare)], titles=[""]))) == 1


def test_a_timeline_without_memory_has_no_panel_for_it_beside_one_that_has():
    """A measured run knows no bytes; it is compared with a projection that does."""
    without = timeline_of(costs=COSTS.replace(activation_bytes=0.0, transfer_s=0.0))
    captions = captions_of(plotly_figure([without, timeline_of()], titles=["measured", "projected"]))
    assert [caption for caption in captions if "memory" in caption] == ["projected: memory by rank"]
    drawn = timeline_figure([without, timeline_of()], titles=["measured", "projected"])
    assert len(drawn.axes) == 2 + 1 + 1


def test_the_memory_panel_reaches_the_limit_and_names_it():
    figure = plotly_figure([timeline_of()], titles=[""], memory_limit_bytes=80 * 2**30)
    assert figure["layout"]["yaxis3"]["range"][1] > 80
    assert figure["layout"]["shapes"][0]["label"]["text"] == "limit 80.0 GiB"


def test_large_pictures_leave_out_labels_and_hairlines():
    small, large = timeline_of(), timeline_of(pp=16, microbatches=200)
    assert small.num_actions <= MOST_LABELS < large.num_actions
    assert large.graph.num_transfers > MOST_HAIRLINES
    kinds = [
        [
            trace["type"] + trace.get("mode", "") + trace["yaxis"]
            for trace in plotly_figure([t], titles=[""])["data"]
            if "yaxis" in trace
        ]
        for t in (small, large)
    ]
    assert "bary" in kinds[0]
    assert "scatterlinesy2" in kinds[0]
    assert "bary" not in kinds[1]
    assert "scatterlinesy2" not in kinds[1]


def test_the_same_timeline_gives_the_same_page():
    assert timeline_html([timeline_of()], titles=["a"]) == timeline_html([timeline_of()], titles=["a"])


def test_titles_are_text_and_never_markup():
    page = timeline_html([timeline_of()], titles=["<script>alert(1)</script> & co"])
    assert "alert(1)</script>" not in page
    assert "<title>&lt;script&gt;alert(1)&lt;/script&gt; &amp; co</title>" in page


def test_a_page_without_titles_is_called_by_its_schedule():
    assert "<title>1f1b</title>" in timeline_html([timeline_of()], titles=[""])


def test_the_page_refers_to_no_other_file():
    page = timeline_html([timeline_of()], titles=["a"])
    assert not re.search(r"<(script|link|img|iframe)[^>]*\b(src|href)=", page[:2000] + page[-200_000:])
    assert "<script src" not in page


def test_the_packed_texts_are_those_of_the_figure():
    timeline = timeline_of()
    page = timeline_html([timeline], titles=["a"])
    packed = re.search(r'atob\("([^"]+)"\)', page[-200_000:]).group(1)
    texts = json.loads(zlib.decompress(base64.b64decode(packed)))
    figure = plotly_figure([timeline], titles=["a"])
    assert texts[0] == [list(lines) for lines in figure["data"][0]["customdata"][0]]
    assert len(texts) == len(figure["data"])


def test_every_timeline_needs_its_title():
    with pytest.raises(ValueError, match="zip"):
        timeline_html([timeline_of()], titles=[])


def test_a_step_that_takes_no_time_still_has_a_page_and_a_figure():
    nothing = timeline_of(costs=StageCosts(forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0))
    assert timeline_html([nothing], titles=[""])
    assert timeline_figure([nothing], titles=[""]).axes
