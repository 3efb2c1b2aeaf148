"""The page of a search has every configuration that was simulated, and the best with their commands."""

import html
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from ppsim.api.views import search_view
from ppsim.plot import palette
from ppsim.plot.pareto_page import SearchView, in_columns, pareto_html, pareto_plotly
from ppsim.plot.plotly_figures import DARK, LIGHT
from ppsim.schedule.table import Op
from ppsim.tuning.command_line import command_of
from ppsim.tuning.configurations import read_configurations
from ppsim.tuning.search import tune
from tests.plot import test_browser
from tests.tuning.questions import GIB, question

CONFIG = {
    "model_type": "llama", "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 12,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
browser = test_browser.browser


@pytest.fixture(scope="module")
def tuned():
    return tune(question("gpt2", gpus=2, batch=4, length=1024, limit_gib=8.0))


def test_points_are_time_over_memory_and_hover_names_the_configuration(tuned):
    simulated, front = pareto_plotly(search_view(tuned))["data"]
    assert len(simulated["x"]) == tuned.counts["simulated"]
    assert front["y"] == [one.iteration_time_s for one in reversed(tuned.pareto)]
    assert front["x"] == sorted(front["x"]) == [one.peak_bytes / GIB for one in reversed(tuned.pareto)]
    best = tuned.best[0].candidate
    assert f"<b>{best.schedule}</b>" in simulated["text"][0]
    assert f"tp {best.tp} · cp {best.cp} · ep {best.ep} · dp {best.dp} · pp {best.pp}" in simulated["text"][0]
    assert simulated["customdata"][0] == command_of(tuned.question, tuned.best[0].candidate)


def test_the_limit_is_inside_the_axis_and_in_the_legend(tuned):
    layout = pareto_plotly(search_view(tuned))["layout"]
    low, high = layout["xaxis"]["range"]
    assert low < min(one.peak_bytes for one in tuned.simulated) / GIB < 8.0 < high
    (line,) = layout["shapes"]
    assert (line["x0"], line["name"], line["showlegend"]) == (8.0, "limit 8.00 GiB", True)


def test_the_best_are_listed_fastest_first_with_the_commands_that_project_them(tuned):
    page = pareto_html(search_view(tuned))
    listed = [html.unescape(command) for command in re.findall("data-command='([^']*)'", page)]
    assert "<code>ppsim project" not in page, "a command is copied by a click, not repeated under every row"
    together = sorted(
        dict.fromkeys([*tuned.best, *tuned.pareto]), key=lambda one: (one.iteration_time_s, one.peak_bytes)
    )
    assert listed == [command_of(tuned.question, one.candidate) for one in together]
    assert page.count("●") == len(tuned.pareto)


def test_the_page_says_when_it_was_made_and_by_which_command(tuned):
    page = pareto_html(search_view(tuned), command="ppsim tune --model <gpt2>", date="2026-01-02")
    assert (
        "<p>made 2026-01-02 by <code><span>ppsim tune</span> <span>--model &lt;gpt2&gt;</span></code></p>" in page
    )
    assert "2026-01-02</title>" in page
    assert "<p></p>" in pareto_html(search_view(tuned))


def test_the_picture_has_the_colours_of_its_theme(tuned):
    picture = pareto_plotly(search_view(tuned), theme=DARK)
    assert "color" not in str(picture["data"])  # all colours are the layout's
    assert picture["layout"]["colorway"] == [DARK.strong, palette.COLOURS[Op.W]]
    assert picture["layout"]["paper_bgcolor"] == DARK.paper
    assert picture["layout"]["shapes"][0]["line"]["color"] == DARK.accent


def test_a_models_name_is_text_wherever_it_stands(tuned, tmp_path):
    """It may be the path of a file, and so hold anything."""
    path = tmp_path / "<" / "script><b>.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG))
    job = replace(tuned.question.job, model_name=str(path))
    page = pareto_html(search_view(replace(tuned, question=replace(tuned.question, job=job))))
    assert page.count("<script") == page.count("</script>") == pareto_html(search_view(tuned)).count("<script")
    assert "<b>.json" not in page
    data = re.search('<script type="application/json" id="figure">(.*?)</script>', page)[1]
    assert str(path) in json.loads(data)["data"][0]["customdata"][0]


def test_the_rows_of_the_answer_are_those_that_were_simulated(tuned):
    rows = read_configurations(tuned.to_json())
    assert rows["configuration"].tolist() == [one.candidate.key for one in tuned.simulated]
    assert rows["iteration_time_s"].tolist() == [one.iteration_time_s for one in tuned.simulated]
    assert rows[rows["pareto"]]["configuration"].tolist() == [one.candidate.key for one in tuned.pareto]


ROW: dict[str, Any] = {
    "schedule": "zbv", "runs_in": "torchtitan", "recompute": "none", "split": "even", "switched": "--offload 0.5",
    "tp": 2, "cp": 3, "ep": 5, "dp": 7, "pp": 11, "vpp": 13, "micro_batch": 17, "zero": 3, "iteration_time_s": 1.5,
    "tokens_per_s": 2000.0, "model_flops_utilization": 0.4321, "peak_bytes": 19.0 * GIB, "verdict": "fits",
    "command": "ppsim project --tp 2", "elsewhere": False,
}  # fmt: skip
COLUMNS = {
    "schedule": "zbv", "runs in": "torchtitan", "with": "even, --offload 0.5", "tp": "2", "cp": "3", "ep": "5",
    "dp": "7", "pp": "11", "vpp": "13", "micro-batch": "17", "ZeRO": "3", "iteration": "1.50 s",
    "tokens/s": "2.00 k", "MFU": "43.21 %", "memory": "19.0 GiB",
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "columns"),
    [
        ({}, {}),
        ({"recompute": "auto"}, {"with": "plan of each stage"}),
        ({"recompute": "full", "split": "auto", "switched": ""}, {"with": "full"}),
        ({"verdict": "fits tightly"}, {"memory": "19.0 GiB~"}),
    ],
)
def test_a_row_has_unusual_options_and_a_mark_if_it_fits_tightly(
    fields: dict[str, Any], columns: dict[str, str]
) -> None:
    assert in_columns(ROW | fields) == COLUMNS | columns


