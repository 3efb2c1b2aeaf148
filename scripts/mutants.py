"""Mutation tests: change single lines, one at a time, and report changes that the tests next to them do not detect.

    pip install coverage
    python scripts/mutants.py map                    # once per commit: which test runs which line
    python scripts/mutants.py near -n 60             # lines drawn over all packages
    python scripts/mutants.py near --module costs    # of one package or module

Lines are drawn so that each package has changes in proportion to its code lines, and each gets one change
(ast_mutations.py): comparisons, arithmetic, numbers, conditions, swapped arguments, dropped statements. A change is
made in a copy of the checkout. Then the tests that run the line are run until one fails, the fastest first: the
examples and the own test files of the module (tests/PACKAGE/test_MODULE.py, or those in tests/module_tests.toml),
then the test folder of its package. If none of its own tests run the line, as for a table of constants or a
compiled loop, all of them do. 60 seconds at most.

The seed is the first eight hexadecimal digits of the commit's hash, so that nobody chooses it. --folder stores the
map and the copy. `--anywhere` continues with the tests of all other folders that run the line.
"""

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ast_mutations import Mutation, mutations

ROOT = Path(__file__).parents[1]
RECORDER = """
import json, os
import coverage, pytest
seconds = {}
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    os.environ["PPSIM_TEST"] = item.nodeid
    coverage.Coverage.current().switch_context(item.nodeid)
def pytest_runtest_logreport(report):
    if report.failed or report.when == "call":
        seconds[report.nodeid] = None if report.failed else report.duration
def pytest_sessionfinish():
    with open(os.environ["PPSIM_SECONDS"], "w") as file:
        json.dump(seconds, file)
"""
PRELOADED = ("coverage", "pytest", "numba", "numpy", "plotly.graph_objects", "torch", "yaml")
SURVIVED = "survived"


def main() -> None:
    """Run a subcommand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["map", "near"])
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutants", help="keeps the map and the copy")
    parser.add_argument("--map", type=Path, help="folder with the map (default: --folder)")
    parser.add_argument("--seed", help="of the draw, in hexadecimal (default: of the commit's hash)")
    parser.add_argument("-n", type=int, default=60, help="lines to change (default: 60)")
    parser.add_argument("--module", nargs="*", default=[""], help="starts of paths below ppsim/ (default: all)")
    parser.add_argument("--all", action="store_true", help="also map or run the marked tests")
    parser.add_argument("--anywhere", action="store_true", help="then run the tests of all other folders")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if arguments.what == "map":
        record(folder, marked=arguments.all)
    else:
        judge_near(Judge(folder, (arguments.map or folder).resolve(), arguments), arguments)


def record(folder: Path, *, marked: bool) -> None:
    """Run the tests once, in two processes, and record each test's lines and seconds."""
    shutil.rmtree(folder / "lines", ignore_errors=True)
    (folder / "lines").mkdir(parents=True)
    (folder / "recorder.py").write_text(RECORDER)
    (folder / "rc").write_text(
        f"[run]\ndata_file={folder}/lines/lines\nsource=ppsim\nparallel=true\nrelative_files=true\n"
        "patch=subprocess\ncontext=${PPSIM_TEST-}\n"
    )
    copy = fresh_copy(folder)
    environment = os.environ | {"PYTHONPATH": f"{copy}:{folder}", "COVERAGE_CORE": "ctrace"}
    coverage = [sys.executable, "-m", "coverage"]
    command = [*coverage, "run", f"--rcfile={folder}/rc", "-m", "pytest", "-p", "recorder", "--timeout=0"]
    command += ["-p", "no:xdist", "-p", "no:cacheprovider", *(["--all"] if marked else [])]
    folders = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("*/"))
    processes = []
    for index, tests in enumerate((["ppsim", *folders[::2]], folders[1::2])):
        seconds = {"PPSIM_SECONDS": str(folder / f"seconds-{index}.json")}
        processes.append(subprocess.Popen([*command, *tests], cwd=copy, env=environment | seconds))
    for process in processes:
        process.wait()
    subprocess.run([*coverage, "combine", "-q", f"--rcfile={folder}/rc"], cwd=copy, check=True)


def fresh_copy(folder: Path) -> Path:
    """Copy the checkout without its history and environment."""
    shutil.rmtree(folder / "copy", ignore_errors=True)
    ignored = shutil.ignore_patterns("*.pyc", ".git", ".venv", ".mutants", ".*_cache")
    return Path(shutil.copytree(ROOT, folder / "copy", ignore=ignored, symlinks=True))


