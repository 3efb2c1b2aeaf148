"""The server of the page: on this machine only, and only for who has its token.

The token is the first part of every path, so that each request has it: the page, its scripts and what they ask
for. A cookie would be sent to every port of this machine, other people's servers included.
"""

import hmac
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from ppsim.app.page import dash_application
from ppsim.app.searches import Searches
from ppsim.app.state import State
from ppsim.app.workbench import Reader, Workbench
from ppsim.base.errors import ConfigError

HOST = "127.0.0.1"
PORT = 8050

_HEADERS = {
    # Nothing of the page comes from elsewhere or goes there; plotly.js writes styles and makes pictures of data.
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'self'; "
    "form-action 'self'",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
}


@dataclass
class Served:
    """A server of werkzeug that listens, its address with the token, and what it works with."""

    server: Any
    url: str
    workbench: Workbench
    searches: Searches

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no more, and end searches."""
        self.server.server_close()
        self.workbench.close()
        self.searches.close()


def served(
    read: Reader, read_search: Reader, *, port: int = PORT, token: str | None = None, query: str = ""
) -> Served:
    """Return a server that listens on this machine, on `port` or, where that is taken, on one that is free.

    `read` and `read_search` read what follows `ppsim project` and `ppsim tune` on a command line. `query` is the
    state that the address opens; it is projected first, so that no slider waits for what that loads. Raises
    `ConfigError` for a port that there is not, and `PpsimError` for a state that cannot be.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port is 0 to 65535, 0 for any that is free: got {port}")
    token = token or secrets.token_urlsafe(24)
    workbench, searches = Workbench(read), Searches()
    state = State.read(query)
    workbench.answer(state)
    application = guarded(dash_application(workbench, searches, read_search, prefix=f"/{token}/"), token)
    server = _listening(application, port)
    address = f"http://{HOST}:{server.port}/{token}/"
    return Served(server, f"{address}?{state.query}", workbench, searches)


def _listening(application: Any, port: int) -> Any:
    """A server on the port or, where that is taken, on one that is free."""
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):  # type: ignore[misc]  # of an extra
        """Prints no line a request."""

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Take no notice."""

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
        except OSError:
            listening.bind((HOST, 0))
        listening.listen(128)
        return make_server(
            HOST,
            listening.getsockname()[1],
            application,
            threaded=True,
            request_handler=Quiet,
            fd=listening.fileno(),
        )


def guarded(application: Any, token: str) -> Callable[..., Any]:
    """Return an application of WSGI that answers 403 to every path that does not begin with the token."""
    expected = token.encode()

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        given = environ.get("PATH_INFO", "").lstrip("/").partition("/")[0]
        if not hmac.compare_digest(given.encode("latin-1", "replace"), expected):
            start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [_FORBIDDEN]

        def started(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            return start_response(status, [*headers, *_HEADERS.items()], *more)

        return application(environ, started)

    return answer


_FORBIDDEN = b"403: the address has no or another token; `ppsim serve` printed the whole one\n"
