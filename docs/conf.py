"""How Sphinx makes the site of these pages: `python scripts/build_site.py`, which adds those that are generated."""

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

HERE = Path(__file__).parent

project = "ppsim"
html_title = "ppsim"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]

html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_extra_path = ["extra"]  # made by the script: what pages show in frames
html_show_copyright = False
html_copy_source = False
html_show_search_summary = False  # it asks for pages, which a browser forbids to what was opened from a folder
html_domain_indices = False

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # JSON with dots in it, CSV
copybutton_exclude = ".linenos, .gp, .go"

smartquotes = False  # they take two dashes of an option for one
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
toc_object_entries = False  # each has a heading
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100

NAVIGATION = {
    "Start": ["tutorial", "python", "notebooks/*", "agents", "glossary", "faq"],
    "How to": [
        "howto/schedule_and_memory",
        "project",
        "tune",
        "sweep",
        "howto/run_config",
        "howto/recipes",
        "howto/megatron",
        "howto/torchtitan",
        "howto/primus",
        "howto/own_model",
        "howto/slow_run",
        "calibration",
        "gpu",
        "own_schedule",
        "pictures",
        "howto/*",
    ],
    "Reference": [
        "reference/cli",
        "reference/python",
        "schedules",
        "formats",
        "export",
        "models",
        "clusters",
        "CHANGELOG",
    ],
    "Results and reasons": [
        "accuracy",
        "validation-results",
        "explanation/limits",
        "explanation/simulator",
        "bounds",
        "explanation/architecture",
    ],
}
"""The pages in the order in which they are offered; a star stands for those of a folder that are named nowhere."""

BELOW = {"schedules": "schedules/*", "accuracy": "results/*"}
"""Pages that others stand below."""


def _pages(names: list[str]) -> list[str]:
    """Return names of pages with those that a star stands for."""
    found = []
    for name in names:
        folder, star, _ = name.partition("*")
        every = [path.relative_to(HERE).with_suffix("").as_posix() for path in sorted((HERE / folder).glob("*.md"))]
        found += [page for page in every if page not in names] if star else [name]
    return found


def _add_navigation(_: Sphinx, page: str, source: list[str]) -> None:
    """Add the navigation at the end of the pages, so that GitHub does not show it. Notes are in no navigation."""
    if page.startswith("notes/"):
        source[0] = f"---\norphan: true\n---\n\n{source[0]}"
    trees = NAVIGATION if page == "index" else {"": [BELOW[page]]} if page in BELOW else {}
    for caption, names in trees.items():
        title = [f":caption: {caption}"] if caption else []
        source[0] += "\n".join(["\n```{toctree}", ":hidden:", *title, *_pages(names), "```\n"])


def _link_names(*arguments: Any) -> None:
    """Let what a docstring calls `ppsim.name` lead there; the last argument is its lines."""
    lines = arguments[-1]
    lines[:] = [re.sub(r"(?<![:`])(`ppsim\.\w[\w.]*`)(?!`)", r":py:obj:\1", line) for line in lines]


def setup(app: Sphinx) -> None:
    """Add what the configuration does beside naming things."""
    app.connect("source-read", _add_navigation)
    app.connect("autodoc-process-docstring", _link_names)
