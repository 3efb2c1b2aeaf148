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
from ppsim.plot import html as html_module
from ppsim.plot import palette
from ppsim.plot.action_colours import ActionColours, fills_of
from ppsim.plot.html import timeline_html
from ppsim.plot.lanes import compute_lanes, placed_transfer_lanes
from ppsim.plot.picture import BUSY, ActionErrors, picture_of
from ppsim.plot.plot_model import TimelineView
from ppsim.plot.scale import heading
from ppsim.runs.compare import compare
from ppsim.schedule.table import NONE
from ppsim.simulation.idle_causes import CAUSES, idle_by_cause_s
from ppsim.simulation.step import StepActivity
from tests.defaults import number_defaults
from tests.projection.jobs import job
from tests.strategies import tables_and_costs

COSTS = StageCosts(
    forward_s=1e-3, backward_input_s=1e-3, backward_weight_s=1e-3, activation_bytes=2.0**30, transfer_s=1e-4
)


def timeline_of(name="1f1b", pp=4, microbatches=8, vpp=1, costs=COSTS):
    return simulate(build(name, pp=pp, vpp=vpp, microbatches=microbatches), costs)


class Read:
    """A picture's data, and its rows of numbers as the page reads them."""

    def __init__(self, picture):
        self.data, self.panels = picture.data, picture.data["panels"]
        (self.plan,) = picture.data["plans"][:1]
        self.drawn, self.told = (
            zlib.decompress(base64.b64decode(one.packed())) for one in (picture.drawn, picture.told)
        )

    def row(self, told, *, of="drawn"):
        size = int(told["type"][1])
        planes = np.frombuffer(getattr(self, of), np.uint8, told["length"] * size, told["at"]).reshape(size, -1)
        values = np.ascontiguousarray(planes.T).view("<" + told["type"]).ravel()
        if told["how"] == "sum":
            return np.cumsum(values, dtype=float if told["type"] == "f8" else int)
        if told["how"] == "back":
            return np.where(values == 0, NONE, np.arange(len(values)) - values)
        return values

    def rows_of(self, panel):
        """Of each row of cells its edges, in the axis's unit, and causes."""
        edges, causes = self.row(panel["edges"]) * self.data["tick"], self.row(panel["causes"])
        sizes = np.array([row["cells"] for row in panel["rows"]])
        return list(
            zip(np.split(edges, np.cumsum(sizes + 1)[:-1]), np.split(causes, np.cumsum(sizes)[:-1]), strict=True)
        )


def picture(*timelines, titles=None, **options):
    titles = titles or [""] * len(timelines)
    return Read(picture_of([TimelineView(*pair) for pair in zip(timelines, titles, strict=True)], **options))


def page_of(*timelines, titles=None, **options):
    titles = titles or [""] * len(timelines)
    return timeline_html([TimelineView(*pair) for pair in zip(timelines, titles, strict=True)], **options)


def panels_of(read, kind):
    return [panel for panel in read.panels if panel["kind"] == kind]


def captions_of(read):
    return ["   ".join(filter(None, panel["caption"])) for panel in read.panels]


def unpacked(page, name):
    """The data that the page's script reads from one of its elements."""
    packed = re.search(rf'<script type="text/plain" id="{name}">([^<]+)</script>', page).group(1)
    return zlib.decompress(base64.b64decode(packed))


@given(tables_and_costs())
def test_a_row_of_cells_a_rank_has_the_lanes_own_edges_and_causes(table_and_costs):
    timeline = simulate(*table_and_costs)
    read = picture(timeline)
    (panel,) = panels_of(read, "compute")
    lanes = compute_lanes(timeline, by_cause=True)
    assert [row["rank"] for row in panel["rows"]] == list(range(timeline.schedule.num_ranks))
    for (edges, causes), lane in zip(read.rows_of(panel), lanes, strict=True):
        assert edges * read.data["unitSeconds"] == pytest.approx(lane.edges, abs=1e-12 * timeline.step_time_s)
        assert causes.tolist() == np.where(lane.is_idle, lane.cause, BUSY).tolist()


