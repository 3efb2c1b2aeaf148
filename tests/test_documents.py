"""What the documents say is what CI runs and what the scripts write."""

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

import ppsim
from ppsim.catalog.build import CATALOG
from ppsim.plot.figures.style import figure_bytes
from ppsim.plot.figures.timeline import timeline_figure
from tests.cli.running import ppsim as command

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIRST_PAGES = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", ROOT / "docs" / "project.md"]
"""Plain `pytest` runs the commands of these pages; `pytest --all` runs all pages."""
LONG_NOTEBOOKS = ("04", "05")
"""Notebooks of more than 20 CPU seconds: docs/python.md closes the loop too, docs/tutorial.md searches a layout."""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a script by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module


def test_ci_runs_the_two_commands_of_the_readme() -> None:
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    commands = re.findall(r"^python3 -m venv .*$", readme, flags=re.MULTILINE)
    assert len(commands) == 2
    for one in commands:
        assert f"\n{one}\n" in ci


def test_the_readme_is_a_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 100


def test_the_picture_of_the_readme_is_drawn_of_the_tables_that_it_names() -> None:
    times = {"1f1b": ("1F1B", 0.02), "zbv": ("ZB-V", 0.01)}  # a stage; zbv has two a rank
    made = []
    for name, (_, second) in times.items():
        table = ppsim.build(name, pp=4, microbatches=6)
        costs = ppsim.StageCosts(forward_s=second, backward_input_s=second, backward_weight_s=second)
        made.append(ppsim.simulate(table, costs))
    drawn = figure_bytes(
        timeline_figure(made, titles=[title for title, _ in times.values()], panels=["compute"]), ".svg"
    )
    stored = (ROOT / "docs" / "first.svg").read_bytes()
    cells = re.compile(rb'style="fill: (#[0-9a-f]{6})')
    assert cells.findall(stored) == cells.findall(drawn), "drawn again, as docs/first.svg, it differs"


def test_the_newest_heading_of_the_changelog_is_the_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == ppsim.__version__


@pytest.mark.pages
def test_pages_and_pictures_of_schedules_are_what_their_script_writes(script: Callable[[str], ModuleType]) -> None:
    pages = script("make_schedule_docs").pages()
    assert {name: (ROOT / "docs" / name).read_text() for name in pages} == pages
    assert {f"schedules/{path.name}" for path in (ROOT / "docs" / "schedules").iterdir()} == set(pages) - {
        "schedules.md"
    }
    drawn = [name for name in pages if name.endswith(".svg")]
    assert [Path(name).stem for name in drawn] == list(CATALOG)
    for name in drawn:
        assert len({row.get("y") for row in ElementTree.fromstring(pages[name]).iter() if row.get("height")}) >= 4


def test_the_page_of_packages_is_what_its_script_writes(script: Callable[[str], ModuleType]) -> None:
    page, made = ROOT / "docs" / "explanation" / "architecture.md", script("make_architecture")
    assert page.read_text() == made.page()
    assert page.with_suffix(".svg").read_text() == made.picture()


@pytest.mark.parametrize("name", ["README.md", "docs/formats.md", "docs/project.md", "docs/howto/slow_run.md"])
def test_tables_are_what_their_script_writes(name: str, script: Callable[[str], ModuleType]) -> None:
    assert (ROOT / name).read_text() == script("make_tables").page(name)


def test_every_file_that_the_page_of_packages_names_is_there() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    named = set(re.findall(r"`([a-z_]+/[\w/]+\.(?:py|toml))`", page))
    assert len(named) > 15
    assert {name for name in named if not (ROOT / "ppsim" / name).exists()} == set()


def test_every_link_between_documents_leads_somewhere() -> None:
    pages = [*PAGES, *sorted((ROOT / "notebooks").glob("*.ipynb"))]
    for path in (*pages, ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose_of(path)):
            if "://" not in target and not target.startswith("pictures/"):  # those are made with the site
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def prose_of(path: Path) -> str:
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("path", sorted((ROOT / "schedules").glob("*.csv")), ids=lambda path: path.stem)
def test_every_table_that_is_shipped_passes_the_check(path: Path) -> None:
    entry = CATALOG[path.stem.rsplit("_", 3)[0]]
    counts = ["--replicas", str(entry.num_replicas), "--slices", str(entry.num_slices)]
    command("check", path, *counts)


@pytest.fixture
def documents(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("run_documents")


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.pages] * (path not in FIRST_PAGES)) for path in PAGES],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_the_commands_of_a_page_print_what_it_says(path: Path, documents: ModuleType, tmp_path: Path) -> None:
    assert documents.run_page(path.read_text(), tmp_path).differences == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_has_no_number_that_the_blocks_of_its_page_do_not_print(path: Path, documents: ModuleType) -> None:
    assert documents.unprinted(path.read_text()) == []


