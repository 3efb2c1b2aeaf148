"""What results show of themselves: a line, a card in a notebook, plotly's figures, matplotlib's axes, graphs."""

import operator
import re
from functools import cache, reduce
from html import unescape
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import get_args

import networkx
import pytest
from plotly import graph_objects

import ppsim
from ppsim.base.display import Drawable, HasRepr
from ppsim.base.errors import ConfigError
from ppsim.results import notebook
from ppsim.results.notebook import _FITS, _peak_of
from ppsim.runs.compare import compare
from ppsim.schedule.rounds import microbatches_in_words, repeat_rounds
from ppsim.simulation.verdict import Word

COSTS = ppsim.StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)


@cache
def result(name):
    table = ppsim.build("interleaved-1f1b", pp=2, microbatches=4)
    timeline = ppsim.simulate(table, COSTS)
    return {
        "Schedule": lambda: table,
        "Timeline": lambda: timeline,
        "Comparison": lambda: compare(timeline, ppsim.simulate(table, COSTS.replace(forward_s=2))),
        "Plan": lambda: ppsim.Plan(pp=2, vpp=2, microbatches=4),
        "Projection": lambda: ppsim.project(result("Plan")),
        "Projections": lambda: ppsim.project_all(pp=2, microbatches=4, schedules=["1f1b", "zb-h1", "dualpipe"]),
        "TuneResult": lambda: ppsim.tune(model="gpt2", gpus=2, global_batch=16, stack="plain", tp=[1, 2], micro_batch=[8], schedule=["1f1b"]),
        "Job": lambda: ppsim.job(model="llama3-70b", gpus=64, stack="plain", tp=8, pp=4),
        "Profile": lambda: ppsim.load_profile("zb-a100-6.2b"),
        "StageCosts": lambda: COSTS,
        "CheckReport": lambda: ppsim.check(table),
        "ProjectionSummary": lambda: result("Projection").summary,
    }[name]()  # fmt: skip


LINES = {
    "Plan": "Plan(pp=2, vpp=2, microbatches=4)",
    "Timeline": "Timeline(interleaved-1f1b, pp 2, vpp 2, 4 microbatches, simulated: step 27.0 s, bubble 11.11 %)",
    "Comparison": "Comparison(measured 27.0 s, projected 36.0 s (+33.33 %), replayed +0.00 %)",
    "StageCosts": "StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)",
    "Schedule": "Schedule('interleaved-1f1b', pp=2, vpp=2, microbatches=4, 32 actions)",
}
ALL = [*ppsim.CARDS, "Job", "Profile", "StageCosts", "CheckReport", "ProjectionSummary"]


@pytest.mark.parametrize("name", ALL)
def test_a_result_is_one_line(name):
    line = repr(result(name))
    assert line.startswith(f"{name}(")
    assert line == LINES.get(name, line)
    assert len(line) < 200
    assert "\n" not in line


def test_every_public_result_has_a_line_of_its_own():
    public = [getattr(ppsim, name) for name in ppsim.__all__]
    results = [one for one in public if isinstance(one, type) and one not in (ppsim.Action, ppsim.Op)]
    assert len(results) > 12
    for one in results:
        assert issubclass(one, HasRepr), one
        assert one.__repr__ is HasRepr.__repr__, f"the dataclass writes the repr of {one}"


class _Read(HTMLParser):
    """Tags that were opened and closed, and the texts."""

    def __init__(self):
        super().__init__()
        self.open, self.texts, self.found = [], [], []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def read(card):
    found = _Read()
    found.feed(card)
    assert found.open == []
    return found


NUMBERS = {
    "Schedule": ["2", "ranks", "2", "stages per rank", "4", "microbatches", "32", "actions"],
    "Timeline": [
        "27.0 s",
        "step",
        "11.11 %",
        "bubble",
        "27.0 s",
        "longest rank",
        "no bytes known",
        "peak of a rank",
    ],
    "Comparison": ["27.0 s", "measured", "36.0 s", "projected", "+33.33 %", "error", "+0.00 %", "replayed"],
    "Plan": ["interleaved-1f1b", "schedule", "2", "pipeline ranks", "4", "microbatches", "2", "devices"],
}


