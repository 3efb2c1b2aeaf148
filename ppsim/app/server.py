"""The server of the page: local machine only, protected by a token.

The token is the first part of every path. A cookie would be sent to every port of this machine, including servers
of other users.
"""

import hmac
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from ppsim.base.errors import ConfigError, MissingExtra
from ppsim.plot.page import plotly_script
from ppsim.plot.palette import theme_style

if TYPE_CHECKING:
    from ppsim.app.background_workers import SearchWorker
    from ppsim.app.projector import Projector, Reader

HOST = "127.0.0.1"
PORT = 8050
ASSETS = files("ppsim.app") / "assets"

_HEADERS = {
    # No connection to other servers. plotly.js needs inline styles and images from data URLs.
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'self'; "
    "form-action 'self'",
    "Referrer-Policy": "no-referrer",  # the address contains the token
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class LoadedApplication:
    """The WSGI application that serves the page's data, and its state."""

    application: Any
    workbench: "Projector"
    searches: "SearchWorker"


@dataclass
class RunningServer:
    """The application loads in the background; `url` contains the token."""

    server: Any
    url: str
    loaded: Future[LoadedApplication]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.server_close()
        with suppress(Exception):  # the page has shown the error
            self.loaded.result().workbench.close()
            self.loaded.result().searches.close()


def start_server(
    read: "Reader", read_search: "Reader", *, port: int = PORT, token: str | None = None, query: str = ""
) -> RunningServer:
    """The server listens on `port` or, if it is occupied, on a free port.

    `query` is the state that the address opens; it is projected before the server starts. The page's frame is
    served before the application has loaded. Raises `ConfigError` for an invalid port, `PpsimError` for an invalid
    state, and `MissingExtra` if Dash is not installed.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port is 0 to 65535, 0 for any that is free: got {port}")
    if find_spec("dash") is None:
        raise MissingExtra.of("app", "`ppsim serve` needs Dash, which is not installed")
    token, loading = token or secrets.token_urlsafe(24), ThreadPoolExecutor(1)
    if query:
        _project(read, query)
    forms, loaded = loading.submit(_forms), loading.submit(_loaded, read, read_search, token)
    if not query:
        loading.submit(_project, read, query)
    server = _listening(TokenCheck(token, forms, loaded), port)
    return RunningServer(server, f"http://{HOST}:{server.port}/{token}/{query and '?'}{query}", loaded)


def _project(read: "Reader", query: str) -> None:
    """A projection loads all modules before the first slider moves."""
    from ppsim.app.projector import Projector
    from ppsim.app.state import PageState

    Projector(read).answer(PageState.read(query))


def _loaded(read: "Reader", read_search: "Reader", token: str) -> LoadedApplication:
    from ppsim.app.background_workers import SearchWorker
    from ppsim.app.page import dash_application
    from ppsim.app.projector import Projector

    workbench, searches = Projector(read), SearchWorker()
    return LoadedApplication(
        dash_application(workbench, searches, read_search, prefix=f"/{token}/"), workbench, searches
    )


def _forms() -> list[str]:
    from ppsim.app.fields import form_html, search_html

    return [form_html(), search_html()]


@dataclass(frozen=True)
class TokenCheck:
    """A WSGI application that answers 403 to every path without the token.

    The page is sent in pieces as they are loaded: frame, forms, and Dash's part.
    """

    token: str
    forms: Future[list[str]]
    loaded: Future[LoadedApplication]

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        given, _, path = environ.get("PATH_INFO", "").removeprefix("/").partition("/")
        if not hmac.compare_digest(given.encode("latin-1", "replace"), self.token.encode()):
            start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [_FORBIDDEN]

        def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            return start_response(status, [*headers, *_HEADERS.items()], *more)

        if path not in ("", "plotly.js"):
            return self.loaded.result().application(environ, started)  # type: ignore[no-any-return]
        started("200 OK", [("Content-Type", f"text/{'javascript' if path else 'html'}; charset=utf-8")])
        # Begun before Dash is loaded, which uses the loaded version.
        return [plotly_script().encode()] if path else self._page(environ)

    def _page(self, environ: dict[str, Any]) -> Iterator[bytes]:
        style, template = ((ASSETS / name).read_text(encoding="utf-8") for name in ("app.css", "index.html"))
        *before, rest = template.replace("{{style}}", theme_style() + style).split("{{form}}")
        for piece, form in zip(before, (0, 1), strict=True):
            yield piece.encode()
            yield self.forms.result()[form].encode()
        yield rest.encode()
        yield from self.loaded.result().application(environ, lambda *_: None)


def _listening(application: Any, port: int) -> Any:
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):  # type: ignore[misc]  # optional dependency
        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Do nothing."""

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except OSError:
            listening.bind((HOST, 0))
        listening.listen(128)
        free, fd = listening.getsockname()[1], listening.fileno()
        return make_server(HOST, free, application, threaded=True, request_handler=Quiet, fd=fd)


_FORBIDDEN = b"403: the address has no or another token; `ppsim serve` printed the whole one\n"
