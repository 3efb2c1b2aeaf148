"""What the interactive page works out itself, held against the Python that it follows: texts, sums, searches, pixels.

As tests/plot/test_browser.py, in a real browser.
"""

from urllib.parse import unquote

import numpy as np
import pytest

from ppsim import StageCosts, build, simulate
from ppsim.plot import palette
from ppsim.plot.hover import Hover
from ppsim.plot.lanes import compute_lanes, transfer_lanes
from ppsim.plot.picture import ActionErrors
from ppsim.plot.plot_model import TimelineView
from ppsim.plot.scale import time_scale
from ppsim.runs.compare import compare
from ppsim.schedule.grammar import parse_table
from ppsim.schedule.table import NONE, Op
from ppsim.simulation.idle_causes import CAUSES
from tests.plot import test_browser
from tests.plot.test_browser import COSTS, SHAPES

pytestmark = [pytest.mark.browser, *test_browser.pytestmark]
browser, opened = test_browser.browser, test_browser.opened


def costs_of(forward_s, backward_input_s, backward_weight_s, **others):
    return StageCosts(
        forward_s=forward_s, backward_input_s=backward_input_s, backward_weight_s=backward_weight_s, **others
    )


UNEVEN = StageCosts(
    forward_s=0.0123, backward_input_s=0.0179, backward_weight_s=0.0071, activation_bytes=1.3e9, transfer_s=0.004,
    static_bytes=2.7e9, action_overhead_s=0.0003,
)  # fmt: skip
TOLD = {
    "1f1b": ({"name": "1f1b", "pp": 4, "microbatches": 8}, UNEVEN),
    "no memory": ({"name": "zb-h1", "pp": 3, "microbatches": 5}, costs_of(1.0, 0.7, 0.4)),
    "chunks": ({"name": "interleaved-1f1b", "pp": 4, "vpp": 2, "microbatches": 8}, UNEVEN),
    "replicas": ({"name": "chimera", "pp": 4, "microbatches": 8}, UNEVEN),
    "slices": ({"name": "seq1f1b", "pp": 4, "microbatches": 4}, UNEVEN),
    "queues": ({"name": "1f1b", "pp": 4, "microbatches": 6}, UNEVEN.replace(transfer_s=0.03, channel="rank")),
    "blocking": ({"name": "1f1b", "pp": 3, "microbatches": 6}, UNEVEN.replace(communication="blocking")),
    "microseconds": ({"name": "gpipe", "pp": 3, "microbatches": 3}, costs_of(3.3e-6, 4.1e-6, 2.2e-6, transfer_s=7e-8)),
}  # fmt: skip


def said_by(page):
    return page.ask("page.cells.map(row => Array.from(row.fill, (_, cell) => page.linesOf(row, cell)))")


@pytest.mark.parametrize("case", TOLD)
def test_every_cell_says_what_the_python_says(opened, case):
    shape, costs = TOLD[case]
    timeline = simulate(build(**shape), costs)
    hover = Hover(timeline, time_scale(timeline.step_time_s))
    lanes = compute_lanes(timeline, by_cause=True)
    lanes += transfer_lanes(timeline) if costs.transfer_s else []
    page = opened(TimelineView(timeline, "t"))
    assert said_by(page) == [[list(lines) for lines in hover.lines_of(lane)] for lane in lanes]
    assert page.is_clean()


def test_a_compared_action_says_how_far_off_it_is(opened):
    table = build("zb-h1", pp=2, microbatches=4)
    measured, projected = simulate(table, UNEVEN), simulate(table, UNEVEN.replace(forward_s=0.0111))
    page = opened(
        TimelineView(measured, "a"), TimelineView(projected, "b"), comparison=compare(measured, projected)
    )
    first = [lines[4] for lines in said_by(page)[0] if lines[0].startswith("0F")]
    assert first[0] == "projected 11.1 ms, measured 12.3 ms: -9.76 %; ends 1.20 ms early in the projection"
    behind = ActionErrors(measured, projected).behind_s[[str(action) for action in table].index("0F3")]
    assert f"ends {-behind * 1e3:.2f} ms early" in first[3]


def within(timeline, begin_s, end_s):
    """Of each rank seconds busy, idle by cause and of transfers under way between two times, and the transfers."""
    ranks = timeline.schedule.num_ranks
    found = {
        "busy": np.zeros(ranks),
        **{f"idle: {palette.CAUSE_TITLES[cause]}": np.zeros(ranks) for cause in CAUSES},
    }
    names, underway, count = list(found)[1:], np.zeros(ranks), 0
    for lane in compute_lanes(timeline, by_cause=True):
        inside = np.diff(np.clip(lane.edges, begin_s, end_s))
        found["busy"][lane.rank] = inside[~lane.is_idle].sum()
        for place, name in enumerate(names):
            found[name][lane.rank] = inside[lane.is_idle & (lane.cause == place)].sum()
    start, end = (at[timeline.num_actions :] - timeline.begin_s for at in (timeline.start, timeline.end))
    inside = np.clip(end, begin_s, end_s) - np.clip(start, begin_s, end_s)
    np.add.at(underway, timeline.schedule.rank[timeline.graph.source], inside)
    count = int((inside > 0).sum())
    return {name: values.mean() for name, values in found.items()} | {
        "transfers": count, "their time, by sending rank": underway.mean()
    }  # fmt: skip