@pytest.mark.parametrize("name", ppsim.CARDS)
def test_a_card_has_four_numbers_a_picture_and_folded_tables_and_asks_for_nothing(name):
    card = result(name)._repr_html_()
    found = read(card)
    tags = [tag for tag, _ in found.found]
    assert tags.count("img" if name == "TuneResult" else "iframe") == 1
    assert tags.count("details") >= 1
    assert tags.count("table") >= 1
    assert "script" not in tags
    assert not re.search(r'(src|href)="?http', unescape(card))
    assert len(card) < 250_000
    if name in NUMBERS:
        assert found.texts[1:9] == NUMBERS[name]


TABLES = {
    "Schedule": [
        ["0", "0, 2", "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1"],
        ["1", "1, 3", "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0"],
    ],
    "Timeline": [[rank, "24.0 s", "1.00 s", "2.00 s", "0 s", "0 s", "0 s", "–"] for rank in "01"],
    "Comparison": [
        [kind, stage, seconds, "2.00 s", error]
        for kind, seconds, error in (("F", "1.00 s", "+100.00 %"), ("B", "2.00 s", "+0.00 %"))
        for stage in "0123"
    ],
}
"""The rows of the only table of a card. Each rank of the timeline waits 1 s for its first backward, 2 s at its end."""


@pytest.mark.parametrize("name", TABLES)
def test_the_table_of_a_card_has_its_rows(name):
    rows = TABLES[name]
    assert read(result(name)._repr_html_()).texts[-len(rows) * len(rows[0]) :] == reduce(operator.iadd, rows, [])


def test_a_card_of_schedules_says_which_fit_and_how_much_longer_than_the_best_they_take():
    """Of 75 GiB, zbv-fixed and 1f1b need 71, gpipe 97 and dualpipe 129: the fastest does not fit, and is the last."""
    several = ppsim.project_all(pp=2, microbatches=4, schedules=["1f1b", "gpipe", "dualpipe", "zbv-fixed"])
    texts = read(several._repr_html_()).texts
    table = texts[texts.index("fits") + 1 :]
    found = [table[start : start + 7] for start in range(0, 28, 7)]
    assert [(name, vpp, gap.split(".")[0], fits) for name, vpp, _, gap, _, _, fits in found] == [
        ("zbv-fixed", "2", "+0", "yes"), ("1f1b", "1", "+17", "yes"), ("gpipe", "1", "+17", "NO"), ("dualpipe", "2", "-5", "NO")
    ]  # fmt: skip
    assert texts[texts.index("best") - 1] == "zbv-fixed"
    assert texts[texts.index("peak of a rank") - 1] == found[0][5]
    assert set(_FITS) == set(get_args(Word))


def test_a_card_without_a_schedule_gives_the_reasons():
    card = ppsim.project_all(pp=3, microbatches=4, schedules=["dualpipe"])._repr_html_()
    assert read(card).texts[:2] == ["no schedule is possible", "why"]
    assert read(card).texts[2].startswith("dualpipe: ")
    assert "<iframe" not in card


def test_a_card_escapes_what_a_name_says():
    table = ppsim.build("1f1b", pp=2, microbatches=2).named("<script>")
    assert "<script>" not in table._repr_html_()
    assert "&lt;script&gt;" in table._repr_html_()


def test_a_table_that_cannot_run_says_why_in_place_of_a_picture():
    broken = ppsim.build("1f1b", pp=2, microbatches=2)
    broken = broken.select(broken.microbatch == 0)
    card = broken.named("half")._repr_html_()
    assert "<iframe" not in card
    assert "it cannot run" in card
    assert "microbatch 1 occurs nowhere" in card


