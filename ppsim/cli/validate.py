"""The `validate` command."""

import click

from ppsim.api.suffixes import VALIDATION
from ppsim.base.errors import ConfigError
from ppsim.base.outputs import write
from ppsim.cli.common import check_outputs, json_option, print_json, say
from ppsim.cli.progress import progress


@click.command()
@click.argument("name", required=False, metavar="[SET]")
@json_option
@click.option(
    "-o", "--output", "outputs", multiple=True, metavar="PATH",
    help="Write a file; the suffix decides: .svg/.pdf/.png projected against measured, .json what --json prints, "
         ".csv a line a row. May be repeated.",
)  # fmt: skip
@click.option("--rows", "with_rows", is_flag=True, help="Print every row too. Default: where a SET is given.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the section of docs/accuracy.md.")
@click.option(
    "--fit", "is_fit", is_flag=True,
    help="Find the constants of the set's class of machines again from its fit rows, beside those in use.",
)  # fmt: skip
def validate(
    name: str | None, as_json: bool, outputs: tuple[str, ...], with_rows: bool, as_markdown: bool, is_fit: bool
) -> None:
    """Compare projections with published runs: signed errors, beside a constant MFU and other tools.

    \b
      ppsim validate                            all sets, a line each
      ppsim validate zero-bubble -o rows.csv    every row of one
      ppsim validate mlperf-405b --fit          where its constants come from

    Errors are predicted / measured - 1 of time (s) or memory (bytes): negative is optimistic. A class of machines
    has one set of constants, fitted on rows marked fit; the others judge. Nothing is tuned for a configuration.
    """
    from itertools import count

    from ppsim.printing import validation as show_validation
    from ppsim.validation.cases import case_sets, require_set
    from ppsim.validation.fit import fit_machine
    from ppsim.validation.validated import validate as validated

    if sum((as_json, as_markdown, is_fit)) > 1:
        raise ConfigError("--json, --markdown and --fit are three kinds of output: give one of them")
    if is_fit and outputs:
        raise ConfigError("-o writes a comparison; --fit prints constants")
    check_outputs(outputs, VALIDATION)
    names = [name] if name else list(case_sets())
    told = [require_set(one) for one in names]
    if is_fit:
        classes = dict.fromkeys(one.machine for one in told if one.machine)
        if not classes:
            raise ConfigError(f"set '{name}' has no class of machines with constants of its own")
        with progress("fitting"):
            show_validation.print_fits([fit_machine(one) for one in classes])
        return
    with progress("projecting", total=len(names), unit="sets") as bar:
        number = count()
        found = validated(name, announce=lambda one: bar.update(f"projecting {one}", done=next(number)))
    write(outputs, VALIDATION, found.to_json()["sets"], announce=say)
    if as_json:
        print_json(found.to_json())
    elif as_markdown:
        click.echo(show_validation.markdown(found.sets), nl=False)
    else:
        show_validation.print_validations(found, with_rows=with_rows or None)
