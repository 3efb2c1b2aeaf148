"""The distribution's name: pip must never be told to install `ppsim`, which is another project on the public index."""

import pickle
import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

import ppsim
from ppsim.base.errors import ConfigError, MissingExtra, install_hint
from ppsim.base.files import prefix_errors
from ppsim.base.version import DISTRIBUTION

ROOT = Path(__file__).parents[1]
FOLDERS = (".ci", "benchmarks", "docs", "notebooks", "ppsim", "profiles", "schedules", "scripts", "tests")
NAMED = re.compile(
    r"\bpip3?\s+(?:install|download|wheel)\b[^&|;`)\n]*?(?<![\w./-])ppsim(?![\w/:-]|\.\w)"  # pip install -q 'torch' ppsim
    r"|(?<![\w./-])ppsim\[[a-z,]+\](?!\()"  # 'ppsim[torch]'
    r"|[\"']ppsim\s*(?:==|>=|~=|<|@)"  # "ppsim>=0.3"
)


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def texts():
    """Every text file of the checkout, but this one."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
    for path in [*paths, *ROOT.glob("*.*")]:
        if path.is_file() and path != Path(__file__):
            try:
                yield path, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def test_no_text_tells_pip_to_install_the_other_project():
    found = [(path.relative_to(ROOT), match[0]) for path, text in texts() for match in NAMED.finditer(text)]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "pip install ppsim", "pip install 'ppsim[torch]'", 'pip install -U "ppsim"', "python -m pip install ppsim==1.0",
        "pip install torchtitan==0.3.0 'torch>=2.14' ppsim\n", 'needs `pip install "\n"\'ppsim[tune]\'`', '"ppsim>=1"',
        "pip3 install ppsim.", "pip install ppsim, then",
    ],
)  # fmt: skip
def test_the_check_finds_the_name_however_it_is_written(text):
    assert NAMED.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'ppsim-pipeline[torch]'", "pip install . && ppsim project", "`pip install .` brings ppsim",
        ".venv/bin/pip install -q . && .venv/bin/ppsim project", "pip install ./ppsim", "pip install ppsim-pipeline",
    ],
)  # fmt: skip
def test_the_check_lets_our_own_name_and_commands_pass(text):
    assert not NAMED.search(text)


def test_the_project_has_one_name(project):
    assert project["name"] == DISTRIBUTION
    of_itself = [one for one in project["optional-dependencies"]["dev"] if one.startswith("ppsim")]
    assert of_itself == [f"{DISTRIBUTION}[app,docs]"]
    assert list(project["scripts"]) == ["ppsim"]


def test_an_installed_ppsim_has_the_name_and_version_of_the_source():
    try:
        installed = distribution(DISTRIBUTION)
    except PackageNotFoundError:
        pytest.skip(f"{DISTRIBUTION} is not installed: python runs the source")
    assert installed.version == ppsim.__version__
    assert [one.name for one in installed.entry_points if one.group == "console_scripts"] == ["ppsim"]


def test_every_error_of_a_missing_package_names_an_extra_that_there_is(project):
    """The sentences are made in one place, from an extra of pyproject.toml."""
    code = {path: text for path, text in texts() if path.is_relative_to(ROOT / "ppsim") and path.suffix == ".py"}
    named = {extra for text in code.values() for extra in re.findall(r"MissingExtra\.of\(\s*\"(\w+)\"", text)}
    assert len(named) > 5
    assert named <= set(project["optional-dependencies"])
    by_hand = [path for path, text in code.items() if re.search(r"MissingExtra\(|pip install\b", text)]
    assert [path.name for path in by_hand] == ["errors.py"]


def test_the_sentence_has_the_command_for_an_installed_ppsim_and_for_a_clone():
    assert install_hint("ray") == f"pip install '{DISTRIBUTION}[ray]' (in a clone: pip install '.[ray]')"


def test_a_missing_extra_survives_processes_and_the_name_of_a_file():
    error = MissingExtra.of("dask", "this needs distributed")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    with (
        pytest.raises(MissingExtra, match=r"^f\.json: this needs distributed: pip install"),
        prefix_errors("f.json"),
    ):
        raise error
    assert not isinstance(error, ConfigError)