def test_a_large_timeline_is_shown_without_its_picture(monkeypatch):
    number = result("Timeline").num_actions
    monkeypatch.setattr("ppsim.results.notebook._MOST_DRAWN", number - 1)
    assert "<iframe" not in result("Timeline")._repr_html_()
    monkeypatch.setattr("ppsim.results.notebook._MOST_DRAWN", number)
    assert "<iframe" in result("Timeline")._repr_html_()


@pytest.mark.parametrize(
    ("has_model", "knows_memory", "numbers"),
    [
        (True, True, {"peak of a rank": "2.00 GiB"}),
        (False, True, {"activations of a rank": "2.00 GiB"}),
        (False, False, {}),
    ],
)
def test_memory_without_a_model_is_called_that_of_activations(has_model, knows_memory, numbers):
    timeline = ppsim.simulate(ppsim.build("1f1b", pp=2, microbatches=4), COSTS.replace(activation_bytes=2.0**30))
    plan = SimpleNamespace(has_model=has_model, knows_memory=knows_memory)
    assert _peak_of(SimpleNamespace(plan=plan, timeline=timeline)) == numbers


def test_what_has_no_card_is_shown_by_its_line():
    assert result("StageCosts")._repr_html_() is None


@pytest.mark.parametrize("name", ppsim.PICTURES)
def test_a_figure_is_plotlys_and_has_what_there_is(name):
    figure = result(name).figure()
    assert isinstance(figure, graph_objects.Figure)
    kinds = [trace.type for trace in figure.data]
    if name == "TuneResult":
        points = [trace for trace in figure.data if trace.mode and "markers" in trace.mode]
        assert sum(len(trace.x) for trace in points) == len(result(name).simulated)
    else:
        assert kinds.count("heatmap") == (4 if name == "Comparison" else 2), "one per rank"


def test_a_projections_figure_has_its_memory_and_the_limit():
    made = ppsim.project(pp=2, microbatches=4, memory_limit="200GiB")
    shapes = made.figure().layout.shapes
    assert len(shapes) == 1
    assert len(result("Timeline").figure().layout.shapes or ()) == 0


def test_a_figure_of_too_many_actions_names_the_page(monkeypatch):
    monkeypatch.setattr("ppsim.api.figures._MOST_ACTIONS", 10)
    with pytest.raises(ConfigError, match="up to 10 actions: this has 32"):
        result("Timeline").figure()


@pytest.mark.parametrize("name", ppsim.PICTURES)
def test_plot_draws_on_the_axes_given_and_else_on_new_ones(name):
    from matplotlib import pyplot

    figure, (axes, other) = pyplot.subplots(1, 2)
    new = result(name).plot()
    try:
        assert result(name).plot(axes) is axes
        drawn = [axes, *axes.child_axes]
        assert any(one.collections or one.lines for one in drawn)
        assert not other.collections
        assert new.figure is not figure
        if name == "Comparison":
            assert len(axes.child_axes) == 2
            assert len({one.get_xlim() for one in axes.child_axes}) == 1, "one time axis"
    finally:
        pyplot.close("all")


def test_only_results_that_are_drawn_say_so():
    drawn = {kind.__name__ for kind in Drawable.__subclasses__() if kind.__module__.startswith("ppsim.")}
    assert drawn == set(ppsim.PICTURES)