class Judge:
    """Runs the tests near a line on a copy of the checkout, in forks of this process.

    `map_folder` has what `record` wrote.
    """

    def __init__(self, folder: Path, map_folder: Path, arguments: argparse.Namespace) -> None:
        import coverage

        self.marked, self.anywhere = arguments.all, arguments.anywhere
        self.copy = fresh_copy(folder)
        self.log = folder / "log"
        self.lines = coverage.CoverageData(str(map_folder / "lines" / "lines"))
        self.lines.read()
        recorded: dict[str, float | None] = {}
        for path in map_folder.glob("seconds-*.json"):
            recorded |= json.loads(path.read_text())
        self.seconds = {name: seconds for name, seconds in recorded.items() if seconds is not None}
        self.failing = recorded.keys() - self.seconds.keys()
        for name in PRELOADED:
            with suppress(ImportError):
                importlib.import_module(name)

    def verdict(self, path: Path, mutation: Mutation) -> str:
        """Return what detects a change of the module `path`, relative to the checkout, or `SURVIVED`."""
        runs_it = {*self.lines.contexts_by_lineno(str(path)).get(mutation.line, [])} - {""}
        own_files, folder = tests_near(path)
        own = [name for name in self.seconds if name.partition("::")[0] in own_files]
        near = [name for name in self.seconds if name.startswith(folder[0] + "/") and name not in own]
        others = [name for name in runs_it if name not in own and name not in near]
        run_it = runs_it.intersection(own) or {*own}
        stages: list[tuple[str, Collection[str], list[str]]] = [
            ("its own tests", run_it, own_files),
            ("its folder", runs_it.intersection(near), []),
            ("its own tests", {*own} - run_it, []),  # lines of a fixture or a cache are recorded for its first test
        ]
        if self.anywhere:
            stages.append(("another folder", others, []))
        source = self.copy / path
        original, modified_ns = source.read_text(), source.stat().st_mtime_ns
        left_s = 60.0
        try:
            source.write_text(mutation.applied(original))
            os.utime(source, (random.getrandbits(30),) * 2)  # Python keeps bytecode by whole seconds
            for name, tests, files in stages:
                began = time.monotonic()
                if self._fail(sorted(tests, key=lambda test: self.seconds.get(test, 0)), files, left_s):
                    return f"killed by {name}"
                left_s = max(1.0, left_s - (time.monotonic() - began))
        finally:
            source.write_text(original)
            os.utime(source, ns=(modified_ns, modified_ns))  # the compiled loops on disk stay valid
        return SURVIVED if runs_it.intersection([*own, *near]) else f"{SURVIVED}, run by none of them"

    def require_passing(self, path: Path) -> None:
        """End the program if the own tests of an unchanged module fail: they would kill every change."""
        files = tests_near(path)[0]
        tests = [name for name in self.seconds if name.partition("::")[0] in files]
        if self._fail(tests, files, 60.0):
            sys.exit(f"the tests of {path} fail without a change:\n{self.log.read_text()}")

    def _fail(self, tests: list[str], new_in: list[str], limit_s: float) -> bool:
        """Tell whether a test fails within the limit, also of those in `new_in` that the map does not have.

        A test that hangs fails.
        """
        chosen: dict[str, None] = {}
        expected_s = 0.0
        for test in tests:
            expected_s += self.seconds.get(test, 0)
            if chosen and expected_s > limit_s:
                break
            chosen[test] = None
        names = dict.fromkeys([test.partition("::")[0] for test in chosen] + new_in)
        files = [name for name in names if (self.copy / name).exists()]
        if not files:
            return False
        child = os.fork()
        if not child:
            os.setsid()
            self._run(list(chosen), files)
        deadline = time.monotonic() + 30 + 5 * min(expected_s, limit_s)
        while time.monotonic() < deadline:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                with suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                return os.waitstatus_to_exitcode(status) not in (0, 5)  # 5: no test was collected
            time.sleep(0.02)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return True

    def _run(self, tests: list[str], files: list[str]) -> None:
        import pytest

        order = {test: index for index, test in enumerate(tests)}
        left_out = (self.seconds.keys() | self.failing) - order.keys()

        class Chosen:
            @pytest.hookimpl(trylast=True)
            def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
                chosen = [item for item in items if item.nodeid not in left_out]
                items[:] = sorted(chosen, key=lambda item: order.get(item.nodeid, -1))

        os.chdir(self.copy)
        sys.path[0] = str(self.copy)
        os.environ["PYTHONPATH"] = str(self.copy)
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of hypothesis, which is loaded already
        options = ["-x", "-p", "no:cacheprovider", "-p", "no:xdist", *quiet, *(["--all"] if self.marked else [])]
        code: int = 1
        with suppress(BaseException):
            code = int(pytest.main([*options, *files], plugins=[Chosen()]))
        os._exit(code)


def judge_near(judge: Judge, arguments: argparse.Namespace) -> None:
    """Print a verdict and the changed line of each change, and the killed fraction."""
    seed = int(arguments.seed or commit()[:8], 16)
    by_line: dict[tuple[Path, int], list[Mutation]] = {}
    for path in sorted((ROOT / "ppsim").rglob("*.py")):
        if any(str(path.relative_to(ROOT / "ppsim")).startswith(start) for start in arguments.module):
            for mutation in mutations(path.read_text()):
                by_line.setdefault((path.relative_to(ROOT), mutation.line), []).append(mutation)
    number, random_ = min(arguments.n, len(by_line)), random.Random(seed)
    drawn = [(path, random_.choice(by_line[path, line])) for path, line in random_.sample(sorted(by_line), number)]
    judge.require_passing(drawn[0][0])
    print(f"seed {seed:08x}: {number} of {len(by_line)} lines", flush=True)
    killed = 0
    for path, mutation in drawn:
        original = (ROOT / path).read_text()
        verdict = judge.verdict(path, mutation)
        killed += not verdict.startswith(SURVIVED)
        print(f"{path}:{mutation.line}: {mutation.kind}: {verdict}")
        print(f"  - {original.splitlines()[mutation.line - 1].strip()}")
        print(f"  + {mutation.applied(original).splitlines()[mutation.line - 1].strip()}", flush=True)
    print(f"killed: {killed} of {number}, {100 * killed / number:.0f} %")


def commit() -> str:
    """Return the hash of the commit that is checked out."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def tests_near(path: Path) -> list[list[str]]:
    """Return the tests of a module: its examples and its own test files, then the test folder of its package."""
    package = Path("tests", *path.parts[1:-1])
    table = tomllib.loads((ROOT / "tests" / "module_tests.toml").read_text())
    own = table.get(str(path), [str(package / f"test_{path.stem}.py")])
    folder = Path(*package.parts[:2]) if len(path.parts) > 2 else Path("tests/api")
    examples = [str(path)] if ">>>" in (ROOT / path).read_text() else []
    return [[*examples, *own], [str(folder)]]


if __name__ == "__main__":
    main()
