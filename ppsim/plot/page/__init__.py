"""The parts of the interactive pages: templates, styles, scripts, and plotly.js, which draws."""

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from string import Template

from ppsim.base.version import __version__

_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'"
)


def filled(name: str, **parts: str) -> str:
    """Return a page ("timeline" or "pareto") with its style, its script, plotly.js and `parts`, which are HTML.

    Its policy lets a browser run these two scripts and no other, and load nothing; plotly.js writes styles of its
    own, and makes images of the plot to save it.
    """
    scripts = {"plotly": _part("plotly/plotly-cartesian.min.js"), "script": _part(f"{name}.js")}
    hashes = (b64encode(sha256(script.encode()).digest()).decode() for script in scripts.values())
    policy = _POLICY.format(scripts=" ".join(f"'sha256-{one}'" for one in hashes))
    page, style = Template(_part(f"{name}.html")), _part(f"{name}.css")
    return page.substitute(parts, policy=policy, style=style, version=__version__, **scripts)


def _part(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")
