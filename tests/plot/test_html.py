"""The interactive page, by its data; tests/plot/test_browser.py opens it."""

import base64
import json
import re
import zlib

import numpy as np
import pytest
from hypothesis import given

from ppsim import StageCosts, build, project, simulate
from ppsim.api.views import view_of
from ppsim.plot import palette
from ppsim.plot.errors import Errors
from ppsim.plot.fills import Fills, fills_of
from ppsim.plot.html import timeline_html
from ppsim.plot.lanes import MOST_HAIRLINES, MOST_LABELS, compute_lanes
from ppsim.plot.picture import picture_of
from ppsim.plot.scale import heading
from ppsim.plot.view import View
from ppsim.runs.compare import compare
from ppsim.schedule.table import NONE
from ppsim.simulation.explain import CAUSES, idle_by_cause_s
from tests.projection.jobs import job
from tests.strategies import tables_and_costs

COSTS = StageCosts(
    forward_s=1e-3, backward_input_s=1e-3, backward_weight_s=1e-3, activation_bytes=2.0**30, transfer_s=1e-4
)


def timeline_of(name="1f1b", pp=4, microbatches=8, vpp=1, costs=COSTS):
    return simulate(build(name, pp=pp, vpp=vpp, microbatches=microbatches), costs)


def picture(*timelines, titles=None, **options):
    titles = titles or [""] * len(timelines)
    return picture_of([View(*pair) for pair in zip(timelines, titles, strict=True)], **options)


def page_of(*timelines, titles=None, **options):
    titles = titles or [""] * len(timelines)
    return timeline_html([View(*pair) for pair in zip(timelines, titles, strict=True)], **options)


def numbers(packed):
    return np.frombuffer(base64.b64decode(packed["bdata"]), dtype=packed["dtype"])


def panels_of(data, kind):
    return [panel for panel in data["panels"] if panel["kind"] == kind]


def captions_of(data):
    return [re.sub("<[^>]*>", "", panel["caption"]) for panel in data["panels"]]


def unpacked(page, name):
    """The data that the page's script reads from one of its elements."""
    packed = re.search(rf'<script type="text/plain" id="{name}">([^<]+)</script>', page).group(1)
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def test_a_row_of_cells_a_rank_has_the_lanes_own_edges_and_a_text_a_cell():
    timeline = timeline_of()
    data = picture(timeline)
    (panel,) = panels_of(data, "compute")
    assert len(panel["cells"]) == 4
    for row, lane in zip(panel["cells"], compute_lanes(timeline, by_cause=True), strict=True):
        assert numbers(row["x"]) == pytest.approx(lane.edges * 1e3)
        assert numbers(row["node"]).tolist() == lane.node.tolist()
        assert len(row["texts"]) == len(numbers(row["fill"])) == len(lane.node)
        busy = lane.node != NONE
        assert numbers(row["microbatch"])[busy].tolist() == timeline.schedule.microbatch[lane.node[busy]].tolist()
        assert set(numbers(row["microbatch"])[~busy].tolist()) <= {NONE}
    assert captions_of(data) == [
        f"1f1b   {heading(timeline, '')[1]}",
        "transfers, by sending rank",
        "memory by rank",
    ]


@given(tables_and_costs())
def test_idle_cells_in_the_colour_of_a_cause_add_up_to_its_idle_time(table_and_costs):
    timeline = simulate(*table_and_costs)
    idle = idle_by_cause_s(timeline)
    for lane in compute_lanes(timeline, by_cause=True):
        assert ((lane.cause == NONE) == ~lane.is_idle).all()
        drawn = np.bincount(lane.cause[lane.is_idle], lane.durations_s[lane.is_idle], minlength=len(CAUSES))
        expected = [idle[cause][lane.rank] for cause in CAUSES]
        assert drawn == pytest.approx(expected, abs=1e-7 * timeline.step_time_s)


