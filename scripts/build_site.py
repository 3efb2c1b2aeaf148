"""Build the documentation site: python scripts/build_site.py [FOLDER]

The pages of docs/ are copied to a temporary folder, and generated content is added: pictures, notebooks, and the
reference of commands and of Python. Warnings of Sphinx are errors: broken links and anchors, and unlisted pages.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import nbconvert
import nbformat

import ppsim
from ppsim.cli import main as ppsim_command
from ppsim.plot import save_figure, timeline_figure

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FROM_OUTSIDE = {
    ROOT / "CHANGELOG.md": "CHANGELOG.md",
    **{path: f"notebooks/{path.stem}.md" for path in sorted((ROOT / "notebooks").glob("*.ipynb"))},
}
"""Files outside docs/ that belong to the site, and their path in the site."""

_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
_COMMENTS = re.compile(r"^<!-- (?:not run: .+|exits with \d+|measured|not output) -->\n", re.MULTILINE)


@click.command()
@click.argument("folder", default=ROOT / "site", type=click.Path(file_okay=False, path_type=Path))
def main(folder: Path) -> None:
    """Build the site into FOLDER."""
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "docs"
        stage(source)
        command = [
            sys.executable,
            "-m",
            "sphinx",
            "-b",
            "html",
            "-q",
            "-W",
            "--keep-going",
            "-d",
            f"{scratch}/trees",
        ]
        done = subprocess.run([*command, str(source), str(folder)], check=False)
    for page in folder.rglob("*.html"):
        if page.name != "timeline.html":
            page.write_text(accessible(page.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(done.returncode)


def accessible(html: str) -> str:
    """Add to a page what the theme omits: heading levels, names of parts, keyboard focus for scrolling parts.

    Sphinx's description lists without terms, which it uses for lines of a signature, become lines.
    """
    html = html.replace('class="caption" role="heading">', 'class="caption" role="heading" aria-level="2">')
    for name, told in (("sidebar", "all pages"), ("toc", "on this page")):
        html = html.replace(f'<aside class="{name}-drawer">', f'<aside class="{name}-drawer" aria-label="{told}">')
    html = html.replace("<pre>", '<pre tabindex="0">').replace(
        '<div class="table-wrapper', '<div tabindex="0" class="table-wrapper'
    )
    return re.sub(r"<dl>\n((?:<dd>.*?</dd>\n)+)</dl>", _signature, html)


def _signature(found: re.Match[str]) -> str:
    lines = found[1].replace("<dd>", "<span>").replace("</dd>", "</span>")
    return f'<span class="sig-lines">\n{lines}</span>'


def stage(source: Path) -> None:
    """Write all inputs of Sphinx into a folder."""
    shutil.copytree(DOCS, source)
    for path, name in FROM_OUTSIDE.items():
        page = source / name
        page.parent.mkdir(exist_ok=True)
        if path.suffix == ".ipynb":
            write_notebook(path, page)
        else:
            shutil.copy(path, page)
    draw_pictures(source)
    write_python_reference(source / "reference")
    for page in source.rglob("*.md"):
        page.write_text(
            as_of_the_site(page.read_text(encoding="utf-8"), page.relative_to(source)), encoding="utf-8"
        )


def as_of_the_site(text: str, name: Path) -> str:
    """Fill in the reference of a page; turn links out of docs/ into links within the site or plain text."""
    text = _COMMENTS.sub("", text).replace("<!-- reference: ppsim --help -->", command_reference())
    came_from = next((path for path, taken in FROM_OUTSIDE.items() if taken == str(name)), DOCS / name)

    def led(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        path = (came_from.parent / target).resolve()
        if path in FROM_OUTSIDE:
            return f"[{label}]({os.path.relpath(FROM_OUTSIDE[path], name.parent)}{anchor})"
        if not path.exists() or (path.is_relative_to(DOCS) and came_from.is_relative_to(DOCS)):
            return match[0]  # a page or picture of the site, or a broken link that Sphinx reports
        if path.is_relative_to(DOCS):
            return f"[{label}]({os.path.relpath(path.relative_to(DOCS), name.parent)}{anchor})"
        return f"`{path.relative_to(ROOT)}`"

    return _LINK.sub(led, text)


def draw_pictures(source: Path) -> None:
    """Draw 1F1B above ZB-V, and the interactive timeline of the tutorial."""
    for folder in ("pictures", "extra/pictures"):
        (source / folder).mkdir(parents=True)
    timelines = [
        ppsim.simulate(
            ppsim.build(name, pp=4, microbatches=6),
            ppsim.StageCosts(forward_s=seconds, backward_input_s=seconds, backward_weight_s=seconds),
        )
        for name, seconds in (("1f1b", 0.02), ("zbv", 0.01))
    ]
    figure = timeline_figure(timelines, titles=["1F1B", "ZB-V"], panels=["compute"])
    save_figure(figure, source / "pictures" / "schedules.svg")
    ppsim.save(ppsim.project(pp=4, vpp=2), source / "extra" / "pictures" / "timeline.html")


def write_notebook(path: Path, page: Path) -> None:
    """Write a notebook with its stored outputs as a page, with pictures next to it."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/html" in data:  # an empty line would end the HTML block
                data["text/html"] = re.sub(r"\n\s*\n", "\n", data["text/html"])
    exporter = nbconvert.MarkdownExporter()
    text, resources = exporter.from_notebook_node(notebook, {"output_files_dir": path.stem})
    for name, content in resources["outputs"].items():
        (page.parent / path.stem).mkdir(exist_ok=True)
        (page.parent / name).write_bytes(content)
    page.write_text(text, encoding="utf-8")


