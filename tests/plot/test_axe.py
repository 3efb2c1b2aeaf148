"""axe-core finds nothing on the pages, light and dark, wide and narrow, with all that can be opened.

Skipped where axe-playwright-python, which brings axe-core along, is not installed.
"""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from ppsim import project
from ppsim.api.views import search_view, view_of
from ppsim.plot.html import timeline_html
from ppsim.plot.pareto_page import pareto_html
from ppsim.tuning.search import tune
from tests.plot import test_browser
from tests.tuning.questions import question

AXE = importlib.util.find_spec("axe_playwright_python")
pytestmark = [
    pytest.mark.browser,
    *test_browser.pytestmark,
    pytest.mark.skipif(AXE is None, reason="needs axe-playwright-python"),
]
browser = test_browser.browser


def timeline_page():
    view = view_of(project(pp=4, vpp=2), "plan")
    return timeline_html([view], memory_limit_bytes=80e9, command="ppsim project --pp 4 --vpp 2", date="2026-01-01")


def search_page():
    view = search_view(tune(question("gpt2", gpus=2, batch=4, length=1024, limit_gib=8.0)))
    return pareto_html(replace(view, best=view.best[:3], pareto=view.pareto[:3]))


def violations(page):
    """What axe-core finds wrong with a page, by rule; it must have looked at the contrast of texts."""
    page.evaluate((Path(AXE.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
    result = page.evaluate("axe.run(document, {resultTypes: ['violations'], preload: false})")
    assert "color-contrast" in {rule["id"] for rule in result["passes"]}
    return {rule["id"]: [node["html"][:80] for node in rule["nodes"][:3]] for rule in result["violations"]}


@pytest.mark.parametrize("made", [timeline_page, search_page])
def test_axe_finds_nothing(browser, tmp_path, made):
    (tmp_path / "page.html").write_text(made(), encoding="utf-8")
    for scheme, width in (("light", 1400), ("dark", 390)):
        window = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
        page = browser.new_page(bypass_csp=True, **window)
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_selector("body.ready, #pareto .main-svg")
        page.keyboard.press("r")  # sum up and causes: what they open is there to be looked at
        page.keyboard.press("i")
        page.evaluate(test_browser.TWO_FRAMES)
        assert violations(page) == {}, (scheme, width)
        page.close()