OUTPUT = "\n\n```sh\nppsim tune\n```\n\n```text\n4.50 s    233 k tokens/s 71.8 GiB\n```\n\n"


@pytest.mark.parametrize(
    ("page", "numbers"),
    [
        (f"Before.{OUTPUT}The second comes third, 1.6 % behind,\nwhere both leave 2 GiB.\n", ["1.6 %", "2 GiB"]),
        (f"It finds 14.8 s instead of 15.7.{OUTPUT}", ["14.8 s"]),
        (f"It takes 4.50 s: 233 k tokens/s in 71.8 GiB.{OUTPUT}", []),
        (f"<!-- numbers: the default -->\nIt takes 95 %.{OUTPUT}Then 96 %.", ["96 %"]),
        (f"With `--memory-limit 70GiB` and 3 steps.{OUTPUT}| table | 5 % |\n", []),
        ("A page without output takes 3 s.", []),
    ],
)
def test_a_number_in_prose_that_no_block_prints_is_found(
    page: str, numbers: list[str], documents: ModuleType
) -> None:
    assert documents.unprinted(page) == numbers


@pytest.mark.parametrize(
    ("page", "difference"),
    [
        ("```sh\necho 1\n```\n\n```text\n2\n```\n", "line 5: says\n2\nbut the block before it prints\n1\n"),
        ("```python\nx = 3\n```\n\n```python\nprint(x)\n```\n\n```text\n4\n```\n", "line 9: says"),
        ("`x.txt`:\n\n```text\n5\n```\n\n```sh\ncat x.txt\n```\n\n```text\n6\n```\n", "line 11: says"),
        ("```sh\necho 1 ms\n```\n\n<!-- measured -->\n```text\n2 m\n```\n", "line 6: says"),
        ("<!-- exits with 3 -->\n```sh\necho 7; exit 3\n```\n\n```text\n8\n```\n", "line 6: says"),
    ],
)
def test_a_page_that_says_something_else_is_told_and_mended(
    page: str, difference: str, documents: ModuleType, tmp_path: Path
) -> None:
    found = documents.run_page(page, tmp_path)
    assert len(found.differences) == 1
    assert found.differences[0].startswith(difference)
    assert documents.run_page(found.text, tmp_path).differences == []


@pytest.mark.parametrize(
    ("page", "error"),
    [
        ("```sh\nfalse\ntrue\n```\n", "line 1: exits with 1"),
        ("<!-- exits with 1 -->\n```sh\ntrue\n```\n", "line 2: exits with 0"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("<!-- not ran: a slip -->\n```sh\nfalse\n```\n", "not understood"),
        ("```sh\ntrue\n```\n\n```text\n```\n", "line 5: empty"),
        ("<!-- not run: slow -->\n```sh\nls\n```\n\n```text\n```\n", "line 6: empty"),
        ("```text\n1\n```\n", "line 1: no block prints it"),
        ("```sh\necho 1\n```\n\n```text\n1\n```\n\n```text\n1\n```\n", "line 9: no block prints it"),
    ],
)
def test_a_page_that_cannot_be_run_is_refused(page: str, error: str, documents: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(documents.WrongPage, match=error):
        documents.run_page(page, tmp_path)


def test_an_option_before_a_block_names_no_file(documents: ModuleType, tmp_path: Path) -> None:
    found = documents.run_page("It comes with `-o`:\n\n```sh\necho 1\n```\n\n```text\n```\n", tmp_path)
    assert found.text.endswith("```text\n1\n```\n")
    assert not list(tmp_path.iterdir())


def test_measured_numbers_and_blocks_that_are_not_run_are_left_alone(documents: ModuleType, tmp_path: Path) -> None:
    page = (
        "```sh\necho 1 ms\n```\n\n<!-- measured -->\n```text\n2.5 s\n```\n\n"
        "<!-- not run: needs a CUDA device -->\n```sh\nfalse\n```\n\n```text\nas it stands\n```\n"
    )
    assert documents.run_page(page, tmp_path).text == page


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.long] * path.stem.startswith(LONG_NOTEBOOKS))
        for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
    ],
    ids=lambda path: path.stem,
)
@pytest.mark.pages
def test_a_notebook_still_shows_what_is_stored_in_it(
    path: Path, tmp_path: Path, script: Callable[[str], ModuleType]
) -> None:
    """What was measured differs from run to run; `python scripts/run_notebooks.py --write` stores the rest anew."""
    import nbformat

    runner = script("run_notebooks")
    stored, made = nbformat.read(path, as_version=4), runner.executed(path, tmp_path)
    assert runner.shown(made) == runner.shown(stored)
    for notebook in (stored, made):
        last = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
        assert any("image/png" in output.get("data", {}) for output in last.outputs), "it ends in a picture"