@given(tables_and_costs())
def test_the_columns_of_a_table_are_read_back_as_they_are(table_and_costs):
    timeline = simulate(*table_and_costs)
    read, schedule = picture(timeline), timeline.schedule
    for name in ("op", "stage", "microbatch"):
        assert read.row(read.plan[name]).tolist() == getattr(schedule, name).tolist()
    for name in ("source", "target"):
        assert read.row(read.plan[name]).tolist() == getattr(timeline.graph, name).tolist()
    assert read.row(read.plan["blocker"], of="told").tolist() == timeline.blocker.tolist()
    if read.plan["held"]:
        held = timeline.memory.during + timeline.costs.static_bytes[schedule.rank]
        assert read.row(read.plan["held"], of="told") == pytest.approx(held, rel=1e-6)


def test_the_transfers_of_a_lane_are_named_in_the_order_of_their_cells():
    timeline = timeline_of(costs=COSTS.replace(transfer_s=2.5e-3))
    read = picture(timeline)
    (panel,) = panels_of(read, "transfers")
    nodes = iter(read.row(panel["nodes"]).tolist())
    for (edges, causes), (lane, middle, half), row in zip(
        read.rows_of(panel), placed_transfer_lanes(timeline), panel["rows"], strict=True
    ):
        assert edges == pytest.approx(lane.edges / read.data["unitSeconds"])
        assert [next(nodes) if cause == BUSY else NONE for cause in causes] == lane.node.tolist()
        assert (row["middle"], row["half"]) == (middle, half)


def test_a_page_of_a_regular_table_grows_by_less_than_a_byte_an_action():
    """Its bytes repeat themselves once they are laid out so; a text a cell took a hundred."""
    small, large = timeline_of(pp=8, microbatches=200), timeline_of(pp=8, microbatches=1000)
    grown = len(page_of(large)) - len(page_of(small))
    assert grown < large.num_actions - small.num_actions


@given(tables_and_costs())
def test_idle_cells_in_the_colour_of_a_cause_add_up_to_its_idle_time(table_and_costs):
    timeline = simulate(*table_and_costs)
    idle = idle_by_cause_s(timeline)
    for lane in compute_lanes(timeline, by_cause=True):
        assert ((lane.cause == NONE) == ~lane.is_idle).all()
        drawn = np.bincount(lane.cause[lane.is_idle], lane.durations_s[lane.is_idle], minlength=len(CAUSES))
        expected = [idle[cause][lane.rank] for cause in CAUSES]
        assert drawn == pytest.approx(expected, abs=1e-7 * timeline.step_time_s)


def test_every_panel_says_what_it_is():
    timeline = timeline_of()
    share = 100 * 48 * 1e-4 / 4 / timeline.step_time_s  # 3 hops, down and up, of 8 microbatches
    assert captions_of(picture(timeline)) == [
        f"1f1b   {heading(timeline, '')[1]}",
        f"transfers, by sending rank; a rank's are under way {share:.2f} % of the step",
        "memory by rank",
    ]


def test_several_timelines_share_one_time_axis_that_holds_the_longest():
    slow, fast = timeline_of("1f1b"), timeline_of("zbv-fixed", vpp=2, costs=COSTS.replace(forward_s=5e-4))
    data = picture(slow, fast, titles=["slow", "fast"])
    assert data.data["range"] == [0, max(slow.step_time_s, fast.step_time_s) * 1e3]
    assert [caption.split(" ")[0] for caption in captions_of(data)] == [
        "slow",
        "fast",
        "slow:",
        "fast:",
        "slow:",
        "fast:",
    ]
    assert [[row["plan"] for row in panel["rows"]] for panel in panels_of(data, "compute")] == [[0] * 4, [1] * 4]


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
    assert panel["top"] > 80
    assert panel["limit"] == [80, "limit 80.0 GiB"]


