"""Figures, cards and tables of projections by hand: 16 s for 1f1b, 14 s for zb-h1."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.app import pictures
from ppsim.app.projector import ProjectorResult
from ppsim.app.state import PageState
from ppsim.costs.cost_sources import RankCosts
from ppsim.plot.palette import CAUSE_COLOURS, CRITICAL_PATH
from ppsim.plot.plotly_figures import DARK, LIGHT, TradeoffPoint
from tests.projection.by_hand import MEASURED, by_hand

GIB = 2**30
KNOWN = RankCosts(1.0, 1.0, 1.0, transfer_s=0.25, activation_bytes=GIB)
FIRST, SECOND = (by_hand(runtime="ideal", schedule=name, vpp=1, measured=KNOWN) for name in ("1f1b", "zb-h1"))


def result(names: tuple[str, ...] = ("1f1b", "zb-h1"), projections: Any = None, **fields: Any) -> ProjectorResult:
    state = PageState({"pp": "2"}, names, **fields.pop("state", {}))
    made = {"1f1b": FIRST, "zb-h1": SECOND} if projections is None else projections
    given = {"rejected": {}, "substitutes": frozenset(), "awaited": frozenset()} | fields
    return ProjectorResult(state, FIRST.plan, made, **given)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what is drawn."""
    calls: list[Any] = []
    for name in ("timeline_plotly", "idle_plotly", "tradeoff_plotly"):
        monkeypatch.setattr(pictures, name, lambda *all, **how: calls.append((all, how)) or "figure")
    return calls