def write_python_reference(folder: Path) -> None:
    """Write a reference page for each topic in the docstring of ppsim, and list the pages."""
    topics = topics_of(ppsim.__doc__ or "")
    if missing := sorted(set(ppsim.__all__) ^ {name for names in topics.values() for name in names}):
        raise click.ClickException(f"the docstring of ppsim and __all__ differ in {', '.join(missing)}")
    (folder / "python").mkdir()
    for topic, names in topics.items():
        blocks = [f"{topic.capitalize()}\n{'=' * len(topic)}", *(_described(name) for name in names)]
        (folder / "python" / f"{_slug(topic)}.rst").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    tree = "\n".join(["```{toctree}", *(f"python/{_slug(topic)}" for topic in topics), "```"])
    page = folder / "python.md"
    page.write_text(page.read_text(encoding="utf-8").replace("<!-- reference: ppsim.__all__ -->", tree))


def topics_of(docstring: str) -> dict[str, list[str]]:
    """Parse lines ``topic   name, name`` into names by topic.

    >>> topics_of("tables   build, read (a table,\\n         back)\\n")
    {'tables': ['build', 'read']}
    """
    joined = re.sub(r"\n {6,}", " ", docstring)
    found: dict[str, list[str]] = {}
    for topic, names in re.findall(r"^(\w[\w ]*?) {2,}(\S.*)$", joined, flags=re.MULTILINE):
        found.setdefault(topic, []).extend(re.sub(r" \([^)]*\)", "", names).split(", "))
    return found


def _slug(topic: str) -> str:
    return topic.replace(" ", "_")


def _described(name: str) -> str:
    is_class = isinstance(getattr(ppsim, name), type)
    directive = (
        f".. autoclass:: ppsim.{name}\n   :members:\n   :undoc-members:"
        if is_class
        else f".. autofunction:: ppsim.{name}"
    )
    return f"{name}\n{'-' * len(name)}\n\n{directive}"


def command_reference() -> str:
    """Return the full help of ppsim and all its commands."""
    context = click.Context(ppsim_command, info_name="ppsim", terminal_width=100, **ppsim_command.context_settings)
    context.meta["ppsim.help_all"] = True  # also for commands with a short help
    return "\n".join(_help_of(context))


def _help_of(context: click.Context) -> Iterator[str]:
    """Yield a section for a command and for each subcommand."""
    command = context.command
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    hidden = [one for one in command.params if isinstance(one, click.Option) and one.hidden and one.help]
    if hidden:
        rows = "\n".join(f"- `{one.opts[0]}`: {one.help}" for one in hidden)
        yield f"Accepted too, though mostly set by a trainer's configuration:\n\n{rows}\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from _help_of(click.Context(command.commands[name], parent=context, info_name=name))


if __name__ == "__main__":
    main()
