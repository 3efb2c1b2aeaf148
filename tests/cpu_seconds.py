"""Pytest plugin: CPU seconds of each folder's tests, and a failure if a folder exceeds its budget by half.

CPU seconds are user and system time of a test's process and, on Linux, of all processes that it started.
Budgets are in pyproject.toml, in units of one cold `ppsim project --pp 8 --vpp 2`: seconds measure the machine.
"""

import os
import resource
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

TOLERANCE = 1.5
UNIT = (sys.executable, "-m", "ppsim", "project", "--pp", "8", "--vpp", "2")


TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s() -> float:
    """Return the CPU seconds of this process, of its children that ended, and of all descendants that run."""
    usages = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    total_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    with suppress(ChildProcessError):  # there is no child: /proc need not be read
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        total_s += descendants_cpu_s(Path("/proc/self"))
    return total_s


def descendants_cpu_s(process: Path) -> float:
    """Return the CPU seconds of the running descendants of a process, and of their children that ended."""
    total_s = 0.0
    with suppress(OSError):  # a process or a thread ended in the meantime
        for children in process.glob("task/*/children"):
            for pid in children.read_text().split():
                child = Path("/proc", pid)
                fields = (child / "stat").read_text().rpartition(")")[2].split()
                total_s += sum(map(int, fields[11:15])) / TICKS_PER_S  # utime, stime, cutime, cstime: proc(5)
                total_s += descendants_cpu_s(child)
    return total_s


def folder_of(nodeid: str) -> str:
    """Return the folder whose budget has a test.

    >>> folder_of("tests/trainers/torch/test_x.py::test_y"), folder_of("tests/test_site.py::test_y"), folder_of("ppsim/a/b.py::c")
    ('tests/trainers', 'tests', 'ppsim')
    """
    parts = Path(nodeid.partition("::")[0]).parts
    return parts[0] if parts[0] == "ppsim" or len(parts) == 2 else "/".join(parts[:2])


class CpuSeconds:
    """Sums of a run, on the process that reports; pytest-xdist's workers send theirs with each report."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.by_folder: Counter[str] = Counter()
        self.last_s = cpu_s()
        self.exceeded: list[str] = []

    def pytest_collection_finish(self) -> None:
        self.last_s = cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            now_s = cpu_s()
            report.cpu_s, self.last_s = now_s - self.last_s, now_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.by_folder[folder_of(report.nodeid)] += getattr(report, "cpu_s", 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.config.option.cpu_budgets or hasattr(self.config, "workerinput"):
            return
        project = tomllib.loads((self.config.rootpath / "pyproject.toml").read_text(encoding="utf-8"))
        self.exceeded = above_budget(
            self.by_folder,
            project["tool"].get("ppsim", {}).get("cpu-budgets", {}),
            unit_s(getattr(self.config.option, "numprocesses", None) or 1),
        )
        if self.exceeded and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        by_folder = sorted(self.by_folder.items(), key=lambda one: -one[1])
        told = ", ".join(f"{folder} {seconds:.1f}" for folder, seconds in by_folder if seconds >= 0.05)
        if told:
            terminalreporter.write_line(f"CPU seconds {sum(self.by_folder.values()):.1f}: {told}")
        for line in self.exceeded:
            terminalreporter.write_line(line, red=True)


def above_budget(by_folder: Counter[str], budgets: dict[str, float], unit: float) -> list[str]:
    """Return a sentence for each folder above its budget or without one; `by_folder` and `unit` are in seconds."""
    found = []
    for folder, seconds in by_folder.items():
        allowed = TOLERANCE * budgets.get(folder, 0.0)
        if seconds / unit > allowed:
            found.append(
                f"{folder}: {seconds:.1f} CPU s = {seconds / unit:.1f} cold projections, {allowed:g} allowed "
                f"({TOLERANCE} × [tool.ppsim.cpu-budgets] of pyproject.toml)"
            )
    return found


def unit_s(num_workers: int = 1) -> float:
    """Return the CPU seconds of one cold projection: the smallest of three.

    As many run at once as the tests had workers, because cores that share caches take more CPU seconds.
    """
    times = []
    for _ in range(3):
        before = cpu_s()
        environment = {**os.environ, "PPSIM_CACHE_DIR": ""}
        running = [subprocess.Popen(UNIT, env=environment, stdout=subprocess.DEVNULL) for _ in range(num_workers)]
        if any(process.wait() for process in running):
            raise RuntimeError(f"{' '.join(UNIT)} failed")
        times.append((cpu_s() - before) / num_workers)
    return min(times)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-budgets", action="store_true", help="fail if a folder's tests exceed their CPU budget")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuSeconds(config), "cpu-seconds")