def test_the_page_is_told_who_waits_for_whom():
    timeline = timeline_of("zb-h1")
    read = picture(timeline)
    needs = [read.row(column, of="told") for column in read.plan["needs"]]
    name = {str(action): node for node, action in enumerate(timeline.schedule)}
    assert {column[name["1F3"]] for column in needs} == {NONE, name["0F3"]}
    assert {column[name["1I3"]] for column in needs} == {name["1F3"], name["2I3"]}
    assert {column[name["1W3"]] for column in needs} == {NONE, name["1I3"]}


def test_what_is_around_a_jobs_pipeline_has_a_row_a_rank_and_widens_the_axis():
    projection = project(pp=2, job=job(tp=2, dp=4, pp=2))
    view = view_of(projection, "job")
    assert {piece.kind for piece in view.pieces} >= {"reduce", "optimizer"}
    read = Read(picture_of([view]))
    data, (panel,) = read.data, panels_of(read, "beside")
    assert [row["rank"] for row in panel["rows"]] == [0, 1]
    last = max(piece.end_s for piece in view.pieces) - projection.timeline.begin_s
    assert last > projection.timeline.step_time_s
    assert data["range"][1] == pytest.approx(max(view.end_s, last) / (1e-3 if data["unit"] == "ms" else 1.0))
    assert "optimizer" in {panel["titles"].get(str(fill)) for fill in panel["fill"]}
    assert sum(row["cells"] for row in panel["rows"]) == len(panel["fill"]) == len(panel["told"])


def test_measured_and_projected_share_the_rows_and_say_how_far_off_each_action_is():
    measured = timeline_of("zb-h1")
    projected = timeline_of("zb-h1", costs=COSTS.replace(forward_s=0.9e-3, backward_weight_s=1.2e-3))
    errors = ActionErrors(measured, projected)
    read = picture(measured, projected, titles=["measured", "projected"], errors=errors)
    (panel,) = panels_of(read, "compute")
    assert [row["plan"] for row in panel["rows"]] == [0] * 4 + [1] * 4
    above, below = panel["rows"][2], panel["rows"][6]
    assert above["middle"] + above["half"] < below["middle"] - below["half"]
    off = read.row(read.data["errors"]["ofAction"], of="told")
    by_kind = dict(zip("FIW", (-0.1, 0.0, 0.2), strict=True))
    expected = [by_kind[action.op.name] for action in measured.schedule]
    assert off == pytest.approx(expected, abs=1e-9)
    behind = read.row(read.data["errors"]["behind"], of="told")
    first = [str(action) for action in measured.schedule].index("2F0")
    assert behind[first] == pytest.approx(-0.3e-3)
    assert errors.limit == 0.2


def test_the_errors_of_actions_that_took_no_time_are_none():
    nothing = timeline_of(costs=StageCosts(forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0))
    assert set(ActionErrors(nothing, timeline_of()).of_action.tolist()) == {0.0}


def test_a_comparison_has_its_own_colouring_and_table():
    measured, projected = timeline_of(), timeline_of(costs=COSTS.replace(forward_s=0.9e-3))
    page = page_of(measured, projected, titles=["measured", "projected"], comparison=compare(measured, projected))
    assert "value='error'" in page
    assert "F of stage 3</td><td>1.00 ms</td><td>900 µs</td><td>-10.00 %" in page
    assert "value='error'" not in page_of(measured)


def test_every_colouring_finds_its_fills():
    fills = ActionColours(3)
    colours = fills.colours
    assert len(colours) == fills.errors + len(palette.ERRORS)
    assert fills.errors - fills.microbatches == len(palette.MICROBATCHES)
    assert len(set(colours[: fills.microbatches])) == fills.microbatches  # each tells something else
    assert fills_of([timeline_of()]).num_chunks == 1


