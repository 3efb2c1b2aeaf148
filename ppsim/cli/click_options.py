"""Click options from declarations (`ppsim.base.option_declarations`), and help pages with sections."""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import click

from ppsim.base.errors import ConfigError
from ppsim.base.name_lookup import NUMBER_FORMATS, NameLookup
from ppsim.base.option_declarations import OptionDeclaration, declared_options, options_by_section
from ppsim.cli.common import parse_names, parse_numbers
from ppsim.cli.completion import completing


class SectionedCommand(click.Command):
    """A command that lists its options by section; `sections` maps each title to names of parameters.

    Parameters without a section are listed last, under Output. If there are `common` options, `--help` shows these
    only, each with its first sentence, and `--help-all` shows all. `removed` maps options of earlier versions to
    their replacements, for the error message.
    """

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Sequence[str]],
        common: Sequence[str] = (),
        removed: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sections, self.common, self.removed = sections, common, removed or {}
        if common:
            self.params.append(
                click.Option(
                    ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_help,
                    help="Show every option, in full, and exit.",
                )
            )  # fmt: skip

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in self.removed:
                raise
            sentence = f"{error.option_name} was removed: {self.removed[error.option_name]}"
            raise click.UsageError(sentence, ctx) from None

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        option = super().get_help_option(ctx)
        if option is not None and self.common:
            option.callback = _show_short_help
        return option

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not ctx.meta.get(_SHORT):
            super().format_help(ctx, formatter)
            return
        self.format_usage(ctx, formatter)
        with_examples = "\n\n".join((self.help or "").split("\n\n")[:2])
        short = click.Command(self.name, help=with_examples)
        short.format_help_text(ctx, formatter)
        records = self._records(ctx)
        shown = [name for name in (*self.common, "help_all", "help") if name in records]
        with formatter.section("Common options"):
            formatter.write_dl([_in_short(records[name]) for name in shown], col_max=_FIRST_COLUMN)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = self._records(ctx)
        named = [name for names in self.sections.values() for name in names]
        sections: dict[str, Sequence[str]] = {
            **self.sections,
            "Output": [name for name in records if name not in named],
        }
        for title, names in sections.items():
            with formatter.section(title):
                formatter.write_dl([records[name] for name in names if name in records], col_max=_FIRST_COLUMN)

    def _records(self, ctx: click.Context) -> dict[str, tuple[str, str]]:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        return {str(option.name): record for option in options if (record := option.get_help_record(ctx))}


_FIRST_COLUMN = 28
_SHORT = "ppsim.short_help"


def number_meant(message: str) -> str:
    """Return a correction for click's error message about an invalid number, or "".

    >>> number_meant("'64,128,256' is not a valid integer."), number_meant("'0,5' is not a valid float.")
    (' One number is expected, as 64.', ' One number is expected, as 0.5 or 0.')
    """
    if not (match := re.match(r"'([^']{1,60})' is not a valid (int|float)", message)):
        return ""
    text, kind = match.groups()
    first, *others = _SEPARATOR.split(text.strip(" ()[]"))
    if others and all(re.fullmatch(r"\d+(\.\d+)?", one) for one in (first, *others)):
        as_one = text.replace(",", "" if kind == "int" else ".")
        is_one = re.fullmatch(r"\d{1,3},\d{3}" if kind == "int" else r"\d+,\d+", text)
        return f" One number is expected, as {f'{as_one} or ' if is_one else ''}{first}."
    if kind == "float":
        return " Write it without a unit, as 0.5 or 15e12."
    if thousands := re.fullmatch(r"(\d{1,9})[kK]", text):
        return f" Write {1024 * int(thousands[1])} or {1000 * int(thousands[1])}."
    if with_unit := re.fullmatch(r"(\d+)\s*[A-Za-z]{2,}", text):
        return f" Write it without a unit, as {with_unit[1]}."
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not abs(number) <= _LARGEST:
        return " Write it in digits, as 8."
    return f" Write {' or '.join(dict.fromkeys((str(math.floor(number)), str(math.ceil(number)))))}."


_SEPARATOR = re.compile(r"\s*(?:\.\.+|[^\w\s.]+|\s|(?<=[1-9\s])x|to)\s*")
"""Separator in a list or a range of numbers, as 64,128 or 64-128 or "64 128"."""

_LARGEST = 1e15


