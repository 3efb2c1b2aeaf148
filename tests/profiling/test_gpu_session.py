"""scripts/gpu_session.sh, as on a machine with torch, numpy and click, where ppsim is not installed."""

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from ppsim.costs.profile import load_profile

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_session.sh"
THERE = (
    "torch", "torchgen", "functorch", "numpy", "click",
    # what these need
    "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "setuptools", "sympy", "typing_extensions",
)  # fmt: skip
LIMITS = f"""
import os, sys, sysconfig
from importlib.machinery import PathFinder

class Hiding(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        found = PathFinder.find_spec(name, path, target)
        where = [found.origin or "", *(found.submodule_search_locations or ())] if found else []
        installed = any(one.startswith(sysconfig.get_path("purelib")) for one in where)
        return None if installed and name.partition(".")[0] not in {THERE!r} else found

kept = [one for one in sys.meta_path if "editable" not in repr(one).lower()]
sys.meta_path[:] = [Hiding if one is PathFinder else one for one in kept]
if {str(ROOT)!r} not in os.environ["PYTHONPATH"].split(os.pathsep):  # the path of an editable install
    sys.path[:] = [one for one in sys.path if one != {str(ROOT)!r}]
"""
"""A sitecustomize that hides all else that is installed here, ppsim included: offline, and quicker than an install."""

NVIDIA_SMI = """#!/bin/sh
echo $$ > "$SMI_PID"
while kill -0 $PPID 2>/dev/null; do
    echo "$(date '+%Y/%m/%d %H:%M:%S.%3N'), 580.159.04, 1755, 3201, 690.12, 61, 100, 0x0000000000000004"
    sleep 0.05
done
"""
"""Stands in for nvidia-smi -lms 200, whose arguments it does not read; ends with a session that was killed, too."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    for name, content in (("limits/sitecustomize.py", LIMITS), ("bin/nvidia-smi", NVIDIA_SMI)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content)
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    (tmp_path / "elsewhere").mkdir()
    return os.environ | {
        "PYTHONPATH": str(tmp_path / "limits"), "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHON": sys.executable, "DEVICE": "cpu", "SUITE": "smoke", "WORK": str(tmp_path / "work"),
        "OUT": str(tmp_path / "out"), "SMI_PID": str(tmp_path / "smi.pid"),
        "PROBE_LIMIT": "400",
    }  # fmt: skip


def session(environment: dict[str, str], *parts: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(SCRIPT), *parts], cwd=Path(environment["WORK"]).parent / "elsewhere", env=environment | more,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def packed(environment: dict[str, str]) -> list[str]:
    with tarfile.open(Path(environment["OUT"]) / "gpu-results.tar.gz") as tar:
        return [name.removeprefix("./") for name in tar.getnames()]


@pytest.mark.slow
def test_the_environment_hides_what_it_says(environment: dict[str, str]) -> None:
    for name, is_there in (
        ("torch", True),
        ("click", True),
        ("pydantic", False),
        ("pandas", False),
        ("ppsim", False),
    ):
        code = subprocess.run(
            [sys.executable, "-c", f"import {name}"], cwd="/", env=environment, capture_output=True, check=False
        )
        assert (code.returncode == 0) == is_there, name


@pytest.mark.timeout(900)
@pytest.mark.long
def test_every_part_runs_from_another_folder_where_ppsim_is_not_installed(environment: dict[str, str]) -> None:
    """And leaves one file, with the device's log in each profile, and no process."""
    work = Path(environment["WORK"])
    done = session(environment, LIMIT="800")
    logs = {path.name: path.read_text() for path in work.glob("*.log")}
    assert done.returncode == 0, (done.stdout, done.stderr, logs)
    assert sorted(logs) == ["check.log", "probe.log", "profiles-1.log", "spins.log"]
    assert [one["outcome"] for one in json.loads((work / "probe" / "probe.json").read_text())] == ["ok"] * 6
    assert "host: 0F0 " in (work / "probe" / "trace.log").read_text()
    cases = json.loads((work / "spins.json").read_text())
    assert [case["schedule"] for case in cases] == ["1f1b", "zb-h1", "zbv-fixed"]
    for name in ("nano", "llama-mini", "moe-mini"):
        under_load = load_profile(str(work / "profiles" / f"{name}.json")).provenance.under_load
        assert under_load is not None
        assert under_load.held_back == {"power cap": 1.0}
    assert "1755 MHz" in done.stdout
    names = packed(environment)
    assert {"device.csv", "spins.json", "profiles/nano.json", "probe/probe.json"} <= {*names}
    assert not [name for name in names if name.endswith(".tar.gz")]
    assert (Path(environment["OUT"]) / "gpu-results.tar.gz").stat().st_size < 2**20
    pid = int(Path(environment["SMI_PID"]).read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    again = session(environment, "run", "profiles", LIMIT="400")
    assert again.returncode == 0, again.stdout
    assert "9 of 9" not in again.stdout
    assert (work / "profiles-1.log").read_text().count("measuring layer") == 0


def test_it_ends_before_its_limit_and_packs_what_there_is(environment: dict[str, str]) -> None:
    """44 seconds, of which 40 are kept for the results: nothing is begun."""
    begin = time.monotonic()
    done = session(environment, LIMIT="44")
    assert time.monotonic() - begin < 44
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("left for the next call: the time is over") == 3
    assert "device.csv" in packed(environment)
    assert session(environment, "profile").stdout.startswith("unknown part 'profile': there are probe, run, ")


def test_a_session_that_is_killed_leaves_no_stand_in_behind(environment: dict[str, str]) -> None:
    """As where the test of one was: the shell then runs no trap."""
    killed = subprocess.Popen(["sh", str(SCRIPT), "run"], env=environment | {"PYTHON": "true", "LIMIT": "600"})
    pid_file = Path(environment["SMI_PID"])
    deadline = time.monotonic() + 60
    while not pid_file.exists() or not pid_file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    pid = int(pid_file.read_text())
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    pytest.fail(f"process {pid} goes on")


def test_a_step_that_fails_stops_no_other_and_is_named(environment: dict[str, str]) -> None:
    done = session(environment, "profiles", SUITE="large", LIMIT="200")
    assert done.returncode == 1
    assert "failed: profiles-1 (exit 2)" in done.stdout
    assert "profiles-1.log" in packed(environment)