def test_the_side_says_where_the_time_goes_and_has_a_row_a_rank():
    projection = project(pp=4, vpp=2)
    page = timeline_html([view_of(projection, "plan")])
    assert "Where an iteration goes" in page
    assert "compute below peak" in page
    idle = [seconds.mean() for seconds in idle_by_cause_s(projection.timeline).values()]
    shown = sum(one >= 5e-5 * projection.timeline.step_time_s for one in idle)
    assert shown == len(CAUSES) - 1  # the host has no part
    assert page.count("<tr><td><span class='swatch ' style='background:") == shown + 4
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
    page, made = page_of(timeline), picture_of([TimelineView(timeline)])
    assert json.loads(unpacked(page, "picture")) == json.loads(json.dumps(made.data))
    for name in ("drawn", "told"):
        assert unpacked(page, name) == zlib.decompress(base64.b64decode(getattr(made, name).packed()))


def test_a_step_that_takes_no_time_still_has_a_page():
    nothing = timeline_of(costs=StageCosts(forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0))
    assert page_of(nothing)


def test_what_there_is_none_of_has_no_row_and_no_heading():
    """Of no transfers and no memory: no box for their panels, and nothing that reads 0.00 %."""
    seconds = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    page = page_of(timeline_of(costs=seconds))
    assert "<legend>panels" not in page
    assert "exposed communication</td>" not in page
    assert "0.00 %" not in page
    assert "<legend>panels" in page_of(timeline_of())
    assert "exposed communication</td>" in page_of(timeline_of())


def test_a_picture_has_the_cells_heights_and_texts_of_every_panel():
    """A step of 10 s, and work around it from 1 s before to 1 s after it."""
    costs = StageCosts(
        forward_s=1, backward_input_s=1, backward_weight_s=1, activation_bytes=2.0**30, transfer_s=0.5
    )
    pieces = [
        StepActivity(0, "gather", -1, -1.0, 0.0),
        StepActivity(1, "optimizer", -1, 10.0, 11.0),
        StepActivity(1, "reduce", 1, 8.0, 9.5),
        StepActivity(0, "hidden", 0, 1.0, 2.0, "a"),
        StepActivity(0, "exposed", 0, 2.0, 2.5, "b"),
    ]
    view = TimelineView(timeline_of(pp=2, microbatches=2, costs=costs), "plan", pieces)
    read = Read(picture_of([view], memory_limit_bytes=4 * 2.0**30))
    compute, messages, transfers, beside, memory = read.panels
    assert read.data["range"] == [-1, 11]
    assert [panel["kind"] for panel in read.panels] == ["compute", "messages", "transfers", "beside", "memory"]
    assert [panel["heightPx"] for panel in read.panels] == [2 * 34, 2 * 24, 2 * 48, 2 * 24, 170]
    assert captions_of(read) == [
        "plan   1f1b · pp 2 · vpp 1 · 2 microbatches · step 10.0 s · bubble 40.00 %",
        "messages of experts, 33.33 % exposed",
        "transfers, by sending rank; a rank's are under way 10.00 % of the step",
        "beside the pipeline: collectives of data parallelism, optimizer",
        "memory by rank",
    ]
    row = {"plan": 0, "rank": 1, "middle": 1, "half": 0.42}
    assert compute["rows"][1] == row | {"cells": 7, "typical": 1.5}, "4 actions and 3 waits; F 1 s, B 2 s"
    assert transfers["rows"][1] == row | {"cells": 5, "typical": 0.5}, "2 transfers and 3 pauses"
    kinds = read.data["fills"]["causes"] + len(CAUSES)
    names = {str(kinds + place): palette.BESIDE_TITLES[kind] for place, kind in enumerate(palette.BESIDE_COLOURS)}
    blank, gather, reduce, optimizer, hidden = (
        read.data["fills"]["transfer"] + 1,
        *(kinds + place for place in (0, 2, 5, 6)),
    )
    assert messages["rows"] == [row | {"rank": 0, "middle": 0, "cells": 3}, row | {"cells": 0}]
    assert (read.row(messages["edges"]) * read.data["tick"]).round(9).tolist() == [-1, 1, 2, 2.5, -1]
    assert (messages["fill"], messages["told"], messages["texts"]) == (
        [blank, hidden, hidden + 1],
        [0, 1, 2],
        ["", "a", "b"],
    )
    assert beside["rows"] == [row | {"rank": 0, "middle": 0, "cells": 1}, row | {"cells": 4}]
    assert (read.row(beside["edges"]) * read.data["tick"]).round(9).tolist() == [-1, 0, -1, 8, 9.5, 10, 11]
    assert beside["fill"] == [gather, blank, reduce, blank, optimizer]
    assert [beside["texts"][place] for place in beside["told"]] == [
        "all stages of the rank", "", "stage 1", "", "all stages of the rank"
    ]  # fmt: skip
    assert messages["titles"] == beside["titles"] == names
    assert (memory["top"], memory["unit"], memory["limit"]) == (
        pytest.approx(1.06 * 4),
        "GiB",
        [4, "limit 4.00 GiB"],
    )
    ramp = [palette.rank_colour(rank, 2) for rank in range(2)]
    assert [(line["rank"], line["colour"]) for line in memory["lines"]] == [(0, ramp[0]), (1, ramp[1])]
    assert [set(read.row(line["y"]).tolist()) for line in memory["lines"]] == [{0, 1, 2}, {0, 1}]
    plan = {name: field for name, field in read.plan.items() if isinstance(field, int)}
    assert plan == {
        "numActions": 8, "numMicrobatches": 2, "numSlices": 1, "numRounds": 1, "numStages": 2, "numModelStages": 2
    }  # fmt: skip
    assert (read.plan["rankOffsets"], read.plan["chunks"]) == ([0, 4, 8], [0, 0])


