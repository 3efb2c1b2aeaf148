"""The command line: one thin function a command.

Only click and the standard library are imported at the top of this package; each command imports what it needs.
"""

import errno
import os
import sys
from contextlib import suppress
from typing import Any

import click

from ppsim.base.errors import PpsimError
from ppsim.base.version import __version__
from ppsim.cli import plans, runs, tables
from ppsim.cli.build import build
from ppsim.cli.calibrate import calibrate
from ppsim.cli.clusters import clusters
from ppsim.cli.common import Commands
from ppsim.cli.figure import figure
from ppsim.cli.models import models
from ppsim.cli.profile import profile
from ppsim.cli.tune import tune
from ppsim.cli.validate import validate

COMMANDS = (
    plans.project, tune, tables.schedules, build, tables.check, tables.simulate, tables.export,
    profile, models, clusters, runs.train, runs.compare, calibrate, validate, figure,
)  # fmt: skip


class _Main(Commands):
    """Turns errors into a sentence and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            ctx.exit(_INTERRUPTED)
        except BrokenPipeError:  # as in `ppsim project … | head`
            _close_output()
            ctx.exit(_PIPE_CLOSED)
        except Exception as error:
            if ctx.params.get("debug"):
                import traceback

                traceback.print_exc()
            sentence, code = _told(error)
            click.echo(f"ppsim: {sentence}", err=True)
            ctx.exit(code)


_INTERRUPTED, _PIPE_CLOSED = 130, 141  # what a shell says of what ended by the signals of these: 128 + 2, 128 + 13
_UNFORESEEN = 3


def _told(error: Exception) -> tuple[str, int]:
    """A sentence about an error, and the exit code."""
    if isinstance(error, PpsimError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO) and error.filename is None:
        _close_output()
        return f"cannot write the result: {error.strerror}", 2
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return (
        f"an error that ppsim {__version__} did not foresee ({what}); `ppsim --debug COMMAND …` shows where: "
        "please report it with that to the developers of ppsim",
        _UNFORESEEN,
    )


def _close_output() -> None:
    """Let nothing more be written to standard output, where what is still buffered would fail again."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="ppsim %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Project, explain and export pipeline-parallel schedules from measured costs.

    \b
      ppsim project --pp 8 --vpp 2 -o timeline.html      how long, and why
      ppsim project --pp 8 --vpp 2 --schedule all        which schedule is best?
      ppsim build zbv --pp 4 --microbatches 8 -o T.csv   the table that torch runs

    A schedule says in which order each pipeline rank runs the passes of its stages over the microbatches of a step:
    forward (F) and backward (B, or I for inputs and W for weights). ppsim COMMAND --help says more.

    Exit codes: 0 fine; 1 valid but impossible (deadlock, does not fit, a run that failed); 2 wrong usage or file;
    3 an error that ppsim did not foresee.
    """
    del debug  # read by _Main.invoke


for command in COMMANDS:
    main.add_command(command)
