"""The site: built without a warning, whole, and without a request to any network."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import ppsim
from ppsim.cli import main
from tests.plot.test_axe import AXE, violations
from tests.plot.test_browser import HAS_BROWSER, browser  # noqa: F401

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.pages, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; any warning fails it: a link, an anchor or a reference that leads nowhere."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "scripts" / "build_site.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class _Links(HTMLParser):
    """The targets of a page's links, those that a browser loads, and the names that can be linked to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
                self.loaded += [value] if name == "src" or tag == "link" else []
            elif name == "id" and value:
                self.names.add(value)


def test_every_link_picture_and_frame_of_the_site_is_there(site: Path) -> None:
    pages = {path: _Links(path) for path in site.rglob("*.html") if path.parent.name != "pictures"}
    assert len(pages) > 20
    for page, links in pages.items():
        assert [one for one in links.loaded if urlsplit(one).scheme not in ("", "data")] == [], page.name
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme:
                continue
            path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            path = path / "index.html" if path.is_dir() else path
            assert path.exists(), f"{page.name} links to {target}"
            if parts.fragment and path in pages:
                assert unquote(parts.fragment) in pages[path].names, f"{page.name} links to {target}"


def test_the_reference_has_every_public_name_once_and_every_command(site: Path) -> None:
    topics = [path.read_text(encoding="utf-8") for path in (site / "reference" / "python").glob("*.html")]
    names = [name for page in topics for name in re.findall(r'id="ppsim\.(\w+)"', page)]
    assert sorted(names) == sorted(ppsim.__all__)
    command_line = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    for command, what in main.commands.items():
        for name in (command, *(f"{command} {part}" for part in getattr(what, "commands", ()))):
            assert f"Usage: ppsim {name} [OPTIONS]" in command_line


def test_a_notebook_is_a_page_with_the_pictures_stored_in_it(site: Path) -> None:
    page = _Links(site / "notebooks" / "01_first_projection.html")
    assert [target for target in page.targets if target.endswith(".png")]


needs_browser = pytest.mark.skipif(
    not HAS_BROWSER and os.environ.get("PPSIM_REQUIRE_BROWSER") != "1", reason="needs chromium and playwright"
)


@needs_browser
def test_no_page_asks_a_network_for_anything_or_complains(site: Path, browser) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    """All pictures, the search, and one page of each folder: the other pages run the same scripts.

    The test of links shows that no page loads a file of a network.
    """
    page = browser.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    of_folders = {path.parent: path for path in sorted(site.rglob("*.html"), reverse=True)}
    for path in {*of_folders.values(), site / "search.html", *(site / "pictures").rglob("*.html")}:
        page.goto(path.as_uri())
    page.close()
    assert len(requests) > 100
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert complaints == []


@needs_browser
@pytest.mark.skipif(AXE is None, reason="needs axe-playwright-python")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_pages_of_text_tables_and_code(site: Path, browser, scheme: str) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    page = browser.new_page(color_scheme=scheme)
    for name in ("index.html", "project.html", "schedules.html"):
        page.goto((site / name).as_uri())
        assert violations(page) == {}, name
    page.close()


@needs_browser
def test_what_is_searched_is_found_in_a_site_opened_from_a_folder(site: Path, browser) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.fill("input[name=q]", "cool-down")
    page.press("input[name=q]", "Enter")
    page.click("ul.search a >> text=Glossary")
    assert page.url.startswith((site / "glossary.html").as_uri())
    page.close()
