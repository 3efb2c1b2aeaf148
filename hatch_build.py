"""Compile the kernels when the package is built, so that no command has to: numba's files go into the wheel.

An editable install has them beside the source. They are for this version of Python and numba and for this CPU;
whatever else meets them compiles its own, as it would without them. Nothing of this may break an install: without
numba, or where compiling fails, the wheel is built without. PPSIM_COMPILE_KERNELS=0 leaves them out of a wheel that
is meant for other machines.

A wheel with kernels is tagged for the Python and the platform that built it. A wheel without is pure Python.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WORK = "from ppsim.api.warm_up import warm_up; warm_up(placements=['{placement}'])"
PLACEMENTS = ("v", "loop")  # of stages: a process each, for they have few kernels in common


class CompiledKernels(BuildHookInterface):
    """Runs `ppsim warm-up` on the source, or on a copy of it, in two processes."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile in place for an editable install; else beside a copy, and add what numba kept there."""
        if os.environ.get("PPSIM_COMPILE_KERNELS") == "0":
            return
        if version == "editable":
            self._compile(Path(self.root))
            return
        self.folder = tempfile.TemporaryDirectory()
        root = Path(self.folder.name)
        shutil.copytree(Path(self.root, "ppsim"), root / "ppsim", ignore=shutil.ignore_patterns("__pycache__"))
        self._compile(root)
        compiled = {str(path): path.relative_to(root).as_posix() for path in root.rglob("*.nb[ci]")}
        build_data["force_include"] |= compiled
        if compiled:
            build_data |= {"pure_python": False, "infer_tag": True}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the copy."""
        if folder := getattr(self, "folder", None):
            folder.cleanup()

    def _compile(self, root: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
        # What the build requires is on this process' path alone where pip isolates a build.
        environment |= {"PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)]), "PPSIM_CACHE_DIR": ""}
        commands = [[sys.executable, "-c", WORK.format(placement=placement)] for placement in PLACEMENTS]
        options: dict[str, Any] = {"cwd": root, "env": environment, "stdout": subprocess.DEVNULL, "text": True}
        running = [subprocess.Popen(command, stderr=subprocess.PIPE, **options) for command in commands]
        told = [one.communicate()[1] for one in running]
        if failed := [words for one, words in zip(running, told, strict=True) if one.returncode]:
            last = failed[0].strip().rpartition("\n")[2]
            self.app.display_warning(f"ppsim's kernels are compiled when they are first needed: {last}")
