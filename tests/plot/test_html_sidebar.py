"""Tables next to a timeline, as HTML."""

import re
from typing import Any

import pytest

from ppsim import StageCosts, build, simulate
from ppsim.plot import html_sidebar as html_sidebar_module
from ppsim.plot import palette
from ppsim.plot.html import _legends, _panel_boxes
from ppsim.plot.html_sidebar import _bar, _budget, _note, html_table, side_html, swatch, verdict_html
from ppsim.plot.picture import picture_of
from ppsim.plot.plot_model import TimelineView
from ppsim.runs.compare import compare
from ppsim.simulation.step import StepActivity
from ppsim.simulation.verdict import MemoryLimit, MemoryVerdict
from tests.defaults import number_defaults

GIB = 2.0**30
COSTS = StageCosts(forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0, transfer_s=0.5)
TIMELINE = simulate(build("1f1b", pp=2, microbatches=4), COSTS)


def texts(html: str) -> list[list[str]]:
    """Return the cells of the rows of all tables, without markup."""
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    return [
        [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)]
        for row in rows
    ]


def test_a_table_has_a_wide_column_and_bars() -> None:
    html = html_table(["a", "b"], [["1", "2"], ["3", "4"]], kind="ranks", wide=1, bar=0)
    assert "<th scope=col>a</th><th scope=col>b</th>" in html
    assert "<td class=bar>1</td><td class=wide>2</td>" in html
    assert "ranks" in html
    assert "<td>1</td>" in html_table([], [["1"]])
    assert _bar(0.25) == "<i style='width:25.00%'></i>"
    assert _bar(0.5, " class=gain", "red") == "<i class=gain style='width:50.00%;background:red'></i>"
    assert swatch("red", "line") == "<span class='swatch line' style='background:red'></span>"


def test_a_budget_has_parts_of_the_whole_and_bars_of_the_largest() -> None:
    html = _budget("Where it <goes>", {"compute": 3.0, "gain": -1.0})
    assert html.startswith("<h3>Where it &lt;goes&gt;</h3>")
    assert [row[:3] for row in texts(html)] == [["compute", "3.00 s", "150.00 %"], ["gain", "−1.00 s", "−50.00 %"]]
    assert "width:100.00%" in html
    assert "<i class=gain style='width:33.33%'></i>" in html
    nothing = _budget("x", {"compute": 0.0})
    assert texts(nothing)[0][2] == ""
    assert "width:0.00%" in nothing


def test_notes_have_a_label_before_their_colon() -> None:
    assert _note("assumed", ["costs: a <b>", "alone"]) == (
        "<h3>assumed</h3><ul class=notes><li><b>costs</b>: a &lt;b&gt;</li><li>alone</li></ul>"
    )


def test_a_plan_has_its_idle_time_by_cause_and_its_ranks() -> None:
    html = side_html([TimelineView(TIMELINE, "plan", facts=[("mean", "2 s")], notes={"a": ["b"], "none": []})])
    rows = texts(html)
    assert ["step", "17.0 s"] in rows
    assert ["mean", "2 s"] in rows
    ranks = rows[rows.index(["rank", "busy", "warm", "cool", "wait", "comm", "host"]) + 1 :]
    assert [row[:2] for row in ranks] == [["0", f"{100 * 12 / 17:.1f}"], ["1", f"{100 * 12 / 17:.1f}"]]
    for row in ranks:
        assert sum(map(float, row[1:])) == pytest.approx(100, abs=0.3)
    assert f"Idle by cause, of the mean rank: {100 * 5 / 17:.2f} % of the step" in html
    assert "<h3>none</h3>" not in html
    assert "<h3>a</h3>" in html
    causes = [row for row in rows if row[0] in palette.CAUSE_TITLES.values()]
    assert sum(float(row[2].split()[0]) for row in causes) == pytest.approx(100 * 5 / 17, abs=0.1)
    with_memory = simulate(TIMELINE.schedule, COSTS.replace(activation_bytes=GIB))
    assert texts(side_html([TimelineView(with_memory)]))[-3][-2:] == ["peak", "at"]
    assert texts(side_html([TimelineView(with_memory)]))[-2][-2:] == ["2.00 GiB", "0F1"]


def test_errors_compare_measured_and_projected_times() -> None:
    slow = simulate(TIMELINE.schedule, COSTS.replace(forward_s=[1.0, 2.0]))
    html = side_html([], compare(TIMELINE, slow))
    rows = texts(html)
    assert rows[0] == ["", "measured", "projected", "error"]
    step = 100 * (slow.step_time_s / 17 - 1)
    assert rows[1] == ["step", "17.0 s", f"{slow.step_time_s:.1f} s", f"+{step:.2f} %"]
    assert ["F of stage 1", "1.00 s", "2.00 s", "+100.00 %"] in rows
    assert not [row for row in rows if row[0] == "at equal speed"]


def verdict(peak_gib: float, limit: MemoryLimit | None) -> MemoryVerdict:
    return MemoryVerdict(0, peak_gib * GIB, limit)


def test_a_verdict_has_the_colour_of_its_word() -> None:
    limit = MemoryLimit.of_device(int(80 * GIB))
    assert verdict_html(verdict(70, limit)).startswith("<p class='verdict '>fits")
    assert verdict_html(verdict(74, limit)).startswith("<p class='verdict tight'>")
    misfit = verdict_html(verdict(79, limit), "a<b")
    assert misfit.startswith("<p class='verdict misfit' role=alert>a&lt;b: DOES NOT FIT")


def piece(kind: Any, end_s: float) -> StepActivity:
    return StepActivity(0, kind, -1, 1.0, end_s)


def test_only_work_that_takes_time_is_in_the_legend() -> None:
    kinds = [kind for kind in palette.BESIDE_COLOURS if kind not in palette.MESSAGES][:2]
    view = TimelineView(TIMELINE, "plan", (piece(kinds[0], 2.0), piece(kinds[1], 1.0)))
    html = _legends([view], picture_of([view]).data, None)
    assert palette.BESIDE_TITLES[kinds[0]] in html
    assert palette.BESIDE_TITLES[kinds[1]] not in html
    assert re.sub(r"<[^>]*>", "", html).count("microbatch 0") == 1
    assert re.search(r"microbatch 0 .*3", html)


def test_panels_that_are_there_have_boxes() -> None:
    assert _panel_boxes(set()) == ""
    boxes = _panel_boxes({"memory"})
    assert boxes.count("type='checkbox'") == 1
    assert "value='memory' checked" in boxes


def test_what_is_left_out_in_plot_html_sidebar_has_these_values() -> None:
    assert number_defaults(html_sidebar_module) == {
        "html_table": {"wide": -1, "bar": -1},
    }  # fmt: skip