@pytest.mark.parametrize("channel", ["ideal", "rank"])
def test_a_range_sums_up_what_happens_in_it(opened, channel):
    timeline = simulate(build("zbv-fixed", pp=4, vpp=2, microbatches=8), UNEVEN.replace(channel=channel))
    page = opened(TimelineView(timeline, "t"))
    step = timeline.step_time_s / page.ask("1") * 1e3
    page.page.keyboard.down("Shift")
    page.drag(0.31 * step, 2, half_px=171)
    page.page.keyboard.up("Shift")
    begin, end = page.ask("page.state.range")
    assert page.range() == [0, pytest.approx(step)]  # it does not zoom
    assert 0.05 * step < begin < 0.31 * step < end < 0.6 * step
    rows = page.page.evaluate(
        "[...document.querySelectorAll('#range-tables tr')].map(row => [row.dataset.key, Number(row.dataset.value)])"
    )
    expected = within(timeline, begin / 1e3, end / 1e3)
    assert dict(rows) == pytest.approx(expected, abs=1e-9)
    assert expected["transfers"] > 10
    assert sum(value for key, value in rows if key.startswith(("busy", "idle"))) == pytest.approx(
        (end - begin) / 1e3
    )
    page.press("Escape")
    assert page.page.is_hidden("#range")
    page.press("r")
    assert page.ask("page.state.range") == page.range()
    assert page.is_clean()


def test_an_action_is_found_by_its_name_and_one_that_is_not_there_is_said(opened):
    timeline = simulate(build("1f1b", pp=4, microbatches=64), COSTS)
    page = opened(TimelineView(timeline, "t"))
    page.page.fill("[name=find]", " 2b40 ")
    page.page.press("[name=find]", "Enter")
    page.page.evaluate(test_browser.TWO_FRAMES)
    node = [str(action) for action in timeline.schedule].index("2B40")
    low, high = page.range()
    assert (
        low < timeline.start[node] * 1e3 < timeline.end[node] * 1e3 < high < low + 0.3 * timeline.step_time_s * 1e3
    )
    assert page.said().startswith("2B40 · ")
    assert page.count("#links path") == 2 * 3
    page.page.fill("[name=find]", "9F1")
    page.page.press("[name=find]", "Enter")
    assert page.said() == "no action '9F1' here: stages 0 to 3, F, B, microbatches 0 to 63, as 0F0"
    assert page.is_clean()


def test_an_action_is_found_among_later_stages_and_microbatches_that_come_before_it(opened):
    """One rank with two stages whose backwards go last in, first out: nothing is in the order of its numbers."""
    table = parse_table("0F0,0F1,1F0,1F1,1B1,1B0,0B1,0B0\n")
    page = opened(TimelineView(simulate(table, COSTS), "t"))
    for action in map(str, table):
        page.page.fill("[name=find]", action)
        page.page.press("[name=find]", "Enter")
        assert page.said().startswith(f"{action} · ")
    assert page.is_clean()


def test_the_address_brings_back_what_was_shown(opened):
    page = opened(TimelineView(simulate(build("zb-h1", pp=4, microbatches=8), COSTS), "t"))
    for key in ("w", "d", "m", "i", "p", "r"):
        page.press(key)
    page.click("panel", "memory")
    page.page.select_option("[name=theme]", "dark")
    page.page.fill("[name=find]", "1F3")
    page.page.press("[name=find]", "Enter")
    page.page.evaluate(test_browser.TWO_FRAMES)
    kept = "({...page.state, hidden: [...page.state.hidden], kept: [page.cells.indexOf(page.state.kept[0]), page.state.kept[1]]})"
    before, address = page.ask(kept), page.page.url
    assert "hide=memory" in unquote(address)
    page.page.goto("about:blank")
    page.page.goto(address)
    page.wait_for_texts()
    after = page.ask(kept)
    for name in ("from", "to", "range"):
        assert after.pop(name) == pytest.approx(before.pop(name), rel=1e-7)
    assert after == before
    assert not page.page.is_checked("[value=memory]")
    assert page.page.is_checked("[value=microbatch]")
    page.page.goto("about:blank")
    page.page.goto(address.split("#")[0] + "#t=9~1&hide=compute~nothing&colour=blue&at=7.9F9&theme=pink")
    page.wait_for_texts()
    assert page.range() == pytest.approx(page.ask("[page.cells[0].edges[0], page.cells[0].edges.at(-1)]"))
    assert page.ask("[page.state.colour, page.state.hidden.size, page.state.kept, page.state.theme]") == [
        "kind",
        0,
        None,
        "auto",
    ]
    assert page.is_clean()


