"""The command `check`: check whether a table runs, and on which channels."""

import click

from ppsim.cli.click_options import options_of
from ppsim.cli.common import (
    ReadOptions,
    json_option,
    read_table,
    tell,
)  # fmt: skip
from ppsim.cli.progress import progress


@click.command()
@click.argument("table", metavar="T.csv")
@options_of(ReadOptions)
@json_option
def check(table: str, as_json: bool, **read: int | None) -> None:
    """Tell whether a table runs: complete, ordered, free of deadlock, under each channel policy.

    \b
      ppsim check T.csv
      ppsim check schedules/zbv_pp4_v2_m8.csv
      ppsim check T.csv --json

    Exit 0 if it runs on an ideal network, 1 for a deadlock, 2 for a malformed, incomplete or misordered table.
    The matrix at the end tells where channels that share transfers would hang it.
    """
    from dataclasses import asdict

    from ppsim.schedule.check import check as check_table

    with progress(f"checking {table}, on every kind of channel"):
        report = check_table(read_table(table, **read))
    tell(report, as_json, content=lambda: asdict(report), name=table)
    if report.errors:
        raise click.exceptions.Exit(1 if report.errors[0].rule == "deadlock" else 2)
