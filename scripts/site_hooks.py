"""What the site has beside its pages: pictures drawn as it is built, the Python reference, files outside docs/."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import ppsim
from ppsim.cli import main

ROOT = Path(__file__).parents[1]
FROM_OUTSIDE = (ROOT / "CHANGELOG.md", *sorted((ROOT / "notebooks").glob("*.ipynb")))
"""Files of the repository that pages link to and the site takes in, at the same path."""

_LINK = re.compile(r"\[([^\]\n]+)\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pictures, and what lies outside the folder of the pages."""
    for path in FROM_OUTSIDE:
        files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    for name, content in pictures().items():
        files.append(File.generated(config, f"pictures/{name}", content=content))
    return files


PICTURES = {
    "schedules.svg": """
        echo '{"forward_s": 0.02, "backward_input_s": 0.02, "backward_weight_s": 0.02}' > whole.json
        echo '{"forward_s": 0.01, "backward_input_s": 0.01, "backward_weight_s": 0.01}' > half.json
        ppsim build 1f1b --pp 4 --microbatches 6 -o 1f1b.csv
        ppsim build zbv --pp 4 --microbatches 6 -o zbv.csv
        ppsim simulate 1f1b.csv --costs whole.json -o 1f1b.json
        ppsim simulate zbv.csv --costs half.json -o zbv.json
        ppsim figure timeline 1f1b.json zbv.json --title 1F1B --title ZB-V --panels compute -o schedules.svg
    """,
    "timeline.html": "ppsim project --pp 4 --vpp 2 -o timeline.html",
}
"""How the pictures of the site are made: 1F1B above ZB-V, and the interactive timeline of the tutorial."""


def pictures() -> dict[str, bytes]:
    """Return the pictures by name, drawn by ppsim's own commands; raises where one of them fails."""
    drawn = {}
    environment = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    for name, commands in PICTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                ["bash", "-e", "-c", commands], cwd=folder, env=environment, capture_output=True, check=True
            )
            drawn[name] = (Path(folder) / name).read_bytes()
    return drawn


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the reference, and let links that leave docs/ lead to what the site took in, or nowhere."""
    markdown = markdown.replace("<!-- reference: ppsim.__all__ -->", python_reference())
    markdown = markdown.replace("<!-- reference: ppsim --help -->", command_reference())
    folder = Path(config.docs_dir) / Path(page.file.src_uri).parent
    if page.file.src_uri == "CHANGELOG.md":
        folder = ROOT

    def led(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        path = (folder / target).resolve()
        if path.is_relative_to(config.docs_dir):
            return match[0]
        if path in FROM_OUTSIDE:
            return f"[{label}]({target.removeprefix('../')}{anchor})"
        return f"`{path.relative_to(ROOT)}`"

    return _LINK.sub(led, markdown)


def python_reference() -> str:
    """Return a block of mkdocstrings for every public name, functions first, under the name it is imported by."""
    names = sorted(ppsim.__all__, key=lambda name: isinstance(getattr(ppsim, name), type))
    return "\n".join(f'::: {home(name)}\n    options:\n      heading: "ppsim.{name}"\n' for name in names)


def home(name: str) -> str:
    """Return where a public name is defined, `ppsim.schedule.table.Schedule` for Schedule."""
    value = getattr(ppsim, name)
    return f"{value.__module__}.{value.__qualname__}"


def command_reference() -> str:
    """Return the help of ppsim and of every command below it, as it is printed."""
    context = click.Context(main, info_name="ppsim", terminal_width=100, **main.context_settings)
    return "\n".join(_help_of(context))


def _help_of(context: click.Context) -> Iterator[str]:
    """Yield a section for a command, and one for each of its own."""
    command = context.command
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from _help_of(click.Context(command.commands[name], parent=context, info_name=name))
