"""What the documents say is what CI runs and what the scripts write."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ppsim
from ppsim.schedule.catalog import CATALOG

ROOT = Path(__file__).parents[1]


def written_by(script: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    module = __import__(script)
    return str(module.page())


def test_ci_runs_the_two_commands_of_the_readme() -> None:
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    commands = re.findall(r"^python3 -m venv .*$", readme, flags=re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert f"\n{command}\n" in ci


def test_the_newest_heading_of_the_changelog_is_the_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0] == ppsim.__version__


def test_the_page_of_schedules_is_what_its_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (ROOT / "docs" / "schedules.md").read_text() == written_by("make_schedule_docs", monkeypatch)


def test_every_link_between_documents_leads_somewhere() -> None:
    pages = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "notebooks").glob("*.ipynb"))]
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *pages):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose_of(path)):
            if "://" not in target:
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
    done = subprocess.run(
        [sys.executable, "-m", "ppsim", "check", str(path), *counts], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["auto.md", "figures.md", "models.md", "project.md", "python.md", "tune.md"])
def test_the_commands_of_a_page_print_what_it_says(name: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / name).read_text()
    blocks = re.findall(r"(?:`(\S+\.json)`:\n\n)?```(json|sh|text|python)\n(.*?)```", page, flags=re.DOTALL)
    printed = ""
    for file, kind, text in blocks:
        if kind == "json":
            (tmp_path / file).write_text(text)
        elif kind == "text":
            assert printed == text
        else:
            command = ["bash", "-c", text] if kind == "sh" else [sys.executable, "-c", text]
            command[-1] = re.sub(r"^ppsim ", f"'{sys.executable}' -m ppsim ", command[-1], flags=re.MULTILINE)
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path, text=True, check=False
            )
            printed = done.stdout
            assert done.returncode == 0, printed


def test_the_commands_of_calibration_run_and_print_lines_like_those_of_its_page(tmp_path: Path) -> None:
    """Measured numbers differ from run to run, what stands around them does not."""
    page = (ROOT / "docs" / "calibration.md").read_text()
    blocks = re.findall(r"(?:`(\S+\.json)`:\n\n)?```(json|sh|text)\n(.*?)```", page, flags=re.DOTALL)
    printed = ""
    for file, kind, text in blocks:
        if kind == "json":
            (tmp_path / file).write_text(text)
        elif kind == "text":
            assert without_numbers(printed) == without_numbers(text)
        else:
            command = re.sub(r"^ppsim", f"'{sys.executable}' -m ppsim", text, flags=re.MULTILINE)
            done = subprocess.run(
                ["bash", "-e", "-c", command], capture_output=True, cwd=tmp_path, text=True, check=False
            )
            printed = done.stdout
            assert done.returncode == 0, done.stderr


def without_numbers(text: str) -> list[str]:
    return re.sub(r"[+-]?\d[\d.]*(?: (?:µs|ms|ns|s|%)(?=[\s,]|$))?", "#", " ".join(text.split())).split()


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_still_shows_what_is_stored_in_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured differs from run to run; `python scripts/run_notebooks.py --write` stores the rest anew."""
    import nbformat

    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    runner = __import__("run_notebooks")
    stored, made = nbformat.read(path, as_version=4), runner.executed(path, tmp_path)
    assert runner.shown(made) == runner.shown(stored)
    for notebook in (stored, made):
        last = [cell for cell in notebook.cells if cell.cell_type == "code"][-1]
        assert any("image/png" in output.get("data", {}) for output in last.outputs), "it ends in a picture"
