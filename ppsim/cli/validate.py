"""The command `validate`."""

import json

import click

from ppsim.api.output_formats import VALIDATION
from ppsim.base.errors import ConfigError
from ppsim.base.write_outputs import write
from ppsim.cli.common import check_outputs, full_option, json_option, output_option_of, print_message, print_result
from ppsim.results.progress import progress


@click.command()
@click.argument("name", required=False, metavar="[SET|FILE]")
@json_option
@full_option
@output_option_of(".json as --json, .csv one line per row")
@click.option("--rows", "with_rows", is_flag=True, help="Also print every row. [default: on if a SET is given]")
@click.option(
    "--commands",
    "with_commands",
    is_flag=True,
    help="Print only the `ppsim project` command of every row.",
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the tables of docs/results/published_runs.md.")
@click.option(
    "--fit", "is_fit", is_flag=True,
    help="Refit the constants of the set's cluster to its rows marked fit, and print them next to those in use.",
)  # fmt: skip
@click.option(
    "--fit-on", metavar="fit|one|one-a-model|N,N-N",
    help="Fit the cluster to some rows first, as `ppsim fit` does, and print the errors of the others before and "
         "after: rows marked fit (fit), the run with the fewest GPUs per dtype (one), also per model "
         "(one-a-model), or row numbers.",
)  # fmt: skip
@click.option(
    "--leave-source-out", "is_source_left_out", is_flag=True,
    help="Project each source of published runs without the constants and the interval width that it determined: "
         "errors and coverage per class of jobs. [default: off]",
)  # fmt: skip
def validate(
    name: str | None,
    as_json: bool,
    outputs: tuple[str, ...],
    with_commands: bool,
    as_markdown: bool,
    is_fit: bool,
    fit_on: str | None,
    is_source_left_out: bool,
    **look: bool,
) -> None:
    """Compare projections with published or your own measurements: signed errors, also of a constant MFU and other
    tools.

    \b
      ppsim validate                            all sets, one line each
      ppsim validate zero-bubble -o rows.csv    every row of one set
      ppsim validate runs.csv --fit-on 1        your own rows, fitted to the first

    A row has options of `ppsim project` and a measured value. Your own FILE (.csv) has the same columns. Errors are
    projected / measured - 1 of time or memory, so negative errors are too optimistic. The constants of a cluster
    are fitted to the rows marked fit, and the other rows test them.
    """
    from itertools import count

    from ppsim.api.validate import refit_cluster, source_errors
    from ppsim.api.validate import validate as validated
    from ppsim.results import validation as show_validation
    from ppsim.validation.published_runs import case_sets, cases_of

    if sum((as_json, as_markdown, is_fit, with_commands)) > 1:
        raise ConfigError("--json, --markdown, --commands and --fit are four kinds of output: give one of them")
    if fit_on is not None:
        if as_markdown or is_fit or with_commands or outputs:
            raise ConfigError("--fit-on prints rows before and after: leave out all but SET, --json and --rows")
        with progress("fitting") as bar:
            print_result(validated(name, fit_on=fit_on, announce=lambda one: bar.update(f"fitting {one}")), as_json)
        return
    if is_source_left_out:
        if name is not None or as_markdown or is_fit or with_commands or outputs:
            raise ConfigError("--leave-source-out is for all sets: leave out all but --json")
        with progress("projecting", unit="sets") as bar:
            sources = source_errors(announce=lambda one: bar.update(f"projecting {one}"))
        if as_json:
            click.echo(json.dumps({"classes": [source.to_json() for source in sources]}, indent=1))
        else:
            show_validation.print_source_errors(sources)
        return
    if outputs and (is_fit or with_commands):
        raise ConfigError(f"-o writes a comparison; {'--fit' if is_fit else '--commands'} prints")
    check_outputs(outputs, VALIDATION)
    names = [name] if name else list(case_sets())
    if with_commands:
        for one in names:
            click.echo("\n".join([*(f"# {one}" for _ in names[1:2]), *(case.command for case in cases_of(one))]))
        return
    if is_fit:
        with progress("fitting"):
            show_validation.print_fits([refit_cluster(one) for one in _fitted_clusters(names)])
        return
    with progress("projecting", total=len(names), unit="sets") as bar:
        number = count()
        report = validated(name, announce=lambda one: bar.update(f"projecting {one}", done=next(number)))
    write(outputs, VALIDATION, report.to_json()["sets"], announce=print_message)
    if as_markdown:
        click.echo(show_validation.markdown(report.sets), nl=False)
    else:
        print_result(report, as_json, full=look["full"], with_rows=look["with_rows"] or None)


def _fitted_clusters(names: list[str]) -> list[str]:
    from ppsim.machine.cluster_files import load_cluster
    from ppsim.validation.published_runs import cases_of

    clusters = dict.fromkeys(case.settings.get("cluster") for name in names for case in cases_of(name))
    fitted = [cluster for cluster in clusters if cluster and load_cluster(cluster).constants.fitted_on]
    if not fitted:
        raise ConfigError(f"set '{names[0]}' has no cluster with constants that were fitted on a set")
    return fitted
