"""The table of modules' tests (module_tests.toml) names existing test files that import the modules."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = tomllib.loads((ROOT / "tests" / "module_tests.toml").read_text())
PATHS = [path.relative_to(ROOT) for path in sorted((ROOT / "ppsim").rglob("*.py"))]
MOST_FILES = 3
MOST_STEPS = 2  # a test runs a command, which imports a public function, which imports the module


def own_tests(module: Path) -> Path:
    return Path("tests", *module.parts[1:-1], f"test_{module.stem}.py")


def has_code(module: Path) -> bool:
    """Return whether a module has more than a documentation string."""
    return re.fullmatch(r'"""[^"]*"""\s*', (ROOT / module).read_text()) is None


def test_the_table_lists_the_modules_without_a_test_file_of_their_name() -> None:
    without = {str(path) for path in PATHS if has_code(path) and not (ROOT / own_tests(path)).exists()}
    assert sorted(without - set(TABLE)) == [], "missing: name the files that test these modules"
    assert sorted(set(TABLE) - without) == [], "superfluous: removed, without code, or with a file of their name"


def test_every_row_names_test_files() -> None:
    assert [module for module, files in TABLE.items() if not 1 <= len(set(files)) == len(files) <= MOST_FILES] == []
    names = {file for files in TABLE.values() for file in files}
    assert [name for name in sorted(names) if not (ROOT / name).is_file() or "/test_" not in name] == []


class Imports:
    """Imports of all modules and test files, read with regular expressions, because that takes a tenth of the time.

    Dotted names in texts count as imports: of functions that a test replaces, and of modules that are loaded by name.
    """

    def __init__(self) -> None:
        self.paths = {dotted(path): path for path in PATHS}
        public = (ROOT / "ppsim" / "__init__.py").read_text()
        self.homes = dict(re.findall(r'"(\w+)": "(ppsim[\w.]+)"', public))
        self.by_module = {module: self.of(ROOT / path) for module, path in self.paths.items()}
        self.by_module["ppsim"] = {self.module(name) for name in re.findall(r'"(ppsim[\w.]+):', public)}
        builders = re.findall(
            r'^build = "([\w.]+):', (ROOT / "ppsim/catalog/schedules.toml").read_text(), re.MULTILINE
        )
        self.by_module["ppsim.catalog.entries"] |= {
            f"ppsim.catalog.{module}" for module in builders
        }  # loaded by name
        commands = {module for module in self.paths if module.startswith("ppsim.cli.")}  # loaded by name
        self.by_test: dict[str, set[str]] = {}
        for name in {file for files in TABLE.values() for file in files}:
            found = self.of_test(ROOT / name)
            self.by_test[name] = found | (commands if "ppsim.cli" in found else set())

    def of(self, path: Path) -> set[str]:
        text = path.read_text()
        names = set(re.findall(r"\bppsim(?:\.\w+)+", text))
        for package, several, one in re.findall(r"from (ppsim[\w.]*) import (?:\(([^)]*)\)|(.*))", text):
            names |= {f"{package}.{name}" for name in re.findall(r"\w+", several or one)}
        return {self.module(name) for name in names} - {"ppsim"}

    def of_test(self, path: Path) -> set[str]:
        """Return the modules that a test file and the other files that it imports from tests/ import."""
        found, left, read = {"ppsim"}, [path], set()
        while left:
            read.add(path := left.pop())
            found |= self.of(path)
            for package, names in re.findall(
                r"^from (tests[\w.]*) import ([\w, ]+)", path.read_text(), re.MULTILINE
            ):
                for name in (package, *(f"{package}.{name}" for name in names.split(", "))):
                    file = ROOT / (name.replace(".", "/") + ".py")
                    left += [file] if file.exists() and file not in read else []
        return found

    def module(self, name: str) -> str:
        """Return the module that a dotted name is in or names."""
        name = self.homes.get(name.removeprefix("ppsim."), name)
        while name not in self.paths:
            name = name.rpartition(".")[0]
        return name

    def reach(self, test: str, module: str) -> bool:
        """Return whether a test file imports a module, in `MOST_STEPS` further steps at most."""
        found = self.by_test[test]
        for _ in range(MOST_STEPS):
            if module in found:
                return True
            found = found | {imported for name in found for imported in self.by_module[name]}
        return module in found


def dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(scope="module")
def imports() -> Imports:
    return Imports()


def test_the_files_of_a_row_import_the_module(imports: Imports) -> None:
    far = [
        f"{name} does not import {module}"
        for module, names in TABLE.items()
        for name in names
        if not imports.reach(name, dotted(Path(module)))
    ]
    assert far == []


def test_a_file_of_another_package_does_not_import_a_module(imports: Imports) -> None:
    assert imports.reach("tests/runs/test_readers.py", "ppsim.runs.rank_alignment")
    assert not imports.reach("tests/parallel/test_layout.py", "ppsim.runs.rank_alignment")
