"""Options and output functions shared by the commands."""

import os
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar, get_args

import click

from ppsim.base.display import show
from ppsim.base.errors import CannotRun, ConfigError
from ppsim.base.option_declarations import Option, flag_of, require_least
from ppsim.cli import BEGAN_S, WORDS
from ppsim.results.progress import progress
from ppsim.trainers import ConfigTarget

if TYPE_CHECKING:
    from ppsim.api.output_formats import SearchFileContent, TimelineFileContent
    from ppsim.projection.scaling import Scaling
    from ppsim.schedule.table import Schedule

Made = TypeVar("Made", "TimelineFileContent", "SearchFileContent")
_Command = TypeVar("_Command", bound=Callable[..., Any])
_LOOK = ("with_rows", "with_timeline")


def print_message(message: str) -> None:
    click.echo(message, err=True)


def print_json(value: Any) -> None:
    from ppsim.base.files import to_json

    click.echo(to_json(value), nl=False)


def print_result(shown: Any, as_json: bool, *, content: Callable[[], Any] | None = None, **options: Any) -> None:
    if as_json:
        print_json(content() if content else shown.to_json())
    else:
        show(shown, **options)


# fmt: off
class ReadOptions(TypedDict, total=False):
    """Properties of a table that the CSV format does not contain."""
    replicas: Annotated[int | None, Option(
        "Number of model replicas in a CSV table (2 in dualpipe and chimera). [default: 1]",
        metavar="N", section="input",
    )]
    slices: Annotated[int | None, Option(
        "Slices per microbatch (seq1f1b), for a CSV table whose first line does not contain them. [default: 1]",
        metavar="N", section="input",
    )]
# fmt: on


def read_table(path: str, *, replicas: int | None = None, slices: int | None = None) -> "Schedule":
    """Read a table: JSON if the suffix is .json, else torch's CSV, which does not contain replicas and slices."""
    for option, value in (("--replicas", replicas), ("--slices", slices)):
        if value is not None and path.endswith(".json"):
            raise ConfigError(f"{path} says itself what it holds; {option} is for a CSV, which cannot")
        require_least(option[2:], value)
    if path.endswith(".json"):
        from ppsim.trainers.table_json import read_table as read_json_table

        return read_json_table(path)
    from ppsim.schedule.grammar import read_schedule

    return read_schedule(path, num_replicas=replicas or 1, num_slices=slices)


def check_outputs(
    outputs: Sequence[str],
    suffixes: Iterable[str] | None = None,
    *,
    beside: str | None = None,
    inputs: Iterable[str] = (),
) -> None:
    """Raise `ConfigError`, before any work, for an output file that is not writable, named twice, or also an input.

    `beside` is another file that is written. Inputs are `inputs` and all existing files on the command line.
    """
    from ppsim.base.files import require_writable
    from ppsim.base.write_outputs import suffix_of

    if suffixes is not None:
        for path in outputs:
            suffix_of(path, suffixes)
    written = [*outputs, *([beside] if beside else [])]
    params = click.get_current_context().params
    given = [value for name, value in params.items() if not name.startswith("title")]
    texts = [one for value in given for one in (value if isinstance(value, tuple) else [value])]
    named = Counter(text for text in texts if isinstance(text, str)) - Counter(written)
    read = {_identity(path) for path in (*named, *inputs) if os.path.isfile(path)}
    for path in written:
        require_writable(path)
        if _identity(path) in read:
            raise ConfigError(f"cannot write {path}: this command reads it; give another name")
    if len(set(map(_identity, written))) < len(written):
        raise ConfigError(f"cannot write {' and '.join(written)}: two of them are one file")


def _identity(path: str) -> tuple[int, int] | str:
    """Links, relative and absolute paths of a file have the same identity."""
    real = os.path.realpath(path)
    if not os.path.exists(real):
        return real
    stat = os.stat(real)
    return stat.st_dev, stat.st_ino


def parse_numbers(name: str, text: str | None) -> list[int] | None:
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{flag_of(name)} is '{text}': give numbers as 1,2,4") from None


def parse_names(name: str, text: str | None, choices: Sequence[str] | None = None) -> list[str] | None:
    if text is None:
        return None
    names = [part.strip() for part in text.split(",")]
    if choices and (unknown := [part for part in names if part not in choices]):
        raise ConfigError(f"--{name} is '{text}': {unknown[0]} is none of {', '.join(choices)}")
    return names


