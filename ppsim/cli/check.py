"""The command `check`."""

import click

from ppsim.cli.click_options import options_of
from ppsim.cli.common import (
    ReadOptions,
    json_option,
    print_result,
    read_table,
)  # fmt: skip
from ppsim.cli.progress import progress


@click.command()
@click.argument("table", metavar="T.csv")
@options_of(ReadOptions)
@json_option
def check(table: str, as_json: bool, **read: int | None) -> None:
    """Check that a schedule table can run: complete, in order, and free of deadlock for each P2P serialization.

    \b
      ppsim check T.csv
      ppsim check schedules/zbv_pp4_v2_m8.csv
      ppsim check T.csv --json

    The exit code is 0 if the table runs on an ideal network, 1 for a deadlock, and 2 for a malformed, incomplete or
    misordered table. The matrix at the end lists the P2P serializations (--channel of `ppsim simulate`) that would
    deadlock.
    """
    from dataclasses import asdict

    from ppsim.schedule.check import check as check_table

    with progress(f"checking {table}, on every kind of channel"):
        report = check_table(read_table(table, **read))
    print_result(report, as_json, content=lambda: asdict(report), name=table)
    if report.errors:
        raise click.exceptions.Exit(1 if report.errors[0].rule == "deadlock" else 2)
