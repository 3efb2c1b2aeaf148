"""JSON and text that are read in parts: where a value ends, and what is wrong at which character."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from ppsim.base.errors import ConfigError
from ppsim.runs.readers import stream
from ppsim.runs.readers.stream import entries_of, lines_of, opened


@pytest.fixture(params=[1, 3, 7, 4 * 2**20])
def _in_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_CHUNK", request.param)
    monkeypatch.setattr(stream, "_MARGIN", 16)


def entries(folder: Path, text: str, key: str = "list") -> list[Any]:
    file = folder / "f.json"
    file.write_bytes(text.encode())
    return list(entries_of(file, key))


@pytest.mark.usefixtures("_in_parts")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", []),
        (" { } ", []),
        ('{"a": 1, "b": [1, {"c": 2}]}', [("a", 1), ("b", [1, {"c": 2}])]),
        ('{"list": [], "a": -12.5e3}', [("list", {}), ("a", -12500.0)]),
        (
            '{"list" : [ 1 , {"x": "]"} , [2] ] , "a": "é\\n"}',
            [("list", 1), ("list", {"x": "]"}), ("list", [2]), ("a", "é\n")],
        ),
        ('{"list": 123456789}', [("list", 123456789)]),
        ('\ufeff{"a": true}', [("a", True)]),
        ('{"a": "tab\there"}', [("a", "tab\there")]),
    ],
)
def test_entries_come_one_after_the_other_and_items_of_the_list_alone(
    text: str, expected: list[Any], tmp_path: Path
) -> None:
    assert entries(tmp_path, text) == expected


@pytest.mark.usefixtures("_in_parts")
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[1]", r"f.json is not valid JSON: character 1: \{ is missing"),
        ("", "character 1: it is cut off"),
        ('{"a" 1}', "character 6: : is missing"),
        ('{"a": 1 "b": 2}', "character 9: , is missing"),
        ('{"a": 1, ', "character 10: it is cut off"),
        ('{"list": [1, ', "character 14: it is cut off"),
        ('{"list": [1 2]}', "character 13: , is missing"),
        ('{"a": wrong, "more": "text that is longer than the margin"}', "character 7: Expecting value"),
        ('{"a": "text', "character 7: Unterminated string"),
    ],
)
def test_what_is_wrong_is_told_with_its_character(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        entries(tmp_path, text)


def test_values_and_lists_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LONGEST", 3 * 2**20)
    monkeypatch.setattr(stream, "_CHUNK", 2**20)
    assert entries(tmp_path, f'{{"a": "{"x" * (2 * 2**20)}"}}')[0][0] == "a"
    with pytest.raises(ConfigError, match="a value is longer than 3 MiB"):
        entries(tmp_path, f'{{"a": "{"x" * (5 * 2**20)}"}}')
    with pytest.raises(ConfigError, match="holds a number too long or lists too deep"):
        entries(tmp_path, f'{{"a": {"[" * 100_000}')
    with pytest.raises(ConfigError, match="holds a number too long or lists too deep"):
        entries(tmp_path, f'{{"a": {"1" * 10_000}}}')


def test_lines_are_read_in_parts_of_the_longest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LONGEST", 4)
    file = tmp_path / "f.txt"
    file.write_bytes("\ufeffab\nabcdef\n\nx".encode())
    assert list(lines_of(file)) == ["ab\n", "abcd", "ef\n", "\n", "x"]
    file.write_bytes(b"a\xffb")
    assert list(lines_of(file, errors="replace")) == ["a\ufffdb"]
    with pytest.raises(ConfigError, match="is not a text file"):
        list(lines_of(file))


def test_files_are_packed_by_their_content_or_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(b"content" * 100))
    with opened(packed) as file:
        assert file.read() == b"content" * 100
    plain = tmp_path / "plain.txt"
    plain.write_bytes(b"content")
    with opened(plain) as file:
        assert file.read() == b"content"
    wrong = tmp_path / "f.gz"
    wrong.write_bytes(b"content")
    with pytest.raises(ConfigError, match="it is not packed by gzip"), opened(wrong) as file:
        file.read()
    cut = tmp_path / "cut.gz"
    cut.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(ConfigError, match="is cut off: its gzip stream has no end"), opened(cut) as file:
        file.read()
    with (
        pytest.raises(ConfigError, match=r"cannot read .*: No such file or directory"),
        opened(tmp_path / "no") as file,
    ):
        file.read()
    monkeypatch.setattr(stream, "LEAST_UNPACKED", 0)
    size = packed.stat().st_size
    monkeypatch.setattr(stream, "MOST_UNPACKED", 700 / size)
    with opened(packed) as file:
        assert len(file.read()) == 700
    monkeypatch.setattr(stream, "MOST_UNPACKED", 699 / size)
    with pytest.raises(ConfigError, match="times its size: it is no recording"), opened(packed) as file:
        file.read()
    monkeypatch.setattr(stream, "LEAST_UNPACKED", 700)
    with opened(packed) as file:
        assert len(file.read()) == 700


@pytest.fixture
def _as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the small windows of the other tests."""
    monkeypatch.undo()


@pytest.mark.usefixtures("_as_shipped")
def test_a_file_is_read_in_parts_of_4_mib_with_values_of_up_to_64_mib() -> None:
    names = ("_CHUNK", "LONGEST", "LEAST_UNPACKED", "_MARGIN")
    assert [getattr(stream, name) for name in names] == [4_194_304, 67_108_864, 67_108_864, 16]