def test_several_timelines_share_one_time_axis_that_holds_the_longest():
    slow, fast = timeline_of("1f1b"), timeline_of("zbv-fixed", vpp=2, costs=COSTS.replace(forward_s=5e-4))
    data = picture(slow, fast, titles=["slow", "fast"])
    assert data["range"] == [0, max(slow.step_time_s, fast.step_time_s) * 1e3]
    assert [caption.split(" ")[0] for caption in captions_of(data)] == [
        "slow",
        "fast",
        "slow:",
        "fast:",
        "slow:",
        "fast:",
    ]
    assert [[row["plan"] for row in panel["cells"]] for panel in panels_of(data, "compute")] == [[0] * 4, [1] * 4]


def test_without_transfer_times_and_memory_there_are_no_panels_for_them():
    bare = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    assert len(captions_of(picture(timeline_of(costs=bare)))) == 1


def test_a_timeline_without_memory_has_no_panel_for_it_beside_one_that_has():
    """A measured run knows no bytes; it is compared with a projection that does."""
    without = timeline_of(costs=COSTS.replace(activation_bytes=0.0, transfer_s=0.0))
    captions = captions_of(picture(without, timeline_of(), titles=["measured", "projected"]))
    assert [caption for caption in captions if "memory" in caption] == ["projected: memory by rank"]


def test_the_memory_panel_reaches_the_limit_and_names_it():
    (panel,) = panels_of(picture(timeline_of(), memory_limit_bytes=80 * 2**30), "memory")
    assert panel["axis"]["range"][1] > 80
    assert panel["shapes"][0]["label"]["text"] == "limit 80.0 GiB"


def test_large_pictures_leave_out_labels_and_hairlines():
    small, large = timeline_of(), timeline_of(pp=16, microbatches=200)
    assert small.num_actions <= MOST_LABELS < large.num_actions
    assert large.graph.num_transfers > MOST_HAIRLINES
    assert [panels_of(picture(t), "compute")[0]["labelPx"] > 0 for t in (small, large)] == [True, False]
    assert [len(panels_of(picture(t), "transfers")[0]["lines"]) for t in (small, large)] == [1, 0]


def test_the_page_is_told_who_waits_for_whom():
    timeline = timeline_of("zb-h1")
    (plan,) = picture(timeline)["plans"]
    needs = [numbers(column) for column in plan["needs"]]
    name = {str(action): node for node, action in enumerate(timeline.schedule)}
    assert {column[name["1F3"]] for column in needs} == {NONE, name["0F3"]}
    assert {column[name["1I3"]] for column in needs} == {name["1F3"], name["2I3"]}
    assert {column[name["1W3"]] for column in needs} == {NONE, name["1I3"]}
    assert numbers(plan["blocker"]).tolist() == timeline.blocker.tolist()


def test_what_is_around_a_jobs_pipeline_has_a_row_a_rank_and_widens_the_axis():
    projection = project(pp=2, job=job(tp=2, dp=4, pp=2))
    view = view_of(projection, "job")
    assert {piece.kind for piece in view.pieces} >= {"reduce", "optimizer"}
    data = picture_of([view])
    (panel,) = panels_of(data, "beside")
    assert [row["rank"] for row in panel["cells"]] == [0, 1]
    last = max(piece.end_s for piece in view.pieces) - projection.timeline.begin_s
    assert last > projection.timeline.step_time_s
    assert data["range"][1] == pytest.approx(max(view.end_s, last) / (1e-3 if data["unit"] == "ms" else 1.0))
    said = [text[0] for row in panel["cells"] for text in row["texts"]]
    assert "optimizer" in said