def test_a_timelines_graph_has_its_critical_path_as_the_edges_that_fix_a_start():
    timeline = ppsim.simulate(ppsim.build("1f1b", pp=4, microbatches=8), COSTS.replace(transfer_s=0.5))
    graph = timeline.to_networkx()
    assert len(graph) == timeline.graph.num_nodes
    assert networkx.is_directed_acyclic_graph(graph)
    assert all(told["slack_s"] >= 0 for *_, told in graph.edges(data=True))
    fixing = [(a, b) for a, b, told in graph.edges(data=True) if told["fixes"]]
    assert all(graph.edges[edge]["slack_s"] == pytest.approx(0) for edge in fixing)
    assert len(fixing) == sum(timeline.blocker >= 0)
    last = max(graph, key=lambda name: graph.nodes[name]["end_s"])
    length = {}
    for name in networkx.topological_sort(graph):  # seconds along the longest way to the end of each
        told = graph.nodes[name]
        before = max((length[one] for one in graph.predecessors(name)), default=0.0)
        length[name] = before + told["end_s"] - told["start_s"]
    assert length[last] == pytest.approx(timeline.step_time_s)


def test_a_tables_graph_says_what_each_edge_is():
    graph = ppsim.build("zb-h1", pp=2, microbatches=2).to_networkx()
    assert graph.edges["0F0", "0F1"]["kind"] == "order"
    assert graph.edges["0F0", "0SEND_F0"]["kind"] == graph.edges["0SEND_F0", "1F0"]["kind"] == "message"
    assert graph.nodes["0SEND_F0"] == {
        "number": graph.nodes["0SEND_F0"]["number"], "kind": "SEND_F", "rank": 0, "stage": 0, "microbatch": 0,
        "to_rank": 1,
    }  # fmt: skip
    assert {told["kind"] for _, told in graph.nodes(data=True)} == {"F", "I", "W", "SEND_F", "SEND_B"}


