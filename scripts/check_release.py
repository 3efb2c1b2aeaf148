"""Build the release, check its content, and try it in an environment without other packages.

`python scripts/check_release.py` needs the packages of the extra `dev`. It leaves the release in dist/: the sdist
and a wheel without compiled kernels, for every Python and platform. A wheel with kernels, as `pip install .` builds
it, works only with the Python and the platform that built it. It is built and tried in a temporary folder.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_BYTES = 5_000_000

FOLDERS = (".ci", "benchmarks", "docs", "notebooks", "ppsim", "profiles", "schedules", "scripts", "tests")
FILES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "conftest.py",
    "constraints.txt",
    "hatch_build.py",
    "pyproject.toml",
)
"""Files that the sdist must contain: all files that the tests read."""

USER_SCRIPT = """\
import ppsim
reveal_type(ppsim.project(pp=8, vpp=2).iteration_time_s)
reveal_type(ppsim.tune(model="gpt2", gpus=2, global_batch=8).best[0].iteration_time_s)
"""
WRONG_SCRIPT = """\
import ppsim
ppsim.project(pp="8")
ppsim.export("1f1b", to="torch")
"""


def main() -> None:
    """Build, check and list the release; exit with 1 and a reason if a check fails."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wheel, sdist = built_release()
        (compiled,) = build(folder / "compiled", "--wheel", with_kernels=True).glob("*.whl")
        for archive in (wheel, sdist, compiled):
            print(f"{archive.name}: {archive.stat().st_size / 1e6:.2f} MB")
        for one in (wheel, compiled):
            require(one.stat().st_size < MOST_BYTES, f"{one.name} is larger than {MOST_BYTES / 1e6:g} MB")
            require("ppsim/py.typed" in zipfile.ZipFile(one).namelist(), f"{one.name} has no py.typed")
            require_tag(one)
        require(not kernels_in(wheel), f"{wheel.name} is for release, but has compiled kernels")
        require(bool(kernels_in(compiled)), f"{compiled.name} was built with kernels, but has none")
        missing = needed() - held_by(sdist)
        require(not missing, f"the sdist lacks {', '.join(sorted(missing)[:5])}")
        try_wheel(wheel, folder)
        try_kernels(compiled, folder)
        try_sdist(sdist, folder)


def require(holds: bool, otherwise: str) -> None:
    """End the script with a sentence unless a condition holds."""
    if not holds:
        raise SystemExit(otherwise)


def built_release() -> tuple[Path, Path]:
    """Build the sdist, and from it the pure wheel, into dist/. Older builds there are deleted."""
    for old in (ROOT / "dist").glob("ppsim*"):
        old.unlink()
    folder = build(ROOT / "dist", with_kernels=False)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def build(folder: Path, *options: str, with_kernels: bool) -> Path:
    """Run `python -m build`, and return the output folder."""
    command = [sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", str(folder), str(ROOT)]
    environment = os.environ | {"PPSIM_COMPILE_KERNELS": str(int(with_kernels))}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    return folder


def require_tag(wheel: Path) -> None:
    """End the script if the wheel's tag does not match its kernels."""
    is_pure = wheel.name.endswith("-py3-none-any.whl")
    reason = "has compiled kernels" if is_pure else "has no compiled kernels"
    require(is_pure != bool(kernels_in(wheel)), f"the tag of {wheel.name} is wrong: the wheel {reason}")


def kernels_in(wheel: Path) -> list[str]:
    """Return the files with compiled code of numba."""
    return [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".nbi", ".nbc"))]


def needed() -> set[str]:
    """Return the files that must be in the sdist."""
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not any(part == "__pycache__" or part.startswith(".ipynb") for part in path.parts)
    }
    return found | set(FILES)


def held_by(sdist: Path) -> set[str]:
    """Return the files of the sdist, relative to its top folder."""
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def try_wheel(wheel: Path, folder: Path) -> None:
    """Install the wheel into a new environment, project, and check that mypy reads its types."""
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", str(wheel)], check=True)
    command = [folder / "env" / "bin" / "ppsim", "project", "--pp", "8", "--vpp", "2"]
    told = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    print(told.splitlines()[0])
    revealed = typed_by_mypy(USER_SCRIPT, python, folder)
    require(revealed.count('Revealed type is "float"') == 2, f"mypy sees no types of the wheel:\n{revealed}")
    wrong = typed_by_mypy(WRONG_SCRIPT, python, folder)
    require("Found 2 errors" in wrong, f"mypy lets wrong calls pass:\n{wrong}")
    print("mypy sees the types of the wheel")


def try_kernels(wheel: Path, folder: Path) -> None:
    """Install the wheel with kernels; the numba that built it must have nothing left to compile."""
    python = folder / "env" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", str(wheel)], check=True)
    asked = [[one, "-c", "import numba; print(numba.__version__)"] for one in (sys.executable, python)]
    built_with, there = (subprocess.run(one, check=True, capture_output=True, text=True).stdout for one in asked)
    command = [folder / "env" / "bin" / "ppsim", "warm-up"]
    told = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    require(
        built_with != there or told.startswith("all kernels were compiled before"),
        f"the wheel lacks kernels:\n{told}",
    )
    print(f"numba {there.strip()}, the wheel built with {built_with.strip()}: {told.splitlines()[-1]}")


def try_sdist(sdist: Path, folder: Path) -> None:
    """Unpack the sdist and project: packaged files must be found as in a checkout."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.glob("ppsim_pipeline-*")
    code = "import ppsim; print(ppsim.__file__); print(ppsim.project(pp=8, vpp=2).iteration_time_s)"
    done = subprocess.run([sys.executable, "-c", code], cwd=unpacked, check=True, capture_output=True, text=True)
    require(done.stdout.startswith(str(unpacked)), f"another ppsim was tried: {done.stdout}")
    print("the sdist projects from where it is unpacked")


def typed_by_mypy(script: str, python: Path, folder: Path) -> str:
    """Return the output of mypy --strict for a script, with the packages of `python`."""
    (folder / "script.py").write_text(script)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "script.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


if __name__ == "__main__":
    main()
