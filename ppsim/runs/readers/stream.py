"""Read a large JSON object entry by entry, and one long list in it item by item, in bounded memory.

A streaming JSON library (ijson) is not used: it gives events for single numbers, to be assembled in Python.
"""

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from ppsim.base.errors import ConfigError
from ppsim.base.limits import MOST_UNPACKED

_CHUNK = 4 * 2**20
LONGEST = 64 * 2**20
"""Maximum number of characters of a value, whether an item of the list or another entry."""

LEAST_UNPACKED = 64 * 2**20
"""Bytes that any gzip file may unpack to, whatever its size."""

_MARGIN = 16
"""Characters: an error this close to the end of the window may come from text that has not been read yet."""

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(strict=False)  # names of operators may hold control characters


@contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file, gzipped or not, for reading its unpacked bytes.

    Raises `ConfigError` for a file that cannot be read, is cut off, or is not text when read as text.
    """
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b" or str(path).endswith(".gz")
        with gzip.open(path) if packed else open(path, "rb") as file:
            yield cast(IO[bytes], io.BufferedReader(_Unpacked(file, path), _CHUNK) if packed else file)
    except EOFError:
        raise ConfigError(f"{path} is cut off: its gzip stream has no end") from None
    except gzip.BadGzipFile:
        raise ConfigError(f"cannot read {path}: it is not packed by gzip") from None
    except (OSError, zlib.error) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file") from None


class _Unpacked(io.RawIOBase):
    """Unpacked content of a gzip file; raises `ConfigError` if it is too large."""

    def __init__(self, file: Any, path: str | Path) -> None:
        self.file, self.path, self.num_bytes = file, path, 0
        self.most = max(LEAST_UNPACKED, Path(path).stat().st_size * MOST_UNPACKED)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        number: int = self.file.readinto(buffer)
        self.num_bytes += number
        if self.num_bytes > self.most:
            raise ConfigError(
                f"{self.path} unpacks to more than {MOST_UNPACKED} times its size: it is no recording"
            )
        return number


def lines_of(
    path: str | Path, *, encoding: str = "utf-8-sig", errors: str = "strict"
) -> Generator[str, None, None]:
    """Yield a text file's lines, long ones in parts of `LONGEST` characters."""
    with opened(path) as file, io.TextIOWrapper(file, encoding, errors) as text:
        yield from iter(lambda: text.readline(LONGEST), "")


def entries_of(path: str | Path, key: str) -> Generator[tuple[str, Any], None, None]:
    """Yield the entries of a file's JSON object, and each item of the list `key` on its own.

    An empty list yields one empty item. Raises `ConfigError` for malformed files.
    """
    with opened(path) as file:
        yield from _Window(file, str(path)).entries(key)


class _Window:
    """Part of the text, from `place` on; it grows if a value does not end in it."""

    def __init__(self, file: Any, source: str) -> None:
        self.file: IO[bytes] = file
        self.source = source
        self.text, self.place = "", 0
        self.passed = 0
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.has_more = True

    def entries(self, listed: str) -> Iterator[tuple[str, Any]]:
        self.expect("{")
        if self.next() == "}":
            return
        while True:
            key = self.value()
            self.expect(":")
            if key == listed and self.next() == "[":
                self.place += 1
                yield from ((listed, item) for item in self.items())
            else:
                yield str(key), self.value()
            if self.next() == "}":
                return
            self.expect(",")

    def items(self) -> Iterator[Any]:
        if self.next() == "]":
            self.place += 1
            yield {}
            return
        while True:
            yield self.value()
            if self.next() == "]":
                self.place += 1
                return
            self.expect(",")

    def next(self) -> str:
        """Return the next non-space character, "" at the end."""
        while True:
            self.place = _SPACE.match(self.text, self.place).end()  # type: ignore[union-attr]
            if self.place < len(self.text):
                return self.text[self.place]
            if not self.grow():
                return ""

    def expect(self, character: str) -> None:
        token = self.next()
        if token != character:
            raise self.wrong(f"{character} is missing" if token else "it is cut off")
        self.place += 1

    def value(self) -> Any:
        if not self.next():
            raise self.wrong("it is cut off")
        while True:
            try:
                decoded, end = _DECODER.raw_decode(self.text, self.place)
            except json.JSONDecodeError as error:
                ends_too_early = error.msg.startswith("Unterminated") or error.pos > len(self.text) - _MARGIN
                if ends_too_early and len(self.text) - self.place > LONGEST:
                    raise self.wrong(f"a value is longer than {LONGEST // 2**20} MiB") from None
                if not ends_too_early or not self.grow():
                    self.place = error.pos
                    raise self.wrong(error.msg) from None
                continue
            except (ValueError, RecursionError):
                raise ConfigError(f"{self.source} holds a number too long or lists too deep to be read") from None
            if len(self.text) - end < _MARGIN and self.grow():  # a number may go on, as after "1." or "1e"
                continue
            self.place = end
            return decoded

    def grow(self) -> bool:
        """Read more text and drop the part already parsed; returns False at the end of the file."""
        # The read size doubles with a value's length, so that a long value is not parsed again and again.
        chunk = self.file.read(max(_CHUNK, len(self.text) - self.place)) if self.has_more else b""
        self.has_more = bool(chunk)
        more = self.decoder.decode(chunk, final=not chunk)
        if chunk:
            self.passed += self.place
            self.text, self.place = self.text[self.place :] + more, 0
        return self.has_more

    def wrong(self, why: str) -> ConfigError:
        return ConfigError(f"{self.source} is not valid JSON: character {self.passed + self.place + 1}: {why}")
