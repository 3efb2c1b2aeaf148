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
from tests.plot.test_browser import HAS_BROWSER, browser  # noqa: F401

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site; any warning fails it: a link, an anchor or a reference that leads nowhere."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


class _Links(HTMLParser):
    """The targets of a page's links, pictures, scripts and frames, and the names that can be linked to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.names: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name == "id" and value:
                self.names.add(value)


def test_every_link_picture_and_frame_of_the_site_is_there(site: Path) -> None:
    pages = {path: _Links(path) for path in site.rglob("*.html") if path.parent.name != "pictures"}
    assert len(pages) > 20
    for page, links in pages.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or page.name == "404.html":  # whose links begin at the root of a server
                continue
            path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            path = path / "index.html" if path.is_dir() else path
            assert path.exists(), f"{page.name} links to {target}"
            if parts.fragment and path in pages:
                assert unquote(parts.fragment) in pages[path].names, f"{page.name} links to {target}"


def test_the_reference_has_every_public_name_and_every_command(site: Path) -> None:
    headings = re.findall(r'<h2 id="([^"]+)"', (site / "reference" / "python.html").read_text(encoding="utf-8"))
    assert {heading.rpartition(".")[2] for heading in headings} >= set(ppsim.__all__)
    command_line = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    for command, what in main.commands.items():
        for name in (command, *(f"{command} {part}" for part in getattr(what, "commands", ()))):
            assert f"Usage: ppsim {name} [OPTIONS]" in command_line


@pytest.mark.skipif(
    not HAS_BROWSER and os.environ.get("PPSIM_REQUIRE_BROWSER") != "1", reason="needs chromium and playwright"
)
def test_no_page_asks_a_network_for_anything(site: Path, browser) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    page = browser.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
    page.close()
    assert len(requests) > 100
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert complaints == []
