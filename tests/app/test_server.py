"""The server without a browser: its page arrives in parts, and it closes what it started."""

from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace

import pytest

from ppsim.app.server import LoadedApplication, RunningServer, TokenCheck, _listening, start_server
from ppsim.base.errors import ConfigError


def test_the_frame_of_the_page_waits_for_nothing_and_then_comes_what_is_loaded():
    forms, loaded = Future(), Future()
    page = iter(TokenCheck("token", forms, loaded)({"PATH_INFO": "/token/"}, lambda *_: None))
    assert b"<h1>ppsim</h1>" in next(page)
    forms.set_result(["<input id=pp>", "<input id=gpus>"])
    loaded.set_result(LoadedApplication(lambda environ, start: [b"<script>rendered</script>"], None, None))
    rest = b"".join(page)
    places = [rest.index(one) for one in (b"<input id=pp>", b"<input id=gpus>", b"plotly.js", b"rendered")]
    assert places == sorted(places)


def test_a_server_that_ends_closes_its_socket_and_its_workers():
    closed, loaded = [], Future()
    workers = [SimpleNamespace(close=partial(closed.append, name)) for name in ("projections", "searches")]
    loaded.set_result(LoadedApplication(None, *workers))
    with RunningServer(SimpleNamespace(server_close=partial(closed.append, "socket")), "", loaded):
        assert closed == []
    assert closed == ["socket", "projections", "searches"]


def asked(path, application=None):
    """Return (status, headers, body) of a request to a server whose token is "token"."""
    forms, loaded, said = Future(), Future(), []
    forms.set_result(["form", "search"])
    loaded.set_result(LoadedApplication(application, None, None))
    body = b"".join(TokenCheck("token", forms, loaded)({"PATH_INFO": path}, lambda *one: said.append(one)))
    ((status, headers),) = said
    return status, dict(headers), body


def test_only_paths_below_the_token_are_answered():
    for path in ("/", "/plotly.js", "/tokem/", "/token2/plotly.js", "/tök/"):
        status, _, body = asked(path)
        assert (status, body[:3]) == ("403 Forbidden", b"403")
    status, headers, body = asked("/token/plotly.js")
    assert (status, headers["Content-Type"]) == ("200 OK", "text/javascript; charset=utf-8")
    assert headers["Referrer-Policy"] == "no-referrer"
    assert b"Plotly" in body


def test_other_paths_below_the_token_are_dashs_with_the_same_headers():
    def dash(environ, start):
        start("200 OK", [("Content-Type", "application/json")])
        return [environ["PATH_INFO"].encode()]

    status, headers, body = asked("/token/_dash-layout", dash)
    assert (status, body) == ("200 OK", b"/token/_dash-layout")
    assert (headers["Content-Type"], headers["Referrer-Policy"]) == ("application/json", "no-referrer")


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_be_is_refused(port):
    with pytest.raises(ConfigError, match=f"0 to 65535, 0 for any that is free: got {port}"):
        start_server(None, None, port=port)


def test_an_occupied_port_is_replaced_by_a_free_one():
    pytest.importorskip("werkzeug")
    first = _listening(None, 0)
    second = _listening(None, first.port)
    try:
        assert second.port not in (0, first.port)
    finally:
        first.server_close()
        second.server_close()
