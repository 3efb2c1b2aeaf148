"""Building the package compiles its kernels into the wheel, and never fails for it."""

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.tags import sys_tags

from ppsim.catalog.build import CATALOG

ROOT = Path(__file__).parents[1]
NAME = f"kernels.one.py{sys.version_info[0]}{sys.version_info[1]}.nbi"


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A build with other code in place of the kernels'; returns files added to the wheel, and warnings."""
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    source = tmp_path / "ppsim" / "room"
    source.mkdir(parents=True)
    (source.parent / "__init__.py").touch()
    (source / "kernels.py").write_text(f"NAME = '{NAME}'\n")
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "kernels.one.py27.nbi").write_text("of another Python")

    def result(code, version="standard"):
        monkeypatch.setattr(hook, "WORK", code)
        said = []
        app = SimpleNamespace(display_warning=said.append)
        one = hook.CompiledKernels(str(tmp_path), {}, None, None, str(tmp_path), "wheel", app=app)
        data = {"force_include": {}}
        one.initialize(version, data)
        held = {to: Path(path).read_text() for path, to in data["force_include"].items()}
        return held, said

    return result


COMPILES = """
import os
from pathlib import Path
from ppsim.room.kernels import NAME
import ppsim.room.kernels as kernels
assert "NUMBA_CACHE_DIR" not in os.environ
folder = Path(kernels.__file__).parent / "__pycache__"
folder.mkdir(exist_ok=True)
(folder / NAME).write_text("compiled")
(folder / NAME.replace("nbi", "1.nbc")).write_text("machine code")
"""
BOTH = {
    f"ppsim/room/__pycache__/{NAME}": "compiled",
    f"ppsim/room/__pycache__/{NAME.replace('nbi', '1.nbc')}": "machine code",
}


def test_the_cache_beside_the_source_for_this_python_is_in_the_wheel(built, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", "elsewhere")
    assert built(COMPILES) == (BOTH, [])


def test_an_editable_install_has_it_in_the_source_itself(built, tmp_path):
    assert built(COMPILES, "editable") == ({}, [])
    assert (tmp_path / f"ppsim/room/__pycache__/{NAME}").read_text() == "compiled"


def test_compiling_finds_what_only_the_builds_own_process_has_on_its_path(built, tmp_path, monkeypatch):
    """As pip's isolated builds have numba: PYTHONPATH alone would find that of another environment, or none."""
    (tmp_path / "required").mkdir()
    (tmp_path / "required" / "required_by_the_build.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "required")
    held, warnings = built("import required_by_the_build" + COMPILES)
    assert (held, warnings) == (BOTH, [])


def test_each_placement_of_stages_is_compiled_by_a_process_of_its_own(built):
    held, _ = built(COMPILES.replace("/ NAME", "/ ('{placement}.' + NAME)").replace('"compiled"', "'{placement}'"))
    assert {entry.placement for entry in CATALOG.values()} == set(held.values()) - {"machine code"} == {"v", "loop"}


def test_a_build_where_compiling_fails_says_so_and_goes_on(built):
    held, (warning,) = built("import numba_that_is_not_there")
    assert held == {}
    assert warning.endswith(
        "when they are first needed: ModuleNotFoundError: No module named 'numba_that_is_not_there'"
    )


def test_a_wheel_for_other_machines_is_built_without(built, monkeypatch):
    monkeypatch.setenv("PPSIM_COMPILE_KERNELS", "0")
    assert built(COMPILES) == ({}, [])


PROJECT = """
[project]
name = "small"
version = "1"
requires-python = ">=3.11"
[tool.hatch.build.targets.wheel]
packages = ["ppsim"]
[tool.hatch.build.targets.wheel.hooks.custom]
"""


@pytest.mark.parametrize(("code", "is_pure"), [(COMPILES, False), ("", True), ("import not_there", True)])
def test_only_a_wheel_without_kernels_is_tagged_for_every_python_and_platform(built, tmp_path, code, is_pure):
    from hatchling.builders.wheel import WheelBuilder

    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "hatch_build.py").write_text((ROOT / "hatch_build.py").read_text() + f"\n\nWORK = {code!r}\n")
    (wheel,) = WheelBuilder(str(tmp_path)).build(directory=str(tmp_path / "dist"), versions=["standard"])
    _, _, tag = Path(wheel).stem.split("-", 2)
    assert (tag == "py3-none-any") == is_pure
    assert is_pure or tag == next(
        str(one) for one in sys_tags() if "manylinux" not in one.platform and "musllinux" not in one.platform
    )


def test_the_build_asks_for_what_the_kernels_need_in_the_versions_that_ppsim_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    needed = [one for one in project["project"]["dependencies"] if one.startswith(("numba", "numpy"))]
    assert hook["dependencies"] == needed
    assert len(needed) == 2
