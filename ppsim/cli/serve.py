"""The command `serve`."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from ppsim.cli.click_options import options_in
from ppsim.cli.common import print_message


@click.command()
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS OF PROJECT]")
@click.option(
    "--port",
    type=int,
    metavar="PORT",
    default=8050,
    show_default=True,
    help="Port. If it is in use, any free port.",
)
@click.option("--open/--no-open", "opens", default=False, help="Open the page in a browser. [default: off]")
def serve(options: tuple[str, ...], port: int, opens: bool) -> None:
    """Serve an interactive page in a browser: plan options as sliders, and the projected schedules.

    \b
      ppsim serve
      ppsim serve -- --pp 8 --num-microbatches 64 --schedule 1f1b,zb-h1,zbv
      ppsim serve --port 9000 -- --model llama3-70b --tp 8 --pp 8

    Options of `ppsim project` after -- are the initial values of the page. The page also has a search (`ppsim
    tune`), and shows the command line of each result.

    The server listens on this machine only (127.0.0.1). Requests need the token in the address that it prints. Over
    ssh: ssh -L 8050:localhost:8050 HOST. Ctrl-C stops the server. Requires the extra `app`.
    """
    from ppsim.app.server import start_server

    query = ""
    if options:
        from ppsim.app.state import PageState

        query = PageState().showing(list(options)).query
    server = start_server(_read_project, _read_tune, port=port, query=query)
    if port and server.server.port != port:
        print_message(f"port {port} is taken: another was free")
    with suppress(KeyboardInterrupt), server:
        click.echo(server.url)
        print_message(
            "listening on this machine alone; the address holds the token that every request needs. Ctrl-C ends it"
        )
        if opens:
            click.launch(server.url)
        server.server.serve_forever()
    print_message("\nended")


def _read_project(arguments: Sequence[str]) -> dict[str, Any]:
    from ppsim.cli.project import project
    from ppsim.projection.options import PlanOptions

    return options_in(project, PlanOptions, arguments)


def _read_tune(arguments: Sequence[str]) -> dict[str, Any]:
    from ppsim.cli.tune import tune
    from ppsim.tuning.options import TuneOptions

    return options_in(tune, TuneOptions, arguments)
