"""The command line: one thin function a command.

Only click, the standard library and declarations of options are imported at the top of this package's files. Each
command is imported when it is asked for, and imports what it needs when it runs.
"""

import errno
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from ppsim.base.errors import PpsimError
from ppsim.base.lean import start_lean
from ppsim.base.version import __version__

COMMANDS = {  # in which file each is, and what `ppsim --help` says of it
    "project": ("plans", "Project a step: time, throughput, memory per rank, and why."),
    "tune": ("tune", "Find the best layout and schedule for a model on so many GPUs."),
    "serve": ("serve", "Show projections in a browser, with sliders."),
    "schedules": ("tables", "List the schedules, or print one in full."),
    "build": ("build", "Build a schedule table: torch's compute-only CSV."),
    "check": ("tables", "Tell whether a table runs, and on which channels."),
    "simulate": ("tables", "Simulate any table at any costs."),
    "export": ("tables", "Write a checked table for a runtime."),
    "profile": ("profile", "Measure F, B, I and W of a layer on this device."),
    "models": ("models", "List the models, or count one's parameters and FLOPs."),
    "clusters": ("clusters", "List clusters, or print one with units and sources."),
    "train": ("runs", "Execute a table for real with torch, and measure it."),
    "read": ("runs", "Read a run of any trainer: its timeline, and what is known of it."),
    "explain": ("runs", "Say why a measured step takes as long as it does."),
    "compare": ("runs", "Set a measured step beside a projected one."),
    "calibrate": ("calibrate", "Fit overheads to measured runs, for projections to take."),
    "fit": ("fit", "Fit one's own cluster to measured steps, for --cluster."),
    "validate": ("validate", "Signed errors against published runs."),
    "warm-up": ("warm_up", "Compile every kernel now, for an image or a cluster's workers."),
    "figure": ("figure", "Make a figure for a paper: timeline, memory, bubble, pareto, accuracy."),
}

_RUN_TORCH = ("train", "profile")  # whose tensors are not to wait for a late collection of garbage

WORDS = "ppsim.words"  # in a context's meta
HELP_OPTIONS = ("-h", "--help", "--help-all")
_HELP_ASKED = "ppsim.help_asked"


class Commands(click.Group):
    """A group that meets an unknown command with close matches, and keeps what was typed."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Return the context of a command line, with its words: parsing takes them from `args`."""
        words: list[str] = list(args)
        context = super().make_context(info_name, args, parent, **extra)
        context.meta.setdefault(WORDS, words)
        return context

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse them; a help page whose reader went early (`--help | head`) is fine."""
        ctx.meta[_HELP_ASKED] = ctx.meta.get(_HELP_ASKED) or any(one in HELP_OPTIONS for one in args)
        try:
            return super().parse_args(ctx, args)
        except BrokenPipeError:
            close_output()
            ctx.exit()

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command of the first argument, or fail with those that it may stand for."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from ppsim.base.names import Names

            ctx.fail(Names("command", self.commands).unknown(args[0]))
        return super().resolve_command(ctx, args)


def was_help_asked(ctx: click.Context) -> bool:
    """Return whether an option of a command line asks for help."""
    return bool(ctx.meta.get(_HELP_ASKED))


def close_output() -> None:
    """Let nothing more be written to standard output, where what is still buffered would fail again."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Imported(Mapping[str, click.Command]):
    """The commands by name, each imported when it is asked for, into a process that starts lean."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in _RUN_TORCH:
            start_lean()
        command: click.Command = getattr(import_module(f"ppsim.cli.{COMMANDS[name][0]}"), name.replace("-", "_"))
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Main(Commands):
    """The commands of `COMMANDS`; turns errors into a sentence and an exit code."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a line a command, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            ctx.exit(_INTERRUPTED)
        except BrokenPipeError:  # as in `ppsim project … | head`
            close_output()
            ctx.exit(0 if was_help_asked(ctx) else _PIPE_CLOSED)
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
        close_output()
        return f"cannot write the result: {error.strerror}", 2
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return (
        f"an error that ppsim {__version__} did not foresee ({what}); `ppsim --debug COMMAND …` shows where: "
        "please report it with that to the developers of ppsim",
        _UNFORESEEN,
    )


@click.group(
    cls=_Main,
    commands=_Imported(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
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