def _show_help(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _show_short_help(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta[_SHORT] = value
    _show_help(ctx, param, value)


def _in_short(record: tuple[str, str]) -> tuple[str, str]:
    """Leave out a long list of values, and all but the first part of the help."""
    name, description = record
    if len(name) > _FIRST_COLUMN:
        name = re.split(r"[ /]", name.replace("-o, ", ""))[0]
    return name, re.split(r"(?<=[\w)`])(?:\. |[;:] )", description)[0].rstrip(".") + "."


def command_with(
    declared: type,
    titles: Mapping[str, str],
    *,
    common: Sequence[str] = (),
    removed: Mapping[str, str] | None = None,
    **changed: Mapping[str, Any],
) -> Callable[[Any], Any]:
    """Return a decorator that makes a command of the options in a TypedDict, and of the click options below it.

    `titles` maps section keys of the options to titles on the help page, in order. `changed` maps options to
    parameters of `click.option` that differ on the command line.
    """
    declarations = declared_options(declared)
    sections = options_by_section(declarations.values())
    pages = {title: sections[key] for key, title in titles.items()}

    def decorate(command: Any) -> Any:
        made = click.command(cls=SectionedCommand, sections=pages, common=common, removed=removed)
        return made(options_of(declared, **changed)(command))

    return decorate


def options_of(declared: type, **changed: Mapping[str, Any]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for word in reversed(declared_options(declared).values()):
            command = option_of(word, **changed.get(word.name, {}))(command)
        return command

    return decorate


def options_in(command: click.Command, declared: type, arguments: Sequence[str]) -> dict[str, Any]:
    try:
        with command.make_context(str(command.name), list(arguments)) as context:
            given = context.params
    except click.exceptions.Exit:
        raise ConfigError("--help is for a terminal: leave it out") from None
    except click.ClickException as error:
        raise ConfigError(error.format_message()) from None
    return {name: given.get(name) for name in declared_options(declared)}


def option_of(word: OptionDeclaration, **changed: Any) -> Callable[[Any], Any]:
    said = word.option
    given: dict[str, Any] = {
        "help": said.sentence, "metavar": said.metavar, "required": said.required, "hidden": said.is_hidden,
    }  # fmt: skip
    names = [word.flag]
    if bool in word.kinds:
        names = [f"{word.flag}/--no-{word.flag[2:]}"] if said.has_no else names
        given |= {"is_flag": True, "default": None if said.has_no else said.default}
    else:
        given["type"] = _type_of(word)
    if said.names:
        given["shell_complete"] = completing(said.names)
    if said.shown:
        given |= {"default": said.default, "show_default": True}
    if word.is_mapping:
        given |= {"multiple": True, "callback": partial(_pairs, word.separator)}
    elif word.listed is not None:
        given["callback"] = partial(_several, word.listed)
    if word.also:
        given |= {"cls": AliasedOption, "also": word.also}
    return click.option(*names, word.name, **(given | changed))


class AliasedOption(click.Option):
    """An option with further names (`also`) that help pages, completion and error messages omit."""

    def __init__(self, *args: Any, also: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.also = also

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        for name in self.also:
            if self.is_bool_flag:
                parser.add_option(self, [name], dest=name, action="store_const", const=True)
                parser.add_option(self, [f"--no-{name[2:]}"], dest=name, action="store_const", const=False)
            else:
                parser.add_option(self, [name], dest=name, action="store", nargs=1)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        given = {
            name: opts[key]
            for name, key in ((self.opts[0], self.name), *((one, one) for one in self.also))
            if key in opts
        }
        if len(set(given.values())) > 1:
            raise click.UsageError(
                " and ".join(f"{name} {value}" for name, value in given.items())
                + f" are one option with different values: give {self.opts[0]} only",
                ctx,
            )
        return super().consume_value(ctx, {**opts, **{str(self.name): value for value in given.values()}})


class Choice(click.Choice[str]):
    """A choice without regard to case and dashes, with short names such as bf16 for bfloat16."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        also = {short: name for short, name in NUMBER_FORMATS.items() if name in self.choices}
        return super().convert(NameLookup("", self.choices, also=also).find(value) or value, param, ctx)


class Several(tuple[Any, ...]):
    """Several values of an option that takes one."""


class OneOrSeveral(click.ParamType):  # type: ignore[type-arg]
    """One value, or several with commas, as `Several`."""

    def __init__(self, single: Any) -> None:
        self.single, self.name = single, single.name

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        return self.single.shell_complete(ctx, param, incomplete)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or "," not in value or os.path.exists(value):
            return self.single.convert(value, param, ctx)
        return Several(self.single.convert(part.strip(), param, ctx) for part in value.split(","))


def ranges_of(declared: type) -> dict[str, dict[str, Any]]:
    """Return parameters with which options that take a number or a name accept several."""
    return {
        word.name: {"type": OneOrSeveral(click.types.convert_type(_type_of(word)))}
        for word in declared_options(declared).values()
        if word.name in ("model", "cluster", "recipe", "stack")
        or (str not in word.kinds and {int, float} & {*word.kinds})
        or (word.choices and bool not in word.kinds)
    }


def _type_of(word: OptionDeclaration) -> Any:
    if word.listed is not None:
        return str
    if choices := word.choices:
        is_number = isinstance(choices[0], int)
        return click.IntRange(min(choices), max(choices)) if is_number else Choice(choices)
    if int in word.kinds and str not in word.kinds:
        return int if word.option.least is None else click.IntRange(word.option.least)
    return float if float in word.kinds and str not in word.kinds else str


def _several(kind: Any, ctx: click.Context, param: click.Parameter, value: str | None) -> list[Any] | None:
    name = str(param.name)
    return parse_numbers(name, value) if kind is int else parse_names(name, value, get_args(kind))


def _pairs(
    separator: str, ctx: click.Context, param: click.Parameter, value: Sequence[str]
) -> dict[Any, Any] | None:
    """Arguments are written as `3:1.2`, numbers, or as `TP=4`, texts."""
    pairs: dict[Any, Any] = {}
    for text in value:
        key, sign, content = text.partition(separator)
        try:
            pairs |= {key: content} if separator == "=" and key and sign else {int(key): float(content)}
        except ValueError:
            example = "TP=4" if separator == "=" else "3:1.2"
            raise ConfigError(f"{param.opts[0]} is '{text}': write it as {param.metavar}, as {example}") from None
    return pairs or None
