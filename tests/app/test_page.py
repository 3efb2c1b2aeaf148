"""The page in a real browser, and its server: sliders move pictures, the URL keeps the state, nothing is fetched.

The browser's tests go on in one page, which takes long to load. Skipped without Dash, Chromium and playwright, unless PPSIM_REQUIRE_BROWSER=1.
"""

import os
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import pytest

from tests.plot.test_axe import AXE, violations
from tests.plot.test_browser import CHROMIUM, HAS_BROWSER, TWO_FRAMES
from tests.processes import start

IS_REQUIRED = os.environ.get("PPSIM_REQUIRE_BROWSER") == "1"
if not IS_REQUIRED:
    pytest.importorskip("dash")
pytestmark = [
    pytest.mark.skipif(not HAS_BROWSER and not IS_REQUIRED, reason="needs chromium and playwright"),
    pytest.mark.timeout(180),
    # Dash's own: it imports what Python renames.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

FIRST = "pp=4&microbatches=8&schedule=1f1b,zb-h1"
STEPS = "[...document.querySelectorAll('.card')].map(card => card.querySelector('dd').textContent)"
CELLS = """count => document.querySelector('#timelines .js-plotly-plot')
  ?.data?.filter(trace => trace.type === 'heatmap').length === count"""


ANSWERS = "**/_dash-update-component*"
OLD = "[...document.querySelectorAll('.stale[inert]')].map(part => part.id)"

UNLABELLED = """[...document.querySelectorAll('input, select, button')].filter(one => one.offsetParent
  && !one.closest('.js-plotly-plot') && !one.labels?.length && !one.getAttribute('aria-label')
  && !one.textContent.trim()).map(one => one.outerHTML)"""
COLOURS = """(() => { const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(['paper', 'side', 'card', 'text', 'quiet', 'bad', 'good', 'wait', 'accent', 'on-accent']
    .map(name => [name, style.getPropertyValue('--' + name).trim()])) })()"""


@pytest.fixture(scope="module")
def address():
    from ppsim.app.server import start_server
    from ppsim.cli.serve import _read_project, _read_tune

    with start_server(_read_project, _read_tune, port=0, query=FIRST) as made:
        thread = threading.Thread(target=made.server.serve_forever, daemon=True)
        thread.start()
        yield made.url
        made.server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def page(address):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield Page(browser, address)
        browser.close()


class Page:
    """A page with what it complained about and asked for."""

    def __init__(self, browser, address):
        self.context = browser.new_context(
            viewport={"width": 1400, "height": 900}, permissions=["clipboard-read", "clipboard-write"]
        )
        self.page, self.complaints, self.hosts = self.context.new_page(), [], set()
        self.page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        self.page.goto(address)
        self.rest()

    def rest(self):
        """Wait for the whole answer to what was moved last."""
        self.page.wait_for_selector("body[data-quick=false]")

    def moved(self, act):
        """Do something, and wait until the next answer is there, and then the whole one."""
        before = self.page.get_attribute("body", "data-answer")
        act()
        self.page.wait_for_function("before => document.body.dataset.answer !== before", arg=before)
        self.rest()

    def slide(self, word, value):
        slide = (
            "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', {bubbles: true})) }"
        )
        self.page.eval_on_selector(f"[id='{word}-slider']", slide, value)

    def has_rows(self, count):
        """Wait until so many ranks are drawn cell by cell; a picture is taken away and made anew at times."""
        self.page.wait_for_function(CELLS, arg=count)

    def read(self, expression):
        return self.page.evaluate(expression)

    def is_clean(self, address):
        return self.complaints == [] and self.hosts <= {urlsplit(address).netloc, ""}


def test_a_slider_moves_numbers_and_pictures_and_the_url_keeps_it_all(page, address):
    page.has_rows(8)
    before, range_before = (
        page.read(STEPS),
        page.read("document.querySelector('#timelines .js-plotly-plot').layout.xaxis.range"),
    )
    assert len(before) == 2
    page.page.evaluate("document.body.dataset.quick = ''")
    page.slide("forward_ms", 480)
    page.page.wait_for_selector("body[data-quick=true]")
    page.rest()
    after = page.read(STEPS)
    page.has_rows(8)
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert page.read("document.querySelector('#timelines .js-plotly-plot').layout.xaxis.range")[1] > range_before[1]
    assert "forward_ms=" in page.page.url
    page.moved(lambda: page.page.click("[data-pin=zb-h1]"))
    page.moved(lambda: page.page.check("main [name=colour][value=cause]"))
    page.page.reload()
    page.rest()
    assert page.read(STEPS) == after
    assert page.read("document.querySelector('[data-pin=zb-h1]').getAttribute('aria-pressed')") == "true"
    assert page.page.is_checked("main [name=colour][value=cause]")
    assert page.is_clean(address)


@pytest.mark.browser
def test_bad_input_is_said_beside_its_field_and_the_picture_stays(page, address):
    before = page.read(STEPS)
    page.page.fill("[id=pp]", "four")
    page.page.wait_for_function("document.getElementById('pp-error').textContent")
    assert page.page.inner_text("[id=pp-error]") == "Invalid value for '--pp': 'four' is not a valid integer."
    assert page.read("document.getElementById('pp').getAttribute('aria-invalid')") == "true"
    assert page.read(STEPS) == before
    page.has_rows(8)
    page.moved(lambda: page.page.fill("[id=pp]", "2"))
    assert page.page.inner_text("[id=pp-error]") == ""
    page.has_rows(4)
    assert page.is_clean(address)


@pytest.mark.browser
def test_the_command_is_copied_and_the_table_exported(page, address):
    page.page.click("#copy")
    page.page.wait_for_function("document.getElementById('copied').textContent === 'copied'")
    copied = page.read("navigator.clipboard.readText()")
    assert copied == page.page.inner_text("#command")
    assert copied.startswith(
        f"ppsim project --pp {page.page.input_value('[id=pp]')} --num-microbatches 8 --forward-ms "
    )
    assert copied.endswith(" --schedule 1f1b,zb-h1")
    with page.page.expect_download() as download:
        page.page.click("#export")
    rows = download.value.path().read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["schedule", "1f1b", "zb-h1"]
    assert page.is_clean(address)


@pytest.mark.browser
def test_a_slider_of_a_stage_moves_that_stage_alone_and_lists_follow_the_number_of_ranks(page, address):
    """Of a profile's stages one is set by hand; on half the ranks the list has half the values."""
    page.page.goto(address)
    page.rest()
    page.page.click(".stages[data-of=forward_ms] summary")
    numbers = ".stages[data-of=forward_ms] [type=text]"
    before = [float(page.page.locator(numbers).nth(stage).input_value()) for stage in range(4)]
    move = "slider => { slider.value = 400; slider.dispatchEvent(new Event('input', {bubbles: true})) }"
    page.moved(lambda: page.page.eval_on_selector(".stages[data-of=forward_ms] [data-stage='2'][type=range]", move))
    shown = [float(page.page.locator(numbers).nth(stage).input_value()) for stage in range(4)]
    assert shown[2] == 100  # 400 of 600 steps from 0.01 ms to 10 s
    assert [shown[0], shown[1], shown[3]] == [before[0], before[1], before[3]]
    listed = ",".join(f"{value:g}" for value in shown)
    assert f"--forward-ms {listed} " in page.page.inner_text("#command")
    page.page.reload()
    page.rest()
    assert page.page.input_value("[id=forward_ms]") == listed
    page.moved(lambda: page.page.fill("[id=pp]", "2"))
    assert page.page.input_value("[id=forward_ms]") == f"{shown[1]:g},{shown[3]:g}"
    assert page.is_clean(address)


@pytest.mark.browser
def test_an_answer_to_other_inputs_is_dimmed_and_cannot_be_copied(page, address):
    """From the change on, while no answer is there, and after an input that has none."""
    page.page.goto(address)
    page.rest()
    held = []
    page.page.route(ANSWERS, lambda route: held.append(route))
    assert page.read(OLD) == []
    page.page.fill("[id=pp]", "2")
    assert page.read(OLD) == ["cards", "drawn", "overview", "terminal", "rows"]
    command = page.page.inner_text("#command")
    page.page.evaluate("navigator.clipboard.writeText('nothing')")
    page.page.locator("#copy").dispatch_event("mousedown")
    page.page.keyboard.press("Control+a")
    page.page.keyboard.press("Control+c")
    assert command not in page.read("navigator.clipboard.readText()")
    assert page.read("document.getElementById('copy').matches('[inert] *')")
    page.moved(lambda: [*(route.continue_() for route in held), page.page.unroute(ANSWERS)])
    page.page.wait_for_function(f"{OLD}.length === 0")
    assert "--pp 2 " in page.page.inner_text("#command")
    page.page.fill("[id=pp]", "none")
    page.page.wait_for_function("document.getElementById('pp-error').textContent")
    assert "cards" in page.read(OLD)
    page.moved(lambda: page.page.fill("[id=pp]", "4"))
    assert page.read(OLD) == []
    assert page.is_clean(address)


@pytest.mark.browser
def test_a_click_on_a_configuration_that_a_search_found_shows_its_timeline(page, address):
    page.page.click("#tab-tune")
    asked = {
        "model": "gpt2",
        "gpus": "2",
        "global_batch": "16",
        "more": "--tp 1,2 --micro-batch-size 8 --stack plain",
    }
    for word, text in asked.items():
        page.page.fill(f"[id='tune.{word}']", text)
    page.page.click("#search")
    page.page.wait_for_selector("#pareto .scatterlayer .point", timeout=120_000)
    page.page.wait_for_selector("#search-table button")
    page.page.locator("#pareto .nsewdrag").scroll_into_view_if_needed()
    x, y = page.read(
        """(() => { const plot = document.querySelector('#pareto .js-plotly-plot'), box = plot.getBoundingClientRect();
        const { xaxis, yaxis } = plot._fullLayout, [trace] = plot.data.slice(-1);
        return [box.left + xaxis._offset + xaxis.l2p(trace.x[0]), box.top + yaxis._offset + yaxis.l2p(trace.y[0])] })()"""
    )
    page.page.mouse.move(x, y)
    page.page.wait_for_selector("#pareto .hoverlayer .hovertext")
    page.page.mouse.click(x, y)
    page.page.wait_for_selector("#configuration .heatmaplayer image", state="attached")
    command = page.page.inner_text("#opened-about code")
    assert command.startswith("ppsim project --model gpt2 ")
    assert page.read("document.querySelector('#pareto .js-plotly-plot').data.slice(-1)[0].customdata.length") > 1
    assert page.read(OLD) == []
    page.page.fill("[id='tune.gpus']", "4")
    assert page.read(OLD) == ["search-found", "search-opened", "search-command"]
    page.page.fill("[id='tune.gpus']", "2")
    assert page.read(OLD) == []
    assert page.is_clean(address)


@pytest.mark.parametrize(
    "path", ["/", "/wrong/", "/wrong/_dash-layout", "/assets/app.js", "/_dash-update-component"]
)
def test_without_the_token_everything_is_forbidden(address, path):
    where = urlsplit(address)
    assert where.hostname == "127.0.0.1"
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(f"http://{where.netloc}{path}")
    assert raised.value.code == 403
    raised.value.close()
    with urllib.request.urlopen(address) as there:
        assert there.status == 200
        assert there.headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.browser
def test_every_input_has_a_label_and_text_stands_out(page):
    from ppsim.plot.palette import contrast

    page.page.click("#tab-compare")
    assert page.read(UNLABELLED) == []
    for scheme in ("light", "dark"):
        page.page.emulate_media(color_scheme=scheme)
        colours = page.read(COLOURS)
        for ground in ("paper", "side", "card"):
            for ink in ("text", "quiet", "bad", "good", "wait"):
                assert contrast(colours[ink], colours[ground]) >= 4.5, (scheme, ink, ground)
        assert contrast(colours["on-accent"], colours["accent"]) >= 4.5


@pytest.mark.skipif(AXE is None, reason="needs axe-playwright-python")
@pytest.mark.parametrize(("tab", "scheme"), [("compare", "light"), ("tune", "dark")])
@pytest.mark.browser
def test_axe_finds_nothing(page, tab, scheme):
    page.page.emulate_media(color_scheme=scheme)
    page.page.click(f"#tab-{tab}")
    page.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    page.page.evaluate(TWO_FRAMES)
    assert violations(page.page) == {}


def test_the_command_says_where_and_an_interruption_ends_it_quietly(tmp_path):
    """On another port where the one asked for is taken; the options behind -- are the state that it begins with."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = [
            sys.executable,
            "-m",
            "ppsim",
            "serve",
            "--port",
            str(port),
            "--",
            "--pp",
            "2",
            "--schedule",
            "gpipe",
        ]
        server = start(line)
        url = urlsplit(server.stdout.readline().strip())
        assert (url.hostname, url.query) == ("127.0.0.1", "pp=2&schedule=gpipe")
        assert url.port != port
        assert len(url.path.strip("/")) >= 32
        server.send_signal(signal.SIGINT)
        _, told = server.communicate(timeout=60)
    assert server.returncode == 0
    assert told.endswith("ended\n")
    assert f"port {port} is taken" in told
    assert "Traceback" not in told
