"""Mutation tests: make small changes to the core, one at a time, and report changes that no test detects.

    pip install cosmic-ray coverage
    python scripts/mutants.py map                  # once: which test runs which line
    python scripts/mutants.py run --sample 100     # changes per package, drawn with --seed
    python scripts/mutants.py show                 # the surviving fraction, and every survivor as a diff

cosmic-ray makes the changes (comparisons, arithmetic, numbers, conditions, loops); annotations are left out. Each
change is made in a copy of the checkout. Then the tests that execute the changed line run, the fastest first, until
one fails or hangs, or `--seconds` of tests have passed. --folder stores the map and the verdicts, so that `run` can
continue after an interruption.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ROOMS = ("simulation", "schedule", "parallel", "catalog", "model", "machine", "costs")
TESTS = [*(f"tests/{room}" for room in (*ROOMS, "projection")), *(f"ppsim/{room}" for room in ROOMS)]

_SURVIVED = "survived"
_NOT_RUN = "run by no test"
_RECORDER = """
import json, os
import coverage
seconds = {}
def pytest_runtest_setup(item):
    coverage.Coverage.current().switch_context(item.nodeid)
def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        seconds[report.nodeid] = report.duration
def pytest_sessionfinish():
    with open(os.environ["PPSIM_MUTANTS"] + "/seconds.json", "w") as file:
        json.dump(seconds, file)
"""


@dataclass(frozen=True)
class Mutant:
    """The `occurrence`-th place in a file where cosmic-ray's `operator` applies, on `line`."""

    path: str
    operator: str
    occurrence: int
    line: int

    @property
    def key(self) -> str:
        """The key in the file of verdicts."""
        return f"{self.path}:{self.line}:{self.operator}:{self.occurrence}"

    def mutated(self) -> str:
        """Return the text of the file with the change."""
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator

        return str(mutate_code((ROOT / self.path).read_text(), get_operator(self.operator)(), self.occurrence))


def main() -> None:
    """Run a subcommand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["map", "run", "show"])
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutants", help="keeps the map, copy and verdicts")
    parser.add_argument("--sample", type=int, default=100, help="changes of each room (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument("--seconds", type=float, default=120, help="of tests a change at most (default: 120)")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if arguments.what == "map":
        record(folder)
    elif arguments.what == "run":
        judge_all(folder, arguments.sample, arguments.seed, arguments.seconds)
    else:
        show(folder)


def record(folder: Path) -> None:
    """Run the tests once; record, for each passing test, its lines and its time."""
    folder.mkdir(exist_ok=True)
    (folder / "recorder.py").write_text(_RECORDER)
    (folder / "rc").write_text(f"[run]\ndata_file={folder}/lines\nsource=ppsim\n")
    environment = os.environ | {"PYTHONPATH": str(folder), "PPSIM_MUTANTS": str(folder), "COVERAGE_CORE": "ctrace"}
    coverage = [sys.executable, "-m", "coverage", "run", f"--rcfile={folder}/rc", "-m", "pytest", "-p", "recorder"]
    subprocess.run([*coverage, "--timeout=0", *TESTS], cwd=ROOT, env=environment, check=False)


def places(path: Path) -> list[Mutant]:
    """Return every possible change of a file, except in annotations, documentation and imports."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    text, tree = path.read_text(), get_ast(path.read_text())
    silent = _annotations(text)
    found = []
    for name in operator_names():
        kind = get_operator(name)
        if kind.arguments() or name == "core/RemoveDecorator":
            continue
        operator, occurrence = kind(), 0
        for node in ast_nodes(tree):
            for (line, column), _ in operator.mutation_positions(node):
                if not any(begin <= (line, column) < end for begin, end in silent):
                    found.append(Mutant(str(path.relative_to(ROOT)), name, occurrence, line))
                occurrence += 1
    return found


