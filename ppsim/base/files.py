"""Files are read with one clear sentence when that fails, and written whole or not at all."""

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError, MissingExtra, PpsimError


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file; raises `ConfigError` naming line and column of what is not JSON."""

    def told(error: json.JSONDecodeError) -> str:
        return f"JSON: line {error.lineno}, column {error.colno}: {error.msg}"

    return _parsed(path, json.loads, json.JSONDecodeError, told)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file; raises `ConfigError` for what is none."""
    import tomllib

    found: dict[str, Any] = _parsed(path, tomllib.loads, tomllib.TOMLDecodeError, "TOML: {}".format)
    return found


def read_yaml(path: str | Path) -> Any:
    """Return the content of a YAML file; raises `ConfigError` for what is none, `MissingExtra` without PyYAML."""
    try:
        import yaml
    except ImportError:
        raise MissingExtra.of("yaml", f"{path} needs PyYAML, which is not installed") from None

    def told(error: Exception) -> str:
        return f"YAML: {' '.join(str(error).split())}"

    return _parsed(path, yaml.safe_load, yaml.YAMLError, told, unread="a date that is none,")


def _parsed(
    path: str | Path, parse: Callable[[str], Any], wrong: type[Exception], told: Callable[[Any], str],
    unread: str = "a number too long",
) -> Any:  # fmt: skip
    """What a parser makes of a file; `told` says which format it is not, and why."""
    text = read_text(path)
    try:
        return parse(text)
    except wrong as error:
        raise ConfigError(f"{path} is not valid {told(error)}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} holds {unread} or lists too deep to be read") from None


def read_text(path: str | Path) -> str:
    """Return the content of a text file; raises `ConfigError` for one that cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file") from None


@contextmanager
def naming(source: str | Path, errors: type[PpsimError] = PpsimError) -> Iterator[None]:
    """Put the name of a file in front of what is wrong with its content, where the sentence lacks it."""
    try:
        yield
    except errors as error:
        if str(source) in str(error):
            raise
        raise type(error)(f"{source}: {error}") from error.__cause__


def to_json(value: Any) -> str:
    """Return readable JSON that any reader takes: NaN and infinity are refused, not written."""
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def check_place(path: str | Path) -> None:
    """Raise `ConfigError` where a file could not be written, before any work is done."""
    if not str(path):
        raise ConfigError("cannot write '': give the file a name")
    real = os.path.realpath(path)
    places = [os.path.dirname(real)]
    if not os.path.isdir(places[0]):
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
    if not all(os.access(place, os.W_OK) for place in places):
        raise ConfigError(f"cannot write {path}: no permission")


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or all of the new; raises `ConfigError` if it cannot.

    A link is followed, and a file that is replaced keeps its mode. A device or a pipe (/dev/stdout) is written to.
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
