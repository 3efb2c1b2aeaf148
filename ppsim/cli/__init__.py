"""The command line: one thin function per command.

The modules of this package import only click, the standard library and declarations of options at the top. A
command imports its dependencies when it runs.
"""

import errno
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

import click

from ppsim.base.errors import PpsimError, unexpected_error
from ppsim.base.help_front_page import ABOUT, COMMANDS, front_page
from ppsim.base.process_startup import reduce_startup
from ppsim.base.version import __version__

_RUN_TORCH = ("train", "profile")  # without `reduce_startup`, whose late garbage collection would keep tensors

WORDS, BEGAN_S = "ppsim.words", "ppsim.began_s"  # keys in a context's meta: the words typed, and the start time
HELP_OPTIONS = ("-h", "--help", "--help-all")
_HELP_ASKED = "ppsim.help_asked"


class Commands(click.Group):
    """Suggests close matches for an unknown command, and stores the words typed and the start time."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The words are copied, because parsing removes them from `args`."""
        arguments, began_s = list(args), time.monotonic()
        context = super().make_context(info_name, args, parent, **extra)
        context.meta.setdefault(WORDS, arguments)
        context.meta.setdefault(BEGAN_S, began_s)
        return context

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A help page whose reader closed the pipe (`--help | head`) is not an error."""
        ctx.meta[_HELP_ASKED] = ctx.meta.get(_HELP_ASKED) or any(argument in HELP_OPTIONS for argument in args)
        try:
            return super().parse_args(ctx, args)
        except BrokenPipeError:
            close_output()
            ctx.exit()
        except OSError as error:
            _fail(ctx, error)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from ppsim.base.name_lookup import NameLookup

            ctx.fail(NameLookup("command", self.commands).unknown(args[0]))
        return super().resolve_command(ctx, args)


def was_help_asked(ctx: click.Context) -> bool:
    return bool(ctx.meta.get(_HELP_ASKED))


def close_output() -> None:
    """Flushing the rest of the buffer would fail again, so standard output is redirected to `os.devnull`."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Imported(Mapping[str, click.Command]):
    """The commands by name, each imported on access, with the settings for a fast start."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in _RUN_TORCH:
            reduce_startup()
        command: click.Command = getattr(import_module(f"ppsim.cli.{COMMANDS[name][0]}"), name.replace("-", "_"))
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Main(Commands):
    """The group of all `COMMANDS`; turns errors into a sentence and an exit code."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the page that `python -m ppsim --help` shows without click, and without importing any command."""
        formatter.write(front_page(formatter.width))

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(_INTERRUPTED) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.BadParameter as error:
            from ppsim.cli.click_options import number_meant

            if not (hint := number_meant(error.message)):
                raise
            raise click.BadParameter(error.message + hint, error.ctx, error.param) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            ctx.exit(_INTERRUPTED)
        except BrokenPipeError:  # for example `ppsim project … | head`
            close_output()
            ctx.exit(0 if was_help_asked(ctx) else _PIPE_CLOSED)
        except Exception as error:
            if ctx.params.get("debug"):
                import traceback

                traceback.print_exc()
            if not isinstance(error, PpsimError) and _came_of_an_interruption(error):
                ctx.exit(_INTERRUPTED)
            _fail(ctx, error)


def _came_of_an_interruption(error: BaseException | None) -> bool:
    """Ctrl-C may interrupt an import, or come while a pool is being closed."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _fail(ctx: click.Context, error: Exception) -> NoReturn:
    sentence, code = _told(error)
    click.echo(f"ppsim: {sentence}", err=True)
    ctx.exit(code)


_INTERRUPTED, _PIPE_CLOSED = 130, 141  # a shell's exit codes for SIGINT and SIGPIPE: 128 + 2, 128 + 13
_UNFORESEEN = 3


def _told(error: Exception) -> tuple[str, int]:
    if isinstance(error, PpsimError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO) and error.filename is None:
        close_output()
        return f"cannot write the result: {error.strerror}", 2
    return (
        f"{unexpected_error(error)}: "
        "please report it to the developers of ppsim, with the traceback of `ppsim --debug COMMAND …`",
        _UNFORESEEN,
    )


@click.group(
    cls=_Main,
    commands=_Imported(),
    help=ABOUT,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="ppsim %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Run the command that is named; `ABOUT` says what there is."""
    del debug  # read by _Main.invoke