def test_timelines_have_the_options_of_the_view_and_less_while_a_slider_moves(
    drawn: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pictures.timelines(result(), quick=False, theme=DARK) == "figure"  # type: ignore[comparison-overlap]
    (timelines,), how = drawn[-1]
    look = how["look"]
    assert (timelines, how["titles"]) == ([FIRST.timeline, SECOND.timeline], ["1f1b", "zb-h1"])
    assert (look.colour, look.with_texts, look.with_critical_path, look.with_memory) == ("kind", True, True, False)
    assert (look.memory_limit_bytes, look.theme) == (None, DARK)
    limited = [
        replace(one, plan=replace(one.plan, memory_limit_bytes=limit * GIB))
        for one, limit in ((FIRST, 3), (SECOND, 3))
    ]
    views = {"colour": "cause", "path": "0", "panel": "memory"}
    made = dict(zip("ab", limited, strict=True))
    pictures.timelines(result(projections=made, state={"views": views}), quick=False, theme=LIGHT)
    look = drawn[-1][1]["look"]
    assert (look.colour, look.with_texts, look.with_critical_path, look.with_memory) == ("cause", True, False, True)
    assert look.memory_limit_bytes == 3 * GIB
    made["b"] = replace(SECOND, plan=replace(SECOND.plan, memory_limit_bytes=4 * GIB))
    pictures.timelines(result(projections=made), quick=True, theme=LIGHT)
    look = drawn[-1][1]["look"]
    assert (look.with_texts, look.with_critical_path, look.memory_limit_bytes) == (False, False, None)
    number = FIRST.timeline.num_actions + SECOND.timeline.num_actions
    for most, with_texts in ((number, True), (number - 1, False)):
        monkeypatch.setattr(pictures, "MOST_TEXTS", most)
        pictures.timelines(result(), quick=False, theme=LIGHT)
        assert drawn[-1][1]["look"].with_texts is with_texts
    pictures.idle_figure(result(), theme=DARK)
    assert drawn[-1] == (
        ([FIRST.timeline, SECOND.timeline],), {"titles": ["1f1b", "zb-h1"], "theme": DARK},
    )  # fmt: skip


def test_only_compared_schedules_have_names_and_bounds_as_points(drawn: list[Any]) -> None:
    spots = [TradeoffPoint("zb-h1", 3.0, 14.0, 13.0), TradeoffPoint("gpipe", 9.0, 18.0, 17.0)]
    pictures.tradeoff_picture(result(), spots, theme=DARK)
    (points,), how = drawn[-1]
    assert [(one.name, one.kind, one.bound_s) for one in points] == [
        ("zb-h1", "compared", 13.0), ("gpipe", "possible", None),
    ]  # fmt: skip
    assert how == {"memory_limit_bytes": None, "theme": DARK}


def test_times_of_stages_and_of_the_average_rank_are_in_the_units_of_their_options() -> None:
    stages = pictures.times_of_stages(result())
    assert stages == {
        "forward_ms": [1000.0, 1000.0], "backward_input_ms": [1000.0] * 2, "backward_weight_ms": [1000.0] * 2,
        "transfer_ms": [250.0, 250.0], "activation_memory": [1.0, 1.0],
    }  # fmt: skip
    assert pictures.times_of_rank(result()) == {
        "forward_ms": "1000", "backward_input_ms": "1000", "backward_weight_ms": "1000", "transfer_ms": "250",
        "activation_memory": "1",
    }  # fmt: skip
    costs = FIRST.stage_cost_set.costs.replace(
        forward_s=[[1.0, 3.0, 1.0, 3.0], [4.0, 4.0, 4.0, 8.0]], transfer_s=[0.5, 0.125]
    )
    uneven = replace(FIRST, stage_cost_set=replace(FIRST.stage_cost_set, costs=costs))
    of_uneven = result(projections={"1f1b": uneven})
    assert pictures.times_of_stages(of_uneven)["forward_ms"] == [2000.0, 5000.0]
    rank = pictures.times_of_rank(of_uneven)
    assert (rank["forward_ms"], rank["transfer_ms"]) == ("3500", "500")
    assert pictures.times_of_stages(result(projections={})) == pictures.times_of_rank(result(projections={})) == {}


def test_cards_have_numbers_next_to_those_of_the_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    """1f1b: 3 of 12 + 3 + 1 s are bubble, of the 14 s of zb-h1 all but the 12 s of compute."""
    text = pictures.cards_html(result(state={"baseline": "1f1b"}))
    first, second = text.split("</article>")[:2]
    assert first.startswith("<article class='card base' data-schedule='1f1b'><h2>1f1b <small>v 1</small></h2>")
    assert "<dt>step</dt><dd>16.0 s</dd><dd></dd>" in first
    assert "<dt>peak</dt><dd>2.00 GiB</dd><dd></dd>" in first
    assert "aria-pressed=true aria-label='baseline: 1f1b'>baseline</button>" in first
    assert second.startswith("<article class='card' data-schedule='zb-h1'>")
    change = SECOND.iteration_time_s / 16 - 1
    assert f"<dd class=change-better>−{100 * -change:.2f} %</dd>" in second
    assert "aria-pressed=false aria-label='pin: zb-h1'>pin</button>" in second
    assert "tokens/s" not in text
    pinned = pictures.cards_html(result(state={"baseline": "zb-h1"}))
    assert f"<dd class=change-worse>+{100 * (16 / SECOND.iteration_time_s - 1):.2f} %</dd>" in pinned
    faster = replace(SECOND, tokens_per_s=3000.0)
    monkeypatch.setattr(
        type(faster), "runtime_error", property(lambda one: "<no>" if one.tokens_per_s == 3000.0 else None)
    )
    made = {"1f1b": replace(FIRST, tokens_per_s=2000.0), "zb-h1": faster}
    text = pictures.cards_html(result(projections=made, substitutes=frozenset({"zb-h1"})))
    assert "<dt>tokens/s</dt><dd>3.00 k</dd><dd class=change-better>+50.00 %</dd>" in text
    assert re.findall("<p class=note>(.*?)</p>", text) == [
        "drawn with a table fitted to other costs; its own is being searched for …", "&lt;no&gt;",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "other", "better", "text"),
    [
        (1.5, 1.0, -1, "<dd class=change-worse>+50.00 %</dd>"), (0.5, 1.0, -1, "<dd class=change-better>−50.00 %</dd>"),
        (1.5, 1.0, 1, "<dd class=change-better>+50.00 %</dd>"), (1.00004, 1.0, 1, "<dd class=change-same>+0.00 %</dd>"),
        (1.00006, 1.0, 1, "<dd class=change-better>+0.01 %</dd>"), (1.0, 0.0, 1, "<dd></dd>"),
    ],
)  # fmt: skip
def test_a_change_is_better_worse_or_the_same(value: float, other: float, better: int, text: str) -> None:
    assert pictures._change(value, other, better) == text


