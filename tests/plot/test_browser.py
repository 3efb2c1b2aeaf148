"""The interactive page in a real browser: it loads alone, hovers right and zooms, also at 100,000 actions.

Skipped without Chromium and playwright, unless PPSIM_REQUIRE_BROWSER=1. Times are printed (`pytest -s`), and
never asserted on; benchmarks/html_timeline.py reports them.
"""

import importlib.util
import os
import shutil
import time
from contextlib import contextmanager

import pytest

from ppsim import StageCosts, build, simulate
from ppsim.plot.hover import Hover
from ppsim.plot.html import timeline_html
from ppsim.plot.lanes import compute_lanes
from ppsim.plot.scale import time_scale

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HAS_BROWSER = CHROMIUM is not None and importlib.util.find_spec("playwright") is not None
pytestmark = [
    pytest.mark.skipif(
        not HAS_BROWSER and os.environ.get("PPSIM_REQUIRE_BROWSER") != "1", reason="needs chromium and playwright"
    ),
    pytest.mark.timeout(180),
]

COSTS = StageCosts(
    forward_s=0.030, backward_input_s=0.030, backward_weight_s=0.020, activation_bytes=2.0**30, transfer_s=0.002
)
SHAPES = {
    "4,992 actions": {"name": "zbv-fixed", "pp": 8, "vpp": 2, "microbatches": 104},
    "98,304 actions": {"name": "interleaved-1f1b", "pp": 64, "vpp": 2, "microbatches": 384},
}
RANK = 5
TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
PIXEL_OF = """([x, row]) => {
  const plot = document.getElementById("timeline"), box = plot.getBoundingClientRect(), layout = plot._fullLayout;
  const {xaxis, yaxis} = layout;
  return [box.left + xaxis._offset + xaxis.l2p(x), box.top + yaxis._offset + yaxis.l2p(row)];
}"""


@pytest.fixture(scope="module")
def browser():
    if not HAS_BROWSER:
        pytest.fail("PPSIM_REQUIRE_BROWSER=1, but chromium or playwright is missing")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Page:
    """A page with what it complained about and asked for."""

    def __init__(self, page):
        self.page, self.complaints, self.requests = page, [], []
        page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def load(self, path):
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("#timeline .main-svg")
        self.page.evaluate(TWO_FRAMES)

    def wait_for_texts(self):
        self.page.wait_for_function("document.getElementById('timeline').data[0].customdata[0].length > 0")

    def pixel_of(self, x, row):
        return self.page.evaluate(PIXEL_OF, [x, row])

    def hover_at(self, x, row):
        """Return the lines that appear where the pointer is moved to, the rank first."""
        self.page.mouse.move(2, 2)
        self.page.wait_for_function("!document.querySelector('.hoverlayer .hovertext')")
        self.page.mouse.move(*self.pixel_of(x, row))
        self.page.wait_for_selector(".hoverlayer .hovertext")
        # The rank stands in an element of its own, and so does each line of the rest.
        return self.page.evaluate(
            """[...document.querySelectorAll('.hoverlayer .hovertext text')]
               .flatMap(text => text.querySelector('tspan.line')
                 ? [...text.querySelectorAll('tspan.line')].map(line => line.textContent) : [text.textContent])"""
        )

    def zoom_to(self, x, row, half_px):
        """Drag across `2 * half_px` pixels around x."""
        across, down = self.pixel_of(x, row)
        self.page.mouse.move(across - half_px, down)
        self.page.mouse.down()
        self.page.mouse.move(across, down, steps=2)
        self.page.mouse.move(across + half_px, down, steps=2)
        before = self.range()
        with timed("zoom"):
            self.page.mouse.up()
            self.page.wait_for_function(
                "before => document.getElementById('timeline').layout.xaxis.range[0] !== before", arg=before[0]
            )
            self.page.evaluate(TWO_FRAMES)

    def range(self):
        return self.page.evaluate("document.getElementById('timeline').layout.xaxis.range")


@contextmanager
def timed(what):
    begin = time.perf_counter()
    yield
    print(f"  {what}: {time.perf_counter() - begin:.2f} s")


@pytest.mark.parametrize("shape", SHAPES)
def test_the_page_loads_alone_hovers_right_and_zooms(browser, tmp_path, shape):
    timeline = simulate(build(**SHAPES[shape]), COSTS)
    print(f"\n{shape}")
    with timed("write"):
        path = tmp_path / "timeline.html"
        path.write_text(timeline_html([timeline], titles=["<b>t</b>"]), encoding="utf-8")
    scale = time_scale(timeline.step_time_s)
    lane = compute_lanes(timeline)[RANK]
    lines = Hover(timeline, scale).lines_of(lane)
    middles = (lane.edges[:-1] + lane.edges[1:]) / 2 / scale.size
    busy = [cell for cell in range(len(lane.node)) if not lane.is_idle[cell]]
    action = busy[len(busy) // 2]

    page = Page(browser.new_page(viewport={"width": 1400, "height": 900}))
    page.page.set_default_timeout(60_000)
    with timed("load"):
        page.load(path)
    page.wait_for_texts()
    assert lines[0][0] == "idle"
    assert page.hover_at(middles[0], RANK - 0.1) == [f"rank {RANK}", *lines[0]]

    page.zoom_to(middles[action], RANK, half_px=12)
    low, high = page.range()
    assert low < middles[action] < high
    assert high - low < 0.1 * timeline.step_time_s / scale.size
    assert page.hover_at(middles[action], RANK - 0.1) == [f"rank {RANK}", *lines[action]]

    assert page.complaints == []
    assert {url.split(":")[0] for url in page.requests} <= {"file", "data", "blob"}
    page.page.close()


def test_several_timelines_zoom_together(browser, tmp_path):
    timelines = [
        simulate(build(name, pp=4, vpp=vpp, microbatches=8), COSTS) for name, vpp in (("1f1b", 1), ("zbv-fixed", 2))
    ]
    path = tmp_path / "timeline.html"
    path.write_text(timeline_html(timelines, titles=["a", "b"], memory_limit_bytes=80e9), encoding="utf-8")
    page = Page(browser.new_page(viewport={"width": 1400, "height": 900}))
    page.load(path)
    axes = page.page.evaluate(
        "Object.keys(document.getElementById('timeline').layout).filter(k => k.startsWith('xaxis'))"
    )
    assert axes == ["xaxis"]
    page.zoom_to(500.0, 1, half_px=40)
    low, high = page.range()
    assert 0 < low < 500 < high
    assert page.complaints == []
    page.page.close()
