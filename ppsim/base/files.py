"""Reading of files with clear error messages, and atomic writing."""

import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.limits import CONFIG_BYTES, DATA_BYTES, check_events, check_tree


def read_json(path: str | Path, *, most: int = DATA_BYTES, made_by: str = "") -> Any:
    """Raises `ConfigError` with line and column; `made_by` names the command that writes such a file."""
    hint = f"; {made_by}" if made_by else ""

    def told(error: json.JSONDecodeError) -> str:
        return f"JSON: line {error.lineno}, column {error.colno}: {error.msg}{hint}"

    return _parsed(path, json.loads, json.JSONDecodeError, told, most)


def read_toml(path: str | Path) -> dict[str, Any]:
    import tomllib

    def parsed(text: str) -> dict[str, Any]:
        # The parser takes quadratic time in the number of a key's parts.
        if any(run.count(".") > _MOST_PARTS for run in re.findall(r"[\w.\"' \t-]+", text)):
            raise ConfigError(f"{path} has a key of more than {_MOST_PARTS} parts")
        return tomllib.loads(text)

    content: dict[str, Any] = _parsed(path, parsed, tomllib.TOMLDecodeError, "TOML: {}".format)
    return content


_MOST_PARTS = 200


def read_yaml(path: str | Path) -> Any:
    """Dates are returned as text, and aliases are expanded within the limit of `ppsim.base.limits`."""
    import yaml

    from ppsim.base.plain_yaml import PlainLoader

    def parsed(text: str) -> Any:
        check_events(yaml.parse(text, PlainLoader), str(path))
        return yaml.load(text, PlainLoader)

    def told(error: Exception) -> str:
        return f"YAML: {' '.join(str(error).split())}"

    return _parsed(path, parsed, yaml.YAMLError, told)


CONFIG_READERS: dict[str, Callable[[Path], Any]] = {
    ".toml": read_toml, ".yaml": read_yaml, ".yml": read_yaml, ".json": partial(read_json, most=CONFIG_BYTES),
}  # fmt: skip
"""Readers of configurations by file suffix."""


def _parsed(
    path: str | Path, parse: Callable[[str], Any], wrong: type[Exception], told: Callable[[Any], str],
    most: int = CONFIG_BYTES,
) -> Any:  # fmt: skip
    """`told` turns the error of `parse` into text for the message: the format and the error."""
    text = read_text(path, most=most)
    try:
        tree = parse(text)
    except ConfigError:
        raise
    except wrong as error:
        raise ConfigError(f"{path} is not valid {told(error)}") from None
    except (ValueError, OverflowError, RecursionError):
        raise ConfigError(f"{path} holds a number too long or lists too deep to be read") from None
    check_tree(tree, str(path))
    if _HALF_CHARACTER.search(text):
        try:
            json.dumps(tree, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{path} holds half of a UTF-16 character (\\ud800 to \\udfff)") from None
    return tree


_HALF_CHARACTER = re.compile(r"\\[uU](0000)?[dD][89a-fA-F]")


def read_text(path: str | Path, *, most: int = CONFIG_BYTES) -> str:
    is_large = os.path.exists(path) and os.path.getsize(path) > most
    if is_large or len(data := _bytes_of(path, most + 1)) > most:
        raise ConfigError(f"{path} is larger than {most / 2**20:,.0f} MiB, the limit for such a file")
    return _decoded(data, path)


def read_head(path: str | Path, *, most: int = CONFIG_BYTES) -> tuple[str, bool]:
    """Return the first whole lines of a text file, up to `most` bytes, and whether there is more."""
    data = _bytes_of(path, most + 1)
    if len(data) <= most:
        return _decoded(data, path), False
    return _decoded(data[: data.rfind(b"\n", 0, most) + 1], path), True


def _bytes_of(path: str | Path, most: int) -> bytes:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size:
                return file.read(min(most, size + 1))
            pieces = []
            while most > 0 and (piece := file.read(min(most, _PIECE))):
                if b"\0" in piece:  # an endless device
                    raise ConfigError(f"{path} is not a text file")
                pieces.append(piece)
                most -= len(piece)
            return b"".join(pieces)
    except IsADirectoryError:
        raise ConfigError(f"cannot read {path}: it is a folder, not a file") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:  # a name with a NUL byte
        raise ConfigError(f"cannot read {str(path)!r}: {error}") from None


_PIECE = 2**20


def _decoded(data: bytes, path: str | Path) -> str:
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file") from None


@contextmanager
def prefix_errors(source: str | Path, errors: type[PpsimError] = PpsimError) -> Iterator[None]:
    """Prepend a file's name to errors in its content, if the message lacks it."""
    try:
        yield
    except errors as error:
        if str(source) in str(error):
            raise
        raise type(error)(f"{source}: {error}") from error.__cause__


def to_json(value: Any) -> str:
    """Return standard JSON; NaN and infinity raise an error."""
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def require_writable(path: str | Path) -> None:
    if not str(path):
        raise ConfigError("cannot write '': give the file a name")
    real = os.path.realpath(path)
    places = [os.path.dirname(real)]
    if not os.path.isdir(places[0]):
        if os.path.islink(path):
            raise ConfigError(f"cannot write {path}: it is a link to {real}, and there is no folder {places[0]}")
        raise ConfigError(f"cannot write {path}: there is no folder {Path(path).parent}")
    if os.path.isdir(real):
        raise ConfigError(f"cannot write {path}: it is a folder")
    try:
        is_file = stat.S_ISREG(os.stat(real).st_mode)
        places = [real, *places] if is_file else [real]  # a device or a pipe is not replaced
    except FileNotFoundError:
        pass
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None
    if not all(os.access(folder, os.W_OK) for folder in places):
        raise ConfigError(f"cannot write {path}: no permission")


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Write a file so that readers see the old content or all of the new; raises `ConfigError` on failure.

    Links are followed, and a replaced file keeps its mode. Devices and pipes (/dev/stdout) are written directly.
    """
    path = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        if os.path.exists(path) and not path.is_file() and not path.is_dir():
            path.write_bytes(data)
        else:
            _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def _replace(path: Path, data: bytes) -> None:
    import tempfile

    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".ppsim-")
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.chmod(temporary, stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def csv_text(rows: Iterable[Mapping[str, Any]], header: Sequence[str] = ()) -> str:
    """Without a `header`, which an iterator needs, it is the keys of the first row; missing cells are empty.

    >>> csv_text([{"rank": 0, "step": "1 s"}])
    'rank,step\\n0,1 s\\n'
    """
    import csv  # only commands that write tables

    text = io.StringIO()
    writer = csv.DictWriter(text, header or list(next(iter(rows))), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The keys of the first row are the header; None becomes an empty cell.

    >>> print(markdown_table([{"rank": 0, "step": "1 s"}]), end="")
    | rank | step |
    | --- | --- |
    | 0 | 1 s |
    """
    header = list(rows[0])
    texts = [["" if row[name] is None else str(row[name]).replace("|", "\\|") for name in header] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (header, ["---"] * len(header), *texts))


_PACKAGE = Path(__file__).parents[1]


def data_folder(name: str) -> Path:
    """Return a folder inside the package or, for some data of a checkout or sdist, next to it."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