def with_command_line(what: Made) -> Made:
    """Add the typed command line, which HTML pages show."""
    typed: list[str] = click.get_current_context().meta.get(WORDS, [])
    return replace(what, command=shlex.join(["ppsim", *typed]) if typed else "")


def time_left_s(limit_s: float) -> float:
    """Return the limit minus 1.5 × the time since the start of the command, which leaves time for output."""
    started_s = time.monotonic() - click.get_current_context().meta.get(BEGAN_S, time.monotonic())
    return limit_s if limit_s < 0 else max(0.0, limit_s - 1.5 * started_s)


def output_option_of(formats: str) -> Callable[[_Command], _Command]:
    said = f"Output file, with the format by suffix: {formats}. May be repeated."
    return click.option("-o", "--output", "outputs", multiple=True, metavar="PATH", help=said)


output_option = output_option_of(
    ".html timeline, .svg/.pdf/.png figure, .json report with timeline, .csv schedule table, "
    ".md numbers, .json.gz Perfetto trace"
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object only (times in seconds, sizes in bytes)."
)
rows_option = click.option(
    "--rows", "with_rows", is_flag=True,
    help="Print every rank or stage. [default: all up to 16; of more, the first, the last, the extremes and some "
         "others]",
)  # fmt: skip
full_option = click.option("--full", is_flag=True, help="Print all tables, not only the summary.")
timeline_option = click.option(
    "--timeline/--no-timeline", "with_timeline", default=None,
    help="Draw a text timeline of the step with one row per rank. If microbatch numbers need more columns, the "
         "step is split into strips, at most 48 lines in total. [default: on if 16 lines are enough]",
)  # fmt: skip


def step_options(command: _Command) -> _Command:
    for option in (output_option, json_option, rows_option, timeline_option):
        command = option(command)
    return command


def drawing_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options.pop(name) for name in _LOOK}


to_config_option = click.option(
    "--to-config", type=click.Choice(get_args(ConfigTarget)), metavar="TRAINER[@RELEASE]",
    help="Also print the plan as a complete configuration, which --run-config can read: megatron, megatron@0.16, "
         "primus, torchtitan (0.3), torchtitan@0.2, torchtitan@main or automodel. If several plans are compared, "
         "the fastest is printed. Settings without an option in the trainer become comments. Other arguments of a "
         "Megatron-LM --run-config stay.",
)  # fmt: skip


def trainer_lines(result: Any, trainer: ConfigTarget | None, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the key `to_config` of --json, if requested; `given` are the options as typed, which name files.

    The key is `cannot_run`, with the reason, if the requested trainer, or else the stack's, refuses the plan.
    """
    from ppsim.api.to_config import refusal_of, trainer_options

    if trainer is None:
        return {"cannot_run": reason} if (reason := refusal_of(result)) else {}
    try:
        return {"to_config": trainer_options(result, trainer, given=given)}
    except CannotRun as error:
        return {"cannot_run": str(error)}


def print_trainer_lines(lines: Mapping[str, str], trainer: ConfigTarget | None, *, as_json: bool) -> None:
    """Raises `CannotRun` if the requested trainer refuses the plan."""
    if trainer and (reason := lines.get("cannot_run")):
        raise CannotRun(reason)
    if lines and not as_json:
        click.echo(f"\n# {trainer}\n{lines['to_config']}" if trainer else f"\n{lines['cannot_run']}")


def run_config_of(options: dict[str, Any]) -> Any:
    """Replace the options that name and read a configuration; return the one of --recipe or --run-config.

    Prints how the configuration is understood together with the other options.
    """
    from ppsim.api.trainer_configuration import read_source

    config = read_source(options)
    options |= dict.fromkeys(("recipe", "set", "launch", "ignore"))
    if config is None:
        return None
    from ppsim.results.catalogues import run_config_lines

    config = config.beside(options)
    for line in run_config_lines(config):
        print_message(line)
    return config


def scaling_of(option: str, settings: Sequence[Any], row_of: Callable[[Any], dict[str, Any]]) -> "Scaling":
    """Return a row for each value of an option, with a bar meanwhile."""
    from ppsim.projection.scaling import Scaling

    number = count()
    with progress("projecting", total=len(settings), unit="values") as bar:

        def counted(setting: Any) -> dict[str, Any]:
            bar.update(f"projecting {flag_of(option)} {setting}", done=next(number))
            return row_of(setting)

        return Scaling.of(option, settings, counted)


def has_layout(options: Mapping[str, Any]) -> bool:
    return any(options[name] is not None for name in ("pp", "run_config", "recipe", "run"))
