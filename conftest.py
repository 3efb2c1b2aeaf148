"""Which tests run, in which order and where.

Plain `pytest` leaves out the marked tests, `pytest --all` only the long ones, `-m EXPRESSION` those that it says.
Examples in docstrings run in a folder of their own, for they write files; those of torch where it is there.
"""

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # idle threads of BLAS and torch spin

pytest_plugins = ["tests.cpu_seconds"]

PACKAGE = Path(__file__).parent / "ppsim"
COSTLY = ("pages", "torch", "browser", "search", "oracle", "slow")
"""Marks of tests that only `pytest --all` runs; pyproject.toml says what each covers."""
ANSWERS = "PPSIM_CACHE_DIR"
FIRST = (
    "tests/test_documents.py",
    "tests/test_site.py",
    "tests/frozen",
    "tests/trainers/test_trainer_code.py",
    "tests/tuning",
    "tests/profiling/test_gpu_session.py",
    "tests/catalog/test_published_v.py",
    "tests/validation",
    "tests/runtime",
    "tests/projection",
    "tests/profiling",
)
"""What takes long: begun first, no worker has much to do when the others are done."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Do not import a module of ours that has no examples to run."""
    is_module = collection_path.suffix == ".py" and PACKAGE in collection_path.parents
    return True if is_module and ">>>" not in collection_path.read_text(encoding="utf-8") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes long first."""

    def place(item: pytest.Item) -> int:
        return next((place for place, name in enumerate(FIRST) if item.nodeid.startswith(name)), len(FIRST))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file is run by one worker, and a folder whose files share a fixture: what they share is made once."""
    from xdist.scheduler import LoadFileScheduling

    from tests.cpu_seconds import folder_of

    class OfSharedFixtures(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folder = folder_of(nodeid)
            return folder if folder in ("tests/runtime", "tests/validation") else nodeid.partition("::")[0]

    config.option.loadscopereorder = False  # it would begin with the files of many tests
    return OfSharedFixtures(config, log)


def pytest_collection_finish() -> None:
    """Exempt the 600,000 objects of imported modules from garbage collection, a fifth of the tests' time."""
    gc.freeze()
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help=f"also run tests marked {', '.join(COSTLY)}")


def pytest_configure(config: pytest.Config) -> None:
    """One run keeps the answers of its searches for all its processes, and reads none of an earlier run.

    The import of all modules makes no garbage worth a collection.
    """
    if not config.option.markexpr:
        left_out = ["long"] if config.option.all else ["long", *COSTLY]
        config.option.markexpr = f"not ({' or '.join(left_out)})"
    gc.disable()
    if not hasattr(config, "workerinput"):  # pytest-xdist's have the folder of who started them
        folder = tempfile.TemporaryDirectory(prefix="ppsim-answers-", ignore_cleanup_errors=True)
        os.environ[ANSWERS] = folder.name
        config.add_cleanup(folder.cleanup)


@pytest.fixture(autouse=True, scope="session")
def _modules_stay_exempt() -> Iterator[None]:
    """`ppsim.profile` ends with `gc.unfreeze`: each collection after it would look through all modules again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", gc.freeze)
        yield


@pytest.fixture(autouse=True)
def _searches_are_run_where_they_are_tested(request: pytest.FixtureRequest) -> Iterator[None]:
    kept = os.environ[ANSWERS]
    if "/catalog/" in request.node.nodeid:
        os.environ[ANSWERS] = ""
    yield
    os.environ[ANSWERS] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    """Forget the name of the test: in an equal environment, ranks are forked from the same process in all tests."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    """Forget the name that pytest has set again."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)


collect_ignore_glob = [  # run in processes of their own, or import a trainer, which is there or warns of much
    "tests/schedule/megatron_loops.py",
    "*/integrations/*_chunks.py",
]


@pytest.fixture(autouse=True)
def _place_of_an_example(request: pytest.FixtureRequest) -> None:
    if not isinstance(request.node, pytest.DoctestItem):
        return
    source = "".join(example.source for example in request.node.dtest.examples)
    if "ppsim.train(" in source or "ppsim.profile(" in source:
        pytest.importorskip("torch")
    request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
