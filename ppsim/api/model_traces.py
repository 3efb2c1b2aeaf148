"""Models of unknown `model_type`, traced with transformers."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError, MissingExtra
from ppsim.base.files import read_json
from ppsim.base.limits import CONFIG_BYTES
from ppsim.model.config import model_from, remember_trace
from ppsim.model.hf_fields import UnknownModelType


def trace_if_unknown(given: Any) -> None:
    """Trace a config.json with an unknown `model_type`.

    Raises `MissingExtra` if torch or transformers is not installed, and `ConfigError` for an architecture that
    cannot be traced.
    """
    if not isinstance(given, str | Path) or Path(given).suffix != ".json" or not Path(given).is_file():
        return
    data = read_json(given, most=CONFIG_BYTES)
    try:
        model_from(data, str(given))
    except UnknownModelType as unknown:
        remember_trace(data, _traced(data, str(given), unknown))
    except ConfigError:
        return  # the reader reports the error


def trace(config: str | Path) -> dict[str, Any]:
    """Known `model_type`s are traced too."""
    data = read_json(config, most=CONFIG_BYTES)
    if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
        raise ConfigError(f"{config}: model_type is missing: --trace needs a Hugging Face config.json")
    return _traced(data, str(config), None)


def _traced(data: dict[str, Any], where: str, unknown: UnknownModelType | None) -> dict[str, Any]:
    kind = data["model_type"]
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        problem = str(unknown) if unknown else f"{where}: --trace needs torch and transformers"
        raise MissingExtra.of("models", f"{problem}; {' and '.join(missing)} would be needed to trace it")
    from ppsim.profiling.trace_model import is_known, trace

    if not is_known(kind):
        known_by = f"transformers does not know model_type '{kind}' either"
        raise ConfigError(f"{unknown}; {known_by}" if unknown else f"{where}: {known_by.removesuffix(' either')}")
    return trace(data, where)
