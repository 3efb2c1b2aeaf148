"""The interactive page in a real browser: it loads alone, hovers right, zooms and toggles, also at 100,000 actions.

Skipped without Chromium and playwright, unless PPSIM_REQUIRE_BROWSER=1. Times are printed (`pytest -s`), and
never asserted on; benchmarks/html_timeline.py reports them.
"""

import importlib.util
import io
import os
import shutil
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

import ppsim
from ppsim import StageCosts, build, simulate
from ppsim.plot.hover import Hover
from ppsim.plot.html import timeline_html
from ppsim.plot.lanes import compute_lanes
from ppsim.plot.plot_model import TimelineView
from ppsim.plot.scale import time_scale
from ppsim.runs.compare import compare

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
PAGE = "document.getElementById('timeline').ppsim"
PIXEL_OF = f"""([x, rank]) => {{
  const {{state, panels, layout}} = {PAGE}, at = layout(), box = document.querySelector("canvas").getBoundingClientRect();
  const [panel] = panels;
  return [box.left + at.left + (x - state.from) / (state.to - state.from) * at.wide,
          box.top + panel.topPx + (rank + 0.5) / panel.numRanks * panel.shownPx];
}}"""

# Of every shown row of cells: its place among all, and its box in the whole page.
ROWS = f"""() => {{
  const {{state, cells, rowBounds, layout}} = {PAGE}, at = layout();
  const box = document.querySelector("canvas").getBoundingClientRect(), down = box.top + window.scrollY;
  return cells.map((row, place) => [place, row]).filter(([, row]) => !state.hidden.has(row.panel.kind)).map(
    ([place, row]) => [place, box.left + at.left, box.left + at.right, ...rowBounds(row).map(y => down + y)]);
}}"""


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
        self.page.wait_for_selector("body.drawn")
        self.page.evaluate(TWO_FRAMES)

    def wait_for_texts(self):
        self.page.wait_for_selector("body.ready")

    def ask(self, expression):
        """Return what an expression is worth in the page, where `page` is what it lets others see."""
        return self.page.evaluate(f"(page => {expression})({PAGE})")

    def press(self, key):
        self.page.keyboard.press(key)
        self.page.evaluate(TWO_FRAMES)

    def click(self, name, value=None):
        self.page.click(f"#controls [name={name}]" + (f"[value={value}]" if value else ""))
        self.page.evaluate(TWO_FRAMES)

    def pixels(self):
        """Return the pixels of every row of cells, by its place."""
        from matplotlib.image import imread

        self.page.mouse.move(2, 2)
        self.page.evaluate("document.getElementById('axis').style.visibility = 'hidden'")  # it covers a row
        self.page.evaluate(TWO_FRAMES)
        rows = self.page.evaluate(ROWS)
        pixels = imread(io.BytesIO(self.page.screenshot(full_page=True)))[..., :3]
        return {
            row: pixels[round(top) : round(bottom), round(left) : round(right)]
            for row, left, right, top, bottom in rows
        }

    def coloured(self):
        """Return the share of pixels that are not white of every row of cells, by its place."""
        return {row: float((pixels < 0.99).any(axis=2).mean()) for row, pixels in self.pixels().items()}

    def fills(self, row):
        return self.ask(f"[...page.cells[{row}].fill]")

    def said(self):
        return self.page.inner_text("#said")

    def count(self, selector):
        return self.page.locator(selector).count()

    def is_clean(self):
        """Nothing was complained about, and nothing asked for beyond the file itself."""
        return self.complaints == [] and {url.split(":")[0] for url in self.requests} <= {"file", "data", "blob"}

    def pixel_of(self, x, row):
        return self.page.evaluate(PIXEL_OF, [x, row])

    def hover_at(self, x, row):
        """Return the lines that appear where the pointer is moved to, the rank last."""
        self.page.mouse.move(2, 2)
        self.page.wait_for_selector("#tooltip", state="hidden")
        self.page.mouse.move(*self.pixel_of(x, row))
        self.page.wait_for_selector("#tooltip")
        return self.page.evaluate("[...document.getElementById('tooltip').children].map(line => line.textContent)")

    def drag(self, x, row, half_px):
        """Drag across `2 * half_px` pixels around x."""
        across, down = self.pixel_of(x, row)
        self.page.mouse.move(across - half_px, down)
        self.page.mouse.down()
        self.page.mouse.move(across, down, steps=2)
        self.page.mouse.move(across + half_px, down, steps=2)
        with timed("drag"):
            self.page.mouse.up()
            self.page.evaluate(TWO_FRAMES)

    def range(self):
        return self.ask("[page.state.from, page.state.to]")


