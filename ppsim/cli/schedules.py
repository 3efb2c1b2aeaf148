"""The command `schedules`."""

import click

from ppsim.cli.common import (
    json_option,
    print_json,
)  # fmt: skip
from ppsim.cli.completion import completing


@click.command()
@click.argument("name", required=False, shell_complete=completing("schedule"))
@json_option
def schedules(name: str | None, as_json: bool) -> None:
    """List the schedules, or print one with its constraints, closed-form formulas, source and supported runtimes.

    \b
      ppsim schedules
      ppsim schedules zbv
      ppsim schedules --json
    """
    from dataclasses import asdict

    from ppsim.catalog.build import every_schedule, find
    from ppsim.results import schedules as show
    from ppsim.trainers.write_schedule import refusals, runtime_facts

    entries = [find(name)] if name else list(every_schedule().values())
    if as_json:
        objects = [
            {key: value for key, value in asdict(entry).items() if key != "build"}
            | {"options": entry.options, "refused_by": {k: v for k, v in refusals(entry).items() if v is not None}}
            for entry in entries
        ]
        print_json(objects[0] if name else {"schedules": objects})
    elif name:
        show.print_entry(entries[0], runtime_facts(entries[0]))
    else:
        show.print_catalog(entries)