def test_schedules_without_a_projection_wait_or_are_refused() -> None:
    made = result(("a", "b", "c"), {}, awaited=frozenset({"a"}), rejected={"b": "too <few> layers"})
    assert pictures.cards_html(made) == (
        "<article class='card waits' data-schedule='a'><h2>a</h2><p>its table is being fitted to these costs …</p>"
        "</article><article class='card refused' data-schedule='b'><h2>b</h2><p>too &lt;few&gt; layers</p></article>"
        "<article class='card refused' data-schedule='c'><h2>c</h2><p></p></article>"
    )


def test_the_table_of_schedules_has_those_that_fit_and_run_first() -> None:
    spots = [
        TradeoffPoint("slow", 3 * GIB, 18.0, 16.0), TradeoffPoint("large", GIB, 1.0, fits=False, told="too large"),
        TradeoffPoint("tight", GIB, 2.0, is_tight=True), TradeoffPoint("odd", GIB, 12.0, told="does not run"),
        TradeoffPoint("fast", 2 * GIB, 15.0),
    ]  # fmt: skip
    rows = re.findall("<tr>(.*?)</tr>", pictures.table_html(spots, ["fast"]).replace("\n", ""))
    cells = [re.findall("<td[^>]*>(.*?)</td>", row) for row in rows[-5:]]
    assert [row[0] for row in cells] == ["fast", "slow", "odd", "tight", "large"]
    assert cells[1][1:5] == ["18.0 s", "+800.00 %", "12.50 %", "3.00 GiB"]
    assert (cells[0][2], cells[0][3]) == ("+650.00 %", "")
    assert "data-toggle='fast' aria-pressed=true>compared</button>" in cells[0][5]
    assert "data-toggle='slow' aria-pressed=false>compare</button>" in cells[1][5]
    assert [row[6] for row in cells] == ["", "", "does not run", "fits tightly", "too large"]
    told = [spots[1]]
    assert re.findall("<td[^>]*>(.*?)</td>", pictures.table_html(told, ()))[2] == ""


def test_the_exported_table_has_numbers_or_reasons() -> None:
    made = result(("1f1b", "gpipe", "zb-h1", "x"), {"1f1b": FIRST, "zb-h1": by_hand(runtime="ideal", schedule="zb-h1", vpp=1, measured=MEASURED)},
                  rejected={"gpipe": "no"})  # fmt: skip
    header, first, second, third, fourth = pictures.table_csv(made).splitlines()
    assert header == "schedule,vpp,step_time_s,iteration_time_s,tokens_per_s,bubble_ratio,peak_bytes,reason"
    assert first == f"1f1b,1,16.0,16.0,,0.25,{2.0 * GIB},"
    assert second == "gpipe,,,,,,,no"
    step_s, bubble = SECOND.timeline.step_time_s, SECOND.timeline.bubble_ratio
    assert third == f"zb-h1,1,{step_s},{step_s},,{bubble},,"
    assert fourth == "x,,,,,,,"