@pytest.mark.slow
def test_a_kernel_shows_cards_and_figures():
    """In a real kernel: a card for a result, plotly's own mime type for a figure, a picture for axes."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    cells = ["import ppsim; made = ppsim.project(pp=2, microbatches=4); made", "made.figure()", "made.plot();"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    nbclient.NotebookClient(notebook, timeout=120).execute()
    shown = [[one.get("data", {}) for one in cell.outputs] for cell in notebook.cells]
    assert "ppsim-card" in shown[0][0]["text/html"]
    assert shown[0][0]["text/plain"].startswith("Projection(1f1b, pp 2")
    assert "application/vnd.plotly.v1+json" in shown[1][0]
    assert any("image/png" in data for data in shown[2])


def test_a_verdict_is_red_if_the_step_does_not_fit_and_has_its_notes():
    class Verdict(SimpleNamespace):
        def __str__(self):
            return self.text

    def verdict(fits, text, notes=()):
        return notebook._verdict(Verdict(fits=fits, text=text, tight_notes=notes))

    assert verdict(True, "fits <1>", ["a", "b"]) == "<div><span>fits &lt;1&gt;; a; b</span></div>"
    assert verdict(None, "unknown") == "<div><span>unknown</span></div>"
    assert verdict(False, "too large") == f'<div><span style="{notebook._MISFIT}">too large</span></div>'
    assert notebook._verdict(None) == ""


def test_a_table_has_the_names_of_its_rows_as_header():
    rows = [{"a": "1", "<b>": "2"}, {"a": "3", "c": "<4>"}]
    assert notebook._table(rows) == (
        "<table><thead><tr><th>a</th><th>&lt;b&gt;</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr>"
        "<tr><td>3</td><td>&lt;4&gt;</td></tr></tbody></table>"
    )
    assert notebook._table([]) == notebook._list([]) == ""
    assert notebook._list(["<a>", "b"]) == "<ul><li>&lt;a&gt;</li><li>b</li></ul>"


def test_a_card_has_its_title_numbers_picture_and_the_tables_that_are_not_empty():
    card = notebook._card("a < b", {"ranks": "<2>"}, "<img>", {"rows": "<b>1</b>", "nothing": ""})
    assert read(card).texts == ["a < b", "<2>", "ranks", "rows", "1"]
    assert card.index("<img>") < card.index("<b>")
    assert "nothing" not in card


def test_fields_that_are_set_are_not_none_empty_or_zero():
    values = (None, (), 0.0, 0, False, "", 1, "a", (1,))
    assert [value for value in values if notebook._is_set(value)] == ["", 1, "a", (1,)]
    card = ppsim.Plan(pp=2, schedule="auto", microbatches=4, step_overhead_s=0.5)._repr_html_()
    texts = read(card).texts
    assert texts[0].startswith("plan of profile ")
    cells = texts[texts.index("value") + 1 :]
    assert {"pp": "2", "schedule": "'auto'", "microbatches": "4", "step_overhead_s": "0.5"}.items() <= dict(
        zip(cells[::2], cells[1::2], strict=False)
    ).items()
    assert "the table is searched for when the plan is projected" in cells
    assert "no picture" not in ppsim.Plan(pp=2, microbatches=4)._repr_html_()


def test_a_heading_ends_before_its_hint():
    made = result("Projection")
    assert notebook._projected(made) == "GPT 6.2B on 2 × NVIDIA A100-SXM4-80GB: packaged profile"


def test_a_shape_has_its_name_ranks_stages_and_rounds():
    table = ppsim.build("interleaved-1f1b", pp=3, vpp=2, microbatches=6)
    assert notebook._shape_of(table) == "interleaved-1f1b, pp 3, vpp 2, 6 microbatches"
    assert notebook._shape_of(table.named("")).startswith("own table, pp 3")
    rounds = repeat_rounds(table, 2)
    assert notebook._shape_of(rounds).endswith(microbatches_in_words(12, 2))
    assert notebook._first_of(table, 1) == [str(action) for action in list(table)[12 * 1 * 2 : 12 * 2 + 8]]
    short = ppsim.build("1f1b", pp=2, microbatches=2)
    assert notebook._first_of(short, 1) == ["1F0", "1B0", "1F1", "1B1"]


def test_a_rank_has_its_idle_time_by_cause_and_its_peak(monkeypatch):
    costs = ppsim.StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1, activation_bytes=[2**20, 0])
    timeline = ppsim.simulate(ppsim.build("1f1b", pp=2, microbatches=2), costs)
    first, second = notebook._rank_rows(timeline)
    assert first == {
        "rank": "0", "busy": "6.00 s", "warm up": "2.00 s", "cool down": "1.00 s", "waiting compute": "0 s",
        "exposed communication": "0 s", "overhead": "0 s", "peak": "2.00 MiB",
    }  # fmt: skip
    assert (second["rank"], second["peak"]) == ("1", "–")
    monkeypatch.setattr(notebook, "_MOST_ROWS", 1)
    assert [row["rank"] for row in notebook._rank_rows(timeline)] == ["0"]


def test_a_schedule_is_drawn_with_passes_of_one_second(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        notebook, "_timelines", lambda timelines, titles: drawn.append((timelines, titles)) or "picture"
    )
    table = ppsim.build("zb-h1", pp=2, microbatches=2)
    assert notebook._outlined(lambda: table) == ("picture", "")
    [([timeline], titles)] = drawn
    assert titles == ["with passes of one second"]
    assert set((timeline.end - timeline.start)[: timeline.num_actions].tolist()) == {1.0}
    monkeypatch.setattr(notebook, "_MOST_DRAWN", len(table) - 1)
    assert notebook._outlined(lambda: table) == ("", "")
    monkeypatch.setattr(notebook, "_MOST_DRAWN", len(table))
    assert notebook._outlined(lambda: table)[0] == "picture"


def test_a_picture_is_higher_with_more_ranks_up_to_800_pixels():
    costs = ppsim.StageCosts(forward_s=1, backward_input_s=1, backward_weight_s=1)
    for pp, height in ((2, 420), (21, 800), (30, 800)):
        timeline = ppsim.simulate(ppsim.build("gpipe", pp=pp, microbatches=1), costs)
        assert f'style="width:100%;height:{height}px;border:0"' in notebook._timelines([timeline], [""])