def test_what_is_left_out_in_plot_html_has_these_values() -> None:
    assert number_defaults(html_module) == {
        "_input": {"is_checked": True},
    }  # fmt: skip


def test_only_a_page_of_errors_has_their_key_and_all_facts_of_its_plans():
    one, other = timeline_of(), timeline_of(microbatches=4)
    views = [
        TimelineView(one, "a", subject="job", about=[("model", "m"), ("layout", "x")]),
        TimelineView(other, "b", subject="job", about=[("model", "m"), ("layout", "y")]),
    ]
    page = timeline_html(views, command="ppsim project", date="today")
    assert "<kbd>E</kbd>" not in page
    for name, text in (("model", "m"), ("layout", "x / y"), ("command", "ppsim project"), ("made", "today")):
        assert f"<dt>{name}</dt><dd>{text}</dd>" in page
    assert "<title>job: a, b, today</title>" in page
    assert "<dt>command</dt>" not in timeline_html(views[:1])
    assert "<kbd>E</kbd>" in timeline_html(views, comparison=compare(one, one))


def test_legends_have_a_swatch_per_colour_the_second_hatched() -> None:
    box = "<span class='swatch {}' style='background:{}'></span>"
    assert html_module._swatched(["#111", "#222", "#333"], "F & B") == (
        box.format("", "#111") + box.format("hatched", "#222") + "F &amp; B"
    )
    assert html_module._legend("kind", ["a", "b"]) == "<ul class='legend kind'><li>a</li><li>b</li></ul>"
    assert html_module._ramp(["#111", "#222"]) == (
        "<span class=ramp style='background:linear-gradient(90deg,#111,#222)'></span>"
    )


@pytest.mark.parametrize("is_checked", [True, False])
def test_an_input_has_its_name_value_and_hint(is_checked: bool) -> None:
    checked = " checked" if is_checked else ""
    assert html_module._input(
        "radio", "colour", "cause", "by cause", "Colour idle cells", is_checked=is_checked
    ) == (
        f"<label title='Colour idle cells'><input type='radio' name='colour' value='cause'{checked}>by cause</label>"
    )


def test_panels_are_chosen_by_boxes_of_those_that_are_drawn() -> None:
    assert html_module._panel_boxes(set()) == ""
    boxes = html_module._panel_boxes({"memory"})
    assert boxes.startswith("<fieldset><legend>panels</legend><label title='Show the panels of memory")
    assert re.findall("name='(.*?)' value='(.*?)' checked", boxes) == [("panel", "memory")]