def judge_all(folder: Path, sample: int, seed: int, seconds: float) -> None:
    """Draw changes in every package, and record the verdict on each new one."""
    import coverage

    lines = coverage.CoverageData(str(folder / "lines"))
    lines.read()
    took = json.loads((folder / "seconds.json").read_text())
    verdicts = _verdicts(folder)
    for room in ROOMS:
        of_room = [one for path in sorted((ROOT / "ppsim" / room).rglob("*.py")) for one in places(path)]
        drawn = random.Random(seed).sample(of_room, min(sample, len(of_room)))
        print(f"{room}: {len(drawn)} of {len(of_room)} changes", flush=True)
        for mutant in drawn:
            if mutant.key not in verdicts:
                tests = tests_of(mutant, lines, took, seconds)
                verdicts[mutant.key] = {"room": room, "verdict": judge(mutant, tests, took, folder / "copy")}
                (folder / "verdicts.json").write_text(json.dumps(verdicts, indent=1))
                print(f"  {mutant.key}: {verdicts[mutant.key]['verdict']}", flush=True)


def tests_of(mutant: Mutant, lines: Any, took: dict[str, float], seconds: float) -> list[str]:
    """Return the tests that run the line, fastest first; all tests of its file for imports and compiled code."""
    by_line = lines.contexts_by_lineno(str(ROOT / mutant.path))
    tests = {name for name in by_line.get(mutant.line, []) if name in took}
    if not tests:
        tests = {name for names in by_line.values() for name in names if name in took}
    chosen, left = [], seconds
    for name in sorted(tests, key=lambda name: took[name]):
        left -= took[name]
        if left < 0:
            break
        chosen.append(name)
    return chosen


def judge(mutant: Mutant, tests: list[str], took: dict[str, float], copy: Path) -> str:
    """Run the tests on a copy with one change, and return the verdict."""
    if not tests:
        return _NOT_RUN
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for name in ("ppsim", "tests", "pyproject.toml", "conftest.py", "schedules", "benchmarks", "scripts", "docs"):
        source = ROOT / name
        shutil.copytree(source, copy / name) if source.is_dir() else shutil.copy(source, copy / name)
    (copy / mutant.path).write_text(mutant.mutated())
    (copy / "tests.txt").write_text("\n".join(tests))
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "@tests.txt"]
    limit = 60 + 5 * sum(took[name] for name in tests)
    try:
        # Reuse numba's compiled loops, unless the changed file contains one.
        is_compiled = "kernel" in (ROOT / mutant.path).read_text()
        compiled = copy / "numba" if is_compiled else copy.parent / "numba"
        environment = os.environ | {"PYTHONPATH": str(copy), "NUMBA_CACHE_DIR": str(compiled)}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return "hangs"
    return {0: _SURVIVED, 1: "killed", 2: "killed"}.get(done.returncode, f"pytest ended with {done.returncode}")


def show(folder: Path) -> None:
    """Print the surviving fraction of each package's changes, and each survivor."""
    verdicts = _verdicts(folder)
    for room in ROOMS:
        of_room = [one["verdict"] for one in verdicts.values() if one["room"] == room]
        lived = sum(verdict in (_SURVIVED, _NOT_RUN) for verdict in of_room)
        print(f"{room}: {lived} of {len(of_room)} survive, {100 * lived / max(len(of_room), 1):.0f} %")
    for key, one in verdicts.items():
        if one["verdict"] in (_SURVIVED, _NOT_RUN):
            path, line, operator, occurrence = key.split(":")
            mutant = Mutant(path, operator, int(occurrence), int(line))
            before, after = ((ROOT / path).read_text().splitlines(), mutant.mutated().splitlines())
            print(f"\n{key}: {one['verdict']}")
            print("\n".join(list(unified_diff(before, after, lineterm="", n=1))[3:]))


def _verdicts(folder: Path) -> dict[str, Any]:
    path = folder / "verdicts.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _annotations(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    found: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(text)):
        found.append(getattr(node, "annotation", None))
        found.append(getattr(node, "returns", None))
    spans = [one for one in found if one is not None]
    return [((one.lineno, one.col_offset), (one.end_lineno or 0, one.end_col_offset or 0)) for one in spans]


if __name__ == "__main__":
    main()
