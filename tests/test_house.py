"""How the house is kept: functions that fit on a screen, their docstrings apart."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LONGEST = 60


@pytest.mark.parametrize("room", sorted(path.name for path in (ROOT / "ppsim").iterdir() if path.is_dir()))
def test_no_function_is_longer_than_a_screen(room: str) -> None:
    long = [
        f"{path.relative_to(ROOT)}: {node.name} has {length_of(node)} lines"
        for path in (ROOT / "ppsim" / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and length_of(node) > LONGEST
    ]
    assert long == []


def length_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the last, without those of the docstring."""
    length = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        length -= (function.body[0].end_lineno or 0) - function.body[0].lineno + 1
    return length


@pytest.mark.pages
def test_every_benchmark_and_script_finds_what_it_imports() -> None:
    """Nothing else looks at them when a name of the package goes."""
    files = [path for folder in ("benchmarks", "scripts") for path in sorted((ROOT / folder).rglob("*.py"))]
    code = (
        "import os, runpy, sys\n"
        "for path in sys.argv[1:]:\n"
        "    sys.path[:0] = [os.path.dirname(path), os.getcwd()]\n"
        "    runpy.run_path(path, run_name='read')\n"
    )
    command = [sys.executable, "-c", code, *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_skip_more_or_fewer_fails_ci_unless_it_needs_a_checkout(tmp_path: Path) -> None:
    results = tmp_path / "results.xml"
    results.write_text(
        '<testsuites><testsuite><testcase name="a"><skipped type="pytest.skip" message="no GPU"/></testcase>'
        '<testcase name="b"><skipped type="pytest.xfail" message="known"/></testcase>'
        '<testcase name="c"><skipped type="pytest.skip" message="needs a checkout: PPSIM_PRIMUS=FOLDER"/></testcase>'
        "</testsuite></testsuites>"
    )
    script = [sys.executable, ROOT / "scripts" / "check_skips.py", results]
    assert subprocess.run([*script, "1"], capture_output=True, check=False).returncode == 0
    assert subprocess.run([*script, "2"], capture_output=True, check=False).returncode == 1
    done = subprocess.run([*script, "0"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "skipped: 1 × no GPU" in done.stdout
