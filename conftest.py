"""Examples in docstrings run in a folder of their own, for they write files; those of torch where it is there."""

import os

import pytest

os.environ["PPSIM_CACHE_DIR"] = ""  # tests search: they read no answer of an earlier run

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