def test_the_page_lists_own_configurations_that_fit_first() -> None:
    """Then those that fit tightly, and those of other trainers; of equally fast ones, the smaller first."""
    numbers: list[dict[str, Any]] = [
        {"elsewhere": True, "iteration_time_s": 0.5}, {"verdict": "fits tightly", "iteration_time_s": 1.0},
        {"iteration_time_s": 2.0}, {"peak_bytes": 23.0 * GIB}, {},
    ]  # fmt: skip
    rows = [ROW | of_row | {"command": f"ppsim project --dp {index}"} for index, of_row in enumerate(numbers)]
    view = SearchView("<title>", 31, 29.0 * GIB, rows, rows[:3], [rows[4], rows[3]], "graphs need room")
    page = pareto_html(view)
    assert re.findall("data-command='ppsim project --dp (.)'", page) == ["4", "3", "2", "1", "0"]
    assert re.findall("<td>([1-9●]?)</td><td class", page) == ["1", "2", "3", "4", "5"]
    assert re.findall("<td>(●?)</td></tr>", page) == ["●", "●", "", "", ""]
    said = "31 configurations, 5 simulated that fit 29.0 GiB a GPU; costs estimated from specifications"
    assert f"{said}; ~ fits tightly: graphs need room" in page
    assert page.count("&lt;title&gt;") == 2
    plain = pareto_html(replace(view, best=rows[2:3]))
    assert said in plain
    assert "fits tightly" not in plain


def test_axes_have_gibibytes_with_a_margin_of_a_twentieth() -> None:
    rows = [ROW, ROW | {"peak_bytes": 40.0 * GIB, "iteration_time_s": 1.25}]
    picture = pareto_plotly(SearchView("", 2, 30.0 * GIB, rows, rows, rows))
    simulated, front = picture["data"]
    assert (simulated["x"], simulated["y"]) == ([19.0, 40.0], [1.5, 1.25])
    assert (front["x"], front["y"]) == ([40.0, 19.0], [1.25, 1.5])
    assert picture["layout"]["xaxis"]["range"] == [17.0, 42.0]
    assert simulated["text"][0] == (
        "<b>zbv</b>  1.50 s<br>tp 2 · cp 3 · ep 5 · dp 7 · pp 11 · vpp 13 · micro-batch 17<br>"
        "recompute none · split even · ZeRO 3<br>2.00 k tokens/s · MFU 43.21 % · 19.0 GiB"
    )
    assert (front["mode"], front["line"]["shape"], front["marker"]) == (
        "lines+markers",
        "hv",
        {"symbol": "square", "size": 8},
    )
    assert (simulated["mode"], simulated["marker"]) == ("markers", {"opacity": 0.5, "size": 7})


@test_browser.pytestmark[0]
def test_the_page_fills_the_window_and_a_click_shows_the_command(browser, tmp_path, tuned):
    (tmp_path / "page.html").write_text(pareto_html(search_view(tuned)), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    complaints, requests = [], []
    page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("#pareto .main-svg")
    sizes = (
        "[...document.querySelectorAll('#pareto .main-svg, #command')].map(e => e.getBoundingClientRect().bottom)"
    )
    *drawn, command = page.evaluate(sizes)
    assert 600 < max(drawn) < command <= 800
    x, y = page.evaluate(
        """() => {
          const plot = document.getElementById("pareto"), {xaxis, yaxis} = plot._fullLayout;
          const box = plot.getBoundingClientRect(), {x, y} = plot.data[1], last = x.length - 1;
          return [box.left + xaxis._offset + xaxis.l2p(x[last]), box.top + yaxis._offset + yaxis.l2p(y[last])];
        }"""
    )
    page.mouse.move(x, y)
    page.wait_for_selector(".hoverlayer .hovertext")
    page.mouse.click(x, y)
    page.wait_for_selector("#command code")
    assert page.inner_text("#command code") == command_of(tuned.question, tuned.pareto[0].candidate)
    assert complaints == []
    assert {url.split(":")[0] for url in requests} <= {"file", "data", "blob"}
    page.close()


@test_browser.pytestmark[0]
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.browser
def test_on_a_phone_the_picture_fits_and_only_the_table_scrolls_sideways(browser, tmp_path, tuned, scheme):
    (tmp_path / "page.html").write_text(pareto_html(search_view(tuned)), encoding="utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    complaints = []
    page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
    page.goto((tmp_path / "page.html").as_uri())
    page.wait_for_selector("#pareto .main-svg")
    page.evaluate(test_browser.TWO_FRAMES)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("document.getElementById('listed').scrollWidth") > 390
    assert page.evaluate("document.getElementById('pareto')._fullLayout._size.w") > 300
    paper = "document.getElementById('pareto')._fullLayout.paper_bgcolor.toLowerCase()"
    assert page.evaluate(paper) == palette.THEMES[scheme]["paper"].lower()
    limit = "document.querySelector('#pareto .shapelayer path').style.stroke"
    red, green, blue = (int(part) for part in re.findall(r"\d+", page.evaluate(limit)))
    assert f"#{red:02X}{green:02X}{blue:02X}" == (LIGHT, DARK)[scheme == "dark"].accent
    assert complaints == []
    page.close()
