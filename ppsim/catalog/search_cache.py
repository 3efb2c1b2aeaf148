"""Disk cache of search results, which can take seconds to find.

A file name is a hash of the request and of the state of ppsim's source files, so that results of another version
are never used. A file that was changed, or copied from another request, is deleted and its table searched again.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.base.files import write_atomically
from ppsim.schedule.table import Schedule

FOLDER = "PPSIM_CACHE_DIR"
"""Environment variable with another cache folder; an empty value switches the cache off."""

_MOST_BYTES = 64 * 2**20
_ROOMS = ("base", "catalog", "schedule", "simulation")  # packages that affect search results
_SUFFIX = ".table"
_DIGEST_BYTES = 20


def folder() -> Path | None:
    if (named := os.environ.get(FOLDER)) is not None:
        return Path(named) if named else None
    with suppress(RuntimeError):  # no home directory
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ppsim")
    return None


def cached_result(question: object, find: Callable[[], Schedule]) -> Schedule:
    """`question`, the request, consists of dataclasses, sequences, arrays and values with a distinct `repr`."""
    if (cache_folder := folder()) is None:
        return find()
    request = b"".join(_told((question, _state_of_code())))
    path = cache_folder / f"{_digest(request).hex()}{_SUFFIX}"
    if (stored := _read(path, request)) is not None:
        return stored
    answer = find()
    with suppress(OSError, ConfigError):
        cache_folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, packed(answer, request))
        _forget_oldest(cache_folder)
    return answer


def packed(table: Schedule, request: bytes) -> bytes:
    """Return the content of a file: a digest of request and columns, and the columns as npz."""
    content = io.BytesIO()
    np.savez_compressed(content, **{field.name: getattr(table, field.name) for field in fields(table)})
    return _digest(request + content.getvalue()) + content.getvalue()


def unpacked(content: bytes, request: bytes) -> Schedule | None:
    """Return None if the content is not exactly as it was packed for this request."""
    digest, columns = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if digest != _digest(request + columns):
        return None
    with np.load(io.BytesIO(columns)) as file:
        arrays = {key: file[key] for key in file.files}
    return Schedule(**{key: column if column.ndim else column.item() for key, column in arrays.items()})


def _read(path: Path, request: bytes) -> Schedule | None:
    with suppress(OSError):
        arrays = unpacked(path.read_bytes(), request)
        if arrays is None:
            path.unlink()
        else:
            os.utime(path)
        return arrays
    return None


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


def _told(value: object) -> Iterator[bytes]:
    if isinstance(value, np.ndarray):
        yield repr((value.dtype.str, value.shape)).encode()
        yield value.tobytes()
    elif is_dataclass(value):
        yield from _told([getattr(value, field.name) for field in fields(value)])
    elif isinstance(value, list | tuple):
        yield f"{type(value).__name__} {len(value)}:".encode()
        for one in value:
            yield from _told(one)
    else:
        yield repr(value).encode() + b";"


@cache
def _state_of_code() -> list[object]:
    package = Path(__file__).parents[1]
    files = sorted(path for room in _ROOMS for end in ("py", "toml") for path in (package / room).rglob(f"*.{end}"))
    states = [(path.relative_to(package).as_posix(), path.stat()) for path in files]
    return [np.__version__, *((name, state.st_size, state.st_mtime_ns) for name, state in states)]


def _forget_oldest(cache_folder: Path) -> None:
    states = ((path.stat(), path) for path in cache_folder.glob(f"*{_SUFFIX}*"))
    files = sorted((state.st_mtime_ns, state.st_size, path) for state, path in states)
    left = sum(size for _, size, _ in files)
    for _, size, path in files:
        if left <= _MOST_BYTES:
            return
        path.unlink(missing_ok=True)
        left -= size
