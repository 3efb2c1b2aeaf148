"""The page as a Dash application: figures, and callbacks for changes.

The page's script synchronises form, URL and requests, with one request at a time. While a slider moves, pictures
are quicker to draw.
"""

import shlex
from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from typing import Any

from ppsim.app import pictures
from ppsim.app.background_workers import SearchWorker
from ppsim.app.projector import Projector, Reader
from ppsim.app.state import PageState, field_of
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.units import count, seconds
from ppsim.catalog.build import every_schedule
from ppsim.plot.pareto_page import pareto_plotly

_REST = "<div id=rendered>{%app_entry%}</div>{%config%}{%scripts%}{%renderer%}</body></html>"
_GRAPH = {
    "displaylogo": False, "responsive": True, "showSendToCloud": False,
    "modeBarButtonsToRemove": ["select2d", "lasso2d"],
}  # fmt: skip


_TO_SCRIPT = (
    ("answered", "told", "data"), ("found", "search-told", "data"), ("opened", "opened-told", "data"),
    ("clicked", "pareto", "clickData"), ("chosen", "tradeoff", "clickData"),
)  # fmt: skip
"""Functions of the page's script, each called when a property changes: (function, component, property)."""


def dash_application(workbench: Projector, searches: SearchWorker, read_search: Reader, *, prefix: str) -> Any:
    """Dash renders the figures only; `ppsim.app.server` puts its own HTML (the form) before the figures."""
    import dash

    application = dash.Dash(
        __name__, url_base_pathname=prefix, assets_folder=str(files("ppsim.app") / "assets"), serve_locally=True,
        update_title="", index_string=_REST, eager_loading=False,
    )  # fmt: skip
    application.layout = _layout(dash)
    _add_answers(dash, application, workbench)
    _add_searches(dash, application, workbench, searches, read_search)
    for function, name, prop in _TO_SCRIPT:
        application.clientside_callback(
            dash.ClientsideFunction("ppsim", function), dash.Output("nothing", "data", allow_duplicate=True),
            dash.Input(name, prop), prevent_initial_call=True,
        )  # fmt: skip
    application.server.add_url_rule(f"{prefix}table.csv", "table", partial(_table, workbench))
    return application.server


def _table(workbench: Projector) -> Any:
    from flask import Response, request

    try:
        state = PageState.read(request.query_string.decode())
        workbench.wait(state)
        text = pictures.table_csv(workbench.answer(state))
    except PpsimError as error:
        return Response(f"{error}\n", status=400, mimetype="text/plain")
    named = {"Content-Disposition": "attachment; filename=ppsim-schedules.csv"}
    return Response(text, mimetype="text/csv", headers=named)


def _layout(dash: Any) -> Any:
    """The page's script moves each figure to its place."""
    html, dcc = dash.html, dash.dcc
    empty: dict[str, Any] = {"data": [], "layout": {}}

    def graph(name: str) -> Any:
        return html.Div(dcc.Graph(id=name, figure=empty, config=_GRAPH), id=f"{name}-holder")

    names = ("asked", "told", "searched", "search-told", "opened", "opened-told", "nothing")
    stores = [dcc.Store(id=name) for name in names]
    graphs = [graph(name) for name in ("timelines", "tradeoff", "idle", "pareto", "configuration")]
    return html.Div([*stores, *graphs])


def _add_answers(dash: Any, application: Any, workbench: Projector) -> None:
    keep = dash.no_update

    def answered(asked: Mapping[str, Any]) -> tuple[Any, ...]:
        base = {"serial": asked["serial"], "quick": asked["quick"]}
        try:
            state = PageState.read(asked["query"])
            answer = workbench.answer(state)
        except PpsimError as error:
            return keep, keep, keep, base | field_error(error)
        theme = pictures.theme_of(dark=asked["dark"])
        texts = base | pictures.page_texts(answer, theme=theme)
        if not answer.projections:
            drawn: tuple[Any, ...] = (keep, keep, keep)
        elif asked["quick"]:
            drawn = (pictures.timelines(answer, quick=True, theme=theme), keep, keep)
        else:
            spots, missing = workbench.spots(state)
            workbench.search(state, [*state.schedules, *(every_schedule() if asked["others"] else ())])
            texts |= {"missing": missing, "table": pictures.table_html(spots, state.schedules)}
            drawn = (
                pictures.timelines(answer, quick=False, theme=theme),
                pictures.tradeoff_picture(answer, spots, theme=theme),
                pictures.idle_figure(answer, theme=theme),
            )
        return *drawn, texts

    drawn_in = [dash.Output(name, "figure") for name in ("timelines", "tradeoff", "idle")]
    asked_in = dash.Input("asked", "data")
    application.callback(*drawn_in, dash.Output("told", "data"), asked_in, prevent_initial_call=True)(answered)


def field_error(error: PpsimError) -> dict[str, str]:
    sentence = " ".join(str(error).split())
    return {"error": sentence, "field": field_of(sentence) or ""}


def _add_searches(
    dash: Any, application: Any, workbench: Projector, searches: SearchWorker, read_search: Reader
) -> None:
    keep = dash.no_update

    def searched(asked: Mapping[str, Any]) -> tuple[Any, ...]:
        base: dict[str, Any] = {"serial": asked["serial"]}
        try:
            state = PageState.read(asked["query"])
            command = state.search_command
            if asked["start"]:
                searches.start(command, read_search(state.search_arguments))
        except PpsimError as error:
            return keep, base | field_error(error) | {"over": True}
        progress = searches.progress(command)
        base["command"] = command
        if progress is None:
            return keep, base | {"over": True}
        if progress.failed:
            return keep, base | field_error(ConfigError(progress.failed)) | {"over": True}
        if progress.found is None:
            best = "" if progress.best_s is None else f", best {seconds(progress.best_s)}"
            decided = f"{count(progress.decided)} of {count(progress.total)} configurations decided{best}"
            return keep, base | {"over": False, "status": decided if progress.total else "finding bounds …"}
        view, theme = progress.found, pictures.theme_of(dark=asked["dark"])
        status = f"{view.title}: {view.num_configurations} configurations, {len(view.simulated)} simulated that fit"
        texts = {"over": True, "status": status, "table": pictures.search_table_html(view)}
        return pareto_plotly(view, theme=theme), base | texts

    def opened(asked: Mapping[str, Any]) -> tuple[Any, ...]:
        try:
            state = PageState.read(asked["query"]).showing(shlex.split(asked["command"])[2:])
            workbench.wait(state)
            answer = workbench.answer(state)
        except PpsimError as error:
            return keep, field_error(error)
        theme = pictures.theme_of(dark=asked["dark"])
        picture, texts = pictures.configuration(state, answer, theme=theme)
        return picture, {"told": texts}

    for function, figure, told_in, asked_in in (
        (searched, "pareto", "search-told", "searched"),
        (opened, "configuration", "opened-told", "opened"),
    ):
        application.callback(
            dash.Output(figure, "figure"), dash.Output(told_in, "data"), dash.Input(asked_in, "data"),
            prevent_initial_call=True,
        )(function)  # fmt: skip
