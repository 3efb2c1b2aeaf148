"""Examples in docstrings run in a folder of their own, for they write files; those of torch where it is there."""

import pytest

collect_ignore_glob = ["*/integrations/*_chunks.py"]  # import a trainer, which is there or warns of much


@pytest.fixture(autouse=True)
def _place_of_an_example(request: pytest.FixtureRequest) -> None:
    if not isinstance(request.node, pytest.DoctestItem):
        return
    source = "".join(example.source for example in request.node.dtest.examples)
    if "ppsim.train(" in source or "ppsim.profile(" in source:
        pytest.importorskip("torch")
    request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
