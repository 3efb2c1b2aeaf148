"""The suffix of a path selects the format of an output file."""

from pathlib import Path

import pytest

from ppsim.base.errors import ConfigError
from ppsim.base.write_outputs import suffix_of, write

FORMATS = {".json": ("report", str), ".trace.json": ("", lambda content: f"trace of {content}")}


def test_each_path_gets_the_format_of_its_longest_suffix_and_is_announced(tmp_path: Path) -> None:
    paths = [f"{tmp_path}/a.json", f"{tmp_path}/a.trace.json"]
    said: list[str] = []
    write(paths, FORMATS, 7, announce=said.append)
    assert said == [f"wrote {paths[0]} (report)", f"wrote {paths[1]}"]
    assert [Path(path).read_text() for path in paths] == ["7", "trace of 7"]


@pytest.mark.parametrize("name", ["a.csv", "", "json"])
def test_an_unknown_suffix_is_refused_with_those_that_there_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"\.json, \.trace\.json"):
        suffix_of(name and f"{tmp_path}/{name}", FORMATS)


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        suffix_of(f"{tmp_path}/absent/a.json", FORMATS)
