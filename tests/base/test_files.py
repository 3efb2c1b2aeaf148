"""Files are read within their limits, refused with their name, and written whole or not at all."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ppsim.base import files as files_module
from ppsim.base.errors import ConfigError, CostsError, DoesNotFit
from ppsim.base.files import (
    csv_text,
    data_folder,
    markdown_table,
    prefix_errors,
    read_head,
    read_json,
    read_text,
    read_toml,
    read_yaml,
    require_writable,
    to_json,
    write_atomically,
)
from tests.defaults import number_defaults


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_a_text_may_have_as_many_bytes_as_its_limit(path: Path) -> None:
    path.write_bytes(b"12345")
    assert read_text(path, most=5) == "12345"
    with pytest.raises(ConfigError):
        read_text(path, most=4)


def test_a_head_is_whole_lines_up_to_its_limit(path: Path) -> None:
    path.write_bytes(b"ab\ncd\nef\n")
    assert read_head(path, most=9) == ("ab\ncd\nef\n", False)
    assert read_head(path, most=8) == ("ab\ncd\n", True)
    assert read_head(path, most=6) == ("ab\ncd\n", True)
    assert read_head(path, most=5) == ("ab\n", True)


def test_byte_order_marks_and_ends_of_lines_of_windows_are_left_out(path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n")
    assert read_text(path) == "a\nb\nc\n"


def test_a_file_without_a_size_is_read_to_its_end_and_a_device_without_end_is_refused() -> None:
    assert "Name:" in read_text("/proc/self/status")
    with pytest.raises(ConfigError, match="/dev/zero"):
        read_text("/dev/zero")


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (read_text, b"\xff\xfe\xff"),
        (read_json, b"{"),
        (read_json, b"[" * 100_000),
        (read_json, b"1" * 5000),
        (read_json, b'"\\ud800"'),
        (read_toml, b"a = "),
        (read_toml, b'a = "' + b"." * 201 + b'"'),
        (read_yaml, b"a: ["),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_name_of_the_file(
    path: Path, read: Callable[[Path], Any], content: bytes
) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        read(path)


def test_as_many_points_as_the_limit_and_whole_characters_are_read(path: Path) -> None:
    path.write_text(f'a = "{"." * 200}"')
    assert read_toml(path) == {"a": "." * 200}
    path.write_bytes(b'"\\ud83d\\ude00"')
    assert read_json(path) == "\U0001f600"


def test_json_that_is_cut_off_has_its_place_and_the_command_that_writes_it(path: Path) -> None:
    path.write_text('{"a": 1,\n "b" 2}')
    with pytest.raises(ConfigError, match=r"line 2, column 6: .*; ppsim read writes it"):
        read_json(path, made_by="ppsim read writes it")


def test_keys_and_dates_of_yaml_are_text(path: Path) -> None:
    path.write_text("on: 2024-01-01\n1: 2\nnull: {yes: 1.5}\n")
    assert read_yaml(path) == {"on": "2024-01-01", "1": 2, "null": {"yes": 1.5}}


@pytest.mark.parametrize("name", [".", "missing", "nul\0"])
def test_names_that_are_no_readable_file_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_text(f"{tmp_path}/{name}")


def test_errors_get_the_name_of_their_file_once_and_keep_their_class() -> None:
    for message in ("pp is 0", "a.toml: pp is 0"):
        with pytest.raises(CostsError) as error, prefix_errors("a.toml"):
            raise CostsError(message)
        assert str(error.value) == "a.toml: pp is 0"
    with pytest.raises(DoesNotFit) as other, prefix_errors("a.toml", ConfigError):
        raise DoesNotFit("too large")
    assert str(other.value) == "too large"


def test_json_has_no_nan() -> None:
    assert to_json({"a": "é"}) == '{\n "a": "é"\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(float("nan"))


def test_a_table_has_the_columns_of_its_first_row() -> None:
    assert csv_text([{"a": 1, "b": "x,y"}, {"a": 2, "b": ""}]) == 'a,b\n1,"x,y"\n2,\n'


def test_paths_that_cannot_be_written_are_refused_before_work_begins(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "absent" / "file")
    for name in ("", tmp_path, tmp_path / "absent" / "file", tmp_path / "link"):
        with pytest.raises(ConfigError, match="cannot write"):
            require_writable(name)
    for name in (tmp_path / "new", "/dev/null"):
        require_writable(name)
    assert list(tmp_path.iterdir()) == [tmp_path / "link"]


def test_a_folder_or_a_file_without_permission_cannot_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_text("old")
    for refused in (path, path.parent):
        monkeypatch.setattr(os, "access", lambda place, mode, refused=refused: Path(place) != refused)
        with pytest.raises(ConfigError, match="no permission"):
            require_writable(path)


def test_a_new_file_has_the_usual_mode_and_a_replaced_file_keeps_its_mode(path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write_atomically(path, "a")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        write_atomically(path, b"b")
    finally:
        assert os.umask(mask) == 0o027
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    assert path.read_text() == "b"


def test_a_link_is_followed_and_a_device_is_not_replaced(path: Path) -> None:
    path.write_text("old")
    link = path.with_name("link")
    link.symlink_to(path)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    write_atomically("/dev/null", "new")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_failure_leaves_the_old_content_and_no_other_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    path.write_text("old")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ConfigError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_what_is_left_out_in_base_files_has_these_values() -> None:
    assert number_defaults(files_module) == {
        "read_json": {"most": 2147483648},
        "_parsed": {"most": 1048576},
        "read_text": {"most": 1048576},
        "read_head": {"most": 1048576},
    }  # fmt: skip


def test_a_bar_in_a_cell_of_markdown_is_escaped_and_none_is_empty() -> None:
    rows = [{"rank": 0, "note": "a|b"}, {"rank": None, "note": 3}]
    assert markdown_table(rows) == "| rank | note |\n| --- | --- |\n| 0 | a\\|b |\n|  | 3 |\n"


def test_a_table_of_an_iterator_needs_a_header() -> None:
    assert csv_text(iter([{"a": 1}]), ("b", "a")) == "b,a\n,1\n"


def test_data_is_in_the_package_or_next_to_it() -> None:
    package = Path(files_module.__file__).parents[1]
    assert data_folder("base") == package / "base"
    assert data_folder("no such folder") == package.parent / "no such folder"
