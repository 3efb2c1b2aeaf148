"""Parts of the interactive pages: templates, styles, scripts, and plotly.js for the page of a search."""

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from string import Template

from ppsim.base.version import __version__
from ppsim.plot.palette import theme_style

_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'"
)
_TIMELINE = ("data", "units", "hover", "colours", "layout", "draw", "links", "range", "view", "hash", "controls")


def timeline_page(**parts: str) -> str:
    """Return the page of a timeline; `parts` are HTML.

    All script files become one function, so that no name is global.
    """
    script = "".join(page_part(f"timeline/{name}.js") for name in _TIMELINE)
    return _filled("timeline", {"script": f'"use strict";\n(async () => {{\n{script}}})();\n'}, parts)


def pareto_page(**parts: str) -> str:
    return _filled("pareto", {"plotly": plotly_script(), "script": page_part("pareto.js")}, parts)


def _filled(name: str, scripts: dict[str, str], parts: dict[str, str]) -> str:
    """Return a page with a content security policy.

    Scripts may set styles and make images, which saving the picture needs.
    """
    hashes = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts.values())
    policy = _POLICY.format(scripts=" ".join(f"'sha256-{one}'" for one in hashes))
    page = Template(page_part("head.html") + page_part(f"{name}.html"))
    style = theme_style() + page_part("common.css") + page_part(f"{name}.css")
    return page.substitute(parts, policy=policy, style=style, version=__version__, **scripts)


def plotly_script() -> str:
    """Return plotly.js as the installed package plotly has it."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def page_part(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")