@contextmanager
def timed(what):
    begin = time.perf_counter()
    yield
    print(f"  {what}: {time.perf_counter() - begin:.2f} s")


@pytest.fixture
def opened(browser, tmp_path):
    """Return a function that opens a page of views, with `window` as the browser takes it."""
    pages = []

    def open_page(*views, window=None, **options):
        path = tmp_path / "timeline.html"
        with timed("write"):
            path.write_text(timeline_html(views, **options), encoding="utf-8")
        page = Page(browser.new_page(**{"viewport": {"width": 1400, "height": 900}} | (window or {})))
        page.page.set_default_timeout(60_000)
        pages.append(page)
        with timed("load"):
            page.load(path)
        page.wait_for_texts()
        return page

    yield open_page
    for page in pages:
        page.page.close()


def middles_of(lane, scale):
    return (lane.edges[:-1] + lane.edges[1:]) / 2 / scale.size


@pytest.mark.parametrize("shape", ["4,992 actions", pytest.param("98,304 actions", marks=pytest.mark.browser)])
def test_the_page_loads_alone_hovers_right_and_zooms(opened, shape):
    timeline = simulate(build(**SHAPES[shape]), COSTS)
    print(f"\n{shape}")
    scale = time_scale(timeline.step_time_s)
    lane = compute_lanes(timeline, by_cause=True)[RANK]
    lines = Hover(timeline, scale).lines_of(lane)
    middles = middles_of(lane, scale)
    busy = [cell for cell in range(len(lane.node)) if not lane.is_idle[cell]]
    action = busy[len(busy) // 2]

    page = opened(TimelineView(timeline, "<b>t</b>"))
    assert lines[0][0] == "idle: warm-up"
    assert page.hover_at(middles[0], RANK - 0.1) == [*lines[0], f"rank {RANK}"]

    page.drag(middles[action], RANK, half_px=12)
    low, high = page.range()
    assert low < middles[action] < high
    assert high - low < 0.1 * timeline.step_time_s / scale.size
    assert page.hover_at(middles[action], RANK - 0.1) == [*lines[action], f"rank {RANK}"]
    for key in ("p", "i", "m", "0"):
        with timed(f"key {key}"):
            page.press(key)
    assert page.range() == [0, pytest.approx(timeline.step_time_s / scale.size)]
    assert page.is_clean()


@pytest.mark.browser
def test_several_timelines_zoom_together(opened):
    timelines = [
        simulate(build(name, pp=4, vpp=vpp, microbatches=8), COSTS) for name, vpp in (("1f1b", 1), ("zbv-fixed", 2))
    ]
    page = opened(TimelineView(timelines[0], "a"), TimelineView(timelines[1], "b"), memory_limit_bytes=80e9)
    page.drag(500.0, 1, half_px=40)
    low, high = page.range()
    assert 0 < low < 500 < high
    assert page.is_clean()


@pytest.mark.browser
def test_cells_are_coloured_by_microbatch_and_idle_ones_by_cause(opened):
    timeline = simulate(build("zb-h1", pp=4, microbatches=8), COSTS)
    lane = compute_lanes(timeline, by_cause=True)[2]
    page = opened(TimelineView(timeline, "t"))
    by_kind = page.fills(2)
    page.click("causes")
    with_causes = page.fills(2)
    page.click("colour", "microbatch")
    by_microbatch = page.fills(2)
    microbatch = timeline.schedule.microbatch[lane.node].tolist()
    for cell, is_idle in enumerate(lane.is_idle.tolist()):
        if is_idle:
            assert by_kind[cell] == by_kind[0]
            assert with_causes[cell] - lane.cause[cell] == with_causes[0] - lane.cause[0]
            assert by_microbatch[cell] == with_causes[cell] != by_kind[cell]
        else:
            assert by_kind[cell] == with_causes[cell]
    busy = [(microbatch[cell], by_microbatch[cell]) for cell in range(len(by_kind)) if not lane.is_idle[cell]]
    assert len(set(busy)) == len({fill for _, fill in busy}) == 8  # a fill for each microbatch, of F, I and W alike
    assert sorted(set(busy)) == sorted(set(busy), key=lambda pair: pair[1])
    page.press("k")
    page.press("i")
    assert page.fills(2) == by_kind
    assert page.is_clean()


@pytest.mark.browser
def test_panels_and_the_critical_path_come_and_go(opened):
    page = opened(TimelineView(simulate(build("1f1b", pp=4, microbatches=8), COSTS), "t"))

    def red():
        row = page.pixels()[1]
        return int(((row - [0.75, 0.0, 0.25]).__abs__() < 0.02).all(axis=2).sum())

    def height():
        return page.ask("page.layout().height")

    assert red() > 100
    page.press("p")
    assert red() == 0
    whole = height()
    page.click("panel", "memory")
    page.click("panel", "transfers")
    assert height() < whole
    assert set(page.pixels()) == set(range(4))
    assert page.hover_at(1.0, 0.1)[0] == "0F0"
    page.click("panel", "transfers")
    assert len(page.pixels()) > 4
    assert page.is_clean()


@pytest.mark.parametrize("is_compared", [False, True], ids=["one", "compared"])
@pytest.mark.parametrize("pp", [4, pytest.param(64, marks=pytest.mark.long)])
@pytest.mark.browser
def test_every_row_stays_as_coloured_as_it_was_whatever_is_toggled(opened, pp, is_compared):
    table = build("1f1b", pp=pp, microbatches=2 * pp)
    timelines = [simulate(table, COSTS), *([simulate(table, COSTS.replace(forward_s=0.027))] * is_compared)]
    options = {"comparison": compare(*timelines)} if is_compared else {}
    page = opened(
        *(TimelineView(timeline, name) for timeline, name in zip(timelines, "ab", strict=False)), **options
    )
    whole = page.coloured()
    compute = range(pp * len(timelines))
    assert len(whole) > len(compute)
    assert min(whole[trace] for trace in compute) > 0.8
    for name, value in [
        ("panel", "memory"), ("panel", "transfers"), ("path", None), ("causes", None), ("colour", "microbatch"),
        ("panel", "memory"), ("links", None), ("colour", "kind"), ("causes", None), ("path", None),
        ("panel", "transfers"),
    ]:  # fmt: skip
        page.click(name, value)
        now = page.coloured()
        assert now.keys() == (whole.keys() if page.page.is_checked("[value=transfers]") else set(compute))
        for trace, share in now.items():  # of a transfer's few pixels, one line more or less is a large part
            assert share == pytest.approx(whole[trace], abs=0.05 if trace in compute else 0.8 * whole[trace]), name
    assert now == pytest.approx(whole, abs=0.01)
    assert page.is_clean()


@pytest.mark.browser
def test_pointing_at_an_action_draws_who_it_waits_for_and_a_click_keeps_it(opened):
    timeline = simulate(build("1f1b", pp=4, microbatches=8), COSTS)
    scale = time_scale(timeline.step_time_s)
    lane = compute_lanes(timeline, by_cause=True)[1]
    cell = lane.node.tolist().index(
        next(node for node, action in enumerate(timeline.schedule) if str(action) == "1B2")
    )
    place = (middles_of(lane, scale)[cell], 1 - 0.1)
    page = opened(TimelineView(timeline, "t"))
    assert page.count("#links path") == 0
    page.hover_at(*place)
    # To 1F2 and 2B2, whose results it needs, and on to 0B2: each a line and its casing.
    assert page.count("#links path") == 2 * 3
    assert page.count('#links path[stroke-dasharray="5 3"]') == 1
    page.page.mouse.click(*page.pixel_of(*place))
    page.page.mouse.move(2, 2)
    page.page.evaluate(TWO_FRAMES)
    assert page.count("#links path") == 6
    page.press("w")
    assert page.count("#links path") == 6
    page.press("Escape")
    assert page.count("#links path") == 0
    page.click("links")
    page.hover_at(*place)
    assert page.count("#links path") == 0
    assert page.is_clean()


@pytest.mark.browser
def test_the_keyboard_zooms_and_moves_and_stays_inside_the_step(opened):
    page = opened(TimelineView(simulate(build("1f1b", pp=4, microbatches=8), COSTS), "t"))
    page.page.mouse.move(2, 2)
    begin, end = page.range()
    page.press("w")
    assert page.range() == pytest.approx([0.25 * end, 0.75 * end])
    page.press("d")
    assert page.range() == pytest.approx([0.4 * end, 0.9 * end])
    page.press("ArrowRight")
    assert page.range() == pytest.approx([0.5 * end, end])
    for _ in range(3):
        page.press("s")
    assert page.range() == pytest.approx([begin, end])
    page.press("+")
    page.press("0")
    assert page.range() == pytest.approx([begin, end])
    assert page.is_clean()


@pytest.mark.browser
def test_a_comparison_is_coloured_and_labelled_by_error(opened):
    table = build("zb-h1", pp=2, microbatches=4)
    measured, projected = simulate(table, COSTS), simulate(table, COSTS.replace(forward_s=0.027))
    views = TimelineView(measured, "measured"), TimelineView(projected, "projected")
    page = opened(*views, comparison=compare(measured, projected))
    page.press("e")
    assert page.ask("page.panels[0].numLabels") == 2 * measured.num_actions
    fills = page.fills(0)
    lane = compute_lanes(measured, by_cause=True)[0]
    forward = [fills[cell] for cell, kind in enumerate(lane.kind.tolist()) if kind == 0]
    others = [fills[cell] for cell, kind in enumerate(lane.kind.tolist()) if kind > 0]
    assert len(set(forward)) == len(set(others)) == 1
    assert forward[0] < others[0]
    page.page.mouse.move(2, 2)
    assert page.count("aside section:not([hidden])") == 3
    assert page.is_clean()


@pytest.mark.browser
def test_on_paper_the_picture_takes_one_page_and_the_tables_follow(opened):
    page = opened(TimelineView(simulate(build("1f1b", pp=64, microbatches=64), COSTS), "t"))
    printed = page.page.pdf(prefer_css_page_size=True, print_background=True)
    assert 2 <= printed.count(b"/Type /Page\n") <= 3
    assert page.is_clean()


MARKUP = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"


@pytest.mark.parametrize("is_compared", [False, True], ids=["one", "compared"])
@pytest.mark.browser
def test_titles_and_names_are_shown_as_they_are_written_and_run_nothing(opened, is_compared):
    table = replace(build("1f1b", pp=2, microbatches=4), name=MARKUP)
    timelines = [simulate(table, COSTS)] * (1 + is_compared)
    options = {"comparison": compare(*timelines)} if is_compared else {}
    page = opened(*(TimelineView(timeline, MARKUP, facts=[(MARKUP, MARKUP)]) for timeline in timelines), **options)
    assert page.page.title() == page.page.inner_text("h1") == ", ".join([MARKUP] * len(timelines))
    assert page.page.locator("aside td", has_text=MARKUP).count() == 2 * len(timelines)
    assert MARKUP in page.page.get_attribute("canvas", "aria-label")
    assert page.count("img") == 0
    page.hover_at(1.0, 0.1)
    assert page.is_clean()


@pytest.mark.browser
def test_a_page_lets_no_other_script_run_and_nothing_be_loaded(opened):
    page = opened(TimelineView(simulate(build("1f1b", pp=2, microbatches=4), COSTS), "t"))
    page.page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "document.title = 'run'";
          document.body.append(script);
          document.body.insertAdjacentHTML("beforeend", "<img src='x.png' onerror='document.title = 1'>");
        }"""
    )
    assert page.page.evaluate("fetch('timeline.html').then(() => 'sent', () => 'refused')") == "refused"
    assert page.page.title() == "t"
    assert len(page.complaints) >= 3
    assert all("Content Security Policy" in complaint for complaint in page.complaints if "Fetch" not in complaint)


@pytest.mark.browser
def test_the_picture_is_saved_as_an_image(opened):
    page = opened(TimelineView(simulate(build("1f1b", pp=2, microbatches=4), COSTS), "t"))
    with page.page.expect_download() as saved:
        page.page.click("#save")
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")
    assert page.is_clean()


@pytest.mark.browser
def test_a_picture_that_is_summed_up_says_so_and_zoomed_in_it_does_not(opened):
    page = opened(TimelineView(simulate(build("interleaved-1f1b", pp=8, vpp=4, microbatches=400), COSTS), "many"))
    assert page.page.is_visible("#summed")
    page.ask("page.show(0, page.state.to / 200)")
    page.page.evaluate(TWO_FRAMES)
    assert not page.page.is_visible("#summed")
    assert page.is_clean()


@pytest.mark.browser
def test_the_time_axis_stays_in_view_with_64_ranks(opened):
    window = {"viewport": {"width": 1200, "height": 500}}
    page = opened(TimelineView(simulate(build("1f1b", pp=64, microbatches=64), COSTS), "tall"), window=window)
    assert page.page.is_visible("#axis")
    assert page.page.evaluate("document.getElementById('axis').getBoundingClientRect().bottom") <= 500
    page.page.evaluate("document.querySelector('canvas').scrollIntoView(false)")
    page.page.evaluate(TWO_FRAMES)
    assert not page.page.is_visible("#axis"), "the picture's own axis is in view"


@pytest.mark.browser
def test_at_390_px_the_page_of_the_readme_has_its_passes_not_sums(opened):
    timeline = simulate(build("interleaved-1f1b", pp=8, vpp=2, microbatches=32), COSTS)
    page = opened(TimelineView(timeline, "readme"), window={"viewport": {"width": 390, "height": 844}})
    assert not page.page.is_visible("#summed")


@pytest.mark.browser
def test_a_tap_shows_what_is_under_the_finger(opened):
    window = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
    page = opened(TimelineView(simulate(build("1f1b", pp=4, microbatches=8), COSTS), "tapped"), window=window)
    page.page.evaluate("document.querySelector('canvas').scrollIntoView()")
    page.page.evaluate(TWO_FRAMES)
    page.page.touchscreen.tap(*page.pixel_of(15, 0))  # ms
    page.page.evaluate(TWO_FRAMES)
    assert page.page.inner_text("#tooltip strong") == "0F0"


@pytest.mark.browser
def test_a_click_on_a_row_of_a_search_copies_its_command(browser, tmp_path):
    tuned = ppsim.tune(model="gpt2", gpus=2, global_batch=8, stack="plain", micro_batch=[1], schedule=["1f1b"])
    path = tmp_path / "tune.html"
    ppsim.save(tuned, path)
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("#pareto .main-svg")
    command = page.get_attribute("#listed tbody tr", "data-command")
    page.click("#listed tbody tr td")
    page.wait_for_selector("text=Copied to the clipboard.")
    assert page.inner_text("#command code") == command
    assert command.startswith("ppsim project --model gpt2")
    context.close()