def test_a_configuration_has_its_numbers_command_and_timeline(
    drawn: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = result(projections={"1f1b": replace(FIRST, tokens_per_s=2000.0)})
    figure, text = pictures.configuration(made.state, made, theme=DARK)
    (timelines,), how = drawn[-1]
    assert (figure, timelines, how["titles"]) == ("figure", [FIRST.timeline], ["1f1b"])
    assert (how["look"].with_texts, how["look"].with_memory, how["look"].theme) == (True, True, DARK)
    assert "<p>step 16.0 s · 2.00 k tokens/s · peak 2.00 GiB</p>" in text
    assert "<p><code>ppsim project --pp 2 --schedule 1f1b,zb-h1</code></p>" in text
    assert f"<a href='?{made.state.query.replace('&', '&amp;')}'>Go on from here" in text
    plain = result(projections={"1f1b": by_hand(runtime="ideal")})
    assert "<p>step 16.0 s</p>" in pictures.configuration(plain.state, plain, theme=DARK)[1]
    monkeypatch.setattr(pictures, "MOST_TEXTS", FIRST.timeline.num_actions - 1)
    pictures.configuration(made.state, made, theme=DARK)
    assert drawn[-1][1]["look"].with_texts is False


@pytest.mark.parametrize(
    ("rejected", "text"),
    [({"a": "<no>", "b": "two"}, "a: &lt;no&gt;; b: two"), ({}, "its table is being fitted …")],
)
def test_a_configuration_without_a_projection_has_the_reasons(rejected: dict[str, str], text: str) -> None:
    made = result(projections={}, rejected=rejected)
    empty = {"data": [], "layout": {}}
    assert pictures.configuration(made.state, made, theme=DARK) == (empty, f"<p>{text}</p>")


def test_the_legend_has_causes_and_the_path_if_the_view_does() -> None:
    usual = pictures.page_texts(result(awaited=frozenset({"b"}), substitutes=frozenset({"a"})), theme=DARK)
    assert list(usual) == ["cards", "command", "times", "stages", "awaited", "legend"]
    assert (usual["awaited"], usual["command"]) == (["a", "b"], "ppsim project --pp 2 --schedule 1f1b,zb-h1")
    titles = [title for title, _ in usual["legend"]]
    assert "transfer" not in titles
    assert usual["legend"][-2:] == [("idle", DARK.idle), ("critical path", CRITICAL_PATH)]
    views = {"colour": "cause", "path": "0"}
    legend = pictures.page_texts(result(state={"views": views}), theme=DARK)["legend"]
    assert legend[-5:] == [
        ("warm-up", CAUSE_COLOURS["warm_up"]), ("cool-down", CAUSE_COLOURS["cool_down"]),
        ("waiting for compute", CAUSE_COLOURS["waiting_compute"]),
        ("exposed communication", CAUSE_COLOURS["exposed_communication"]), ("overhead", CAUSE_COLOURS["overhead"]),
    ]  # fmt: skip
    assert [title for title, _ in legend[:-5]] == titles[:-2]
    assert pictures.page_texts(result(projections={}), theme=DARK)["legend"] == []


def test_the_best_of_a_search_are_rows_with_their_commands() -> None:
    row = {
        "schedule": "1f1b", "runs_in": "all", "recompute": "none", "split": "auto", "switched": "", "tp": 2, "cp": 1,
        "ep": 1, "dp": 4, "pp": 2, "vpp": 1, "micro_batch": 1, "zero": 1, "iteration_time_s": 2.0,
        "tokens_per_s": 3000.0, "model_flops_utilization": 0.5, "peak_bytes": GIB, "verdict": "fits",
        "command": "ppsim project --schedule 'a'",
    }  # fmt: skip
    view: Any = SimpleNamespace(best=[row, row | {"schedule": "<b>", "tp": 4}])
    text = pictures.search_table_html(view).replace("\n", "")
    assert re.findall(r"<th\b[^>]*>(.*?)</th>", text.replace("thead", ""))[:2] == ["timeline", "schedule"]
    assert (
        text.count(
            "<button type=button class=open data-command='ppsim project --schedule &#x27;a&#x27;'>show</button>"
        )
        == 2
    )
    rows = [re.findall("<td[^>]*>(.*?)</td>", part) for part in re.findall("<tr>(.*?)</tr>", text)[-2:]]
    assert (rows[0][1], rows[1][1]) == ("1f1b", "&lt;b&gt;")
    assert pictures.search_table_html(SimpleNamespace(best=[])) == ""  # type: ignore[arg-type]
    assert pictures.theme_of(dark=True) is DARK
    assert pictures.theme_of(dark=False) is LIGHT


@pytest.mark.parametrize(
    ("memory_error", "runtime_error", "reason"),
    [
        (None, None, ""),
        ("too large", None, "too large"),
        (None, "deadlock", "deadlock"),
        ("large", "deadlock", "large"),
    ],
)
def test_the_exported_table_says_why_a_schedule_does_not_run(
    memory_error: str | None, runtime_error: str | None, reason: str
) -> None:
    step = SimpleNamespace(step_time_s=2.0, bubble_ratio=0.25)
    wrong: Any = SimpleNamespace(
        timeline=step, memory_error=memory_error, runtime_error=runtime_error, iteration_time_s=3.0, tokens_per_s=5.0,
        plan=SimpleNamespace(knows_memory=False, vpp=7),
    )  # fmt: skip
    text = pictures.table_csv(result(("1f1b",), {"1f1b": wrong}))
    assert text.splitlines()[1:] == [f"1f1b,7,2.0,3.0,5.0,0.25,,{reason}"]
