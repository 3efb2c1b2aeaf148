"""Files are read with one clear sentence when that fails, and written whole or not at all."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from ppsim.errors import ConfigError


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file; raises `ConfigError` naming line and column of what is not JSON."""
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file") from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path} is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None


def to_json(value: Any) -> str:
    """Return readable JSON that any reader takes: NaN and infinity are refused, not written."""
    return json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or all of the new; raises `ConfigError` if it cannot."""
    path = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
