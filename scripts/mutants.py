"""Mutation tests: make small changes to the core, one at a time, and report changes that no test detects.

    pip install cosmic-ray coverage
    python scripts/mutants.py map                  # once: which test runs which line
    python scripts/mutants.py run --sample 100     # changes per package, drawn with --seed
    python scripts/mutants.py show                 # the surviving fraction, and every survivor as a diff
    python scripts/mutants.py near -n 60           # changes over all packages against the tests next to them
    python scripts/mutants.py near --module costs  # of one package or module

cosmic-ray makes the changes (comparisons, arithmetic, numbers, conditions, loops); annotations are left out. Each
change is made in a copy of the checkout. Then the tests that execute the changed line run, the fastest first, until
one fails or hangs, or `--seconds` of tests have passed. --folder stores the map and the verdicts, so that `run` can
continue after an interruption.

`near` needs no map and no cosmic-ray. It draws lines over all packages, so that each package has changes in
proportion to its code lines, and makes one change of each (ast_mutations.py). Then it runs the examples and the own
test files of the module (tests/PACKAGE/test_MODULE.py, or those in tests/module_tests.toml), and the test folder of
its package, 60 CPU seconds at most.
The seed is the first eight hexadecimal digits of the commit's hash, so that nobody chooses it.
"""

import argparse
import ast
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from ast_mutations import Mutation, mutations

ROOT = Path(__file__).parents[1]
ROOMS = ("simulation", "schedule", "parallel", "catalog", "model", "machine", "costs")
TESTS = [*(f"tests/{room}" for room in (*ROOMS, "projection")), *(f"ppsim/{room}" for room in ROOMS)]

_DOCUMENTS = ("benchmarks", "scripts", "docs", "notebooks", "README.md", "CHANGELOG.md")
_SURVIVED = "survived"
_NOT_RUN = "run by no test"
_OWN = "its own tests"
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
    parser.add_argument("what", choices=["map", "run", "show", "near"])
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutants", help="keeps the map, copy and verdicts")
    parser.add_argument("--sample", type=int, default=100, help="changes of each room (default: 100)")
    parser.add_argument("--seed", help="of the draw (default: 0; for `near` the commit's hash, in hexadecimal)")
    parser.add_argument("-n", type=int, default=60, help="changes that `near` draws (default: 60)")
    parser.add_argument(
        "--module", default="", help="start of the paths below ppsim/ that `near` changes (default: all)"
    )
    parser.add_argument("--all", action="store_true", help="`near` also runs the marked tests of the folder")
    parser.add_argument("--seconds", type=float, default=120, help="of tests a change at most (default: 120)")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if arguments.what == "map":
        record(folder)
    elif arguments.what == "run":
        judge_all(folder, arguments.sample, int(arguments.seed or 0), arguments.seconds)
    elif arguments.what == "near":
        judge_near(
            folder,
            int(arguments.seed or commit()[:8], 16),
            arguments.n,
            arguments.module,
            with_marked=arguments.all,
        )
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
    _fresh_copy(copy)
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


def _fresh_copy(copy: Path) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for name in ("ppsim", "tests", "pyproject.toml", "conftest.py", "schedules", "profiles", *_DOCUMENTS):
        source = ROOT / name
        shutil.copytree(source, copy / name) if source.is_dir() else shutil.copy(source, copy / name)


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


def commit() -> str:
    """Return the hash of the commit that is checked out."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def judge_near(folder: Path, seed: int, number: int, module: str, *, with_marked: bool) -> None:
    """Print a verdict and the changed line of each change, and the killed fraction."""
    by_line: dict[tuple[Path, int], list[Mutation]] = {}
    for path in sorted((ROOT / "ppsim").rglob("*.py")):
        for one in mutations(path.read_text()):
            if str(path.relative_to(ROOT / "ppsim")).startswith(module):
                by_line.setdefault((path.relative_to(ROOT), one.line), []).append(one)
    number, random_ = min(number, len(by_line)), random.Random(seed)
    drawn = [(path, random_.choice(by_line[path, line])) for path, line in random_.sample(sorted(by_line), number)]
    print(f"seed {seed:08x}: {number} of {len(by_line)} lines", flush=True)
    _fresh_copy(copy := folder / "near")
    killed = 0
    for path, mutation in drawn:
        original = (ROOT / path).read_text()
        (copy / path).write_text(changed := mutation.applied(original))
        verdict = _first_failure(path, copy, with_marked=with_marked)
        shutil.copy2(ROOT / path, copy / path)
        killed += verdict != _SURVIVED
        print(f"{path}:{mutation.line}: {mutation.kind}: {verdict}")
        print(f"  - {original.splitlines()[mutation.line - 1].strip()}")
        print(f"  + {changed.splitlines()[mutation.line - 1].strip()}", flush=True)
    print(f"killed: {killed} of {number}, {100 * killed / number:.0f} %")


def tests_near(path: Path) -> list[list[str]]:
    """Return the tests of a module: its examples and its own test files, then the test folder of its package."""
    package = Path("tests", *path.parts[1:-1])
    table = tomllib.loads((ROOT / "tests" / "module_tests.toml").read_text())
    own = table.get(str(path), [str(package / f"test_{path.stem}.py")])
    folder = Path(*package.parts[:2]) if len(path.parts) > 2 else Path("tests/api")
    return [[str(path), *own], [str(folder)]]


def _first_failure(path: Path, copy: Path, *, with_marked: bool) -> str:
    left_s = 60
    for name, tests in zip((_OWN, "its folder"), tests_near(path), strict=True):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
        done = subprocess.run(
            [*command, *(["--all"] if with_marked else [])], cwd=copy, env=os.environ | {"PYTHONPATH": str(copy)},
            capture_output=True, check=False, preexec_fn=lambda limit=left_s: _limit_cpu(limit),
        )  # fmt: skip
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if done.returncode < 0:  # ended by the limit; the own tests alone take less, so that they hang
            return f"{name} hang" if name == _OWN else _SURVIVED
        if done.returncode not in (0, 5):  # 5: no test was collected
            return f"killed by {name} in {spent_s:.0f} CPU s"
        left_s = max(1, left_s - int(spent_s))
    return _SURVIVED


def _limit_cpu(seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))


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
