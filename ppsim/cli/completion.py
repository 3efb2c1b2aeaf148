"""Shell completion: names, lists of names after commas, and files for all other arguments."""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from ppsim.base.option_declarations import NamesOf

_BESIDE = {
    "all": "every schedule, beside each other",
    "any": "as all, ranked by time alone",
    "auto": "the best table that a search finds",
}


def complete_names(
    kind: NamesOf, ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """In a list, complete the part after the last comma."""
    before, comma, begun = incomplete.rpartition(",")
    taken = before.split(",")
    names = [(name, description) for name, description in _names_of(kind, ctx.info_name) if name not in taken]
    return [
        CompletionItem(before + comma + name, help=description)
        for name, description in names
        if name.startswith(begun.lower())
    ]


def _names_of(kind: NamesOf, command: str | None) -> Iterable[tuple[str, str]]:
    if kind == "schedule":
        from ppsim.catalog.build import every_schedule

        entries = [(entry.name, entry.title) for entry in every_schedule().values()]
        return entries + [(name, description) for name, description in _BESIDE.items() if (name, command) in _MORE]
    if kind == "model":
        from ppsim.model.registry import NAMES

        return [(name, "") for name in NAMES]
    if kind == "cluster":
        from ppsim.machine.cluster_files import packaged_clusters

        return [(name, "") for name in packaged_clusters()]
    if kind == "recipe":
        from ppsim.trainers.recipe_table import recipes

        return [(name, "") for name in dict.fromkeys(recipe.base for recipe in recipes())]
    from ppsim.costs.profile import packaged_profiles

    return [(name, "") for name in packaged_profiles()]


_MORE = {("all", "project"), *product(("any", "auto"), ("project", "tune")), ("auto", "build")}
"""Values in addition to names of schedules, and the commands that accept them."""


def completing(kind: NamesOf) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    return partial(complete_names, kind)


class _FilesOtherwise(ShellComplete):
    """Completion of files if nothing else matches, because click does not know which text options are files."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        completions = super().get_completions(args, incomplete)
        return (
            completions if completions or incomplete.startswith("-") else [CompletionItem(incomplete, type="file")]
        )


class _Bash(_FilesOtherwise, BashComplete):
    pass


class _Zsh(_FilesOtherwise, ZshComplete):
    pass


class _Fish(_FilesOtherwise, FishComplete):
    source_template = FishComplete.source_template.replace('split ","', 'split -m 1 ","')  # commas in values


def use_files_otherwise() -> None:
    for one in (_Bash, _Zsh, _Fish):
        add_completion_class(one)