def test_measured_and_projected_share_the_rows_and_say_how_far_off_each_action_is():
    measured = timeline_of("zb-h1")
    projected = timeline_of("zb-h1", costs=COSTS.replace(forward_s=0.9e-3, backward_weight_s=1.2e-3))
    errors = Errors(measured, projected)
    data = picture(measured, projected, titles=["measured", "projected"], errors=errors)
    (panel,) = panels_of(data, "compute")
    assert [row["plan"] for row in panel["cells"]] == [0] * 4 + [1] * 4
    above, below = panel["cells"][2], panel["cells"][6]
    assert above["middle"] + above["half"] < below["middle"] - below["half"]
    by_kind = dict(zip("FIW", (-0.1, 0.0, 0.2), strict=True))
    for row in (above, below):
        for text, error in zip(row["texts"], numbers(row["error"]).tolist(), strict=True):
            if text[0].startswith("idle"):
                assert np.isnan(error)
            else:
                assert error == pytest.approx(by_kind[re.sub(r"\d", "", text[0])], abs=1e-6)
    said = {text[0]: text[4] for text in below["texts"]}
    assert said["2F0"] == "projected 900 µs, measured 1.00 ms: -10.00 %; ends 300 µs early in the projection"
    assert errors.limit == 0.2


def test_the_errors_of_actions_that_took_no_time_are_none():
    nothing = timeline_of(costs=StageCosts(forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0))
    assert set(Errors(nothing, timeline_of()).of_action.tolist()) == {0.0}


def test_a_comparison_has_its_own_colouring_and_table():
    measured, projected = timeline_of(), timeline_of(costs=COSTS.replace(forward_s=0.9e-3))
    page = page_of(measured, projected, titles=["measured", "projected"], comparison=compare(measured, projected))
    assert "value='error'" in page
    assert "F of stage 3</td><td>1.00 ms</td><td>900 µs</td><td>-10.00 %" in page
    assert "value='error'" not in page_of(measured)


def test_every_colouring_finds_its_fills():
    fills = Fills(3)
    colours = fills.colours
    assert len(colours) == fills.errors + len(palette.ERRORS)
    assert fills.errors - fills.microbatches == len(palette.MICROBATCHES)
    assert len(set(colours[: fills.microbatches])) == fills.microbatches  # each tells something else
    assert fills_of([timeline_of()]).num_chunks == 1


def test_the_side_says_where_the_time_goes_and_has_a_row_a_rank():
    projection = project(pp=4, vpp=2)
    page = timeline_html([view_of(projection, "plan")])
    assert "Where an iteration goes" in page
    assert "compute beyond the ideal" in page
    assert page.count("<tr><td><span class='swatch ' style='background:") == len(CAUSES) + 4
    assert "Where an iteration goes" not in page_of(timeline_of())


def test_the_same_timeline_gives_the_same_page():
    assert page_of(timeline_of(), titles=["a"]) == page_of(timeline_of(), titles=["a"])


def test_titles_are_text_and_never_markup():
    page = page_of(timeline_of(), titles=["<script>alert(1)</script> & co"])
    assert "alert(1)</script>" not in page
    assert "<title>&lt;script&gt;alert(1)&lt;/script&gt; &amp; co</title>" in page


def test_a_page_without_titles_is_called_by_its_schedule():
    assert "<title>1f1b</title>" in page_of(timeline_of())


def test_the_page_refers_to_no_other_file():
    page = page_of(timeline_of())
    assert not re.search(r"<(script|link|img|iframe)[^>]*\b(src|href)=", page[:20_000] + page[-60_000:])
    assert "<script src" not in page


def test_the_packed_data_are_those_of_the_picture():
    timeline = timeline_of()
    page, data = page_of(timeline), picture(timeline)
    texts = [row.pop("texts") for panel in data["panels"] for row in panel["cells"]]
    assert unpacked(page, "texts") == json.loads(json.dumps(texts))
    assert unpacked(page, "picture") == json.loads(json.dumps(data))


def test_a_step_that_takes_no_time_still_has_a_page():
    nothing = timeline_of(costs=StageCosts(forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0))
    assert page_of(nothing)
