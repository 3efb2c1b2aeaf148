"""Answers to the page's requests, without a browser."""

from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.app import page
from ppsim.app.background_workers import SearchProgress
from ppsim.app.page import field_error
from ppsim.base.errors import ConfigError, PpsimError

KEEP = "keep"


class State:
    """A state of the page; the query "wrong" cannot be read."""

    schedules = ("1f1b", "zb-h1")
    search_command = "ppsim tune --gpus 8"
    search_arguments = ("--gpus", "8")

    def __init__(self, query: str) -> None:
        if query == "wrong":
            raise ConfigError("--pp must be\nat least 1: got 0")
        self.query = query

    @classmethod
    def read(cls, query: str) -> "State":
        return cls(query)

    def showing(self, arguments: list[str]) -> "State":
        return State(f"{self.query} {arguments}")


@pytest.fixture
def callbacks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return functions by the first output, and what the projector and the searches were asked."""
    found = SimpleNamespace(by_output={}, wiring=[], asked=[], projections=["one"], progress=None)

    def callback(*wires: Any, **how: Any) -> Any:
        found.wiring.append((wires, how))
        return lambda function: found.by_output.setdefault(wires[0][1], function)

    dash = SimpleNamespace(
        no_update=KEEP, Output=lambda *wire, **how: ("out", *wire), Input=lambda *wire: ("in", *wire)
    )
    workbench = SimpleNamespace(
        answer=lambda state: SimpleNamespace(projections=found.projections, state=state.query),
        spots=lambda state: ("spots", 3), wait=lambda state: found.asked.append(("wait", state.query)),
        search=lambda state, names: found.asked.append(("search", state.query, names)),
    )  # fmt: skip
    searches = SimpleNamespace(
        start=lambda *given: found.asked.append(("start", *given)), progress=lambda command: found.progress
    )
    pictures = {
        "theme_of": lambda dark: f"dark {dark}",
        "page_texts": lambda answer, theme: {"texts": answer.state, "theme": theme},
        "timelines": lambda answer, quick, theme: ("timelines", quick, theme),
        "tradeoff_picture": lambda answer, spots, theme: ("tradeoff", spots, theme),
        "idle_figure": lambda answer, theme: ("idle", theme),
        "table_html": lambda spots, names: ("table", spots, names),
        "search_table_html": lambda view: f"table of {view.title}",
        "configuration": lambda state, answer, theme: (("picture", state.query, theme), {"of": answer.state}),
        "table_csv": lambda answer: f"csv of {answer.state}",
    }
    for name, function in pictures.items():
        monkeypatch.setattr(page.pictures, name, function)
    monkeypatch.setattr(page, "PageState", State)
    monkeypatch.setattr(page, "every_schedule", lambda: {"a": 1, "b": 2})
    monkeypatch.setattr(page, "pareto_plotly", lambda view, theme: ("pareto", view.title, theme))
    application = SimpleNamespace(callback=callback)
    page._add_answers(dash, application, workbench)  # type: ignore[arg-type]
    page._add_searches(dash, application, workbench, searches, lambda arguments: ("read", arguments))  # type: ignore[arg-type]
    found.workbench = workbench
    return found


ASKED = {"serial": 7, "quick": False, "query": "q", "dark": True, "others": False}


def test_an_answer_has_three_pictures_and_while_a_slider_moves_only_the_first(callbacks: Any) -> None:
    answered = callbacks.by_output["timelines"]
    base = {"serial": 7, "texts": "q", "theme": "dark True"}
    assert answered(ASKED) == (
        ("timelines", False, "dark True"), ("tradeoff", "spots", "dark True"), ("idle", "dark True"),
        base | {"quick": False, "missing": 3, "table": ("table", "spots", ("1f1b", "zb-h1"))},
    )  # fmt: skip
    assert callbacks.asked == [("search", "q", ["1f1b", "zb-h1"])]
    answered(ASKED | {"others": True})
    assert callbacks.asked[1] == ("search", "q", ["1f1b", "zb-h1", "a", "b"])
    quick = answered(ASKED | {"quick": True, "dark": False})
    assert quick == (("timelines", True, "dark False"), KEEP, KEEP, base | {"quick": True, "theme": "dark False"})
    callbacks.projections.clear()
    assert answered(ASKED) == (KEEP, KEEP, KEEP, base | {"quick": False})
    assert len(callbacks.asked) == 2


def test_a_wrong_input_keeps_the_pictures_and_names_its_field(callbacks: Any) -> None:
    error = {"error": "--pp must be at least 1: got 0", "field": "pp"}
    wrong = ASKED | {"query": "wrong"}
    assert callbacks.by_output["timelines"](wrong) == (KEEP, KEEP, KEEP, {"serial": 7, "quick": False} | error)
    asked = {"serial": 7, "query": "wrong", "start": True, "dark": True, "command": "ppsim project --tp 2"}
    assert callbacks.by_output["pareto"](asked) == (KEEP, {"serial": 7, "over": True} | error)
    assert callbacks.by_output["configuration"](asked) == (KEEP, error)
    assert field_error(PpsimError("a\n  b")) == {"error": "a b", "field": ""}


@pytest.mark.parametrize(
    ("progress", "told"),
    [
        (None, {"over": True}),
        (SearchProgress(failed="no layout fits"), {"error": "no layout fits", "field": "", "over": True}),
        (SearchProgress(), {"over": False, "status": "finding bounds …"}),
        (SearchProgress(3, 7), {"over": False, "status": "3 of 7 configurations decided"}),
        (SearchProgress(3, 7, 1.5), {"over": False, "status": "3 of 7 configurations decided, best 1.50 s"}),
    ],
)
def test_a_search_tells_how_far_it_is(progress: Any, told: dict[str, Any], callbacks: Any) -> None:
    callbacks.progress = progress
    asked = {"serial": 7, "query": "q", "start": False, "dark": True}
    command = {"serial": 7, "command": "ppsim tune --gpus 8"}
    assert callbacks.by_output["pareto"](asked) == (KEEP, command | told)
    assert callbacks.asked == []
    callbacks.by_output["pareto"](asked | {"start": True})
    assert callbacks.asked == [("start", "ppsim tune --gpus 8", ("read", ("--gpus", "8")))]


def test_a_search_that_is_over_has_its_picture_and_table(callbacks: Any) -> None:
    view: Any = SimpleNamespace(title="gpt2", num_configurations=40, simulated=[1, 2, 3])
    callbacks.progress = SearchProgress(found=view)
    figure, told = callbacks.by_output["pareto"]({"serial": 7, "query": "q", "start": False, "dark": True})
    assert figure == ("pareto", "gpt2", "dark True")
    assert told == {
        "serial": 7, "command": "ppsim tune --gpus 8", "over": True, "table": "table of gpt2",
        "status": "gpt2: 40 configurations, 3 simulated that fit",
    }  # fmt: skip


def test_a_configuration_is_opened_by_the_arguments_of_its_command(callbacks: Any) -> None:
    opened = callbacks.by_output["configuration"]
    shown = "q ['--tp', '2 x']"
    assert opened({"query": "q", "command": "ppsim project --tp '2 x'", "dark": False}) == (
        ("picture", shown, "dark False"), {"told": {"of": shown}},
    )  # fmt: skip
    assert callbacks.asked == [("wait", shown)]


def test_requests_are_answered_in_their_stores_and_not_when_the_page_opens(callbacks: Any) -> None:
    assert [how for _, how in callbacks.wiring] == 3 * [{"prevent_initial_call": True}]
    assert [wires for wires, _ in callbacks.wiring] == [
        (
            ("out", "timelines", "figure"), ("out", "tradeoff", "figure"), ("out", "idle", "figure"),
            ("out", "told", "data"), ("in", "asked", "data"),
        ),
        (("out", "pareto", "figure"), ("out", "search-told", "data"), ("in", "searched", "data")),
        (("out", "configuration", "figure"), ("out", "opened-told", "data"), ("in", "opened", "data")),
    ]  # fmt: skip


def test_the_table_is_a_file_and_an_error_a_sentence(callbacks: Any) -> None:
    flask = pytest.importorskip("flask")
    application = flask.Flask("test")
    with application.test_request_context("/table.csv?q"):
        response = page._table(callbacks.workbench)
        assert (response.status_code, response.mimetype, response.get_data()) == (200, "text/csv", b"csv of q")
        assert response.headers["Content-Disposition"] == "attachment; filename=ppsim-schedules.csv"
    assert callbacks.asked == [("wait", "q")]
    with application.test_request_context("/table.csv?wrong"):
        response = page._table(callbacks.workbench)
        assert (response.status_code, response.mimetype) == (400, "text/plain")
        assert response.get_data() == b"--pp must be\nat least 1: got 0\n"
