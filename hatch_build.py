"""Compile the kernels when the package is built, so that users need not wait: numba's cache goes into the wheel.

The compiled files are next to the source. They are valid for one version of Python, one version of numba and one
kind of CPU. Elsewhere, ppsim compiles the kernels when it needs them. A failed compilation, or a missing numba,
gives a wheel without kernels. PPSIM_COMPILE_KERNELS=0 leaves the kernels out of a wheel for other machines.

A wheel with kernels is tagged for the Python and the platform that built it. A wheel without kernels is pure
Python.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WORK = "from ppsim.api.warm_up import warm_up; warm_up(placements=['{placement}'])"
PLACEMENTS = ("v", "loop")  # of stages; one process each, because they have few kernels in common


class CompiledKernels(BuildHookInterface):
    """Runs `ppsim warm-up` on the source in two processes, and adds numba's cache to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the kernels that numba's cache lacks, and add its files for this Python to a wheel."""
        if os.environ.get("PPSIM_COMPILE_KERNELS") == "0":
            return
        self._compile(Path(self.root))
        if version == "editable":
            return
        python = f"*.py{sys.version_info[0]}{sys.version_info[1]}.*nb[ci]"
        root, files = Path(self.root), Path(self.root, "ppsim").rglob(python)
        compiled = {str(path): path.relative_to(root).as_posix() for path in files}
        build_data["force_include"] |= compiled
        if compiled:
            build_data |= {"pure_python": False, "infer_tag": True}

    def _compile(self, root: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
        # If pip isolates the build, only this process' path has the packages that the build requires.
        environment |= {"PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)]), "PPSIM_CACHE_DIR": ""}
        commands = [[sys.executable, "-c", WORK.format(placement=placement)] for placement in PLACEMENTS]
        options: dict[str, Any] = {"cwd": root, "env": environment, "stdout": subprocess.DEVNULL, "text": True}
        running = [subprocess.Popen(command, stderr=subprocess.PIPE, **options) for command in commands]
        errors = [one.communicate()[1] for one in running]
        if failed := [text for one, text in zip(running, errors, strict=True) if one.returncode]:
            last = failed[0].strip().rpartition("\n")[2]
            self.app.display_warning(f"ppsim compiles its kernels when they are first needed: {last}")
