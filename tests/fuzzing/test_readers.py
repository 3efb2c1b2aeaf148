"""Every reader reads or refuses each mutated file, in one process, within 2 s and 500 MB."""

import os
from pathlib import Path

import pytest

from tests.fuzzing.run import fuzz

NUM, SEED = 2_000 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 40, 20_261_124
MOST_S, MOST_BYTES = 2.0, 500e6


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is as before afterwards."""
    monkeypatch.chdir(Path.cwd())


@pytest.mark.filterwarnings("ignore")
def test_no_mutated_file_gets_past_the_readers(tmp_path: Path) -> None:
    found = fuzz(tmp_path, NUM, SEED)
    assert not found.unforeseen, "\n\n".join(f"{key}\n{text}" for key, (_, _, text) in found.unforeseen.items())
    assert found.outcomes["read"] > NUM // 10, "too few files are read: mutations hide what comes after reading"
    assert found.outcomes["refused"] > NUM // 10
    assert found.slowest[0][0] < MOST_S, found.slowest[0]
    assert not found.largest or found.largest[0][0] < MOST_BYTES, found.largest[0]
