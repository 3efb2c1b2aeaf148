"""Help that a newcomer finds an option in: long lists of options are cut into sections."""

from collections.abc import Mapping, Sequence
from typing import Any

import click


class SectionedCommand(click.Command):
    """A command that lists its options by section; `sections` has the names of the parameters under each title.

    Parameters that no section names are in the last one, Output.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a definition list a section, all with their second columns in one line."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {str(option.name): record for option in options if (record := option.get_help_record(ctx))}
        named = [name for names in self.sections.values() for name in names]
        sections: dict[str, Sequence[str]] = {
            **self.sections,
            "Output": [name for name in records if name not in named],
        }
        for title, names in sections.items():
            with formatter.section(title):
                formatter.write_dl([records[name] for name in names], col_max=_FIRST_COLUMN)


_FIRST_COLUMN = 28
