"""What a shell completes: names that there are, several behind commas, and files wherever nothing else is known.

Click's own completion (`_PPSIM_COMPLETE=bash_source ppsim`) has commands, options and choices. Nothing is imported
here but what click needs; the names are when they are asked for.
"""

from collections.abc import Callable, Iterable
from functools import partial

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from ppsim.base.words import NamesOf

_BESIDE = {"all": "every schedule, beside each other", "auto": "the best table that a search finds"}


def complete_names(
    kind: NamesOf, ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the names that begin as what was typed, without regard to capitals; the last one behind commas."""
    before, comma, begun = incomplete.rpartition(",")
    taken = before.split(",")
    found = [(name, told) for name, told in _names_of(kind, ctx.info_name) if name not in taken]
    return [
        CompletionItem(before + comma + name, help=told) for name, told in found if name.startswith(begun.lower())
    ]


def _names_of(kind: NamesOf, command: str | None) -> Iterable[tuple[str, str]]:
    """Names and what each is, "" where that takes long to say."""
    if kind == "schedule":
        from ppsim.catalog.build import every_schedule

        known = [(entry.name, entry.title) for entry in every_schedule().values()]
        return known + [(name, told) for name, told in _BESIDE.items() if (name, command) in _MORE]
    if kind == "model":
        from ppsim.model.names import NAMES

        return [(name, "") for name in NAMES]
    if kind == "cluster":
        from ppsim.machine.files import packaged_clusters

        return [(name, "") for name in packaged_clusters()]
    if kind == "recipe":
        from ppsim.trainers.recipe_table import recipes

        return [(name, "") for name in dict.fromkeys(one.base for one in recipes())]
    from ppsim.costs.profile import packaged_profiles

    return [(name, "") for name in packaged_profiles()]


_MORE = {("all", "project"), ("auto", "project"), ("auto", "tune"), ("auto", "build")}
"""Words beside the names of schedules, and the commands that take them."""


def completing(kind: NamesOf) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return what completes an option or argument that is a name of that kind."""
    return partial(complete_names, kind)


class _FilesOtherwise(ShellComplete):
    """Completes with files where nothing else begins so: click knows no file that is a text to it."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return what click finds, else what makes the shell look for files."""
        found = super().get_completions(args, incomplete)
        return found if found or incomplete.startswith("-") else [CompletionItem(incomplete, type="file")]


class _Bash(_FilesOtherwise, BashComplete):
    pass


class _Zsh(_FilesOtherwise, ZshComplete):
    pass


class _Fish(_FilesOtherwise, FishComplete):
    source_template = FishComplete.source_template.replace('split ","', 'split -m 1 ","')  # values may have commas


def use_files_otherwise() -> None:
    """Have click's three shells complete files where it knows nothing else."""
    for one in (_Bash, _Zsh, _Fish):
        add_completion_class(one)
