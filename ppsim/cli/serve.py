"""The command `serve`: interactive page in a browser."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from ppsim.cli.click_options import options_in
from ppsim.cli.common import say


@click.command()
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS OF PROJECT]")
@click.option(
    "--port",
    type=int,
    metavar="PORT",
    default=8050,
    show_default=True,
    help="The port; any that is free where it is taken.",
)
@click.option("--open/--no-open", "opens", default=False, help="Open the address in a browser.")
def serve(options: tuple[str, ...], port: int, opens: bool) -> None:
    """Show projections in a browser: sliders on the left, what they do to schedules on the right.

    \b
      ppsim serve
      ppsim serve -- --pp 8 --num-microbatches 64 --schedule 1f1b,zb-h1,zbv
      ppsim serve --port 9000 -- --model llama3-70b --tp 8 --pp 8

    What follows -- are options of `ppsim project`, with which the page begins. The page has a search (`ppsim tune`)
    too, and shows the command line of all it shows.

    Listens on this machine alone (127.0.0.1), and answers only to the address that it prints: that holds a token,
    which every request needs. Through ssh: ssh -L 8050:localhost:8050 HOST. Ctrl-C ends it. Needs the extra `app`.
    """
    from ppsim.app.server import served

    query = ""
    if options:
        from ppsim.app.state import State

        query = State().showing(list(options)).query
    made = served(_read_project, _read_tune, port=port, query=query)
    if port and made.server.port != port:
        say(f"port {port} is taken: another was free")
    with suppress(KeyboardInterrupt), made:
        click.echo(made.url)
        say("listening on this machine alone; the address holds the token that every request needs. Ctrl-C ends it")
        if opens:
            click.launch(made.url)
        made.server.serve_forever()
    say("\nended")


def _read_project(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the plan options in arguments of `ppsim project`; raises `ConfigError` with click's sentence."""
    from ppsim.cli.project import project
    from ppsim.projection.options import PlanOptions

    return options_in(project, PlanOptions, arguments)


def _read_tune(arguments: Sequence[str]) -> dict[str, Any]:
    from ppsim.cli.tune import tune
    from ppsim.tuning.options import TuneOptions

    return options_in(tune, TuneOptions, arguments)