def background(page):
    return page.page.evaluate("getComputedStyle(document.body).backgroundColor")


def rgb(colour):
    return tuple(int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))


def share_of(pixels, colour):
    return float((np.abs(pixels - rgb(colour)) < 0.012).all(axis=2).mean())


def test_the_page_is_dark_where_the_system_is_and_the_switch_decides(opened):
    timeline = simulate(build("1f1b", pp=4, microbatches=8), COSTS)
    idle = {theme: colours["idle"] for theme, colours in palette.THEMES.items()}
    page = opened(TimelineView(timeline, "t"), window={"color_scheme": "dark"})
    page.press("p")
    share = 1 - timeline.busy_s[1] / timeline.step_time_s
    assert background(page) == "rgb(21, 24, 28)"
    assert share_of(page.pixels()[1], idle["dark"]) == pytest.approx(share, abs=0.06)
    page.page.select_option("[name=theme]", "light")
    assert background(page) == "rgb(255, 255, 255)"
    assert share_of(page.pixels()[1], idle["light"]) == pytest.approx(share, abs=0.06)
    page.page.emulate_media(color_scheme="light")
    page.page.select_option("[name=theme]", "dark")
    assert background(page) == "rgb(21, 24, 28)"
    page.page.select_option("[name=theme]", "auto")
    assert background(page) == "rgb(255, 255, 255)"
    assert page.is_clean()


def test_cells_too_small_for_a_pixel_are_drawn_by_their_shares_and_labelled_once_they_are_wide(opened):
    timeline = simulate(build(**SHAPES["98,304 actions"]), COSTS)
    page = opened(TimelineView(timeline, "t"))
    page.press("p")
    schedule, duration = timeline.schedule, (timeline.end - timeline.start)[: timeline.num_actions]
    rows = page.pixels()
    for rank in (0, 31, 63):
        for op in (Op.F, Op.B):
            for chunk in range(2):
                mine = (schedule.rank == rank) & (schedule.op == op) & (schedule.stage // 64 == chunk)
                share = duration[mine].sum() / timeline.step_time_s
                assert share > 0.1
                assert share_of(rows[rank], palette.fill_of(op, chunk=chunk)) == pytest.approx(share, abs=0.12)
    # A transfer takes 2 ms of 160: what is not under way is not drawn, and every part of a row looks alike.
    transfers = np.stack([rows[row] for row in range(64 + 8, 64 + 40) if row in rows])
    assert (np.abs(transfers - 1) < 0.02).all(axis=3).mean() > 0.55
    by_column = transfers.mean(axis=(1, 3))[:, 100:-100]
    assert by_column.std(axis=1).max() < 0.02
    assert page.ask("page.panels[0].numLabels") == 0
    for _ in range(6):
        page.press("w")
    assert page.ask("page.panels[0].numLabels") > 64
    assert page.is_clean()


def test_the_chunks_of_a_kind_differ_by_more_than_their_lightness_where_cells_are_wide(opened):
    timeline = simulate(build("interleaved-1f1b", pp=2, vpp=2, microbatches=4), COSTS)
    page = opened(TimelineView(timeline, "t"))
    lane, row = compute_lanes(timeline)[0], page.pixels()[0]
    scale = row.shape[1] / timeline.step_time_s
    for chunk, colours in ((0, 1), (1, 2)):
        cell = next(cell for cell in range(len(lane.node)) if lane.kind[cell] == Op.F and lane.chunk[cell] == chunk)
        begin, end = (lane.edges[cell : cell + 2] * scale).round().astype(int)
        patch = row[2:10, begin + 3 : end - 3]  # above its label
        fill = palette.fill_of(Op.F, chunk=chunk)
        assert share_of(patch, fill) > 0.3
        striped = (patch > np.array(rgb(fill)) + 0.1).all(axis=2).mean()
        assert (striped > 0.1) == (colours == 2)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_it_without_scrolling_sideways(opened, scheme):
    timeline = simulate(build("zbv-fixed", pp=8, vpp=2, microbatches=16), COSTS)
    window = {"viewport": {"width": 390, "height": 844}, "color_scheme": scheme, "device_scale_factor": 2}
    page = opened(TimelineView(timeline, "a title that is rather long, as those of jobs are"), window=window)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.ask("page.layout().wide") > 300
    assert page.is_clean()


def test_nothing_is_drawn_for_a_step_that_takes_no_time(opened):
    page = opened(TimelineView(simulate(build("1f1b", pp=2, microbatches=2), costs_of(0.0, 0.0, 0.0)), "t"))
    assert page.is_clean()
    assert NONE not in page.fills(0)
